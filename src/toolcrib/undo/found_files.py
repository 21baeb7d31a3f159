"""What is there now that a pattern of the shell or the words of `find` stand for; in doubt more rather than less."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import translate

from toolcrib.approval.shell.model import name_set
from toolcrib.undo.disk import Files

MAGIC = re.compile(r"[*?\[]")
MAX_MATCHES = 20_000
MAX_FOUND = 5_000
MAX_LOOKS = 50_000
RUNS = ("-exec", "-execdir", "-ok", "-okdir")
WITH_A_VALUE = name_set(
    "-newer -anewer -cnewer -mtime -atime -ctime -mmin -amin -cmin -size -perm -user -group -uid -gid -regex "
    "-iregex -regextype -links -inum -samefile -lname -ilname -fstype -used -xtype -D -printf -fprint -fprint0 -fls"
)
"""Tests that are passed over, together with the word behind them."""
TYPES = {"f": "file", "d": "folder", "l": "link"}


def is_pattern(text: str) -> bool:
    return MAGIC.search(text) is not None


def expand(files: Files, pattern: str) -> list[str]:
    """The paths that match an absolute pattern, as bash would list them; none where nothing does."""
    found = [""]
    for part in pattern.strip("/").split("/"):
        if not is_pattern(part):
            found = [f"{path}/{part}" for path in found]
            continue
        matcher = re.compile(translate(part.replace("[^", "[!")))
        named = [(path, name) for path in found for name in _names(files, path or "/")]
        found = [f"{path}/{name}" for path, name in named if _fits(matcher, part, name)][:MAX_MATCHES]
    return [path for path in found if path != "" and _is_there(files, path)]


def _fits(matcher: re.Pattern[str], part: str, name: str) -> bool:
    # A dot in front is only matched by a dot.
    return (not name.startswith(".") or part.startswith(".")) and matcher.match(name) is not None


def _names(files: Files, folder: str) -> list[str]:
    try:
        return files.names(folder)
    except OSError:
        return []


def _is_there(files: Files, path: str) -> bool:
    try:
        return files.look(path).kind != "missing"
    except OSError:
        return False


@dataclass
class Search:
    """One run of find."""

    roots: list[str] = field(default_factory=list)
    names: list[tuple[re.Pattern[str], bool]] = field(default_factory=list)
    """Patterns of names, and whether they must fit."""
    paths: list[tuple[re.Pattern[str], bool]] = field(default_factory=list)
    kinds: frozenset[str] = frozenset()
    least_depth: int = 0
    most_depth: int = 1_000
    deletes: bool = False
    commands: list[list[str]] = field(default_factory=list)
    """What it runs, with `{}` for what was found."""
    zero: bool = False
    """Its output is separated by zero bytes."""


def read_search(words: Sequence[str]) -> Search:
    """What the words of find ask for."""
    search, at, count = Search(), 0, len(words)
    while at < count and (not words[at].startswith(("-", "(", "!")) or words[at] in ("-H", "-L", "-P")):
        if not words[at].startswith("-"):
            search.roots.append(words[at])
        at += 1
    search.roots = search.roots or ["."]
    loose = any(word in ("-o", "-or", "-prune", "(", "\\(", ",") for word in words[at:])
    wanted = True
    while at < count:
        word, value = words[at], words[at + 1] if at + 1 < count else ""
        at += 1
        if word in ("!", "-not"):
            wanted = not wanted
            continue
        if word in RUNS:
            end = next((number for number in range(at, count) if words[number] in (";", "+", "\\;")), count)
            search.commands.append(list(words[at:end]))
            at = end + 1
        else:
            at += _read_test(search, word, value, wanted, loose)
        wanted = True
    return search


def _read_test(search: Search, word: str, value: str, wanted: bool, loose: bool) -> int:
    """Take in one test; gives how many words of its own follow it."""
    if word == "-delete":
        search.deletes = True
    elif word == "-print0":
        search.zero = True
    elif word in ("-maxdepth", "-mindepth"):
        number = int(value) if value.isdecimal() else 0
        if word == "-maxdepth":
            search.most_depth = number
        else:
            search.least_depth = number
        return 1
    elif word in ("-name", "-iname", "-path", "-ipath", "-wholename"):
        if not loose:
            flags = re.IGNORECASE if word.startswith("-i") else 0
            into = search.names if word.endswith("name") and word != "-wholename" else search.paths
            into.append((re.compile(translate(value), flags), wanted))
        return 1
    elif word == "-type":
        if not loose and wanted:
            search.kinds = frozenset(TYPES.get(letter, "special") for letter in value.split(","))
        return 1
    return int(word in WITH_A_VALUE)


def found(files: Files, search: Search, folder: str) -> list[str] | None:
    """The paths that the search gives, as find prints them; None when there are too many."""
    result: list[str] = []
    looks = [MAX_LOOKS]
    for root in search.roots:
        start = root if root.startswith("/") else f"{folder.rstrip('/')}/{root}"
        for shown, kind, depth in _below(files, start.rstrip("/") or "/", root, 0, search.most_depth, looks):
            if depth >= search.least_depth and _passes(search, shown, kind):
                result.append(shown)
        if len(result) > MAX_FOUND or looks[0] <= 0:
            return None
    return result


def _passes(search: Search, shown: str, kind: str) -> bool:
    if search.kinds and kind not in search.kinds:
        return False
    name = shown.rstrip("/").rpartition("/")[2]
    tests = [(pattern, name, wanted) for pattern, wanted in search.names]
    tests += [(pattern, shown, wanted) for pattern, wanted in search.paths]
    return all((pattern.match(text) is not None) == wanted for pattern, text, wanted in tests)


def _below(
    files: Files, path: str, shown: str, depth: int, most: int, looks: list[int]
) -> Iterator[tuple[str, str, int]]:
    looks[0] -= 1
    if looks[0] <= 0:
        return
    try:
        kind = files.look(path).kind
        names = files.names(path) if kind == "folder" and depth < most else []
    except OSError:
        return
    if kind == "missing":
        return
    yield shown, kind, depth
    for name in names:
        if name != ".git":
            inner, inner_shown = f"{path.rstrip('/')}/{name}", f"{shown.rstrip('/')}/{name}"
            yield from _below(files, inner, inner_shown, depth + 1, most, looks)
