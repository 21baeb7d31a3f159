"""A workspace as its latest scan found it: which files are there, and what has changed since the scan before.

A scan walks the folders that git would not ignore and compares the status of each file with what is stored: change
time, inode and size. Only files that differ are read; their contents go into the store.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from toolcrib.core.errors import ToolcribError
from toolcrib.undo.files import MISSING, FileState, state_of, with_content
from toolcrib.undo.ignore import GIT, GITIGNORE, IGNORE_ALL, IGNORE_NOTHING, GitWorkspace, WorkspaceIgnore
from toolcrib.undo.store import MEGABYTE, FolderListing, UndoStore, decode_listing, encode_listing

TRIES = 3
PROGRESS_SECONDS = 1.0
CHECKED_AGAIN_SECONDS = 600.0
"""A workspace beyond the limits is looked at again after this time."""
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
HOMES = ("/home", "/Users")
ROOT_HOMES = ("/root", "/var/root")

FOLLOWED, IGNORED, LEAVING, REVEALED = range(4)
"""What becomes of a path in a scan: the rules follow or ignore it, ignore it from now on, or did so until now."""

Changes = dict[str, tuple[FileState, FileState]]
"""What was at each changed path, and what is there now."""
Commit = Callable[[sqlite3.Connection], None]
Progress = Callable[[str], None]


class WorkspaceBeyondLimits(ToolcribError):
    """The workspace cannot be scanned; the text says why, as part of a sentence."""


def why_not_scanned(folder: str, home: str) -> str:
    """Why a folder is never scanned as a workspace; "" if it may be."""
    path = Path(folder)
    if path == path.parent:
        return "the workspace is the root of the file system"
    is_a_home = folder in (*HOMES, *ROOT_HOMES) or str(path.parent) in HOMES
    if path == Path(home) or path in Path(home).parents or is_a_home:
        return "the workspace is a home folder"
    return ""


@dataclass(slots=True)
class _Unread:
    """A file whose content has to be read."""

    listing: FolderListing
    name: bytes
    path: bytes
    state: FileState
    before: FileState
    revealed: bool


@dataclass(slots=True)
class _Scan:
    """What one walk over the workspace found."""

    ends: float
    progress: Callable[[], None]
    changes: Changes = field(default_factory=dict)
    unread: list[_Unread] = field(default_factory=list)
    dirty: set[bytes] = field(default_factory=set)
    """Folders whose listing has changed."""
    gone: set[bytes] = field(default_factory=set)
    leaving: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Folders and names in them that are not followed any longer."""
    seen: int = 0
    size: int = 0


class Workspace:
    """The files of one folder that undo follows. Safe for threads; several processes may scan the same folder."""

    def __init__(self, store: UndoStore, folder: str, excluded: Iterable[str] = ()) -> None:
        self.folder = folder
        self.git = GitWorkspace(folder)
        self._store = store
        self._root = os.fsencode(folder)
        self._excluded = frozenset(os.fsencode(one) for one in excluded)
        self._lock = threading.Lock()
        self._version: int | None = None
        """The version of the listings in memory; None when there are none."""
        self._folders: dict[bytes, FolderListing] = {}
        self._rules: dict[bytes, WorkspaceIgnore] = {}
        """Rules by what identifies them, because parsing them takes a while."""
        self._always: frozenset[bytes] = frozenset()
        self._top_rules = IGNORE_NOTHING
        self._rule_files: dict[bytes, tuple[tuple[int, int, int], bytes]] = {}

    def scan(
        self, commit: Commit | None = None, *, ended: Iterable[str] = (), progress: Progress | None = None
    ) -> Changes:
        """Find out what has changed, and add it to the calls that are running here; `commit` is part of that.

        Raises WorkspaceBeyondLimits when there is too much to look at, OSError or ToolcribError when it fails.
        """
        with self._lock, self._fresh_on_error():
            for _ in range(TRIES):
                self._load()
                scan = self._walk(progress)
                with self._store.write() as connection:
                    if self._stored_version(connection)[0] != self._version:
                        # Another process was quicker; look again from what it found.
                        self._version = None
                        continue
                    self._read_all(scan, connection)
                    self._save(scan, connection)
                    self._store.spread(connection, self.folder, scan.changes, ended)
                    if commit is not None:
                        commit(connection)
                return scan.changes
            raise WorkspaceBeyondLimits("other processes kept changing what is known of the workspace")

    def follows(self, path: str) -> bool:
        """Whether scans see an absolute path, which need not exist."""
        above = f"{self.folder.rstrip('/')}/"
        if not path.startswith(above):
            return path == self.folder
        parts = os.fsencode(path[len(above) :]).split(b"/")
        listing, rules = self._folders.get(b""), self._top_rules
        for depth, name in enumerate(parts):
            inner = b"/".join(parts[: depth + 1])
            if (
                name == GIT
                or self._root + b"/" + inner in self._excluded
                or (listing is not None and name in listing.ignored)
            ):
                return False
            if listing is not None and name in listing.entries:
                rules = self._rules.get(listing.rules, rules)
                listing = self._folders.get(inner)
                continue
            rules = self._rules.get(listing.rules, rules) if listing is not None else rules
            if inner not in self._always and any(rules.ignores(inner, is_folder=one) for one in (True, False)):
                return False
            listing = None
        return True

    def unfollowed(self, path: str) -> list[str]:
        """The paths in a followed folder that scans do not see, except those in other such paths."""
        rel = os.fsencode(path)[len(self._root.rstrip(b"/")) + 1 :]
        return [
            self._text(folder + b"/" + name if folder else name)
            for folder, listing in list(self._folders.items())
            if not rel or folder == rel or folder.startswith(rel + b"/")
            for name in listing.ignored
        ]

    # The walk

    def _walk(self, progress: Progress | None) -> _Scan:
        settings = self._store.settings
        scan = _Scan(time.monotonic() + settings.max_scan_seconds, _Reporter(progress, self).step)
        included = {os.fsencode(one.strip("/")) for one in settings.include}
        above = {b"/".join(one.split(b"/")[:depth]) for one in included for depth in range(1, one.count(b"/") + 2)}
        self._always = self.git.tracked() | above
        top = self.git.rules(settings.ignore).with_exceptions(self._always)
        self._top_rules = self._rules.setdefault(top.key, top)
        is_first = b"" not in self._folders
        pending: list[tuple[bytes, WorkspaceIgnore, bool]] = [(b"", self._top_rules, is_first)]
        while pending:
            rel, rules, revealed = pending.pop()
            self._visit(rel, rules, revealed, scan, pending, included)
            scan.progress()
            self._check_limits(scan)
        return scan

    def _check_limits(self, scan: _Scan) -> None:
        settings = self._store.settings
        if scan.seen > settings.max_files:
            raise WorkspaceBeyondLimits(f"the workspace has more than {settings.max_files:,} files")
        if scan.size > settings.max_workspace_mb * MEGABYTE:
            raise WorkspaceBeyondLimits(f"the workspace has more than {settings.max_workspace_mb:g} MB of files")
        if time.monotonic() > scan.ends:
            raise WorkspaceBeyondLimits(
                f"looking at the workspace takes longer than {settings.max_scan_seconds:g} seconds"
            )

    def _visit(
        self,
        rel: bytes,
        above: WorkspaceIgnore,
        revealed: bool,
        scan: _Scan,
        pending: list[tuple[bytes, WorkspaceIgnore, bool]],
        included: set[bytes],
    ) -> None:
        """Compare one folder with its listing; `revealed` says that what is new in it was there before."""
        is_new = rel not in self._folders
        listing = self._folders.setdefault(rel, FolderListing({}, {}))
        rules = self._rules_in(rel, above, listing, is_new)
        decides_again = is_new or listing.rules != rules.key
        if decides_again:
            listing.rules = rules.key
            scan.dirty.add(rel)
        entries, names, size = listing.entries, set[bytes](), 0
        largest = self._store.settings.max_file_mb * MEGABYTE
        try:
            listed = os.scandir(self._root + b"/" + rel)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # Removed meanwhile, or closed to us: what is in it stays as it was.
        with listed:
            for entry in listed:
                name = entry.name
                known, fate = entries.get(name), FOLLOWED
                if known is None or decides_again:
                    fate = self._decide(scan, listing, rel, entry, rules, decides_again)
                    if fate == IGNORED:
                        continue
                try:
                    about = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                names.add(name)
                if about.st_size <= largest:
                    size += about.st_size
                if (
                    known is not None
                    and about.st_ctime_ns == known.touched_ns
                    and about.st_ino == known.inode
                    and about.st_size == known.size
                    and fate == FOLLOWED
                ):
                    continue
                was_there = revealed or fate == REVEALED
                if known is None or not _is_same_folder(known, about):
                    self._differs(scan, listing, rel, name, about, was_there)
                if fate == LEAVING:
                    scan.leaving.append((rel, name))
                if stat.S_ISDIR(about.st_mode):
                    path = rel + b"/" + name if rel else name
                    inner = IGNORE_ALL if fate == LEAVING or self._is_only_above(path, rules) else rules
                    pending.append((path, IGNORE_NOTHING if path in included else inner, was_there))
        for name in entries.keys() - names if len(names) != len(entries) else ():
            self._is_gone(scan, listing, rel, name)
        scan.seen += len(names)
        scan.size += size

    def _decide(
        self,
        scan: _Scan,
        listing: FolderListing,
        rel: bytes,
        entry: os.DirEntry[bytes],
        rules: WorkspaceIgnore,
        decides_again: bool,
    ) -> int:
        """Whether a path is followed that is new, or for which other rules apply than before."""
        name, is_folder = entry.name, entry.is_dir(follow_symlinks=False)
        was_ignored = listing.ignored.get(name)
        if not decides_again and was_ignored is is_folder:
            return IGNORED
        path = rel + b"/" + name if rel else name
        if self._is_ignored(path, name, is_folder, rules):
            if was_ignored is not is_folder:
                listing.ignored[name] = is_folder
                scan.dirty.add(rel)
            return LEAVING if name in listing.entries else IGNORED
        if was_ignored is None:
            return FOLLOWED
        del listing.ignored[name]
        return REVEALED

    def _differs(
        self, scan: _Scan, listing: FolderListing, rel: bytes, name: bytes, about: os.stat_result, revealed: bool
    ) -> None:
        """A path that is new, or whose status is another than in the listing."""
        path = rel + b"/" + name if rel else name
        before = listing.entries.get(name, MISSING)
        try:
            state = state_of(about, self._root + b"/" + path)
        except OSError:
            return  # A link that was removed meanwhile.
        if before.kind == "folder" and state.kind != "folder":
            self._forget_below(scan, path)
        listing.entries[name] = state
        scan.dirty.add(rel)
        if state.kind == "file":
            scan.unread.append(_Unread(listing, name, path, state, before, revealed))
        elif not revealed and not before.is_same(state):
            scan.changes[self._text(path)] = before, state

    def _is_gone(self, scan: _Scan, listing: FolderListing, rel: bytes, name: bytes) -> None:
        path = rel + b"/" + name if rel else name
        before = listing.entries.pop(name)
        scan.dirty.add(rel)
        scan.changes[self._text(path)] = before, MISSING
        if before.kind == "folder":
            self._forget_below(scan, path)

    def _forget_below(self, scan: _Scan, rel: bytes) -> None:
        listing = self._folders.pop(rel, None)
        scan.gone.add(rel)
        for name, before in listing.entries.items() if listing is not None else ():
            path = rel + b"/" + name
            scan.changes[self._text(path)] = before, MISSING
            if before.kind == "folder":
                self._forget_below(scan, path)

    def _drop_leaving(self, scan: _Scan) -> None:
        """Stop following what the rules ignore now: this scan was the last that compared it."""
        for rel, name in scan.leaving:
            listing = self._folders.get(rel)
            if listing is not None and listing.entries.pop(name, MISSING).kind == "folder":
                path = rel + b"/" + name if rel else name
                for below in [one for one in self._folders if one == path or one.startswith(path + b"/")]:
                    del self._folders[below]
                    scan.gone.add(below)

    # Rules

    def _rules_in(self, rel: bytes, above: WorkspaceIgnore, listing: FolderListing, is_new: bool) -> WorkspaceIgnore:
        """The rules that apply in a folder. Rule files that have just appeared count from the next scan on."""
        if above.fixed is not None:
            return above
        folder = self._root + b"/" + rel if rel else self._root
        if rel and (GIT in listing.ignored or (is_new and os.path.lexists(folder + b"/" + GIT))):
            # A repository in the workspace has rules of its own.
            nested = WorkspaceIgnore()
            above = self._rules.setdefault(nested.key, nested)
        is_ruled = is_new or GITIGNORE in listing.entries or GITIGNORE in listing.ignored
        content = self._rule_content(folder) if is_ruled else b""
        if not content:
            return above
        cut = len(os.fsdecode(rel)) + 1 if rel else 0
        key = b"\0".join((above.key, rel, content))
        if key not in self._rules:
            rules = above.inside(content, cut=cut)
            self._rules[key] = self._rules[rules.key] = rules
        return self._rules[key]

    def _rule_content(self, folder: bytes) -> bytes:
        """The content of the ignore file of a folder, read again only after it changed."""
        path = folder + b"/" + GITIGNORE
        try:
            about = os.stat(path)  # noqa: PTH116 - bytes
        except OSError:
            return b""
        stamp = about.st_ctime_ns, about.st_ino, about.st_size
        known = self._rule_files.get(folder)
        if known is None or known[0] != stamp or not state_of(about, path).touched_ns:
            with contextlib.suppress(OSError), open(path, "rb") as stream:  # noqa: PTH123 - bytes
                self._rule_files[folder] = stamp, stream.read()
        return self._rule_files.get(folder, (stamp, b""))[1]

    def _is_ignored(self, path: bytes, name: bytes, is_folder: bool, rules: WorkspaceIgnore) -> bool:
        if name == GIT or self._root + b"/" + path in self._excluded:
            return True
        return path not in self._always and rules.ignores(path, is_folder=is_folder)

    def _is_only_above(self, path: bytes, rules: WorkspaceIgnore) -> bool:
        """Whether a folder is ignored, and followed only for the sake of something in it."""
        return path in self._always and rules.ignores(path, is_folder=True)

    # Contents and the store

    def _read_all(self, scan: _Scan, connection: sqlite3.Connection) -> None:
        """Read the files that differ, and store their contents."""
        largest = self._store.settings.max_file_mb * MEGABYTE
        for at, one in enumerate(scan.unread):
            state, content = read_file(self._root + b"/" + one.path, one.state, largest)
            if content is not None and state.size:
                self._store.add_content(connection, state.digest, content)
            if one.listing.entries.get(one.name) is one.state:
                one.listing.entries[one.name] = state
            if not one.revealed and not one.before.is_same(state):
                scan.changes[self._text(one.path)] = one.before, state
            if at % 64 == 0:
                scan.progress()
                if time.monotonic() > scan.ends:
                    self._check_limits(scan)

    def _save(self, scan: _Scan, connection: sqlite3.Connection) -> None:
        version = self._version or 0
        self._drop_leaving(scan)
        if scan.dirty or scan.gone:
            version += 1
            connection.executemany(
                "DELETE FROM folders WHERE workspace = ? AND path = ?", [(self.folder, rel) for rel in scan.gone]
            )
            rows = [
                (self.folder, rel, encode_listing(self._folders[rel])) for rel in scan.dirty if rel in self._folders
            ]
            connection.executemany("INSERT OR REPLACE INTO folders VALUES (?, ?, ?)", rows)
        if version != self._version or scan.dirty:
            connection.execute(
                "INSERT OR REPLACE INTO workspaces VALUES (?, ?, ?, '')", (self.folder, version, self._store.clock())
            )
        self._version = version

    def _load(self) -> None:
        """Read the listings, unless those in memory are the latest."""
        if not self._store.exists:
            self._version, self._folders = 0, {}
            return
        with self._store.read() as connection:
            version, used, beyond = self._stored_version(connection)
            if beyond and self._store.clock() - used < CHECKED_AGAIN_SECONDS:
                raise WorkspaceBeyondLimits(beyond)
            if version == self._version:
                return
            rows = connection.execute("SELECT path, listing FROM folders WHERE workspace = ?", (self.folder,))
            self._folders = {path: decode_listing(listing) for path, listing in rows}
            self._version = version

    def _stored_version(self, connection: sqlite3.Connection) -> tuple[int, float, str]:
        row = connection.execute(
            "SELECT version, used, beyond FROM workspaces WHERE folder = ?", (self.folder,)
        ).fetchone()
        return row if row is not None else (0, 0.0, "")

    @contextlib.contextmanager
    def _fresh_on_error(self) -> Iterator[None]:
        """Forget what is in memory if it could not be stored; remember for a while that there is too much."""
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._reset)
            try:
                yield
            except WorkspaceBeyondLimits as error:
                row = self.folder, 0, self._store.clock(), str(error)
                with self._store.write() as connection:
                    connection.execute("DELETE FROM folders WHERE workspace = ?", (self.folder,))
                    connection.execute("INSERT OR REPLACE INTO workspaces VALUES (?, ?, ?, ?)", row)
                raise
            on_error.pop_all()

    def _reset(self) -> None:
        self._version, self._folders = None, {}

    def _text(self, path: bytes) -> str:
        return os.fsdecode(self._root.rstrip(b"/") + b"/" + path)

    @property
    def count(self) -> int:
        return sum(len(one.entries) for one in self._folders.values())


class _Reporter:
    """Says now and then that a scan takes a while."""

    def __init__(self, progress: Progress | None, workspace: Workspace) -> None:
        self._progress = progress
        self._workspace = workspace
        self._next = time.monotonic() + PROGRESS_SECONDS

    def step(self) -> None:
        if self._progress is not None and time.monotonic() > self._next:
            self._next += PROGRESS_SECONDS
            self._progress(f"saving the workspace for undo: {self._workspace.count:,} files so far")


def _is_same_folder(known: FileState, about: os.stat_result) -> bool:
    return (
        known.kind == "folder"
        and stat.S_ISDIR(about.st_mode)
        and stat.S_IMODE(about.st_mode) == known.mode
        and known.owner == (about.st_uid, about.st_gid)
    )


def read_file(path: bytes, state: FileState, largest: float) -> tuple[FileState, bytes | None]:
    """A file as it is when it is read: its state, and its content unless it is too large."""
    if state.size > largest:
        return replace(state, not_kept=f"it was larger than {largest / MEGABYTE:g} MB, so no copy was saved"), None
    try:
        descriptor = os.open(path, READ)
    except OSError:
        return replace(state, not_kept="it could not be read, so no copy was saved"), None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return replace(state, not_kept="it was replaced while it was read"), None
        with os.fdopen(os.dup(descriptor), "rb", buffering=0) as stream:
            content = stream.read()
        later = os.fstat(descriptor)
        found = with_content(state_of(about, path), content)
        if (about.st_ctime_ns, about.st_size) != (later.st_ctime_ns, later.st_size):
            found = replace(found, touched_ns=0)
        return found, content
    finally:
        os.close(descriptor)
