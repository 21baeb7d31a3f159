"""Conversations as training data: ShareGPT turns, with tool calls, their results and the reasoning as tagged blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator

from toolcrib.core.messages import Message, RequestedCall
from toolcrib.core.types import JsonObject
from toolcrib.sessions.export import Transcript

SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


def as_sharegpt(transcript: Transcript) -> JsonObject:
    """The session as one line of a ShareGPT dataset; messages in a row of one speaker become one turn."""
    session = transcript.session
    turns: list[dict[str, str]] = []
    for speaker, value in _said(transcript):
        if turns and turns[-1]["from"] == speaker:
            turns[-1]["value"] += f"\n{value}"
        else:
            turns.append({"from": speaker, "value": value})
    return {
        "id": session.id,
        "conversations": turns,
        "model": session.model,
        "provider": session.provider,
        "timestamp": session.created_at,
        "completed": bool(turns) and turns[-1]["from"] == "gpt" and "<tool_call>" not in turns[-1]["value"],
        "toolsets_used": list(session.toolsets),
    }


def _said(transcript: Transcript) -> Iterator[tuple[str, str]]:
    if transcript.session.system_prompt:
        yield "system", transcript.session.system_prompt
    for stored in transcript.messages:
        yield SPEAKERS[stored.message.role], _value(stored.message)


def _value(message: Message) -> str:
    if message.role == "tool":
        return _block("tool_response", _response(message))
    parts = [_block("think", message.reasoning.strip())] if message.reasoning.strip() else []
    parts += [message.text.strip()] if message.text.strip() else []
    parts += ["<image>" for _ in message.images]
    parts += [_block("tool_call", _call(call)) for call in message.tool_calls]
    return "\n".join(parts)


def _response(message: Message) -> str:
    """The result as JSON; one that is JSON itself is put in as it is, not as a text."""
    fields = {"tool_call_id": message.call_id, "name": message.name, "content": _parsed(message.text)}
    return json.dumps(fields, ensure_ascii=False)


def _call(call: RequestedCall) -> str:
    return json.dumps({"name": call.name, "arguments": _parsed(call.arguments)}, ensure_ascii=False)


def _parsed(text: str) -> object:
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _block(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"
