"""A workspace as its latest scan found it: which files are there, and what has changed since the scan before.

A scan walks the folders that git would not ignore and compares the status of each file with what is stored: change
time, inode and size. Only files that differ are read; their contents go into the store. Rules that changed count from
the end of a scan on: what they reveal or hide belongs to no call.

Of what git ignores, small trees are saved too, so that a deletion can be undone; of large ones, a deletion is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toolcrib.core.errors import ToolcribError
from toolcrib.undo.files import MISSING, FileState, read_state, state_of
from toolcrib.undo.ignore import (
    IGNORE_ALL,
    IGNORE_NOTHING,
    REBUILT,
    GitWorkspace,
    RuleFiles,
    WorkspaceIgnore,
    rules_of,
)
from toolcrib.undo.store import MEGABYTE, UndoStore, decode_listing, encode_listing

TRIES = 3
PROGRESS_SECONDS = 1.0
CHECKED_AGAIN_SECONDS = 600.0
"""A workspace beyond the limits is looked at again after this time."""
HOMES = ("/home", "/Users")
ROOT_HOMES = ("/root", "/var/root")
GIT, GITIGNORE = b".git", b".gitignore"
IGNORED_FILES, IGNORED_BYTES = 1_000, 20_000_000
"""How much is saved of what git ignores, in one workspace."""
COUNTED_FILES = 5_000
"""How many files of a large ignored folder are counted."""

Changes = dict[str, tuple[FileState, FileState]]
"""What was at each changed path, and what is there now."""
Listing = dict[bytes, FileState]
Commit = Callable[[sqlite3.Connection, dict[str, str]], None]
"""Part of the transaction of a scan; gets the ignored folders with deletions that were not saved, and a text each."""
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

    listing: Listing
    key: bytes
    path: bytes
    state: FileState
    before: FileState
    is_nobodys: bool


@dataclass(slots=True)
class _Scan:
    """What one walk over the workspace found."""

    ends: float
    is_nobodys: bool
    """Whether what is new in it was there before, so that no call is the reason."""
    step: Callable[[], None]
    """Says now and then that it takes a while."""
    changes: Changes = field(default_factory=dict)
    unread: list[_Unread] = field(default_factory=list)
    dirty: set[bytes] = field(default_factory=set)
    """Listings that have changed, or are gone."""
    lost: dict[str, str] = field(default_factory=dict)
    has_new_rules: bool = False
    seen: int = 0
    size: int = 0


class Workspace:
    """The files of one folder that undo follows. Safe for threads; several processes may scan the same folder."""

    def __init__(self, store: UndoStore, folder: str, excluded: Iterable[str] = ()) -> None:
        self.folder = folder
        self.git = GitWorkspace(folder)
        self._store = store
        self._settings = store.settings
        self._root = os.fsencode(folder)
        self._excluded = frozenset(os.fsencode(one) for one in excluded)
        self._included = {os.fsencode(one.strip("/")) for one in self._settings.include}
        self._left_out = rules_of((("\n".join((*REBUILT.split(), *self._settings.ignore)).encode(), b""),))
        self._lock = threading.Lock()
        self._version: int | None = None
        """The version of the listings in memory; None when there are none."""
        self._listings: dict[bytes, Listing] = {}
        """What is in each folder; what is in an ignored tree is under its path with a slash in front."""
        self._earlier: dict[bytes, Listing] = {}
        self._use_rules((), frozenset())

    def _use_rules(self, files: RuleFiles, tracked: frozenset[bytes]) -> None:
        self._top_rules = files, tracked
        above = {
            b"/".join(one.split(b"/")[:depth]) for one in self._included for depth in range(1, one.count(b"/") + 2)
        }
        self._always = tracked | above
        self._rules: dict[bytes, WorkspaceIgnore] = {}
        """The rules that apply in each folder."""
        self._ignored: dict[bytes, dict[bytes, bool]] = {}
        """The names in each folder that the rules ignore, and whether each is a folder."""
        self._nested: set[bytes] = set()
        """The folders of other repositories."""
        self._counts: dict[bytes, int] = {}
        """How many files were in large ignored folders."""

    def scan(
        self, commit: Commit | None = None, *, ended: Iterable[str] = (), progress: Progress | None = None
    ) -> Changes:
        """Find out what has changed, and add it to the calls that are running here; `commit` is part of that.

        Raises WorkspaceBeyondLimits when there is too much to look at, OSError or ToolcribError when it fails.
        """
        step = self._reporter(progress)
        with self._lock, self._fresh_on_error():
            for _ in range(TRIES):
                rules = self.git.rule_files(self._settings.ignore), self.git.tracked()
                scan = self._walk(self._load(rules), step)
                with self._store.write() as connection:
                    if self._stored(connection)[0] != self._version:
                        # Another process was quicker; look again from what it found.
                        self._version = None
                        continue
                    self._read_all(scan, connection)
                    if scan.has_new_rules or rules != self._top_rules:
                        self._follow(rules, scan, connection)
                    self._save(scan, connection)
                    self._store.spread(connection, self.folder, scan.changes, ended)
                    if commit is not None:
                        commit(connection, scan.lost)
                return scan.changes
            raise WorkspaceBeyondLimits("other processes kept changing what is known of the workspace")

    def follows(self, path: str) -> bool:
        """Whether scans see an absolute path, which need not exist."""
        above = f"{self.folder.rstrip('/')}/"
        if not path.startswith(above):
            return path == self.folder
        rel = b""
        for name in os.fsencode(path[len(above) :]).split(b"/"):
            is_known = name in self._listings.get(rel, {})
            if not is_known and any(self._ignores(rel, name, is_folder=one) for one in (True, False)):
                return False
            rel = _join(rel, name)
        return True

    def unfollowed(self, path: str) -> list[str]:
        """The paths in a followed folder that scans do not see, except those in other such paths."""
        rel = os.fsencode(path)[len(self._root.rstrip(b"/")) + 1 :]
        return [
            self._text(_join(folder, name))
            for folder, names in list(self._ignored.items())
            if not rel or folder == rel or folder.startswith(rel + b"/")
            for name in names
        ]

    # The walk

    def _reporter(self, progress: Progress | None) -> Callable[[], None]:
        due = time.monotonic() + PROGRESS_SECONDS

        def step() -> None:
            nonlocal due
            if progress is not None and time.monotonic() > due:
                due += PROGRESS_SECONDS
                count = sum(len(one) for one in self._listings.values())
                progress(f"saving the workspace for undo: {count:,} files so far")

        return step

    def _walk(self, is_nobodys: bool, step: Callable[[], None]) -> _Scan:
        scan = _Scan(time.monotonic() + self._settings.max_scan_seconds, is_nobodys, step)
        pending = [b""]
        while pending:
            self._visit(pending.pop(), scan, pending)
            step()
            self._check_limits(scan)
        self._visit_ignored(scan)
        return scan

    def _check_limits(self, scan: _Scan) -> None:
        limits = self._settings
        if scan.seen > limits.max_files:
            raise WorkspaceBeyondLimits(f"the workspace has more than {limits.max_files:,} files")
        if scan.size > limits.max_workspace_mb * MEGABYTE:
            raise WorkspaceBeyondLimits(f"the workspace has more than {limits.max_workspace_mb:g} MB of files")
        if time.monotonic() > scan.ends:
            raise WorkspaceBeyondLimits(
                f"looking at the workspace takes longer than {limits.max_scan_seconds:g} seconds"
            )

    def _visit(self, rel: bytes, scan: _Scan, pending: list[bytes]) -> None:
        """Compare one folder with its listing."""
        listing = self._listings.get(rel)
        if listing is None:
            listing = self._listings[rel] = {}
            scan.dirty.add(rel)
            self._forget_rules(rel)
        ignored = self._ignored.setdefault(rel, {})
        names, size, largest = set[bytes](), 0, self._settings.max_file_mb * MEGABYTE
        try:
            listed = os.scandir(self._root + b"/" + rel)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # Removed meanwhile, or closed to us: what is in it stays as it was.
        with listed:
            for entry in listed:
                name = entry.name
                known = listing.get(name)
                if known is None:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if ignored.get(name) is is_folder:
                        continue
                    if self._ignores(rel, name, is_folder=is_folder):
                        ignored[name] = is_folder
                        scan.has_new_rules |= name == GIT and rel in self._rules.keys() - self._nested - {b""}
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
                ):
                    continue
                if known is None or not _is_same_folder(known, about):
                    self._differs(scan, rel, name, about)
                if stat.S_ISDIR(about.st_mode):
                    pending.append(_join(rel, name))
        for name in listing.keys() - names if len(names) != len(listing) else ():
            self._is_gone(scan, rel, name)
        scan.seen += len(names)
        scan.size += size

    def _differs(self, scan: _Scan, rel: bytes, name: bytes, about: os.stat_result) -> None:
        """A path that is new, or whose status is another than in the listing."""
        path, listing = _join(rel, name), self._listings[rel]
        before = listing.get(name, MISSING)
        scan.has_new_rules |= name == GITIGNORE and not scan.is_nobodys
        scan.dirty.add(rel)
        if name in self._earlier.get(rel, {}):
            # Other rules apply; if it has changed meanwhile, the next scan will tell.
            listing[name] = self._earlier[rel][name]
            return
        try:
            state = state_of(about, self._root + b"/" + path)
        except OSError:
            return  # A link that was removed meanwhile.
        if before.kind == "folder" and state.kind != "folder":
            self._forget_below(scan, path)
        listing[name] = state
        is_nobodys = scan.is_nobodys and before is MISSING
        if state.kind == "file":
            scan.unread.append(_Unread(listing, name, path, state, before, is_nobodys))
        elif not is_nobodys and not before.is_same(state):
            scan.changes[self._text(path)] = before, state

    def _is_gone(self, scan: _Scan, rel: bytes, name: bytes) -> None:
        path, before = _join(rel, name), self._listings[rel].pop(name)
        scan.dirty.add(rel)
        scan.has_new_rules |= name == GITIGNORE
        scan.changes[self._text(path)] = before, MISSING
        if before.kind == "folder":
            self._forget_below(scan, path)

    def _forget_below(self, scan: _Scan, rel: bytes) -> None:
        for name in list(self._listings.get(rel, ())):
            self._is_gone(scan, rel, name)
        self._listings.pop(rel, None)

    # What git ignores

    def _visit_ignored(self, scan: _Scan) -> None:
        """Look at what the rules ignore: whether anything was deleted there."""
        roots = {key[1:] for key in self._listings if key.startswith(b"/")}
        for folder in self._ignored.keys() & self._listings.keys():
            for name, is_folder in self._ignored[folder].items():
                path = _join(folder, name)
                if name == GIT or self._root + b"/" + path in self._excluded:
                    continue
                if not self._left_out.ignores(path, is_folder=is_folder):
                    roots.add(path)
                elif is_folder and b"cache" not in name:
                    was_there, is_there = self._counts.get(path), os.path.lexists(self._root + b"/" + path)
                    self._counts[path] = is_there
                    if was_there and not is_there:
                        scan.lost[self._text(path)] = f"the ignored folder {os.fsdecode(path)}/ was deleted"
        room, size = IGNORED_FILES, 0
        for root in sorted(roots):
            found, count = _tree_of(self._root + b"/" + root, room)
            inside = sum(about.st_size for about in found.values()) if found is not None else 0
            if found is not None and size + inside <= IGNORED_BYTES:
                room, size = room - len(found), size + inside
                self._compare_ignored(scan, root, found)
            elif self._listings.pop(b"/" + root, None) is not None:
                scan.dirty.add(b"/" + root)
            gone = self._counts.get(root, 0) - count
            if gone > 0:
                what = "an ignored file was" if gone == 1 else f"{gone:,} ignored files were"
                scan.lost[self._text(root)] = f"{what} deleted in {os.fsdecode(root)}/"
            self._counts[root] = 0 if b"/" + root in self._listings else count

    def _compare_ignored(self, scan: _Scan, root: bytes, found: dict[bytes, os.stat_result]) -> None:
        """Compare a small tree with what is known of it; what is new or changed in it is nobody's concern."""
        key = b"/" + root
        listing = self._listings.setdefault(key, {})
        for name in listing.keys() - found.keys():
            scan.changes[self._text(_join(root, name))] = listing.pop(name), MISSING
            scan.dirty.add(key)
        for name, about in found.items():
            known, path = listing.get(name), _join(root, name)
            if known is not None and (_is_same_folder(known, about) or _is_same_file(known, about)):
                continue
            with contextlib.suppress(OSError):
                listing[name] = state_of(about, self._root + b"/" + path)
                scan.dirty.add(key)
                if listing[name].kind == "file":
                    scan.unread.append(_Unread(listing, name, path, listing[name], MISSING, True))
        if not listing:
            self._listings.pop(key)

    # Rules

    def _ignores(self, rel: bytes, name: bytes, *, is_folder: bool) -> bool:
        path = _join(rel, name)
        if name == GIT or self._root + b"/" + path in self._excluded:
            return True
        if path in self._always or name == GITIGNORE:
            return False
        return self._rules_in(rel).ignores(path, is_folder=is_folder)

    def _forget_rules(self, rel: bytes) -> None:
        self._rules.pop(rel, None)
        self._ignored.pop(rel, None)

    def _rules_in(self, rel: bytes) -> WorkspaceIgnore:
        """The rules that apply in a folder."""
        if rel not in self._rules:
            above, _, _ = rel.rpartition(b"/")
            rules = self._rules_in(above) if rel else rules_of(self._top_rules[0])
            folder = self._root + b"/" + rel
            if rel in self._included:
                rules = IGNORE_NOTHING
            elif rules.fixed is None and rel in self._always and rules.ignores(rel, is_folder=True):
                # Followed only for the sake of something in it.
                rules = IGNORE_ALL
            elif rules.fixed is None:
                if rel and os.path.lexists(folder + b"/" + GIT):
                    # A repository in the workspace has rules of its own.
                    self._nested.add(rel)
                    rules = WorkspaceIgnore()
                rules = rules.inside(self._rule_content(rel), cut=len(rel) + 1 if rel else 0)
            self._rules[rel] = rules
        return self._rules[rel]

    def _rule_content(self, rel: bytes) -> bytes:
        """The ignore file of a folder as the latest scan found it; in a new folder, as it is."""
        state = self._listings.get(rel, {}).get(GITIGNORE)
        with contextlib.suppress(OSError):
            if state is not None and state.kind == "file" and state.digest:
                return self._store.content(state)
            with open(self._root + b"/" + rel + b"/" + GITIGNORE, "rb") as stream:  # noqa: PTH123 - bytes
                return stream.read()
        return b""

    def _follow(self, rules: tuple[RuleFiles, frozenset[bytes]], scan: _Scan, connection: sqlite3.Connection) -> None:
        """Walk again with the rules as they are now. What they reveal or hide belongs to no call."""
        self._use_rules(*rules)
        scan.dirty |= self._listings.keys()
        self._earlier, self._listings = self._listings, {}
        try:
            again = self._walk(True, scan.step)
        finally:
            self._earlier = {}
        self._read_all(again, connection)
        scan.dirty |= again.dirty

    # Contents and the store

    def _read_all(self, scan: _Scan, connection: sqlite3.Connection) -> None:
        """Read the files that differ, and store their contents."""
        largest = self._settings.max_file_mb * MEGABYTE
        for at, one in enumerate(scan.unread):
            state, content = read_state(self._root + b"/" + one.path, one.state, largest)
            if content:
                self._store.add_content(connection, state.digest, content)
            if one.listing.get(one.key) is one.state:
                one.listing[one.key] = state
            if not one.is_nobodys and not one.before.is_same(state):
                scan.changes[self._text(one.path)] = one.before, state
            if at % 64 == 0:
                scan.step()
                if time.monotonic() > scan.ends:
                    self._check_limits(scan)

    def _save(self, scan: _Scan, connection: sqlite3.Connection) -> None:
        if not scan.dirty and self._version:
            return
        self._version = (self._version or 0) + 1
        gone = [(self.folder, key) for key in scan.dirty if key not in self._listings]
        rows = [(self.folder, key, encode_listing(self._listings[key])) for key in scan.dirty if key in self._listings]
        connection.executemany("DELETE FROM folders WHERE workspace = ? AND path = ?", gone)
        connection.executemany("INSERT OR REPLACE INTO folders VALUES (?, ?, ?)", rows)
        row = self.folder, self._version, self._store.clock(), "", _key_of(self._top_rules)
        connection.execute("INSERT OR REPLACE INTO workspaces VALUES (?, ?, ?, ?, ?)", row)

    def _load(self, rules: tuple[RuleFiles, frozenset[bytes]]) -> bool:
        """Read the listings, unless those in memory are the latest. Whether what is new was there before."""
        version, used, beyond, key = 0, 0.0, "", b""
        if self._store.exists:
            with self._store.read() as connection:
                version, used, beyond, key = self._stored(connection)
                if beyond and self._store.clock() - used < CHECKED_AGAIN_SECONDS:
                    raise WorkspaceBeyondLimits(beyond)
                if version and version != self._version:
                    rows = connection.execute("SELECT path, listing FROM folders WHERE workspace = ?", (self.folder,))
                    self._listings = {path: decode_listing(listing) for path, listing in rows}
        if not version:
            self._listings = {}
        if version != self._version or not version:
            self._version = version
            self._use_rules(*rules)
            return key != _key_of(rules)
        return False

    def _stored(self, connection: sqlite3.Connection) -> tuple[int, float, str, bytes]:
        row = connection.execute(
            "SELECT version, used, beyond, rules FROM workspaces WHERE folder = ?", (self.folder,)
        ).fetchone()
        return row if row is not None else (0, 0.0, "", b"")

    @contextlib.contextmanager
    def _fresh_on_error(self) -> Iterator[None]:
        """Forget what is in memory if it could not be stored; remember for a while that there is too much."""
        with contextlib.ExitStack() as on_error:
            on_error.callback(setattr, self, "_version", None)
            try:
                yield
            except WorkspaceBeyondLimits as error:
                row = self.folder, 0, self._store.clock(), str(error), b""
                with self._store.write() as connection:
                    connection.execute("DELETE FROM folders WHERE workspace = ?", (self.folder,))
                    connection.execute("INSERT OR REPLACE INTO workspaces VALUES (?, ?, ?, ?, ?)", row)
                raise
            on_error.pop_all()

    def _text(self, path: bytes) -> str:
        return os.fsdecode(self._root.rstrip(b"/") + b"/" + path)


def _join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder and name else folder or name


def _is_same_folder(known: FileState, about: os.stat_result) -> bool:
    return (
        known.kind == "folder"
        and stat.S_ISDIR(about.st_mode)
        and stat.S_IMODE(about.st_mode) == known.mode
        and known.owner == (about.st_uid, about.st_gid)
    )


def _is_same_file(known: FileState, about: os.stat_result) -> bool:
    return (known.touched_ns, known.inode, known.size) == (about.st_ctime_ns, about.st_ino, about.st_size)


def _key_of(rules: tuple[RuleFiles, frozenset[bytes]]) -> bytes:
    """Identifies rules that are not in the workspace itself."""
    return hashlib.sha1(repr((rules[0], sorted(rules[1]))).encode()).digest()


def _tree_of(root: bytes, limit: int) -> tuple[dict[bytes, os.stat_result] | None, int]:
    """What is at and below a path, by relative path, and how many files; None if there is more than the limit."""
    try:
        about = os.lstat(root)
    except OSError:
        return {}, 0
    found: dict[bytes, os.stat_result] | None = {b"": about}
    if not stat.S_ISDIR(about.st_mode):
        return found, 1
    count, pending = 0, [b""]
    while pending and count <= COUNTED_FILES:
        rel = pending.pop()
        with contextlib.suppress(OSError), os.scandir(_join(root, rel)) as listed:
            for entry in listed:
                path, is_folder = _join(rel, entry.name), entry.is_dir(follow_symlinks=False)
                count += not is_folder
                pending += [path] if is_folder else []
                if found is not None:
                    with contextlib.suppress(OSError):
                        found[path] = entry.stat(follow_symlinks=False)
                    found = found if len(found) <= limit else None
    return found, count
