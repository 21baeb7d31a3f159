"""Reading the session database of a Hermes Agent home, old or new, without leaving a trace beside it."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from toolcrib.sessions.database import BUSY_SECONDS

SESSION_COLUMNS = (
    "id", "source", "model", "parent_session_id", "started_at", "ended_at", "end_reason", "title", "cwd",
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens",
    "estimated_cost_usd", "actual_cost_usd",
)  # fmt: skip
MESSAGE_COLUMNS = (
    "id", "role", "content", "tool_call_id", "tool_calls", "tool_name", "timestamp", "reasoning",
    "reasoning_content", "active", "compacted",
)  # fmt: skip
WAL_FORMAT = 2
"""What byte 18 of a file says that is written ahead into a log."""

Row = dict[str, Any]


@dataclass(frozen=True)
class HermesDatabase:
    """One database of sessions. It is opened anew for each look, so that its own program is never in the way."""

    address: str | None
    """Where a private copy is; None: the file itself is read."""
    file: Path

    def ids(self) -> list[tuple[int, str]]:
        """The sessions, the oldest first: where each is, and its id."""
        with self._reading() as connection:
            columns = _columns(connection, "sessions")
            if "id" not in columns:
                return []
            order = "ORDER BY started_at, rowid" if "started_at" in columns else "ORDER BY rowid"
            found = connection.execute(f"SELECT rowid, id FROM sessions WHERE typeof(id) = 'text' AND id <> '' {order}")
            return found.fetchall()

    def session(self, place: int) -> tuple[Row, list[Row]]:
        """A session and its messages in the order in which they were stored; rows lack what an old file lacks."""
        with self._reading() as connection:
            (session,) = _rows(connection, "sessions", SESSION_COLUMNS, "rowid = ?", place) or ({},)
            if not session or "session_id" not in _columns(connection, "messages"):
                return session, []
            of_session = "session_id = (SELECT id FROM sessions WHERE rowid = ?)"
            return session, _rows(connection, "messages", MESSAGE_COLUMNS, of_session, place)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        address = self.address or _address(self.file)
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.text_factory = _text
            # What is read of one session belongs together, also while it is being written.
            connection.execute("BEGIN")
            yield connection


@contextmanager
def opened(file: Path) -> Iterator[HermesDatabase]:
    """The database in a file. Raises sqlite3.Error or OSError, here or later, when it cannot be read."""
    file = file.resolve()
    log = _beside(file, "-wal")
    if not (_is_written_ahead(file) and _has_content(log) and not _beside(file, "-shm").exists()):
        yield HermesDatabase(None, file)
        return
    # Nobody has it open, but what was said last stands in the log alone. SQLite reads that only with an index of
    # the log beside it, which it would have to make there.
    with tempfile.TemporaryDirectory(prefix="toolcrib-import-") as folder:
        copy = Path(folder) / file.name
        shutil.copyfile(file, copy)
        shutil.copyfile(log, _beside(copy, "-wal"))
        yield HermesDatabase(f"file:{quote(str(copy))}?mode=rw", file)


def _address(file: Path) -> str:
    """How to open the file itself, so that nothing is made beside it."""
    in_use = _beside(file, "-wal").exists() and _beside(file, "-shm").exists()
    mode = "immutable=1" if _is_written_ahead(file) and not in_use else "mode=ro"
    return f"file:{quote(str(file))}?{mode}"


def _beside(file: Path, ending: str) -> Path:
    return file.with_name(file.name + ending)


def _is_written_ahead(file: Path) -> bool:
    with file.open("rb") as reading:
        return reading.read(19)[18:] == bytes([WAL_FORMAT])


def _has_content(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _rows(connection: sqlite3.Connection, table: str, wanted: Sequence[str], condition: str, place: int) -> list[Row]:
    present = _columns(connection, table)
    names = [name for name in wanted if name in present]
    found = connection.execute(f"SELECT {', '.join(names)} FROM {table} WHERE {condition} ORDER BY rowid", (place,))
    return [dict(zip(names, row, strict=True)) for row in found]
