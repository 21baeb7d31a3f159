"""Whatever a page can do to make a browser connect somewhere, it does not get past the guard."""

from __future__ import annotations

# ruff: noqa: ASYNC221, ASYNC240 - short programs and small files.
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.browser.conftest import Browsing, browser_of, html, ref_of
from tests.web.sites import Site, serve
from toolcrib.config.browser_settings import find_chromium

pytestmark = pytest.mark.services

OpenBrowsing = Callable[..., Browsing]


class Listener:
    """A port of this machine that pages must not reach, on both loopback addresses and over UDP."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.heard: list[bytes] = []


@pytest.fixture
def listener() -> Iterator[Listener]:
    with ExitStack() as closing:
        first = closing.enter_context(socket.create_server(("127.0.0.1", 0)))
        heard = Listener(first.getsockname()[1])
        sockets = [first]
        if socket.has_ipv6:
            sockets.append(closing.enter_context(socket.create_server(("::1", heard.port), family=socket.AF_INET6)))
        packets = closing.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        packets.bind(("127.0.0.1", heard.port))

        def accept(one: socket.socket) -> None:
            while True:
                try:
                    connection, _ = one.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(2)
                    try:
                        heard.heard.append(connection.recv(200))
                    except OSError:
                        heard.heard.append(b"a connection")

        def receive() -> None:
            while True:
                try:
                    heard.heard.append(packets.recv(200))
                except OSError:
                    return

        threads = [threading.Thread(target=accept, args=(one,), daemon=True) for one in sockets]
        threads.append(threading.Thread(target=receive, daemon=True))
        for thread in threads:
            thread.start()
        yield heard
        for one in (*sockets, packets):
            # Closing alone does not wake a thread that waits.
            with ExitStack() as ignoring:
                ignoring.push(lambda kind, *_: kind is not None and issubclass(kind, OSError))
                one.shutdown(socket.SHUT_RDWR)


MARKUP = """<title>start</title>
<link rel=preconnect href=TARGET><link rel=dns-prefetch href=TARGET><link rel=prefetch href=TARGET/prefetch>
<link rel=prerender href=TARGET/prerender><link rel=preload as=script href=TARGET/preload>
<link rel=modulepreload href=TARGET/modulepreload><link rel=stylesheet href=TARGET/style><link rel=icon href=TARGET/i>
<link rel=manifest href=TARGET/manifest><link rel=search href=TARGET/search type=application/opensearchdescription+xml>
<style>@import 'TARGET/import';@font-face{font-family:f;src:url(TARGET/font)}
body{font-family:f;background:url(TARGET/background)}</style>
<img src=TARGET/img srcset='TARGET/set 2x'><picture><source srcset=TARGET/source><img></picture>
<video src=TARGET/video poster=TARGET/poster autoplay><track src=TARGET/track default></video><audio src=TARGET/audio>
</audio><embed src=TARGET/embed><object data=TARGET/object></object><iframe src=TARGET/frame></iframe>
<iframe srcdoc='<img src=TARGET/srcdoc>'></iframe><input type=image src=TARGET/input>
<svg><image href=TARGET/svg /><use href='TARGET/use#a'/></svg><script src=TARGET/script></script>
<script type=module>import 'TARGET/module'</script>
<script type=speculationrules>{"prefetch":[{"source":"list","urls":["TARGET/rules"]}],
"prerender":[{"source":"list","urls":["TARGET/rules2"]}]}</script>"""

SCRIPT = """<script>
const tries = [
  () => fetch('TARGET/fetch'), () => fetch('TARGET/cors', {mode: 'no-cors'}),
  () => fetch('TARGET/keepalive', {method: 'POST', body: 'x', keepalive: true}),
  () => fetch('TARGET/local', {targetAddressSpace: 'loopback'}),
  () => navigator.sendBeacon('TARGET/beacon', 'x'),
  () => { const x = new XMLHttpRequest(); x.open('GET', 'TARGET/xhr', false); x.send(); },
  () => new EventSource('TARGET/events'), () => new WebSocket('TARGET/ws'.replace('http', 'ws')),
  () => new WebTransport('TARGET/wt'.replace('http:', 'https:')),
  () => new Worker(URL.createObjectURL(new Blob(["importScripts('TARGET/worker')"]))),
  () => new Worker(URL.createObjectURL(new Blob(["fetch('TARGET/workerfetch')"]))),
  () => navigator.serviceWorker.register('/worker.js'),
  () => import('TARGET/dynamic'),
  () => { const a = document.createElement('a'); a.href = '/page'; a.ping = 'TARGET/ping'; a.target = 'x'; a.click(); },
  () => { const f = document.createElement('form'); f.method = 'post'; f.action = 'TARGET/form'; f.target = 'frame';
          document.body.append(f); f.submit(); },
  () => window.open('TARGET/open'), () => new Image().src = 'TARGET/image',
  () => { const p = new RTCPeerConnection({iceServers: [{urls: 'stun:HOST'}, {urls: 'turn:HOST?transport=tcp',
          username: 'a', credential: 'b'}]});
          p.createDataChannel('x'); p.createOffer().then(o => p.setLocalDescription(o)); },
  () => document.fonts.add(new FontFace('g', 'url(TARGET/face)').load()),
  () => new PaymentRequest([{supportedMethods: 'TARGET/pay'}],
          {total: {label: 'x', amount: {currency: 'EUR', value: '1'}}}).show(),
  () => navigator.credentials.get({identity: {providers: [{configURL: 'TARGET/fedcm', clientId: '1'}]}}),
];
for (const one of tries) { try { Promise.resolve(one()).catch(() => 0); } catch {} }
</script>"""

HEADERS = {
    "link": "<TARGET/linked>; rel=preload; as=script, <TARGET>; rel=preconnect",
    "alt-svc": 'h2="HOST"; ma=3600, h3="HOST"; ma=3600',
    "reporting-endpoints": 'default="TARGET/reports"',
    "report-to": '{"group":"default","max_age":99,"endpoints":[{"url":"TARGET/reports"}]}',
    "nel": '{"report_to":"default","max_age":99,"success_fraction":1.0}',
    "content-security-policy-report-only": "img-src 'none'; report-uri TARGET/csp",
    "speculation-rules": '"TARGET/speculation"',
    "sourcemap": "TARGET/map",
}
WORKER = """fetch('TARGET/sw').catch(() => 0);
self.addEventListener('install', e => e.waitUntil(fetch('TARGET/sw2').catch(() => 0)))"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_no_way_leads_a_page_to_a_private_address(
    open_browsing: OpenBrowsing, site: Site, listener: Listener, host: str
) -> None:
    """Markup, scripts, workers, headers, sockets, WebRTC: the listener hears nothing from any of them."""
    browsing = open_browsing(security={"allowed_private_hosts": [f"127.0.0.1:{site.port}"]})
    place = f"{host}:{listener.port}"

    def filled(text: str) -> str:
        return text.replace("TARGET", f"http://{place}").replace("HOST", place)

    headers = {name: filled(value) for name, value in HEADERS.items()}
    site.pages["/"] = html(filled(MARKUP + SCRIPT), **headers)
    site.pages["/page"] = html("<title>page</title>", **headers)
    site.pages["/worker.js"] = 200, {"content-type": "text/javascript"}, filled(WORKER).encode()

    page = await browsing.call("navigate", url=site.address)
    await browsing.evaluate("new Promise(done => setTimeout(done, 1500))")

    assert "private address" in str(page["blocked_requests"])
    assert listener.heard == []


WAYS_TO_LEAVE = {
    "meta refresh": ("<meta http-equiv=refresh content='0;url=TARGET'>", {}),
    "a refresh header": ("x", {"refresh": "0;url=TARGET"}),
    "a script": ("<script>location='TARGET'</script>", {}),
    "a form": ("<form action=TARGET method=post></form><script>document.forms[0].submit()</script>", {}),
    "a base": ("<base href=TARGET/><a href=x id=a>x</a><script>a.click()</script>", {}),
    "a frame that moves the top": ("<iframe srcdoc='<script>top.location=\"TARGET\"</script>'></iframe>", {}),
}


@pytest.mark.parametrize("way", WAYS_TO_LEAVE)
async def test_pages_that_send_the_browser_on_are_stopped(
    open_browsing: OpenBrowsing, site: Site, listener: Listener, way: str
) -> None:
    """However a page moves on by itself, the address it moves to is checked."""
    browsing = open_browsing(security={"allowed_private_hosts": [f"127.0.0.1:{site.port}"]})
    body, headers = WAYS_TO_LEAVE[way]
    target = f"http://127.0.0.1:{listener.port}"
    site.pages["/"] = html(
        body.replace("TARGET", target), **{k: v.replace("TARGET", target) for k, v in headers.items()}
    )

    answer = await browsing.call("navigate", url=site.address)
    later = await browsing.call("snapshot")

    assert "private address" in str(answer) + str(later), (answer, later)
    assert listener.heard == []


async def test_a_redirect_after_a_click_is_stopped(open_browsing: OpenBrowsing, site: Site, listener: Listener) -> None:
    """A link to an allowed host that redirects elsewhere is refused, and the model reads why."""
    browsing = open_browsing(security={"allowed_private_hosts": [f"127.0.0.1:{site.port}"]})
    site.pages["/moved"] = 307, {"location": f"http://[::1]:{listener.port}/"}, b""
    page = await browsing.open("<a href=/moved>go</a>")

    answer = await browsing.call("click", ref=ref_of(page, "go"))

    assert "private address" in str(answer)
    assert listener.heard == []


async def test_the_browser_itself_asks_for_nothing(open_browsing: OpenBrowsing, site: Site) -> None:
    """No updates, no accounts of its maker: whatever leaves a new browser was asked for by its page."""
    with serve() as upstream:
        browsing = open_browsing(web={"proxy": upstream.address})
        upstream.pages[f"{site.address}/"] = html("<title>seen</title>")
        page = await browsing.call("navigate", url=f"{site.address}/")
        await browsing.evaluate("new Promise(done => setTimeout(done, 2000))")

        assert page["title"] == "seen"
        paths = {f"{site.address}/", f"{site.address}/favicon.ico"}
        assert {request.path for request in upstream.requests} <= paths


async def test_all_that_the_browser_sends_goes_to_the_proxy(
    open_browsing: OpenBrowsing, site: Site, tmp_path: Path
) -> None:
    """Seen by the kernel: no connection to anything else, and not one packet over UDP."""
    if not (strace := shutil.which("strace")):
        pytest.skip("no strace")
    trace, program = tmp_path / "trace", tmp_path / "chromium"
    calls = "connect,sendto,sendmsg,sendmmsg"
    program.write_text(f'#!/bin/sh\nexec {strace} -f -qq -yy -e trace={calls} -o {trace} {find_chromium()} "$@"\n')
    program.chmod(0o755)
    place = f"127.0.0.1:{site.port}"
    browsing = open_browsing(browser={"executable": str(program)}, security={"allowed_private_hosts": [place]})
    site.pages["/"] = html((MARKUP + SCRIPT).replace("TARGET", "http://name.example").replace("HOST", "name.example"))

    await browsing.call("navigate", url=site.address)
    await browsing.evaluate("new Promise(done => setTimeout(done, 1500))")
    arguments = Path(f"/proc/{browser_of(browsing).leader.pid}/cmdline").read_text().split("\0")
    [port] = [one.rpartition(":")[2] for one in arguments if one.startswith("--proxy-server=")]
    await browsing.runtime.services.end_session(browsing.session_id)

    seen = trace.read_text(errors="replace").splitlines()
    connected = {found[1] for line in seen if (found := re.search(r"connect\(\d+<TCP.*htons\((\d+)\)", line))}
    assert connected == {port}
    assert [line for line in seen if re.search(r"send\w+\(\d+<UDP", line)] == []


async def test_an_invalid_certificate_is_named_as_the_reason(
    open_browsing: OpenBrowsing, listener: Listener, tmp_path: Path
) -> None:
    """What a certificate names for its issuer, its revocation list and its status is not fetched around the guard."""
    files = [str(tmp_path / name) for name in ("key.pem", "certificate.pem")]
    target = f"URI:http://127.0.0.1:{listener.port}"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", files[0], "-out", files[1], "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-addext", f"authorityInfoAccess=OCSP;{target}/status,caIssuers;{target}/issuer",
         "-addext", f"crlDistributionPoints={target}/list"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[0])
    with serve(context) as secure:
        browsing = open_browsing(security={"allowed_private_hosts": [f"localhost:{secure.port}"]})
        answer = await browsing.call("navigate", url=f"https://localhost:{secure.port}/")

    assert "ERR_CERT_AUTHORITY_INVALID" in answer["error"]
    assert listener.heard == []
