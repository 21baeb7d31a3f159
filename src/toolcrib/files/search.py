"""The tool `search_files`: searches the lines and names of files in the environment of the session.

ripgrep does the work where the environment has it; otherwise Python does, with its own pattern language. Either way
hidden files are searched, `.git` is not, ignore files apply, links are not followed, and results come sorted by path.
"""

from __future__ import annotations

import posixpath
import re
import time
from pathlib import Path
from typing import Literal

from toolcrib.approval.paths import ANY_HOME, SECRET_ANYWHERE, SECRET_IN_HOME
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import BackendPath, Environment, ExecutionTarget
from toolcrib.core.errors import EnvironmentFailed, PathChanged, ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.files import search_python, search_ripgrep
from toolcrib.files.paths import file_effects, target_of
from toolcrib.files.search_query import FileSearchQuery, SearchOutcome, SearchRefused
from toolcrib.registry.results import sendable, tool_error, tool_result

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
            location = search_ripgrep.SearchLocation(
                environment=environment, folder=folder, only=only, workspace=self._workspace
            )
            outcome = await search_ripgrep.search(self._query, location, self._seconds)
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
