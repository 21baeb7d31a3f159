"""Git repositories on this machine: which paths decide what git runs, and whether this session changed them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from toolcrib.approval.calls import ProgramCall
from toolcrib.core.git_metadata import (
    EXECUTED_NAME,
    EXECUTED_PATH,
    HOOKS,
    SAMPLE,
    SETTINGS_FILES,
    STRUCTURE,
    GitSetting,
    harmful_settings,
)

MAX_CONFIG_BYTES = 1_000_000
POINTER = "gitdir:"
RUNS_NOTHING = frozenset(
    {"help", "version", "--version", "--help", "init", "clone", "ls-remote", "config", "rev-parse"}
)
"""Sub-commands that run nothing of the repository that they are called in."""


def is_executed_by_git(path: str) -> bool:
    """Whether a file decides what git runs, in `.git` or in a folder that looks like a repository or is about to."""
    if EXECUTED_PATH.search(path):
        return True
    parts = path.split("/")
    for depth in range(len(parts) - 1, max(0, len(parts) - 4), -1):
        folder, inside = "/".join(parts[:depth]), "/".join(parts[depth:])
        part = parts[depth]
        if (part in STRUCTURE or EXECUTED_NAME.match(inside)) and _has_all(folder, STRUCTURE - {part}):
            return True
    return False


def _has_all(folder: str, names: Iterable[str]) -> bool:
    try:
        return all(os.path.lexists(f"{folder}/{name}") for name in names)
    except ValueError:
        return False


def changed_since(folder: str, words: Sequence[str], since: float) -> str:
    """Why a git command in this folder might run something that appeared after `since`; empty if it would not."""
    folder, words, git_folder = _place(folder, list(words))
    if not words or words[0] in RUNS_NOTHING:
        return ""
    found = git_folder or repository_of(folder)
    for repository in filter(None, (found, common_folder(found))):
        for name in sorted(SETTINGS_FILES):
            path = f"{repository}/{name}"
            if _changed(path) > since and _settings(path) != frozenset():
                return f"git would run a program that {path} names, and that file changed during this session"
        for hook in _hooks(repository):
            if _changed(hook) > since:
                return f"git would run {hook}, which changed during this session"
    return ""


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
    folder, words, git_folder = _place(os.path.join(start, call.cwd), list(call.words))  # noqa: PTH118 - text only
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


def _place(folder: str, words: list[str]) -> tuple[str, list[str], str]:
    """The folder that git works in, the words from the sub-command on, and the repository if one is given."""
    git_folder = ""
    while words and words[0].startswith("-"):
        option, _, value = words.pop(0).partition("=")
        if option in ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path") and not value:
            value = words.pop(0) if words else ""
        if option == "-C":
            folder = os.path.join(folder, value)  # noqa: PTH118 - text only
        elif option == "--git-dir":
            git_folder = os.path.join(folder, value)  # noqa: PTH118 - text only
    return folder, words, git_folder


def repository_of(folder: str) -> str:
    """The repository that git would use in a folder; empty if there is none."""
    folder = os.path.normpath(folder)
    while folder.startswith("/"):
        candidate = f"{folder}/.git"
        if os.path.isdir(candidate):  # noqa: PTH112 - text only
            return candidate
        pointed = _first_line(candidate)
        if pointed.startswith(POINTER):
            return os.path.normpath(os.path.join(folder, pointed.removeprefix(POINTER).strip()))  # noqa: PTH118
        if _has_all(folder, STRUCTURE):
            return folder
        if folder == "/":
            break
        folder = os.path.dirname(folder)  # noqa: PTH120 - text only
    return ""


def common_folder(repository: str) -> str:
    """The repository that a worktree shares its settings and hooks with; empty if it has its own."""
    shared = _first_line(f"{repository}/commondir") if repository else ""
    return os.path.normpath(os.path.join(repository, shared)) if shared else ""  # noqa: PTH118 - text only


def _hooks(repository: str) -> list[str]:
    try:
        names = os.listdir(f"{repository}/{HOOKS}")  # noqa: PTH208 - text only
    except OSError:
        return []
    return [f"{repository}/{HOOKS}/{name}" for name in sorted(names) if not name.endswith(SAMPLE)]


def _settings(path: str) -> frozenset[GitSetting] | None:
    """The settings in a file that start programs; None if it cannot be read with certainty."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - text only
            return harmful_settings(file.read(MAX_CONFIG_BYTES))
    except OSError:
        return frozenset()


def _changed(path: str) -> float:
    """When a file last changed; unlike its modification time, nobody can set this."""
    try:
        return os.stat(path).st_ctime  # noqa: PTH116 - text only
    except (OSError, ValueError):
        return 0.0


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - text only
            return file.readline(4096).rstrip("\n")
    except (OSError, ValueError):
        return ""
