"""Git repositories on this machine: which paths decide what git runs, and whether this session changed them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

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
    folder, words, git_folder = place_of(folder, list(words))
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


def place_of(folder: str, words: list[str]) -> tuple[str, list[str], str]:
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
