"""What the analyser sees of the files of this machine: where links lead, and what patterns match.

The work is bounded, and every answer is kept for as long as one command line is judged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from posixpath import normpath

MAX_LISTED = 4_000
"""Entries of folders that are looked at for one command line."""
MAX_MATCHES = 200
MAX_WALK_DEPTH = 4
MAX_LINKS = 8
WILDCARDS = frozenset("*?[")


class FileView:
    """A look at this machine's files for one command line; never opens one."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}
        self._files: dict[str, str] = {}
        self._names: dict[str, tuple[tuple[str, bool], ...]] = {}
        self._left = MAX_LISTED

    def real_folder(self, path: str) -> str:
        """The path with the links in it resolved, including its last name."""
        real = self._folders.get(path)
        if real is None:
            try:
                real = os.path.realpath(path)
            except (OSError, ValueError):
                real = path
            self._folders[path] = real
        return real

    def real(self, path: str) -> str:
        """The file that an absolute path finally leads to."""
        real = self._files.get(path)
        if real is None:
            real = self.real_folder(path) if self.is_link(path) else self.real_place(path)
            self._files[path] = real
        return real

    def real_place(self, path: str) -> str:
        """The path with the links in its folder resolved, but not its last name, which may be a link."""
        folder, _, name = path.rpartition("/")
        return f"{self.real_folder(folder or '/').rstrip('/')}/{name}"

    def is_link(self, path: str) -> bool:
        try:
            os.readlink(path)  # noqa: PTH115 - a path as text
        except (OSError, ValueError):
            return False
        return True

    def is_folder(self, path: str) -> bool:
        try:
            return os.path.isdir(path)  # noqa: PTH112 - a path as text
        except ValueError:
            return False

    def names(self, folder: str) -> tuple[tuple[str, bool], ...]:
        """The names in a folder, each with whether it is a folder itself; empty once the limit is reached."""
        found = self._names.get(folder)
        if found is None:
            found = tuple(self._listed(folder)) if self._left > 0 else ()
            self._names[folder] = found
        return found

    def _listed(self, folder: str) -> Iterator[tuple[str, bool]]:
        try:
            with os.scandir(folder or "/") as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        return
                    yield entry.name, entry.is_dir(follow_symlinks=False)
        except (OSError, ValueError):
            return

    def matches(self, pattern: str) -> list[str]:
        """The paths that an absolute pattern matches, as the shell expands it; `**` matches one name."""
        found = [""]
        for part in pattern.split("/")[1:]:
            if not WILDCARDS.intersection(part):
                found = [f"{path}/{part}" for path in found]
                continue
            hidden = part.startswith(".")
            found = [
                f"{path}/{name}"
                for path in found
                for name, _ in self.names(path)
                if name.startswith(".") == hidden and fnmatchcase(name, part.replace("[^", "[!"))
            ][:MAX_MATCHES]
        return found if WILDCARDS.intersection(pattern) else []

    def walk(self, folder: str) -> Iterator[str]:
        """The files below a folder, as far as the limits allow; links are not followed."""
        pending = [(folder.rstrip("/"), 0)]
        while pending:
            current, depth = pending.pop()
            for name, is_folder in self.names(current):
                path = f"{current}/{name}"
                if not is_folder:
                    yield path
                elif depth < MAX_WALK_DEPTH:
                    pending.append((path, depth + 1))


def follow_made_links(path: str, links: dict[str, str], *, final: bool) -> str:
    """The path with the links resolved that a command line has made itself."""
    for _ in range(MAX_LINKS):
        end = len(path)
        while end > 0:
            target = links.get(path[:end]) if final or end < len(path) else None
            if target is not None:
                path = normpath(f"{target.rstrip('/')}/{path[end:].lstrip('/')}")
                break
            end = path.rfind("/", 0, end)
        else:
            return path
    return path
