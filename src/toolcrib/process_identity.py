"""Identifies processes on this machine by id and start time, because the system reuses process ids."""

from __future__ import annotations

import functools
import itertools
import os
import shlex
import sys
from pathlib import Path

import msgspec

PROC = Path("/proc")
GROUP_FIELD, FOREGROUND_FIELD = 2, 5
"""The indexes of a process's group and of its terminal's foreground group in /proc/<pid>/stat, counted likewise."""
MAX_BELOW = 200
START_FIELD = 19
"""The index of the start time in /proc/<pid>/stat, counted after the closing bracket of the name."""


class Identity(msgspec.Struct, frozen=True):
    """One process, unique until the machine reboots."""

    pid: int
    started: str = ""
    """The boot id and the clock ticks from boot to the start of the process; empty if unknown."""


def identity_of(pid: int) -> Identity | None:
    """The process that has this id now; None if there is none (a zombie does not count)."""
    if not PROC.joinpath("self", "stat").exists():
        return Identity(pid) if _answers(pid) else None
    fields = stat_fields(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    return Identity(pid, f"{_boot()}:{fields[START_FIELD]}")


def own_identity() -> Identity:
    """Ours."""
    return identity_of(os.getpid()) or Identity(os.getpid())


def is_alive(identity: Identity) -> bool:
    """Whether this exact process is still running."""
    now = identity_of(identity.pid)
    return now is not None and (not identity.started or now.started == identity.started)


def stat_fields(pid: int) -> list[str] | None:
    """The fields of a process in /proc, starting with its state; None if it has ended."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name is in brackets and may contain anything, including brackets.
    return text[text.rfind(")") + 2 :].split()


def readers_below(pid: int, *, on_terminal: bool) -> tuple[str, ...]:
    """The command lines of the innermost programs that a process started: they read its input, and it waits.

    On a terminal only those in the foreground. Empty if there are none, or this system does not tell.
    """
    own = stat_fields(pid)
    foreground = own[FOREGROUND_FIELD] if own is not None and on_terminal else ""
    found: dict[str, None] = {}
    waiting = list(_children(pid))
    # The list grows during the loop.
    for process in itertools.islice(waiting, MAX_BELOW):
        below = _children(process)
        fields = stat_fields(process)
        if fields is None or fields[0] in ("Z", "X"):
            continue
        in_front = [child for child in below if not foreground or _group(child) == foreground]
        waiting += below
        if not in_front and (not foreground or fields[GROUP_FIELD] == foreground):
            found[_command_line(process)] = None
    # A copy of the process itself has not become another program yet.
    return tuple(found.keys() - {"", _command_line(pid)})


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]
    except OSError:
        return []


def _group(pid: int) -> str:
    fields = stat_fields(pid)
    return fields[GROUP_FIELD] if fields is not None else ""


def _command_line(pid: int) -> str:
    try:
        words = (PROC / str(pid) / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return ""
    return shlex.join(words[:-1])


@functools.cache  # It never changes while this process runs.
def _boot() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _answers(pid: int) -> bool:
    if sys.platform == "win32":
        return False  # There is no harmless signal to test with.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
