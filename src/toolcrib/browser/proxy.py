"""A proxy on loopback between Chromium and the network: it connects only where the guard allows.

Chromium sends everything through it: pages, subresources, `fetch`, WebSockets. So redirects, scripts and names that
resolve to something else a moment later (DNS rebinding) meet the same rule as an address that a model names.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections import deque
from urllib.parse import urlsplit

from toolcrib.core.errors import ToolcribError
from toolcrib.core.ports import WebGuard

HEAD_BYTES = 256 * 1024
CHUNK_BYTES = 64 * 1024
CONNECT_SECONDS = 15.0
MAX_BYTES = 1_000_000_000
KEPT_REFUSALS = 20
REFUSED_HEADER = "x-toolcrib-refused"
"""On responses of this proxy, to tell them from those of a website."""
_HOP_BY_HOP = (b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization", b"proxy-authenticate")


class ProxyRequestError(ToolcribError):
    """A request that the proxy does not understand."""


class GuardProxy:
    """One listening socket on 127.0.0.1. Remembers what it refused."""

    def __init__(self, guard: WebGuard, upstream: str = "", max_bytes: int = MAX_BYTES) -> None:
        """`upstream` is the proxy from the settings; it resolves names then, so only names can be checked.

        A connection that brings more than `max_bytes` is closed: an endless download would fill the disk.
        """
        self._guard = guard
        self._max_bytes = max_bytes
        self._upstream = urlsplit(upstream) if upstream else None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.refusals: deque[tuple[str, str]] = deque(maxlen=KEPT_REFUSALS)
        """Hosts that were refused, each with the reason."""

    async def start(self) -> str:
        """Listens; returns the address for the browser."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_BYTES)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Whatever goes wrong on one connection is the business of that connection: the browser reports it.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                await self._answer(head, reader, writer)
            finally:
                writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = "?"
        try:
            method, host, port, target = _read_target(head)
            async with asyncio.timeout(CONNECT_SECONDS):
                there, out = await self._connect(host, port)
        except ToolcribError as error:
            self.refusals.append((host, str(error)))
            await _refuse(writer, "403 Forbidden", str(error))
            return
        except TimeoutError:
            await _refuse(writer, "504 Gateway Timeout", f"{host!r} does not answer in time")
            return
        except OSError as error:
            await _refuse(writer, "502 Bad Gateway", f"{host!r} cannot be reached ({error.strerror or error})")
            return
        try:
            if method == "CONNECT":
                await self._tunnel(head, (reader, writer), (there, out))
            else:
                out.write(_without_hops(head, None if self._upstream else f"{method} {target} HTTP/1.1"))
                await _exchange((reader, writer), (there, out), self._max_bytes)
        finally:
            out.close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to one of the addresses that the guard has just resolved and checked."""
        if self._upstream is not None:
            self._guard.check_host(host, port)
            is_tls = self._upstream.scheme == "https"
            return await asyncio.open_connection(
                self._upstream.hostname,
                self._upstream.port or (443 if is_tls else 80),
                limit=HEAD_BYTES,
                ssl=ssl.create_default_context() if is_tls else None,
            )
        failure: OSError = ConnectionError(f"no address of {host!r} answers")
        for address in await self._guard.resolve(host, port):
            try:
                return await asyncio.open_connection(address, port, limit=HEAD_BYTES)
            except OSError as error:
                failure = error
        raise failure

    async def _tunnel(
        self,
        head: bytes,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        if self._upstream is None:
            near[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            far[1].write(_without_hops(head, None, close=False))
        await _pump_both(near, far, self._max_bytes)


def _read_target(head: bytes) -> tuple[str, str, int, str]:
    """The method, host, port, and path with query of a request to a proxy."""
    try:
        method, target, _version = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ProxyRequestError("the request is malformed") from None
    if not host or (method != "CONNECT" and parts.scheme != "http"):
        raise ProxyRequestError("the request names no host, or another scheme than http")
    path = (parts.path or "/") + (f"?{parts.query}" if "?" in target else "")
    return method, host.removesuffix("."), port or (443 if method == "CONNECT" else 80), path


def _without_hops(head: bytes, first_line: str | None, *, close: bool = True) -> bytes:
    """A head without the headers of one connection, and with `Connection: close`.

    A connection to a proxy may carry requests for several hosts. Each of ours carries one, in both directions, so that
    a server cannot keep it open and be sent what belongs to another.
    """
    lines = head[:-4].split(b"\r\n")
    kept = [line for line in lines[1:] if line.partition(b":")[0].strip().lower() not in _HOP_BY_HOP]
    first = lines[0] if first_line is None else first_line.encode("latin-1")
    return b"\r\n".join([first, *kept, *([b"Connection: close"] if close else [])]) + b"\r\n\r\n"


async def _exchange(
    near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    max_bytes: int,
) -> None:
    """Forward the body of one request, and its response."""
    sending = asyncio.get_running_loop().create_task(_pump(near[0], far[1]))
    try:
        while True:
            head = await far[0].readuntil(b"\r\n\r\n")
            near[1].write(_without_hops(head, None))
            # 1xx responses announce the real one.
            if head[9:10] != b"1":
                break
        await _pump(far[0], near[1], max_bytes)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _pump_both(
    near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    max_bytes: int,
) -> None:
    loop = asyncio.get_running_loop()
    both = {loop.create_task(_pump(near[0], far[1])), loop.create_task(_pump(far[0], near[1], max_bytes))}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, max_bytes: float = math.inf) -> None:
    while max_bytes > 0 and (data := await source.read(CHUNK_BYTES)):
        max_bytes -= len(data)
        sink.write(data)
        await sink.drain()
    if max_bytes <= 0:
        # Not the end of an answer: a file of this size must not look complete.
        sink.transport.abort()


async def _refuse(writer: asyncio.StreamWriter, status: str, reason: str) -> None:
    body = reason.encode()
    writer.write(
        f"HTTP/1.1 {status}\r\n{REFUSED_HEADER}: 1\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
    await writer.drain()
