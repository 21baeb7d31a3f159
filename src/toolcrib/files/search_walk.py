"""The files below a folder that no ignore file excludes, sorted by path.

Ignore rules are those of git, as `pathspec` implements them. A folder's ignore files override those above it.
`.gitignore` also applies outside repositories, and inside one up to its root; `.ignore` and `.rgignore` apply from any
folder above. Links are not followed, and `.git` is left out; other hidden files are not.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator
from functools import partial
from operator import itemgetter

from toolcrib.core.ignore_rules import IgnoreFile
from toolcrib.files.search_query import SYSTEM_FOLDERS

GIT = b".git"
IGNORE_FILES = (b".rgignore", b".ignore", b".gitignore")
"""In order of precedence, whatever folders they are in."""
EXCLUDE_FILE = b".git/info/exclude"
LARGEST_IGNORE_FILE = 4 * 1024 * 1024
PLAIN_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW | os.O_NONBLOCK
"""Open flags that refuse a link that replaced a file, and don't wait for a pipe that did."""
_FIRST_OF_GIT = IGNORE_FILES.index(b".gitignore")
_RULE_NAMES = frozenset((*IGNORE_FILES, GIT))

ReadFile = Callable[[bytes], bytes | None]
"""Returns the content of the file with this name; None when it cannot be read."""
_WalkEntry = tuple[bytes, bool, "IgnoreRules"]
"""A path relative to the root, with a trailing slash for a folder; whether it is one; the rules that apply there."""


class IgnoreRules:
    """The ignore files that apply in one folder: a list for each kind of file, nearest first.

    Each file comes with how much to cut from a path that is relative to the search root, and what to put in front.
    """

    __slots__ = ("_kinds",)

    def __init__(self, kinds: tuple[tuple[tuple[IgnoreFile, int, bytes], ...], ...] = ((), (), (), ())) -> None:
        self._kinds = kinds

    def ignore(self, path: bytes, *, is_folder: bool) -> bool:
        """Whether a path, relative to the search root, is ignored."""
        end = b"/" if is_folder else b""
        for kind in self._kinds:
            for rules, cut, lead in kind:
                ignored = rules.decides(lead + path[cut:] + end)
                if ignored is not None:
                    return ignored
        return False

    def inside(self, names: Collection[bytes], read: ReadFile, *, cut: int = 0, lead: bytes = b"") -> IgnoreRules:
        """The rules that apply inside a folder that contains `names`; `read` takes names in that folder."""
        present = [name if name in names else b"" for name in IGNORE_FILES]
        has_git = GIT in names
        if not has_git and not any(present):
            return self
        kinds = []
        for index, name in enumerate((*present, EXCLUDE_FILE if has_git else b"")):
            # The rules of git end at the root of the repository.
            above = () if has_git and index >= _FIRST_OF_GIT else self._kinds[index]
            content = read(name) if name else None
            rules = IgnoreFile(content) if content else None
            kinds.append(((rules, cut, lead), *above) if rules else above)
        return IgnoreRules(tuple(kinds))


def rules_above(
    root: bytes, find: Callable[[bytes], Collection[bytes]], read: Callable[[bytes], ReadFile]
) -> IgnoreRules:
    """What the folders above a search root say about its content.

    `find` gives the ignore files of a folder, which is named with a trailing slash, and `read` reads them.
    """
    rules = IgnoreRules()
    parts = root.rstrip(b"/").split(b"/")
    for depth in range(1, len(parts)):
        folder = b"/".join(parts[:depth]) + b"/"
        names = find(folder)
        if names:
            rules = rules.inside(names, read(folder), lead=b"/".join(parts[depth:]) + b"/")
    return rules


class FileWalk:
    """Walks a tree of this machine once; `unreadable` counts the folders that could not be opened."""

    def __init__(self, root: bytes) -> None:
        self.unreadable = 0
        self._root = root
        self._prefix = root.rstrip(b"/") + b"/"

    def files(self) -> Iterator[bytes]:
        """The paths of the files, relative to the root, sorted as bytes."""
        above = rules_above(self._root, _rule_names_in, lambda folder: partial(_read_ignore_file, folder))
        pending: list[Iterator[_WalkEntry]] = [iter(self._entries(b"", above))]
        while pending:
            entry = next(pending[-1], None)
            if entry is None:
                pending.pop()
            elif entry[1]:
                pending.append(iter(self._entries(entry[0], entry[2])))
            else:
                yield entry[0]

    def _entries(self, folder: bytes, rules: IgnoreRules) -> list[_WalkEntry]:
        """The files and folders in a folder that are not ignored, sorted."""
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
            # A folder that was removed meanwhile is not worth a note.
            self.unreadable += error.errno not in (errno.ENOENT, errno.ENOTDIR)
            return []
        if not names.isdisjoint(_RULE_NAMES):
            rules = rules.inside(names, partial(_read_ignore_file, above), cut=len(folder))
        kept: list[_WalkEntry] = [
            (folder + name + b"/" if is_folder else folder + name, is_folder, rules)
            for name, is_folder in found
            if name != GIT and not rules.ignore(folder + name, is_folder=is_folder)
        ]
        if above == b"/":
            kept = [entry for entry in kept if entry[0] not in SYSTEM_FOLDERS]
        kept.sort(key=itemgetter(0))
        return kept


def _rule_names_in(folder: bytes) -> list[bytes]:
    return [name for name in _RULE_NAMES if os.path.lexists(folder + name)]


def _read_ignore_file(folder: bytes, name: bytes) -> bytes | None:
    """The content of an ignore file; a link is followed here, as git and ripgrep do."""
    if name == EXCLUDE_FILE:
        return _read_small(_git_folder(folder) + b"info/exclude")
    return _read_small(folder + name)


def _git_folder(folder: bytes) -> bytes:
    """The folder that all work trees of a folder's repository share."""
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
        # Opening a pipe must not block.
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
