"""`toolcrib sessions`: lists, shows, searches, replays and resumes sessions."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup, LazyCommand
from toolcrib.cli.output import (
    hint,
    local_time,
    one_line,
    print_json,
    print_line,
    print_pairs,
    print_table,
    stdout_is_terminal,
)
from toolcrib.config.load import load_settings
from toolcrib.config.os_errors import current_folder
from toolcrib.core.errors import SessionError, UsageError
from toolcrib.core.messages import Message, RequestedCall
from toolcrib.core.types import JsonObject
from toolcrib.sessions.export import Transcript, is_unknown, read_transcript
from toolcrib.sessions.records import Session, State, StoredMessage
from toolcrib.sessions.search import MessageHit, SearchRequest, search_messages
from toolcrib.sessions.store import LATEST, SessionStore

group = CommandGroup("sessions")

NO_SESSIONS = "There are no sessions yet; run `toolcrib chat` to start one."
ARGUMENT_CHARS = 100
RESULT_LINES = 12
RESULT_CHARS = 2_000
COMPLETED_IDS = 200
SPEAKERS = {"user": "You", "assistant": "Agent", "system": "System"}
STATES: dict[State, str] = {"live": "", "folded": " (replaced by a summary)", "undone": " (undone)"}
SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
TITLE_CHARS = 60
ROLES = click.Choice(["user", "assistant", "tool"])
SHOWN_TOOLS = 15
LONGEST_PAUSE_SECONDS = 5.0
READ_CHARS_PER_SECOND = 120.0
LONGEST_READ_SECONDS = 3.0


def age_in_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """An age such as 30d, 12h or 2w, in seconds; a click callback."""
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d{1,6})\s*([mhdw])\s*", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not an age such as 30d, 12h, 90m or 2w", ctx, param)
    return float(int(found[1]) * SECONDS[found[2]])


@contextmanager
def open_session_store() -> Iterator[SessionStore]:
    """The session store of this home; opening it creates no file."""
    store = SessionStore(load_settings().home.sessions_file)
    try:
        yield store
    finally:
        store.close()


def find_session(store: SessionStore, wanted: str) -> Session:
    """The session with this id or unique prefix of an id, or `last`; raises UsageError with the nearest ids."""
    if not store.database.exists:
        raise UsageError(f"there is no session {wanted!r}: there are no sessions yet; run `toolcrib chat` to start one")
    try:
        return store.get(wanted)
    except SessionError as error:
        # Raises if the store cannot be read; otherwise the id was wrong.
        store.list(limit=1, include_hidden=True)
        raise UsageError(str(error)) from error


def complete_sessions(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Session ids for the shell, newest first."""
    return matching_names(_latest_ids, incomplete)


def _latest_ids() -> list[str]:
    with open_session_store() as store:
        known = store.list(limit=COMPLETED_IDS) if store.database.exists else []
    return [LATEST, *(session.id for session in known)]


def session_as_json(session: Session) -> JsonObject:
    """A session as JSON; keys may be added, never removed. Times are seconds since 1970."""
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
    """A message as JSON; marks calls with an unknown outcome."""
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
    """A message as lines of text; cuts long results unless `full`."""
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


@group.command("list")
@click.option(
    "-n", "--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many sessions to show."
)
@click.option("--source", metavar="NAME", help="Only sessions from this source: cli, library, cron …")
@click.option("--here", is_flag=True, help="Only sessions of the current folder.")
@click.option("--all", "include_hidden", is_flag=True, help="Include sessions of subagents and tools.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_sessions(count: int, source: str | None, here: bool, include_hidden: bool, as_json: bool) -> None:
    """List sessions, newest first.

    Each object of --json has the keys id, title, source, model, provider, cwd, created_at, updated_at, ended_at,
    end_reason, parent_id, parent_kind, toolsets, messages, calls and usage.
    """
    with open_session_store() as store:
        cwd = str(current_folder()) if here else None
        found = []
        if store.database.exists:
            found = store.list(limit=count, source=source, include_hidden=include_hidden, cwd=cwd)
    if as_json:
        print_json([session_as_json(session) for session in found])
        return
    if not found:
        print_line("No session matches; run `toolcrib sessions list` to see all." if source or here else NO_SESSIONS)
        return
    print_table(
        ["id", "last used", "messages", "calls", "model", "title"],
        [
            [
                session.id,
                local_time(session.updated_at)[:16],
                str(session.message_count),
                str(session.call_count),
                session.model or "-",
                session.title[:TITLE_CHARS] or "-",
            ]
            for session in found
        ],
    )
    hint("Run `toolcrib sessions show ID` to print a session, `toolcrib sessions resume ID` to resume it.")


@group.command("show")
@click.argument("session_id", metavar="[ID]", default=LATEST, shell_complete=complete_sessions)
@click.option("--folded", is_flag=True, help="Include messages that were replaced by a summary.")
@click.option("--undone", is_flag=True, help="Include messages that were undone.")
@click.option("--reasoning", is_flag=True, help="Include the model's reasoning.")
@click.option("--full", is_flag=True, help="Do not cut long results and arguments.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show_session(session_id: str, folded: bool, undone: bool, reasoning: bool, full: bool, as_json: bool) -> None:
    """Print a session.

    ID is an id from `toolcrib sessions list` or a unique prefix of one; the default is the newest session. A call whose
    process died before it finished is marked OUTCOME UNKNOWN.

    --json prints an object with the keys of `sessions list --json`, and lineage (the ids of its parents, oldest first),
    system_prompt and transcript (each message with id, state, created_at, turn_id, role, text, images, reasoning,
    tool_calls, call_id, name, status and usage).
    """
    asked_for: dict[State, bool] = {"live": True, "folded": folded, "undone": undone}
    states = [state for state, wanted in asked_for.items() if wanted]
    with open_session_store() as store:
        session = find_session(store, session_id)
        transcript = read_transcript(store, session.id, states=states)
        lineage = [one.id for one in store.lineage(session.id)][:-1]
    if as_json:
        messages = [message_as_json(transcript, stored) for stored in transcript.messages]
        more = {"lineage": lineage, "system_prompt": session.system_prompt, "transcript": messages}
        print_json(session_as_json(session) | more)
        return
    print_pairs(_facts(session, lineage))
    for stored in transcript.messages:
        for line in message_lines(transcript, stored, full=full, reasoning=reasoning):
            print_line(line)
    hint(f"Run `toolcrib sessions resume {session.id}` to resume it.")


def _facts(session: Session, lineage: list[str]) -> list[tuple[str, str]]:
    usage = session.usage
    cost = "" if usage.cost_usd is None else f", {usage.cost_usd:.4f} US dollars"
    facts = [
        ("session", session.id),
        ("title", session.title),
        ("started", f"{local_time(session.created_at)} ({session.source})"),
        ("model", f"{session.model} ({session.provider})" if session.provider else session.model),
        ("folder", session.cwd),
        ("parents", " > ".join(lineage)),
        ("tokens", f"{usage.input_tokens:,} in, {usage.output_tokens:,} out{cost}"),
    ]
    return [(label, text) for label, text in facts if text]


@group.command("search")
@click.argument("words", metavar="WORDS...", nargs=-1, required=True)
@click.option(
    "-n", "--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many messages to show."
)
@click.option(
    "--sort",
    type=click.Choice(["best", "newest", "oldest"]),
    default="best",
    show_default=True,
    help="Sort order.",
)
@click.option("--role", "roles", type=ROLES, multiple=True, help="Only messages with this role; repeatable.")
@click.option("--in", "within", metavar="ID", shell_complete=complete_sessions, help="Only in this session.")
@click.option("--all", "include_hidden", is_flag=True, help="Include sessions of subagents and tools.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def search_sessions(
    words: tuple[str, ...],
    count: int,
    sort: str,
    roles: tuple[str, ...],
    within: str | None,
    include_hidden: bool,
    as_json: bool,
) -> None:
    """Search the messages of all sessions.

    A message must contain all words; quote words to find them as a phrase.

    Each object of --json has the keys session_id, message_id, role, created_at, state, source and text.

    \b
    Example:
      toolcrib sessions search flaky test
    """
    typed = " ".join(f'"{word}"' if " " in word.strip() and '"' not in word else word for word in words)
    if not typed.strip():
        raise UsageError("no search words; give some, as in `toolcrib sessions search flaky test`")
    with open_session_store() as store:
        found: list[tuple[MessageHit, str]] = []
        if store.database.exists:
            wanted = SearchRequest(
                roles=roles,
                within=find_session(store, within).id if within else "",
                include_hidden=include_hidden,
                sort="" if sort == "best" else "newest" if sort == "newest" else "oldest",
            )
            found = search_messages(store, typed, limit=count, wanted=wanted)
        exists = store.database.exists
    if as_json:
        print_json([_as_json(hit, text) for hit, text in found])
    elif not found:
        print_line("No message matches; try fewer words." if exists else NO_SESSIONS)
    else:
        rows = [
            [hit.session_id, local_time(hit.created_at)[:16], SPEAKERS.get(hit.role, hit.role), text]
            for hit, text in found
        ]
        print_table(["session", "when", "who", "text"], rows)
        hint("Run `toolcrib sessions show ID` to print the whole session.")


def _as_json(hit: MessageHit, text: str) -> dict[str, object]:
    return {
        "session_id": hit.session_id,
        "message_id": hit.message_id,
        "role": hit.role,
        "created_at": hit.created_at,
        "state": hit.state,
        "source": hit.source,
        "text": text,
    }


@group.command("stats")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show_statistics(as_json: bool) -> None:
    """Show the number of sessions, messages, calls and tokens.

    --json prints an object with the keys sessions, messages, calls, input_tokens, output_tokens, cached_tokens,
    cost_usd, first_at, last_at, by_source, by_model, by_tool and size_bytes; null if there are no sessions.
    """
    with open_session_store() as store:
        stats = store.stats() if store.database.exists else None
    if as_json:
        print_json(stats)
        return
    if not stats or not stats["sessions"]:
        print_line(NO_SESSIONS)
        return
    print_pairs(
        [
            ("sessions", f"{stats['sessions']:,}, from {_day(stats['first_at'])} to {_day(stats['last_at'])}"),
            ("messages", f"{stats['messages']:,}"),
            ("tool calls", f"{stats['calls']:,}"),
            ("tokens", _tokens(stats)),
            ("cost", "unknown" if stats["cost_usd"] is None else f"{stats['cost_usd']:.4f} US dollars"),
            ("on disk", f"{stats['size_bytes'] / 1_000_000:.1f} MB"),
        ]
    )
    for title, key in (("model", "by_model"), ("source", "by_source")):
        print_line()
        rows = [
            [
                name or "-",
                f"{one['sessions']:,}",
                f"{one['messages']:,}",
                f"{one['input_tokens'] + one['output_tokens']:,}",
            ]
            for name, one in stats[key].items()
        ]
        print_table([title, "sessions", "messages", "tokens"], rows)
    if stats["by_tool"]:
        print_line()
        print_table(
            ["tool", "calls"], [[name, f"{count:,}"] for name, count in list(stats["by_tool"].items())[:SHOWN_TOOLS]]
        )


def _day(seconds: float | None) -> str:
    return local_time(seconds or 0)[:10]


def _tokens(stats: JsonObject) -> str:
    cached = f" ({stats['cached_tokens']:,} of them cached)" if stats["cached_tokens"] else ""
    return f"{stats['input_tokens']:,} in{cached}, {stats['output_tokens']:,} out"


@group.command("replay")
@click.argument("session_id", metavar="[ID]", default=LATEST, shell_complete=complete_sessions)
@click.option(
    "--speed",
    type=click.FloatRange(min=0),
    help="Playback speed; 0 prints everything at once. Default: reading speed.",
)
@click.option("--full", is_flag=True, help="Do not cut long results and arguments.")
@click.option("--reasoning", is_flag=True, help="Include the model's reasoning.")
def replay_session(session_id: str, speed: float | None, full: bool, reasoning: bool) -> None:
    """Replay a session as it happened, without calling anything.

    ID is an id from `toolcrib sessions list` or a unique prefix of one; the default is the newest session. Shows the
    original messages instead of summaries. No pause is longer than five seconds; in a pipe there are none without
    --speed.
    """
    with open_session_store() as store:
        session = find_session(store, session_id)
        transcript = read_transcript(store, session.id, states=("live", "folded"))
    if speed is None and not stdout_is_terminal():
        speed = 0.0
    before: float | None = None
    length = 0
    for stored in transcript.messages:
        if before is not None:
            _pause(stored.created_at - before, length, speed)
        lines = message_lines(transcript, stored, full=full, reasoning=reasoning)
        for line in lines:
            print_line(line)
        sys.stdout.flush()
        before, length = stored.created_at, sum(map(len, lines))


def _pause(gap_seconds: float, length: int, speed: float | None) -> None:
    """Wait as long as the original pause at this speed, or the time it takes to read, whichever is shorter."""
    if speed == 0:
        return
    if speed is None:
        pause = min(gap_seconds, length / READ_CHARS_PER_SECOND, LONGEST_READ_SECONDS)
    else:
        pause = min(gap_seconds / speed, LONGEST_PAUSE_SECONDS)
    time.sleep(max(0.0, pause))


@group.command("resume")
@click.argument("session_id", metavar="[ID]", default=LATEST, shell_complete=complete_sessions)
@click.option("-q", "--query", metavar="TEXT", help="Ask one question, print the answer and exit.")
@click.pass_context
def resume_session(ctx: click.Context, session_id: str, query: str | None) -> int:
    """Resume a session.

    ID is an id from `toolcrib sessions list` or a unique prefix of one; the default is the newest session.
    `toolcrib chat --resume ID` does the same and takes all options of the chat.
    """
    with open_session_store() as store:
        session = find_session(store, session_id)
    code: int = ctx.invoke(LazyCommand("chat:chat", "").load(), resume=session.id, query=query)
    return code


group.lazy("export", "sessions_export:export_sessions", "Export sessions as JSONL, trajectories or Markdown.")
group.lazy("delete", "sessions_delete:delete_sessions", "Delete sessions permanently.")
