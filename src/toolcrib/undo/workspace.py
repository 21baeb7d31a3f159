"""A workspace as of its latest scan: which files it has, and what has changed since the scan before.

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
from functools import lru_cache
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
from toolcrib.undo.store import MEGABYTE, UndoStore, decode_tree, encode_tree

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
Tree = dict[bytes, FileState]
"""What is at each path, relative to the workspace; what git ignores has a slash in front."""
Commit = Callable[[sqlite3.Connection, dict[str, str]], None]
"""Part of the transaction of a scan; gets the ignored folders with deletions that were not saved, and a text each."""
Progress = Callable[[str], None]


class WorkspaceBeyondLimits(ToolcribError):
    """The workspace cannot be scanned; the text says why, as part of a sentence."""


@lru_cache(maxsize=64)
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
class _Scan:
    """What one walk over the workspace found."""

    known: Tree
    is_nobodys: bool
    """Whether what is new in it was there before, so that no call is the reason."""
    ends: float
    progress: Progress | None
    due: float
    """When to report progress."""
    found: Tree = field(default_factory=dict)
    fresh: list[bytes] = field(default_factory=list)
    """The paths that are new, or whose status is another than before."""
    lost: dict[str, str] = field(default_factory=dict)
    has_new_rules: bool = False
    has_forgotten: bool = False
    """Whether it is no longer known what is in an ignored tree, because it has grown too large."""
    seen: int = 0
    size: int = 0

    @property
    def is_as_known(self) -> bool:
        # A file that changed a moment ago is read again by every scan, and often is as it was.
        is_same = all(self.found[path] == self.known.get(path) for path in self.fresh)
        return is_same and not self.has_forgotten and len(self.found) == len(self.known)


class Workspace:
    """The files of one folder that undo follows. Safe for threads; several processes may scan the same folder."""

    def __init__(self, store: UndoStore, folder: str, excluded: Iterable[str] = ()) -> None:
        self.folder = folder
        self.git = GitWorkspace(folder)
        self._store = store
        self._settings = store.settings
        self._root = os.fsencode(folder).rstrip(b"/") + b"/"
        self._excluded = frozenset(os.fsencode(one) for one in excluded)
        self._included = {os.fsencode(one.strip("/")) for one in self._settings.include}
        self._left_out = rules_of((("\n".join((*REBUILT.split(), *self._settings.ignore)).encode(), b""),))
        self._lock = threading.Lock()
        self._version: int | None = None
        """The version of what is in memory; None when there is nothing."""
        self._known: Tree = {}
        self._use_rules((), frozenset())

    def _use_rules(self, files: RuleFiles, tracked: frozenset[bytes]) -> None:
        self._top_rules = files, tracked
        above = {
            b"/".join(one.split(b"/")[:depth]) for one in self._included for depth in range(1, one.count(b"/") + 2)
        }
        self._always = tracked | above
        self._rules: dict[bytes, WorkspaceIgnore] = {}
        """The rules that apply in each folder."""
        self._ignored: dict[bytes, bool] = {}
        """The paths that the rules ignore, and whether each is a folder."""
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
        due = time.monotonic() + PROGRESS_SECONDS
        with self._lock, self._fresh_on_error():
            for _ in range(TRIES):
                rules = self.git.rule_files(self._settings.ignore), self.git.tracked()
                is_nobodys = self._load(rules)
                scan = self._walk(self._known, is_nobodys, progress, due)
                with self._store.write() as connection:
                    if self._stored(connection)[0] != self._version:
                        # Another process was quicker; look again from what it found.
                        self._version = None
                        continue
                    self._read(scan, connection)
                    changes = self._changes(scan)
                    if scan.has_new_rules or rules != self._top_rules:
                        self._follow(rules, scan, connection)
                    self._save(scan, connection)
                    self._store.spread(connection, self.folder, changes, ended)
                    if commit is not None:
                        commit(connection, scan.lost)
                return changes
            raise WorkspaceBeyondLimits("other processes kept changing what is known of the workspace")

    def follows(self, path: str) -> bool:
        """Whether scans see an absolute path, which need not exist."""
        above = f"{self.folder.rstrip('/')}/"
        if not path.startswith(above):
            return path == self.folder
        rel = b""
        for name in os.fsencode(path[len(above) :]).split(b"/"):
            rel = _join(rel, name)
            if rel not in self._known and any(self._ignores(rel, is_folder=one) for one in (True, False)):
                return False
        return True

    def unfollowed(self, path: str) -> list[str]:
        """The paths in a followed folder that scans do not see, except those in other such paths."""
        inside = (os.fsencode(path).rstrip(b"/") + b"/")[len(self._root) :]
        return [self._text(one) for one in list(self._ignored) if one.startswith(inside)]

    # The walk

    def _walk(self, known: Tree, is_nobodys: bool, progress: Progress | None, due: float) -> _Scan:
        scan = _Scan(known, is_nobodys, time.monotonic() + self._settings.max_scan_seconds, progress, due)
        pending = [b""]
        while pending:
            self._visit(pending.pop(), scan, pending)
            self._step(scan)
        self._visit_ignored(scan)
        return scan

    def _step(self, scan: _Scan) -> None:
        """Report now and then that it takes a while, and stop when it is too much."""
        limits, now = self._settings, time.monotonic()
        if scan.progress is not None and now > scan.due:
            scan.due += PROGRESS_SECONDS
            scan.progress(f"saving the workspace for undo: {scan.seen:,} files so far")
        if scan.seen > limits.max_files:
            raise WorkspaceBeyondLimits(f"the workspace has more than {limits.max_files:,} files")
        if scan.size > limits.max_workspace_mb * MEGABYTE:
            raise WorkspaceBeyondLimits(f"the workspace has more than {limits.max_workspace_mb:g} MB of files")
        if now > scan.ends:
            seconds = limits.max_scan_seconds
            raise WorkspaceBeyondLimits(f"looking at the workspace takes longer than {seconds:g} seconds")

    def _visit(self, folder: bytes, scan: _Scan, pending: list[bytes]) -> None:
        """Compare what is in one folder with what is known of it."""
        known, found, ignored, lead = scan.known, scan.found, self._ignored, folder and folder + b"/"
        largest, seen, size = self._settings.max_file_mb * MEGABYTE, 0, 0
        try:
            listed = os.scandir(self._root + folder)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            # Removed meanwhile, or closed to us: what is in it stays as it was.
            found.update((path, state) for path, state in known.items() if path.startswith(lead))
            return
        with listed:
            for entry in listed:
                path = lead + entry.name
                before = known.get(path)
                if before is None:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if ignored.get(path) is is_folder:
                        continue
                    if self._ignores(path, is_folder=is_folder):
                        ignored[path] = is_folder
                        is_rule = entry.name == GIT and folder in self._rules.keys() - self._nested - {b""}
                        scan.has_new_rules |= is_rule
                        continue
                    ignored.pop(path, None)
                try:
                    about = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                seen += 1
                if about.st_size <= largest:
                    size += about.st_size
                if (
                    before is not None
                    and about.st_ctime_ns == before.touched_ns
                    and about.st_ino == before.inode
                    and about.st_size == before.size
                ):
                    found[path] = before
                    continue
                if before is not None and _is_same_folder(before, about):
                    found[path] = before
                else:
                    self._differs(scan, path, about)
                if stat.S_ISDIR(about.st_mode):
                    pending.append(path)
        scan.seen += seen
        scan.size += size

    def _differs(self, scan: _Scan, path: bytes, about: os.stat_result) -> None:
        """A path that is new, or whose status is another than before."""
        with contextlib.suppress(OSError):  # A link that was removed meanwhile.
            scan.found[path] = state_of(about, self._root + path)
            scan.fresh.append(path)
            scan.has_new_rules |= _is_rule(path) and not scan.is_nobodys

    def _visit_ignored(self, scan: _Scan) -> None:
        """Look at what the rules ignore: whether anything was deleted there."""
        files_left, bytes_left = IGNORED_FILES, IGNORED_BYTES
        for root, is_folder in sorted(self._ignored.items()):
            name, full = root.rpartition(b"/")[2], self._root + root
            if name == GIT or full in self._excluded:
                continue
            counted, shown = self._counts.get(root, 0), os.fsdecode(root)
            if self._left_out.ignores(root, is_folder=is_folder):
                if is_folder and b"cache" not in name:
                    self._counts[root] = os.path.lexists(full)
                    if counted and not self._counts[root]:
                        scan.lost[self._text(root)] = f"the ignored folder {shown}/ was deleted"
                continue
            tree, count = _tree_of(full, files_left)
            size = sum(about.st_size for about in tree.values()) if tree is not None else 0
            if tree is not None and size <= bytes_left:
                files_left, bytes_left = files_left - len(tree), bytes_left - size
                self._compare_ignored(scan, b"/" + root, tree)
                self._counts[root] = 0
            else:
                if not counted:
                    self._forget_ignored(scan, b"/" + root)
                self._counts[root] = count
            if counted > count:
                gone = counted - count
                what = "an ignored file was" if gone == 1 else f"{gone:,} ignored files were"
                scan.lost[self._text(root)] = f"{what} deleted in {shown}/"

    def _compare_ignored(self, scan: _Scan, root: bytes, tree: dict[bytes, os.stat_result]) -> None:
        """Compare a small tree with what is known of it."""
        for name, about in tree.items():
            path = _join(root, name)
            known = scan.known.get(path)
            if known is not None and (_is_same_folder(known, about) or _is_same_file(known, about)):
                scan.found[path] = known
            else:
                self._differs(scan, path, about)

    @staticmethod
    def _forget_ignored(scan: _Scan, root: bytes) -> None:
        """Of a tree that is too large now, nothing counts as deleted."""
        for path in [one for one in scan.known if one == root or one.startswith(root + b"/")]:
            del scan.known[path]
            scan.has_forgotten = True

    # Rules

    def _ignores(self, path: bytes, *, is_folder: bool) -> bool:
        folder, _, name = path.rpartition(b"/")
        if name == GIT or self._root + path in self._excluded:
            return True
        if path in self._always or name == GITIGNORE:
            return False
        return self._rules_in(folder).ignores(path, is_folder=is_folder)

    def _rules_in(self, rel: bytes) -> WorkspaceIgnore:
        """The rules that apply in a folder."""
        if rel not in self._rules:
            above, _, _ = rel.rpartition(b"/")
            rules = self._rules_in(above) if rel else rules_of(self._top_rules[0])
            if rel in self._included:
                rules = IGNORE_NOTHING
            elif rules.fixed is None and rel in self._always and rules.ignores(rel, is_folder=True):
                # Followed only for the sake of something in it.
                rules = IGNORE_ALL
            elif rules.fixed is None:
                if rel and os.path.lexists(self._root + rel + b"/" + GIT):
                    # A repository in the workspace has rules of its own.
                    self._nested.add(rel)
                    rules = WorkspaceIgnore()
                rules = rules.inside(self._rule_content(rel), cut=len(rel) + 1 if rel else 0)
            self._rules[rel] = rules
        return self._rules[rel]

    def _rule_content(self, rel: bytes) -> bytes:
        """The ignore file of a folder as the latest scan found it; in a new folder, as it is."""
        path = _join(rel, GITIGNORE)
        state = self._known.get(path)
        with contextlib.suppress(OSError):
            if state is not None and state.kind == "file" and state.digest:
                return self._store.content(state)
            with open(self._root + path, "rb") as stream:  # noqa: PTH123 - bytes
                return stream.read()
        return b""

    def _follow(self, rules: tuple[RuleFiles, frozenset[bytes]], scan: _Scan, connection: sqlite3.Connection) -> None:
        """Walk again with the rules as they are now. What they reveal or hide belongs to no call."""
        self._use_rules(*rules)
        self._known = {}
        again = self._walk({}, True, scan.progress, scan.due)
        # If something known has changed meanwhile, the next scan will tell.
        again.found.update((path, scan.found[path]) for path in again.fresh if path in scan.found)
        again.fresh = [path for path in again.fresh if path not in scan.found]
        self._read(again, connection)
        scan.found, scan.has_forgotten = again.found, True

    # Contents and the store

    def _read(self, scan: _Scan, connection: sqlite3.Connection) -> None:
        """Read the files that differ, and store their contents."""
        largest = self._settings.max_file_mb * MEGABYTE
        for at, path in enumerate(scan.fresh):
            if scan.found[path].kind == "file":
                scan.found[path], content = read_state(self._root + path, scan.found[path], largest)
                before = scan.known.get(path)
                # Of a file that only seems changed, the content is stored already.
                if content and (before is None or before.digest != scan.found[path].digest):
                    self._store.add_content(connection, scan.found[path].digest, content)
            if at % 64 == 0:
                self._step(scan)

    def _changes(self, scan: _Scan) -> Changes:
        """What is new, different or gone; in what git ignores, only what is gone."""
        changes: Changes = {}
        for path in scan.fresh:
            before, now = scan.known.get(path, MISSING), scan.found[path]
            is_nobodys = path.startswith(b"/") or (scan.is_nobodys and before is MISSING)
            if not is_nobodys and not before.is_same(now):
                changes[self._text(path)] = before, now
        if not scan.is_as_known:
            for path in scan.known.keys() - scan.found.keys():
                # Not if it only counts as ignored no more.
                if not path.startswith(b"/") or path[1:] not in scan.found:
                    scan.has_new_rules |= _is_rule(path)
                    changes[self._text(path)] = scan.known[path], MISSING
        return changes

    def _save(self, scan: _Scan, connection: sqlite3.Connection) -> None:
        self._known = scan.found
        if scan.is_as_known and self._version:
            return
        self._version = (self._version or 0) + 1
        row = self.folder, self._version, self._store.clock(), "", _key_of(self._top_rules), encode_tree(scan.found)
        connection.execute("INSERT OR REPLACE INTO workspaces VALUES (?, ?, ?, ?, ?, ?)", row)

    def _load(self, rules: tuple[RuleFiles, frozenset[bytes]]) -> bool:
        """Read what is known, unless it is in memory. Whether what is new was there before."""
        if self._version:
            # The transaction of the scan finds out whether another process has changed it since.
            return False
        version, used, beyond, key = 0, 0.0, "", b""
        if self._store.exists:
            with self._store.read() as connection:
                version, used, beyond, key = self._stored(connection)
                if beyond and self._store.clock() - used < CHECKED_AGAIN_SECONDS:
                    raise WorkspaceBeyondLimits(beyond)
                if version:
                    row = connection.execute("SELECT tree FROM workspaces WHERE folder = ?", (self.folder,)).fetchone()
                    self._known = decode_tree(row[0])
        if not version:
            self._known = {}
        self._version = version
        self._use_rules(*rules)
        return key != _key_of(rules)

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
                row = self.folder, 0, self._store.clock(), str(error), b"", b""
                with self._store.write() as connection:
                    connection.execute("INSERT OR REPLACE INTO workspaces VALUES (?, ?, ?, ?, ?, ?)", row)
                raise
            on_error.pop_all()

    def _text(self, path: bytes) -> str:
        return os.fsdecode(self._root + path.removeprefix(b"/"))


def _join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder and name else folder or name


def _is_rule(path: bytes) -> bool:
    return path.endswith(GITIGNORE) and path.rpartition(b"/")[2] == GITIGNORE and not path.startswith(b"/")


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
