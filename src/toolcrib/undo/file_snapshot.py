"""Snapshots of the paths that a call may change: which of them undo covers, what is there, and copies of the contents.

Undo covers the workspace and the user's skills, but never anything in a `.git`: an undo must not rewind a repository
behind git's back. When a whole repository is deleted, its files come back and its `.git` does not; the journal says so.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from toolcrib.undo.files import MISSING, FileState, SnapshotFiles
from toolcrib.undo.journal import PackWriter

GIT = ".git"
DEVICES = ("/dev/", "/proc/", "/sys/")

How = Literal["path", "tree", "modes", "guess"]


@dataclass(frozen=True, slots=True)
class TargetPath:
    """A path that a call may change, delete or create."""

    path: str
    """Absolute, or relative to the folder of the call."""
    how: How = "path"
    """`path`: only this path; `tree`: everything below it, too; `modes`: only the permissions of a tree; `guess`: a
    limited part of what is below, because it is unknown what will change."""


@dataclass(frozen=True, slots=True)
class CallTargets:
    """Everything that one call may change, and notes on what is unknown."""

    targets: tuple[TargetPath, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UndoScope:
    """The folders that undo covers: real paths of one environment."""

    files: SnapshotFiles
    workspace: str
    others: tuple[str, ...] = ()
    """More folders that are covered, wherever they are."""
    excluded: tuple[str, ...] = ()
    """Folders in the workspace that are not covered."""

    def absolute(self, path: str, folder: str = "") -> str:
        """The absolute path with the links in the folders above it resolved; the path itself may be a link."""
        path = os.path.join(folder or self.workspace, path)  # noqa: PTH118 - of any machine
        if path.endswith("/."):
            return self.files.real(path)
        path = os.path.normpath(path)
        above, _, name = path.rpartition("/")
        if not name:
            return self.files.real(path)
        return f"{self.files.real(above or '/').rstrip('/')}/{name}"

    def holds(self, path: str) -> bool:
        """Whether undo covers an absolute path."""
        if GIT in path.split("/"):
            return False
        if any(_is_at_or_in(path, folder) for folder in self.others):
            return True
        if any(_is_at_or_in(path, folder) for folder in self.excluded):
            return False
        return path != self.workspace and _is_at_or_in(path, self.workspace)

    def may_enter(self, path: str) -> bool:
        """Whether undo may cover something in an absolute folder."""
        return self.holds(path) or (path == self.workspace and bool(path))

    def missing_above(self, path: str) -> list[str]:
        """The folders above a path that do not exist, the topmost first."""
        found: list[str] = []
        above = path.rpartition("/")[0]
        while above and self.holds(above) and self.files.is_missing(above):
            found.insert(0, above)
            above = above.rpartition("/")[0]
        return found


def _is_at_or_in(path: str, folder: str) -> bool:
    return bool(folder) and (path == folder or path.startswith(folder.rstrip("/") + "/"))


RACY_NS = 50_000_000
"""A file that changed this recently may change again without a new timestamp."""
LARGE_BYTES = 256_000
"""From this size on, computing a digest is worth avoiding."""
GUESSED_FILES = 500
GUESSED_BYTES = 16_000_000
HASHED_AFTERWARDS_BYTES = 64_000_000
"""Beyond this, what a call left is identified by its timestamp alone."""
ORDER: dict[How, int] = {"tree": 0, "path": 1, "modes": 2, "guess": 3}
HEAVY_FOLDERS = frozenset({"node_modules", ".venv", "venv", "__pycache__", "target", ".tox", ".mypy_cache"})
"""Guesses skip these, because they can be rebuilt."""


@dataclass(frozen=True, kw_only=True)
class SnapshotLimits:
    """How much is saved for one call."""

    max_file_bytes: int
    max_bytes: int
    """For all files of the call together."""
    max_files: int = 20_000
    seconds: float = 10.0


StoredContents = dict[str, tuple[str, int]]
"""Stored contents by their digest: the pack and the offset in it."""


class FileSnapshot:
    """What was at the paths of one call. Contents go into the pack, if there is one."""

    def __init__(
        self,
        scope: UndoScope,
        limits: SnapshotLimits,
        *,
        pack: PackWriter | None = None,
        kept: StoredContents | None = None,
        earlier: FileSnapshot | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.states: dict[str, FileState] = {}
        self.notes: dict[str, None] = {}
        self.newly_kept: StoredContents = {}
        self._listed: dict[str, frozenset[str]] = {}
        self._scope, self._files, self._limits = scope, scope.files, limits
        self._pack, self._kept = pack, kept if kept is not None else {}
        self._earlier = earlier
        self.began_ns = time.time_ns()
        self._clock = clock
        self._ends = clock() + limits.seconds
        self._bytes = 0
        self._is_full = False
        self._guesses = [GUESSED_FILES, GUESSED_BYTES]

    def take_all(self, targets: Iterable[TargetPath], folder: str) -> None:
        """Record everything that the targets name; note what fails."""
        # What is certain goes first: guesses must not use up its limits.
        ordered = sorted(targets, key=lambda one: ORDER[one.how])
        self._fetch([one.path for one in ordered if one.how in ("path", "tree")], folder)
        for target in ordered:
            try:
                self._take(target, folder)
            except OSError as error:
                self.note(target.path, error.strerror or str(error))

    def knew_missing(self, path: str) -> bool:
        """Whether nothing was at a path that has no record; False when that is uncertain."""
        while path:
            above, _, name = path.rpartition("/")
            if above in self.states and self.states[above].kind != "folder":
                return True
            if above in self._listed:
                return name not in self._listed[above]
            path = above
        return False

    def _fetch(self, paths: Sequence[str], folder: str) -> None:
        if not self._files.is_remote:
            return
        try:
            absolute = [self._scope.absolute(path, folder) for path in paths if path and "\0" not in path]
            self._files.fetch([path for path in absolute if self._scope.holds(path)], self._limits.max_bytes)
        except OSError as error:
            self.notes[f"not saved: {error}"] = None

    def take_paths(self, paths: Iterable[str]) -> None:
        """Record what is at paths recorded before the call; a path through a link counts as missing."""
        wanted = list(paths)
        self._fetch(wanted, "")
        real: dict[str, str] = {}
        for path in wanted:
            above = path.rpartition("/")[0] or "/"
            try:
                if above not in real:
                    real[above] = self._files.real(above)
                if real[above] != above:
                    self.states[path] = MISSING
                    continue
                self._take_missing_above(path)
                self._walk(path, "path")
            except OSError as error:
                self.note(path, error.strerror or str(error))

    def note(self, path: str, reason: str) -> None:
        self.notes[f"not saved: {path}: {reason}"] = None

    def _take(self, target: TargetPath, folder: str) -> None:
        if "\0" in target.path or not target.path:
            return
        path = self._scope.absolute(target.path, folder)
        if not self._scope.may_enter(path):
            if GIT in path.split("/"):
                self.note(path, "undo does not cover the data of git")
            return
        self._take_missing_above(path)
        self._walk(path, target.how)
        state = self.states.get(path)
        if state is not None and state.kind == "link" and self._earlier is None:
            # Writes go through the link, but files out of scope are not copied.
            real = self._files.real(path)
            if self._scope.holds(real) and real != path:
                self._walk(real, "path")

    def _take_missing_above(self, path: str) -> None:
        for above in self._scope.missing_above(path):
            self.states.setdefault(above, MISSING)

    def _walk(self, path: str, how: How) -> None:
        if not self._scope.may_enter(path):
            if path.endswith(f"/{GIT}"):
                self.note(path, "undo does not cover the data of git")
            return
        is_guess = how == "guess"
        if not self._has_time(path) or (is_guess and self._guesses[0] <= 0):
            return
        state = self._files.look(path)
        if is_guess and state.kind == "file" and (state.size > self._guesses[1] or path in self.states):
            return
        if self._scope.holds(path) and path not in self.states:
            self.states[path] = self._completed(path, state, how)
            if is_guess:
                self._guesses[0] -= 1
                self._guesses[1] -= state.size
        if state.kind == "folder" and how != "path" and not (is_guess and path.rpartition("/")[2] in HEAVY_FOLDERS):
            names = self._files.names(path)
            self._listed[path] = frozenset(names)
            for name in names:
                self._walk(f"{path.rstrip('/')}/{name}", how)

    def _has_time(self, path: str) -> bool:
        if len(self.states) >= self._limits.max_files:
            reason = f"the call touches more than {self._limits.max_files} files"
        elif self._clock() > self._ends:
            reason = "it would have taken too long"
        else:
            return True
        if not self._is_full:
            self._is_full = True
            self.note(f"{path} and what comes after it", reason)
        return False

    def _completed(self, path: str, state: FileState, how: How) -> FileState:
        """The state with the digest of a file and where its content is stored."""
        if state.kind != "file" or how == "modes":
            return state
        known = self._known(path, state)
        if known:
            return replace(state, digest=known)
        if self._pack is None and (self._is_new(path, state) or self._bytes + state.size > HASHED_AFTERWARDS_BYTES):
            return state
        if state.size > self._limits.max_file_bytes:
            limit = self._limits.max_file_bytes / 1_000_000
            return replace(state, not_kept=f"it was larger than {limit:g} MB, so no copy was saved")
        if self._pack is not None and self._bytes + state.size > self._limits.max_bytes:
            return replace(state, not_kept="there was no room for another copy")
        try:
            content = self._files.read(path, self._limits.max_file_bytes)
        except OSError:
            return replace(state, not_kept="it could not be read, so no copy was saved")
        if content is None:
            return replace(state, not_kept="it grew while it was read")
        return self._with_content(state, content)

    def _known(self, path: str, state: FileState) -> str:
        """The digest of a file that has certainly not changed since it was read; "" when it must be read again."""
        earlier = self._earlier.states.get(path) if self._earlier is not None else None
        if self._earlier is None or earlier is None or not state.touched_ns:
            return ""
        same = (state.stamp, state.touched_ns, state.size) == (earlier.stamp, earlier.touched_ns, earlier.size)
        # Right after a change, file timestamps are too coarse to show the next one.
        return earlier.digest if same and self._earlier.began_ns - state.touched_ns > RACY_NS else ""

    def _is_new(self, path: str, state: FileState) -> bool:
        """Whether a large file has certainly changed; its timestamp is then enough to identify it."""
        if self._earlier is None or state.size < LARGE_BYTES or not state.stamp:
            return False
        earlier = self._earlier.states.get(path)
        return earlier is None or earlier.kind != "file" or earlier.stamp != state.stamp

    def _with_content(self, state: FileState, content: bytes) -> FileState:
        digest = hashlib.sha256(content).hexdigest()
        self._bytes += len(content)
        if self._pack is None:
            return replace(state, digest=digest, size=len(content))
        environment = self._kept.get(digest) or self.newly_kept.get(digest)
        if environment is None or not self._pack.is_there(environment[0]):
            environment = self.newly_kept[digest] = self._pack.name, self._pack.add(content)
        return replace(state, digest=digest, size=len(content), pack=environment[0], offset=environment[1])
