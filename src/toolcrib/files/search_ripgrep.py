"""Search by ripgrep, wherever it is installed in the environment of a session.

ripgrep runs twice: first it counts the matches in every file, which gives little output however many there are; then it
prints the lines of the files on the page. toolcrib sorts and pages the results, so they are the same every time
and for both engines.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolcrib.core.environments import Environment
from toolcrib.files.search_programs import ProgramResult, run_program
from toolcrib.files.search_query import (
    SYSTEM_FOLDERS,
    FileMatch,
    FileSearchQuery,
    MatchedLine,
    NameFilter,
    PatternError,
    ResultPage,
    SearchOutcome,
    lines_around,
    shorten_line,
)

# Never run an rg from the workspace: the model could have written it, without approval for what it does.
PROGRAM = r"""
    rg=$(command -v rg) || return 127
    case $rg in [!/]*) return 127 ;; esac
    workspace=$1; shift
    [ -z "$workspace" ] || case $rg in "$workspace"/*) return 127 ;; esac
    exec "$rg" "$@"
"""
ALWAYS = ("--no-config", "--color=never", "--no-mmap", "--no-ignore-messages")
TREE = ("--no-ignore-global", "--no-require-git", "--hidden", "--glob=!.git", "--null", "--with-filename")
# A path, followed by the number of its matches unless only files are listed.
COUNTED = re.compile(rb"\./([^\0]+\0\d+)\n")
LISTED = re.compile(rb"\./([^\0]+\0)")
# Files that could not be opened are counted; any other error means that ripgrep did not search.
FILE_TROUBLE = re.compile(r"\(os error \d+\)|^$")
PATTERN_TROUBLE = re.compile(r"regex parse error|error: .*regex|regex .*size limit|literal .* is not allowed")
DENIED = "(os error 13)"
# Line ends; escapes, classes and repetitions, which stay as they are; `{,2}`; and braces that are not a repetition.
PARTS = re.compile(
    r"(?P<end>\$|\\z)"
    r"|(?P<kept>\\[pPxuU]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\{\d+(?:,\d*)?\})"
    r"|\{,(?P<most>\d+)\}|(?P<brace>[{}])",
    re.DOTALL,
)
SIMPLE_GLOB = re.compile(r"[\w.*?-]+(?:\{[\w.,-]+\})?[\w.*?-]*", re.ASCII)
SPECIAL_IN_GLOB = re.compile(r"[\\*?\[\]{}!# ]")
MANY_BYTES = 100_000
"""A longer list of paths is filtered in a thread, to keep the event loop free."""


@dataclass(frozen=True, kw_only=True)
class SearchLocation:
    """Where a search looks: a folder, or one file in it."""

    environment: Environment
    folder: str
    only: str = ""
    workspace: str = ""


async def search(query: FileSearchQuery, location: SearchLocation, seconds: float) -> SearchOutcome | None:
    """What ripgrep finds; None when it is not installed or does not work. Raises PatternError and GlobError."""
    deadline = time.monotonic() + seconds
    arguments = [*ALWAYS, *TREE, *_name_arguments(query, location)]
    if location.folder == "/":
        arguments += [f"--glob=!/{folder.decode().rstrip('/')}" for folder in SYSTEM_FOLDERS]
    if query.target == "files":
        arguments += ["--files", "./"]
    else:
        arguments += ["--count", f"--regexp={_for_ripgrep(query.pattern)}", "./"]
    ran = await _run(query, location, arguments, deadline)
    if ran is None:
        return None
    if len(ran.output) > MANY_BYTES:
        outcome = await asyncio.to_thread(_page_of_counts, query, location, ran)
    else:
        outcome = _page_of_counts(query, location, ran)
    if not query.counts_matches or not outcome.found or outcome.ending == "time":
        return outcome
    return await _with_lines(query, location, outcome, deadline)


def _for_ripgrep(pattern: str) -> str:
    """The pattern as people mean it: a line may end with CRLF, and braces that are not a repetition are literal."""

    def as_meant(part: re.Match[str]) -> str:
        if part["end"]:
            return r"(?:\r?$)"
        if part["most"]:
            return f"{{0,{part['most']}}}"
        return part["kept"] or f"\\{part['brace']}"

    # No program argument can contain a zero byte.
    return PARTS.sub(as_meant, pattern).replace("\0", r"\x00")


def _name_arguments(query: FileSearchQuery, location: SearchLocation) -> list[str]:
    if location.only:
        # ripgrep searches a file that is an argument even if it is binary.
        name = SPECIAL_IN_GLOB.sub(r"\\\g<0>", location.only)
        return ["--max-depth=1", "--no-ignore", f"--glob=/{name}"]
    glob = query.file_glob.rpartition("/")[2]
    if not _is_simple(glob) or query.file_glob.startswith("!"):
        return []
    # Not --glob, which would include ignored files again.
    return [f"--type-add=toolcrib:{glob}", "--type=toolcrib"]


def _is_simple(glob: str) -> bool:
    """Whether ripgrep can apply the glob as a type, which tests only names."""
    return SIMPLE_GLOB.fullmatch(glob) is not None and "**" not in glob


async def _run(
    query: FileSearchQuery, location: SearchLocation, arguments: Sequence[str], deadline: float
) -> ProgramResult | None:
    ran = await run_program(
        location.environment,
        PROGRAM,
        location.folder,
        [location.workspace, *arguments],
        seconds=deadline - time.monotonic(),
    )
    if ran.in_time and ran.fits and (ran.is_lost or ran.code not in (0, 1, 2)):
        return None
    if all(map(FILE_TROUBLE.search, ran.stderr.splitlines())):
        return ran
    if PATTERN_TROUBLE.search(ran.stderr):
        raise PatternError(query.pattern, _reason(ran.stderr))
    return None


def _reason(stderr: str) -> str:
    """What ripgrep says about a pattern that it refuses, in one line."""
    lines = [line.strip().removeprefix("rg: ") for line in stderr.splitlines() if line.strip()]
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])


def _page_of_counts(query: FileSearchQuery, location: SearchLocation, ran: ProgramResult) -> SearchOutcome:
    """The files of the page, without their lines, and the totals."""
    # For a simple glob without a slash, nothing is left to test.
    wanted = replace(query, file_glob="") if _is_simple(query.file_glob) else query
    names = NameFilter(wanted, location.folder, ran.output)
    records = (LISTED if query.target == "files" else COUNTED).findall(ran.output)
    if not location.only and not names.admits_all:
        records = [record for record in records if names.admits(record[: record.index(b"\0")])]
    # A zero byte sorts before all others, so this sorts by path.
    records.sort()
    page = ResultPage(query)
    for at, record in enumerate(records):
        if page.is_past:
            page.add_rest(map(_count, records[at:]))
            break
        window, count = page.window(), _count(record)
        if page.add(count):
            path = record[: record.index(b"\0")].decode(errors="surrogateescape")
            page.found.append(FileMatch(path, count, window=window))
    whole = ran.in_time and ran.fits
    return SearchOutcome(
        engine="ripgrep",
        ending="done" if whole else "size" if not ran.fits else "time",
        found=tuple(page.found),
        total=page.seen if whole else None,
        total_matches=page.matches if whole else None,
        unreadable=ran.stderr.count(DENIED),
    )


def _count(record: bytes) -> int:
    return int(record.rpartition(b"\0")[2] or 0)


async def _with_lines(
    query: FileSearchQuery, location: SearchLocation, outcome: SearchOutcome, deadline: float
) -> SearchOutcome | None:
    """The outcome with the lines of its files."""
    windows = {one.path: one.window for one in outcome.found}
    most = max(min(one.window[1], one.count) for one in outcome.found) + query.context + 1
    arguments = [*ALWAYS, "--json", f"--max-count={most}", f"--context={query.context}"]
    arguments += [f"--regexp={_for_ripgrep(query.pattern)}", "--", *(f"./{one.path}" for one in outcome.found)]
    ran = await _run(query, location, arguments, deadline)
    if ran is None:
        return None
    lines = {
        path: _shown_lines(events, windows[path], query.context)
        for path, events in _by_file(ran.output)
        if path in windows
    }
    found = tuple(replace(one, lines=lines[one.path]) for one in outcome.found if lines.get(one.path))
    return replace(outcome, found=found, ending=outcome.ending if ran.in_time and ran.fits else "time")


@dataclass(frozen=True, slots=True)
class _LineEvent:
    number: int
    line: bytes
    start: int | None
    """Where the match starts; None for a line of context."""


def _by_file(output: bytes) -> Iterator[tuple[str, list[_LineEvent]]]:
    events: list[_LineEvent] = []
    for text in output.split(b"\n"):
        try:
            message = json.loads(text)
        except ValueError:
            continue  # the last line, when the output was cut
        kind, data = message["type"], message["data"]
        if kind == "begin":
            events = []
        elif kind in ("match", "context"):
            line, named = _bytes(data["lines"]), data["submatches"]
            # ripgrep does not report an empty match at the end of the last line.
            start = (named[0]["start"] if named else len(line)) if kind == "match" else None
            events.append(_LineEvent(data["line_number"], line, start))
        elif kind == "end" and data.get("binary_offset") is None:
            yield _bytes(data["path"]).removeprefix(b"./").decode(errors="surrogateescape"), events


def _bytes(value: dict[str, Any]) -> bytes:
    return value["text"].encode() if "text" in value else base64.b64decode(value["bytes"])


def _shown_lines(events: list[_LineEvent], window: tuple[int, int], context: int) -> tuple[MatchedLine, ...]:
    matches = [(event.number, event.start) for event in events if event.start is not None][slice(*window)]
    starts = dict(matches)
    wanted = lines_around(starts, context)
    return tuple(
        MatchedLine(event.number, shorten_line(event.line, starts.get(event.number, 0)), event.number in starts)
        for event in events
        if event.number in wanted
    )
