"""Which paths of a tree are ignored, by the ignore files in it and above it.

A folder's files overrule those above it. `.gitignore` counts also where there is no repository, and up to the root of
one where there is; `.ignore` and `.rgignore` count from everywhere above. Standard library only, see ignore_files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from toolcrib.files.ignore_files import EXCLUDE_FILE, IGNORE_FILES, IgnoreFile

GIT = b".git"
FIRST_OF_GIT = IGNORE_FILES.index(b".gitignore")
ReadFile = Callable[[bytes], bytes | None]
"""The content of a file by its path; None when it cannot be read."""

Level = tuple[IgnoreFile, int, bytes]
"""The rules of a folder, how much to cut from a path that is relative to the root, and what to put in front of it."""


class Levels:
    """The ignore files that count for what is in one folder; nearest first, a list for each kind."""

    __slots__ = ("_kinds",)

    def __init__(self, kinds: tuple[tuple[Level, ...], ...] = ((), (), (), ())) -> None:
        self._kinds = kinds

    def ignores(self, path: bytes, name: bytes, is_folder: bool) -> bool:
        """Whether a path, relative to the root of the search, is ignored."""
        for kind in self._kinds:
            for rules, cut, lead in kind:
                answer = rules.ignores(lead + path[cut:], name, is_folder)
                if answer is not None:
                    return answer
        return False

    def inside(self, names: Collection[bytes], read: ReadFile, *, cut: int = 0, lead: bytes = b"") -> Levels:
        """The files that count inside a folder which holds `names`; `read` takes names in it."""
        present = [name if name in names else b"" for name in IGNORE_FILES]
        has_git = GIT in names
        if not has_git and not any(present):
            return self
        kinds = []
        for index, name in enumerate((*present, EXCLUDE_FILE if has_git else b"")):
            # The files of git end where its repository does.
            above = () if has_git and index >= FIRST_OF_GIT else self._kinds[index]
            content = read(name) if name else None
            rules = IgnoreFile(content) if content else None
            kinds.append(((rules, cut, lead), *above) if rules else above)
        return Levels(tuple(kinds))
