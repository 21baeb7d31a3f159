"""Real Chromium on pages that a server on loopback serves: one runtime for each worker, a session for each test."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.sites import Page, Site, serve
from toolcrib.browser.service import BrowserService
from toolcrib.config.browser_settings import find_chromium
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime
from toolcrib.tools.browser import browser_navigate  # noqa: F401 - registers the tools

NUMBERS = itertools.count()
Answer = dict[str, Any]


class Approver:
    """Agrees, unless a test says otherwise. Records the requests."""

    def __init__(self) -> None:
        self.choice = "once"
        self.asked: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        self.asked.append(request)
        return ApprovalAnswer(choice=self.choice, decided_by="user")  # type: ignore[arg-type]


class Browsing:
    """One session with a browser."""

    def __init__(self, runtime: Runtime, site: Site, approver: Approver, session_id: str = "") -> None:
        self.runtime = runtime
        self.site = site
        self.approver = approver
        self.session_id = session_id or f"session-{next(NUMBERS)}"

    async def call(self, tool: str, **arguments: Any) -> Answer:
        result = await self.runtime.call(f"browser_{tool}", arguments, ctx=self.context())
        return dict(json.loads(result.text))

    def context(self, **more: Any) -> Any:
        return self.runtime.context(session_id=self.session_id, cwd=self.runtime.workspace, **more)

    async def open(self, body: str, path: str = "/", **headers: str) -> Answer:
        """Serve a page and navigate to it."""
        self.site.pages[path] = html(body, **headers)
        return await self.call("navigate", url=f"{self.site.address}{path}")

    async def evaluate(self, expression: str) -> Any:
        return (await self.call("console", expression=expression))["result"]


def browser_of(browsing: Browsing) -> Any:
    """The live browser of a session."""
    service: BrowserService = browsing.runtime.services.browser
    slot = service._slots[f"{browsing.session_id}/"]
    assert slot.browser is not None
    return slot.browser.browser


def html(body: str, **headers: str) -> Page:
    return 200, {"content-type": "text/html; charset=utf-8", **headers}, f"<!doctype html>{body}".encode()


def shown(answer: Answer) -> str:
    """What the model sees of the page: all of it, or what changed."""
    return str(answer.get("snapshot") or answer.get("changed") or answer)


def ref_of(answer: Answer, text: str) -> str:
    """The ref in the line of a snapshot that contains this text."""
    line = next(line for line in shown(answer).splitlines() if text in line)
    return str(line.rpartition("[ref=")[2].partition("]")[0])


@pytest.fixture(autouse=True)
def chromium(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("services") is not None and not find_chromium():
        pytest.skip("no Chromium: run scripts/test-services up")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Runtime, Approver]]:
    """A runtime that may reach this machine, for all tests of a worker."""
    folder = tmp_path_factory.mktemp("browser")
    workspace = folder / "workspace"
    workspace.mkdir()
    approver = Approver()
    with isolated_runtime(
        folder / "home",
        json.dumps({"security": {"allow_private_urls": True}}),
        registry=ToolRegistry(parent=default_registry),
        approver=approver,
        workspace=workspace,
    ) as runtime:
        yield runtime, approver


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as one:
        yield one


@pytest.fixture
async def browsing(shared: tuple[Runtime, Approver], site: Site) -> Any:
    runtime, approver = shared
    approver.choice = "once"
    approver.asked.clear()
    session = Browsing(runtime, site, approver)
    yield session
    await runtime.services.end_session(session.session_id)


@pytest.fixture
def open_browsing(make_runtime: Callable[..., Runtime], site: Site, tmp_path: Path) -> Callable[..., Browsing]:
    """Sessions in runtimes with settings of their own."""

    def make(*, browser: dict[str, Any] | None = None, security: dict[str, Any] | None = None, **more: Any) -> Browsing:
        approver = Approver()
        security = {"allow_private_urls": True} if security is None else security
        config = {"browser": browser or {}, "security": security, **more}
        runtime = make_runtime(
            json.dumps(config),
            registry=ToolRegistry(parent=default_registry),
            approver=approver,
            workspace=tmp_path,
        )
        return Browsing(runtime, site, approver)

    return make


def chromium_processes(marker: str = "toolcrib-browser-") -> list[int]:
    """The main processes of browsers that run with such a profile."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        is_ours = any(marker.encode() in word for word in words if word.startswith(b"--user-data-dir="))
        if is_ours and b"--type=" not in b" ".join(words):
            found.append(int(entry.name))
    return found


def content_of(path: str | Path) -> bytes:
    return Path(path).read_bytes()


def mode_of(path: str | Path) -> int:
    return Path(path).stat().st_mode & 0o777
