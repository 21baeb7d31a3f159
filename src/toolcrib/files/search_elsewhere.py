"""Our own search in a place without ripgrep, such as a small container: files are listed and packed by its programs.

`find` lists everything, the ignore files are fetched and applied here, and what is left to search is fetched by `tar`,
some files at a time, and searched here like any other.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from toolcrib.core.environments import Environment
from toolcrib.files import search_process
from toolcrib.files.ignore_files import EXCLUDE_FILE, IGNORE_FILES
from toolcrib.files.ignore_levels import GIT, Levels
from toolcrib.files.search_programs import Ran, run_there
from toolcrib.files.search_query import FileFound, NameFilter, Outcome, Page, Query

LARGEST_FILE_KILOBYTES = 8 * 1024
LARGE_KILOBYTES = 1024
FILES_AT_ONCE = 2048
LARGE_FILES_AT_ONCE = 32
LARGEST_LIST = 128 * 1024 * 1024

# Arguments: sizes in kilobytes. Files, then those that are large, then those that are too large; repositories are named
# by their .git, which is not looked into. Each part ends with an empty name.
LIST = r"""
    find . -name .git -print0 -prune -o -type f -print0; code=$?
    printf '\0'
    find . -name .git -prune -o -type f -size "+$1k" -print0 2>/dev/null
    printf '\0'
    find . -name .git -prune -o -type f -size "+$2k" -print0 2>/dev/null
    printf '\0'
    return "$code"
"""
# The ignore files of all folders above, as tar archives have them: a name by its full path.
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
# Names come on standard input, each ended by a zero byte where tar knows that, else by a line break.
PACK = r"""
    if tar --null -cf /dev/null -T /dev/null 2>/dev/null; then
        tar "$1" - --null -T -
    else
        tr '\0' '\n' | tar "$1" - -T -
    fi
"""
DENIED = "Permission denied"


@dataclass(slots=True)
class Listing:
    """The files of a place that are not ignored, in the order of their paths."""

    files: list[bytes] = field(default_factory=list)
    large: set[bytes] = field(default_factory=set)
    too_large: int = 0
    odd_names: int = 0
    unreadable: int = 0


async def search(query: Query, environment: Environment, folder: str, *, only: str = "", seconds: float) -> Outcome:
    """What our own search finds in a folder of the place, or in one file of it."""
    deadline = time.monotonic() + seconds
    listed = await _list(query, environment, folder, only, deadline)
    if isinstance(listed, Outcome):
        return listed
    notes = Outcome(engine="walk", unreadable=listed.unreadable, too_large=listed.too_large, odd_names=listed.odd_names)
    if query.target == "files":
        return _page_of_files(query, listed.files, notes)

    async def feed(send: Callable[[bytes], Awaitable[None]]) -> None:
        for batch in _batches(listed):
            ran = await _pack(environment, folder, batch, deadline)
            await send(ran.output)

    outcome = await search_process.search(query, folder, seconds=deadline - time.monotonic(), feed=feed)
    return replace(
        outcome,
        unreadable=notes.unreadable + outcome.unreadable,
        too_large=notes.too_large + outcome.too_large,
        odd_names=notes.odd_names,
    )


def _page_of_files(query: Query, files: list[bytes], notes: Outcome) -> Outcome:
    page = Page(query)
    found = tuple(FileFound(path.decode(errors="surrogateescape")) for path in files if page.add(0))
    return replace(notes, found=found, total=page.seen, total_matches=0)


async def _list(query: Query, environment: Environment, folder: str, only: str, deadline: float) -> Listing | Outcome:
    """What there is to search; an Outcome where that cannot be found out in time."""
    if only:
        return Listing(files=[only.encode(errors="surrogateescape")])
    sizes = [str(LARGE_KILOBYTES), str(LARGEST_FILE_KILOBYTES)]
    seconds = deadline - time.monotonic()
    ran = await run_there(environment, LIST, folder, sizes, seconds=seconds, most_bytes=LARGEST_LIST)
    if not ran.in_time or not ran.fits or ran.is_lost:
        return Outcome(engine="walk", ending="lost" if ran.is_lost else "time" if ran.fits else "size")
    names, large, too_large = _parts(ran.output)
    ignore_files = await _ignore_files(environment, folder, names, deadline)
    listing = await asyncio.to_thread(_not_ignored, names, ignore_files, NameFilter(query, folder), folder)
    listing.unreadable = ran.said.count(DENIED)
    if query.target == "content":
        _leave_out(listing, set(too_large))
        listing.large = set(large)
    return listing


def _parts(output: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The three lists, each of which ends with an empty name."""
    parts: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    at = 0
    for name in output.split(b"\0"):
        if name and at < len(parts):
            parts[at].append(name.removeprefix(b"./"))
        elif not name:
            at += 1
    return parts


def _leave_out(listing: Listing, too_large: set[bytes]) -> None:
    kept = [path for path in listing.files if path not in too_large]
    listing.too_large = len(listing.files) - len(kept)
    # Some tar programs read names line by line.
    listing.files = [path for path in kept if b"\n" not in path]
    listing.odd_names = len(kept) - len(listing.files)


async def _ignore_files(
    environment: Environment, folder: str, names: list[bytes], deadline: float
) -> dict[bytes, bytes]:
    """The content of the ignore files in the tree, and of those above it by full path; `.git` where there is one."""
    seconds = deadline - time.monotonic()
    above = await run_there(environment, ABOVE, folder, [], seconds=seconds)
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


def _members(archive: bytes, full: dict[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Names and contents; tar takes the slash from the front of full paths, and here it is given back."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", encoding="utf-8", errors="surrogateescape") as opened:
            for member in opened:
                content = opened.extractfile(member) if member.isreg() else None
                if content is not None:
                    name = member.name.encode(errors="surrogateescape")
                    inside = name.removeprefix(b"./")
                    yield (inside if name.startswith(b"./") else full.get(name.lstrip(b"/"), name)), content.read()
    except tarfile.TarError:
        return  # what came before the damage has been read


def _not_ignored(names: list[bytes], ignore_files: dict[bytes, bytes], wanted: NameFilter, folder: str) -> Listing:
    """The files that no ignore file names, nor a folder above them, and that the search is about."""
    root = folder.encode(errors="surrogateescape")
    levels: dict[bytes, Levels | None] = {b"": _inside(_levels_above(root, ignore_files), b"", ignore_files)}

    def of(above: bytes) -> Levels | None:
        """What counts in a folder; None when it is ignored."""
        if above not in levels:
            parent, _, name = above.rstrip(b"/").rpartition(b"/")
            outer = of(parent + b"/" if parent else b"")
            ignored = outer is None or outer.ignores(above.rstrip(b"/"), name, True)
            levels[above] = None if outer is None or ignored else _inside(outer, above, ignore_files)
        return levels[above]

    kept = []
    for path in names:
        above, slash, name = path.rpartition(b"/")
        counts = name != GIT and wanted.admits(path) and of(above + slash)
        if counts and not counts.ignores(path, name, False):
            kept.append(path)
    return Listing(files=sorted(kept))


def _inside(levels: Levels, folder: bytes, ignore_files: dict[bytes, bytes]) -> Levels:
    names = [name for name in (*IGNORE_FILES, GIT) if folder + name in ignore_files]
    return levels.inside(names, partial(_content, ignore_files, folder), cut=len(folder)) if names else levels


def _content(ignore_files: dict[bytes, bytes], folder: bytes, name: bytes) -> bytes | None:
    return ignore_files.get(folder + name)


def _levels_above(root: bytes, ignore_files: dict[bytes, bytes]) -> Levels:
    levels = Levels()
    parts = root.rstrip(b"/").split(b"/")
    for depth in range(1, len(parts)):
        prefix = b"/".join(parts[:depth]) + b"/"
        names = [name for name in (*IGNORE_FILES, GIT) if prefix + name in ignore_files]
        if names:
            lead = b"/".join(parts[depth:]) + b"/"
            levels = levels.inside(names, partial(_content, ignore_files, prefix), lead=lead)
    return levels


def _batches(listing: Listing) -> Iterator[list[bytes]]:
    """The files in order, so many at a time as can be held in memory."""
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
) -> Ran:
    stdin = b"".join((name if name.startswith(b"/") else b"./" + name) + b"\0" for name in names)
    options = ["-chf" if follow_links else "-cf"]
    return await run_there(environment, PACK, folder, options, seconds=deadline - time.monotonic(), stdin=stdin)
