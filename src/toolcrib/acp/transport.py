"""The connection over stdin and stdout: one JSON-RPC message per line; invalid lines do no harm."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from acp.core import DEFAULT_STDIO_BUFFER_LIMIT_BYTES

from toolcrib.core.errors import UsageError

logger = logging.getLogger(__name__)

PARSE_ERROR, INVALID_REQUEST = -32700, -32600
STDIO_HINT = "`toolcrib acp` talks to an editor over pipes; `toolcrib acp install` shows how to set one up"


@contextmanager
def own_stdout() -> Iterator[IO[bytes]]:
    """Standard output for the protocol alone: what tools and libraries print goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    before, sys.stdout = sys.stdout, sys.stderr
    try:
        os.dup2(2, 1)
        # The connection closes what it writes to.
        yield os.fdopen(os.dup(kept), "wb", buffering=0)
    finally:
        sys.stdout = before
        os.dup2(kept, 1)
        os.close(kept)


class StdioTransport:
    """A `Transport` of the SDK over two pipes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()

    @classmethod
    async def open(cls, stdin: IO[bytes], stdout: IO[bytes]) -> StdioTransport:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=DEFAULT_STDIO_BUFFER_LIMIT_BYTES)
        try:
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
            transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, stdout)
        except ValueError as error:
            raise UsageError(STDIO_HINT) from error
        return cls(reader, asyncio.StreamWriter(transport, protocol, None, loop))

    async def send(self, message: dict[str, Any]) -> None:
        data = encoded(message)
        async with self._sending:
            self._writer.write(data)
            await self._writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end of the input."""
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                # The editor died in the middle of a line, or closed its end.
                logger.debug("the input ended after %d bytes of a line", len(error.partial))
                return None
            except asyncio.LimitOverrunError as error:
                await self._skip_line(error.consumed)
                await self._complain(PARSE_ERROR, "the message is too long")
                continue
            if not line.strip():
                continue
            try:
                return decoded(line)
            except InvalidMessage as error:
                await self._complain(error.code, str(error))

    async def _skip_line(self, consumed: int) -> None:
        while True:
            await self._reader.readexactly(consumed)
            try:
                await self._reader.readuntil(b"\n")
                return
            except asyncio.LimitOverrunError as error:
                consumed = error.consumed
            except asyncio.IncompleteReadError:
                return

    async def _complain(self, code: int, message: str) -> None:
        await self.send(complaint(code, message))

    async def close(self) -> None:
        self._writer.close()


class InvalidMessage(UsageError):
    """What the editor sent is no message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def decoded(text: str | bytes) -> dict[str, Any]:
    """A message that the SDK can take; raises InvalidMessage."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(PARSE_ERROR, f"this is not JSON: {error}") from error
    if not is_message(message):
        raise InvalidMessage(INVALID_REQUEST, "this is not a JSON-RPC message")
    failure = message.get("error")
    if failure is not None and not isinstance(failure, dict):
        # The SDK would end the connection; whoever asked must hear that the request has failed.
        return {**message, "error": {"code": INVALID_REQUEST, "message": str(failure)}}
    return dict(message)


def complaint(code: int, message: str) -> dict[str, Any]:
    """The answer to something that is no message."""
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}


def is_message(message: Any) -> bool:
    """Whether the SDK can take the message; it would end the connection over an id that is a list."""
    if not isinstance(message, dict) or isinstance(message.get("id"), list | dict | bool):
        return False
    return isinstance(message.get("method"), str) or ("method" not in message and "id" in message)


def encoded(message: dict[str, Any]) -> bytes:
    """The message as one line. Half characters and numbers that JSON lacks would make it invalid for the editor."""
    text = json.dumps(_without_nan(message), ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "replace") + b"\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
