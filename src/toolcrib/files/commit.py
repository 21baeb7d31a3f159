"""Writes several files, all or none: each is old or new at any moment, and what was done is taken back on a failure."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from toolcrib.core.environments import BackendPath, Environment
from toolcrib.core.errors import ToolcribError
from toolcrib.files.editing import EditRefused, Present
from toolcrib.files.refusals import in_words
from toolcrib.files.views import digest_of

T = TypeVar("T")

AS_BEFORE = "as before"


@dataclass(frozen=True)
class Step:
    """One file that will be different."""

    before: Present
    after: bytes | None
    """None: it is removed."""
    mode: int | None = None
    """That it gets; None keeps what it has."""

    @property
    def path(self) -> BackendPath:
        return self.before.path

    @property
    def after_digest(self) -> str:
        return "" if self.after is None else digest_of(self.after)


async def commit(steps: Sequence[Step], environment: Environment) -> None:
    """Do all steps; raises EditRefused that says in which state each file is, usually the one before.

    A cancellation waits for the end: half of a patch is worse than all of it.
    """
    await _to_its_end(_commit(steps, environment))


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _commit(steps: Sequence[Step], environment: Environment) -> None:
    # What is moved is at its new place before it leaves the old one.
    ordered = [step for step in steps if step.after is not None] + [step for step in steps if step.after is None]
    begun: list[Step] = []
    folders: list[BackendPath] = []
    for step in ordered:
        begun.append(step)
        try:
            if step.before.data is None:
                folders += await _missing_folders(step.path, environment)
            await _do(step, environment)
        except (OSError, ToolcribError) as error:
            states = {one.path: AS_BEFORE for one in steps}
            states.update(await _taken_back(begun, folders, environment))
            raise EditRefused(_failure(step, error, states), files=states) from error


async def _do(step: Step, environment: Environment) -> None:
    if step.after is None:
        await environment.remove_file(step.path, expected=step.before.digest, plain=True)
    else:
        await environment.write_file(step.path, step.after, mode=step.mode, expected=step.before.digest, plain=True)


def _failure(step: Step, error: BaseException, states: dict[BackendPath, str]) -> str:
    verb = "removed" if step.after is None else "written"
    what = f"{step.path!r} could not be {verb}: {in_words(error, step.path)}"
    if all(state == AS_BEFORE for state in states.values()):
        return f"{what}; all files of the patch are as before"
    left = ", ".join(f"{path!r} is {state}" for path, state in states.items() if state != AS_BEFORE)
    return f"{what}; the others are as before, but {left}"


async def _missing_folders(path: BackendPath, environment: Environment) -> list[BackendPath]:
    """The folders above a file that will be made with it, the innermost first."""
    missing = []
    folder = BackendPath(posixpath.dirname(path))
    while folder not in ("", "/") and await environment.status(folder) is None:
        missing.append(folder)
        folder = BackendPath(posixpath.dirname(folder))
    return missing


async def _taken_back(
    begun: Sequence[Step], folders: Sequence[BackendPath], environment: Environment
) -> dict[BackendPath, str]:
    """The state of each file when what was done to it has been undone, as far as nobody else has touched it."""
    states = {}
    for step in reversed(begun):
        try:
            states[step.path] = await _undone(step, environment)
        except (OSError, ToolcribError) as error:
            states[step.path] = f"not as before, and could not be put back ({in_words(error, step.path)})"
    for folder in sorted(folders, key=len, reverse=True):
        try:
            await environment.remove_folder(folder)
        except (OSError, ToolcribError):
            # Something else is in it by now, or it was never made.
            continue
    return states


async def _undone(step: Step, environment: Environment) -> str:
    try:
        now = digest_of(await environment.read_file(step.path, plain=True))
    except (FileNotFoundError, NotADirectoryError):
        now = ""
    if now == step.before.digest and (step.mode is None or step.after != step.before.data):
        return AS_BEFORE
    if now != step.after_digest:
        return "changed by somebody else meanwhile, and left alone"
    if step.before.data is None:
        await environment.remove_file(step.path, expected=now, plain=True)
    else:
        await environment.write_file(step.path, step.before.data, mode=step.before.mode, expected=now, plain=True)
    return AS_BEFORE
