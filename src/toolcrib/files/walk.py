"""All files below a folder of this machine that are not ignored, in the order of their paths.

Links are not followed, `.git` is left out, other hidden files are not. Standard library only: the search process starts
without anything else.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from functools import partial
from operator import itemgetter

from toolcrib.files.ignore_files import EXCLUDE_FILE, IGNORE_FILES
from toolcrib.files.ignore_levels import GIT, Levels
from toolcrib.files.search_query import SYSTEM_FOLDERS

LARGEST_IGNORE_FILE = 4 * 1024 * 1024
PLAIN_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW | os.O_NONBLOCK
"""How files are opened: a link that took a file's place is refused, and a pipe that did is not waited for."""
TELLING = frozenset((*IGNORE_FILES, GIT))

Entry = tuple[bytes, bool, Levels]
"""A path relative to the root, with a slash at its end if it is a folder; whether it is; what is ignored there."""


class Walk:
    """Goes through a tree once; `unreadable` counts the folders that could not be opened meanwhile."""

    def __init__(self, root: bytes) -> None:
        self.unreadable = 0
        self._root = root
        self._prefix = root.rstrip(b"/") + b"/"

    def files(self) -> Iterator[bytes]:
        """The paths of the files, relative to the root, sorted as bytes."""
        pending: list[Iterator[Entry]] = [iter(self._entries(b"", levels_above(self._root)))]
        while pending:
            entry = next(pending[-1], None)
            if entry is None:
                pending.pop()
            elif entry[1]:
                pending.append(iter(self._entries(entry[0], entry[2])))
            else:
                yield entry[0]

    def _entries(self, folder: bytes, levels: Levels) -> list[Entry]:
        """What is in a folder and not ignored, in order."""
        above = self._prefix + folder
        names, found = set(), []
        try:
            with os.scandir(above) as opened:
                for entry in opened:
                    name = entry.name
                    names.add(name)
                    if entry.is_file(follow_symlinks=False):
                        found.append((name, False))
                    elif entry.is_dir(follow_symlinks=False):
                        found.append((name, True))
        except OSError as error:
            # One that was removed meanwhile is not worth a word.
            self.unreadable += error.errno not in (errno.ENOENT, errno.ENOTDIR)
            return []
        if not names.isdisjoint(TELLING):
            levels = levels.inside(names, partial(_ignore_file, above), cut=len(folder))
        ignores = levels.ignores
        kept: list[Entry] = [
            (folder + name + b"/" if is_folder else folder + name, is_folder, levels)
            for name, is_folder in found
            if name != GIT and not ignores(folder + name, name, is_folder)
        ]
        if above == b"/":
            kept = [entry for entry in kept if entry[0] not in SYSTEM_FOLDERS]
        kept.sort(key=itemgetter(0))
        return kept


def levels_above(root: bytes) -> Levels:
    """What the ignore files of the folders above the root of a search say about what is in it."""
    above, levels = os.path.dirname(root), Levels()  # noqa: PTH120 - bytes
    folders = [above]
    while (parent := os.path.dirname(folders[-1])) != folders[-1]:  # noqa: PTH120
        folders.append(parent)
    if above == root:
        return levels
    for folder in reversed(folders):
        prefix = folder.rstrip(b"/") + b"/"
        names = [name for name in TELLING if os.path.lexists(prefix + name)]
        if names:
            lead = root[len(prefix) :] + b"/"
            levels = levels.inside(names, partial(_ignore_file, prefix), lead=lead)
    return levels


def _ignore_file(folder: bytes, name: bytes) -> bytes | None:
    """The content of an ignore file; a link is followed here, because ripgrep does so."""
    if name == EXCLUDE_FILE:
        return _read_small(_git_folder(folder) + b"info/exclude")
    return _read_small(folder + name)


def _git_folder(folder: bytes) -> bytes:
    """Where the repository of a folder keeps what all its work trees share."""
    pointer = folder + GIT
    if not os.path.isfile(pointer):  # noqa: PTH113
        return pointer + b"/"
    content = _read_small(pointer) or b""
    elsewhere = os.path.join(folder, content.removeprefix(b"gitdir: ").split(b"\n")[0].rstrip(b"\r"))  # noqa: PTH118
    shared = _read_small(elsewhere + b"/commondir")
    if shared is None or not content.startswith(b"gitdir: "):
        return b"/nowhere/"
    return os.path.join(elsewhere, shared.split(b"\n")[0]) + b"/"  # noqa: PTH118


def _read_small(path: bytes) -> bytes | None:
    try:
        # A pipe must not be waited for.
        descriptor = os.open(path, PLAIN_FILE & ~os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.read(descriptor, LARGEST_IGNORE_FILE)
    except OSError:
        return None
    finally:
        os.close(descriptor)
