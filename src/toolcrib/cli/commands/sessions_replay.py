"""`toolcrib sessions replay ID`."""

from __future__ import annotations

import sys
import time

import click

from toolcrib.cli.output import on_terminal, print_line
from toolcrib.cli.sessions import complete_sessions, find_session, message_lines, opened_store
from toolcrib.sessions.export import read_transcript
from toolcrib.sessions.store import LATEST

LONGEST_PAUSE_SECONDS = 5.0
READ_CHARS_PER_SECOND = 120.0
LONGEST_READ_SECONDS = 3.0


@click.command(name="replay")
@click.argument("session_id", metavar="[ID]", default=LATEST, shell_complete=complete_sessions)
@click.option(
    "--speed",
    type=click.FloatRange(min=0),
    help="How many times as fast as it happened; 0 prints all at once. Without it, as fast as one can read.",
)
@click.option("--full", is_flag=True, help="Long results and arguments from beginning to end.")
@click.option("--reasoning", is_flag=True, help="Also what the model thought.")
def command(session_id: str, speed: float | None, full: bool, reasoning: bool) -> None:
    """Show a conversation again as it happened, without calling anything.

    ID is one of `toolcrib sessions list`, or enough of its beginning; without it, the latest. Messages that a summary
    stands for are shown as they were. No pause is longer than five seconds; in a pipe there are none unless --speed
    asks for them.
    """
    with opened_store() as store:
        session = find_session(store, session_id)
        transcript = read_transcript(store, session.id, states=("live", "folded"))
    if speed is None and not on_terminal():
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
    """Wait as long as it took then, by the speed; or as long as reading takes, if that is shorter."""
    if speed == 0:
        return
    if speed is None:
        pause = min(gap_seconds, length / READ_CHARS_PER_SECOND, LONGEST_READ_SECONDS)
    else:
        pause = min(gap_seconds / speed, LONGEST_PAUSE_SECONDS)
    time.sleep(max(0.0, pause))
