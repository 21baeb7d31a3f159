"""Snapshots of paths that a call names, wherever they are and whether scans follow them or not.

Nothing in a `.git` is ever saved: an undo must not rewind a repository behind git's back.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from toolcrib.config.os_errors import reason_of
from toolcrib.undo.files import MISSING, UNSAVED, FileState
from toolcrib.undo.remote_files import SnapshotFiles
from toolcrib.undo.store import MEGABYTE, UndoStore, is_below
from toolcrib.undo.workspace import Workspace

NOT_GIT = "undo does not cover the data of git"
NOT_HOME = "undo does not save a whole home folder"


@dataclass(frozen=True, kw_only=True)
class UndoScope:
    """Which named paths undo covers."""

    excluded: str = ""
    """A folder that is not covered."""
    included: str = ""
    """A folder in it that is."""
    home: str = ""
    """The home of the user, which is never saved as a whole."""

    def covers(self, path: str) -> bool:
        is_excluded = bool(self.excluded) and is_below(path, [self.excluded]) and not is_below(path, [self.included])
        return not is_excluded and not _is_git(path)


class SnapshotLimits(NamedTuple):
    """How much is saved for the paths that one call names."""

    max_files: int = 20_000
    max_bytes: int = 500_000_000
    seconds: float = 10.0


ANYWHERE = UndoScope()


class PathSnapshot:
    """What is at the paths that a call names, except for what the scans of a workspace see.

    Contents go into the store if there is a connection to it.
    """

    def __init__(
        self,
        files: SnapshotFiles,
        store: UndoStore,
        scope: UndoScope = ANYWHERE,
        *,
        workspace: Workspace | None = None,
        connection: sqlite3.Connection | None = None,
        earlier: Mapping[str, FileState] | None = None,
    ) -> None:
        self.states: dict[str, FileState] = {}
        self.notes: dict[str, None] = {}
        self.is_complete = True
        """Whether everything below the named folders was looked at."""
        self.unsaved: dict[str, str] = {}
        """Files whose contents could not be stored, and why."""
        self._files, self._store, self._scope, self._connection = files, store, scope, connection
        self._workspace, self._earlier = workspace, earlier or {}
        self._limits, self._most, self._ends, self._bytes = SnapshotLimits(), 0, 0.0, 0

    def take(self, paths: Iterable[str], limits: SnapshotLimits) -> None:
        """Record what is at absolute paths, and below them if they are folders; note what fails."""
        self._limits, self._most = limits, len(self.states) + limits.max_files
        self._ends = time.monotonic() + limits.seconds
        wanted = list(dict.fromkeys(self._absolute(path) for path in paths))
        self._files.fetch(wanted, limits.max_bytes)
        for path in wanted:
            try:
                self._take(path)
            except OSError as error:
                # What is there is unknown, so it must not count as new later.
                self.is_complete = False
                self.note(path, reason_of(error))

    def take_recorded(self, paths: Iterable[str]) -> None:
        """Record what is at paths from an earlier snapshot; a path through a link counts as missing."""
        wanted = list(paths)
        self._files.fetch(wanted, self._limits.max_bytes)
        real: dict[str, str] = {}
        for path in wanted:
            above = path.rpartition("/")[0] or "/"
            try:
                if above not in real:
                    real[above] = self._files.real(above)
                self.states[path] = self._state(path) if real[above] == above else MISSING
            except OSError as error:
                self.note(path, reason_of(error))

    def note(self, path: str, reason: str) -> None:
        self.notes[f"not saved: {path}: {reason}"] = None

    def _absolute(self, path: str) -> str:
        """The path with the links in the folders above it resolved; the path itself may be a link."""
        above, _, name = os.path.normpath(path).rpartition("/")
        return f"{self._files.real(above or '/').rstrip('/')}/{name}" if name else "/"

    def _take(self, path: str) -> None:
        if not self._scope.covers(path):
            if _is_git(path):
                self.note(path, NOT_GIT)
            return
        above = path.rpartition("/")[0]
        missing = []
        while above and above not in self.states and self._files.look(above).kind == "missing":
            missing.append(above)
            above = above.rpartition("/")[0]
        self.states.update((one, MISSING) for one in reversed(missing) if not self._is_scanned(one))
        self._walk(path)
        if self._connection is not None and self._files.look(path).kind == "link":
            # Writes will go through the link.
            real = self._files.real(path)
            if real != path and self._files.look(real).kind != "folder" and self._scope.covers(real):
                self._walk(real)

    def _walk(self, path: str) -> None:
        pending = [path]
        while pending:
            path = pending.pop()
            if path.endswith("/.git"):
                self.note(path, NOT_GIT)
                continue
            if not self._scope.covers(path) or path in self.states or not self._has_room(path):
                continue
            if self._workspace is not None and self._is_scanned(path):
                pending += self._workspace.unfollowed(path)
                continue
            state = self._files.look(path)
            self.states[path] = self._state(path, state)
            if state.kind == "folder":
                if self._scope.home and (path == "/" or is_below(self._scope.home, [path])):
                    self.is_complete = False
                    self.note(path, NOT_HOME)
                    continue
                pending += [f"{path.rstrip('/')}/{name}" for name in reversed(self._files.names(path))]

    def _is_scanned(self, path: str) -> bool:
        return self._workspace is not None and self._workspace.follows(path)

    def _has_room(self, path: str) -> bool:
        if len(self.states) < self._most and time.monotonic() < self._ends:
            return True
        if self.is_complete:
            self.is_complete = False
            too_many = f"the call names more than {self._limits.max_files:,} files"
            reason = too_many if len(self.states) >= self._most else "it would have taken too long"
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
        if self._connection is not None and largest >= state.size > self._limits.max_bytes - self._bytes:
            return replace(state, not_kept="there was no room for another copy")
        found, content = self._files.read(path, state, largest)
        if content:
            self._bytes += len(content)
            try:
                if self._connection is not None:
                    self._store.add_content(self._connection, found.digest, content)
            except OSError as error:
                self.unsaved[path] = reason_of(error)
                self.note(path, self.unsaved[path])
                return replace(found, not_kept=UNSAVED.format(self.unsaved[path]))
        return found


def _is_git(path: str) -> bool:
    return ".git" in path.split("/")


def _status(state: FileState) -> tuple[int, int, int]:
    return state.touched_ns, state.inode, state.size
