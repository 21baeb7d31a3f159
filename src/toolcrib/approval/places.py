"""Where a path is: inside the workspace or not, with links followed where that can be told."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

RealPath = Callable[[str], str]
GLOB_CHARACTERS = "*?["


def follow_links(path: str) -> str:
    """The path without links; the part from the first wildcard on is left as it is."""
    fixed = path
    for character in GLOB_CHARACTERS:
        fixed = fixed.partition(character)[0]
    if fixed != path:
        fixed = fixed.rpartition("/")[0] + "/"
    try:
        return _normal(os.path.realpath(fixed) + "/" + path[len(fixed) :])
    except (OSError, ValueError):
        return path


def _normal(path: str) -> str:
    """The path without `..` and doubled slashes; POSIX keeps two in front, and Linux means the root by them."""
    normal = os.path.normpath(path)
    return normal[1:] if normal.startswith("//") else normal


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The folders that a call is judged by. Everything absolute; `real` says what a path is behind its links."""

    cwd: str
    workspace: str
    home: str
    real: RealPath = follow_links

    def absolute(self, path: str) -> str:
        """The path as written, made absolute and normal; the home for a tilde."""
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        return _normal(os.path.join(self.cwd or self.workspace or "/", path))  # noqa: PTH118 - text only

    def both(self, path: str) -> tuple[str, str]:
        """The path as written and as it really is; what matters must hold for both, or for either."""
        written = self.absolute(path)
        return written, self.real(written)

    def in_workspace(self, path: str) -> bool:
        """Whether a path, followed to its end, lies inside the workspace; the workspace itself does not."""
        if not self.workspace:
            return False
        root, real = self.real(self.workspace), self.real(self.absolute(path))
        if not is_inside(real, root):
            return False
        # Who works in his home folder does not mean the settings of all his programs.
        return root != self.real(self.home) or not real[len(root) + 1 :].startswith(".")


def is_inside(path: str, folder: str) -> bool:
    """Whether the path lies below the folder; both absolute and normal."""
    return folder != "/" and path.startswith(folder.rstrip("/") + "/")


def is_at_or_inside(path: str, folder: str) -> bool:
    return path == folder or is_inside(path, folder) or folder == "/"
