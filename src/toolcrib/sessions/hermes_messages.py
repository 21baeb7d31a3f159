"""Messages of Hermes Agent as ours, in a conversation that every provider accepts once its calls have results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.core.messages import Message, Part, RequestedCall, Role, Text, parts_of
from toolcrib.sessions.hermes_database import Row
from toolcrib.sessions.records import State

STRUCTURED = "\x00json:"
"""Before content that is no text; the rest of it is JSON."""
PART_TYPES = frozenset({"text", "input_text", "output_text", "image", "image_url", "input_image"})
AGENT_BEGAN = "(The agent spoke first.)"
ROLES: tuple[Role, ...] = get_args(Role)


class UnreadableMessage(ValueError):
    """A message that cannot be understood; says which and why."""


class Said(Struct, frozen=True):
    """One message, when it was said and whether it is still part of the conversation."""

    message: Message
    created_at: float
    state: State


def read_messages(rows: Iterable[Row], started_at: float) -> list[Said]:
    """The messages of one session. Rows of a kind that is no message are left out; raises UnreadableMessage."""
    return _taking_turns(_read(rows, started_at))


def as_number(value: Any) -> float | None:
    """A number that can be counted with; a database may hold anything in any column."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _read(rows: Iterable[Row], started_at: float) -> Iterator[Said]:
    # Compacting copies the last messages, so that an id may be given once in each state.
    calls: dict[State, _Calls] = {"live": _Calls(), "folded": _Calls(), "undone": _Calls()}
    now = started_at
    for row in rows:
        role = next((role for role in ROLES if role == row.get("role")), None)
        if role is None:
            continue
        time = as_number(row.get("timestamp"))
        now = now if time is None else time
        state = _state(row)
        yield Said(_message(row, role, calls[state]), now, state)


def _state(row: Row) -> State:
    active = row.get("active")
    if active is None or active:
        return "live"
    return "folded" if row.get("compacted") else "undone"


def _message(row: Row, role: Role, calls: _Calls) -> Message:
    content = _content(row.get("content"))
    if role == "tool":
        call = calls.answer(as_text(row.get("tool_call_id")), as_text(row.get("tool_name")))
        return Message(role=role, content=content, call_id=call.id, name=call.name)
    if role == "assistant":
        reasoning = as_text(row.get("reasoning") or row.get("reasoning_content"))
        return Message(role=role, content=content, tool_calls=calls.ask(row), reasoning=reasoning)
    return Message(role=role, content=content)


def _content(value: Any) -> str | tuple[Part, ...]:
    text = as_text(value)
    if text.startswith(STRUCTURED):
        text = text.removeprefix(STRUCTURED)
        structured = _json(text)
        if isinstance(structured, dict):
            structured = structured.get("content")
        return structured if isinstance(structured, str) else tuple(parts_of(structured)) or text
    if text.startswith("["):
        blocks = _json(text)
        if isinstance(blocks, list) and blocks and all(_is_part(block) for block in blocks):
            return tuple(parts_of(blocks))
    return text


def _is_part(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in PART_TYPES


def _json(text: str) -> Any:
    """What JSON text says; None for what is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class _Calls(Struct):
    """The calls that were asked for so far: each gets an id of its own, and each result the id of its call."""

    given: set[str] = field(default_factory=set)
    waiting: list[tuple[frozenset[str], RequestedCall]] = field(default_factory=list)
    """The calls of the last message that asked for any, with the ids that their results may name."""

    def ask(self, row: Row) -> tuple[RequestedCall, ...]:
        written = row.get("tool_calls")
        found = _json(as_text(written)) if written else []
        if not isinstance(found, list):
            raise UnreadableMessage(f"the tool calls of message {row.get('id')} are no list in JSON")
        if not found:
            return ()
        self.waiting = [self._asked(call, row) for call in found]
        return tuple(call for _, call in self.waiting)

    def answer(self, id: str, tool: str) -> RequestedCall:
        """The call that a result belongs to. An old result that names none belongs to the next one of its tool."""
        for place, (names, call) in enumerate(self.waiting):
            if id in names if id else tool in ("", call.name):
                del self.waiting[place]
                return msgspec.structs.replace(call, name=tool or call.name)
        return RequestedCall(id=id, name=tool, arguments="")

    def _asked(self, call: Any, row: Row) -> tuple[frozenset[str], RequestedCall]:
        function = call.get("function", call) if isinstance(call, dict) else {}
        name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else ("", "")
        if not isinstance(name, str) or not name:
            raise UnreadableMessage(f"a tool call of message {row.get('id')} names no tool")
        if not isinstance(arguments, str):
            arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
        names = [as_text(call.get(key)) for key in ("id", "call_id") if call.get(key)]
        id = self._own_id(names[0] if names else "call")
        return frozenset(names), RequestedCall(id=id, name=name, arguments=arguments)

    def _own_id(self, wanted: str) -> str:
        id, number = wanted, 1
        while id in self.given:
            number += 1
            id = f"{wanted}-{number}"
        self.given.add(id)
        return id


def _taking_turns(messages: Iterable[Said]) -> list[Said]:
    """The messages, where no answer stands first or follows an answer; results do not count, as repair moves them."""
    turns: list[Said] = []
    last: int | None = None
    for one in messages:
        if one.state == "live" and one.message.role in ("user", "assistant"):
            if one.message.role == "assistant" and last is None:
                turns.append(Said(Message(role="user", content=AGENT_BEGAN), one.created_at, "live"))
            elif one.message.role == "assistant" and last is not None and _is_answer(turns[last].message):
                one = replace(one, message=_joined(turns.pop(last).message, one.message))
            last = len(turns)
        turns.append(one)
    return turns


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls


def _joined(first: Message, second: Message) -> Message:
    """Two answers in a row as one."""
    if isinstance(first.content, str) and isinstance(second.content, str):
        content: str | tuple[Part, ...] = _paragraphs(first.content, second.content)
    else:
        content = (*_parts(first), *_parts(second))
    reasoning = _paragraphs(first.reasoning, second.reasoning)
    return msgspec.structs.replace(second, content=content, reasoning=reasoning)


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


def _parts(message: Message) -> tuple[Part, ...]:
    if isinstance(message.content, str):
        return (Text(message.content),) if message.content else ()
    return message.content
