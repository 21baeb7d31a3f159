"""MCP over the standard streams of the process, which belong to the protocol alone while it runs.

Daemon threads read and write, so that the process can stop while a client is silent.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from toolcrib.dispatch.executors import DaemonPool
from toolcrib.mcp.server.app import ToolServer

DRAIN_SECONDS = 1.5
"""How long open requests may still be answered after the client has closed its end."""
MAX_LINE_BYTES = 64 * 1024 * 1024
READ_BYTES = 64 * 1024
LONG_LIVED_REQUESTS = frozenset({"subscriptions/listen"})


async def serve_stdio(server: ToolServer, stop: asyncio.Event) -> None:
    """Serve the one client on our standard streams until it leaves or `stop` is set."""
    async with _StdioStreams(*claim_streams()).open() as (incoming, outgoing), anyio.create_task_group() as group:

        async def end_when_stopped() -> None:
            await stop.wait()
            group.cancel_scope.cancel()

        group.start_soon(end_when_stopped)
        await server.protocol.run(incoming, outgoing, server.protocol.create_initialization_options())
        group.cancel_scope.cancel()


def claim_streams() -> tuple[int, int]:
    """Take over the standard streams: from now on tools print to stderr and read from an empty stdin.

    Never restored, because output of tools may stay in a buffer until the process ends.
    """
    private_in, private_out = os.dup(0), os.dup(1)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.dup2(2, 1)
    os.close(devnull)
    return private_in, private_out


class _StdioStreams:
    """Messages as lines of JSON in both directions."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._unanswered: set[RequestId] = set()
        self._all_answered = asyncio.Event()
        self._pool = DaemonPool(1)

    @asynccontextmanager
    async def open(
        self,
    ) -> AsyncIterator[
        tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
    ]:
        received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        wanted = threading.Semaphore(1)
        reader = threading.Thread(
            target=_read_lines,
            args=(self._requests, lines, asyncio.get_running_loop(), wanted),
            name="toolcrib-stdin",
            daemon=True,
        )
        reader.start()
        async with anyio.create_task_group() as group:
            group.start_soon(self._receive, lines, wanted, received, outgoing.clone())
            group.start_soon(self._send, to_send, lines)
            yield incoming, outgoing
            group.cancel_scope.cancel()
        self._pool.close()

    async def _receive(
        self,
        lines: asyncio.Queue[bytes],
        wanted: threading.Semaphore,
        received: MemoryObjectSendStream[SessionMessage | Exception],
        answers: MemoryObjectSendStream[SessionMessage],
    ) -> None:
        async with received, answers:
            while line := await lines.get():
                message = await self._read(line, answers)
                if message is not None:
                    await received.send(SessionMessage(message))
                wanted.release()
            if self._unanswered:
                with anyio.move_on_after(DRAIN_SECONDS):
                    await self._all_answered.wait()

    async def _read(self, line: bytes, answers: MemoryObjectSendStream[SessionMessage]) -> JSONRPCMessage | None:
        # Some programs write a byte order mark first.
        line = line.removeprefix(codecs.BOM_UTF8)
        if not line.strip():
            return None
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError:
            problem = ErrorData(code=PARSE_ERROR, message="this line is not a JSON-RPC message")
            await answers.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=None, error=problem)))
            return None
        if isinstance(message, JSONRPCRequest) and message.method not in LONG_LIVED_REQUESTS:
            self._unanswered.add(message.id)
            self._all_answered.clear()
        return message

    async def _send(self, to_send: MemoryObjectReceiveStream[SessionMessage], lines: asyncio.Queue[bytes]) -> None:
        async with to_send:
            async for given in to_send:
                message = given.message
                line = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                try:
                    await self._pool.run(partial(_write_whole, self._answers, line))
                except OSError:
                    # The client is gone, so nothing more is run.
                    self._unanswered.clear()
                    lines.put_nowait(b"")
                if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                    self._unanswered.discard(message.id)
                    if not self._unanswered:
                        self._all_answered.set()


def _read_lines(
    descriptor: int, lines: asyncio.Queue[bytes], loop: asyncio.AbstractEventLoop, wanted: threading.Semaphore
) -> None:
    """Hand over one line after another, each after the one before was taken; an empty line is the end."""
    for line in _split_lines(descriptor):
        wanted.acquire()
        try:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        except RuntimeError:
            return  # the loop was closed while we waited


def _split_lines(descriptor: int) -> Iterator[bytes]:
    # Not a file object, which cannot be abandoned while a thread waits in it.
    unfinished: list[bytes] = []
    size = 0
    while chunk := _read(descriptor):
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            yield b"".join((*unfinished, line, b"\n"))
            unfinished, size = [], 0
        unfinished.append(rest)
        size += len(rest)
        if size > MAX_LINE_BYTES:
            break  # no client sends that much, and keeping it would exhaust the memory
    if unfinished and any(unfinished) and size <= MAX_LINE_BYTES:
        yield b"".join(unfinished)
    yield b""


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError:
        return b""


def _write_whole(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
