"""The editor at the other end of the connection: what it offers, and requests to it from any thread or loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from acp import RequestError
from acp.interfaces import Client
from acp.schema import AgentMessageChunk, AgentThoughtChunk, ClientCapabilities, TextContentBlock, UserMessageChunk

from toolcrib.core.errors import ToolcribError

T = TypeVar("T")

MERGED_CHARS = 16_000
"""Chunks of text that wait to be sent are joined up to this length."""
FLUSH_SECONDS = 10.0
"""How long the end of a turn waits until an editor has taken the updates before it."""

Chunk = AgentMessageChunk | AgentThoughtChunk | UserMessageChunk


class EditorRefused(ToolcribError):
    """The editor did not do what it was asked for, or is gone."""


class EditorConnection:
    """One connected editor. Made on the loop of the connection."""

    def __init__(self, client: Client, capabilities: ClientCapabilities | None) -> None:
        self.client = client
        self._capabilities = capabilities or ClientCapabilities()
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    @property
    def reads_files(self) -> bool:
        return bool(self._capabilities.fs and self._capabilities.fs.read_text_file)

    @property
    def writes_files(self) -> bool:
        return bool(self._capabilities.fs and self._capabilities.fs.write_text_file)

    @property
    def has_terminals(self) -> bool:
        return bool(self._capabilities.terminal)

    @property
    def has_forms(self) -> bool:
        """Whether it can ask the person for a text."""
        return self._capabilities.elicitation is not None and self._capabilities.elicitation.form is not None

    async def request(self, request: Coroutine[Any, Any, T], seconds: float) -> T:
        """The editor's answer, from any loop; raises EditorRefused for a failure, a timeout or a lost connection."""
        if self._is_closed:
            request.close()
            raise EditorRefused("the editor is gone")
        future: asyncio.Future[T] = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(request, self._loop))
        try:
            async with asyncio.timeout(seconds):
                return await future
        except RequestError as error:
            raise EditorRefused(f"the editor refused: {error}") from error
        except TimeoutError as error:
            raise EditorRefused(f"the editor did not answer within {seconds:g} seconds") from error
        except (ConnectionError, ValueError) as error:
            # A ValueError: its answer does not follow the protocol.
            raise EditorRefused(f"the editor is gone, or its answer is invalid: {error}") from error

    def close(self) -> None:
        """Fail all requests from now on; the connection has ended."""
        self._is_closed = True


class Outbox:
    """Sends the updates of one session in order; text that waits goes out in larger pieces. Any thread may add."""

    def __init__(self, editor: EditorConnection, session_id: str) -> None:
        self._editor = editor
        self._session_id = session_id
        self._waiting: deque[Any] = deque()
        self._filled, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._sender = asyncio.ensure_future(self._send())

    def add(self, *updates: Any) -> None:
        if threading.get_ident() != self._thread:
            with suppress(RuntimeError):  # The loop is closed: nobody listens any more.
                self._loop.call_soon_threadsafe(self._add, updates)
            return
        self._add(updates)

    def _add(self, updates: tuple[Any, ...]) -> None:
        if updates and not self._sender.done():
            self._waiting.extend(updates)
            self._empty.clear()
            self._filled.set()

    async def flush(self) -> None:
        """Wait until everything is sent, unless the editor no longer reads."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._empty.wait()

    def close(self) -> None:
        self._sender.cancel()
        self._waiting.clear()
        self._empty.set()

    async def _send(self) -> None:
        while True:
            await self._filled.wait()
            while self._waiting:
                update = self._merged(self._waiting.popleft())
                try:
                    await self._editor.client.session_update(session_id=self._session_id, update=update)
                except (ConnectionError, RequestError):
                    # The editor has gone; the session has everything on disk.
                    self._waiting.clear()
            self._filled.clear()
            self._empty.set()

    def _merged(self, update: Any) -> Any:
        """The update, joined with the pieces of the same text that follow it."""
        if not _is_text(update) or not self._waiting or not _continues(update, self._waiting[0]):
            return update
        pieces, length = [update.content.text], len(update.content.text)
        while self._waiting and length < MERGED_CHARS and _continues(update, self._waiting[0]):
            text = self._waiting.popleft().content.text
            pieces.append(text)
            length += len(text)
        return update.model_copy(update={"content": TextContentBlock(type="text", text="".join(pieces))})


def _is_text(update: Any) -> bool:
    return isinstance(update, Chunk) and isinstance(update.content, TextContentBlock)


def _continues(update: Any, following: Any) -> bool:
    return type(following) is type(update) and _is_text(following) and following.message_id == update.message_id
