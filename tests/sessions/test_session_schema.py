"""Older databases are migrated; newer, foreign and damaged files are left alone."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.sessions.conversations import says
from toolcrib.core.errors import SessionError
from toolcrib.sessions.database import STEPS, TABLES, Database, Migration, migrate
from toolcrib.sessions.search import search_messages
from toolcrib.sessions.store import SessionStore

VERSION_1_ROWS = """
INSERT INTO sessions (number, id, title, source, model, provider, cwd, created_at, updated_at, parent_id, parent_kind,
    toolsets, message_count, next_position) VALUES (1, 'old', 'T', 'cli', '', '', '', 1, 2, '', '', '["web"]', 3, 3);
INSERT INTO messages (session, position, state, role, created_at, turn_id, name, call_id, owner, spaceless, fields,
    called, text) VALUES
    (1, 0, 'live', 'user', 1, '', '', '', '', 0, '{"role":"user"}', '', 'an old question'),
    (1, 1, 'live', 'user', 1, '', '', '', '', 1, '{"role":"user"}', '', '东京的天气怎么样'),
    (1, 2, 'undone', 'user', 1, '', '', '', '', 0, '{"role":"user"}', '', 'a question taken back');
"""


def make_file(path: Path, steps: tuple[Migration, ...], rows: str = "") -> None:
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    for step in steps:
        for statement in step.statements:
            connection.execute(statement)
    connection.executescript(rows)
    connection.execute(f"PRAGMA user_version = {len(steps)}")
    connection.commit()
    connection.close()


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    number: int = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return number


def test_a_version_1_database_is_brought_up_to_date(home: Path) -> None:
    """Sessions of the first version can be read, and the newer search finds them."""
    path = home / "sessions.db"
    make_file(path, (TABLES,), VERSION_1_ROWS)
    store = SessionStore(path)

    assert store.get("old").toolsets == ("web",)
    assert [one.message.text for one in store.messages("old")] == ["an old question", "东京的天气怎么样"]
    assert [text for _, text in search_messages(store, "question")] == ["an old question"]
    assert len(search_messages(store, "的天气")) == 1
    assert version(path) == len(STEPS)
    store.append("old", says("a new question"))
    assert len(search_messages(store, "question")) == 2
    store.close()


def test_a_newer_database_is_left_alone(home: Path) -> None:
    """A file of a newer toolcrib is refused with advice, and not touched."""
    path = home / "sessions.db"
    make_file(path, STEPS)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    store = SessionStore(path)

    with pytest.raises(SessionError, match=r"newer toolcrib.*99.*update toolcrib"):
        store.list()
    assert version(path) == 99
    store.close()


def test_a_foreign_database_is_left_alone(home: Path) -> None:
    """A database of another program is refused, and not one byte of it changes."""
    path = home / "sessions.db"
    make_file(path, (Migration(("CREATE TABLE theirs (x)",)),))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 0")
    connection.close()
    content = path.read_bytes()
    store = SessionStore(path)

    with pytest.raises(SessionError, match="not toolcrib's"):
        store.create()
    assert path.read_bytes() == content
    store.close()


class RacedConnection(sqlite3.Connection):
    """A connection to a new file in which another process creates all tables before the n-th statement."""

    before: ClassVar[int]
    """The statement; counted down."""

    def execute(self, *args: Any) -> sqlite3.Cursor:
        RacedConnection.before -= 1
        if RacedConnection.before == 0:
            (_, _, file), *_ = super().execute("PRAGMA database_list").fetchall()
            other = SessionStore(Path(file))
            # Inside a transaction of ours it would have to wait, so it is not in between.
            other.database.busy_seconds = 0.0
            with contextlib.suppress(SessionError):
                other.create()
            other.close()
        return super().execute(*args)


class RacedDatabase(Database):
    """A database that another process opens first."""

    def _connect(self, path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, timeout=30.0, factory=RacedConnection)


@pytest.mark.parametrize("before", range(1, 12))
def test_another_process_may_create_the_tables_at_any_moment(home: Path, before: int) -> None:
    """Whichever statement another process gets in between, the file is never taken for a foreign one."""
    RacedConnection.before = before
    store = SessionStore(home / "sessions.db")
    store.database = RacedDatabase(home / "sessions.db")

    session = store.create()

    assert store.get(session.id).id == session.id
    store.close()


@pytest.mark.parametrize("content", [b"this is no database " * 500, b"SQLite format 3\x00" + b"\xff" * 8_000])
def test_a_damaged_file_is_kept_and_named(home: Path, content: bytes) -> None:
    """The error names the file, says that nothing was changed, and where to move it."""
    path = home / "sessions.db"
    home.mkdir()
    path.write_bytes(content)
    store = SessionStore(path)

    with pytest.raises(SessionError) as caught:
        store.create()

    assert f"mv {path} {path}.damaged-" in str(caught.value)
    assert path.read_bytes() == content
    store.close()


def test_damage_inside_the_file_is_said_when_it_is_met(home: Path) -> None:
    """Overwritten pages give an error message, not a wrong answer."""
    path = home / "sessions.db"
    store = SessionStore(path)
    session = store.create()
    for number in range(50):
        store.append(session.id, says(f"{number} " * 500))
    store.close()
    content = bytearray(path.read_bytes())
    content[8_192:] = b"\xee" * (len(content) - 8_192)
    path.write_bytes(bytes(content))
    again = SessionStore(path)

    with pytest.raises(SessionError, match="damaged"):
        again.messages(session.id)
    again.close()


def test_a_step_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    """Migration is all or nothing."""
    path = tmp_path / "folder" / "sessions.db"
    make_file(path, (TABLES,), VERSION_1_ROWS)
    connection = sqlite3.connect(path, isolation_level=None)
    steps = (TABLES, Migration(("CREATE TABLE more (x)",)), Migration(("DROP TABLE missing",)))

    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, str(path), lambda version: None, steps)

    assert version(path) == 1
    assert connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'more'").fetchone() is None
    connection.close()


def test_a_copy_is_kept_before_something_is_lost(home: Path) -> None:
    """Before the first destructive step the file is copied unchanged."""
    path = home / "sessions.db"
    make_file(path, (TABLES,), VERSION_1_ROWS)
    store = SessionStore(path)
    connection = sqlite3.connect(path, isolation_level=None)
    steps = (TABLES, Migration(("CREATE TABLE more (x)",)), Migration(("DELETE FROM messages",), destructive=True))

    migrate(connection, str(path), store.database.keep_copy, steps)

    copy = sqlite3.connect(home / "sessions.db.v1")
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    assert copy.execute("SELECT count(*) FROM messages").fetchone() == (3,)
    assert version(home / "sessions.db.v1") == 1
    copy.close()
    connection.close()
    store.close()


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A folder that is a file gives a clear error."""
    (tmp_path / "file").write_text("")
    store = SessionStore(tmp_path / "file" / "sessions.db")

    with pytest.raises(SessionError, match=r"cannot open .*sessions\.db"):
        store.create()


READ_ONLY = """
import os, sys
from toolcrib.core.errors import SessionError
from toolcrib.sessions.store import SessionStore
if os.geteuid() == 0:
    os.seteuid(65534)  # Root may write everywhere.
try:
    SessionStore(sys.argv[1]).create()
except SessionError as error:
    print(error)
"""


def test_a_read_only_file_is_named() -> None:
    """A file that is not writable gives a clear error."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "home" / "sessions.db"
        make_file(path, STEPS)
        path.chmod(0o444)

        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(path)], capture_output=True, text=True, timeout=60, check=True
        )

    assert f"cannot open the session database {str(path)!r} (Permission denied)" in done.stdout
