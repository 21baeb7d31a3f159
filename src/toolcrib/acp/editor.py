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
from acp.schema import (
    AgentMessageChunk,
    AgentThoughtChunk,
    ClientCapabilities,
    TextContentBlock,
    ToolCallProgress,
    UserMessageChunk,
)

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


class WaitingUpdate:
    """An update that waits to be sent, and takes in what may go out with it."""

    def __init__(self, update: Any) -> None:
        self._update = update
        self._text = _text_of(update)
        self._more: list[str] = []
        self._length = len(self._text or "")

    def takes_text(self, update: Any) -> bool:
        """Whether this is a text that continues with the update; if so, it has the rest now."""
        more = _text_of(update)
        if more is None or self._text is None or self._length >= MERGED_CHARS:
            return False
        if type(update) is not type(self._update) or update.message_id != self._update.message_id:
            return False
        self._more.append(more)
        self._length += len(more)
        return True

    def take_newer(self, update: ToolCallProgress) -> None:
        """What a later update says about the same call replaces what was to be said."""
        said = {name: value for name in update.model_fields_set if (value := getattr(update, name)) is not None}
        self._update = self._update.model_copy(update=said)

    def joined(self) -> Any:
        if not self._more:
            return self._update
        text = "".join([self._text or "", *self._more])
        return self._update.model_copy(update={"content": TextContentBlock(type="text", text=text)})


class Outbox:
    """Sends the updates of one session in order. Any thread may add.

    What waits, because the editor does not read, grows with the conversation and not with time: pieces of a text are
    joined, and the latest output of a call replaces the one before it.
    """

    def __init__(self, editor: EditorConnection, session_id: str) -> None:
        self._editor = editor
        self._session_id = session_id
        self._waiting: deque[WaitingUpdate] = deque()
        self._calls: dict[str, WaitingUpdate] = {}
        """The waiting updates of calls, by the call."""
        self._filled, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._sender = asyncio.ensure_future(self._send())

    def __len__(self) -> int:
        """How many updates wait."""
        return len(self._waiting)

    def add(self, *updates: Any) -> None:
        if threading.get_ident() != self._thread:
            with suppress(RuntimeError):  # The loop is closed: nobody listens any more.
                self._loop.call_soon_threadsafe(self._add, updates)
            return
        self._add(updates)

    def _add(self, updates: tuple[Any, ...]) -> None:
        if not updates or self._sender.done():
            return
        for update in updates:
            self._add_one(update)
        self._empty.clear()
        self._filled.set()

    def _add_one(self, update: Any) -> None:
        if isinstance(update, ToolCallProgress):
            if update.tool_call_id in self._calls:
                self._calls[update.tool_call_id].take_newer(update)
                return
            waiting = self._calls[update.tool_call_id] = WaitingUpdate(update)
        elif self._waiting and self._waiting[-1].takes_text(update):
            return
        else:
            waiting = WaitingUpdate(update)
        self._waiting.append(waiting)

    async def flush(self) -> None:
        """Wait until everything is sent, unless the editor no longer reads."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._empty.wait()

    def close(self) -> None:
        self._sender.cancel()
        self._clear()
        self._empty.set()

    def _clear(self) -> None:
        self._waiting.clear()
        self._calls.clear()

    async def _send(self) -> None:
        while True:
            await self._filled.wait()
            while self._waiting:
                update = self._waiting.popleft().joined()
                if isinstance(update, ToolCallProgress):
                    del self._calls[update.tool_call_id]
                try:
                    await self._editor.client.session_update(session_id=self._session_id, update=update)
                except (ConnectionError, RequestError):
                    # The editor has gone; the session has everything on disk.
                    self._clear()
            self._filled.clear()
            self._empty.set()


def _text_of(update: Any) -> str | None:
    """The text of a piece of a message or a thought; None for any other update."""
    if isinstance(update, Chunk) and isinstance(update.content, TextContentBlock):
        return update.content.text
    return None
