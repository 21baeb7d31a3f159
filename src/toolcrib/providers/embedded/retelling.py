"""A conversation as a very small model understands it: what tools gave is told in words, beside the question."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from toolcrib.core.messages import Message, user_message

MAX_RESULT_CHARS = 2_400
"""More than this of all results would take the model too long to read; beginnings and ends say most."""
MIN_RESULT_CHARS = 400
MAX_FAILED_CALLS = 2
"""After so many failures the model words what it has instead of trying again."""


def question_of(messages: Sequence[Message]) -> str:
    """The latest that the person said."""
    return next((message.text for message in reversed(messages) if message.role == "user"), "")


def results_of(messages: Sequence[Message]) -> list[Message]:
    """What tools gave since the latest question."""
    return [message for message in messages[_latest(messages) + 1 :] if message.role == "tool"]


def is_time_to_word(messages: Sequence[Message]) -> bool:
    """Whether there is a result to speak of, or calls have failed too often."""
    results = results_of(messages)
    if not results:
        return False
    return results[-1].status == "ok" or sum(one.status != "ok" for one in results) >= MAX_FAILED_CALLS


def retold(messages: Sequence[Message]) -> list[Message]:
    """The conversation with calls and results in words; of earlier questions only what was said.

    Shown its own calls in their usual form, such a model goes on to write calls.
    """
    at = _latest(messages)
    if at < 0:
        return list(messages)
    spoken = [Message(role=one.role, content=one.text) for one in messages[:at] if _is_spoken(one)]
    return [*spoken, user_message(messages[at].text), *_told(messages[at + 1 :], is_time_to_word(messages))]


def _told(since: Sequence[Message], is_last_word: bool) -> Iterator[Message]:
    calls = {call.id: call for message in since for call in message.tool_calls}
    results = [message for message in since if message.role == "tool"]
    limit = max(MIN_RESULT_CHARS, MAX_RESULT_CHARS // max(1, len(results)))
    for result in results:
        call = calls.get(result.call_id)
        arguments = f" with {call.arguments}" if call is not None else ""
        yield Message(role="assistant", content=f"I called {result.name}{arguments}.")
        text = f"It {'returned' if result.status == 'ok' else 'failed'}:\n{_cut(_readable(result.text), limit)}"
        yield user_message(f"{text}\n\n{_request(result, is_last_word)}" if result is results[-1] else text)


def _request(result: Message, is_last_word: bool) -> str:
    if not is_last_word:
        return "Call the tool again, with other arguments."
    if result.status == "ok":
        return "What is the answer? Say it in one or two plain sentences."
    return "What went wrong? Say it in one or two plain sentences."


def _readable(text: str) -> str:
    """A result that is a JSON object as lines of names and values, with its line breaks as such."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if not isinstance(found, dict):
        return text
    told = {name: value for name, value in found.items() if value not in (None, "", [], {})}
    # That a command succeeded distracts from what it said.
    if told.get("exit_code") == 0 and len(told) > 1:
        del told["exit_code"]
    if len(told) == 1:
        return _plain(next(iter(told.values()))).strip()
    return "\n".join(f"{name}: {_plain(value)}" for name, value in told.items())


def _cut(text: str, limit: int) -> str:
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}\n…\n{text[-half:]}"


def _plain(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return f"\n{value.rstrip()}" if "\n" in value.rstrip() else value.rstrip()


def _is_spoken(message: Message) -> bool:
    return message.role in ("user", "assistant") and bool(message.text.strip())


def _latest(messages: Sequence[Message]) -> int:
    return max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
