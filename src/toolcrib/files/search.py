"""The tool `search_files`: lines and names of files, in the place where the session works.

ripgrep where the place has it, else our own search, with the same results: the same dialect of patterns, the same
files, the same order. Hidden files are searched, `.git` is not, ignore files hold, links are not followed.
"""

from __future__ import annotations

import posixpath
import re
import time
from pathlib import Path
from typing import Literal

from toolcrib.approval.sensitive import ANY_HOME, SECRET_ANYWHERE, SECRET_IN_HOME
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import BackendPath, Environment, ExecutionTarget
from toolcrib.core.errors import EnvironmentFailed, PathChanged, ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.files import search_elsewhere, search_process, search_ripgrep
from toolcrib.files.path_globs import GlobError
from toolcrib.files.paths import file_effects, target_of
from toolcrib.files.search_answer import answer_of
from toolcrib.files.search_patterns import PatternError, parse
from toolcrib.files.search_query import Outcome, Query, name_test, path_test
from toolcrib.registry.results import tool_error, tool_result

SEARCH_SECONDS = 60.0
DEADLINE_RESERVE_SECONDS = 3.0
"""How long before the deadline of the call a search ends, so that what it found can still be told."""
PEEK_BYTES = 8192

Way = Literal["best", "walk", "fetch"]
"""How to search: by ripgrep where it is; by our own walk, which goes through this machine itself and fetches the files
of other places; or by fetching files in any case."""


def search_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """Reading the folder or file that is searched."""
    return file_effects("read", [_path_of(args)], ctx)


async def search_files(args: JsonObject, ctx: ToolContext, *, way: Way = "best") -> str:
    """What the model gets for the arguments of one call."""
    terminal = ctx.services.terminal
    where: ExecutionTarget = terminal.execution_target(ctx)
    effect = (ctx.effects or search_effects(args, ctx))[0]
    try:
        query = _read_query(args, _secret_paths(effect, where))
        search = _Search(query, effect, _seconds(ctx), _path_of(args), way=way, workspace=where.spec.cwd)
        answer: JsonObject = await terminal.work_in(where.spec, search.run)
    except (PatternError, GlobError, ToolcribError) as error:
        return tool_error(str(error))
    except OSError as error:
        return tool_error(f"{_path_of(args)!r} cannot be searched: {error.strerror or error}")
    return tool_result(answer)


def _path_of(args: JsonObject) -> str:
    return args.get("path") or "."


def _read_query(args: JsonObject, secret: str) -> Query:
    """The query, known to be one that both engines understand."""
    query = Query(
        pattern=args["pattern"],
        target=args.get("target", "content"),
        file_glob=args.get("file_glob") or "",
        limit=args.get("limit", 50),
        offset=args.get("offset", 0),
        mode=args.get("output_mode", "content"),
        context=args.get("context", 0),
        secret=secret,
    )
    if not query.pattern:
        raise PatternError("the pattern is empty; say what to search for, or use target='files' with pattern '*'")
    if query.file_glob:
        path_test(query.file_glob)
    if query.target == "files":
        name_test(query.pattern)
    else:
        parse(query.pattern)
    return query


def _secret_paths(effect: Effect, where: ExecutionTarget) -> str:
    """A regular expression for files, in lower case, that somebody would have been asked about, had they been named."""
    if effect.isolated:
        return ""
    homes = [ANY_HOME.pattern, *([re.escape(str(Path.home()))] if where.is_here else [])]
    return f"{_in_lower_case(SECRET_ANYWHERE)}|^(?:{'|'.join(homes).lower()})/(?:{_in_lower_case(SECRET_IN_HOME)})"


def _in_lower_case(pattern: re.Pattern[str]) -> str:
    """The expression for text in lower case; much faster than one for any case, and asked about every file."""
    text = pattern.pattern
    if re.search(r"\\[A-Z]", text):
        return f"(?i:{text})"
    # Full paths start with a slash.
    return text.lower().replace("(?:^|/)", "/")


def _seconds(ctx: ToolContext) -> float:
    if ctx.deadline is None:
        return SEARCH_SECONDS
    return max(1.0, min(SEARCH_SECONDS, ctx.deadline - time.monotonic() - DEADLINE_RESERVE_SECONDS))


class _Search:
    """One search in the environment that it is about."""

    def __init__(
        self, query: Query, effect: Effect, seconds: float, shown_path: str, *, way: Way, workspace: str
    ) -> None:
        self._query = query
        self._effect = effect
        self._seconds = seconds
        self._shown_path = shown_path
        self._way = way
        self._workspace = workspace

    async def run(self, environment: Environment) -> JsonObject:
        target = await target_of(self._effect, environment)
        status = await environment.status(target)
        if status is None:
            raise FileNotFoundError(2, "there is no such file or folder", target)
        if status.kind not in ("file", "folder"):
            raise OSError(22, "it is neither a file nor a folder", target)
        if status.real and status.real != target:
            raise PathChanged(f"{self._shown_path!r} has become a link to {str(status.real)!r}; search again")
        folder, only = (str(target), "") if status.kind == "folder" else posixpath.split(target)
        outcome = await self._outcome(environment, folder, only)
        if outcome.ending == "lost":
            raise EnvironmentFailed(
                f"the search in {self._shown_path!r} broke off; `toolcrib env list` shows whether the place can be used"
            )
        answer = answer_of(self._query, outcome, shown_path=self._shown_path, is_file=bool(only))
        if only and not outcome.found and await self._is_binary(environment, target):
            answer["notes"] = [*answer.get("notes", []), "this is a binary file, which is not searched"]
        return answer

    async def _outcome(self, environment: Environment, folder: str, only: str) -> Outcome:
        started = time.monotonic()
        if self._way == "best":
            place = search_ripgrep.Place(environment=environment, folder=folder, only=only, workspace=self._workspace)
            outcome = await search_ripgrep.search(self._query, place, self._seconds)
            if outcome is not None:
                return outcome
        seconds = self._seconds - (time.monotonic() - started)
        if environment.kind == "local" and self._way != "fetch":
            return await search_process.search(self._query, folder, only=only, seconds=seconds)
        return await search_elsewhere.search(self._query, environment, folder, only=only, seconds=seconds)

    async def _is_binary(self, environment: Environment, target: BackendPath) -> bool:
        first = await environment.read_lines(target, first=1, count=1000, max_bytes=PEEK_BYTES, plain=True)
        return b"\0" in first.data and first.data[:2] not in (b"\xff\xfe", b"\xfe\xff")
