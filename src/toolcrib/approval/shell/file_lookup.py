"""The analyser's view of this machine's files: where links lead, and what patterns match.

The work is bounded, and every answer is kept for as long as one command line is judged.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from fnmatch import translate
from posixpath import normpath

from toolcrib.approval.hard_links import guarded_files, has_other_names, protected_name
from toolcrib.approval.shell.model import NotUnderstood

MAX_LISTED = 4_000
"""Entries of folders that are looked at for one command line."""
MAX_MATCHES = 200
MAX_WALK_DEPTH = 4
MAX_LINKS = 8
MAX_FOLDERS = 500
MAX_NAMES = 128
"""Names in one path; a deeper one is not looked up."""
WILDCARDS = frozenset("*?[")


class FileLookup:
    """A look at this machine's files for one command line; never opens one."""

    def __init__(self, home: str = "", own: tuple[str, ...] = ()) -> None:
        self._home, self._own = home, own
        self._guarded: dict[int, str] | None = None
        self._folders: dict[str, str] = {}
        self._files: dict[str, str] = {}
        self._names: dict[str, tuple[os.DirEntry[str], ...]] = {}
        self._matches: dict[str, list[tuple[str, bool]]] = {}
        self._left = MAX_LISTED
        self.sensitive: dict[tuple[str, str], str] = {}
        """What patterns were found to match, by the kind of file that was looked for."""

    def real_folder(self, path: str) -> str:
        """The path with the links in it resolved, including its last name."""
        real = self._folders.get(path)
        if real is None:
            if len(self._folders) > MAX_FOLDERS or path.count("/") > MAX_NAMES:
                raise NotUnderstood("its paths are too many or too long to look up")
            try:
                real = os.path.realpath(path)
            except (OSError, ValueError):
                real = path
            self._folders[path] = real
        return real

    def real(self, path: str) -> str:
        """The file that an absolute path finally leads to; for another name of a protected file, that file."""
        real = self._files.get(path)
        if real is None:
            try:
                found = os.lstat(path)
            except (OSError, ValueError):
                found = None
            is_link = found is not None and stat.S_ISLNK(found.st_mode)
            real = self.real_folder(path) if is_link else self.real_place(path)
            if self._home and found is not None and (is_link or found.st_nlink > 1) and has_other_names(real):
                real = protected_name(real, self._guarded_files()) or real
            self._files[path] = real
        return real

    def _guarded_files(self) -> dict[int, str]:
        if self._guarded is None:
            self._guarded = guarded_files(self._home, self._own)
        return self._guarded

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

    def entries(self, folder: str) -> tuple[os.DirEntry[str], ...]:
        """What is in a folder; empty once the limit is reached."""
        found = self._names.get(folder)
        if found is None:
            found = tuple(self._listed(folder)) if self._left > 0 else ()
            self._names[folder] = found
        return found

    def _listed(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder or "/") as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        return
                    yield entry
        except (OSError, ValueError):
            return

    def matches(self, pattern: str) -> list[tuple[str, bool]]:
        """The paths that an absolute pattern matches, each with whether it is a link; `**` matches one name."""
        known = self._matches.get(pattern)
        if known is not None:
            return known
        found = [("", False)]
        for part in pattern.split("/")[1:]:
            if not WILDCARDS.intersection(part):
                found = [(f"{path}/{part}", True) for path, _ in found]
                continue
            is_match = re.compile(translate(part.replace("[^", "[!"))).match
            hidden = part.startswith(".")
            found = [
                (f"{path}/{entry.name}", entry.is_symlink())
                for path, _ in found
                for entry in self.entries(path)
                if entry.name.startswith(".") == hidden and is_match(entry.name)
            ][:MAX_MATCHES]
        self._matches[pattern] = found
        return found

    def walk(self, folder: str) -> Iterator[str]:
        """The files below a folder, as far as the limits allow; links are not followed."""
        pending = [(folder.rstrip("/"), 0)]
        while pending:
            current, depth = pending.pop()
            for entry in self.entries(current):
                path = f"{current}/{entry.name}"
                if not entry.is_dir(follow_symlinks=False):
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
