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

from msgspec.structs import replace

from toolcrib.config.os_errors import reason_of
from toolcrib.core.errors import ToolcribError
from toolcrib.undo.files import MISSING, UNSAVED, FileState, read_state, state_of
from toolcrib.undo.ignore import (
    IGNORE_ALL,
    IGNORE_NOTHING,
    REBUILT,
    GitWorkspace,
    RuleFiles,
    WorkspaceIgnore,
    rules_of,
)
from toolcrib.undo.store import MEGABYTE, Changes, Tree, UndoStore, decode_tree, encode

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

Commit = Callable[[sqlite3.Connection, "Scan"], None]
"""Part of the transaction of a scan."""
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
class Scan:
    """What one walk over the workspace found."""

    known: Tree
    is_nobodys: bool
    """Whether what is new in it was there before, so that no call is the reason."""
    ends: float
    progress: Progress | None
    due: float
    """When to report progress."""
    found: Tree = field(default_factory=dict)
    """A folder in which nothing has changed is the very object that is known."""
    fresh: list[tuple[bytes, bytes]] = field(default_factory=list)
    """The folders and names of what is new, or has another status than before."""
    lost: dict[str, str] = field(default_factory=dict)
    """Ignored folders with deletions that were not saved, and a text for each."""
    unsaved: dict[str, str] = field(default_factory=dict)
    """Files whose contents could not be stored, and why."""
    has_new_rules: bool = False
    seen: int = 0


class Workspace:
    """The files of one folder that undo follows. Safe for threads; several processes may scan the same folder."""

    def __init__(self, store: UndoStore, folder: str, excluded: Iterable[str] = ()) -> None:
        self.folder = folder
        self.git = GitWorkspace(folder)
        self._store = store
        self._settings = store.settings
        self._largest = self._settings.max_file_mb * MEGABYTE
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
                    self._save(scan.found, connection)
                    self._store.spread(connection, self.folder, changes, ended)
                    if commit is not None:
                        commit(connection, scan)
                return changes
            raise WorkspaceBeyondLimits("other processes kept changing what is known of the workspace")

    def follows(self, path: str) -> bool:
        """Whether scans see an absolute path, which need not exist."""
        above = f"{self.folder.rstrip('/')}/"
        if not path.startswith(above):
            return path == self.folder
        folder = b""
        for name in os.fsencode(path[len(above) :]).split(b"/"):
            rel = _join(folder, name)
            is_known = name in self._known.get(folder, ())
            if not is_known and any(self._ignores(rel, is_folder=one) for one in (True, False)):
                return False
            folder = rel
        return True

    def unfollowed(self, path: str) -> list[str]:
        """The paths in a followed folder that scans do not see, except those in other such paths."""
        inside = (os.fsencode(path).rstrip(b"/") + b"/")[len(self._root) :]
        return [self._text(b"", one) for one in list(self._ignored) if one.startswith(inside)]

    # The walk

    def _walk(self, known: Tree, is_nobodys: bool, progress: Progress | None, due: float) -> Scan:
        scan = Scan(known, is_nobodys, time.monotonic() + self._settings.max_scan_seconds, progress, due)
        pending = [b""]
        while pending:
            self._visit(pending.pop(), scan, pending)
            self._check_limits(scan)
        self._visit_ignored(scan)
        if scan.fresh:
            most = self._settings.max_workspace_mb
            followed = (names for folder, names in scan.found.items() if not folder.startswith(b"/"))
            size = sum(one.size for names in followed for one in names.values() if one.size <= self._largest)
            if size > most * MEGABYTE:
                raise WorkspaceBeyondLimits(f"the workspace has more than {most:g} MB of files")
        return scan

    def _check_limits(self, scan: Scan) -> None:
        """Report now and then that it takes a while, and stop when it is too much."""
        limits, now = self._settings, time.monotonic()
        if scan.progress is not None and now > scan.due:
            scan.due += PROGRESS_SECONDS
            scan.progress(f"saving the workspace for undo: {scan.seen:,} files so far")
        if scan.seen > limits.max_files:
            raise WorkspaceBeyondLimits(f"the workspace has more than {limits.max_files:,} files")
        if now > scan.ends:
            seconds = limits.max_scan_seconds
            raise WorkspaceBeyondLimits(f"looking at the workspace takes longer than {seconds:g} seconds")

    def _visit(self, folder: bytes, scan: Scan, pending: list[bytes]) -> None:
        """Compare what is in one folder with what is known of it."""
        known: dict[bytes, FileState] = scan.known.get(folder, {})
        found: dict[bytes, FileState] = {}
        lead, fresh = folder and folder + b"/", len(scan.fresh)
        try:
            listed = os.scandir(self._root + folder)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            # Removed meanwhile, or closed to us: what is in it stays as it was.
            scan.found.update((one, scan.known[one]) for one in scan.known if one == folder or one.startswith(lead))
            return
        with listed:
            for entry in listed:
                name = entry.name
                before = known.get(name)
                if before is None and self._leaves_out(folder, lead + name, entry, scan):
                    continue
                try:
                    about = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if (
                    before is not None
                    and about.st_ctime_ns == before.touched_ns
                    and about.st_ino == before.inode
                    and about.st_size == before.size
                ):
                    found[name] = before
                    continue
                self._compare(scan, folder, name, before, about, found)
                if stat.S_ISDIR(about.st_mode):
                    pending.append(lead + name)
        scan.seen += len(found)
        scan.found[folder] = known if len(found) == len(known) and len(scan.fresh) == fresh else found

    def _compare(
        self,
        scan: Scan,
        folder: bytes,
        name: bytes,
        before: FileState | None,
        about: os.stat_result,
        found: dict[bytes, FileState],
    ) -> None:
        """Add a path, which is fresh unless it is the same folder as before."""
        if before is not None and _is_same_folder(before, about):
            found[name] = before
            return
        with contextlib.suppress(OSError):  # A link that was removed meanwhile.
            found[name] = state_of(about, self._root + _join(folder.removeprefix(b"/"), name))
            scan.fresh.append((folder, name))

    def _leaves_out(self, folder: bytes, path: bytes, entry: os.DirEntry[bytes], scan: Scan) -> bool:
        """Whether the rules ignore a path that is not known yet."""
        is_folder = entry.is_dir(follow_symlinks=False)
        if self._ignored.get(path) is is_folder:
            return True
        if not self._ignores(path, is_folder=is_folder):
            self._ignored.pop(path, None)
            return False
        self._ignored[path] = is_folder
        scan.has_new_rules |= entry.name == GIT and folder in self._rules.keys() - self._nested - {b""}
        return True

    def _visit_ignored(self, scan: Scan) -> None:
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
                        scan.lost[self._text(b"", root)] = f"the ignored folder {shown}/ was deleted"
                continue
            tree, count = _tree_of(full, files_left)
            size = sum(about.st_size for about in tree.values()) if tree is not None else 0
            if tree is not None and size <= bytes_left:
                files_left, bytes_left = files_left - len(tree), bytes_left - size
                self._counts[root] = 0
                for path, about in tree.items():
                    folder, name = _ignored_at(_join(root, path))
                    before, found = scan.known.get(folder, {}).get(name), scan.found.setdefault(folder, {})
                    if before is not None and _is_same_file(before, about):
                        found[name] = before
                    else:
                        self._compare(scan, folder, name, before, about, found)
            else:
                if not counted:
                    # Of a tree that is too large now, nothing counts as deleted.
                    scan.known = _without(scan.known, root)
                self._counts[root] = count
            if counted > count:
                gone = counted - count
                what = "an ignored file was" if gone == 1 else f"{gone:,} ignored files were"
                scan.lost[self._text(b"", root)] = f"{what} deleted in {shown}/"

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
        state = self._known.get(rel, {}).get(GITIGNORE)
        with contextlib.suppress(OSError):
            if state is not None and state.kind == "file" and state.digest:
                return self._store.content(state)
            with open(self._root + _join(rel, GITIGNORE), "rb") as stream:  # noqa: PTH123 - bytes
                return stream.read()
        return b""

    def _follow(self, rules: tuple[RuleFiles, frozenset[bytes]], scan: Scan, connection: sqlite3.Connection) -> None:
        """Walk again with the rules as they are now. What they reveal or hide belongs to no call."""
        self._use_rules(*rules)
        self._known = {}
        again = self._walk({}, True, scan.progress, scan.due)
        # If something known has changed meanwhile, the next scan will tell.
        fresh, again.fresh = again.fresh, []
        for folder, name in fresh:
            before = scan.found.get(folder, {}).get(name)
            if before is None:
                again.fresh.append((folder, name))
            else:
                again.found[folder][name] = before
        self._read(again, connection)
        scan.found = again.found

    # Contents and the store

    def _read(self, scan: Scan, connection: sqlite3.Connection) -> None:
        """Read the files that differ, and store their contents."""
        for at, (folder, name) in enumerate(scan.fresh):
            names = scan.found[folder]
            if names[name].kind == "file":
                path = self._root + _join(folder.removeprefix(b"/"), name)
                names[name], content = read_state(path, names[name], self._largest)
                before = scan.known.get(folder, {}).get(name, MISSING)
                # Of a file that only seems changed, the content is stored already.
                is_stored = before.digest == names[name].digest and not before.not_kept
                try:
                    if content and not is_stored:
                        self._store.add_content(connection, names[name].digest, content)
                except OSError as error:
                    scan.unsaved[self._text(folder, name)] = reason_of(error)
                    # Without a time, so that the next scan tries again.
                    names[name] = replace(names[name], touched_ns=0, not_kept=UNSAVED.format(reason_of(error)))
            if at % 64 == 0:
                self._check_limits(scan)

    def _changes(self, scan: Scan) -> Changes:
        """What is new, different or gone; in what git ignores, only what is gone."""
        changes: Changes = {}
        for folder in {**scan.known, **scan.found}:
            known, found = scan.known.get(folder, {}), scan.found.get(folder, {})
            if known is found:
                continue
            is_ignored = folder.startswith(b"/")
            for name in {**known, **found}:
                before, now = known.get(name, MISSING), found.get(name, MISSING)
                if is_ignored:
                    # Neither if it only counts as ignored no more.
                    is_nobodys = now is not MISSING or name in scan.found.get(folder[1:], ())
                else:
                    is_nobodys = scan.is_nobodys and before is MISSING
                if not is_nobodys and not before.is_same(now):
                    changes[self._text(folder, name)] = before, now
                    scan.has_new_rules |= name == GITIGNORE and not is_ignored
        return changes

    def _save(self, found: Tree, connection: sqlite3.Connection) -> None:
        if self._version and found == self._known:
            return
        self._known, self._version = found, (self._version or 0) + 1
        self._store_row(connection, self._version, "", _key_of(self._top_rules), encode(found))

    def _store_row(self, connection: sqlite3.Connection, version: int, beyond: str, rules: bytes, tree: bytes) -> None:
        row = self.folder, version, self._store.clock(), beyond, rules, tree
        connection.execute("INSERT OR REPLACE INTO workspaces VALUES (?, ?, ?, ?, ?, ?)", row)

    def _load(self, rules: tuple[RuleFiles, frozenset[bytes]]) -> bool:
        """Read what is known, unless it is in memory. Whether what is new was there before."""
        if self._version:
            # The transaction of the scan finds out whether another process has changed it since.
            return False
        self._version, self._known, key = 0, {}, b""
        if self._store.exists:
            with self._store.read() as connection:
                self._version, used, beyond, key = self._stored(connection)
                if beyond and self._store.clock() - used < CHECKED_AGAIN_SECONDS:
                    raise WorkspaceBeyondLimits(beyond)
                if self._version:
                    row = connection.execute("SELECT tree FROM workspaces WHERE folder = ?", (self.folder,)).fetchone()
                    self._known = decode_tree(row[0])
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
                with self._store.write() as connection:
                    self._store_row(connection, 0, str(error), b"", b"")
                raise
            on_error.pop_all()

    def _text(self, folder: bytes, name: bytes) -> str:
        return os.fsdecode(self._root + _join(folder.removeprefix(b"/"), name))


def _join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder and name else folder or name


def _ignored_at(path: bytes) -> tuple[bytes, bytes]:
    """Where an ignored path is in a tree."""
    folder, _, name = path.rpartition(b"/")
    return b"/" + folder, name


def _without(known: Tree, root: bytes) -> Tree:
    """What is known, except of one ignored path and what is below it."""
    (folder, name), below = _ignored_at(root), b"/" + root
    kept = {one: names for one, names in known.items() if one != below and not one.startswith(below + b"/")}
    if folder in kept:
        kept[folder] = {one: state for one, state in kept[folder].items() if one != name}
    return kept


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
