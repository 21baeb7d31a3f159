"""Turns the paths that a model writes into effects, effects into files, and failures into messages.

Effects are computed once and approved; the handler acts on their targets and nothing else. On this machine a target is
the real path: acting on it with `plain=True` fails if a link has replaced part of it. In another environment only the
text is known beforehand: there the handler checks first, and reports a link that leads elsewhere instead of following
it.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from toolcrib.approval.paths import ASK_ANYWHERE, PROTECTED_ANYWHERE, RUN_BY_TOOLS, SECRET_ANYWHERE
from toolcrib.config.os_errors import remedy_for
from toolcrib.config.paths import Home
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import BackendPath, Environment, ExecutionTarget
from toolcrib.core.errors import PathChanged, UsageError, nearest_names
from toolcrib.core.git_metadata import EXECUTED_PATH
from toolcrib.core.types import Effect, EffectKind

T = TypeVar("T")


def file_effects(kind: EffectKind, paths: Iterable[str], ctx: ToolContext) -> tuple[Effect, ...]:
    """The effects of doing `kind` to these paths, in the environment of the session of `ctx`.

    Raises UsageError for impossible paths.
    """
    where: ExecutionTarget = ctx.services.terminal.execution_target(ctx)
    return tuple(where.effect(kind, target_path(kind, path, where)) for path in paths)


def target_path(kind: EffectKind, path: str, where: ExecutionTarget) -> str:
    """The path that an effect names: on this machine the real one, elsewhere the absolute text if it is known.

    Deleting a link deletes the link itself, so only the links above it are followed.
    """
    check_path(path)
    if not where.is_here:
        if _is_in_home(path) or not (where.folder or path.startswith("/")):
            return path
        return posixpath.join(where.folder, path)
    # Only the shell takes `~name` for a home; here it may be the name of a file.
    path = os.path.expanduser(path) if _is_in_home(path) else os.path.join(where.folder, path)  # noqa: PTH111, PTH118
    try:
        if kind == "delete":
            above, name = os.path.split(os.path.normpath(path))
            return os.path.join(os.path.realpath(above), name)  # noqa: PTH118
        return os.path.realpath(path)
    except OSError as error:
        raise UsageError(f"the path {path!r} cannot be followed: {error.strerror or error}") from error


def _is_in_home(path: str) -> bool:
    return path == "~" or path.startswith("~/")


def check_path(path: str) -> None:
    """Raises UsageError for a path that no file system accepts."""
    if not path.strip():
        raise UsageError("the path is empty; name a file")
    if "\0" in path:
        raise UsageError(f"the path {path!r} contains a zero byte, which no path can; leave it out")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UsageError(f"the path {path!r} contains half a character, which no path can; leave it out") from None


async def at_target(effect: Effect, environment: Environment, act: Callable[[BackendPath], Awaitable[T]]) -> T:
    """Call `act`, which works with `plain=True`, on the path of an effect; raises PathChanged like `target_of`.

    Most paths have no links, and `act` fails if there is one: only then is it worth the time to follow them.
    """
    path = effect.target
    # After a link, `..` need not lead back.
    if environment.kind == "local" or (path.startswith("/") and path == posixpath.normpath(path)):
        try:
            return await act(BackendPath(path))
        except PathChanged:
            if environment.kind == "local":
                raise
    return await act(await target_of(effect, environment))


async def target_of(effect: Effect, environment: Environment) -> BackendPath:
    """The path to act on with `plain=True`; raises PathChanged, naming the real path, if links lead elsewhere."""
    if environment.kind == "local":
        return BackendPath(effect.target)
    path = posixpath.join(environment.cwd or "/", await _without_tilde(effect.target, environment))
    real = await _real_path(path, environment)
    if real != path and real != posixpath.normpath(path) and not await _stays_inside(path, real, effect, environment):
        raise PathChanged(f"{effect.target!r} is a link to {real!r}; name that path itself if you mean it")
    return BackendPath(real)


async def _without_tilde(path: str, environment: Environment) -> str:
    if not _is_in_home(path):
        return path
    home = await environment.status(BackendPath("~"))
    if home is None:
        raise UsageError(
            f"there is no home folder for {path!r} in the {environment.kind} environment; name a full path"
        )
    return home.real + path[1:]


async def _real_path(path: str, environment: Environment) -> str:
    """The path with all links followed, even for a file that does not exist yet."""
    rest = ""
    looked_at = path.rstrip("/") or "/"
    while (status := await environment.status(BackendPath(looked_at))) is None or not status.real:
        above, name = posixpath.split(looked_at)
        if above == looked_at:
            return path
        rest = posixpath.join(name, rest) if rest else name
        looked_at = above
    return posixpath.normpath(posixpath.join(status.real, rest))


async def _stays_inside(path: str, real: str, effect: Effect, environment: Environment) -> bool:
    """Whether a link leads from the session's workspace to another file in it that is not sensitive."""
    if not effect.workspace:
        return False
    folder = posixpath.normpath(effect.workspace)
    if path != folder and not path.startswith(folder.rstrip("/") + "/"):
        return False
    status = await environment.status(BackendPath(folder))
    if status is None or not (real == status.real or real.startswith(status.real.rstrip("/") + "/")):
        return False
    return real[len(status.real) :] == path[len(folder) :] or not _is_sensitive(real)


def _is_sensitive(path: str) -> bool:
    """Whether this path would need an approval if it were named."""
    patterns = (SECRET_ANYWHERE, ASK_ANYWHERE, PROTECTED_ANYWHERE, RUN_BY_TOOLS, EXECUTED_PATH)
    return any(pattern.search(path) for pattern in patterns)


SHOWN_NAMES = 50
# Memory, environment variables and kernel logs: secret, or endless.
_NEVER_READ = re.compile(
    r"^/proc/(?:.*/)?(?:environ|mem|auxv|pagemap|kcore|kmsg|kpage\w+)$|^/dev/(?!shm/)|^/sys/kernel/(?:debug|tracing)/"
)
_OWN_SECRETS = (".env", "auth.json", "approvals.jsonl")
_OWN_TOKENS = ("mcp_tokens", "logins", "serve")
"""The folders with the tokens of MCP servers and other services, and with those that answer approvals over HTTP."""


def why_never_read(path: str, home: Home, *, is_here: bool) -> str:
    """Why a real path is never read; empty when it may be."""
    if _NEVER_READ.match(posixpath.normpath(path)):
        return "devices, and the memory and environment of processes, are never read"
    if not is_here:
        return ""
    roots = [folder.lower() for folder in _both(str(home.root))]
    own = {f"{root}/{name}" for root in roots for name in _with_drafts(_OWN_SECRETS)}
    inside = tuple(f"{root}/{name}/" for root in roots for name in _OWN_TOKENS)
    is_own = path.lower() in own or path.lower().startswith(inside)
    return "it contains toolcrib's own secrets, which no tool reads" if is_own else ""


def _both(folder: str) -> set[str]:
    return {folder, os.path.realpath(folder)}


def _with_drafts(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, and those of their drafts and locks."""
    return (*names, *(f".{name}.new" for name in names), *(f".{name}.lock" for name in names))


async def no_such_file(path: BackendPath, environment: Environment) -> tuple[str, list[str]]:
    """A message about a missing file, and similar names."""
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
    """A message about a folder, and its first names."""
    try:
        names = await environment.list_folder(path)
    except OSError:
        return f"{path!r} is a folder that cannot be listed", []
    more = f" (the first {SHOWN_NAMES} are listed)" if len(names) > SHOWN_NAMES else ""
    return f"{path!r} is a folder with {len(names)} entries{more}; read a file in it", names[:SHOWN_NAMES]


def in_words(error: BaseException, path: str) -> str:
    """What went wrong with a path, as the end of a sentence."""
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    said = getattr(error, "strerror", None) or str(error).removeprefix(f"cannot use {path!r}: ")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
        # Without the path, which may be one of another machine.
        return f"{said}; {remedy_for(OSError(error.errno, said))}"
    return said or type(error).__name__
