"""What the commands about sessions share: the store, finding one session, and a conversation as lines of text."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec

from toolcrib.cli.output import one_line, silence
from toolcrib.config.load import load_settings
from toolcrib.core.errors import SessionError, ToolcribError, UsageError
from toolcrib.core.messages import Message, RequestedCall
from toolcrib.core.types import JsonObject
from toolcrib.sessions.export import Transcript, is_unknown
from toolcrib.sessions.records import Session, State, StoredMessage
from toolcrib.sessions.store import LATEST, SessionStore

NO_SESSIONS = "There are no conversations yet; `toolcrib chat` begins one."
ARGUMENT_CHARS = 100
RESULT_LINES = 12
RESULT_CHARS = 2_000
COMPLETED_IDS = 200
SPEAKERS = {"user": "You", "assistant": "Agent", "system": "System"}
STATES: dict[State, str] = {"live": "", "folded": " (replaced by a summary)", "undone": " (undone)"}
SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def age_in_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A span of time such as 30d, 12h or 2w, in seconds; a click callback."""
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d{1,6})\s*([mhdw])\s*", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no span of time, as 30d, 12h, 90m or 2w are", ctx, param)
    return float(int(found[1]) * SECONDS[found[2]])


@contextmanager
def opened_store() -> Iterator[SessionStore]:
    """The sessions of this home. Looking at them creates nothing."""
    store = SessionStore(load_settings().home.sessions_file)
    try:
        yield store
    finally:
        store.close()


def find_session(store: SessionStore, wanted: str) -> Session:
    """The session with that id, or whose id alone begins so, or the `last` one; raises UsageError with the nearest."""
    if not store.database.exists:
        raise UsageError(f"there is no session {wanted!r}: nothing was said here so far; type `toolcrib chat` to begin")
    try:
        return store.get(wanted)
    except SessionError as error:
        # A store that cannot be read says so itself here; otherwise the name was wrong.
        store.list(limit=1, include_hidden=True)
        raise UsageError(str(error)) from error


def complete_sessions(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of sessions for the shell, the latest first."""
    with silence():
        try:
            with opened_store() as store:
                known = store.list(limit=COMPLETED_IDS) if store.database.exists else []
        except (ToolcribError, OSError):
            return []  # there is no place for a message while somebody is typing
    return [name for name in (LATEST, *(session.id for session in known)) if name.startswith(incomplete)]


def session_as_json(session: Session) -> JsonObject:
    """The object that the commands print for programs; keys are only ever added. Times are seconds since 1970."""
    return {
        "id": session.id,
        "title": session.title,
        "source": session.source,
        "model": session.model,
        "provider": session.provider,
        "cwd": session.cwd,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "ended_at": session.ended_at,
        "end_reason": session.end_reason,
        "parent_id": session.parent_id,
        "parent_kind": session.parent_kind,
        "toolsets": list(session.toolsets),
        "messages": session.message_count,
        "calls": session.call_count,
        "usage": {
            "input_tokens": session.usage.input_tokens,
            "output_tokens": session.usage.output_tokens,
            "cached_tokens": session.usage.cached_tokens,
            "reasoning_tokens": session.usage.reasoning_tokens,
            "cost_usd": session.usage.cost_usd,
        },
    }


def message_as_json(transcript: Transcript, stored: StoredMessage) -> JsonObject:
    """A message for programs; a call whose outcome nobody knows says so."""
    message = stored.message
    return {
        "id": stored.id,
        "state": stored.state,
        "created_at": stored.created_at,
        "turn_id": stored.turn_id,
        "role": message.role,
        "text": message.text,
        "images": len(message.images),
        "reasoning": message.reasoning,
        "tool_calls": [
            {
                "id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "outcome_unknown": is_unknown(transcript, call.id),
            }
            for call in message.tool_calls
        ],
        "call_id": message.call_id,
        "name": message.name,
        "status": message.status if message.role == "tool" else "",
        "usage": None if stored.usage is None else msgspec.to_builtins(stored.usage),
    }


def message_lines(
    transcript: Transcript, stored: StoredMessage, *, full: bool = False, reasoning: bool = False
) -> list[str]:
    """A message as people read it; long results are cut, unless all is asked for."""
    message = stored.message
    if message.role == "tool":
        return _result_lines(message, stored.state, full=full)
    clock = time.strftime("%H:%M:%S", time.localtime(stored.created_at))
    lines = ["", f"{SPEAKERS[message.role]}, {clock}{STATES[stored.state]}"]
    if reasoning and message.reasoning.strip():
        lines += [f"  | {line}" for line in message.reasoning.strip().splitlines()]
    lines += [f"  {line}" for line in message.text.strip().splitlines()]
    lines += [f"  [image {image.media_type or image.url}]" for image in message.images]
    return lines + [_call_line(transcript, call, full=full) for call in message.tool_calls]


def _call_line(transcript: Transcript, call: RequestedCall, *, full: bool) -> str:
    arguments = one_line(call.arguments)
    if not full and len(arguments) > ARGUMENT_CHARS:
        arguments = arguments[: ARGUMENT_CHARS - 1] + "…"
    unknown = "  OUTCOME UNKNOWN" if is_unknown(transcript, call.id) else ""
    return f"  > {call.name} {arguments}{unknown}"


def _result_lines(message: Message, state: State, *, full: bool) -> list[str]:
    text = message.text if full else message.text[:RESULT_CHARS]
    lines = text.strip().splitlines()
    shown = lines if full else lines[:RESULT_LINES]
    found = [f"  < {message.name}: {message.status}{STATES[state]}", *(f"    {line}" for line in shown)]
    found += [f"    [image {image.media_type or image.url}]" for image in message.images]
    if len(shown) < len(lines) or len(text) < len(message.text):
        found.append(f"    … ({len(message.text):,} characters in all; --full shows them)")
    return found
