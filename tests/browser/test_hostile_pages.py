"""Pages that misbehave, and browsers that die: nothing hangs, nothing is reached, nothing is left."""

# ruff: noqa: ASYNC220, ASYNC240 - starting a program and looking at a folder take no time here.

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from html import escape
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.browser.conftest import Browsing, browser_of, chromium_processes, html, ref_of, shown
from tests.web.settings import web_settings
from tests.web.sites import Site
from toolcrib.browser.proxy import GuardProxy
from toolcrib.browser.service import BrowserService
from toolcrib.browser.tabs import KEPT_NOTES, KEPT_REQUESTS
from toolcrib.process_identity import identity_of
from toolcrib.processes.orphan_cleanup import processes_of
from toolcrib.web.guard import AddressGuard, AddressRules

pytestmark = pytest.mark.services

OpenBrowsing = Callable[..., Browsing]


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for something that another process does; the limit only bounds a hang."""
    async with asyncio.timeout(60):
        while not is_true():  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(0.05)


async def test_endless_alerts_do_not_hold_the_session(browsing: Browsing) -> None:
    """The model can answer some, and leave the page at any time."""
    browsing.site.pages["/calm"] = html("<title>Calm</title>")
    page = await browsing.open("<button onclick=\"for(;;) alert('again')\">go</button>")

    answer = await browsing.call("click", ref=ref_of(page, "go"))
    for _ in range(3):
        assert answer["pending_dialogs"][0]["message"] == "again"
        answer = await browsing.call("dialog", action="accept")
    left = await browsing.call("navigate", url=f"{browsing.site.address}/calm")

    assert left["title"] == "Calm"
    assert "pending_dialogs" not in left


@pytest.mark.parametrize("script", ["for(;;)confirm('x')", "setTimeout(()=>{for(;;)confirm('x')},0)"])
async def test_endless_dialogs_of_a_page_that_loads_close_only_that_page(browsing: Browsing, script: str) -> None:
    """The page is given up, the session keeps its browser and cookies, and the model reads why."""
    await browsing.open("<title>Calm</title><script>document.cookie='mark=1'</script>", "/calm")
    answer = await browsing.open(f"<script>{script}</script>", "/flood")
    again = await browsing.call("navigate", url=f"{browsing.site.address}/calm")

    assert "one dialog after the other" in answer["error"]
    assert again["title"] == "Calm"
    assert await browsing.evaluate("document.cookie") == "mark=1"


async def test_a_flood_of_windows_is_limited(browsing: Browsing) -> None:
    """Windows without a click stay closed, and one click opens at most a few."""
    page = await browsing.open(
        "<script>setInterval(()=>window.open('/'),5)</script>"
        "<button onclick=\"for(let i=0;i<50;i++)window.open('about:blank')\">go</button>"
    )

    answer = await browsing.call("click", ref=ref_of(page, "go"))

    assert len(answer.get("tabs", [1])) <= browsing.runtime.settings.browser.max_tabs


async def test_a_huge_page_is_answered(browsing: Browsing) -> None:
    """A page with too many elements is described instead of read."""
    page = await browsing.open(
        "<h1>Big</h1><script>let f=document.createDocumentFragment();for(let i=0;i<200000;i++)"
        "f.append(document.createElement('b'));document.body.append(f)</script>"
    )

    assert "too many for a snapshot" in shown(page)
    assert "Big" in shown(page)


async def test_a_page_of_many_frames_is_answered(browsing: Browsing) -> None:
    """Each frame takes a question of its own, so more than a hundred are described instead of read."""
    page = await browsing.open("<h1>Many</h1>" + "<iframe srcdoc='<button>b</button>'></iframe>" * 120)

    assert "121 frames, too many for a snapshot" in shown(page)
    assert "Many" in shown(page)


@pytest.mark.parametrize("decoy", ["<button>Go on</button>", "<button hidden>Go on</button>", "<a target=x>Go on</a>"])
async def test_a_harmless_button_does_not_speak_for_another_of_its_name(browsing: Browsing, decoy: str) -> None:
    """What a click does is looked up for the element itself when a second one might be meant."""
    form = "<form method=post action=/in><textarea name=t></textarea><button>Go on</button></form>"
    page = await browsing.open(f"{decoy}<div><template shadowrootmode=open>{form}</template></div>")
    refs = re.findall(r'button "Go on" \[ref=(\w+)\]', shown(page))

    await browsing.call("click", ref=refs[-1])

    assert [request.dangers[0].rule for request in browsing.approver.asked] == ["remote_change"]


PASSWORD_FIELDS = (
    "<input type=password aria-label=Field placeholder='Your password' value='{}'>",
    "<div><template shadowrootmode=open><p><input type=password value='{}'></p></template></div>",
    "<iframe srcdoc='{}'></iframe>",
)


async def test_passwords_are_hidden_however_the_tree_writes_them(browsing: Browsing) -> None:
    """What a password field contains is not shown: with quotes and odd spaces, in shadow trees, beside a hint."""
    beside, shadow, frame = PASSWORD_FIELDS
    fields = []
    for number, secret in enumerate(['a: "b{}" #\\c', "  two{}  spaces ", "it's{}", "hunter{}"]):
        texts = [escape(secret.format(f"-word{number}{place}")) for place in "xyz"]
        inner = escape(beside.format(texts[2]))
        fields += [beside.format(texts[0]), shadow.format(texts[1]), frame.format(inner)]

    text = shown(await browsing.open("".join(fields) + "<input aria-label=Other value=seen-word>"))

    assert text.count("••••") == len(fields), text
    assert "Your password" in text
    assert re.findall(r"\S*-word\S*", text) == ["seen-word"]


async def test_passwords_in_later_frames_are_hidden(browsing: Browsing) -> None:
    """What a password field contains is not shown, in whichever frame it is."""
    frames = "<iframe srcdoc='<p>x</p>'></iframe>" * 30
    page = await browsing.open(f"{frames}<iframe srcdoc='<input type=password value=hunter22>'></iframe>")

    assert "textbox" in shown(page)
    assert "hunter22" not in shown(page)


@pytest.mark.parametrize("size", [300_000, 30_000_000])
async def test_a_download_that_is_too_large_says_so(open_browsing: OpenBrowsing, size: int) -> None:
    """Whether it is refused at its end, or cut off long before, the error names the limit and its setting."""
    browsing = open_browsing(browser={"max_download_mb": 0.2})
    headers = {"content-type": "application/octet-stream", "content-disposition": "attachment; filename=big.bin"}
    browsing.site.pages["/big"] = 200, headers, bytes(size)
    page = await browsing.open("<a href=/big>get</a>")

    answer = await browsing.call("click", ref=ref_of(page, "get"))

    assert "0.2 MB (browser.max_download_mb)" in answer["downloads"][0]["error"]
    assert not Path(browsing.runtime.workspace, "downloads").exists()


async def test_a_page_that_hangs_is_replaced(open_browsing: OpenBrowsing) -> None:
    """A script without end costs the call its time limit; then there is a fresh browser, and the model is told."""
    browsing = open_browsing(browser={"command_timeout": 3})
    page = await browsing.open("<title>a</title><button onclick='setTimeout(()=>{for(;;);},0)'>go</button>")

    hung = await browsing.call("click", ref=ref_of(page, "go"))
    assert "fresh one takes its place" in hung["error"]
    again = await browsing.call("navigate", url=browsing.site.address)

    assert again["title"] == "a"


async def test_a_browser_that_dies_is_replaced(browsing: Browsing) -> None:
    """After a crash of Chromium the next navigation works, and its result says what happened."""
    await browsing.open("<title>a</title>")
    os.kill(browser_of(browsing).leader.pid, signal.SIGKILL)

    lost = await browsing.call("snapshot")
    assert "died" in lost["error"]
    again = await browsing.call("navigate", url=browsing.site.address)

    assert again["title"] == "a"


async def test_a_browser_that_dies_during_a_call_is_not_taken_for_a_dialog(browsing: Browsing) -> None:
    """Whatever waits when Chromium dies ends with that reason, whichever of its events arrives first."""
    await browsing.open("<title>a</title>")
    session = browsing.runtime.services.browser._slots[f"{browsing.session_id}/"].browser
    assert session is not None
    waiting = asyncio.create_task(browsing.call("console", expression="new Promise(() => {})"))
    await until(lambda: bool(session.tabs._interrupts))
    os.kill(browser_of(browsing).leader.pid, signal.SIGKILL)

    assert "died" in (await waiting)["error"]


async def test_a_page_that_crashes_is_opened_again(browsing: Browsing) -> None:
    """A crashed renderer leaves a session that still works."""
    await browsing.open("<title>a</title>")
    await _crash(browsing)

    answer = await browsing.call("snapshot")
    assert "crashed" in answer["error"]
    assert (await browsing.call("navigate", url=browsing.site.address))["title"] == "a"


async def _crash(browsing: Browsing) -> None:
    service: BrowserService = browsing.runtime.services.browser
    session = service._slots[f"{browsing.session_id}/"].browser
    assert session is not None
    tab = session.tabs.current
    assert tab is not None

    async def crash() -> None:
        channel = await session.tabs.context.new_cdp_session(tab.page)
        sending = asyncio.create_task(channel.send("Page.crash"))
        async with asyncio.timeout(30):
            while not tab.has_crashed:  # noqa: ASYNC110 - the event of the page sets it
                await asyncio.sleep(0.01)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    await service._on_loop(crash())


async def test_private_addresses_are_out_of_reach(open_browsing: OpenBrowsing) -> None:
    """Neither the model, nor a redirect, nor a script, nor a socket reaches them; metadata never."""
    browsing = open_browsing(security={"allowed_private_hosts": []})
    port = browsing.site.port
    for url in (
        f"http://127.0.0.1:{port}/",
        f"http://localhost:{port}/",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "http://[::1]/",
        "http://2130706433/",
        "chrome://version",
        "javascript:alert(1)",
    ):
        assert "error" in await browsing.call("navigate", url=url), url
    assert browsing.site.requests == []


REACHING = """<title>start</title><iframe src='TARGET'></iframe><img src='TARGET'><script>
document.results = [];
const tell = text => document.results.push(text);
fetch('TARGET').then(r => r.text()).then(t => tell('read ' + t), () => tell('refused'));
const socket = new WebSocket('ws://169.254.169.254/');
socket.onopen = () => tell('open');
socket.onerror = () => tell('refused');
</script>"""

BOTH_RESULTS = """new Promise(done => {
  const look = () => document.results.length > 1 ? done(document.results) : setTimeout(look, 20);
  look();
})"""


async def test_pages_cannot_reach_private_addresses(open_browsing: OpenBrowsing, site: Site) -> None:
    """With one host allowed, its pages get no further: not by redirects, frames, images, fetch or sockets."""
    browsing = open_browsing(security={"allowed_private_hosts": [f"127.0.0.1:{site.port}"]})
    target = f"http://localhost:{site.port}/secret"
    site.pages["/secret"] = html("<title>secret</title>")
    site.pages["/redirect"] = (302, {"location": target}, b"")

    redirected = await browsing.call("navigate", url=f"{site.address}/redirect")
    assert "private address" in redirected["error"]
    page = await browsing.open(REACHING.replace("TARGET", target), "/start")

    assert await browsing.evaluate(BOTH_RESULTS) == ["refused", "refused"]
    assert not [one for one in site.requests if one.path == "/secret"]
    assert any("private address" in text for text in page["blocked_requests"])


async def test_a_name_that_changes_its_address_gains_nothing() -> None:
    """The proxy connects to what it checked: a name that turns private meanwhile is refused, not reached."""
    answers = [["93.184.216.34"], ["127.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    rules = AddressRules.from_settings(web_settings())
    guard = AddressGuard(rules, resolve)
    assert await guard.resolve("rebind.example", 80) == ("93.184.216.34",)
    proxy = GuardProxy(guard)
    address = await proxy.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write(b"GET http://rebind.example/ HTTP/1.1\r\nHost: rebind.example\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    finally:
        await proxy.close()

    assert head.startswith(b"HTTP/1.1 403 ")
    assert "private address" in proxy.refusals[0][1]


async def test_each_session_has_its_own_cookies(browsing: Browsing) -> None:
    """A session and its subagent, which is another session, share nothing."""
    await browsing.open("<script>document.cookie='mark=1'</script>")
    other = Browsing(browsing.runtime, browsing.site, browsing.approver)

    await other.call("navigate", url=browsing.site.address + "/other")

    assert await other.evaluate("document.cookie") == ""
    assert await browsing.evaluate("document.cookie") == "mark=1"
    await browsing.runtime.services.end_session(other.session_id)


async def test_a_named_profile_keeps_cookies(open_browsing: OpenBrowsing) -> None:
    """The next session with the profile is still logged in."""
    browsing = open_browsing(browser={"profile": "work"})
    await browsing.open("<script>document.cookie='mark=1;max-age=9999'</script>")
    await browsing.runtime.services.end_session(browsing.session_id)
    later = Browsing(browsing.runtime, browsing.site, browsing.approver)

    await later.call("navigate", url=browsing.site.address)

    assert await later.evaluate("document.cookie") == "mark=1"


async def test_an_unused_browser_is_closed_and_the_model_is_told(open_browsing: OpenBrowsing) -> None:
    """After the time without use; a call that runs longer than that is not disturbed."""
    browsing = open_browsing(browser={"inactivity_timeout": 0.3})
    await browsing.open("<title>a</title>")
    assert await browsing.evaluate("new Promise(done => setTimeout(() => done(7), 900))") == 7
    pid = browser_of(browsing).leader.pid

    await until(lambda: identity_of(pid) is None)

    assert "without use" in (await browsing.call("snapshot"))["error"]
    assert (await browsing.call("navigate", url=browsing.site.address))["title"] == "a"


@pytest.fixture
async def devtools_address(tmp_path: Path) -> AsyncIterator[str]:
    """A browser that somebody else has started."""
    arguments = ["chromium", "--headless", "--no-sandbox", "--remote-debugging-port=0", "--no-first-run"]
    arguments += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    profile = tmp_path / "profile"
    process = subprocess.Popen([*arguments, f"--user-data-dir={profile}"], stderr=subprocess.DEVNULL)
    try:
        port_file = profile / "DevToolsActivePort"
        await until(lambda: port_file.exists() and "\n" in port_file.read_text())
        yield f"http://127.0.0.1:{port_file.read_text().split()[0]}"
        assert process.poll() is None, "it is not ours to end"
    finally:
        process.kill()
        process.wait()


async def test_a_remote_browser_over_cdp(open_browsing: OpenBrowsing, devtools_address: str) -> None:
    """A browser by its address is used, and not ended."""
    browsing = open_browsing(browser={"cdp_url": devtools_address})

    page = await browsing.open("<title>far</title><button onclick='document.title=1'>b</button>")
    assert page["title"] == "far"
    assert (await browsing.call("click", ref=ref_of(page, "button")))["title"] == "1"
    await browsing.runtime.services.end_session(browsing.session_id)


async def test_a_tab_that_holds_up_a_remote_browser_is_named_as_the_reason(
    open_browsing: OpenBrowsing, devtools_address: str
) -> None:
    """playwright waits for every tab that is there already; when the tab is closed, the browser can be used."""
    browsing = open_browsing(browser={"cdp_url": devtools_address, "command_timeout": 3})
    browsing.site.pages["/"] = html("<title>far</title>")
    browsing.site.pages["/stuck"] = lambda _: (browsing.site.released.wait(60), html("late"))[1]
    async with httpx2.AsyncClient(trust_env=False) as client:
        tab = (await client.put(f"{devtools_address}/json/new?{browsing.site.address}/stuck")).json()["id"]
        await until(lambda: any(request.path == "/stuck" for request in browsing.site.requests))

        held_up = await browsing.call("navigate", url=browsing.site.address)
        await client.get(f"{devtools_address}/json/close/{tab}")

    assert held_up["error"] == (
        "the remote browser did not answer within 3 seconds; a tab in it that does not load may be the reason: close it"
    )
    assert (await browsing.call("navigate", url=browsing.site.address))["title"] == "far"


PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from toolcrib.registry.default import registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.testing import isolated_runtime
import toolcrib.tools.browser

async def main():
    config = json.dumps({"security": {"allow_private_urls": True}})
    with isolated_runtime(Path(sys.argv[1]), config, registry=ToolRegistry(parent=registry)) as runtime:
        await runtime.call("browser_navigate", {"url": sys.argv[2]})
        (slot,) = runtime.services.browser._slots.values()
        print(slot.browser.browser.leader.pid, slot.browser.browser.command_id, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_killing_toolcrib_leaves_no_browser(tmp_path: Path, browsing: Browsing) -> None:
    """Even `kill -9` of our process ends Chromium, with all its processes."""
    browsing.site.pages["/"] = html("<title>a</title>")
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "killed"), browsing.site.address],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    line = await asyncio.to_thread(program.stdout.readline)
    leader, command_id = line.split()
    program.kill()
    program.wait()
    program.stdout.close()

    await until(lambda: not processes_of(command_id, None))
    assert identity_of(int(leader)) is None


async def test_a_program_that_only_exits_leaves_no_browser(tmp_path: Path, site: Site) -> None:
    """What nobody closed is closed at the exit of Python, when no thread can be started any more."""
    site.pages["/"] = html("<title>a</title>")
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("security: {allow_private_urls: true}\n")
    program = (
        "import sys, toolcrib.api; print(toolcrib.api.handle_function_call('browser_navigate', {'url': sys.argv[1]}))"
    )

    # Chromium has a socket in it, whose path must be short.
    with tempfile.TemporaryDirectory() as temporary:
        environ = {**os.environ, "TMPDIR": temporary}
        ran = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, site.address, env=environ, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await ran.communicate()
        left = list(Path(temporary).glob("toolcrib-browser-*"))

    assert json.loads(said).get("title") == "a", said
    assert left == []
    assert list(home.rglob("browsers/environments/*")) == []


async def test_the_next_start_ends_what_was_left(open_browsing: OpenBrowsing, tmp_path: Path) -> None:
    """A browser on record whose owner is dead is ended by the ledger, and its profile removed."""
    browsing = open_browsing()
    folder = tmp_path / "left"
    folder.mkdir()
    environ = {**os.environ, "TOOLCRIB_COMMAND_ID": "browser-left"}
    process = subprocess.Popen(["sleep", "600"], env=environ, start_new_session=True)
    ledger = browsing.runtime.settings.home.processes_dir / "browsers" / "environments"
    ledger.mkdir(parents=True)
    entry = {
        "address": {"command_id": "browser-left", "temporary": str(folder)},
        "owner": {"pid": 2**22 - 7, "started": "gone:1"},
    }
    (ledger / "left.json").write_text(json.dumps(entry))

    await browsing.open("<title>a</title>")

    assert await asyncio.to_thread(process.wait, 30) != 0
    assert not folder.exists()


async def test_a_page_cannot_send_past_the_proxy(open_browsing: OpenBrowsing) -> None:
    """WebRTC speaks to servers over UDP, which no proxy sees; not from here."""
    browsing = open_browsing()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        page = await browsing.open(
            "<title>a</title><script>const p=new RTCPeerConnection({iceServers:[{urls:'stun:127.0.0.1:"
            f"{server.getsockname()[1]}'}}]}});p.createDataChannel('x');"
            "p.createOffer().then(o=>p.setLocalDescription(o)).then(()=>{document.title='asked'})</script>"
        )
        assert page["title"] == "asked"
        await browsing.evaluate("new Promise(done => setTimeout(done, 1000))")

        with pytest.raises(BlockingIOError):
            server.recv(100)


async def test_a_page_that_replaced_the_timers_is_read(browsing: Browsing) -> None:
    """Some pages replace `setTimeout`, for tests or to be difficult."""
    page = await browsing.open("<script>window.setTimeout=()=>0</script><button onclick='document.title=1'>go</button>")

    assert (await browsing.call("click", ref=ref_of(page, "go")))["title"] == "1"


async def test_a_page_that_navigates_without_end_is_left(open_browsing: OpenBrowsing) -> None:
    """The next navigation takes a new tab, because the old one never stops."""
    browsing = open_browsing(browser={"command_timeout": 5})
    browsing.site.pages["/calm"] = html("<title>Calm</title>")
    await browsing.open("<title>a</title><script>location.reload()</script>")

    assert (await browsing.call("navigate", url=f"{browsing.site.address}/calm"))["title"] == "Calm"


async def test_what_a_page_makes_endless_is_cut(browsing: Browsing) -> None:
    """Addresses, titles, descriptions and questions of a page do not fill the result."""
    page = await browsing.open(
        "<script>let l='x'.repeat(100000);document.title=l;history.replaceState(0,'','/'+l)</script>"
        "<button onclick='prompt(l,l)'>go</button><script>document.write(`<img src=/ alt=${l}>`)</script>"
    )
    images = await browsing.call("get_images")
    asked = await browsing.call("click", ref=ref_of(page, "go"))

    assert all(len(json.dumps(one)) < 5_000 for one in (page, images, asked))


def kept_objects(browsing: Browsing) -> Counter[str]:
    """What our side of playwright holds, by its kind."""
    service: BrowserService = browsing.runtime.services.browser
    driver: Any = service._driver
    return Counter(type(one).__name__ for one in driver._impl_obj._connection._objects.values())


async def test_requests_and_messages_of_a_page_do_not_pile_up(open_browsing: OpenBrowsing) -> None:
    """A page may ask and log as much as it likes, with redirects, too; when its session ends, nothing is left of it."""
    browsing = open_browsing()
    browsing.site.pages["/moved"] = 302, {"location": "/data"}, b""
    browsing.site.pages["/data"] = 200, {"content-type": "text/plain"}, b"data"
    page = await browsing.open(
        "<title>a</title><script>async function go(){for(let i=0;i<100;i++){console.log({i});await Promise.all("
        "[fetch('/data'),fetch('/moved'),fetch('/none')])};document.title='done'}</script><button onclick='go()'>go"
    )
    before = kept_objects(browsing)

    answer = await browsing.call("click", ref=ref_of(page, "go"))
    while answer["title"] != "done":
        answer = await browsing.call("snapshot")

    assert kept_objects(browsing)["Request"] <= KEPT_REQUESTS + 10
    assert (await browsing.call("navigate", url=browsing.site.address))["title"] == "a"
    assert kept_objects(browsing)["Request"] <= before["Request"] + 2
    await until(lambda: kept_objects(browsing)["JSHandle"] == before["JSHandle"])
    await browsing.runtime.services.end_session(browsing.session_id)
    kept = kept_objects(browsing)
    assert not kept["ReleasedObject"] + kept["Request"] + kept["Response"] + kept["Page"]


async def test_a_flood_of_errors_is_reported_in_few_lines(browsing: Browsing) -> None:
    """What a page logs between two calls does not fill the result of the next."""
    script = "<script>for(let i=0;i<500;i++)console.error('broken', i);document.title='done'</script>"
    page = await browsing.open(script)

    assert len(page["console_errors"]) == 5
    assert page["more_console_errors"] <= KEPT_NOTES


async def test_fifty_sessions_leave_nothing(open_browsing: OpenBrowsing) -> None:
    """One session after another: each ends its Chromium and its profile."""
    browsing = open_browsing()
    browsing.site.pages["/"] = html("<title>a</title>")
    pids = []
    for _ in range(50):
        session = Browsing(browsing.runtime, browsing.site, browsing.approver)
        assert (await session.call("navigate", url=browsing.site.address))["title"] == "a"
        chromium = browser_of(session)
        pids.append((chromium.leader.pid, chromium.address["temporary"]))
        await session.runtime.services.end_session(session.session_id)

    alive = set(chromium_processes())
    assert not alive & {pid for pid, _ in pids}
    assert not [folder for _, folder in pids if Path(folder).exists()]
