"""The messages of one session as the model sees them, on disk before they are sent, with token estimates."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from toolcrib.approval.provenance import Provenance, ProvenanceStore
from toolcrib.core.errors import SessionError, ToolcribError
from toolcrib.core.messages import Message, Text, spoken_text
from toolcrib.core.models import Usage
from toolcrib.core.origins import OriginDeclaration
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.definitions.search import estimate_tokens as tokens_of_tools
from toolcrib.sessions.records import Session, storable
from toolcrib.sessions.recovery import repair, working_process
from toolcrib.sessions.store import SessionStore

T = TypeVar("T")
MESSAGE_FRAME_TOKENS = 4
IMAGE_TOKENS = 1_000
ASCII_CHARS_PER_TOKEN = 4

__all__ = ["estimate_message_tokens", "estimate_prompt_tokens", "estimate_text_tokens", "tokens_of_tools"]


def estimate_text_tokens(text: str) -> int:
    """A quarter of the characters; for non-Latin scripts, one token per character."""
    if text.isascii():
        return len(text) // ASCII_CHARS_PER_TOKEN + 1
    wide = sum(1 for char in text if char > "\u2e80")
    return wide + (len(text) - wide) // 3 + 1


def estimate_message_tokens(message: Message) -> int:
    """The tokens of one message, including its calls and images."""
    if isinstance(message.content, str):
        total = estimate_text_tokens(message.content)
    else:
        total = sum(
            estimate_text_tokens(part.text) if isinstance(part, Text) else IMAGE_TOKENS for part in message.content
        )
    total += sum(estimate_text_tokens(call.name) + estimate_text_tokens(call.arguments) for call in message.tool_calls)
    return total + MESSAGE_FRAME_TOKENS


def estimate_prompt_tokens(system: str, tools: Sequence[JsonObject], messages: Iterable[Message]) -> int:
    """The tokens of a whole request."""
    return (
        estimate_text_tokens(system)
        + tokens_of_tools(tools)
        + sum(estimate_message_tokens(message) for message in messages)
    )


TITLE_CHARS = 60


def restore_provenance(provenances: ProvenanceStore, store: SessionStore, session: Session) -> None:
    """Rebuild what a stored session heard and read, also before summaries; a branch has its parent's past."""
    if provenances.is_known(session.id) or not session.message_count:
        return
    provenance = provenances.of(session.id)
    provenance.is_incomplete = False
    history = [session]
    while history[-1].parent_kind == "branch":
        try:
            history.append(store.get(history[-1].parent_id))
        except SessionError:
            provenance.is_incomplete = True  # Its parent was deleted.
            break
    for one in reversed(history):
        calls: dict[str, JsonObject] = {}
        for stored in store.messages(one.id, states=("live", "folded")):
            _restore_message(provenance, stored.message, calls)


def hear_person(provenance: Provenance, text: str) -> None:
    """Take note of a person's message: their own words, and what they attached as data from elsewhere."""
    words = spoken_text(text)
    provenance.add_person(words)
    if len(words) < len(text):
        provenance.add_untrusted(text[len(words) :], "an attachment")


def _restore_message(provenance: Provenance, message: Message, calls: dict[str, JsonObject]) -> None:
    for call in message.tool_calls:
        calls[call.id] = _arguments(call.arguments)
    if message.role == "user" and message.origin == "person":
        hear_person(provenance, message.text)
    elif message.role == "user" and message.origin == "untrusted":
        provenance.add_untrusted(message.text, "a message")
    elif message.role == "tool" and message.status == "ok":
        origin = cast("OriginDeclaration", message.origin)
        result = ToolResult(content=message.text, name=message.name, call_id=message.call_id, origin=origin)
        provenance.add_result(result, calls.get(message.call_id))


def _arguments(text: str) -> JsonObject:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


class _UnwrittenMessage(msgspec.Struct, frozen=True, kw_only=True):
    message: Message
    turn_id: str
    usage: Usage | None
    title: str
    """What the session is called from this message on; empty if it has a title."""
    on_stored: Callable[[], None] | None


class Conversation:
    """Its messages are on disk before they are sent, so nothing that the model saw is ever lost.

    They are written in order, in a thread: another process may be writing to the same file.
    """

    def __init__(self, store: SessionStore, session: Session) -> None:
        self._store = store
        self.session_id = session.id
        self.title = session.title
        self.messages: list[Message] = []
        self._ids: list[int] = []
        self._tokens: list[int] = []
        self._turns: list[str] = []
        self._call_ids: set[str] = set()
        self._newest = 0
        """The message at the end of the stored session, as far as we know."""
        self.fixed_tokens = 0
        """The approximate tokens of the system prompt and the tools, as in the latest request."""
        self._measured = (0, 0)
        """The last message in the provider's token count, and that count."""
        self._unwritten: deque[_UnwrittenMessage] = deque()
        self._writing: asyncio.Task[Any] | None = None
        self._problem: ToolcribError | None = None

    def load(self) -> list[Message]:
        """Read the stored messages; returns the results that were added because a process died."""
        worked_on_by = working_process(self._store, self.session_id)
        if worked_on_by:
            raise SessionError(
                f"process {worked_on_by} is working on session {self.session_id!r}; wait until it is done, "
                "or start a new session"
            )
        repaired = repair(self._store, self.session_id)
        self._read()
        return repaired

    def refresh(self) -> None:
        """Load again if others added messages, or if results are missing because the store could not be written."""
        if self._store.newest_message(self.session_id) != self._newest or not _is_whole(self.messages):
            self.load()

    def _read(self) -> None:
        stored = self._store.messages(self.session_id)
        self.messages = [one.message for one in stored]
        self._ids = [one.id for one in stored]
        self._turns = [one.turn_id for one in stored]
        self._tokens = [estimate_message_tokens(message) for message in self.messages]
        self._measured = (0, 0)
        self._newest = self._store.newest_message(self.session_id)
        self._call_ids |= {call.id for message in self.messages for call in message.tool_calls}

    def add(
        self,
        message: Message,
        *,
        turn_id: str = "",
        usage: Usage | None = None,
        on_stored: Callable[[], None] | None = None,
    ) -> int:
        """Append a message and return its position. It is on disk after `stored`; then `on_stored` is called."""
        message, title = storable(message), ""
        if message.role == "user" and not self.title:
            title = self.title = _title(message.text)
        self.messages.append(message)
        self._ids.append(0)
        self._turns.append(turn_id)
        self._tokens.append(estimate_message_tokens(message))
        if usage is not None and usage.input_tokens:
            self._measured = (len(self.messages), usage.input_tokens + usage.output_tokens)
        self._call_ids.update(call.id for call in message.tool_calls)
        position = len(self.messages) - 1
        self._unwritten.append(
            _UnwrittenMessage(message=message, turn_id=turn_id, usage=usage, title=title, on_stored=on_stored)
        )
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())
        return position

    async def stored(self) -> None:
        """Wait until everything added so far is on disk; raises SessionError if that failed."""
        if self._writing is not None:
            # Who is cancelled meanwhile must not stop it half-way.
            await asyncio.shield(self._writing)
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem

    async def change(self, function: Callable[..., T], *arguments: Any) -> T:
        """Change stored messages with one of the methods below, in a thread. `stored` waits for that as well, so that
        a caller that is stopped meanwhile does not go on with half of it."""
        await self.stored()
        changing = self._writing = asyncio.ensure_future(self._changed(function, *arguments))
        return await asyncio.shield(changing)

    async def _changed(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return await asyncio.to_thread(function, *arguments)
        finally:
            self._writing = None

    async def _write(self) -> None:
        try:
            while self._unwritten:
                one = self._unwritten[0]
                self._newest = await asyncio.to_thread(self._store_message, one)
                self._ids[-len(self._unwritten)] = self._newest
                self._unwritten.popleft()
                if one.on_stored is not None:
                    one.on_stored()
        except ToolcribError as error:
            self._problem = error
        finally:
            self._writing = None
            self._drop_unwritten()

    def _store_message(self, one: _UnwrittenMessage) -> int:
        if one.title:
            self._store.update(self.session_id, title=one.title)
        return self._store.append(self.session_id, one.message, turn_id=one.turn_id, usage=one.usage)

    def _drop_unwritten(self) -> None:
        """What could not be written is not part of the conversation."""
        if not self._unwritten:
            return
        kept = len(self.messages) - len(self._unwritten)
        for column in (self.messages, self._ids, self._turns, self._tokens):
            del column[kept:]
        if any(one.title for one in self._unwritten):
            self.title = ""
        if self._measured[0] > kept:
            self._measured = (0, 0)
        self._unwritten.clear()

    def with_fresh_call_ids(self, message: Message) -> Message:
        """The message with call ids that are unique in this session; some servers count from zero each time."""
        message = storable(message)
        seen = set(self._call_ids)
        calls = []
        for call in message.tool_calls:
            fresh = call.id if call.id and call.id not in seen else f"call_{secrets.token_hex(8)}"
            seen.add(fresh)
            calls.append(call if fresh == call.id else msgspec.structs.replace(call, id=fresh))
        return msgspec.structs.replace(message, tool_calls=tuple(calls)) if calls else message

    def as_json(self) -> list[JsonObject]:
        """The messages as hooks see them."""
        return [msgspec.to_builtins(message) for message in self.messages]

    def replace(self, position: int, message: Message) -> None:
        """Replace a message with a shorter version, in a thread; the store keeps the original."""
        message = storable(message)
        self._ids[position] = self._store.fold(self.session_id, [self._ids[position]], message)
        self.messages[position] = message
        self._tokens[position] = estimate_message_tokens(message)

    def fold(self, positions: Sequence[int], summary: Message) -> None:
        """Replace these messages with a summary, at the position of the first, in a thread."""
        self._store.fold(self.session_id, [self._ids[position] for position in positions], summary)
        self._read()

    def undo(self) -> int:
        """Remove the last exchange: the latest question and everything after it; returns the number of messages."""
        first = self.latest_question()
        if first is None:
            return 0
        taken_back = self._store.undo(self.session_id, self._ids[first])
        self._read()
        return taken_back

    def latest_question(self) -> int | None:
        """Where the latest run starts, including messages that the user sent during it."""
        questions = [position for position, message in enumerate(self.messages) if message.role == "user"]
        if not questions:
            return None
        turn = self._turns[-1]
        return next((at for at in questions if turn and self._turns[at] == turn), questions[-1])

    @property
    def tokens(self) -> int:
        """The approximate tokens of the next request."""
        counted, measured = self._measured
        if measured:
            return measured + sum(self._tokens[counted:])
        return self.fixed_tokens + sum(self._tokens)

    @property
    def stored_tokens(self) -> int:
        """The approximate tokens of the messages alone."""
        return sum(self._tokens)


def _is_whole(messages: Sequence[Message]) -> bool:
    """Whether the latest calls have their results."""
    asker = next((at for at in reversed(range(len(messages))) if messages[at].role != "tool"), 0)
    return not messages or len(messages) - asker - 1 == len(messages[asker].tool_calls)


def message_groups(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """The messages in groups that must stay together: an answer with calls and the results of these calls."""
    groups: list[tuple[int, int]] = []
    for position, message in enumerate(messages):
        if message.role == "tool" and groups:
            groups[-1] = (groups[-1][0], position + 1)
        else:
            groups.append((position, position + 1))
    return groups


def _title(text: str) -> str:
    line = " ".join(spoken_text(text).split())
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1].rstrip() + "…"
