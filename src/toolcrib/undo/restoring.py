"""Puts files back: what is to be done first, then the doing, each path as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from toolcrib.config.files import OWNER_FOLDER
from toolcrib.undo.disk import Files
from toolcrib.undo.states import SPECIAL, FileState
from toolcrib.undo.store import DROPPED, UndoStore

What = Literal["restored", "removed", "refused"]
IN_THE_WAY = "other files are in it now"
NO_CONTENT = "only its mode was kept, and its content is not what it was"
NOT_MOVED = "it could not be moved back"
LINKED = "its folder is now a link to another place"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneFile:
    """What became of a path when changes were taken back, or would become of it."""

    path: str
    what: What
    reason: str = ""
    """Why it was left as it is, with `refused`."""
    size: int = 0
    kind: str = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A path that is to become what it was."""

    path: str
    target: FileState
    now: FileState


class Restorer:
    """Puts the files of one place back out of the copies of one session."""

    def __init__(self, files: Files, store: UndoStore, session_id: str, folders: frozenset[str]) -> None:
        self._files = files
        self._store = store
        self._session_id = session_id
        self._folders = folders
        """What is to become a folder again, whatever it is now."""
        self._moved: dict[str, str] = {}
        """Where files stand now that are moved back."""

    def find_moved(self, steps: Sequence[Step]) -> None:
        """Find files that no copy was kept of and that only stand elsewhere now: they are moved back."""
        made = {step.now.stamp: step for step in steps if step.target.kind == "missing" and step.now.kind == "file"}
        for step in steps:
            source = made.get(step.target.stamp) if step.target.stamp and not self._has_copy(step.target) else None
            if source is not None and step.now.kind == "missing" and source.now.size == step.target.size:
                self._moved[step.path] = source.path

    def _has_copy(self, state: FileState) -> bool:
        return state.has_copy and self._store.is_kept(self._session_id, state)

    def why_impossible(self, step: Step) -> str:
        """Why a path cannot be put back whatever anybody says; "" when it can."""
        target = step.target
        if target.kind == "special" or step.now.kind == "special":
            return SPECIAL
        if not is_plain(self._files, step.path) and not self._makes_way(step.path):
            return LINKED
        if target.kind != "file" or step.now.has_content_of(target) or step.path in self._moved:
            return ""
        if target.not_kept:
            return target.not_kept
        if not target.has_copy:
            return NO_CONTENT
        return "" if self._store.is_kept(self._session_id, target) else DROPPED

    def _makes_way(self, path: str) -> bool:
        """Whether the link in the way to a path goes when the folder that it stands for comes back."""
        above = path.rpartition("/")[0]
        while above and not is_plain(self._files, above):
            above = above.rpartition("/")[0]
        return above in self._folders

    def carry_out(self, steps: Sequence[Step]) -> list[UndoneFile]:
        """Put the paths back; what fails is refused with the reason, and left as it is."""
        done: dict[str, UndoneFile] = {}
        deepest_first = sorted(steps, key=lambda step: step.path.count("/"), reverse=True)
        going = [step for step in deepest_first if _must_go(step)]
        coming = [step for step in reversed(deepest_first) if step.target.kind != "missing"]
        for step in reversed(deepest_first):
            if step.now.kind == "folder" and step.now.mode & OWNER_FOLDER != OWNER_FOLDER:
                # Closed to us, and what is in it must be reached; its own mode comes last.
                with contextlib.suppress(OSError):
                    self._files.set_access(step.path, replace(step.now, mode=step.now.mode | OWNER_FOLDER))
        sources = {self._moved[step.path]: step for step in steps if step.path in self._moved}
        for step in going:
            if step.path in sources:
                self._try(sources[step.path], done, self._move_back)
                gone = done[sources[step.path].path].what != "refused"
                done[step.path] = UndoneFile(
                    path=step.path, what="removed" if gone else "refused", reason="" if gone else NOT_MOVED
                )
        for step in going:
            if step.path not in sources:
                self._try(step, done, self._remove)
        for step in coming:
            if step.path not in done or (done[step.path].what != "refused" and step.path not in self._moved):
                self._try(step, done, self._put)
        # Who may do what with a folder comes last: it may be closed to us.
        for step in deepest_first:
            if step.target.kind == "folder" and done[step.path].what != "refused":
                self._try(step, done, self._close)
        return [done[step.path] for step in steps]

    def _try(self, step: Step, done: dict[str, UndoneFile], action: Callable[[Step], None]) -> None:
        what: What = "removed" if step.target.kind == "missing" else "restored"
        try:
            action(step)
            reason = ""
        except OSError as error:
            what, reason = "refused", error.strerror or str(error)
            if error.errno == errno.ENOTEMPTY:
                reason = IN_THE_WAY
        kind = step.now.kind if step.target.kind == "missing" else step.target.kind
        done[step.path] = UndoneFile(path=step.path, what=what, reason=reason, size=step.target.size, kind=kind)

    def _remove(self, step: Step) -> None:
        self._files.remove(step.path)

    def _move_back(self, step: Step) -> None:
        self._files.move(self._moved[step.path], step.path)
        self._files.set_access(step.path, step.target)

    def _put(self, step: Step) -> None:
        target = step.target
        if target.kind == "file" and step.now.has_content_of(target):
            self._files.set_access(step.path, target)
            return
        if target.kind == "folder" and step.now.kind == "folder":
            return
        self._files.put(step.path, target, self._store.content(self._session_id, target))
        if step.now.kind == "missing" and target.kind == "file":
            # As if it had never been gone. One that was changed keeps the time of now: what was built from it is old.
            self._files.set_time(step.path, target)

    def _close(self, step: Step) -> None:
        self._files.set_access(step.path, step.target)


def is_plain(files: Files, path: str) -> bool:
    """Whether no link is on the way to a path."""
    above = path.rpartition("/")[0] or "/"
    return files.real(above) == above


def _must_go(step: Step) -> bool:
    """Whether what is there now has to be removed first. A file or link is replaced by another in one step."""
    if step.now.kind == "missing":
        return False
    if step.target.kind == "missing":
        return True
    return step.now.kind != step.target.kind and "folder" in (step.now.kind, step.target.kind)
