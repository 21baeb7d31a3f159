"""Speaks to a server over its stdin and stdout: one JSON message a line, all of it bounded.

The two streams that the SDK wants are the pipes themselves: no task and no queue in between, because every call
passes here. What a server does wrong ends its own connection and nothing else: a line without end, output that is no
JSON, or more messages than anybody can read.
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
from toolcrib.mcp.client.errors import NotSent
from toolcrib.mcp.client.rate_limiter import Pace, is_useless
from toolcrib.mcp.client.server_process import LEAVE_SECONDS, Program, ServerLog, ServerProcess
from toolcrib.mcp.client.tool_list import MAX_SCHEMA_DEPTH, depth_of
from toolcrib.mcp.client.untrusted_text import one_line

MAX_LINE_BYTES = 16 * 1024 * 1024
QUEUED_BYTES = 1024 * 1024
"""More than this is not read ahead; the server waits in its own write then."""
MAX_GARBAGE_LINES = 1000
"""So many lines in a row that are no JSON end the connection."""
SALVAGED_LINES = 20
"""So many of them are looked at twice."""
QUEUED_LINES = 5000
LOG_BYTES_A_SECOND = 1024 * 1024
MISBEHAVED_LEAVE_SECONDS = 0.2
REST_SECONDS = 0.2
"""How long what a server wrote before it ended may take to arrive, where a child of it keeps the pipe open."""
GARBAGE_SHOWN_BYTES = 200
LAST_WORDS_CHARS = 300


@asynccontextmanager
async def stdio_transport(
    program: Program, direct: DirectCalls, on_start: Callable[[int], None], on_end: Callable[[str], None]
) -> AsyncIterator[tuple[Messages, Requests]]:
    """The two streams of a server that is started here, and ended with all that it started on the way out.

    `on_end` is told why the server is gone, or why it must go.
    """
    program.log.begin(f"{program.server.address} started at {time.strftime('%Y-%m-%d %H:%M:%S')}")
    process = ServerProcess(program)
    messages: Messages | None = None
    requests: Requests | None = None
    transports: list[asyncio.BaseTransport] = []
    try:
        on_start(process.pid)
        loop = asyncio.get_running_loop()
        stdin, stdout, stderr = process.pipes
        messages = Messages(program.log, direct, on_end)
        errors, _ = await loop.connect_read_pipe(lambda: _ErrorOutput(program.log), stderr)
        transports.append(errors)
        reading, _ = await loop.connect_read_pipe(lambda: messages, stdout)
        transports.append(reading)
        why_gone = partial(_why_gone, process, messages, program.log, "it closed its input")
        writing, requests = await loop.connect_write_pipe(lambda: Requests(direct, on_end, why_gone), stdin)
        direct.pipe = requests
        transports.append(writing)
        watching = loop.create_task(_watch(process, messages, program.log))
        try:
            yield messages, requests
        finally:
            watching.cancel()
    finally:
        await _to_its_end(_end(process, messages, requests, transports))


async def _watch(process: ServerProcess, messages: Messages, log: ServerLog) -> None:
    """Ends the messages when the process has gone or says no more."""
    ends = [asyncio.ensure_future(event.wait()) for event in (process.has_ended, messages.is_silent)]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
    messages.end(await _why_gone(process, messages, log, "it closed its output"))


async def _why_gone(process: ServerProcess, messages: Messages, log: ServerLog, otherwise: str) -> str:
    """How a server that is going came to its end, with its last words: they take a moment to arrive."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REST_SECONDS):
            await process.has_ended.wait()
            await messages.is_silent.wait()
    said = log.tail.splitlines()[-1:] if log.tail else []
    return (process.how_it_ended or otherwise) + (f": {one_line(said[0], LAST_WORDS_CHARS)}" if said else "")


async def _to_its_end(ending: Coroutine[Any, Any, None]) -> None:
    """Waits for it also when the one who waits is cancelled: a server that is left would run for ever."""
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
    messages: Messages | None,
    requests: Requests | None,
    transports: list[asyncio.BaseTransport],
) -> None:
    misbehaved = messages is None or messages.misbehaved
    if messages is not None:
        messages.discard()
    stdin, stdout, stderr = process.pipes
    for pipe in (stderr, stdout, stdin)[len(transports) :]:
        pipe.close()
    for transport in transports[2:]:
        transport.close()
    await process.end(MISBEHAVED_LEAVE_SECONDS if misbehaved else LEAVE_SECONDS)
    for transport in transports[:2]:
        transport.close()
    if requests is not None:
        requests.abort()
    await asyncio.sleep(0)  # A pipe is closed in the next turn of the loop.


class Messages(asyncio.Protocol):
    """The messages of a server, as the SDK reads them: an async iterator that ends with the connection."""

    def __init__(self, log: ServerLog, direct: DirectCalls, on_end: Callable[[str], None]) -> None:
        self.misbehaved = False
        self._log = log
        self._direct = direct
        self._on_end = on_end
        self._lines: deque[bytes] = deque()
        self._queued = 0
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._ended = ""
        self._discarding = False
        self._garbage = 0
        self._pace = Pace()
        self._transport: asyncio.ReadTransport | None = None
        self._waiting: asyncio.Future[None] | None = None
        self.is_silent = asyncio.Event()
        """Nothing more will arrive."""

    # As asyncio writes to it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        head, newline, tail = data.partition(b"\n")
        self._rest.append(head)
        self._rest_bytes += len(head)
        if self._rest_bytes > MAX_LINE_BYTES:
            self._misbehave(f"it wrote a line of more than {MAX_LINE_BYTES // (1024 * 1024)} MB")
            return
        if not newline:
            return
        lines = [b"".join(self._rest), *tail.split(b"\n")]
        rest = lines.pop()
        self._rest, self._rest_bytes = [rest], len(rest)
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
        """No more messages after those that have arrived."""
        if not self._ended:
            self._ended = reason
            self._on_end(reason)
            self._wake()

    def discard(self) -> None:
        """Nobody reads any more; what a server still writes must not keep it from leaving."""
        self._discarding = True
        self._lines.clear()
        self._rest = []
        self.end("the connection was closed")
        self._direct.lose(self._ended)
        if self._transport is not None and not self.misbehaved and not self._transport.is_closing():
            self._transport.resume_reading()

    # As the SDK reads from it

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
                    self._direct.lose(self._ended)
                    raise StopAsyncIteration
                await self._more()
            line = self._lines.popleft()
            self._queued -= len(line)
            if self._pace.is_due:
                await self._pace.breathe()
            self._pace.count(len(line))
            message = self._parsed(line)
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

    # Inside

    def _parsed(self, line: bytes) -> SessionMessage | None:
        message: JSONRPCMessage | None
        if is_useless(line):
            return None
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            message = salvaged(line) if self._garbage < SALVAGED_LINES else None
        if message is None:
            self._note_garbage(line)
            return None
        self._garbage = 0
        if isinstance(message, JSONRPCRequest):
            self._pace.count_request()
        return None if self._direct.takes(message) else SessionMessage(message)

    def _note_garbage(self, line: bytes) -> None:
        if not line.strip():
            return
        self._garbage += 1
        if self._garbage <= 5:
            self._log.write(b"[on stdout, no message] " + line[:GARBAGE_SHOWN_BYTES] + b"\n")
        if self._garbage > MAX_GARBAGE_LINES:
            self._misbehave(f"it wrote {MAX_GARBAGE_LINES} lines in a row that are no messages")

    async def _more(self) -> None:
        self._pace.rested()
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
        self._rest = []
        self._pause()
        self.end(reason)

    def _pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class _ErrorOutput(asyncio.Protocol):
    """Writes stderr to the log, not faster than anybody could want to read it."""

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
        if self._in_second > LOG_BYTES_A_SECOND and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(max(0.0, self._second + 1.0 - now), self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


MAX_WAITING = 500


class Requests(asyncio.BaseProtocol):
    """What the SDK writes to: one message at a time into the server's stdin."""

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
        """Returns when the message is on its way; whoever is cancelled before that has sent nothing."""
        message: Any = item.message
        is_request = isinstance(message, JSONRPCRequest)
        if is_request:
            self._direct.learn(message)
        data = message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8", "surrogatepass")
        try:
            await self.write(data + b"\n")
        except NotSent:
            if is_request:
                raise
            raise anyio.BrokenResourceError from None

    async def write(self, data: bytes) -> None:
        if not self._may_write.is_set():
            await self._wait()
        if not self._is_open or self._transport is None or self._transport.is_closing():
            reason = await self._why_gone()
            self._on_end(reason)
            raise NotSent(reason)
        self._transport.write(data)

    async def _wait(self) -> None:
        """Until the server reads what it was sent; one that only writes must not fill our memory with answers."""
        if self._waiting >= MAX_WAITING:
            self._on_end("it does not read what it is sent")
            raise NotSent("it does not read what it is sent")
        self._waiting += 1
        try:
            await self._may_write.wait()
        finally:
            self._waiting -= 1

    def abort(self) -> None:
        """Drop what is not written yet."""
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
"""Stands for a schema that cannot be read; no tool can have it."""


def salvaged(line: bytes) -> JSONRPCMessage | None:
    """What can be made of the line: the answer without what is nested too deeply, or an error in its place."""
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
    error = ErrorData(code=PARSE_ERROR, message="the server's answer cannot be read")
    return JSONRPCError(jsonrpc="2.0", id=message["id"], error=error)


def _number(digits: str) -> float:
    # Python does not read integers of thousands of digits, which must not hide whose answer it is.
    return int(digits) if len(digits) < MAX_DIGITS else float(digits)


def _without_depth(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    shallow = {key: value for key, value in tool.items() if depth_of(value) <= MAX_SCHEMA_DEPTH}
    return {**shallow, "inputSchema": TOO_DEEP} if "inputSchema" not in shallow and "inputSchema" in tool else shallow
