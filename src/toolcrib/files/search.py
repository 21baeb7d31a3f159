"""The tool `search_files`: searches the lines and names of files in the environment of the session.

ripgrep does the work where the environment has it; otherwise Python does, with its own pattern language. Either way
hidden files are searched, `.git` is not, ignore files apply, links are not followed, and results come sorted by path.

ripgrep runs twice: first it counts the matches in every file, which gives little output however many there are; then it
prints the lines of the files on the page. toolcrib sorts and pages the results, so that they are the same every time
and for both engines.
"""

from __future__ import annotations

import asyncio
import base64
import json
import posixpath
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from toolcrib.approval.paths import ANY_HOME, SECRET_ANYWHERE, SECRET_IN_HOME
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import BackendPath, Environment, ExecutionTarget
from toolcrib.core.errors import EnvironmentFailed, PathChanged, ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.files import search_python
from toolcrib.files.paths import file_effects, target_of
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
    SearchRefused,
    lines_around,
    shorten_line,
)
from toolcrib.registry.results import sendable, tool_error, tool_result

# An rg in the workspace, which the model could have written, is not run: nobody approved what it does.
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
# Line ends; escapes, classes and repetitions, which stay as they are; `{,2}`; and braces that are no repetition.
PARTS = re.compile(
    r"(?P<end>\$|\\z)"
    r"|(?P<kept>\\[pPxuU]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\{\d+(?:,\d*)?\})"
    r"|\{,(?P<most>\d+)\}|(?P<brace>[{}])",
    re.DOTALL,
)
SIMPLE_GLOB = re.compile(r"[\w.*?-]+(?:\{[\w.,-]+\})?[\w.*?-]*", re.ASCII)
SPECIAL_IN_GLOB = re.compile(r"[\\*?\[\]{}!# ]")
MANY_BYTES = 100_000
"""A longer list of paths is filtered in a thread, so as not to block the event loop."""


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
    """The pattern as people mean it: a line may end with CRLF, and braces that are no repetition are literal."""

    def as_meant(part: re.Match[str]) -> str:
        if part["end"]:
            return r"(?:\r?$)"
        if part["most"]:
            return f"{{0,{part['most']}}}"
        return part["kept"] or f"\\{part['brace']}"

    # No argument of a program can hold a zero byte.
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
    # Of a simple glob without a slash nothing is left to test.
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


SEARCH_SECONDS = 60.0
DEADLINE_RESERVE_SECONDS = 3.0
"""How long before the deadline of the call a search ends, to have time to report what it found."""
PEEK_BYTES = 8192
TRUNCATED = {
    "time": "the time ran out before everything was searched; search a smaller folder or use file_glob",
    "page": "stopped when this page was full, because the search took long; there may be more",
    "size": "there were too many files to search them all; search a smaller folder or use file_glob",
}

SearchEngine = Literal["best", "python", "fetch"]
"""What searches: ripgrep where it is installed; Python, which fetches the files of other environments; or Python on
fetched files in any case."""


def search_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """Reading the folder or file that is searched."""
    return file_effects("read", [_path_of(args)], ctx)


async def search_files(args: JsonObject, ctx: ToolContext, *, engine: SearchEngine = "best") -> str:
    """The result of one call, as the model gets it."""
    terminal = ctx.services.terminal
    where: ExecutionTarget = terminal.execution_target(ctx)
    effect = (ctx.effects or search_effects(args, ctx))[0]
    try:
        query = _read_query(args, _secret_paths(effect, where))
        search = _FileSearch(query, effect, _seconds(ctx), _path_of(args), engine=engine, workspace=where.spec.cwd)
        answer: JsonObject = await terminal.work_in(where.spec, search.run)
    except (SearchRefused, ToolcribError) as error:
        return tool_error(str(error))
    except OSError as error:
        return tool_error(f"{_path_of(args)!r} cannot be searched: {error.strerror or error}")
    return tool_result(answer)


def _path_of(args: JsonObject) -> str:
    return args.get("path") or "."


def _read_query(args: JsonObject, secret: str) -> FileSearchQuery:
    if not args["pattern"]:
        raise SearchRefused("the pattern is empty; say what to search for, or use target='files' with pattern '*'")
    if any("\ud800" <= one <= "\udfff" for one in args["pattern"]):
        raise SearchRefused(f"the pattern {args['pattern']!r} contains half a character; write the whole one")
    return FileSearchQuery(
        pattern=args["pattern"],
        target=args.get("target", "content"),
        file_glob=args.get("file_glob") or "",
        limit=args.get("limit", 50),
        offset=args.get("offset", 0),
        mode=args.get("output_mode", "content"),
        context=args.get("context", 0),
        secret=secret,
    )


def _secret_paths(effect: Effect, where: ExecutionTarget) -> str:
    """A regular expression for the files, in lower case, that would need an approval if they were named."""
    if effect.isolated:
        return ""
    homes = [ANY_HOME.pattern, *([re.escape(str(Path.home()))] if where.is_here else [])]
    return f"{_in_lower_case(SECRET_ANYWHERE)}|^(?:{'|'.join(homes).lower()})/(?:{_in_lower_case(SECRET_IN_HOME)})"


def _in_lower_case(pattern: re.Pattern[str]) -> str:
    """The expression for lower-case text: every file is tested, and this is much faster than ignoring case."""
    text = pattern.pattern
    if re.search(r"\\[A-Z]", text):
        return f"(?i:{text})"
    # Full paths start with a slash.
    return text.lower().replace("(?:^|/)", "/")


def _seconds(ctx: ToolContext) -> float:
    if ctx.deadline is None:
        return SEARCH_SECONDS
    return max(1.0, min(SEARCH_SECONDS, ctx.deadline - time.monotonic() - DEADLINE_RESERVE_SECONDS))


class _FileSearch:
    """One search in its environment."""

    def __init__(
        self,
        query: FileSearchQuery,
        effect: Effect,
        seconds: float,
        shown_path: str,
        *,
        engine: SearchEngine,
        workspace: str,
    ) -> None:
        self._query = query
        self._effect = effect
        self._seconds = seconds
        self._shown_path = shown_path
        self._engine = engine
        self._workspace = workspace

    async def run(self, environment: Environment) -> JsonObject:
        target = await target_of(self._effect, environment)
        status = await environment.status(target)
        if status is None:
            raise FileNotFoundError(2, "no such file or folder", target)
        if status.kind not in ("file", "folder"):
            raise OSError(22, "it is neither a file nor a folder", target)
        if status.real and status.real != target:
            raise PathChanged(f"{self._shown_path!r} has become a link to {str(status.real)!r}; search again")
        folder, only = (str(target), "") if status.kind == "folder" else posixpath.split(target)
        outcome = await self._outcome(environment, folder, only)
        if outcome.ending == "lost":
            raise EnvironmentFailed(
                f"the search in {self._shown_path!r} broke off; `toolcrib env list` shows whether the environment works"
            )
        answer = _answer(self._query, outcome, shown_path=self._shown_path, is_file=bool(only))
        if only and not outcome.found and await self._is_binary(environment, target):
            answer["notes"] = [*answer.get("notes", []), "this is a binary file; binary files are not searched"]
        return answer

    async def _outcome(self, environment: Environment, folder: str, only: str) -> SearchOutcome:
        started = time.monotonic()
        if self._engine == "best":
            location = SearchLocation(environment=environment, folder=folder, only=only, workspace=self._workspace)
            outcome = await search(self._query, location, self._seconds)
            if outcome is not None:
                return outcome
        seconds = self._seconds - (time.monotonic() - started)
        if environment.kind == "local" and self._engine != "fetch":
            return await search_python.search_locally(self._query, folder, only=only, seconds=seconds)
        return await search_python.search_remotely(self._query, environment, folder, only=only, seconds=seconds)

    async def _is_binary(self, environment: Environment, target: BackendPath) -> bool:
        first = await environment.read_lines(target, first=1, count=1000, max_bytes=PEEK_BYTES, plain=True)
        return b"\0" in first.data and first.data[:2] not in (b"\xff\xfe", b"\xfe\xff")


def _answer(query: FileSearchQuery, outcome: SearchOutcome, *, shown_path: str, is_file: bool) -> JsonObject:
    """A search result. Paths start like the path of the call, so the model can use them as they are."""
    answer: JsonObject = {}
    if query.target == "files" or query.mode == "files_only":
        answer["files"] = [_shown(shown_path, one.path, is_file) for one in outcome.found]
        if query.mode == "count":
            del answer["files"]
    elif query.mode == "count":
        answer["counts"] = {_shown(shown_path, one.path, is_file): one.count for one in outcome.found}
    else:
        answer["matches"] = [
            {
                "file": _shown(shown_path, one.path, is_file),
                "line": line.number,
                "text": line.text,
                **({} if line.is_match else {"context": True}),
            }
            for one in outcome.found
            for line in one.lines
        ]
    if outcome.total is not None:
        answer["total"] = outcome.total
        if query.mode == "count" and query.target == "content":
            answer["total_matches"] = outcome.total_matches
    answer |= _more(query, outcome)
    if outcome.ending in TRUNCATED:
        answer["truncated"] = TRUNCATED[outcome.ending]
    if notes := _notes(outcome):
        answer["notes"] = notes
    return {**answer, "searched_with": outcome.engine}


def _more(query: FileSearchQuery, outcome: SearchOutcome) -> JsonObject:
    """Whether there is a next page and where it starts."""
    if query.target == "files" and query.mode == "count":
        return {}
    following = query.offset + query.limit
    if outcome.total is None:
        shown = sum(line.is_match for one in outcome.found for line in one.lines)
        is_full = (shown if query.counts_matches else len(outcome.found)) >= query.limit
    else:
        is_full = outcome.total > following
    return {"more": True, "next_offset": following} if is_full else {}


def _notes(outcome: SearchOutcome) -> list[str]:
    notes = []
    if outcome.unreadable:
        notes.append(f"{outcome.unreadable} files or folders could not be opened (permission denied)")
    if outcome.too_large:
        notes.append(f"{outcome.too_large} files were too large to search")
    if outcome.odd_names:
        notes.append(f"{outcome.odd_names} files with line breaks in their names were not searched")
    return notes


def _shown(given: str, path: str, is_file: bool) -> str:
    if is_file:
        return sendable(given)
    above = posixpath.normpath(given)
    return sendable(path if above == "." else posixpath.join(above, path))
