"""Search without ripgrep: Python's regular expressions, in a separate process that is always ended.

On this machine that process walks through the folder itself. In another environment, such as a small container, `find`
lists the files, the ignore files are fetched and applied here, and `tar` fetches what is left, some files at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import io
import json
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from toolcrib.core.environments import Environment
from toolcrib.core.errors import UsageError
from toolcrib.environments.host_process import HostProcess, spawn_on_host
from toolcrib.files.search_programs import ProgramResult, run_program
from toolcrib.files.search_query import (
    FileMatch,
    FileSearchQuery,
    MatchedLine,
    NameFilter,
    ResultPage,
    SearchOutcome,
    SearchRefused,
)
from toolcrib.files.search_walk import EXCLUDE_FILE, GIT, IGNORE_FILES, IgnoreRules, rules_above

GRACE_SECONDS = 2.0
"""How long the process may overrun its time to report what it found."""
PAGE_SECONDS = 10.0
"""After this long, a search whose page is full stops."""
PACKAGES = str(Path(__file__).resolve().parents[2])
LARGEST_FILE_KILOBYTES = 8 * 1024
LARGE_KILOBYTES = 1024
FILES_AT_ONCE = 2048
LARGE_FILES_AT_ONCE = 32
LARGEST_LIST = 128 * 1024 * 1024

# Arguments: sizes in kilobytes. Lists all files, then the large ones, then those that are too large; a repository shows
# as its .git, which is not entered. Each list ends with an empty name.
LIST = r"""
    find . -name .git -print0 -prune -o -type f -print0; code=$?
    printf '\0'
    find . -name .git -prune -o -type f -size "+$1k" -print0 2>/dev/null
    printf '\0'
    find . -name .git -prune -o -type f -size "+$2k" -print0 2>/dev/null
    printf '\0'
    return "$code"
"""
# The ignore files of all folders above, by their full paths.
ABOVE = r"""
    folder=$(pwd -P)
    while [ "$folder" != / ] && [ -n "$folder" ]; do
        folder=${folder%/*}
        [ ! -e "$folder/.git" ] || printf '%s\n' "$folder/.git"
        for name in .rgignore .ignore .gitignore .git/info/exclude; do
            [ ! -f "$folder/$name" ] || printf '%s\n' "$folder/$name"
        done
    done
"""
# Names come on standard input, each followed by a zero byte, which some versions of tar don't know.
PACK = r"""
    if tar --null -cf /dev/null -T /dev/null 2>/dev/null; then
        tar "$1" - --null -T -
    else
        tr '\0' '\n' | tar "$1" - -T -
    fi
"""
DENIED = "Permission denied"


Send = Callable[[bytes], Awaitable[None]]
Feed = Callable[[Send], Awaitable[None]]
"""Sends tar archives to the search process, one per call, and returns when there are no more."""


async def search_locally(query: FileSearchQuery, folder: str, *, only: str = "", seconds: float) -> SearchOutcome:
    """Search a folder of this machine, or one file in it; raises SearchRefused."""
    return await _search_in_process(query, folder, only=only, seconds=seconds)


async def search_remotely(
    query: FileSearchQuery, environment: Environment, folder: str, *, only: str = "", seconds: float
) -> SearchOutcome:
    """Search a folder of any environment, or one file in it, by fetching its files; raises SearchRefused."""
    deadline = time.monotonic() + seconds
    listing = await _list_files(query, environment, folder, only, deadline)
    if isinstance(listing, SearchOutcome):
        return listing
    if query.target == "files":
        return _page_of_files(query, listing)

    async def feed(send: Send) -> None:
        for batch in _batches(listing):
            packed = await _pack(environment, folder, batch, deadline)
            await send(packed.output)

    outcome = await _search_in_process(query, folder, seconds=deadline - time.monotonic(), feed=feed)
    return replace(
        outcome,
        unreadable=listing.unreadable + outcome.unreadable,
        too_large=listing.too_large + outcome.too_large,
        odd_names=listing.odd_names,
    )


# The search process


async def _search_in_process(
    query: FileSearchQuery, folder: str, *, only: str = "", seconds: float, feed: Feed | None = None
) -> SearchOutcome:
    request = {
        "query": asdict(query),
        "root": folder,
        "only": only,
        "archive": feed is not None,
        "seconds": seconds,
        "page_seconds": min(PAGE_SECONDS, seconds),
    }
    output = bytearray()
    in_time = True
    async with _search_process(output) as process:
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                with contextlib.suppress(BrokenPipeError):  # it may be done before it has read everything
                    await _send(process, request, feed)
                await process.wait()
        except TimeoutError:
            in_time = False  # it is stuck in one line of one file
    return _outcome(bytes(output), in_time=in_time)


def _program() -> tuple[str, ...]:
    # The process starts without site-packages, which would cost it as much time as everything else.
    pathspec = importlib.util.find_spec("pathspec")
    if pathspec is None or pathspec.origin is None:
        raise UsageError("the package 'pathspec' is missing; install toolcrib again, or install ripgrep")
    paths = [PACKAGES, str(Path(pathspec.origin).parents[1])]
    start = f"import sys; sys.path += {paths!r}; from toolcrib.files.search_worker import main; main()"
    return (sys.executable, "-I", "-S", "-W", "ignore", "-X", "utf8", "-c", start)


@contextlib.asynccontextmanager
async def _search_process(output: bytearray) -> AsyncIterator[HostProcess]:
    process = await spawn_on_host(_program(), on_output=output.extend, environ={})
    try:
        yield process
    finally:
        await process.end()


async def _send(process: HostProcess, request: dict[str, Any], feed: Feed | None) -> None:
    async def send(archive: bytes) -> None:
        await process.write(len(archive).to_bytes(8, "big") + archive)

    await process.write(json.dumps(request).encode() + b"\n")
    if feed is not None:
        await feed(send)
    await process.close_input()


def _outcome(output: bytes, *, in_time: bool) -> SearchOutcome:
    messages = _messages(output)
    last: dict[str, Any] = {"ending": "lost" if in_time else "time"}
    if messages and "ending" in messages[-1]:
        last = messages.pop()
    if last["ending"] == "refused":
        raise SearchRefused(last["reason"])
    is_whole = last["ending"] == "done"
    return SearchOutcome(
        engine="python",
        ending=last["ending"],
        found=tuple(
            FileMatch(one["path"], one["count"], tuple(MatchedLine(*line) for line in one["lines"])) for one in messages
        ),
        total=last["seen"] if is_whole else None,
        total_matches=last["matches"] if is_whole else None,
        unreadable=last.get("unreadable", 0),
        too_large=last.get("too_large", 0),
    )


def _messages(output: bytes) -> list[dict[str, Any]]:
    messages = []
    for line in output.split(b"\n"):
        try:
            messages.append(json.loads(line))
        except ValueError:
            continue  # the last line, cut short; or the error of an interpreter that could not start
    return messages


# The files of another environment


@dataclass(slots=True)
class FileListing:
    """The files of an environment that are not ignored, sorted by path."""

    files: list[bytes] = field(default_factory=list)
    large: set[bytes] = field(default_factory=set)
    too_large: int = 0
    odd_names: int = 0
    unreadable: int = 0


def _page_of_files(query: FileSearchQuery, listing: FileListing) -> SearchOutcome:
    page = ResultPage(query)
    return SearchOutcome(
        engine="python",
        found=tuple(FileMatch(path.decode(errors="surrogateescape")) for path in listing.files if page.add(0)),
        total=page.seen,
        total_matches=0,
        unreadable=listing.unreadable,
        too_large=listing.too_large,
        odd_names=listing.odd_names,
    )


async def _list_files(
    query: FileSearchQuery, environment: Environment, folder: str, only: str, deadline: float
) -> FileListing | SearchOutcome:
    """What there is to search; a SearchOutcome when that cannot be found out in time."""
    if only:
        return FileListing(files=[only.encode(errors="surrogateescape")])
    sizes = [str(LARGE_KILOBYTES), str(LARGEST_FILE_KILOBYTES)]
    seconds = deadline - time.monotonic()
    listed = await run_program(environment, LIST, folder, sizes, seconds=seconds, max_bytes=LARGEST_LIST)
    if not listed.in_time or not listed.fits or listed.is_lost:
        return SearchOutcome(engine="python", ending="lost" if listed.is_lost else "time" if listed.fits else "size")
    names, large, too_large = _split_lists(listed.output)
    ignore_files = await _fetch_ignore_files(environment, folder, names, deadline)
    listing = await asyncio.to_thread(_not_ignored, names, ignore_files, NameFilter(query, folder), folder)
    listing.unreadable = listed.stderr.count(DENIED)
    if query.target == "content":
        _leave_out(listing, set(too_large))
        listing.large = set(large)
    return listing


def _split_lists(output: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The three lists, each of which ends with an empty name."""
    lists: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    at = 0
    for name in output.split(b"\0"):
        if name and at < len(lists):
            lists[at].append(name.removeprefix(b"./"))
        elif not name:
            at += 1
    return lists


def _leave_out(listing: FileListing, too_large: set[bytes]) -> None:
    kept = [path for path in listing.files if path not in too_large]
    listing.too_large = len(listing.files) - len(kept)
    # Some versions of tar read names line by line.
    listing.files = [path for path in kept if b"\n" not in path]
    listing.odd_names = len(kept) - len(listing.files)


async def _fetch_ignore_files(
    environment: Environment, folder: str, names: list[bytes], deadline: float
) -> dict[bytes, bytes]:
    """The content of the ignore files in the tree, and of those above it by full path; each `.git` as an empty one."""
    above = await run_program(environment, ABOVE, folder, [], seconds=deadline - time.monotonic())
    wanted = [name for name in names if name.rpartition(b"/")[2] in IGNORE_FILES]
    git = [name for name in names if name == GIT or name.endswith(b"/" + GIT)]
    wanted += [name.removesuffix(GIT) + EXCLUDE_FILE for name in git]
    upper = [name for name in above.output.split(b"\n") if name]
    wanted += [name for name in upper if not name.endswith(b"/" + GIT)]
    contents = {name: b"" for name in (*git, *upper) if name.rpartition(b"/")[2] == GIT}
    if wanted:
        packed = await _pack(environment, folder, wanted, deadline, follow_links=True)
        contents |= dict(_members(packed.output, {name.lstrip(b"/"): name for name in upper}))
    return contents


def _members(archive: bytes, full_paths: dict[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Names and contents; gives full paths back the leading slash that tar removes."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", encoding="utf-8", errors="surrogateescape") as opened:
            for member in opened:
                content = opened.extractfile(member) if member.isreg() else None
                if content is not None:
                    name = member.name.encode(errors="surrogateescape")
                    inside = name.removeprefix(b"./")
                    is_inside = name.startswith(b"./")
                    yield (inside if is_inside else full_paths.get(name.lstrip(b"/"), name)), content.read()
    except tarfile.TarError:
        return  # keep what came before the damage


def _not_ignored(
    names: list[bytes], ignore_files: dict[bytes, bytes], name_filter: NameFilter, folder: str
) -> FileListing:
    """The files that the search covers and that no ignore file excludes, nor any folder above them."""
    root = folder.encode(errors="surrogateescape")
    above = rules_above(
        root, lambda at: _rule_names(ignore_files, at), lambda at: partial(_content_of, ignore_files, at)
    )
    rules: dict[bytes, IgnoreRules | None] = {b"": _rules_inside(above, b"", ignore_files)}

    def rules_in(folder: bytes) -> IgnoreRules | None:
        """The rules that apply in a folder; None when it is ignored."""
        if folder not in rules:
            parent = folder.rstrip(b"/").rpartition(b"/")[0]
            outer = rules_in(parent + b"/" if parent else b"")
            ignored = outer is None or outer.ignore(folder.rstrip(b"/"), is_folder=True)
            rules[folder] = None if outer is None or ignored else _rules_inside(outer, folder, ignore_files)
        return rules[folder]

    kept = []
    for path in names:
        parent, slash, name = path.rpartition(b"/")
        applying = rules_in(parent + slash) if name != GIT and name_filter.admits(path) else None
        if applying is not None and not applying.ignore(path, is_folder=False):
            kept.append(path)
    return FileListing(files=sorted(kept))


def _rules_inside(rules: IgnoreRules, folder: bytes, ignore_files: dict[bytes, bytes]) -> IgnoreRules:
    names = _rule_names(ignore_files, folder)
    return rules.inside(names, partial(_content_of, ignore_files, folder), cut=len(folder)) if names else rules


def _rule_names(ignore_files: dict[bytes, bytes], folder: bytes) -> list[bytes]:
    return [name for name in (*IGNORE_FILES, GIT) if folder + name in ignore_files]


def _content_of(ignore_files: dict[bytes, bytes], folder: bytes, name: bytes) -> bytes | None:
    return ignore_files.get(folder + name)


def _batches(listing: FileListing) -> Iterator[list[bytes]]:
    """The files in order, as many at a time as fit into memory."""
    batch, weight = list[bytes](), 0
    for path in listing.files:
        batch.append(path)
        weight += FILES_AT_ONCE // LARGE_FILES_AT_ONCE if path in listing.large else 1
        if weight >= FILES_AT_ONCE:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


async def _pack(
    environment: Environment, folder: str, names: list[bytes], deadline: float, *, follow_links: bool = False
) -> ProgramResult:
    stdin = b"".join((name if name.startswith(b"/") else b"./" + name) + b"\0" for name in names)
    options = ["-chf" if follow_links else "-cf"]
    return await run_program(environment, PACK, folder, options, seconds=deadline - time.monotonic(), stdin=stdin)
