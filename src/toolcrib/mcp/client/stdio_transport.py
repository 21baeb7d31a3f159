"""Talks to a server over its stdin and stdout: one JSON message per line, everything bounded.

The two streams given to the SDK are the pipes themselves, with no task and no queue in between, because every call
passes through them. A misbehaving server (an endless line, output that is not JSON, a flood of messages) loses only its
own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError

from toolcrib.mcp.client.direct_calls import DirectCalls
from toolcrib.mcp.client.errors import RequestNotSent
from toolcrib.mcp.client.rate_limiter import RateLimiter, is_oversized_notification
from toolcrib.mcp.client.server_process import EXIT_SECONDS, LaunchSpec, ServerLog, ServerProcess
from toolcrib.mcp.client.tool_list import MAX_SCHEMA_DEPTH, depth_of
from toolcrib.mcp.client.untrusted_text import one_line

MAX_LINE_BYTES = 16 * 1024 * 1024
QUEUED_BYTES = 1024 * 1024
"""The most that is read ahead; beyond it the server blocks in its own write."""
MAX_GARBAGE_LINES = 1000
"""This many lines in a row that are not JSON end the connection."""
MAX_SALVAGED_LINES = 20
"""This many unreadable lines in a row are parsed a second time."""
QUEUED_LINES = 5000
LOG_BYTES_PER_SECOND = 1024 * 1024
MISBEHAVED_EXIT_SECONDS = 0.2
DRAIN_SECONDS = 0.2
"""How long the last output of a server may take to arrive if one of its children keeps the pipe open."""
GARBAGE_SHOWN_BYTES = 200
LAST_WORDS_CHARS = 300


@asynccontextmanager
async def stdio_transport(
    spec: LaunchSpec, direct: DirectCalls, on_start: Callable[[int], None], on_end: Callable[[str], None]
) -> AsyncIterator[tuple[StdoutReader, StdinWriter]]:
    """Start a server and give its two streams; leaving the block ends it and everything it started.

    `on_end` receives the reason why the server is gone or has to be ended.
    """
    spec.log.begin(f"{spec.server.address} started at {time.strftime('%Y-%m-%d %H:%M:%S')}")
    process = ServerProcess(spec)
    reader: StdoutReader | None = None
    writer: StdinWriter | None = None
    transports: list[asyncio.BaseTransport] = []
    try:
        on_start(process.pid)
        loop = asyncio.get_running_loop()
        stdin, stdout, stderr = process.pipes
        reader = StdoutReader(spec.log, direct, on_end)
        errors, _ = await loop.connect_read_pipe(lambda: _StderrLogger(spec.log), stderr)
        transports.append(errors)
        reading, _ = await loop.connect_read_pipe(lambda: reader, stdout)
        transports.append(reading)
        why_gone = partial(_why_gone, process, reader, spec.log, "it closed its stdin")
        writing, writer = await loop.connect_write_pipe(lambda: StdinWriter(direct, on_end, why_gone), stdin)
        direct.writer = writer
        transports.append(writing)
        watching = loop.create_task(_watch(process, reader, spec.log))
        try:
            yield reader, writer
        finally:
            watching.cancel()
    finally:
        await _finish_despite_cancel(_end(process, reader, writer, transports))


async def _watch(process: ServerProcess, reader: StdoutReader, log: ServerLog) -> None:
    """End the reader when the process has exited or closed its stdout."""
    ends = [asyncio.ensure_future(event.wait()) for event in (process.has_ended, reader.is_silent)]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
    reader.end(await _why_gone(process, reader, log, "it closed its stdout"))


async def _why_gone(process: ServerProcess, reader: StdoutReader, log: ServerLog, otherwise: str) -> str:
    """How a server ended, with its last line of stderr, which takes a moment to arrive."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            await process.has_ended.wait()
            await reader.is_silent.wait()
    said = log.tail.splitlines()[-1:] if log.tail else []
    return (process.exit_description or otherwise) + (f": {one_line(said[0], LAST_WORDS_CHARS)}" if said else "")


async def _finish_despite_cancel(ending: Coroutine[Any, Any, None]) -> None:
    """Wait for the end even if the waiting task is cancelled: an abandoned server would run for ever."""
    task = asyncio.ensure_future(ending)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


async def _end(
    process: ServerProcess,
    reader: StdoutReader | None,
    writer: StdinWriter | None,
    transports: list[asyncio.BaseTransport],
) -> None:
    misbehaved = reader is None or reader.misbehaved
    if reader is not None:
        reader.discard()
    stdin, stdout, stderr = process.pipes
    for pipe in (stderr, stdout, stdin)[len(transports) :]:
        pipe.close()
    for transport in transports[2:]:
        transport.close()
    await process.end(MISBEHAVED_EXIT_SECONDS if misbehaved else EXIT_SECONDS)
    for transport in transports[:2]:
        transport.close()
    if writer is not None:
        writer.abort()
    await asyncio.sleep(0)  # The loop closes a pipe in its next iteration.


class StdoutReader(asyncio.Protocol):
    """The messages of a server as the SDK reads them: an async iterator that ends with the connection."""

    def __init__(self, log: ServerLog, direct: DirectCalls, on_end: Callable[[str], None]) -> None:
        self.misbehaved = False
        self._log = log
        self._direct = direct
        self._on_end = on_end
        self._lines: deque[bytes] = deque()
        self._queued = 0
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._ended = ""
        self._discarding = False
        self._garbage = 0
        self._limiter = RateLimiter()
        self._transport: asyncio.ReadTransport | None = None
        self._waiting: asyncio.Future[None] | None = None
        self.is_silent = asyncio.Event()
        """Set when no more output will arrive."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        head, newline, tail = data.partition(b"\n")
        self._partial.append(head)
        self._partial_bytes += len(head)
        if self._partial_bytes > MAX_LINE_BYTES:
            self._misbehave(f"it wrote a line longer than {MAX_LINE_BYTES // (1024 * 1024)} MB")
            return
        if not newline:
            return
        lines = [b"".join(self._partial), *tail.split(b"\n")]
        rest = lines.pop()
        self._partial, self._partial_bytes = [rest], len(rest)
        self._lines.extend(lines)
        self._queued += sum(map(len, lines))
        if self._queued > QUEUED_BYTES or len(self._lines) > QUEUED_LINES:
            self._pause()
        self._wake()

    def eof_received(self) -> None:
        self.is_silent.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_silent.set()

    def end(self, reason: str) -> None:
        """End the stream after the messages that have already arrived."""
        if not self._ended:
            self._ended = reason
            self._on_end(reason)
            self._wake()

    def discard(self) -> None:
        """Stop reading, but drain the pipe, so that a server that still writes can exit."""
        self._discarding = True
        self._lines.clear()
        self._partial = []
        self.end("the connection was closed")
        self._direct.fail_all(self._ended)
        if self._transport is not None and not self.misbehaved and not self._transport.is_closing():
            self._transport.resume_reading()

    # The stream that the SDK reads

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            while not self._lines:
                if self._ended:
                    self._direct.fail_all(self._ended)
                    raise StopAsyncIteration
                await self._wait_for_lines()
            line = self._lines.popleft()
            self._queued -= len(line)
            if self._limiter.should_pause:
                await self._limiter.pause()
            self._limiter.count(len(line))
            message = self._parse(line)
            if message is not None:
                return message

    async def aclose(self) -> None:
        self.discard()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.discard()

    def _parse(self, line: bytes) -> SessionMessage | None:
        message: JSONRPCMessage | None
        if is_oversized_notification(line):
            return None
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            message = salvage_response(line) if self._garbage < MAX_SALVAGED_LINES else None
        if message is None:
            self._note_garbage(line)
            return None
        self._garbage = 0
        if isinstance(message, JSONRPCRequest):
            self._limiter.count_request()
        return None if self._direct.handle(message) else SessionMessage(message)

    def _note_garbage(self, line: bytes) -> None:
        if not line.strip():
            return
        self._garbage += 1
        if self._garbage <= 5:
            self._log.write(b"[on stdout, no message] " + line[:GARBAGE_SHOWN_BYTES] + b"\n")
        if self._garbage > MAX_GARBAGE_LINES:
            self._misbehave(f"it wrote {MAX_GARBAGE_LINES} lines in a row that are not messages")

    async def _wait_for_lines(self) -> None:
        self._limiter.reset_burst()
        if self._transport is not None and not self._discarding and not self._transport.is_closing():
            self._transport.resume_reading()
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _misbehave(self, reason: str) -> None:
        self.misbehaved = True
        self._discarding = True
        self._lines.clear()
        self._partial = []
        self._pause()
        self.end(reason)

    def _pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class _StderrLogger(asyncio.Protocol):
    """Writes stderr to the log at a limited rate."""

    def __init__(self, log: ServerLog) -> None:
        self._log = log
        self._second = 0.0
        self._in_second = 0
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._log.write(data)
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._in_second = now, 0
        self._in_second += len(data)
        if self._in_second > LOG_BYTES_PER_SECOND and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(max(0.0, self._second + 1.0 - now), self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


MAX_WAITING = 500


class StdinWriter(asyncio.BaseProtocol):
    """The stream that the SDK writes to: one message per line into the server's stdin."""

    def __init__(
        self, direct: DirectCalls, on_end: Callable[[str], None], why_gone: Callable[[], Awaitable[str]]
    ) -> None:
        self._direct = direct
        self._on_end = on_end
        self._why_gone = why_gone
        self._transport: asyncio.WriteTransport | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_open = True
        self._is_lost = False
        self._waiting = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        self._is_lost = True
        self._may_write.set()

    async def send(self, item: SessionMessage, /) -> None:
        """Return once the message is on its way; if cancelled before that, nothing was sent."""
        message: Any = item.message
        is_request = isinstance(message, JSONRPCRequest)
        if is_request:
            self._direct.learn_meta(message)
        data = message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8", "surrogatepass")
        try:
            await self.write(data + b"\n")
        except RequestNotSent:
            if is_request:
                raise
            raise anyio.BrokenResourceError from None

    async def write(self, data: bytes) -> None:
        if not self._may_write.is_set():
            await self._wait_writable()
        if not self._is_open or self._transport is None or self._transport.is_closing():
            reason = await self._why_gone()
            self._on_end(reason)
            raise RequestNotSent(reason)
        self._transport.write(data)

    async def _wait_writable(self) -> None:
        """Wait until the server reads; one that only writes must not fill our memory with responses."""
        if self._waiting >= MAX_WAITING:
            self._on_end("it does not read its stdin")
            raise RequestNotSent("it does not read its stdin")
        self._waiting += 1
        try:
            await self._may_write.wait()
        finally:
            self._waiting -= 1

    def abort(self) -> None:
        """Drop everything not written yet."""
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    async def aclose(self) -> None:
        self._is_open = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


MAX_DIGITS = 1000
TOO_DEEP = {"type": "nested too deeply"}
"""Replaces a schema that cannot be read; no tool is accepted with it."""


def salvage_response(line: bytes) -> JSONRPCMessage | None:
    """Recover a response that the SDK cannot parse, so that its caller does not wait in vain.

    Fields that are nested too deeply are dropped; if that does not help, the caller gets an error response.
    """
    try:
        message = json.loads(line, parse_int=_number)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or not isinstance(message.get("id"), (int, str)) or "method" in message:
        return None
    result = message.get("result")
    if isinstance(result, dict) and isinstance(result.get("tools"), list):
        result["tools"] = [_without_depth(tool) for tool in result["tools"]]
        try:
            return jsonrpc_message_adapter.validate_python(message, by_name=False)
        except (ValidationError, RecursionError):
            pass
    error = ErrorData(code=PARSE_ERROR, message="the server's response cannot be parsed")
    return JSONRPCError(jsonrpc="2.0", id=message["id"], error=error)


def _number(digits: str) -> float:
    # Python refuses integers with thousands of digits, which must not hide whose response it is.
    return int(digits) if len(digits) < MAX_DIGITS else float(digits)


def _without_depth(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    shallow = {key: value for key, value in tool.items() if depth_of(value) <= MAX_SCHEMA_DEPTH}
    return {**shallow, "inputSchema": TOO_DEEP} if "inputSchema" not in shallow and "inputSchema" in tool else shallow
