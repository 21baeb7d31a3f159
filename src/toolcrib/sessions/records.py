"""The values that the session store returns, and how messages are stored in rows."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
from msgspec import Struct

from toolcrib.core.lazy import lazy_pattern
from toolcrib.core.messages import Message
from toolcrib.core.models import Usage
from toolcrib.core.types import Effect, JsonObject

ParentKind = Literal["", "branch", "delegate", "reset"]
State = Literal["live", "folded", "undone"]
HIDDEN_SOURCES = ("subagent", "tool")
"""Sessions that no person opened; lists and searches leave them out."""

SESSION_COLUMNS = (
    "id, title, source, model, provider, cwd, created_at, updated_at, ended_at, end_reason, parent_id, parent_kind, "
    "toolsets, message_count, call_count, input_tokens, output_tokens, cached_tokens, cache_write_tokens, "
    "reasoning_tokens, cost_usd, coalesce((SELECT text FROM prompts WHERE session = number), ''), owner"
)
MESSAGE_COLUMNS = "id, state, created_at, turn_id, usage, fields, text"
CALL_COLUMNS = "call_id, tool, arguments, effects, started_at, finished_at, status, owner, result"

NOTHING_USED = Usage()
CALL_CHARS_SEARCHED = 500
"""How much of a call's arguments can be searched."""

# Thai, Lao, Myanmar, Khmer, and the scripts of China, Japan and Korea.
_SPACELESS = lazy_pattern(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)


class Session(Struct, frozen=True, kw_only=True):
    """One conversation, without its messages."""

    id: str
    title: str = ""
    source: str = "library"
    """Who opened it: cli, library, cron, subagent, a platform …"""
    model: str = ""
    provider: str = ""
    cwd: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    ended_at: float | None = None
    end_reason: str = ""
    parent_id: str = ""
    parent_kind: ParentKind = ""
    toolsets: tuple[str, ...] = ()
    system_prompt: str = ""
    message_count: int = 0
    """Messages that were not undone, including those replaced by a summary."""
    call_count: int = 0
    """Tool calls that the model requested."""
    usage: Usage = NOTHING_USED
    owner: str = ""
    """Whose conversation it is; empty for the owner of the home."""


class StoredMessage(Struct, frozen=True, kw_only=True):
    """A message and where it is stored."""

    id: int
    session_id: str
    message: Message
    created_at: float
    turn_id: str = ""
    usage: Usage | None = None
    state: State = "live"
    """live: part of the conversation. folded: replaced by a summary. undone: removed by an undo."""


class RecordedCall(Struct, frozen=True, kw_only=True):
    """A call with effects, as recorded before it ran."""

    call_id: str
    tool: str
    arguments: JsonObject
    effects: tuple[Effect, ...]
    started_at: float
    finished_at: float | None
    status: str
    """started, unknown (its process died before it ended), or its outcome: ok, error, blocked, cancelled, timeout."""
    owner: str = ""
    """The process that ran it."""
    result: Message | None = None
    """Its result, until the conversation contains it."""


def session_of(row: tuple[Any, ...]) -> Session:
    """The session in a row of SESSION_COLUMNS."""
    (
        id,
        title,
        source,
        model,
        provider,
        cwd,
        created,
        updated,
        ended,
        reason,
        parent,
        kind,
        toolsets,
        messages,
        calls,
    ) = row[:15]
    return Session(
        id=id,
        title=title,
        source=source,
        model=model,
        provider=provider,
        cwd=cwd,
        created_at=created,
        updated_at=updated,
        ended_at=ended,
        end_reason=reason,
        parent_id=parent,
        parent_kind=kind,
        toolsets=tuple(json.loads(toolsets)),
        system_prompt=row[21],
        owner=row[22],
        message_count=messages,
        call_count=calls,
        usage=Usage(
            input_tokens=row[15],
            output_tokens=row[16],
            cached_tokens=row[17],
            cache_write_tokens=row[18],
            reasoning_tokens=row[19],
            cost_usd=row[20],
        ),
    )


_decode_message = msgspec.json.Decoder(Message).decode
_decode_usage = msgspec.json.Decoder(Usage).decode
_encode = msgspec.json.Encoder().encode


def message_of(row: tuple[Any, ...], session_id: str) -> StoredMessage:
    """The message in a row of MESSAGE_COLUMNS."""
    id, state, created_at, turn_id, usage, fields, text = row
    return StoredMessage(
        id=id,
        session_id=session_id,
        message=_with_text(_decode_message(fields), text),
        created_at=created_at,
        turn_id=turn_id,
        usage=None if usage is None else _decode_usage(usage),
        state=state,
    )


def call_of(row: tuple[Any, ...]) -> RecordedCall:
    """The call in a row of CALL_COLUMNS."""
    call_id, tool, arguments, effects, started_at, finished_at, status, owner, result = row
    return RecordedCall(
        call_id=call_id,
        tool=tool,
        arguments=json.loads(arguments),
        effects=msgspec.convert(json.loads(effects), tuple[Effect, ...]),
        started_at=started_at,
        finished_at=finished_at,
        status=status,
        owner=owner,
        result=None if result is None else _decode_message(result),
    )


class MessageRow(Struct, frozen=True):
    """A message as the columns of its row. The text has its own column, where the search finds it."""

    role: str
    name: str
    call_id: str
    spaceless: bool
    fields: bytes
    called: str
    text: str
    calls: int


def row_of(message: Message) -> MessageRow:
    """The columns of a message. Lone surrogates, which no file can hold, become question marks."""
    try:
        fields, text = _columns(message)
    except UnicodeEncodeError:
        message = _repaired(message)
        fields, text = _columns(message)
    called = "\n".join(f"{call.name} {call.arguments[:CALL_CHARS_SEARCHED]}" for call in message.tool_calls)
    return MessageRow(
        role=message.role,
        name=message.name,
        call_id=message.call_id,
        spaceless=has_spaceless_script(text) or has_spaceless_script(called),
        fields=fields,
        called=called,
        text=text,
        calls=len(message.tool_calls),
    )


def storable(message: Message) -> Message:
    """The message as it will be read back: question marks replace lone surrogates, which no model accepts either."""
    try:
        _encode(message)
    except UnicodeEncodeError:
        return _repaired(message)
    return message


def usage_text(usage: Usage | None) -> str | None:
    return None if usage is None else _encode(usage).decode()


def encoded_result(message: Message) -> bytes:
    """A message in one piece, for the record of its call."""
    try:
        return _encode(message)
    except UnicodeEncodeError:
        return _encode(_whole_characters(msgspec.to_builtins(message)))


def encoded_effects(effects: tuple[Effect, ...]) -> str:
    # ASCII-escaped, because a path may contain bytes that are not characters.
    return json.dumps(msgspec.to_builtins(effects))


def has_spaceless_script(text: str) -> bool:
    """Whether words of this text can be adjacent without anything between them."""
    return not text.isascii() and _SPACELESS.search(text) is not None


def _columns(message: Message) -> tuple[bytes, str]:
    text = message.text
    text.encode()
    if isinstance(message.content, str):
        message = msgspec.structs.replace(message, content="")
    return _encode(message), text


def _with_text(message: Message, text: str) -> Message:
    return msgspec.structs.replace(message, content=text) if text and message.content == "" else message


def _repaired(message: Message) -> Message:
    return msgspec.convert(_whole_characters(msgspec.to_builtins(message)), Message)


def _whole_characters(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole_characters(item) for item in value]
    return value
