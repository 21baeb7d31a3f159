"""Repositories that a command line makes itself before git runs in them: from parts, archives, copies, by programs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from toolcrib.approval.calls import ProgramCall
from toolcrib.approval.git_repositories import RUNS_NOTHING, changed_since, place_of
from toolcrib.core.git_metadata import SETTINGS_FILES, STRUCTURE

COPIERS = frozenset({"cp", "gcp", "mv", "gmv", "rsync", "ln", "install", "ditto"})
UNPACKERS = frozenset({"tar", "gtar", "bsdtar", "unzip", "7z", "7za", "7zz", "cpio", "pax", "unar", "unrar"})
INTERPRETERS = frozenset({"python", "python3", "perl", "ruby", "node", "php", "lua", "awk", "gawk", "deno", "bun"})
EXTRACTS = re.compile(r"-?[A-Za-z]*x[A-Za-z]*|--extract|--get|-i[A-Za-z]*|--extract=.*|-r[A-Za-z]*")
GLOB = re.compile(r"[*?\[]")
MAX_COPIES = 8


def made_in_line(
    call: ProgramCall, before: Sequence[ProgramCall], written: Mapping[str, None], since: float, start: str
) -> str:
    """Why a git command might run something that the same command line has put into its folder; empty if not.

    `before` are the commands that run earlier, `written` what the line writes, `start` the folder that it starts in.
    """
    folder, words, git_folder = place_of(os.path.join(start, call.cwd), list(call.words))  # noqa: PTH118 - text only
    git_folder = os.path.join(folder, call.git_dir) if call.git_dir else git_folder  # noqa: PTH118 - text only
    if not words or words[0] in RUNS_NOTHING or not before:
        return ""
    folder = os.path.normpath(git_folder or folder)
    for place in _up_to_repository(folder, before, start, given=bool(git_folder)):
        parts = {name for name in STRUCTURE | SETTINGS_FILES if f"{place}/{name}" in written}
        if parts and all(name in parts or os.path.lexists(f"{place}/{name}") for name in STRUCTURE):
            return f"git would take {place} for a repository, which this command line makes"
    unpacked = next((one for one in before if one.program in UNPACKERS and _unpacks_over(folder, one, start)), None)
    if unpacked is not None:
        return f"git would run what the archive of `{unpacked.text[:80]}` may have put into {folder}"
    if not os.path.isdir(folder) and any(one.program in INTERPRETERS for one in before):  # noqa: PTH112 - text only
        return f"git would run what another program of this command line may have put into {folder}"
    for source in _copied_from(folder, before):
        reason = changed_since(source, words, since)
        if reason:
            return reason
    return ""


def _up_to_repository(folder: str, before: Sequence[ProgramCall], start: str, *, given: bool) -> Iterator[str]:
    """The folders where git looks for a repository: this one and those above, up to one that is there or is made."""
    made = {
        os.path.normpath(os.path.join(start, one.cwd, *one.operands[1:2]))  # noqa: PTH118 - text only
        for one in before
        if one.program == "git" and one.operands[:1] == ("init",) and "--bare" not in one.options
    }
    yield folder
    while not given and folder not in made and folder != "/" and not os.path.lexists(f"{folder}/.git"):
        folder = os.path.dirname(folder)  # noqa: PTH120 - text only
        yield folder


def _unpacks_over(folder: str, call: ProgramCall, start: str) -> bool:
    """Whether an archive is unpacked into this folder or one above it."""
    if call.program == "unzip" and call.options & {"-l", "-p", "-t", "-v", "-Z"}:
        return False
    if call.program not in ("unzip", "unar") and not any(EXTRACTS.fullmatch(word) for word in call.words[:3]):
        return False
    named = [path for path in call.paths if folder == path or folder.startswith(path.rstrip("/") + "/")]
    if named or call.options & {"-C", "--directory", "-d", "--cd"}:
        return bool(named)
    here = os.path.normpath(os.path.join(start, call.cwd))  # noqa: PTH118 - text only
    return folder == here or folder.startswith(here.rstrip("/") + "/")


def _copied_from(folder: str, before: Sequence[ProgramCall]) -> Iterator[str]:
    """The folders whose content the line copies, moves or links to this one."""
    places = [folder]
    for call in reversed(before):
        if call.program not in COPIERS or len(places) > MAX_COPIES:
            continue
        paths = call.paths[: len(call.operands)]
        into = call.paths[len(paths) : len(paths) + 1] if call.options & {"-t", "--target-directory"} else ()
        sources, target = (paths, into[0]) if into else (paths[:-1], paths[-1] if paths else "")
        for source in sources:
            base, _, name = source.rstrip("/").rpartition("/")
            # A pattern stands for what is in its folder.
            whole, source = (True, base) if GLOB.search(name) or name == "." else (False, source.rstrip("/"))
            for at in (target.rstrip("/"), *(() if whole else (f"{target.rstrip('/')}/{name}",))):
                places += [source + each[len(at) :] for each in places if each == at or each.startswith(at + "/")]
    yield from places[1 : MAX_COPIES + 1]
