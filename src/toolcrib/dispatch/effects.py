"""Decides which calls of a batch may run in parallel, by their declared effects and the paths they touch."""

from __future__ import annotations

import os

import msgspec

from toolcrib.core.context import ToolContext
from toolcrib.core.remote_records import located
from toolcrib.core.types import Effect, JsonObject, ToolEntry

# These run alone: a command can touch anything, and a user can answer only one question at a time.
ALONE = frozenset({"exec", "interactive", "publish", "spend", "schedule"})

Effects = tuple[Effect, ...] | None
"""The effects of a call; None if its tool declares nothing, so it keeps its place in the order."""


class AccessSet(msgspec.Struct, frozen=True):
    """What a call blocks: all other calls, or only those that touch the same paths."""

    alone: bool
    read: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


NOTHING_BESIDE = AccessSet(alone=True)


def effects_of(entry: ToolEntry, args: JsonObject, ctx: ToolContext) -> Effects:
    """The effects that a call would have; raises whatever the tool's effects function raises."""
    declared = entry.effects
    if not callable(declared):
        return None if declared is None else tuple(map(located, declared))
    effects = tuple(declared(args, ctx))
    for effect in effects:
        if not isinstance(effect, Effect):
            raise TypeError(f"the effects function of {entry.name!r} returned {effect!r}, which is not an Effect")
    return tuple(map(located, effects))


def access_set(footprint: Effects, cwd: str) -> AccessSet:
    """What calls with these effects block."""
    if footprint is None or any(effect.kind in ALONE or _changes_record(effect) for effect in footprint):
        return NOTHING_BESIDE
    read: list[str] = []
    written: list[str] = []
    for effect in footprint:
        if effect.kind in ("read", "write", "delete"):
            try:
                path = _real_path(effect, cwd)
            except (OSError, ValueError):
                return NOTHING_BESIDE  # A path that cannot be read might be any path.
            (read if effect.kind == "read" else written).append(path)
    return AccessSet(False, tuple(read), tuple(written))


def _changes_record(effect: Effect) -> bool:
    return effect.kind == "remote" and effect.action != "read"


class CallGroup:
    """Calls that run in parallel. `admits` says whether one more may join; `add` adds it."""

    def __init__(self) -> None:
        self._closed = False
        self._empty = True
        self._read: set[str] = set()
        self._written: set[str] = set()
        # Every folder above a touched path, to find a new path that contains an old one.
        self._above_read: set[str] = set()
        self._above_written: set[str] = set()

    def admits(self, reach: AccessSet) -> bool:
        if self._empty:
            return True
        if self._closed or reach.alone:
            return False
        if any(_overlaps(path, self._written, self._above_written) for path in reach.read + reach.written):
            return False
        return not any(_overlaps(path, self._read, self._above_read) for path in reach.written)

    def add(self, reach: AccessSet) -> None:
        self._empty = False
        self._closed = reach.alone
        self._read.update(reach.read)
        self._written.update(reach.written)
        for path in reach.read:
            self._above_read.update(_folders_above(path))
        for path in reach.written:
            self._above_written.update(_folders_above(path))


def _overlaps(path: str, touched: set[str], above: set[str]) -> bool:
    """Whether the path is, contains, or is inside one of the touched paths."""
    if not touched:
        return False
    return path in touched or path in above or not touched.isdisjoint(_folders_above(path))


def _real_path(effect: Effect, cwd: str) -> str:
    """The absolute path with links resolved, as far as it exists; for another environment, its name plus the path."""
    if effect.backend:
        there = os.path.normpath(os.path.join(effect.cwd or "/", effect.target))  # noqa: PTH118 - of any machine
        return f"/{effect.backend}:{there}"
    return os.path.realpath(os.path.join(effect.cwd or cwd or os.curdir, os.path.expanduser(effect.target)))  # noqa: PTH118, PTH111


def _folders_above(path: str) -> list[str]:
    above = []
    while (parent := os.path.dirname(path)) != path:  # noqa: PTH120
        above.append(parent)
        path = parent
    return above
