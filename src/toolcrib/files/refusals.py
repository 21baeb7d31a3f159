"""What the file tools do not read, whoever agrees; and how a failure is put into words for the model."""

from __future__ import annotations

import os
import posixpath
import re

from toolcrib.config.paths import Home
from toolcrib.core.environments import BackendPath, Environment
from toolcrib.core.errors import nearest_names

SHOWN_NAMES = 50
# Memory, environments and kernel logs: secrets, or without an end.
_NEVER_READ = re.compile(
    r"^/proc/(?:.*/)?(?:environ|mem|auxv|pagemap|kcore|kmsg|kpage\w+)$|^/dev/(?!shm/)|^/sys/kernel/(?:debug|tracing)/"
)
_OWN_SECRETS = (".env", "auth.json", "approvals.jsonl")
_OWN_TOKENS = "mcp_tokens"
"""The folder with what logins at MCP servers gave."""


def why_never_read(path: str, home: Home, *, is_here: bool) -> str:
    """Why a path, followed to its end, is not read at all; empty when it may be."""
    if _NEVER_READ.match(posixpath.normpath(path)):
        return "devices, memory and environments of processes are never read"
    if not is_here:
        return ""
    roots = [folder.lower() for folder in _both(str(home.root))]
    own = {f"{root}/{name}" for root in roots for name in _with_drafts(_OWN_SECRETS)}
    is_own = path.lower() in own or any(path.lower().startswith(f"{root}/{_OWN_TOKENS}/") for root in roots)
    return "it holds secrets of toolcrib itself, which no tool reads" if is_own else ""


def _both(folder: str) -> set[str]:
    return {folder, os.path.realpath(folder)}


def _with_drafts(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, and those under which their next versions are written."""
    return (*names, *(f".{name}.new" for name in names), *(f".{name}.lock" for name in names))


async def no_such_file(path: BackendPath, environment: Environment) -> tuple[str, list[str]]:
    """What to say about a file that does not exist, and the names that were probably meant."""
    folder, name = posixpath.split(path)
    try:
        names = await environment.list_folder(BackendPath(folder or "/"))
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no file {path!r}: the folder {folder!r} does not exist", []
    except OSError:
        return f"there is no file {path!r}", []
    stem = posixpath.splitext(name)[0].lower()
    near = nearest_names(name, names, limit=5)
    near += [one for one in names if one not in near and posixpath.splitext(one)[0].lower() == stem]
    return f"there is no file {path!r}", [posixpath.join(folder, one) for one in near[:5]]


async def is_a_folder(path: BackendPath, environment: Environment) -> tuple[str, list[str]]:
    """What to say about a folder, and the first names in it."""
    try:
        names = await environment.list_folder(path)
    except OSError:
        return f"{path!r} is a folder, and may not be listed", []
    more = f" (the first {SHOWN_NAMES} are named)" if len(names) > SHOWN_NAMES else ""
    return f"{path!r} is a folder with {len(names)} entries{more}; read a file in it", names[:SHOWN_NAMES]


def in_words(error: BaseException, path: str) -> str:
    """What went wrong with a path, as the end of a sentence about it."""
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    said = getattr(error, "strerror", None) or str(error).removeprefix(f"cannot use {path!r}: ")
    return said or type(error).__name__
