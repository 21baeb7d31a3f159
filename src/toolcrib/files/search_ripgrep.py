"""Searches by ripgrep, wherever it is installed in the place that a session works in.

It is asked twice: first for the number of matches in every file, which is short however many there are; then for the
lines of the files on the page. Order and page are ours, so that they are the same each time and for each engine.
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
from toolcrib.files.search_content import shown
from toolcrib.files.search_dialects import for_ripgrep
from toolcrib.files.search_programs import Ran, run_there
from toolcrib.files.search_query import (
    SYSTEM_FOLDERS,
    FileFound,
    Line,
    NameFilter,
    Outcome,
    Page,
    Query,
    around,
)

# One that the model could have written is not run: what it does was not agreed to.
PROGRAM = r"""
    rg=$(command -v rg) || return 127
    case $rg in [!/]*) return 127 ;; esac
    workspace=$1; shift
    [ -z "$workspace" ] || case $rg in "$workspace"/*) return 127 ;; esac
    exec "$rg" "$@"
"""
ALWAYS = ("--no-config", "--color=never", "--no-mmap", "--no-ignore-messages")
TREE = ("--no-ignore-global", "--no-require-git", "--hidden", "--glob=!.git", "--null", "--with-filename")
# A path, and behind it the number of matches; nothing where only files are listed.
COUNTED = re.compile(rb"\./([^\0]+\0\d+)\n")
LISTED = re.compile(rb"\./([^\0]+\0)")
# Files that could not be opened are counted; anything else that ripgrep says means that it did not search.
FILE_TROUBLE = re.compile(r"\(os error \d+\)|^$")
DENIED = "(os error 13)"
SIMPLE_GLOB = re.compile(r"[\w.*?-]+(?:\{[\w.,-]+\})?[\w.*?-]*", re.ASCII)
SPECIAL_IN_GLOB = re.compile(r"[\\*?\[\]{}!# ]")
MANY_BYTES = 100_000
"""More paths than this are filtered in a thread, so that nobody waits for it."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a search looks: a folder, or one file of it."""

    environment: Environment
    folder: str
    only: str = ""
    workspace: str = ""


async def search(query: Query, place: Place, seconds: float) -> Outcome | None:
    """What ripgrep finds; None where it is missing or cannot do it."""
    deadline = time.monotonic() + seconds
    arguments = [*ALWAYS, *TREE, *_names_arguments(query, place)]
    if place.folder == "/":
        arguments += [f"--glob=!/{folder.decode().rstrip('/')}" for folder in SYSTEM_FOLDERS]
    if query.target == "files":
        arguments += ["--files", "./"]
    else:
        arguments += ["--count", f"--regexp={for_ripgrep(query.pattern)}", "./"]
    ran = await _run(place, arguments, deadline)
    if ran is None:
        return None
    if len(ran.output) > MANY_BYTES:
        outcome = await asyncio.to_thread(_first_look, query, place, ran)
    else:
        outcome = _first_look(query, place, ran)
    if not query.counts_matches or not outcome.found or outcome.ending == "time":
        return outcome
    return await _with_lines(query, place, outcome, deadline)


def _names_arguments(query: Query, place: Place) -> list[str]:
    if place.only:
        # Named as an argument, it would be searched even if it is binary.
        name = SPECIAL_IN_GLOB.sub(r"\\\g<0>", place.only)
        return ["--max-depth=1", "--no-ignore", f"--glob=/{name}"]
    glob = query.file_glob.rpartition("/")[2]
    if not SIMPLE_GLOB.fullmatch(glob) or "**" in glob or query.file_glob.startswith("!"):
        return []
    # Not --glob, which would bring back what is ignored.
    return [f"--type-add=toolcrib:{glob}", "--type=toolcrib"]


async def _run(place: Place, arguments: Sequence[str], deadline: float) -> Ran | None:
    ran = await run_there(
        place.environment,
        PROGRAM,
        place.folder,
        [place.workspace, *arguments],
        seconds=deadline - time.monotonic(),
    )
    if ran.in_time and ran.fits and (ran.is_lost or ran.code not in (0, 1, 2)):
        return None
    return ran if all(map(FILE_TROUBLE.search, ran.said.splitlines())) else None


def _first_look(query: Query, place: Place, ran: Ran) -> Outcome:
    """The files of the page, without their lines, and how many there are."""
    names = NameFilter(query, place.folder, ran.output)
    records = (LISTED if query.target == "files" else COUNTED).findall(ran.output)
    if not place.only and not names.admits_all:
        records = [record for record in records if names.admits(record[: record.index(b"\0")])]
    # A zero byte comes before all others, so this is the order of the paths.
    records.sort()
    page = Page(query)
    for at, record in enumerate(records):
        if page.is_past:
            page.add_rest(map(_count, records[at:]))
            break
        window, count = page.window(), _count(record)
        if page.add(count):
            path = record[: record.index(b"\0")].decode(errors="surrogateescape")
            page.found.append(FileFound(path, count, window=window))
    whole = ran.in_time and ran.fits
    return Outcome(
        engine="ripgrep",
        ending="done" if whole else "size" if not ran.fits else "time",
        found=tuple(page.found),
        total=page.seen if whole else None,
        total_matches=page.matches if whole else None,
        unreadable=ran.said.count(DENIED),
    )


def _count(record: bytes) -> int:
    return int(record.rpartition(b"\0")[2] or 0)


async def _with_lines(query: Query, place: Place, outcome: Outcome, deadline: float) -> Outcome | None:
    """The outcome with the lines of its files."""
    windows = {one.path: one.window for one in outcome.found}
    most = max(min(one.window[1], one.count) for one in outcome.found) + query.context + 1
    arguments = [*ALWAYS, "--json", f"--max-count={most}", f"--context={query.context}"]
    arguments += [f"--regexp={for_ripgrep(query.pattern)}", "--", *(f"./{one.path}" for one in outcome.found)]
    ran = await _run(place, arguments, deadline)
    if ran is None:
        return None
    lines = {
        path: _shown(events, windows[path], query.context) for path, events in _by_file(ran.output) if path in windows
    }
    found = tuple(replace(one, lines=lines[one.path]) for one in outcome.found if lines.get(one.path))
    return replace(outcome, found=found, ending=outcome.ending if ran.in_time and ran.fits else "time")


@dataclass(frozen=True, slots=True)
class _Event:
    number: int
    line: bytes
    start: int | None
    """Where the match starts; None in a line around one."""


def _by_file(output: bytes) -> Iterator[tuple[str, list[_Event]]]:
    events: list[_Event] = []
    for text in output.split(b"\n"):
        try:
            message = json.loads(text)
        except ValueError:
            continue  # the last one, where the output was cut
        kind, data = message["type"], message["data"]
        if kind == "begin":
            events = []
        elif kind in ("match", "context"):
            line, named = _bytes(data["lines"]), data["submatches"]
            # A match of nothing at the end of the last line is not named.
            start = (named[0]["start"] if named else len(line)) if kind == "match" else None
            events.append(_Event(data["line_number"], line, start))
        elif kind == "end" and data.get("binary_offset") is None:
            yield _bytes(data["path"]).removeprefix(b"./").decode(errors="surrogateescape"), events


def _bytes(value: dict[str, Any]) -> bytes:
    return value["text"].encode() if "text" in value else base64.b64decode(value["bytes"])


def _shown(events: list[_Event], window: tuple[int, int], context: int) -> tuple[Line, ...]:
    matches = [event.number for event in events if event.start is not None][slice(*window)]
    wanted, chosen = around(matches, context), set(matches)
    return tuple(
        Line(
            event.number, shown(event.line, (event.start or 0) if event.number in chosen else 0), event.number in chosen
        )
        for event in events
        if event.number in wanted
    )
