"""The HTTP client keeps its limits, whatever a server sends, and keys stay with their owner."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import subprocess
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.web.settings import web_settings
from tests.web.sites import Page, Site, SiteRequest, serve
from toolcrib.web.guard import AddressGuard, AddressRules
from toolcrib.web.http_client import FetchFailed, FetchLimits, GuardedClient, HttpRequest

SMALL = FetchLimits(max_bytes=100_000, seconds=20)


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as one:
        yield one


@pytest.fixture
def client() -> GuardedClient:
    return GuardedClient(AddressGuard(AddressRules.from_settings(web_settings(security={"allow_private_urls": True}))))


async def fetch(client: GuardedClient, site: Site, path: str, limits: FetchLimits = SMALL) -> bytes:
    return (await client.send(HttpRequest(url=site.address + path, limits=limits))).body


RAW_DEFLATE = zlib.compressobj(wbits=-15)

ENCODED: dict[str, tuple[str, bytes]] = {
    "gzip": ("gzip", gzip.compress(b"hello")),
    "x-gzip": ("X-GZIP", gzip.compress(b"hello")),
    "members": ("gzip", gzip.compress(b"hel") + gzip.compress(b"lo")),
    "padding": ("gzip", gzip.compress(b"hello") + b"\0\0\0"),
    "deflate": ("deflate", zlib.compress(b"hello")),
    "raw-deflate": ("deflate", RAW_DEFLATE.compress(b"hello") + RAW_DEFLATE.flush()),
    "twice": ("gzip, gzip", gzip.compress(gzip.compress(b"hello"))),
    "identity": ("identity", b"hello"),
}


@pytest.mark.parametrize("name", ENCODED)
async def test_encodings_are_decoded(name: str, site: Site, client: GuardedClient) -> None:
    """gzip and deflate are decoded in all the ways that servers send them."""
    encoding, body = ENCODED[name]
    site.pages["/"] = (200, {"content-encoding": encoding}, body)

    assert await fetch(client, site, "/") == b"hello"


BOMB = gzip.compress(bytes(20_000_000))
TOO_MUCH: dict[str, tuple[Mapping[str, str], bytes]] = {
    "plain": ({}, bytes(200_000)),
    "claimed": ({"content-length": "99999999999"}, b""),
    "gzip": ({"content-encoding": "gzip"}, BOMB),
    "nested": ({"content-encoding": "gzip, gzip"}, gzip.compress(BOMB)),
    "deflate": ({"content-encoding": "deflate"}, zlib.compress(bytes(20_000_000))),
    "members": ({"content-encoding": "gzip"}, gzip.compress(bytes(50_000)) * 10),
}


@pytest.mark.parametrize("name", TOO_MUCH)
async def test_a_large_answer_is_not_read_to_its_end(name: str, site: Site, client: GuardedClient) -> None:
    """What is too large after decompression ends the request, however small it was on the wire."""
    headers, body = TOO_MUCH[name]
    site.pages["/"] = (200, headers, body)

    with pytest.raises(FetchFailed, match=r"larger than 0\.1 MB") as caught:
        await fetch(client, site, "/")
    assert caught.value.kind == "too_large"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-encoding": "gzip, gzip, gzip"}, b"x"),
        ({"content-encoding": "br"}, b"x"),
        ({"content-encoding": "gzip"}, b"not gzip at all"),
        ({"x-long": "a" * 200_000}, b""),
        ({f"x-{number}": "a" for number in range(300)}, b""),
    ],
)
async def test_malformed_answers_have_a_reason(
    headers: dict[str, str], body: bytes, site: Site, client: GuardedClient
) -> None:
    """Unknown or endless encodings, damaged data and too many headers end in a failure that says so."""
    site.pages["/"] = (200, headers, body)

    with pytest.raises(FetchFailed) as caught:
        await fetch(client, site, "/")
    assert caught.value.kind == "malformed"


async def test_a_server_that_never_answers_is_left(site: Site, client: GuardedClient) -> None:
    """The time limit covers the whole request."""

    def wait(_: SiteRequest) -> Page:
        site.released.wait(30)
        return 200, {}, b""

    site.pages["/"] = wait

    with pytest.raises(FetchFailed) as caught:
        await fetch(client, site, "/", FetchLimits(seconds=0.2))
    assert caught.value.kind == "timeout"


async def test_redirects_are_followed_to_a_limit(site: Site, client: GuardedClient) -> None:
    """Redirects are followed, but not in a circle and not forever."""
    site.pages["/a"] = (301, {"location": "b?x=1"}, b"")
    site.pages["/b?x=1"] = (308, {"location": "/end"}, b"")
    site.pages["/end"] = (200, {}, b"end")
    site.pages["/circle"] = (302, {"location": "/circle"}, b"")
    for number in range(10):
        site.pages[f"/{number}"] = (302, {"location": f"/{number + 1}"}, b"")

    assert await fetch(client, site, "/a") == b"end"
    for path in ("/circle", "/0"):
        with pytest.raises(FetchFailed) as caught:
            await fetch(client, site, path)
        assert caught.value.kind == "redirect"


async def test_keys_never_reach_another_host(site: Site, client: GuardedClient) -> None:
    """A request with a key fails when its host redirects to another one."""
    with serve() as other:
        site.pages["/"] = (307, {"location": other.address + "/steal"}, b"")
        request = HttpRequest(
            url=site.address + "/", headers={"x-api-key": "k"}, body=b"{}", method="POST", same_origin=True
        )

        with pytest.raises(FetchFailed, match="another host"):
            await client.send(request)

        assert other.requests == []


async def test_requests_to_one_host_take_turns(site: Site) -> None:
    """No more requests than `max_per_host` are open at the same time; the others follow when one ends."""
    rules = AddressRules.from_settings(web_settings(security={"allow_private_urls": True}))
    client = GuardedClient(AddressGuard(rules), max_per_host=2)
    lock, open_now, most = threading.Lock(), [0], [0]
    pair = threading.Barrier(2, timeout=30)

    def answer(_: SiteRequest) -> Page:
        with lock:
            open_now[0] += 1
            most[0] = max(most[0], open_now[0])
        # Two requests must be open at once, or neither is answered.
        pair.wait()
        with lock:
            open_now[0] -= 1
        return 200, {}, b""

    for number in range(8):
        site.pages[f"/{number}"] = answer
    await asyncio.gather(*(fetch(client, site, f"/{number}") for number in range(8)))

    assert most[0] == 2


async def test_nothing_listens_there(client: GuardedClient) -> None:
    """A refused connection is reported with its reason."""
    with serve() as gone:
        address = gone.address
    with pytest.raises(FetchFailed, match="cannot be reached"):
        await client.send(HttpRequest(url=address))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for right.example, with its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=right.example", "-addext", "subjectAltName=DNS:right.example",
        "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return both


@pytest.mark.parametrize("host", ["right.example", "wrong.example"])
async def test_tls_checks_the_host_name(host: str, certificate: Path) -> None:
    """The connection goes to the checked address, and the certificate must be for the name in the URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        rules = AddressRules.from_settings(web_settings(security={"allowed_private_hosts": [f"{host}:{port}"]}))
        client = GuardedClient(
            AddressGuard(rules, resolve), tls=lambda: ssl.create_default_context(cafile=str(certificate))
        )
        request = HttpRequest(url=f"https://{host}:{port}/")
        if host == "right.example":
            assert (await client.send(request)).body == b"ok"
        else:
            with pytest.raises(FetchFailed, match="certificate") as caught:
                await client.send(request)
            assert caught.value.kind == "tls"
