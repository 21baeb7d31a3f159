"""Who may use the server over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from tests.mcp_serve.mcp_serving import TOKEN, MakeServer, serving
from toolcrib.core.errors import UsageError
from toolcrib.mcp.server.http import MAX_BODY_BYTES, RequestGuard, open_socket

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
RIGHT = {"Authorization": f"Bearer {TOKEN}", **ACCEPT}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (RIGHT, 200),
        ({**RIGHT, "Authorization": f"bearer {TOKEN}"}, 200),
        ({**RIGHT, "Origin": "http://localhost:6274"}, 200),
        (ACCEPT, 401),
        ({**RIGHT, "Authorization": "Bearer"}, 401),
        ({**RIGHT, "Authorization": f"Bearer {TOKEN}x"}, 401),
        ({**RIGHT, "Authorization": f"Basic {TOKEN}"}, 401),
        ({**RIGHT, "Host": "evil.example"}, 421),
        ({**RIGHT, "Host": "evil.example:80"}, 421),
        ({**RIGHT, "Host": "127.0.0.1.evil.example"}, 421),
        ({**RIGHT, "Host": "192.0.2.1"}, 421),
        ({**RIGHT, "Origin": "http://evil.example"}, 403),
        ({**RIGHT, "Origin": "http://localhost.evil.example"}, 403),
        ({**RIGHT, "Origin": "null"}, 403),
        ({**RIGHT, "MCP-Protocol-Version": "2026-07-28", "Origin": "http://evil.example"}, 403),
    ],
)
async def test_who_may_come_in(make_server: MakeServer, headers: dict[str, str], status: int) -> None:
    """Only requests with the token, to one of our own names, from none but our own pages, are served."""
    server, _ = make_server()

    async with serving(server) as web, httpx2.AsyncClient() as http:
        response = await http.post(web.url, json=INITIALIZE, headers=headers)

    assert response.status_code == status
    assert ("www-authenticate" in response.headers) is (status == 401)


async def test_every_way_in_needs_the_token(make_server: MakeServer) -> None:
    """Listening, ending a session and requests of the newer protocol are refused like all others; the rest is not
    there."""
    server, _ = make_server()

    async with serving(server) as web, httpx2.AsyncClient() as http:
        statuses = [
            (await http.get(web.url)).status_code,
            (await http.delete(web.url)).status_code,
            (await http.post(web.url, headers={"MCP-Protocol-Version": "2026-07-28"})).status_code,
            (await http.get(web.url.replace("/mcp", "/.well-known/oauth-protected-resource"))).status_code,
        ]

    assert statuses == [401, 401, 401, 404]


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_huge_bodies_are_refused(make_server: MakeServer, version: str) -> None:
    """A body above the limit is refused, whether its length is said or not."""
    server, _ = make_server()
    headers = {**RIGHT, "MCP-Protocol-Version": version}

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(2 * MAX_BODY_BYTES // 65_536):
            yield b" " * 65_536

    async with serving(server) as web, httpx2.AsyncClient(timeout=20) as http:
        told = await http.post(web.url, content=b" " * (MAX_BODY_BYTES + 1), headers=headers)
        untold = await http.post(web.url, content=endless(), headers=headers)

    assert (told.status_code, untold.status_code) == (413, 413)


async def test_a_made_up_session_is_not_served(make_server: MakeServer) -> None:
    """A session that the server never gave to anybody is not found."""
    server, _ = make_server()
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}

    async with serving(server) as web, httpx2.AsyncClient() as http:
        response = await http.post(web.url, json=call, headers={**RIGHT, "Mcp-Session-Id": "made-up"})

    assert response.status_code == 404


@pytest.mark.parametrize(
    ("listens_on", "host", "is_ours"),
    [
        ("127.0.0.1", "localhost:1", True),
        ("127.0.0.1", "[::1]:80", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("127.0.0.1", "10.0.0.7:80", False),
        ("127.0.0.1", "user@localhost", False),
        ("127.0.0.1", "localhost:port", False),
        ("127.0.0.1", "", False),
        ("0.0.0.0", "10.0.0.7:80", True),
        ("0.0.0.0", "crib.example", False),
        ("crib.example", "crib.example:8765", True),
        ("crib.example", "evil.example", False),
    ],
)
def test_which_names_are_ours(listens_on: str, host: str, is_ours: bool) -> None:
    """On loopback only its names count; elsewhere also addresses, which nobody can point at us, and our own name."""
    refusal = RequestGuard(token="", host=listens_on).refusal(Headers({"host": host}))

    assert (refusal is None) is is_ours


@given(st.dictionaries(st.sampled_from(["host", "origin", "authorization"]), st.text(max_size=40)))
def test_strange_headers_are_refused_and_break_nothing(headers: dict[str, str]) -> None:
    """Whatever a request says about itself, without the token it does not come in."""
    encodable = {name: value.encode("latin-1", "replace").decode("latin-1") for name, value in headers.items()}

    assert RequestGuard(token=TOKEN).refusal(Headers(encodable)) is not None


def test_a_port_in_use_is_said() -> None:
    """Listening where somebody else does fails with a sentence that says what to type."""
    with open_socket("127.0.0.1", 0) as taken, pytest.raises(UsageError, match="--http 0"):
        open_socket("127.0.0.1", taken.getsockname()[1])
