"""The local HTTP listener that a browser is redirected to after a login.

It listens on 127.0.0.1 only and accepts a single redirect with the expected state; every other request is rejected and
changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Iterable
from urllib.parse import parse_qs, urlsplit

from toolcrib.web.token_store import LoginFailed

HOST = "127.0.0.1"
PATH = "/callback"
MAX_HEAD_BYTES = 32 * 1024
READ_SECONDS = 10.0

DONE = "The login was sent to toolcrib. You can close this page and return to the terminal."
WRONG_LOGIN = "This is not the login that toolcrib is waiting for."
FINISHED = "This login is already finished."


class RedirectListener:
    """Waits for one redirect; created by `open_listener`."""

    def __init__(self) -> None:
        self.port = 0
        self._state = ""
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def redirect_uri(self) -> str:
        return f"http://{HOST}:{self.port}{PATH}"

    async def answer(self, state: str) -> str:
        """The full URL that the browser was redirected to with this state."""
        self._state = state
        return await self._answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; a failure affects only that request."""
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._page(head))
                await writer.drain()
        writer.close()

    def _page(self, head: bytes) -> bytes:
        method, _, rest = head.decode("latin-1").split("\r\n", 1)[0].partition(" ")
        target = rest.rpartition(" ")[0]
        if method != "GET" or target.partition("?")[0] != PATH:
            return _response("404 Not Found", WRONG_LOGIN)
        if self._answer.done():
            return _response("410 Gone", FINISHED)
        if not has_state(target, self._state):
            return _response("400 Bad Request", WRONG_LOGIN)
        self._answer.set_result(f"http://{HOST}:{self.port}{target}")
        return _response("200 OK", DONE)


def has_state(address: str, state: str) -> bool:
    """Whether a redirect URL carries this state."""
    try:
        given = parse_qs(urlsplit(address).query).get("state", [""])
    except ValueError:
        return False
    return bool(state) and len(given) == 1 and hmac.compare_digest(given[0].encode(), state.encode())


@contextlib.asynccontextmanager
async def open_listener(ports: Iterable[int], remedy: str = "") -> AsyncIterator[RedirectListener]:
    """A listener on the first free port of these; 0 means any. Raises LoginFailed, with the remedy, if none is free."""
    listener = RedirectListener()
    server = await _listen_on_free_port(listener, list(ports), remedy)
    try:
        listener.port = server.sockets[0].getsockname()[1]
        yield listener
    finally:
        server.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 1.0)


async def _listen_on_free_port(listener: RedirectListener, ports: list[int], remedy: str) -> asyncio.Server:
    for port in ports:
        with contextlib.suppress(OSError):
            return await asyncio.start_server(listener.serve, HOST, port, limit=MAX_HEAD_BYTES)
    raise LoginFailed(
        f"port {ports[-1]} is in use by another program, so the login cannot be received; stop that program{remedy}"
    )


def _response(status: str, text: str) -> bytes:
    """A fixed page that contains nothing from the request."""
    body = f"<!doctype html><meta charset=utf-8><title>toolcrib</title><p>{text}</p>\n".encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nContent-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n"
        "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
