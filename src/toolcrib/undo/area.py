"""What a call may touch, and which of it undo keeps: the workspace and the user's skills, never anything in a `.git`.

What git keeps is git's own: its folder is neither copied nor put back, so that no undo can turn a repository back
behind git's back. When a whole repository is deleted, its files come back and its `.git` does not; the journal says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from toolcrib.undo.disk import Files

GIT = ".git"
DEVICES = ("/dev/", "/proc/", "/sys/")

How = Literal["path", "tree", "modes", "guess"]


@dataclass(frozen=True, slots=True)
class Target:
    """A path that a call may change, delete or make."""

    path: str
    """Absolute, or from the folder of the call."""
    how: How = "path"
    """`path`: what is there itself; `tree`: all that is in it too; `modes`: of a tree only who may do what with it;
    `guess`: what is in it, as far as it is little, because nobody knows what of it will be touched."""


@dataclass(frozen=True, slots=True)
class Touched:
    """All that one call may touch, and what of it is not known."""

    targets: tuple[Target, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Area:
    """The folders that are kept. All of them are real paths of one place."""

    files: Files
    workspace: str
    others: tuple[str, ...] = ()
    """More folders that are kept, wherever they lie."""
    excluded: tuple[str, ...] = ()
    """Folders that are not kept although they lie in the workspace."""

    def placed(self, path: str, folder: str = "") -> str:
        """The path, absolute, the folders above it free of links; what it names itself may be one."""
        path = os.path.join(folder or self.workspace, path)  # noqa: PTH118 - of any machine
        if path.endswith("/."):
            return self.files.real(path)
        path = os.path.normpath(path)
        above, _, name = path.rpartition("/")
        if not name:
            return self.files.real(path)
        return f"{self.files.real(above or '/').rstrip('/')}/{name}"

    def holds(self, path: str) -> bool:
        """Whether a placed path is one that is kept."""
        if GIT in path.split("/"):
            return False
        if any(_is_at_or_in(path, folder) for folder in self.others):
            return True
        if any(_is_at_or_in(path, folder) for folder in self.excluded):
            return False
        return path != self.workspace and _is_at_or_in(path, self.workspace)

    def may_enter(self, path: str) -> bool:
        """Whether something inside a placed folder may be kept."""
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
