"""Where the result of a run goes, as the option `deliver` says, and the notices that wait for a session.

local              stored with the run, which always happens
origin             also sent to the session that created the job
file:PATH          also appended to a file
command:COMMAND    also piped to a shell command
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from toolcrib.core.errors import ToolcribError, UsageError, nearest_names
from toolcrib.registry.results import sendable
from toolcrib.sessions.database import Database

KINDS = ("local", "origin", "file", "command")
CHOICES = "`local`, `origin`, `file:PATH` or `command:COMMAND`"


class Destination(msgspec.Struct, frozen=True):
    """One destination for results."""

    kind: str
    target: str = ""
    """The path or the command."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" if self.target else self.kind


def parse_destination(text: str, folder: str) -> Destination:
    """Parse `deliver`; a path is resolved relative to the folder. Raises UsageError."""
    kind, colon, target = text.strip().partition(":")
    kind, target = kind.strip().lower() or "local", target.strip()
    if kind in ("file", "command"):
        if not target:
            example = "file:~/report.txt" if kind == "file" else "command:wall"
            raise UsageError(f"{text!r} does not say which {kind}; write, for example, `{example}`")
        return Destination(kind, _resolve_path(target, folder) if kind == "file" else target)
    if kind in KINDS and not colon:
        return Destination(kind)
    near = nearest_names(kind, KINDS, limit=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"cannot deliver results to {text!r}: no messaging platform with that name is configured; {meant}use {CHOICES}"
    )


def stored_destination(text: str) -> Destination:
    """The destination stored with a job. Its path is not resolved again, because that path is what was approved."""
    kind, _, target = text.partition(":")
    return Destination(kind, target)


def _resolve_path(path: str, folder: str) -> str:
    if "\0" in path:
        raise UsageError(f"{path!r} is not a valid path; remove the NUL byte")
    return os.path.realpath(os.path.join(folder or os.curdir, os.path.expanduser(path)))  # noqa: PTH111, PTH118


logger = logging.getLogger(__name__)

MAX_NOTICES_PER_SESSION = 10
"""They arrive in one message, and a session that was away for a month must not drown in them."""


class JobNotice(msgspec.Struct, frozen=True):
    """A message for a session."""

    number: int
    text: str


def leave_notice(database: Database, session: str, run: int, text: str) -> None:
    """Store a message for a session; if it never fetches them, only the latest are kept."""
    with database.write() as connection:
        connection.execute("INSERT INTO notices (session, run, text) VALUES (?, ?, ?)", (session, run, sendable(text)))
        connection.execute(
            "DELETE FROM notices WHERE session = ?1 AND number NOT IN "
            "(SELECT number FROM notices WHERE session = ?1 ORDER BY number DESC LIMIT ?2)",
            (session, MAX_NOTICES_PER_SESSION),
        )


class Inbox:
    """The notices for one session. Costs next to nothing in a home without jobs."""

    def __init__(self, path: Path, session: str) -> None:
        self._path = path
        self._session = session

    def _open(self) -> Database:
        # Brings the time zones along, and few homes have jobs.
        from toolcrib.cron.store import open_database  # noqa: PLC0415

        return open_database(self._path)

    @property
    def exists(self) -> bool:
        """Whether this home has jobs at all."""
        return self._path.exists()

    def waiting(self) -> list[JobNotice]:
        """Notices not fetched yet, oldest first."""
        if not self.exists:
            return []
        database = self._open()
        try:
            with database.read() as connection:
                rows = connection.execute(
                    "SELECT number, text FROM notices WHERE session = ? ORDER BY number", (self._session,)
                ).fetchall()
        except ToolcribError as error:
            # Unreadable jobs must not hold up a conversation; `toolcrib cron list` reports them.
            logger.warning("cannot fetch the results of scheduled jobs: %s", error)
            return []
        finally:
            database.close()
        return [JobNotice(*row) for row in rows]

    def fetched(self, notices: list[JobNotice]) -> None:
        """Delete notices that are now part of the conversation."""
        database = self._open()
        try:
            with database.write() as connection:
                connection.executemany("DELETE FROM notices WHERE number = ?", [(one.number,) for one in notices])
        except ToolcribError as error:
            logger.warning("results of scheduled jobs will be reported again: %s", error)
        finally:
            database.close()
