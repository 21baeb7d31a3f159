"""What a search asks for and what it finds, in the form that both engines share.

Standard library only: the search process starts without anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from toolcrib.files.path_globs import GlobError, compiled

Target = Literal["content", "files"]
Mode = Literal["content", "files_only", "count"]
Ending = Literal["done", "time", "page", "size", "lost"]
"""Why a search ended: everything was seen, the time was up, the page was full and much time gone, too much was found,
or the place went away."""

GLOB_CHARACTERS = frozenset("*?[{")
MOST_STARS = 12
SYSTEM_FOLDERS = (b"proc/", b"sys/", b"dev/")
"""What the kernel only pretends to be files is not searched along with the root folder."""


@dataclass(frozen=True, kw_only=True)
class Query:
    pattern: str
    target: Target = "content"
    file_glob: str = ""
    limit: int = 50
    offset: int = 0
    mode: Mode = "content"
    context: int = 0
    secret: str = ""
    """A regular expression for full paths, in lower case, that are left out."""

    @property
    def counts_matches(self) -> bool:
        """Whether `limit` and `offset` count matching lines; else they count files."""
        return self.target == "content" and self.mode == "content"


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: str
    is_match: bool


@dataclass(frozen=True, slots=True)
class FileFound:
    """A file on the page that was asked for."""

    path: str
    """Relative to the folder of the search."""
    count: int = 0
    """How many of its lines match."""
    lines: tuple[Line, ...] = ()
    window: tuple[int, int] = (0, 0)
    """Which of its matches are on the page: from number, to before number."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a search found."""

    engine: Literal["ripgrep", "walk"]
    ending: Ending = "done"
    found: tuple[FileFound, ...] = ()
    """The page that was asked for, by path."""
    total: int | None = None
    """How many matches or files there are in all, where everything was seen."""
    total_matches: int | None = None
    unreadable: int = 0
    """How many files and folders could not be opened."""
    too_large: int = 0
    """How many files were left out for their size."""
    odd_names: int = 0
    """How many files were left out for their names."""


@dataclass(slots=True)
class Page:
    """Counts what is found, in order, and says which of it is on the page."""

    query: Query
    seen: int = 0
    matches: int = 0
    found: list[FileFound] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return self.seen > self.query.offset + self.query.limit

    def window(self) -> tuple[int, int]:
        """Which matches of the next file would be on the page: from number, to before number."""
        if not self.query.counts_matches:
            return 0, 0
        end = self.query.offset + self.query.limit - self.seen
        return max(0, self.query.offset - self.seen), max(0, end)

    @property
    def is_past(self) -> bool:
        """Nothing that is still to come is on the page."""
        return self.seen >= self.query.offset + self.query.limit

    def add(self, count: int) -> bool:
        """Count a file with so many matches; whether something of it is on the page."""
        query = self.query
        before = self.seen
        self.matches += count
        self.seen += count if query.counts_matches else 1
        return before < query.offset + query.limit and self.seen > query.offset

    def add_rest(self, counts: Iterable[int]) -> None:
        """Count files that come after the page."""
        numbers = list(counts)
        self.matches += sum(numbers)
        self.seen += sum(numbers) if self.query.counts_matches else len(numbers)


def around(matches: list[int], context: int) -> set[int]:
    """The numbers of the lines to show for matching lines."""
    if not context:
        return set(matches)
    return {near for number in matches for near in range(max(1, number - context), number + context + 1)}


# The path of every file that must stay secret holds one of these, in lower case. Looking for them takes a fraction of
# the time that the whole expression takes, and most files hold none.
PARTS_OF_SECRETS = tuple(
    b"/. /id_ /mcp_tokens/ .pem .p12 .pfx .jks .keystore .kdbx .ppk /etc/ /proc/ /keychains".split()
)


class NameFilter:
    """Which paths a search is about, by name and by what must stay secret."""

    def __init__(self, query: Query, root: str, among: bytes | None = None) -> None:
        """`among` holds all paths that will be asked about, each with `./` in front, where they are known."""
        self._secret = re.compile(query.secret) if query.secret else None
        self._root = root.rstrip("/") + "/"
        self._parts: tuple[bytes, ...] = PARTS_OF_SECRETS
        if any(part.decode() in self._root.lower() for part in PARTS_OF_SECRETS):
            self._parts = (b"/",)
        elif among is not None:
            known = among.lower()
            self._parts = tuple(part for part in PARTS_OF_SECRETS if part in known)
        self._left_out = SYSTEM_FOLDERS if self._root == "/" else ()
        self._wanted = path_test(query.file_glob) if query.file_glob else None
        self._named = name_test(query.pattern) if query.target == "files" else None

    @property
    def admits_all(self) -> bool:
        """No path needs to be asked about."""
        asked = self._left_out or self._wanted or self._named
        return not asked and (self._secret is None or not self._parts)

    def admits(self, path: bytes) -> bool:
        """Whether a path, relative to the folder of the search, counts."""
        if self._left_out and path.startswith(self._left_out):
            return False
        if self._wanted is not None and not self._wanted(path):
            return False
        if self._named is not None:
            return self._named(path)
        if self._secret is None or not self._parts or not _has_one_of(self._parts, b"/" + path.lower()):
            return True
        return self._secret.search((self._root + path.decode(errors="surrogateescape")).lower()) is None


def _has_one_of(parts: tuple[bytes, ...], path: bytes) -> bool:
    return any(part in path for part in parts)


def name_test(pattern: str) -> Callable[[bytes], bool]:
    """Tells paths that a pattern for names fits: a glob, or a part of the path, in whatever case."""
    if GLOB_CHARACTERS.intersection(pattern):
        return path_test(pattern)
    part = pattern.removeprefix("./").lower()
    return lambda path: part in path.decode(errors="surrogateescape").lower()


def path_test(glob: str) -> Callable[[bytes], bool]:
    """Tells paths that a glob fits: by their last part if it has no slash; `!` in front turns it round."""
    if glob.startswith("!"):
        fits = path_test(glob[1:])
        return lambda path: not fits(path)
    if glob.count("*") > MOST_STARS:
        raise GlobError(f"more than {MOST_STARS} * in {glob!r}")
    whole = glob.removeprefix("./").removeprefix("/")
    whole = whole + "**" if whole.endswith("/") else whole
    expression = compiled(whole)
    if "/" in glob.removeprefix("./"):
        return lambda path: expression.fullmatch(path) is not None
    return lambda path: expression.fullmatch(path[path.rfind(b"/") + 1 :]) is not None


def as_json(value: FileFound) -> dict[str, Any]:
    lines = [[line.number, line.text, line.is_match] for line in value.lines]
    return {"path": value.path, "count": value.count, "lines": lines}


def from_json(value: dict[str, Any]) -> FileFound:
    return FileFound(value["path"], value["count"], tuple(Line(*line) for line in value["lines"]))
