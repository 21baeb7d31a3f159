"""Where the result of a run goes, as `deliver` says it.

local              kept with the run, which is done in any case
origin             also told to the session that made the job
file:PATH          also put at the end of a file
command:COMMAND    also given to a shell command on its input
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from toolcrib.core.errors import ToolcribError, UsageError, nearest_names
from toolcrib.cron.store import open_database
from toolcrib.registry.results import sendable
from toolcrib.sessions.database import Database

KINDS = ("local", "origin", "file", "command")
CHOICES = "`local`, `origin`, `file:PATH` or `command:COMMAND`"


class Destination(msgspec.Struct, frozen=True):
    """One place for results."""

    kind: str
    target: str = ""
    """The path, or the command."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" if self.target else self.kind


def parse_destination(text: str, folder: str) -> Destination:
    """Where `deliver` sends results; a path is made real, seen from the folder. Raises UsageError."""
    kind, colon, target = text.strip().partition(":")
    kind, target = kind.strip().lower() or "local", target.strip()
    if kind in ("file", "command"):
        if not target:
            example = "file:~/report.txt" if kind == "file" else "command:wall"
            raise UsageError(f"{text!r} does not say which {kind}; write for example `{example}`")
        return Destination(kind, _real_path(target, folder) if kind == "file" else target)
    if kind in KINDS and not colon:
        return Destination(kind)
    near = nearest_names(kind, KINDS, limit=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"results cannot be delivered to {text!r}: no messaging platform of that name is set up here; "
        f"{meant}there are {CHOICES}"
    )


def stored_destination(text: str) -> Destination:
    """The destination that a job was kept with. Its path is not looked at again: what it was is what was agreed to."""
    kind, _, target = text.partition(":")
    return Destination(kind, target)


def _real_path(path: str, folder: str) -> str:
    if "\0" in path:
        raise UsageError(f"{path!r} cannot be the path of a file; write it without the zero byte")
    return os.path.realpath(os.path.join(folder or os.curdir, os.path.expanduser(path)))  # noqa: PTH111, PTH118


logger = logging.getLogger(__name__)

KEPT_FOR_A_SESSION = 10
"""They come all at once, in one message: a session that was away for a month must not drown in them."""


class JobNotice(msgspec.Struct, frozen=True):
    """What a session is to be told."""

    number: int
    text: str


def leave_notice(database: Database, session: str, run: int, text: str) -> None:
    """Keep a text for a session; of those that it never fetches, only the latest are kept."""
    with database.write() as connection:
        connection.execute("INSERT INTO notices (session, run, text) VALUES (?, ?, ?)", (session, run, sendable(text)))
        connection.execute(
            "DELETE FROM notices WHERE session = ?1 AND number NOT IN "
            "(SELECT number FROM notices WHERE session = ?1 ORDER BY number DESC LIMIT ?2)",
            (session, KEPT_FOR_A_SESSION),
        )


class Inbox:
    """What one session is to be told. Costs next to nothing in a home without jobs."""

    def __init__(self, path: Path, session: str) -> None:
        self._path = path
        self._session = session

    def waiting(self) -> list[JobNotice]:
        """What was not fetched yet, the oldest first."""
        if not self._path.exists():
            return []
        database = open_database(self._path)
        try:
            with database.read() as connection:
                rows = connection.execute(
                    "SELECT number, text FROM notices WHERE session = ? ORDER BY number", (self._session,)
                ).fetchall()
        except ToolcribError as error:
            # A conversation is not held up by jobs that cannot be read; `toolcrib cron list` says it.
            logger.warning("results of scheduled jobs cannot be fetched: %s", error)
            return []
        finally:
            database.close()
        return [JobNotice(*row) for row in rows]

    def fetched(self, notices: list[JobNotice]) -> None:
        """These are part of the conversation now."""
        database = open_database(self._path)
        try:
            with database.write() as connection:
                connection.executemany("DELETE FROM notices WHERE number = ?", [(one.number,) for one in notices])
        except ToolcribError as error:
            logger.warning("results of scheduled jobs will be told again: %s", error)
        finally:
            database.close()
