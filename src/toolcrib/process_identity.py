"""Which process of this machine is meant: a process id alone is given away again, together with its start it is not."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import msgspec

PROC = Path("/proc")
START_FIELD = 19
"""Where the start time stands in /proc/<pid>/stat, counted from after the closing bracket of the name."""


class Identity(msgspec.Struct, frozen=True):
    """One process, for as long as the machine runs."""

    pid: int
    started: str = ""
    """The machine's boot and the clock ticks from there to the start of the process; empty where nobody can tell."""


def identity_of(pid: int) -> Identity | None:
    """Who has this process id now; None when nobody has (one that only waits to be reaped counts as nobody)."""
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
    """Whether that very process still runs."""
    now = identity_of(identity.pid)
    return now is not None and (not identity.started or now.started == identity.started)


def stat_fields(pid: int) -> list[str] | None:
    """What /proc says about a process, from its state on; None when it is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may hold anything, brackets too.
    return text[text.rfind(")") + 2 :].split()


@functools.cache  # It stays the same for as long as we can ask.
def _boot() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _answers(pid: int) -> bool:
    if sys.platform == "win32":
        return False  # There is no harmless signal to ask with.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
