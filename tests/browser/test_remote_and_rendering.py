"""Where the browser meets other parts: providers of remote browsers, and pages that `web_extract` cannot read alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Browsing, html
from tests.displays import x_display
from tests.web.sites import Site
from toolcrib.browser import chromium
from toolcrib.browser.chromium import BrowserFailed
from toolcrib.compat.agent_providers import BrowserProvider
from toolcrib.process_identity import identity_of
from toolcrib.processes.ledger import Ledger
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.tools.web import web_extract  # noqa: F401 - registers the tool

SCRIPTED = """<title>App</title><div id=app></div><script>
document.getElementById('app').innerHTML = '<article><h1>Made by a script</h1>' +
  '<p>This sentence exists only after the script of the page has run, and it is long enough to be content. '.repeat(5)
</script>"""


class Cloud(BrowserProvider):
    """A provider whose browser cannot be reached."""

    name = "cloud"

    def __init__(self) -> None:
        self.closed: list[str] = []

    def is_available(self) -> bool:
        return True

    def create_session(self, task_id: str) -> dict[str, object]:
        return {"cdp_url": "http://127.0.0.1:9/", "session_id": f"at-{task_id}"}

    def close_session(self, session_id: str) -> bool:
        self.closed.append(session_id)
        return True

    def emergency_cleanup(self, session_id: str) -> None:
        raise AssertionError("the session was closed")


class LoadedPlugin:
    """A plugin that declared a provider with `ctx.register_browser_provider`."""

    def __init__(self, provider: object) -> None:
        class Declared:
            kind = "browser_provider"
            name = ""
            arguments = (provider,)

        self.declarations = [Declared()]


@pytest.mark.services
async def test_a_provider_gets_its_browser_back(open_browsing: Callable[..., Browsing]) -> None:
    """If a remote browser cannot be reached, its session is closed, and the error says whose it was."""
    provider = Cloud()
    browsing = open_browsing(browser={"cloud_provider": "cloud"}, security={})
    browsing.runtime.services.provide("plugins", [LoadedPlugin(provider)])

    answer = await browsing.call("navigate", url="https://93.184.216.34/")

    assert answer["error"] == "the browser of 'cloud' cannot be reached"
    assert provider.closed == [f"at-{browsing.session_id}/"]


@pytest.mark.services
async def test_a_provider_gets_back_what_a_dead_process_had(open_browsing: Callable[..., Browsing]) -> None:
    """A session of a toolcrib that was killed is closed by the next one that uses a browser."""
    child = await asyncio.create_subprocess_exec("sleep", "60")
    owner = identity_of(child.pid)
    assert owner is not None
    child.kill()
    await child.wait()
    provider = Cloud()
    browsing = open_browsing(browser={"cloud_provider": "cloud"}, security={})
    browsing.runtime.services.provide("plugins", [LoadedPlugin(provider)])
    folder = browsing.runtime.settings.home.processes_dir / "browsers"
    Ledger(folder, owner).environment_opened({"provider": "cloud", "session": "left"})

    await browsing.call("navigate", url="https://93.184.216.34/")

    assert provider.closed == ["left", f"at-{browsing.session_id}/"]
    assert not list(folder.glob("environments/*.json"))


def test_an_unknown_provider_is_named() -> None:
    """A name that no plugin offers is refused with the nearest one."""
    with pytest.raises(BrowserFailed, match="did you mean 'cloud'"):
        chromium._provider("clout", [LoadedPlugin(Cloud())])


def test_the_key_of_a_remote_browser_comes_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The config has only its name; without the variable, the error names that."""
    monkeypatch.setenv("CLOUD_KEY", "k-1")
    assert chromium._with_variables("wss://c.example?key=${CLOUD_KEY}") == "wss://c.example?key=k-1"
    monkeypatch.delenv("CLOUD_KEY")
    with pytest.raises(BrowserFailed, match="CLOUD_KEY"):
        chromium._with_variables("wss://c.example?key=${CLOUD_KEY}")


@pytest.mark.services
@pytest.mark.may_skip
async def test_a_headed_browser_has_a_window(open_browsing: Callable[..., Browsing]) -> None:
    """With `browser.headed`, the page is on the desktop until the session ends."""
    with x_display("xdotool"):
        browsing = open_browsing(browser={"headed": True})

        assert (await browsing.open("<title>On the desktop</title>"))["title"] == "On the desktop"
        search = ("xdotool", "search", "--sync", "--name", "On the desktop")
        looking = await asyncio.create_subprocess_exec(*search, stdout=asyncio.subprocess.PIPE)
        found, _ = await asyncio.wait_for(looking.communicate(), 60)
        await browsing.runtime.services.end_session(browsing.session_id)

    assert found.split()


@pytest.mark.services
async def test_a_page_made_by_scripts_is_read_in_the_browser(make_runtime: Callable[..., Runtime], site: Site) -> None:
    """`web_extract` gets its text, and says how; a page without scripts needs no browser."""
    config = {"web": {"ports": [80, site.port]}, "security": {"allow_private_urls": True}}
    runtime = make_runtime(json.dumps(config), registry=ToolRegistry(parent=default_registry))
    site.pages["/app"] = html(SCRIPTED)
    site.pages["/short"] = html("<title>Short</title><p>Nothing more here.")

    async def read(path: str) -> dict[str, Any]:
        result = await runtime.call("web_extract", {"urls": [f"{site.address}{path}"]})
        return dict(json.loads(result.text)["results"][0])

    short = await read("/short")
    assert "browser" not in short.get("note", "")
    assert [asked.path for asked in site.requests] == ["/short"]
    found = await read("/app")

    assert "Made by a script" in found["content"]
    assert "read in a browser" in found["note"]
