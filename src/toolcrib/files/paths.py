"""What all file tools share: from the path that a model writes to the effect, and from the effect to the file.

Effects are computed once and agreed to; the handler acts on their targets and nothing else. On this machine a target is
the real path, so that acting on it with `plain=True` fails where a link was put in its way. Of another place only the
text is known beforehand: there the handler looks first, and a link that leads elsewhere is named, not followed.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from toolcrib.approval.sensitive import ASKED_ANYWHERE, PROTECTED_ANYWHERE, SECRET_ANYWHERE
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import BackendPath, Environment, ExecutionTarget
from toolcrib.core.errors import PathChanged, UsageError
from toolcrib.core.types import Effect, EffectKind

T = TypeVar("T")


def file_effects(kind: EffectKind, paths: Iterable[str], ctx: ToolContext) -> tuple[Effect, ...]:
    """The effects of doing `kind` to these paths, in the place where the session of `ctx` works.

    Raises UsageError for what can be no path.
    """
    where: ExecutionTarget = ctx.services.terminal.execution_target(ctx)
    return tuple(where.effect(kind, target_path(kind, path, where)) for path in paths)


def target_path(kind: EffectKind, path: str, where: ExecutionTarget) -> str:
    """The path that an effect names: the real one on this machine, elsewhere the absolute text where that is known.

    What is deleted is a link itself, so only the links above it are followed.
    """
    check_path(path)
    if not where.is_here:
        if _is_in_home(path) or not (where.folder or path.startswith("/")):
            return path
        return posixpath.join(where.folder, path)
    # Of `~name` only the shell makes a home: it may be the name of a file.
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
    """Raises UsageError for what no file system takes as a path."""
    if not path.strip():
        raise UsageError("the path is empty; name a file")
    if "\0" in path:
        raise UsageError(f"the path {path!r} holds a zero byte, which no path can; leave it out")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UsageError(f"the path {path!r} holds half a character, which no path can; leave it out") from None


async def at_target(effect: Effect, environment: Environment, act: Callable[[BackendPath], Awaitable[T]]) -> T:
    """What `act`, which acts with `plain=True`, gives for the path of an effect; raises PathChanged like `target_of`.

    Most paths have no links, and `act` finds out by itself: only then is asked where they lead, which takes time.
    """
    path = effect.target
    # What follows a link need not be what `..` leaves.
    if environment.kind == "local" or (path.startswith("/") and path == posixpath.normpath(path)):
        try:
            return await act(BackendPath(path))
        except PathChanged:
            if environment.kind == "local":
                raise
    return await act(await target_of(effect, environment))


async def target_of(effect: Effect, environment: Environment) -> BackendPath:
    """The path to act on with `plain=True`; raises PathChanged, naming the real path, where links lead elsewhere."""
    if environment.kind == "local":
        return BackendPath(effect.target)
    path = posixpath.join(environment.cwd or "/", await _without_tilde(effect.target, environment))
    real = await _real_path(path, environment)
    if real != path and real != posixpath.normpath(path) and not await _stays_inside(path, real, effect, environment):
        raise PathChanged(f"{effect.target!r} leads to {real!r} by a link; name that path itself if you mean it")
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
    """The path behind all links, also of a file that does not exist yet."""
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
    """Whether a link leads from the folder that the session works in to another file in it, and to no secret."""
    if not effect.workspace:
        return False
    folder = posixpath.normpath(effect.workspace)
    if path != folder and not path.startswith(folder.rstrip("/") + "/"):
        return False
    status = await environment.status(BackendPath(folder))
    if status is None or not (real == status.real or real.startswith(status.real.rstrip("/") + "/")):
        return False
    return real[len(status.real) :] == path[len(folder) :] or not _is_delicate(real)


def _is_delicate(path: str) -> bool:
    """Whether somebody would have been asked about this path, had it been named."""
    return any(pattern.search(path) for pattern in (SECRET_ANYWHERE, ASKED_ANYWHERE, PROTECTED_ANYWHERE))
