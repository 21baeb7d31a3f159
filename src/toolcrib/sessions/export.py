"""Exports conversations as OpenAI messages, Markdown and ShareGPT, with secrets masked."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterator, Sequence
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
    """One session with its messages, in conversation order."""

    session: Session
    messages: tuple[StoredMessage, ...]
    unknown: frozenset[str] = frozenset()
    """Calls that started and were never recorded as finished."""

    def result_of(self, call_id: str) -> Message | None:
        """The result of a call in the live conversation, or else any result of it."""
        found = [one for one in self.messages if one.message.role == "tool" and one.message.call_id == call_id]
        found.sort(key=lambda one: one.state != "live")
        return found[0].message if found else None


def read_transcript(store: SessionStore, session_id: str, *, states: Sequence[State] = ("live",)) -> Transcript:
    """A session as stored, including any secrets in it."""
    unknown = {call.call_id for call in store.calls(session_id) if call.status in ("started", "unknown")}
    messages = store.messages(session_id, states=states)
    answered = {
        one.message.call_id for one in messages if one.message.role == "tool" and not _has_unknown_outcome(one.message)
    }
    return Transcript(
        session=store.get(session_id), messages=tuple(messages), unknown=frozenset(unknown - answered)
    )  # fmt: skip


def masked(transcript: Transcript) -> Transcript:
    """The transcript without secrets and without provider-specific data."""
    session = transcript.session
    return replace(
        transcript,
        session=replace(session, title=redact(session.title), system_prompt=redact(session.system_prompt)),
        messages=tuple(replace(one, message=_masked_message(one.message)) for one in transcript.messages),
    )


def as_openai(transcript: Transcript) -> JsonObject:
    """The session with its messages in OpenAI's chat format; times are seconds since 1970."""
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
    """A message in OpenAI's chat format. `state` marks one that is no longer part of the conversation."""
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
    """Whether the outcome of a call is unknown."""
    result = transcript.result_of(call_id)
    return call_id in transcript.unknown or (result is not None and _has_unknown_outcome(result))


def image_address(image: Image) -> str:
    """The URL of an image, or the image itself as a data URL."""
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


def _has_unknown_outcome(result: Message) -> bool:
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
    # A secret may be escaped in the text, so compare its value.
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


SUMMARY_CHARS = 80
MARKDOWN_SPEAKERS = {"user": "You", "assistant": "Agent", "system": "System"}
STATES: dict[State, str] = {"live": "", "folded": " (replaced by a summary)", "undone": " (undone)"}


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
        heading = f"## {MARKDOWN_SPEAKERS[message.role]}{STATES[stored.state]}"
        if heading != speaker:
            yield heading
        speaker = heading
        yield from _message_lines(stored)
        for call in message.tool_calls:
            asked.add(call.id)
            yield _call(transcript, call)


def _message_lines(stored: StoredMessage) -> Iterator[str]:
    message = stored.message
    if message.reasoning.strip():
        yield _folded("The model's reasoning", _fenced(message.reasoning.strip()))
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


SHAREGPT_SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


def as_sharegpt(transcript: Transcript) -> JsonObject:
    """The session as one line of a ShareGPT dataset; consecutive messages of one speaker become one turn."""
    session = transcript.session
    turns: list[dict[str, str]] = []
    for speaker, value in _sharegpt_text(transcript):
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


def _sharegpt_text(transcript: Transcript) -> Iterator[tuple[str, str]]:
    if transcript.session.system_prompt:
        yield "system", transcript.session.system_prompt
    for stored in transcript.messages:
        yield SHAREGPT_SPEAKERS[stored.message.role], _value(stored.message)


def _value(message: Message) -> str:
    if message.role == "tool":
        return _block("tool_response", _response(message))
    parts = [_block("think", message.reasoning.strip())] if message.reasoning.strip() else []
    parts += [message.text.strip()] if message.text.strip() else []
    parts += ["<image>" for _ in message.images]
    parts += [_block("tool_call", _sharegpt_call(call)) for call in message.tool_calls]
    return "\n".join(parts)


def _response(message: Message) -> str:
    """The result as JSON; a result that is JSON itself is embedded instead of quoted."""
    fields = {"tool_call_id": message.call_id, "name": message.name, "content": _parsed(message.text)}
    return json.dumps(fields, ensure_ascii=False)


def _sharegpt_call(call: RequestedCall) -> str:
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
