"""Keeps tool calls and results paired: a checker for whole transcripts, and cuts that keep pairs whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolcrib.core.messages import Message
from toolcrib.sessions.records import StoredMessage


def check_transcript(messages: Iterable[Message]) -> list[str]:
    """What a strict provider would reject in a conversation, one sentence each; empty if nothing.

    Every call has one result, directly after the requesting message and in the order of the calls; there are no
    other results; call ids are unique; a user message comes first, and no answer follows another answer.
    """
    problems: list[str] = []
    seen: set[str] = set()
    waiting: list[str] = []
    previous = ""
    for number, message in enumerate(messages, 1):
        if message.role == "tool":
            problems += _result_problems(number, message, waiting)
            previous = "tool"
            continue
        problems += _unanswered(number, waiting)
        waiting = []
        if message.tool_calls and message.role != "assistant":
            problems.append(f"message {number} ({message.role}) requests tool calls, which only an assistant may")
        if message.role == "assistant":
            problems += _answer_problems(number, previous)
            for call in message.tool_calls:
                problems += _call_problems(number, call.id, seen)
                seen.add(call.id)
                waiting.append(call.id)
        if message.role != "system":
            previous = message.role
    return problems + _unanswered(None, waiting)


def _result_problems(number: int, message: Message, waiting: list[str]) -> list[str]:
    if message.call_id not in waiting:
        return [f"message {number} is a result of {message.call_id!r}, which the message before it does not request"]
    if waiting[0] == message.call_id:
        waiting.pop(0)
        return []
    waiting.remove(message.call_id)
    return [f"message {number} is the result of {message.call_id!r}, out of call order"]


def _unanswered(number: int | None, waiting: Sequence[str]) -> list[str]:
    before = "at the end" if number is None else f"before message {number}"
    return [f"call {call_id!r} has no result {before}" for call_id in waiting]


def _answer_problems(number: int, previous: str) -> list[str]:
    if previous == "":
        return [f"message {number} (assistant) comes first, before any user message"]
    if previous == "assistant":
        return [f"message {number} (assistant) follows an assistant, with no user message or result between them"]
    return []


def _call_problems(number: int, call_id: str, seen: set[str]) -> list[str]:
    if not call_id:
        return [f"message {number} requests a call without an id"]
    return [f"message {number} requests call {call_id!r}, whose id was used before"] if call_id in seen else []


def whole_pairs(messages: Sequence[StoredMessage], up_to: int | None) -> list[StoredMessage]:
    """The messages up to one (by default all of them), plus the results of its calls.

    If the last calls do not all have results yet, the copy ends before the message that requests them.
    """
    ids = [one.id for one in messages]
    end = len(messages) if up_to is None else ids.index(up_to) + 1
    while end < len(messages) and messages[end].message.role == "tool":
        end += 1
    start = end
    while start and messages[start - 1].message.role == "tool":
        start -= 1
    if start == 0:
        return list(messages[:end])
    asked = [call.id for call in messages[start - 1].message.tool_calls]
    answered = {one.message.call_id for one in messages[start:end]}
    return list(messages[:end] if answered.issuperset(asked) else messages[: start - 1])
