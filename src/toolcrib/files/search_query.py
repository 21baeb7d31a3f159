"""What a search asks for and what it finds, in the form that both engines share.

Imports only the standard library at module level, because the search process has to start quickly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from toolcrib.core.ignore_rules import MalformedRule, git_rule

SearchTarget = Literal["content", "files"]
OutputMode = Literal["content", "files_only", "count"]
SearchEnding = Literal["done", "time", "page", "size", "lost"]
"""Why a search ended: it saw everything, its time was up, its page was full after a long time, there was too much to
look at, or the environment went away."""

GLOB_CHARACTERS = frozenset("*?[{")
MAX_STARS = 12
MAX_ALTERNATIVES = 256
SYSTEM_FOLDERS = (b"proc/", b"sys/", b"dev/")
"""Kernel file systems, which a search of the root folder leaves out."""
LONGEST_SHOWN = 500
BEFORE_MATCH = 100
"""How much of a long line is shown before its match."""
LITERALLY = r"put a backslash before each of . ^ $ * + ? ( ) [ ] { } | \ to search for it literally"
_INNERMOST_BRACES = re.compile(r"(?<!\\)\{((?:\\.|[^{}\\])*)\}")
_BRACE = re.compile(r"(?<!\\)[{}]")


class SearchRefused(ValueError):
    """The arguments of a search cannot be understood; the message says why."""


class PatternError(SearchRefused):
    """A regular expression that the engine cannot search for."""

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f"the pattern {pattern!r} cannot be searched for: {reason}; {LITERALLY}")


class GlobError(SearchRefused):
    """A glob that is not well formed."""


@dataclass(frozen=True, kw_only=True)
class FileSearchQuery:
    pattern: str
    target: SearchTarget = "content"
    file_glob: str = ""
    limit: int = 50
    offset: int = 0
    mode: OutputMode = "content"
    context: int = 0
    secret: str = ""
    """A regular expression for the lower-case full paths that the search leaves out."""

    @property
    def counts_matches(self) -> bool:
        """Whether `limit` and `offset` count matching lines; otherwise they count files."""
        return self.target == "content" and self.mode == "content"


@dataclass(frozen=True, slots=True)
class MatchedLine:
    number: int
    text: str
    is_match: bool
    """False for a line of context."""


@dataclass(frozen=True, slots=True)
class FileMatch:
    """A file on the requested page."""

    path: str
    """Relative to the search folder."""
    count: int = 0
    """How many of its lines match."""
    lines: tuple[MatchedLine, ...] = ()
    window: tuple[int, int] = (0, 0)
    """The range of its matches that is on the page: first index, end index."""


@dataclass(frozen=True, kw_only=True)
class SearchOutcome:
    engine: Literal["ripgrep", "python"]
    ending: SearchEnding = "done"
    found: tuple[FileMatch, ...] = ()
    """The requested page, sorted by path."""
    total: int | None = None
    """How many matches or files there are in all; None unless the search saw everything."""
    total_matches: int | None = None
    unreadable: int = 0
    """How many files and folders could not be opened."""
    too_large: int = 0
    """How many files were skipped because of their size."""
    odd_names: int = 0
    """How many files were skipped because of a line break in their names."""


class ResultPage:
    """Counts results in order and tells which of them are on the requested page."""

    def __init__(self, query: FileSearchQuery) -> None:
        self.query = query
        self.seen = 0
        self.matches = 0
        self.found: list[FileMatch] = []

    @property
    def is_full(self) -> bool:
        """Whether the page is full and at least one more result exists."""
        return self.seen > self.query.offset + self.query.limit

    @property
    def is_past(self) -> bool:
        """Whether every further result comes after the page."""
        return self.seen >= self.query.offset + self.query.limit

    def window(self) -> tuple[int, int]:
        """The range of the next file's matches that would be on the page: first index, end index."""
        if not self.query.counts_matches:
            return 0, 0
        end = self.query.offset + self.query.limit - self.seen
        return max(0, self.query.offset - self.seen), max(0, end)

    def add(self, count: int) -> bool:
        """Count a file with `count` matches; return whether any of it is on the page."""
        before = self.seen
        self.matches += count
        self.seen += count if self.query.counts_matches else 1
        return before < self.query.offset + self.query.limit and self.seen > self.query.offset

    def add_rest(self, counts: Iterable[int]) -> None:
        """Count files that come after the page."""
        numbers = list(counts)
        self.matches += sum(numbers)
        self.seen += sum(numbers) if self.query.counts_matches else len(numbers)


def lines_around(matches: Iterable[int], context: int) -> set[int]:
    """The numbers of the lines to show for the numbers of matching lines."""
    if not context:
        return set(matches)
    return {near for number in matches for near in range(max(1, number - context), number + context + 1)}


def shorten_line(line: bytes, start: int = 0) -> str:
    """A line as text, cut to what surrounds the byte offset of its match."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(line) <= LONGEST_SHOWN:
        return line.decode(errors="replace")
    # Lines can be huge, so decode only what can be shown. A character has at most four bytes.
    begin = max(0, start - 4 * BEFORE_MATCH)
    before = line[begin:start].decode(errors="replace")[-BEFORE_MATCH:]
    after = line[start : start + 4 * LONGEST_SHOWN].decode(errors="replace")
    text = (before + after)[:LONGEST_SHOWN]
    is_cut_before = len(before.encode()) < start
    is_cut_after = start + len(text[len(before) :].encode()) < len(line)
    return f"{'…' if is_cut_before else ''}{text}{'…' if is_cut_after else ''}"


# Every secret path contains one of these, in lower case. Testing for them takes a fraction of the time that the whole
# expression takes, and most paths contain none.
PARTS_OF_SECRETS = tuple(
    b"/. /id_ /mcp_tokens/ /logins/ /serve/token .pem .p12 .pfx .jks .keystore .kdbx .ppk "
    b"/etc/ /proc/ /keychains".split()
)


class NameFilter:
    """Which paths a search covers, by their names and by what must stay secret."""

    def __init__(self, query: FileSearchQuery, root: str, among: bytes | None = None) -> None:
        """`among` holds all candidate paths, each with `./` in front, when they are known. Raises GlobError."""
        self._secret = re.compile(query.secret) if query.secret else None
        self._root = root.rstrip("/") + "/"
        self._parts: tuple[bytes, ...] = PARTS_OF_SECRETS
        if any(part.decode() in self._root.lower() for part in PARTS_OF_SECRETS):
            self._parts = (b"/",)
        elif among is not None:
            known = among.lower()
            self._parts = tuple(part for part in PARTS_OF_SECRETS if part in known)
        self._left_out = SYSTEM_FOLDERS if self._root == "/" else ()
        self._fits_glob = path_test(query.file_glob) if query.file_glob else None
        self._fits_pattern = name_test(query.pattern) if query.target == "files" else None

    @property
    def admits_all(self) -> bool:
        """Whether no path needs to be tested."""
        has_test = self._left_out or self._fits_glob or self._fits_pattern
        return not has_test and (self._secret is None or not self._parts)

    def admits(self, path: bytes) -> bool:
        """Whether the search covers a path, which is relative to the search folder."""
        if self._left_out and path.startswith(self._left_out):
            return False
        if self._fits_glob is not None and not self._fits_glob(path):
            return False
        if self._fits_pattern is not None:
            return self._fits_pattern(path)
        if self._secret is None or not self._parts or not _has_one_of(self._parts, b"/" + path.lower()):
            return True
        return self._secret.search((self._root + path.decode(errors="surrogateescape")).lower()) is None


def _has_one_of(parts: tuple[bytes, ...], path: bytes) -> bool:
    return any(part in path for part in parts)


def name_test(pattern: str) -> Callable[[bytes], bool]:
    """A test for paths that match a name pattern: a glob, or a part of the path in any case. Raises GlobError."""
    if GLOB_CHARACTERS.intersection(pattern):
        return path_test(pattern)
    part = pattern.removeprefix("./").lower()
    return lambda path: part in path.decode(errors="surrogateescape").lower()


def path_test(glob: str) -> Callable[[bytes], bool]:
    """A test for paths that match a glob; raises GlobError.

    A glob without a slash applies to the last part of a path, any other to the whole path; a leading `!` negates it.
    """
    if glob.startswith("!"):
        fits = path_test(glob[1:])
        return lambda path: not fits(path)
    if glob.count("*") > MAX_STARS:
        raise GlobError(f"the glob {glob!r} has more than {MAX_STARS} stars; use a simpler one")
    whole = glob.removeprefix("./")
    tests = [_anchored_expression(one).fullmatch for one in _without_braces(whole)]
    is_about_paths = "/" in whole

    def fits_any(path: bytes) -> bool:
        text = (path if is_about_paths else path[path.rfind(b"/") + 1 :]).decode(errors="surrogateescape")
        return any(test(text) is not None for test in tests)

    return fits_any


def _without_braces(glob: str) -> list[str]:
    """The globs without `{a,b}` that a glob expands to: git's rules have no braces."""
    done, pending = list[str](), [glob]
    while pending:
        one = pending.pop()
        braces = _INNERMOST_BRACES.search(one)
        if braces is None:
            if stray := _BRACE.search(one):
                raise GlobError(f"the glob {glob!r} has an unmatched {stray[0]}")
            done.append(one)
        else:
            pending += [one[: braces.start()] + option + one[braces.end() :] for option in braces[1].split(",")]
        if len(done) + len(pending) > MAX_ALTERNATIVES:
            raise GlobError(f"the braces in {glob!r} expand to more than {MAX_ALTERNATIVES} globs; use a simpler one")
    return done


def _anchored_expression(glob: str) -> re.Pattern[str]:
    glob = f"{glob}**" if glob.endswith("/") else glob
    try:
        rule = git_rule(glob if glob.startswith(("/", "**/")) else f"/{glob}")
    except MalformedRule as error:
        raise GlobError(f"the glob {glob!r} is not well formed: {error}") from error
    if rule is None:
        raise GlobError(f"the glob {glob!r} matches nothing")
    return rule[1]
