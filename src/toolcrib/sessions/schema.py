"""The tables of the session database, as the steps that lead from each version to the next."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from msgspec import Struct

from toolcrib.core.errors import SessionError

INDEXED_CHARS = 16_000
INDEXED_RESULT_CHARS = 4_000
"""What of a message can be searched. Of a tool's result it is less: those are long, and an append must stay quick."""


class Step(Struct, frozen=True):
    """What makes one version out of the one before."""

    statements: tuple[str, ...]
    destructive: bool = False
    """Something is lost by it, so a copy of the file is kept."""


TABLES = Step(
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
        # Apart from the sessions, whose rows are written anew with every message.
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
        # A summary has the place of the first message that it stands for, and comes before it.
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

SEARCH = Step(
    (
        f"""CREATE VIEW searchable AS SELECT
            id, state, spaceless,
            substr(text, 1, CASE role WHEN 'tool' THEN {INDEXED_RESULT_CHARS} ELSE {INDEXED_CHARS} END)
                || CASE called WHEN '' THEN '' ELSE char(10) || called END AS text
            FROM messages WHERE role <> 'system'""",
        # Beginnings of three letters are indexed too: without that, the most frequent ones would take seconds.
        """CREATE VIRTUAL TABLE words USING fts5(
            text, content='searchable', content_rowid='id', tokenize='unicode61 remove_diacritics 2', prefix='3')""",
        # Only for messages in scripts that are written without spaces: it is several times as large.
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

STEPS: tuple[Step, ...] = (TABLES, SEARCH)


def migrate(connection: sqlite3.Connection, name: str, keep_copy: Callable[[int], None], steps: Sequence[Step]) -> None:
    """Bring a database to the version that `steps` lead to: all of them or none.

    `keep_copy` is called with the version of the file before the first destructive step; what it copies is the
    file as it was, because nothing is committed by then.
    """
    if _version(connection, name, len(steps)) == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done it in between.
        version = _version(connection, name, len(steps))
        missing = steps[version:]
        if any(step.destructive for step in missing):
            keep_copy(version)
        for step in missing:
            for statement in step.statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, name: str, latest: int) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > latest:
        raise SessionError(
            f"the database {name!r} was written by a newer toolcrib (version {version} of its tables, this one "
            f"knows {latest}); update toolcrib, or set TOOLCRIB_HOME to another folder"
        )
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise SessionError(
            f"{name!r} is a database, but none of toolcrib's; move it away, or set TOOLCRIB_HOME to another folder"
        )
    return version
