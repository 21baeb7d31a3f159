"""Conversations for other programs: what belongs to one, with secrets masked, and as OpenAI messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolcrib.config.redact import redact
from toolcrib.core.messages import Image, Message, Part, RequestedCall, Text
from toolcrib.core.types import JsonObject
from toolcrib.sessions.records import Session, State, StoredMessage
from toolcrib.sessions.store import SessionStore

ALL_STATES: tuple[State, ...] = ("live", "folded", "undone")


class Transcript(Struct, frozen=True, kw_only=True):
    """One session with its messages, in the order of the conversation."""

    session: Session
    messages: tuple[StoredMessage, ...]
    unknown: frozenset[str] = frozenset()
    """Calls that were started and never seen to end."""

    def result_of(self, call_id: str) -> Message | None:
        """The result of a call that is still part of the conversation; else any result of it."""
        found = [one for one in self.messages if one.message.role == "tool" and one.message.call_id == call_id]
        found.sort(key=lambda one: one.state != "live")
        return found[0].message if found else None


def read_transcript(store: SessionStore, session_id: str, *, states: Sequence[State] = ("live",)) -> Transcript:
    """A session as it is stored; the secrets in it too."""
    unknown = {call.call_id for call in store.calls(session_id) if call.status in ("started", "unknown")}
    messages = store.messages(session_id, states=states)
    answered = {
        one.message.call_id for one in messages if one.message.role == "tool" and not _says_unknown(one.message)
    }
    return Transcript(
        session=store.get(session_id), messages=tuple(messages), unknown=frozenset(unknown - answered)
    )  # fmt: skip


def masked(transcript: Transcript) -> Transcript:
    """The transcript without secrets, and without what only its provider understands."""
    session = transcript.session
    return replace(
        transcript,
        session=replace(session, title=redact(session.title), system_prompt=redact(session.system_prompt)),
        messages=tuple(replace(one, message=_masked_message(one.message)) for one in transcript.messages),
    )


def as_openai(transcript: Transcript) -> JsonObject:
    """The session with its messages as OpenAI's chat API takes them; times are seconds since 1970."""
    session = transcript.session
    messages = [openai_message(one) for one in transcript.messages]
    if session.system_prompt:
        messages.insert(0, {"role": "system", "content": session.system_prompt})
    return {
        "session_id": session.id,
        "title": session.title,
        "source": session.source,
        "model": session.model,
        "provider": session.provider,
        "cwd": session.cwd,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "parent_id": session.parent_id,
        "parent_kind": session.parent_kind,
        "toolsets": list(session.toolsets),
        "usage": msgspec.to_builtins(session.usage),
        "messages": messages,
    }


def openai_message(stored: StoredMessage) -> JsonObject:
    """A message as OpenAI's chat API takes it. One that is no longer part of the conversation says so in `state`."""
    message = stored.message
    found: JsonObject = {"role": message.role, "content": _content(message)}
    if message.tool_calls:
        found["content"] = found["content"] or None
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.role == "tool":
        found |= {"tool_call_id": message.call_id, "name": message.name}
    if stored.state != "live":
        found["state"] = stored.state
    return found


def is_unknown(transcript: Transcript, call_id: str) -> bool:
    """Whether nobody knows what became of a call."""
    result = transcript.result_of(call_id)
    return call_id in transcript.unknown or (result is not None and _says_unknown(result))


def image_address(image: Image) -> str:
    """Where an image is, or the image itself as an address."""
    return image.url or f"data:{image.media_type};base64,{image.data}"


def _content(message: Message) -> str | list[JsonObject]:
    if isinstance(message.content, str):
        return message.content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {"type": "image_url", "image_url": {"url": image_address(part)}}
        if isinstance(part, Image)
        else {
            "type": "input_audio",
            "input_audio": {"data": part.data, "format": part.media_type.removeprefix("audio/")},
        }
        for part in message.content
    ]


def _says_unknown(result: Message) -> bool:
    if result.status != "error" or '"unknown"' not in result.text:
        return False
    try:
        answer = json.loads(result.text)
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("status") == "unknown"


def _masked_message(message: Message) -> Message:
    content = message.content
    content = redact(content) if isinstance(content, str) else tuple(_masked_part(part) for part in content)
    return msgspec.structs.replace(
        message,
        content=content,
        reasoning=redact(message.reasoning),
        tool_calls=tuple(_masked_call(call) for call in message.tool_calls),
        provider_data=None,
    )


def _masked_part(part: Part) -> Part:
    if isinstance(part, Text):
        return Text(redact(part.text))
    return msgspec.structs.replace(part, url=redact(part.url)) if isinstance(part, Image) and part.url else part


def _masked_call(call: RequestedCall) -> RequestedCall:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return msgspec.structs.replace(call, arguments=redact(call.arguments))
    # A secret may be written with escapes in the text, so that only its value can be compared.
    clean = _masked_value(arguments)
    return (
        call if clean == arguments else msgspec.structs.replace(call, arguments=json.dumps(clean, ensure_ascii=False))
    )


def _masked_value(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_masked_value(item) for item in value]
    if isinstance(value, dict):
        return {redact(key): _masked_value(item) for key, item in value.items()}
    return value
