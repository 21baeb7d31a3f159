"""Snapshots of paths that a call names, wherever they are and whether scans follow them or not.

Nothing in a `.git` is ever saved: an undo must not rewind a repository behind git's back.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from toolcrib.undo.files import MISSING, FileState, SnapshotFiles, with_content
from toolcrib.undo.store import MEGABYTE, UndoStore, is_below

NOT_GIT = "undo does not cover the data of git"
NOT_HOME = "undo does not save a whole home folder"


@dataclass(frozen=True, kw_only=True)
class UndoScope:
    """Which named paths undo covers, and which of them a scan sees anyway."""

    excluded: tuple[str, ...] = ()
    """Folders that are not covered."""
    included: tuple[str, ...] = ()
    """Folders in them that are."""
    home: str = ""
    follows: Callable[[str], bool] = lambda _: False
    """Whether a scan sees a path."""
    unfollowed: Callable[[str], list[str]] = lambda _: []
    """What scans do not see below a folder that they see."""

    def refuses(self, path: str) -> str:
        """Why an absolute path is not saved; "" if it may be, "-" if there is nothing to say."""
        if ".git" in path.split("/"):
            return NOT_GIT
        return "-" if is_below(path, self.excluded) and not is_below(path, self.included) else ""

    def may_walk(self, folder: str) -> bool:
        return not self.home or not (folder == "/" or self.home == folder or is_below(self.home, [folder]))


@dataclass(frozen=True, kw_only=True)
class SnapshotLimits:
    """How much is saved for the paths that one call names."""

    max_files: int = 20_000
    max_bytes: int = 500_000_000
    seconds: float = 10.0


ANYWHERE = UndoScope()


class PathSnapshot:
    """What is at the paths that a call names. Contents go into the store if there is a connection to it."""

    def __init__(
        self,
        files: SnapshotFiles,
        store: UndoStore,
        scope: UndoScope = ANYWHERE,
        limits: SnapshotLimits | None = None,
        *,
        connection: sqlite3.Connection | None = None,
        earlier: Mapping[str, FileState] | None = None,
    ) -> None:
        self.states: dict[str, FileState] = {}
        self.notes: dict[str, None] = {}
        self.is_complete = True
        """Whether everything below the named folders was looked at."""
        self._files, self._store, self._scope = files, store, scope
        self._limits = limits or SnapshotLimits()
        self._connection = connection
        self._earlier = earlier or {}
        self._ends = time.monotonic() + self._limits.seconds
        self._bytes = 0

    def take(self, paths: Iterable[str], *, below: bool = True) -> None:
        """Record what is at absolute paths, and below them if they are folders; note what fails."""
        wanted = list(dict.fromkeys(self._absolute(path) for path in paths))
        if self._files.is_remote:
            self._files.fetch(wanted, self._limits.max_bytes)
        for path in wanted:
            try:
                self._take(path, below)
            except OSError as error:
                self.note(path, error.strerror or str(error))

    def take_recorded(self, paths: Iterable[str]) -> None:
        """Record what is at paths from an earlier snapshot; a path through a link counts as missing."""
        wanted = list(paths)
        if self._files.is_remote:
            self._files.fetch(wanted, self._limits.max_bytes)
        real: dict[str, str] = {}
        for path in wanted:
            above = path.rpartition("/")[0] or "/"
            try:
                if above not in real:
                    real[above] = self._files.real(above)
                self.states[path] = self._state(path) if real[above] == above else MISSING
            except OSError as error:
                self.note(path, error.strerror or str(error))

    def note(self, path: str, reason: str) -> None:
        self.notes[f"not saved: {path}: {reason}"] = None

    def _absolute(self, path: str) -> str:
        """The path with the links in the folders above it resolved; the path itself may be a link."""
        path = os.path.normpath(path)
        above, _, name = path.rpartition("/")
        if not name:
            return "/"
        return f"{self._files.real(above or '/').rstrip('/')}/{name}"

    def _take(self, path: str, below: bool) -> None:
        refused = self._scope.refuses(path)
        if refused:
            if refused != "-":
                self.note(path, refused)
            return
        above = path.rpartition("/")[0]
        missing = []
        while above and above not in self.states and self._files.look(above).kind == "missing":
            missing.append(above)
            above = above.rpartition("/")[0]
        self.states.update((one, MISSING) for one in reversed(missing) if not self._scope.follows(one))
        self._walk(path, below)
        if self._connection is not None and self._files.look(path).kind == "link":
            # Writes will go through the link.
            real = self._files.real(path)
            if real != path and self._files.look(real).kind != "folder" and not self._scope.refuses(real):
                self._walk(real, below=False)

    def _walk(self, path: str, below: bool) -> None:
        pending = [path]
        while pending:
            path = pending.pop()
            if path.endswith("/.git"):
                self.note(path, NOT_GIT)
                continue
            if self._scope.refuses(path) or path in self.states or not self._has_room(path):
                continue
            if self._scope.follows(path):
                pending += self._scope.unfollowed(path) if below else []
                continue
            state = self._files.look(path)
            self.states[path] = self._state(path, state)
            if state.kind == "folder" and below:
                if not self._scope.may_walk(path):
                    self.is_complete = False
                    self.note(path, NOT_HOME)
                    continue
                pending += [f"{path.rstrip('/')}/{name}" for name in reversed(self._files.names(path))]

    def _has_room(self, path: str) -> bool:
        if len(self.states) >= self._limits.max_files:
            reason = f"the call names more than {self._limits.max_files:,} files"
        elif time.monotonic() > self._ends:
            reason = "it would have taken too long"
        else:
            return True
        if self.is_complete:
            self.is_complete = False
            self.note(f"{path} and what comes after it", reason)
        return False

    def _state(self, path: str, state: FileState | None = None) -> FileState:
        """The state with the digest of a file, whose content is stored if there is a connection."""
        state = self._files.look(path) if state is None else state
        if state.kind != "file":
            return state
        earlier = self._earlier.get(path)
        if earlier is not None and earlier.digest and state.touched_ns and _status(state) == _status(earlier):
            return replace(state, digest=earlier.digest, stamp="")
        largest = self._store.settings.max_file_mb * MEGABYTE
        if state.size > largest:
            return replace(state, not_kept=f"it was larger than {largest / MEGABYTE:g} MB, so no copy was saved")
        if self._connection is not None and self._bytes + state.size > self._limits.max_bytes:
            return replace(state, not_kept="there was no room for another copy")
        try:
            content = self._files.read(path, int(largest))
        except OSError:
            return replace(state, not_kept="it could not be read, so no copy was saved")
        if content is None:
            return replace(state, not_kept="it grew while it was read")
        found = with_content(state, content)
        self._bytes += len(content)
        if self._connection is not None and content:
            self._store.add_content(self._connection, found.digest, content)
        return found


def _status(state: FileState) -> tuple[int, int, int]:
    return state.touched_ns, state.inode, state.size


def real_home() -> str:
    """The home folder of the user; empty if there is none."""
    try:
        return os.path.realpath(Path.home())
    except RuntimeError:
        return ""
