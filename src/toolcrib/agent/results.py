"""How the result of a call is told to the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from toolcrib.core.messages import Message, RequestedCall, Text, tool_message
from toolcrib.core.types import ToolResult
from toolcrib.registry.results import untrusted, without_marks

UNTRUSTED_FROM_CHARS = 32
_UNTRUSTED_NAMES = ("web_", "browser_", "mcp_", "x_search")
SUMMARY_CHARS = 80
# The argument that says most about a call, best first.
_TELLING = (
    "command", "path", "file_path", "query", "pattern", "url", "urls", "question", "goal", "prompt", "name", "action",
    "code", "text", "content",
)  # fmt: skip


def as_message(result: ToolResult, warning: str = "") -> Message:
    """The message with a result: what comes from outside is marked as data, a warning stands after it."""
    message = tool_message(result)
    if _is_from_outside(result.name) and len(result.text) >= UNTRUSTED_FROM_CHARS and not result.is_error:
        message = _marked(message, result.name)
    if warning:
        note = f"[{warning}]"
        content = f"{message.content}\n{note}" if isinstance(message.content, str) else (*message.content, Text(note))
        message = msgspec.structs.replace(message, content=content)
    return message


def refused(call: RequestedCall, reason: str, error_type: str) -> ToolResult:
    """The result of a call that is not run."""
    content = json.dumps({"error": reason, "error_type": error_type}, ensure_ascii=False)
    return ToolResult(
        content=content,
        status="blocked",
        error_type=error_type,
        error_message=reason,
        call_id=call.id,
        name=call.name,
    )


def summary_of(arguments: Mapping[str, Any] | str) -> str:
    """The argument that says most about a call, in one line; empty when none does."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return ""
    if not isinstance(arguments, Mapping):
        return ""
    return _shortened(_telling_value(arguments))


def _telling_value(arguments: Mapping[str, Any]) -> str:
    for key in (*_TELLING, *arguments):
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value and isinstance(value[0], str):
            return ", ".join(str(one) for one in value)
    return ""


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SUMMARY_CHARS else line[: SUMMARY_CHARS - 1] + "…"


def _is_from_outside(name: str) -> bool:
    return name.startswith(_UNTRUSTED_NAMES)


def _marked(message: Message, source: str) -> Message:
    if isinstance(message.content, str):
        return msgspec.structs.replace(message, content=untrusted(message.content, source))
    safe = [Text(without_marks(part.text)) if isinstance(part, Text) else part for part in message.content]
    opening, closing = f'<untrusted_tool_result source="{source}">', "</untrusted_tool_result>"
    return msgspec.structs.replace(message, content=(Text(opening), *safe, Text(closing)))
