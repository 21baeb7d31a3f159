"""One SQLite file: opened on first use, one writer at a time, with helpful error messages."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from toolcrib.config.files import OWNER_FILE, make_folder, why_unwritable
from toolcrib.config.os_errors import ANOTHER_HOME, explain_os_error
from toolcrib.core.errors import SessionError, ToolcribError

INDEXED_CHARS = 16_000
INDEXED_RESULT_CHARS = 4_000
"""How much of a message can be searched. Less of a tool result: results are long, and an append must stay quick."""


class Migration(Struct, frozen=True):
    """The statements that lead from one version to the next."""

    statements: tuple[str, ...]
    destructive: bool = False
    """It loses data, so the file is copied first."""


TABLES = Migration(
    (
        """CREATE TABLE sessions (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            title TEXT NOT NULL,
            source TEXT NOT NULL,
            model TEXT NOT NULL,
            provider TEXT NOT NULL,
            cwd TEXT NOT NULL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            ended_at REAL,
            end_reason TEXT NOT NULL DEFAULT '',
            parent_id TEXT NOT NULL,
            parent_kind TEXT NOT NULL,
            toolsets TEXT NOT NULL,
            message_count INTEGER NOT NULL DEFAULT 0,
            call_count INTEGER NOT NULL DEFAULT 0,
            input_tokens INTEGER NOT NULL DEFAULT 0,
            output_tokens INTEGER NOT NULL DEFAULT 0,
            cached_tokens INTEGER NOT NULL DEFAULT 0,
            cache_write_tokens INTEGER NOT NULL DEFAULT 0,
            reasoning_tokens INTEGER NOT NULL DEFAULT 0,
            cost_usd REAL,
            next_position INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX sessions_by_parent ON sessions (parent_id) WHERE parent_id <> ''",
        # Separate from the sessions, whose rows are rewritten with every message.
        "CREATE TABLE prompts (session INTEGER PRIMARY KEY, text TEXT NOT NULL)",
        """CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            session INTEGER NOT NULL,
            position INTEGER NOT NULL,
            state TEXT NOT NULL DEFAULT 'live',
            role TEXT NOT NULL,
            created_at REAL NOT NULL,
            turn_id TEXT NOT NULL,
            name TEXT NOT NULL,
            call_id TEXT NOT NULL,
            owner TEXT NOT NULL,
            spaceless INTEGER NOT NULL,
            usage TEXT,
            fields BLOB NOT NULL,
            called TEXT NOT NULL,
            text TEXT NOT NULL
        )""",
        # A summary shares the position of the first message it replaces, and sorts before it.
        "CREATE INDEX messages_in_order ON messages (session, position, id DESC)",
        """CREATE TABLE calls (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            session INTEGER NOT NULL,
            call_id TEXT NOT NULL,
            tool TEXT NOT NULL,
            arguments TEXT NOT NULL,
            effects TEXT NOT NULL,
            owner TEXT NOT NULL,
            started_at REAL NOT NULL,
            finished_at REAL,
            status TEXT NOT NULL DEFAULT 'started',
            result BLOB
        )""",
        "CREATE INDEX calls_by_id ON calls (session, call_id)",
        """CREATE TABLE side_usage (
            number INTEGER PRIMARY KEY,
            session INTEGER NOT NULL,
            purpose TEXT NOT NULL,
            created_at REAL NOT NULL,
            usage TEXT NOT NULL
        )""",
        "CREATE INDEX side_usage_by_session ON side_usage (session)",
    )
)

SEARCH = Migration(
    (
        f"""CREATE VIEW searchable AS SELECT
            id, state, spaceless,
            substr(text, 1, CASE role WHEN 'tool' THEN {INDEXED_RESULT_CHARS} ELSE {INDEXED_CHARS} END)
                || CASE called WHEN '' THEN '' ELSE char(10) || called END AS text
            FROM messages WHERE role <> 'system'""",
        # Prefixes of three letters are indexed too: without that, the most frequent ones would take seconds.
        """CREATE VIRTUAL TABLE words USING fts5(
            text, content='searchable', content_rowid='id', tokenize='unicode61 remove_diacritics 2', prefix='3')""",
        # Only for messages in scripts without spaces, because it is several times as large.
        """CREATE VIRTUAL TABLE trigrams USING fts5(
            text, content='searchable', content_rowid='id', tokenize='trigram')""",
        "CREATE INDEX spaceless_messages ON messages (id) WHERE spaceless",
        "INSERT INTO words (rowid, text) SELECT id, text FROM searchable WHERE state <> 'undone'",
        "INSERT INTO trigrams (rowid, text) SELECT id, text FROM searchable WHERE state <> 'undone' AND spaceless",
        """CREATE TRIGGER message_added AFTER INSERT ON messages WHEN new.state <> 'undone' BEGIN
            INSERT INTO words (rowid, text) SELECT id, text FROM searchable WHERE id = new.id;
        END""",
        """CREATE TRIGGER spaceless_message_added AFTER INSERT ON messages
            WHEN new.state <> 'undone' AND new.spaceless BEGIN
            INSERT INTO trigrams (rowid, text) SELECT id, text FROM searchable WHERE id = new.id;
        END""",
        """CREATE TRIGGER message_undone AFTER UPDATE OF state ON messages
            WHEN old.state <> 'undone' AND new.state = 'undone' BEGIN
            INSERT INTO words (words, rowid, text) SELECT 'delete', id, text FROM searchable WHERE id = old.id;
            INSERT INTO trigrams (trigrams, rowid, text)
                SELECT 'delete', id, text FROM searchable WHERE id = old.id AND spaceless;
        END""",
        """CREATE TRIGGER message_deleted BEFORE DELETE ON messages WHEN old.state <> 'undone' BEGIN
            INSERT INTO words (words, rowid, text) SELECT 'delete', id, text FROM searchable WHERE id = old.id;
            INSERT INTO trigrams (trigrams, rowid, text)
                SELECT 'delete', id, text FROM searchable WHERE id = old.id AND spaceless;
        END""",
    )
)

OWNERS = Migration(("ALTER TABLE sessions ADD COLUMN owner TEXT NOT NULL DEFAULT ''",))

# Calls, processes and records may outlive a session. Without this they would become those of the home's owner.
DELETED_OWNERS = Migration(
    (
        "CREATE TABLE deleted_owners (id TEXT PRIMARY KEY, owner TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TRIGGER session_deleted AFTER DELETE ON sessions WHEN old.owner <> '' BEGIN
            INSERT OR REPLACE INTO deleted_owners VALUES (old.id, old.owner);
        END""",
    )
)

STEPS: tuple[Migration, ...] = (TABLES, SEARCH, OWNERS, DELETED_OWNERS)


def migrate(
    connection: sqlite3.Connection,
    name: str,
    keep_copy: Callable[[int], None],
    steps: Sequence[Migration],
    error: type[ToolcribError] = SessionError,
) -> None:
    """Bring a database to the version that `steps` lead to: all of them or none.

    `keep_copy` is called with the file's version before the first destructive step; it copies the file unchanged,
    because nothing is committed by then.
    """
    if _version(connection) == len(steps):
        return
    with _transaction(connection, "BEGIN IMMEDIATE"):
        # Read inside the transaction: another process may have migrated the file since.
        version = _checked_version(connection, name, len(steps), error)
        missing = steps[version:]
        if any(step.destructive for step in missing):
            keep_copy(version)
        for step in missing:
            for statement in step.statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")


def check_is_ours(
    connection: sqlite3.Connection, name: str, steps: Sequence[Migration], error: type[ToolcribError] = SessionError
) -> None:
    """Raise an error for a database of a newer toolcrib or of another program; changes nothing."""
    if _version(connection) != len(steps):
        with _transaction(connection, "BEGIN"):
            _checked_version(connection, name, len(steps), error)


def _checked_version(connection: sqlite3.Connection, name: str, latest: int, error: type[ToolcribError]) -> int:
    """The version; only inside a transaction, because a process that creates the tables changes both at once."""
    version = _version(connection)
    if version > latest:
        raise error(
            f"the database {name!r} was written by a newer toolcrib (schema version {version}; this toolcrib "
            f"supports {latest}); update toolcrib, or set TOOLCRIB_HOME to another folder"
        )
    if version == 0 and has_tables(connection):
        raise error(f"{name!r} is a database, but not toolcrib's; move it away, or set TOOLCRIB_HOME to another folder")
    return version


def has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # Committing ends the transaction, and so does a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


BUSY_SECONDS = 15.0
"""How long one process waits for another to finish writing."""
CHECKPOINT_PAGES = 4000
"""How many pages the write-ahead log holds before they move into the file, which is the slow step."""
STATEMENTS_KEPT = 256
SEARCH_CACHE_KIB = 32_768

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
UNWRITABLE = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
)


class Database:
    """The connections of one process to one file; a path of `None` means memory only. Thread-safe.

    `steps` create its tables, `what` names it in messages, and failures are raised as `error`.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        steps: Sequence[Migration] = STEPS,
        what: str = "session database",
        error: type[ToolcribError] = SessionError,
    ) -> None:
        self.path = path
        self._steps = steps
        self._what = what
        self._error = error
        self._lock = threading.RLock()
        self._search_lock = threading.RLock()
        self._reader_lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._search_connection: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._read_only_connection: sqlite3.Connection | None = None
        self._abandoned: list[sqlite3.Connection] = []
        self._pid = os.getpid()
        self._closed = False
        self.busy_seconds = BUSY_SECONDS

    @property
    def exists(self) -> bool:
        """Whether there is anything to read; does not create the file."""
        return self._connection is not None or (self.path is not None and self.path.exists())

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it happens or none. It survives a killed process and, with `durable`, a power cut."""
        with self._lock, self._translate_errors():
            connection = self._open()
            if durable:
                connection.execute("PRAGMA synchronous = FULL")
            try:
                with _transaction(connection, "BEGIN IMMEDIATE"):
                    yield connection
            finally:
                if durable:
                    connection.execute("PRAGMA synchronous = NORMAL")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A connection for single statements that change nothing. Works on a full or read-only disk, too."""
        is_open = self.path is not None and self._connection is not None and self._pid == os.getpid()
        if not self._lock.acquire(blocking=not is_open):
            # Another thread writes, or waits for a process that does; who reads need not wait for it.
            with self._reader_lock, self._translate_errors():
                yield self._open_reader()
            return
        try:
            with self._translate_errors():
                yield self._open_to_read()
        finally:
            self._lock.release()

    def _open_reader(self) -> sqlite3.Connection:
        if self._reader is None:
            if self._closed or self.path is None:
                raise self._error(f"the {self._what} {self.name!r} is closed; open it again")
            self._reader = self._connect(self.path)
            self._reader.execute("PRAGMA query_only = ON")
        return self._reader

    @contextmanager
    def search(self) -> Iterator[sqlite3.Connection]:
        """A second connection for long reads, so that appends don't wait for them."""
        if self.path is None:
            with self.read() as connection:
                yield connection
            return
        with self._lock, self._translate_errors():
            connection = self._open_to_read()
        with self._search_lock, self._translate_errors():
            if connection is self._read_only_connection:
                yield connection
                return
            if self._search_connection is None:
                self._search_connection = self._connect(self.path)
                self._search_connection.execute("PRAGMA query_only = ON")
                self._search_connection.execute(f"PRAGMA cache_size = -{SEARCH_CACHE_KIB}")
            yield self._search_connection

    def close(self) -> None:
        """Close the connections. Any later use raises SessionError."""
        with self._search_lock, self._reader_lock, self._lock:
            self._closed = True
            if self._pid == os.getpid():
                for connection in self._connections():
                    connection.close()
            self._connection = self._search_connection = self._reader = self._read_only_connection = None

    def _connections(self) -> list[sqlite3.Connection]:
        opened = (self._search_connection, self._reader, self._read_only_connection, self._connection)
        return [connection for connection in opened if connection is not None]

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._pid == os.getpid():
            return self._connection
        if self._closed:
            raise self._error(f"the {self._what} {self.name!r} is closed; open it again")
        if self._pid != os.getpid():
            # A forked child must neither use nor close its parent's connections.
            self._abandoned += self._connections()
            self._connection = self._search_connection = self._reader = self._read_only_connection = None
            self._pid = os.getpid()
        connection = self._open_memory() if self.path is None else self._open_file(self.path)
        self._connection = connection
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        """The usual connection; where the file cannot be written, one that only reads what is there."""
        try:
            return self._open()
        except (ToolcribError, sqlite3.Error) as error:
            if self.path is None or not _is_unwritable(error) or not os.access(self.path, os.R_OK):
                raise
            if self._read_only_connection is None:
                self._read_only_connection = self._open_unwritable(self.path)
            if self._read_only_connection is None:
                raise
            return self._read_only_connection

    def _open_unwritable(self, path: Path) -> sqlite3.Connection | None:
        """A connection that writes nothing, not even beside the file; None if the file is of another version."""
        log = path.with_name(f"{path.name}-wal")
        # An empty log holds nothing that the file lacks.
        mode = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
        connection = self._connect(f"file:{quote(str(path))}?{mode}")
        with ExitStack() as on_error:
            on_error.callback(connection.close)
            if _version(connection) != len(self._steps):
                return None
            on_error.pop_all()
        return connection

    def _open_memory(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS_KEPT
        )
        migrate(connection, self.name, self.keep_copy, self._steps, self._error)
        return connection

    def _open_file(self, path: Path) -> sqlite3.Connection:
        try:
            make_folder(path.parent)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, OWNER_FILE))
        except OSError as error:
            message = explain_os_error(error, f"open the {self._what}", path, otherwise=ANOTHER_HOME)
            raise self._error(message) from error
        connection = self._connect(path)
        with ExitStack() as on_error:
            on_error.callback(connection.close)
            # Before anything is written: switching a foreign database to write-ahead logging would change it.
            check_is_ours(connection, self.name, self._steps, self._error)
            _use_wal(connection, self.busy_seconds)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            migrate(connection, self.name, self.keep_copy, self._steps, self._error)
            on_error.pop_all()
        return connection

    def _connect(self, path: Path | str) -> sqlite3.Connection:
        """A new connection to a file, or to a URI of SQLite."""
        return sqlite3.connect(
            path,
            uri=isinstance(path, str),
            timeout=self.busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS_KEPT,
        )

    def keep_copy(self, version: int) -> None:
        """Copy the file as it is on disk, so that the user can return to the previous version."""
        if self.path is None:
            return
        copy = self.path.with_name(f"{self.path.name}.v{version}")
        os.close(os.open(copy, os.O_RDWR | os.O_CREAT, OWNER_FILE))
        source, target = self._connect(self.path), sqlite3.connect(copy)
        try:
            source.backup(target)
        finally:
            source.close()
            target.close()

    @property
    def name(self) -> str:
        return ":memory:" if self.path is None else str(self.path)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(self._explain(error)) from error

    def _explain(self, error: sqlite3.Error) -> str:
        # The basic code, without the details of the extended one.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        name = self.name
        if code in DAMAGED:
            aside = f"{name}.damaged-{time.strftime('%Y%m%d')}"
            return (
                f"the {self._what} {name!r} is damaged ({error}); nothing was changed. Move it away with "
                f"`mv {name} {aside}` to start with an empty one, or try `sqlite3 {name} .recover` on a copy"
            )
        # SQLite does not pass on what the system said, so ask the system again.
        problem = why_unwritable(self.path.parent) if code in UNWRITABLE and self.path is not None else None
        if problem is not None:
            return explain_os_error(problem, "write to", name, otherwise=ANOTHER_HOME)
        if code == sqlite3.SQLITE_FULL:
            return f"the disk is full, so nothing was written to {name!r}; make room and try again"
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return (
                f"cannot write to {name!r} ({error}); check who owns the file and its folder, and that it is writable"
            )
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            waited = f"{self.busy_seconds:.0f} seconds"
            return f"another process has been writing to {name!r} for {waited}; try again when it has finished"
        if code == sqlite3.SQLITE_IOERR:
            return f"cannot read or write {name!r} ({error}); check the disk and its free space"
        return f"cannot use the {self._what} {name!r} ({error}); run `toolcrib doctor`"


def _is_unwritable(error: ToolcribError | sqlite3.Error) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in UNWRITABLE
    return isinstance(error.__cause__, OSError)


def _use_wal(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Switch to write-ahead logging, which is stored in the file."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            # Here SQLite does not wait for another process that switches at the same time.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.005)
