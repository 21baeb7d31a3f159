"""Servers that use a login to do harm: what they send is bounded, and nothing of the login goes in the clear."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from toolcrib.cli.commands.mcp_login import _ports
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.paths import Home
from toolcrib.mcp.client.errors import ServerFailed
from toolcrib.mcp.client.http_transport import MAX_BODY_BYTES
from toolcrib.mcp.client.login import log_in
from toolcrib.mcp.client.oauth import LoginProvider
from toolcrib.mcp.client.servers import Server, read_server, token_store
from toolcrib.web.token_store import StoredLogin

MEGABYTE = 1024 * 1024
FAR_TOO_MUCH = 40 * MAX_BODY_BYTES
EVENTS = b"Content-Type: text/event-stream\r\n"
PACKED = b"Content-Type: application/json\r\nContent-Encoding: gzip\r\n"


def server_at(url: str) -> Server:
    return read_server("web", McpServerSettings(url=url, auth="oauth"), {})


class Flood:
    """Answers every request with a head, and then with more than anybody can want."""

    def __init__(self, status: bytes, head: bytes, piece: bytes) -> None:
        self._answer = b"HTTP/1.1 " + status + b"\r\nWWW-Authenticate: Bearer\r\n" + head + b"Connection: close\r\n\r\n"
        self._piece = piece
        self.sent = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            is_first = request.startswith(b"POST /mcp") and b"200" in self._answer[:16]
            writer.write(b"HTTP/1.1 401 no\r\nContent-Length: 0\r\n\r\n" if is_first else self._answer)
            while not is_first and self.sent < FAR_TOO_MUCH:
                writer.write(self._piece)
                self.sent += len(self._piece)
                await writer.drain()
        except OSError:
            pass  # whoever asked has had enough
        finally:
            writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


async def never(address: str) -> str:
    raise AssertionError(f"nobody is to log in at {address}")


@pytest.mark.parametrize(
    ("status", "head", "piece"),
    [
        (b"200 OK", b"Content-Type: application/json\r\n", b" " * MEGABYTE),
        (b"200 OK", EVENTS, b"x" * MEGABYTE),
        (b"401 no", EVENTS, b"x" * MEGABYTE),
        (b"200 OK", PACKED, gzip.compress(b" " * 4 * MAX_BODY_BYTES)),
    ],
    ids=["json", "events", "refusal", "packed"],
)
async def test_a_login_reads_no_more_than_it_can_hold(tmp_path: Path, status: bytes, head: bytes, piece: bytes) -> None:
    """Whatever a server calls what it sends, it is bounded while somebody logs in, and the failure is one sentence."""
    flood, home = Flood(status, head, piece), Home(tmp_path)

    async with flood.listening() as url:
        server = server_at(url)
        with pytest.raises(ServerFailed) as caught:
            await log_in(server, token_store(server, home), never)

    assert flood.sent < 4 * MAX_BODY_BYTES
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("server", "address", "is_safe"),
    [
        ("https://mcp.example/mcp", "https://login.example/token", True),
        ("https://mcp.example/mcp", "http://mcp.example/token", False),
        ("https://mcp.example/mcp", "ftp://mcp.example/token", False),
        ("https://mcp.example/mcp", "javascript://localhost/%0aalert(1)", False),
        ("http://mcp.example/mcp", "http://mcp.example/token", True),
        ("http://mcp.example/mcp", "http://login.example/token", False),
        ("http://mcp.example/mcp", "file://mcp.example/etc/passwd", False),
    ],
)
def test_a_login_is_no_less_protected_than_its_server(tmp_path: Path, server: str, address: str, is_safe: bool) -> None:
    """A server with https cannot have codes and tokens sent without; only the web's own kinds of address count."""
    known = server_at(server)
    auth = LoginProvider(known, token_store(known, Home(tmp_path)))
    request = httpx2.Request("POST", address)

    if is_safe:
        assert auth.require_secure(request) is request
    else:
        with pytest.raises(ServerFailed, match="without https"):
            auth.require_secure(request)


@pytest.mark.parametrize("uris", [7, [3], ["http://127.0.0.1:99999/callback"], ["http://["], {}])
def test_a_registration_that_makes_no_sense_takes_any_port(tmp_path: Path, uris: object) -> None:
    """What is kept of a registration never keeps anybody from logging in anew."""
    server = server_at("https://mcp.example/mcp")
    store = token_store(server, Home(tmp_path))
    damaged = StoredLogin(client={"client_id": "x", "redirect_uris": uris})
    store.update(lambda _: damaged)

    assert _ports(server, store) == [0]


class Recorder:
    """Answers every request with a refusal, and records what was asked."""

    def __init__(self, challenge: bytes = b"Bearer") -> None:
        self.challenge = challenge
        self.asked: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append((await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0])
        writer.write(b"HTTP/1.1 401 no\r\nContent-Length: 0\r\nConnection: close\r\nWWW-Authenticate: ")
        writer.write(self.challenge + b"\r\n\r\n")
        await writer.drain()
        writer.close()


@pytest.mark.parametrize(
    "challenge",
    [
        b'Bearer resource_metadata="http://127.0.0.1:%d/secret"',
        b"Bearer resource_metadata=http://127.0.0.1:%d/secret, scope=a",
        b'Bearer realm="x", resource_metadata="http://localhost:%d/secret", resource_metadata="http://127.0.0.1:%d/b"',
    ],
)
async def test_a_login_fetches_no_description_from_another_origin(tmp_path: Path, challenge: bytes) -> None:
    """Otherwise a server could make us ask any address that this machine can reach."""
    own, other = Recorder(), Recorder()
    async with (
        await asyncio.start_server(own, "127.0.0.1", 0) as server,
        await asyncio.start_server(other, "127.0.0.1", 0) as elsewhere,
    ):
        port = elsewhere.sockets[0].getsockname()[1]
        own.challenge = challenge.replace(b"%d", str(port).encode())
        known = server_at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp")
        with pytest.raises(ServerFailed):
            await log_in(known, token_store(known, Home(tmp_path)), never)

    assert other.asked == []
    assert any(b"oauth-protected-resource" in line for line in own.asked)
