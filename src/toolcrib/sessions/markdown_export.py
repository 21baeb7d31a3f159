"""Conversations as Markdown, for people: what was said in full, tool calls folded away."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterator

from toolcrib.core.messages import Message, RequestedCall
from toolcrib.sessions.export import Transcript, is_unknown
from toolcrib.sessions.records import Session, State, StoredMessage

SUMMARY_CHARS = 80
SPEAKERS = {"user": "You", "assistant": "Agent", "system": "System"}
STATES: dict[State, str] = {"live": "", "folded": " (replaced by a summary)", "undone": " (taken back)"}


def as_markdown(transcript: Transcript) -> str:
    """The whole session as one document."""
    return "\n\n".join([*_head(transcript.session), *_body(transcript)]) + "\n"


def _head(session: Session) -> Iterator[str]:
    yield f"# {_escaped(session.title or f'Session {session.id}')}"
    facts = [f"Session `{session.id}`, {_moment(session.created_at)}"]
    if session.model:
        facts.append(f"Model `{session.model}`" + (f" by {session.provider}" if session.provider else ""))
    if session.cwd:
        facts.append(f"Folder `{session.cwd}`")
    if session.parent_id:
        facts.append(f"Came from session `{session.parent_id}` ({session.parent_kind})")
    usage = session.usage
    if usage.input_tokens or usage.output_tokens:
        cost = "" if usage.cost_usd is None else f", {usage.cost_usd:.4f} US dollars"
        facts.append(f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out{cost}")
    yield "\n".join(f"- {fact}" for fact in facts)


def _body(transcript: Transcript) -> Iterator[str]:
    asked: set[str] = set()
    speaker = ""
    for stored in transcript.messages:
        message = stored.message
        if message.role == "tool":
            if message.call_id not in asked:
                yield _result_alone(message)
            continue
        heading = f"## {SPEAKERS[message.role]}{STATES[stored.state]}"
        if heading != speaker:
            yield heading
        speaker = heading
        yield from _said(stored)
        for call in message.tool_calls:
            asked.add(call.id)
            yield _call(transcript, call)


def _said(stored: StoredMessage) -> Iterator[str]:
    message = stored.message
    if message.reasoning.strip():
        yield _folded("What the model thought", _fenced(message.reasoning.strip()))
    if message.text.strip():
        yield message.text.strip()
    for image in message.images:
        yield f"![image]({image.url})" if image.url else f"*An image ({image.media_type}).*"


def _call(transcript: Transcript, call: RequestedCall) -> str:
    result = transcript.result_of(call.id)
    arguments = _pretty(call.arguments)
    inside = ["Arguments:", _fenced(arguments, "json")]
    if result is not None:
        inside += ["Result:", *_shown_result(result)]
    return _folded(f"{call.name} {_short(call.arguments)}: {_outcome(transcript, call, result)}", *inside)


def _outcome(transcript: Transcript, call: RequestedCall, result: Message | None) -> str:
    if is_unknown(transcript, call.id):
        return "outcome unknown"
    return "no result" if result is None else result.status


def _result_alone(message: Message) -> str:
    return _folded(f"{message.name}: {message.status}", *_shown_result(message))


def _shown_result(result: Message) -> Iterator[str]:
    if result.text:
        yield _fenced(_pretty(result.text))
    for image in result.images:
        yield f"*An image ({image.media_type or image.url}).*"
    for recording in result.recordings:
        yield f"*A recording ({recording.media_type}).*"


def _folded(summary: str, *inside: str) -> str:
    return "\n\n".join(
        [f"<details>\n<summary>{html.escape(' '.join(summary.split()))}</summary>", *inside, "</details>"]
    )


def _fenced(text: str, language: str = "") -> str:
    """The text in a fence that nothing inside it can close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SUMMARY_CHARS else line[: SUMMARY_CHARS - 1] + "…"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_<>#\[\]])", r"\\\1", " ".join(text.split()))


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
