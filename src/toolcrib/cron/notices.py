"""Results of jobs that wait for the session that made the job: it hears each of them once."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from toolcrib.core.errors import ToolcribError
from toolcrib.cron.tables import open_database
from toolcrib.registry.results import sendable
from toolcrib.sessions.database import Database

logger = logging.getLogger(__name__)

KEPT_FOR_A_SESSION = 10
"""They come all at once, in one message: a session that was away for a month must not drown in them."""


class Notice(msgspec.Struct, frozen=True):
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

    def waiting(self) -> list[Notice]:
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
        return [Notice(*row) for row in rows]

    def fetched(self, notices: list[Notice]) -> None:
        """These are part of the conversation now."""
        database = open_database(self._path)
        try:
            with database.write() as connection:
                connection.executemany("DELETE FROM notices WHERE number = ?", [(one.number,) for one in notices])
        except ToolcribError as error:
            logger.warning("results of scheduled jobs will be told again: %s", error)
        finally:
            database.close()
