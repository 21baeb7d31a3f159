"""Shared by the session tests: messages, and the entry of a tool whose calls are recorded."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.messages import Message, RequestedCall
from toolcrib.core.types import Effect, ToolEntry, ToolResult

EFFECTS = (Effect("exec", "make deploy", cwd="/srv"),)


def says(text: str) -> Message:
    return Message(role="user", content=text)


def answers(text: str = "", *call_ids: str, name: str = "terminal") -> Message:
    calls = tuple(RequestedCall(id=id, name=name, arguments='{"command":"make deploy"}') for id in call_ids)
    return Message(role="assistant", content=text, tool_calls=calls)


def gives(call_id: str, text: str = "done", name: str = "terminal") -> Message:
    return Message(role="tool", call_id=call_id, name=name, content=text)


def entry(name: str = "terminal") -> ToolEntry:
    return ToolEntry(name=name, toolset="test", schema={}, handler=print, effects=EFFECTS)


def context(session_id: str, call_id: str, name: str = "terminal") -> ToolContext:
    services: Any = None
    return ToolContext(services=services, session_id=session_id, call_id=call_id, tool_name=name)


def result(call_id: str, text: str = "done", name: str = "terminal") -> ToolResult:
    return ToolResult(content=text, call_id=call_id, name=name)
