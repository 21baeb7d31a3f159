"""Where undo stores what it needs: a database of calls, changes and contents, readable only by its owner.

    cache/undo/undo.db           the calls that changed files, what each of them changed, contents of small files
    cache/undo/contents/DIGEST   the contents of large files

Each content is stored once, under its SHA-256. A transaction survives a killed process; a power cut may take the last
ones, but leaves the database whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.config.settings import UndoSettings
from toolcrib.core.errors import ToolcribError
from toolcrib.process_identity import Identity, is_alive, own_identity
from toolcrib.sessions.database import Database, Migration
from toolcrib.undo.files import MISSING, FileState

DIRECT = "direct"
"""The session of calls that have no other."""
UNDO, REDO = "toolcrib undo", "toolcrib redo"
"""The tool names of undos and redos; no real tool can have them."""
MEGABYTE = 1_000_000
LARGE_BYTES = 128_000
"""Contents from this size on are files of their own, because SQLite takes longer to write them."""
CHECKED_SHARE = 1 / 40
"""Each time the store has grown by this share of its limit, its size is checked."""
ROOM_LEFT = 0.8
"""The store is pruned to this share of its limit, because pruning takes a while."""
DROPPED = "its copy was dropped to make room for newer ones"
DAMAGED = "the copy is damaged"

ChangeKey = tuple[str, str]
"""A change: the id of its call, and its path."""
Outcome = Literal["running", "finished", "interrupted", "detached"]
"""detached: its command continued in the background."""

STEPS = (
    Migration(
        (
            "CREATE TABLE contents (digest BLOB PRIMARY KEY, content BLOB NOT NULL)",
            """CREATE TABLE calls (
                id TEXT PRIMARY KEY,
                session TEXT NOT NULL,
                position INTEGER NOT NULL,
                ended INTEGER,
                outcome TEXT NOT NULL,
                call_id TEXT NOT NULL,
                workspace TEXT NOT NULL,
                is_opaque INTEGER NOT NULL,
                process TEXT NOT NULL,
                at REAL NOT NULL,
                about TEXT NOT NULL
            )""",
            "CREATE INDEX calls_by_session ON calls (session, position)",
            "CREATE INDEX open_calls ON calls (workspace) WHERE ended IS NULL",
            """CREATE TABLE changes (
                call TEXT NOT NULL,
                path BLOB NOT NULL,
                before BLOB NOT NULL,
                after BLOB,
                is_during INTEGER NOT NULL DEFAULT 0,
                is_undone INTEGER NOT NULL DEFAULT 0,
                PRIMARY KEY (call, path)
            ) WITHOUT ROWID""",
            "CREATE TABLE workspaces (folder TEXT PRIMARY KEY, version INTEGER NOT NULL, used REAL NOT NULL, "
            "beyond TEXT NOT NULL)",
            "CREATE TABLE folders (workspace TEXT NOT NULL, path BLOB NOT NULL, listing BLOB NOT NULL, "
            "PRIMARY KEY (workspace, path))",
            "CREATE TABLE counter (value INTEGER NOT NULL)",
            "INSERT INTO counter VALUES (0)",
        )
    ),
    Migration(
        (
            "DELETE FROM folders",
            "DELETE FROM workspaces",
            "ALTER TABLE workspaces ADD COLUMN rules BLOB NOT NULL DEFAULT x''",
        )
    ),
    Migration(
        (
            "DROP TABLE folders",
            "DELETE FROM workspaces",
            "ALTER TABLE workspaces ADD COLUMN tree BLOB NOT NULL DEFAULT x''",
        )
    ),
    Migration(("DELETE FROM workspaces",)),
)
FORGET_SESSION = (
    "DELETE FROM changes WHERE call IN (SELECT id FROM calls WHERE session = ?)",
    "DELETE FROM calls WHERE session = ?",
)
encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FileState).decode
Changes = dict[str, tuple[FileState, FileState]]
"""What was at each changed path, and what is there now."""
Tree = dict[bytes, dict[bytes, FileState]]
"""What is in each folder of a workspace, by name; folders of what git ignores have a slash in front."""
decode_tree = msgspec.msgpack.Decoder(Tree).decode


class UndoStoreError(ToolcribError):
    """The store of undo cannot be used."""


class CallStart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that is about to run."""

    id: str
    at: float
    tool: str
    summary: str = ""
    """The call in one line."""
    call_id: str = ""
    turn_id: str = ""
    workspace: str = ""
    """The folder that is scanned before and after the call; empty for a call that names all files it changes."""
    is_opaque: bool = False
    """Whether it may change files that it does not name."""
    named: tuple[str, ...] = ()
    """The paths that the call names; what changes there is its doing."""
    environment: dict[str, Any] | None = None
    """The spec of the environment of the files; None means this machine."""
    undoes: tuple[ChangeKey, ...] = ()
    """For an undo or a redo: the changes that it undoes, each as call and path."""
    notes: tuple[str, ...] = ()
    """What is not saved."""


def _start(about: str) -> CallStart:
    return msgspec.convert(json.loads(about), CallStart)


def _about(start: CallStart) -> str:
    # Paths may contain bytes that are no text, which msgspec's JSON refuses.
    return json.dumps(msgspec.to_builtins(start))


@dataclass(slots=True)
class StoredChange:
    """What one call did to one path."""

    call: StoredCall
    path: str
    before: FileState
    after: FileState | None
    """None if it is unknown."""
    during: bool
    """Whether something else may have changed it while the call ran."""
    undone: bool

    @property
    def key(self) -> ChangeKey:
        return self.call.id, self.path


@dataclass(slots=True)
class StoredCall:
    """One call, as the store describes it."""

    started: CallStart
    order: int
    ended_order: int
    outcome: Outcome
    paths: dict[str, StoredChange] = field(default_factory=dict)
    """Every path that was looked at."""

    @property
    def id(self) -> str:
        return self.started.id

    @property
    def is_call(self) -> bool:
        return self.started.tool not in (UNDO, REDO)

    @property
    def changes(self) -> list[StoredChange]:
        """What the call changed; for an interrupted call, all that it may have changed."""
        return [one for one in self.paths.values() if one.after is None or not one.before.is_same(one.after)]


class UndoStore(Database):
    """The store of one home. Safe for threads and processes."""

    def __init__(
        self, folder: Path, settings: UndoSettings | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(folder / "undo.db", steps=STEPS, what="undo store", error=UndoStoreError)
        self.folder = folder
        self.clock = clock
        self.settings = settings or UndoSettings()
        self.process = msgspec.json.encode(own_identity()).decode()
        self._contents = folder / "contents"
        self._added = 0

    # Transactions

    @contextlib.contextmanager
    def write(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        with super().write(durable=durable) as connection:
            yield connection
        if self._added > self.settings.max_total_mb * MEGABYTE * CHECKED_SHARE:
            self._added = 0
            self._prune()

    def _rows(self, statement: str, *values: object) -> list[Any]:
        """What a query gives; nothing if there is no store yet, which is not made for that."""
        if not self.exists:
            return []
        with self.read() as connection:
            return connection.execute(statement, values).fetchall()

    # Contents

    def add_content(self, connection: sqlite3.Connection, digest: bytes, content: bytes) -> None:
        """Store the content of a file, unless it is there already."""
        self._added += len(content)
        if len(content) < LARGE_BYTES:
            connection.execute("INSERT OR IGNORE INTO contents VALUES (?, ?)", (digest, content))
            return
        path = f"{self._contents}/{digest.hex()}"
        with contextlib.suppress(OSError):
            if os.stat(path).st_size == len(content):  # noqa: PTH116 - quick
                return
        temporary, flags = f"{path}.{os.getpid()}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            descriptor = os.open(temporary, flags, OWNER_FILE)
        except FileNotFoundError:
            make_folder(self._contents)
            descriptor = os.open(temporary, flags, OWNER_FILE)
        with contextlib.ExitStack() as on_error:
            on_error.callback(Path(temporary).unlink, missing_ok=True)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            os.rename(temporary, path)  # noqa: PTH104 - quick
            # Not in any case: an unlink in vain may wait for the disk.
            on_error.pop_all()

    def content(self, state: FileState) -> bytes:
        """The stored content of a file; raises OSError with the reason if there is no copy."""
        if state.kind != "file" or state.size == 0:
            return b""
        rows = self._rows("SELECT content FROM contents WHERE digest = ?", state.digest)
        try:
            content: bytes = rows[0][0] if rows else (self._contents / state.digest.hex()).read_bytes()
        except FileNotFoundError:
            raise OSError(DROPPED) from None
        if hashlib.sha256(content).digest() != state.digest:
            raise OSError(DAMAGED)
        return content

    def is_kept(self, state: FileState) -> bool:
        if state.kind != "file" or state.size == 0 or not state.digest:
            return True
        rows = self._rows("SELECT 1 FROM contents WHERE digest = ?", state.digest)
        return bool(rows) or (self._contents / state.digest.hex()).exists()

    # Calls

    def begin(
        self, connection: sqlite3.Connection, session_id: str, start: CallStart, states: Mapping[str, FileState]
    ) -> None:
        """Record a call before it runs, with the states of the paths that it names."""
        connection.execute(
            "INSERT INTO calls VALUES (?, ?, ?, NULL, 'running', ?, ?, ?, ?, ?, ?)",
            (
                start.id,
                session_id or DIRECT,
                _next(connection),
                start.call_id or start.id,
                start.workspace,
                start.is_opaque,
                self.process,
                start.at,
                _about(start),
            ),
        )
        rows = [(start.id, os.fsencode(path), encode(state)) for path, state in states.items()]
        connection.executemany("INSERT INTO changes (call, path, before) VALUES (?, ?, ?)", rows)

    def end(
        self,
        connection: sqlite3.Connection,
        call: str,
        after: Changes,
        notes: Sequence[str] = (),
    ) -> None:
        """Record the states before and after a call; one that changed nothing is forgotten."""
        rows = [
            (call, os.fsencode(path), encode(old), encode(new))
            for path, (old, new) in after.items()
            if not old.is_same(new)
        ]
        connection.execute("DELETE FROM changes WHERE call = ? AND after IS NULL", (call,))
        connection.executemany(
            "INSERT INTO changes (call, path, before, after) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (call, path) DO UPDATE SET after = excluded.after",
            rows,
        )
        self._close_call(connection, call, "finished", notes)

    @staticmethod
    def _close_call(connection: sqlite3.Connection, call: str, outcome: Outcome, notes: Sequence[str] = ()) -> None:
        about = connection.execute("SELECT about FROM calls WHERE id = ?", (call,)).fetchone()
        if about is None:
            return
        start = _start(about[0])
        start = replace(start, notes=tuple(dict.fromkeys((*start.notes, *notes))))
        is_empty = connection.execute("SELECT 1 FROM changes WHERE call = ?", (call,)).fetchone() is None
        if is_empty and not start.notes:
            connection.execute("DELETE FROM calls WHERE id = ?", (call,))
            return
        connection.execute(
            "UPDATE calls SET ended = ?, outcome = ?, about = ? WHERE id = ?",
            (_next(connection), outcome, _about(start), call),
        )

    def has_changes(self, connection: sqlite3.Connection, call: str) -> bool:
        asked = "SELECT 1 FROM changes WHERE call = ? AND after IS NOT NULL"
        return connection.execute(asked, (call,)).fetchone() is not None

    def set_detached(self, call: str) -> None:
        """Record that the command of a call continues in the background; what changes from now on may be its doing."""
        with self.write() as connection:
            connection.execute("UPDATE calls SET outcome = 'detached' WHERE id = ?", (call,))

    def spread(
        self,
        connection: sqlite3.Connection,
        workspace: str,
        changes: Changes,
        ended: Iterable[str] = (),
    ) -> None:
        """Add what a scan found to every call that is running in the workspace, and close those that are over."""
        opened = connection.execute(
            "SELECT id, call_id, is_opaque, process, outcome, position, about FROM calls "
            "WHERE workspace = ? AND ended IS NULL",
            (workspace,),
        ).fetchall()
        opaque = {call_id for _, call_id, is_opaque, *_ in opened if is_opaque}
        for call, call_id, is_opaque, process, outcome, position, about in opened:
            if changes:
                others = self._named_by_others(connection, call_id, position)
                named = _start(about).named
                is_shared = not is_opaque or bool(opaque - {call_id})
                # A named path may need new folders above it.
                above = {str(one) for path in named for one in PurePosixPath(path).parents}
                rows = []
                for path, (old, new) in changes.items():
                    raw, is_own = os.fsencode(path), path in above or is_below(path, named)
                    is_during = not is_own and (is_shared or raw in others)
                    rows.append((call, raw, encode(old), encode(new), is_during))
                connection.executemany(
                    "INSERT INTO changes (call, path, before, after, is_during) VALUES (?, ?, ?, ?, ?) ON CONFLICT "
                    "(call, path) DO UPDATE SET after = excluded.after, is_during = is_during OR excluded.is_during",
                    rows,
                )
            if call in ended or (process != self.process and not _is_alive(process)):
                self._close_call(connection, call, "detached" if outcome == "detached" else "interrupted")

    @staticmethod
    def _named_by_others(connection: sqlite3.Connection, call_id: str, position: int) -> set[bytes]:
        """The paths that calls without a scan changed since a position, besides those of the same call."""
        rows = connection.execute(
            "SELECT path FROM changes JOIN calls ON changes.call = calls.id WHERE calls.workspace = '' "
            "AND calls.call_id <> ? AND (calls.ended IS NULL OR calls.ended > ?)",
            (call_id, position),
        )
        return {path for (path,) in rows}

    def mark(self, connection: sqlite3.Connection, keys: Sequence[ChangeKey], *, undone: bool) -> None:
        """Record which changes, each as call and path, are undone or redone."""
        rows = [(undone, call, os.fsencode(path)) for call, path in keys]
        connection.executemany("UPDATE changes SET is_undone = ? WHERE call = ? AND path = ?", rows)

    def calls(self, session_id: str) -> list[StoredCall]:
        """Every call of a session, oldest first."""
        found: dict[str, StoredCall] = {}
        asked = "SELECT about, position, ended, outcome FROM calls WHERE session = ? ORDER BY position"
        for about, position, ended, outcome in self._rows(asked, session_id or DIRECT):
            start = _start(about)
            found[start.id] = StoredCall(start, position, -1 if ended is None else ended, outcome)
        changes = self._rows(
            "SELECT call, path, before, after, is_during, is_undone FROM changes JOIN calls "
            "ON changes.call = calls.id WHERE calls.session = ?",
            session_id or DIRECT,
        )
        for call, raw, before, after, is_during, is_undone in changes:
            if call not in found:  # It began a moment ago.
                continue
            stored, path, left = found[call], os.fsdecode(raw), _decode(after) if after is not None else None
            stored.paths[path] = StoredChange(stored, path, _decode(before), left, bool(is_during), bool(is_undone))
        return list(found.values())

    def open_workspaces(self, session_id: str) -> list[str]:
        """The scanned folders of calls whose end is not recorded."""
        asked = "SELECT DISTINCT workspace FROM calls WHERE session = ? AND ended IS NULL AND workspace <> ''"
        return [folder for (folder,) in self._rows(asked, session_id or DIRECT)]

    def sessions(self, folder: str = "", *, undone_too: bool = True) -> list[str]:
        """The sessions with changes, the latest first; with a folder, those that changed something in it."""
        inside = os.fsencode(f"{folder.rstrip('/')}/") if folder else b""
        asked = (
            "SELECT session FROM calls JOIN changes ON changes.call = calls.id "
            "WHERE (substr(path, 1, ?) = ? OR path = ?) AND (? OR (NOT is_undone AND "
            "json_extract(about, '$.tool') NOT IN (?, ?))) GROUP BY session ORDER BY max(at) DESC"
        )
        rows = self._rows(asked, len(inside), inside, inside[:-1], undone_too, UNDO, REDO)
        return [session for (session,) in rows]

    def forget(self, session_id: str) -> None:
        """Remove everything that is stored for a session."""
        if self.exists:
            with self.write() as connection:
                for statement in FORGET_SESSION:
                    connection.execute(statement, (session_id or DIRECT,))
            self._sweep()

    # Limits

    def _pages(self) -> tuple[int, int, int]:
        """How many pages the database has, how many of them are free, and how large each is."""
        asked = "SELECT * FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        pages, free, size = self._rows(asked)[0]
        return pages, free, size

    def _size(self) -> int:
        (pages, free, page), large = self._pages(), 0
        with contextlib.suppress(OSError):
            large = sum(entry.stat().st_size for entry in os.scandir(self._contents))
        return (pages - free) * page + large

    def _prune(self) -> None:
        """Forget the oldest sessions, then the workspaces that were not used for longest, until there is room."""
        limit = self.settings.max_total_mb * MEGABYTE
        if self._size() <= limit:
            return
        self._sweep()
        for asked, forget in (
            ("SELECT session FROM calls GROUP BY session ORDER BY max(at)", FORGET_SESSION),
            ("SELECT folder FROM workspaces ORDER BY used", ("DELETE FROM workspaces WHERE folder = ?",)),
        ):
            # The latest stays, whatever it takes.
            oldest = self._rows(asked)[:-1]
            while oldest and self._size() > limit * ROOM_LEFT:
                gone, oldest = oldest[: len(oldest) // 4 + 1], oldest[len(oldest) // 4 + 1 :]
                with super().write() as connection:
                    for statement in forget:
                        connection.executemany(statement, gone)
                self._sweep()

    def _sweep(self) -> None:
        """Remove the contents that nothing refers to."""
        with super().write() as connection:
            used = {
                state.digest
                for before, after in connection.execute("SELECT before, after FROM changes")
                for state in (_decode(before), _decode(after) if after is not None else MISSING)
            }
            for (tree,) in connection.execute("SELECT tree FROM workspaces WHERE version > 0"):
                used.update(state.digest for names in decode_tree(tree).values() for state in names.values())
            stored = [digest for (digest,) in connection.execute("SELECT digest FROM contents")]
            gone = [(digest,) for digest in stored if digest not in used]
            connection.executemany("DELETE FROM contents WHERE digest = ?", gone)
        names = {digest.hex() for digest in used}
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._contents):
                if entry.name not in names and time.time() - entry.stat().st_mtime > 60:
                    Path(entry.path).unlink(missing_ok=True)
        pages, free, _ = self._pages()
        if free > pages // 4:
            self._rows("VACUUM")
            self._rows("PRAGMA wal_checkpoint(TRUNCATE)")


def is_below(path: str, folders: Sequence[str]) -> bool:
    """Whether a path is one of these, or in one of them."""
    return any(path == one or path.startswith(f"{one.rstrip('/')}/") for one in folders)


def _next(connection: sqlite3.Connection) -> int:
    value: int = connection.execute("UPDATE counter SET value = value + 1 RETURNING value").fetchone()[0]
    return value


def _is_alive(process: str) -> bool:
    return is_alive(msgspec.json.decode(process, type=Identity))
