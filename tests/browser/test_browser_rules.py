"""What the browser tools decide without a browser: snapshots, effects, commands, availability, the proxy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.web.settings import web_settings
from toolcrib.browser import devtools
from toolcrib.browser.files import safe_name
from toolcrib.browser.page_facts import ElementFacts, click_effects, press_effects, type_effects
from toolcrib.browser.proxy import GuardProxy
from toolcrib.browser.service import key_name
from toolcrib.browser.snapshot import changes, given_ref, read_snapshot
from toolcrib.config.browser_settings import find_chromium
from toolcrib.core.errors import ToolcribError
from toolcrib.tools.browser import check_browser
from toolcrib.web.guard import AddressGuard, AddressRules

TREE = """\
- generic [active] [ref=e1] [box=0,0,1280,5000]:
  - heading "Not a ref [ref=e99]" [level=1] [ref=e2] [box=8,8,100,30]
  - generic [ref=e3] [box=8,40,100,20]:
    - text: "Name [ref=e98]"
    - textbox "Name" [ref=e5] [box=8,60,100,20]: hunter2
  - 'button "It''s: here" [ref=e6] [box=8,90,100,20]'
  - link "Home" [ref=e7] [cursor=pointer] [box=8,120,100,20]:
    - /url: "#top"
  - iframe [ref=e8] [box=100,200,300,300]:
    - button "Inner" [ref=f1e2] [box=10,20,50,20]
  - button "Far" [ref=e9] [box=8,4000,100,20]
"""


def test_refs_are_read_from_attributes_only() -> None:
    """A page cannot invent refs by writing them into its texts."""
    refs = read_snapshot(TREE, 800).refs

    assert set(refs) == {"e1", "e2", "e3", "e5", "e6", "e7", "e8", "f1e2", "e9"}
    assert refs["e6"].label == "It's: here"
    assert refs["f1e2"].box == (110, 220, 50, 20)


def test_a_snapshot_is_compact_and_cut_to_what_is_visible() -> None:
    """Containers that say nothing go first, then what is not on the screen; the count says how much is missing."""
    snapshot = read_snapshot(TREE, 800).without({"hunter2"})

    text, left_out = snapshot.cut(10_000)
    assert left_out == 0
    assert "generic" not in text
    assert "#top" not in text
    assert "hunter2" not in text
    assert '- button "It\'s: here" [ref=e6]' in text
    text, left_out = snapshot.cut(235)
    assert "Far" not in text
    assert "Inner" in text
    assert left_out > 0
    assert "generic [active] [ref=e1]" in snapshot.cut(10_000, full=True)[0]


def test_changes_are_told_as_lines_unless_most_of_the_page_changed() -> None:
    """A model reads a few new lines, or the whole page."""
    before = [f"- text: {number}" for number in range(10)]

    assert changes(before, [*before[1:], "- text: new"]) == (["- text: new"], 1)
    assert changes(before, before) == ([], 0)
    assert changes(before, [f"- other: {number}" for number in range(10)]) is None


@pytest.mark.parametrize("written", ["e5", "@e5", "[ref=e5]", "ref=e5", " E5 "])
def test_refs_are_understood_as_models_write_them(written: str) -> None:
    assert given_ref(written) == "e5"
    assert given_ref("Read more") == ""


POST = {"tag": "button", "in_form": True, "submits": True, "method": "post", "host": "a.example"}


@pytest.mark.parametrize(
    ("facts", "kinds"),
    [
        ({"tag": "a", "label": "Buy now"}, []),
        ({"tag": "button", "label": "Next"}, []),
        ({**POST, "label": "Next"}, ["remote"]),
        ({**POST, "method": "", "text_fields": 1}, []),
        ({**POST, "method": "", "text_fields": 3}, ["remote"]),
        ({**POST, "method": "get", "has_private_fields": True}, ["remote"]),
        ({**POST, "label": "Pay 20 €"}, ["spend"]),
        ({"tag": "div", "label": "Delete account"}, ["remote"]),
        ({"tag": "span", "label": "Place your order"}, ["spend"]),
        ({"tag": "input", "type": "checkbox", "in_form": True, "label": "Subscribe"}, []),
    ],
)
def test_what_a_click_does(facts: dict[str, Any], kinds: list[str]) -> None:
    """Reading is network alone; sending and paying are effects that are asked about."""
    effects = click_effects(ElementFacts(**facts))

    assert [one.kind for one in effects] == ["network", *kinds]


def test_what_keys_and_texts_do() -> None:
    """Enter submits a form that sends something; passwords and keys are secrets."""
    field = ElementFacts(tag="input", type="text", editable=True, in_form=True, method="post", host="a.example")
    search = ElementFacts(tag="input", type="search", editable=True, in_form=True, text_fields=1)

    assert [one.kind for one in press_effects(field, "Enter")] == ["network", "remote"]
    assert [one.kind for one in press_effects(field, "a")] == ["network"]
    assert [one.kind for one in press_effects(search, "Enter")] == ["network"]
    assert [one.kind for one in type_effects(field, "hello")] == ["network"]
    assert [one.kind for one in type_effects(field, "ghp_" + "a1B2" * 9)] == ["network", "secret"]
    code = ElementFacts(tag="input", autocomplete="one-time-code", editable=True)
    assert [one.kind for one in type_effects(code, "123456")] == ["network", "secret"]


@pytest.mark.parametrize(
    "method",
    [
        "Target.createBrowserContext", "Browser.setDownloadBehavior", "Browser.grantPermissions", "Tethering.bind",
        "DOM.setFileInputFiles", "Page.setDownloadBehavior", "Target.attachToTarget", "Extensions.loadUnpacked",
        "SystemInfo.getProcessInfo", "IO.read", "Fetch.enable", "Browser.close", "Page", "",
    ],
)  # fmt: skip
def test_devtools_commands_that_reach_outside_are_refused(method: str) -> None:
    assert devtools.refusal(method, {})
    assert not devtools.refusal("Page.getFrameTree", {})


def test_devtools_commands_are_judged() -> None:
    """Reading is network, cookies are secrets, everything else changes something."""
    kinds = {
        method: [one.kind for one in devtools.cdp_effects(method, "a.example")]
        for method in ("DOM.getDocument", "Network.getCookies", "Input.dispatchMouseEvent", "Runtime.evaluate")
    }

    assert kinds == {
        "DOM.getDocument": ["network"],
        "Network.getCookies": ["network", "secret"],
        "Input.dispatchMouseEvent": ["network", "remote"],
        "Runtime.evaluate": ["network", "remote"],
    }


@pytest.mark.parametrize(
    ("suggested", "name"),
    [("../../etc/passwd", "passwd"), ("a\\b.txt", "b.txt"), (".bashrc", "bashrc"), ("", "download"), ("a\nb", "a_b")],
)
def test_download_names_stay_in_their_folder(suggested: str, name: str) -> None:
    assert safe_name(suggested) == name


def test_key_names() -> None:
    assert [key_name(key) for key in ("enter", "ctrl+a", "ESC", "a", "+", " ", "ArrowDown")] == [
        "Enter", "Control+a", "Escape", "a", "+", "Space", "ArrowDown",
    ]  # fmt: skip


def test_availability_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Without Chromium the tools are unavailable with a remedy; a remote browser needs none."""
    monkeypatch.setenv("PATH", str(tmp_path))

    missing = check_browser()
    assert not missing
    assert "apt install chromium" in missing.remedy  # type: ignore[union-attr]
    (tmp_path / "chromium").write_text("")
    assert not find_chromium()
    (tmp_path / "chromium").chmod(0o755)
    assert check_browser() is True
    home.mkdir()
    (home / "config.yaml").write_text("browser:\n  executable: /none/chrome\n")
    assert "/none/chrome" in check_browser().reason  # type: ignore[union-attr]
    (home / "config.yaml").write_text("browser:\n  headed: true\n")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert "browser.headed" in check_browser().remedy  # type: ignore[union-attr]
    monkeypatch.setenv("DISPLAY", ":0")
    assert check_browser() is True
    (home / "config.yaml").write_text("browser:\n  cdp_url: http://localhost:9222\n")
    (tmp_path / "chromium").unlink()
    assert check_browser() is True


async def _ask_proxy(proxy: GuardProxy, request: bytes) -> bytes:
    address = await proxy.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write(request)
        answer = await reader.read()
        writer.close()
    finally:
        await proxy.close()
    return answer


@pytest.mark.parametrize(
    "request_line",
    [
        "GET http://169.254.169.254/ HTTP/1.1", "CONNECT 127.0.0.1:443 HTTP/1.1", "CONNECT [::1]:443 HTTP/1.1",
        "CONNECT 2130706433:443 HTTP/1.1", "GET ftp://a.example/ HTTP/1.1", "GET / HTTP/1.1", "nonsense",
        "CONNECT metadata.google.internal:80 HTTP/1.1", "GET http://localhost./ HTTP/1.1",
    ],
)  # fmt: skip
async def test_the_proxy_refuses_what_the_guard_refuses(request_line: str) -> None:
    """Whatever the form of the request; nothing is connected to."""
    proxy = GuardProxy(AddressGuard(AddressRules.from_settings(web_settings())))

    answer = await _ask_proxy(proxy, f"{request_line}\r\nHost: x\r\n\r\n".encode())

    assert answer.startswith(b"HTTP/1.1 403 ")
    assert proxy.refusals


async def test_a_connection_through_the_proxy_carries_one_request() -> None:
    """A server that wants to keep the connection is not asked again on it: it could get what is meant for another."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    rules = AddressRules.from_settings(web_settings(security={"allow_private_urls": True}))
    try:
        request = f"GET http://127.0.0.1:{port}/a?b HTTP/1.1\r\nHost: h\r\nProxy-Connection: keep-alive\r\n\r\n"
        answer = await _ask_proxy(GuardProxy(AddressGuard(rules)), request.encode())
    finally:
        server.close()

    assert seen == [b"GET /a?b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"]
    assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


def test_commands_with_addresses_are_checked() -> None:
    """The guard refuses files and private addresses, whoever asks."""
    guard = AddressGuard(AddressRules.from_settings(web_settings()))
    for url in ("file:///etc/passwd", "http://127.0.0.1/", "chrome://settings"):
        with pytest.raises(ToolcribError):
            guard.check(url)
