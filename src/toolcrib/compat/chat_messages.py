"""Conversations in OpenAI's chat format, which callers of the reference system pass and receive."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from toolcrib.core.errors import UsageError
from toolcrib.core.messages import Message, RequestedCall, parts_of
from toolcrib.core.types import JsonObject
from toolcrib.sessions.export import openai_message
from toolcrib.sessions.records import StoredMessage

_ROLES = ("system", "developer", "user", "assistant", "tool")


def read_messages(given: Iterable[JsonObject]) -> tuple[str, list[Message]]:
    """The system prompt and the other messages of a conversation; raises UsageError for one without a known role."""
    system: list[str] = []
    messages: list[Message] = []
    names: dict[str, str] = {}
    for one in given:
        role = one.get("role") if isinstance(one, dict) else None
        if role not in _ROLES:
            raise UsageError(f"a message needs a role (system, user, assistant or tool), not {role!r}")
        if role in ("system", "developer"):
            system.append(_text(one.get("content")))
            continue
        message = _message(one, names)
        names |= {call.id: call.name for call in message.tool_calls}
        messages.append(message)
    return "\n\n".join(filter(None, system)), messages


def write_messages(messages: Iterable[Message]) -> list[JsonObject]:
    """The messages as dicts."""
    return [openai_message(StoredMessage(id=0, session_id="", message=message, created_at=0.0)) for message in messages]


def _message(one: JsonObject, names: dict[str, str]) -> Message:
    content = one.get("content")
    call_id = str(one.get("tool_call_id") or "")
    return Message(
        role=one["role"],
        content=tuple(parts_of(content)) if isinstance(content, list) else _text(content),
        tool_calls=tuple(_call(call) for call in one.get("tool_calls") or ()),
        call_id=call_id,
        name=str(one.get("name") or one.get("tool_name") or names.get(call_id, "")) if one["role"] == "tool" else "",
    )


def _call(call: JsonObject) -> RequestedCall:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return RequestedCall(id=str(call.get("id") or ""), name=str(function.get("name") or ""), arguments=text)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return Message(role="user", content=tuple(parts_of(content))).text
    return "" if content is None else str(content)
