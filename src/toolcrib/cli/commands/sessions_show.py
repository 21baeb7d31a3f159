"""`toolcrib sessions show ID`."""

from __future__ import annotations

import click

from toolcrib.cli.approval_records import local_time
from toolcrib.cli.output import hint, print_json, print_line, print_pairs
from toolcrib.cli.sessions import (
    complete_sessions,
    find_session,
    message_as_json,
    message_lines,
    opened_store,
    session_as_json,
)
from toolcrib.sessions.export import read_transcript
from toolcrib.sessions.records import Session, State
from toolcrib.sessions.store import LATEST


@click.command(name="show")
@click.argument("session_id", metavar="[ID]", default=LATEST, shell_complete=complete_sessions)
@click.option("--folded", is_flag=True, help="Also messages that a summary stands for.")
@click.option("--undone", is_flag=True, help="Also messages that were taken back.")
@click.option("--reasoning", is_flag=True, help="Also what the model thought.")
@click.option("--full", is_flag=True, help="Long results and arguments from beginning to end.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(session_id: str, folded: bool, undone: bool, reasoning: bool, full: bool, as_json: bool) -> None:
    """Print one conversation.

    ID is one of `toolcrib sessions list`, or enough of its beginning; without it, the latest. A call whose process
    died before it ended is marked as OUTCOME UNKNOWN.

    The object of --json has the keys of `sessions list --json`, and lineage (the ids that it came from, oldest first),
    system_prompt and transcript (each message with id, state, created_at, turn_id, role, text, images, reasoning,
    tool_calls, call_id, name, status and usage).
    """
    asked_for: dict[State, bool] = {"live": True, "folded": folded, "undone": undone}
    states = [state for state, wanted in asked_for.items() if wanted]
    with opened_store() as store:
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
    hint(f"`toolcrib sessions resume {session.id}` goes on with it.")


def _facts(session: Session, lineage: list[str]) -> list[tuple[str, str]]:
    usage = session.usage
    cost = "" if usage.cost_usd is None else f", {usage.cost_usd:.4f} US dollars"
    facts = [
        ("session", session.id),
        ("title", session.title),
        ("begun", f"{local_time(session.created_at)} ({session.source})"),
        ("model", f"{session.model} ({session.provider})" if session.provider else session.model),
        ("folder", session.cwd),
        ("came from", " > ".join(lineage)),
        ("tokens", f"{usage.input_tokens:,} in, {usage.output_tokens:,} out{cost}"),
    ]
    return [(label, text) for label, text in facts if text]
