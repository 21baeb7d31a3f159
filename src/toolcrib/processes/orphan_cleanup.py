"""Ends the processes of a command on this machine without its environment, after a crash of toolcrib."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

from toolcrib.process_identity import PROC, Identity, identity_of, is_alive, stat_fields

COMMAND_ID_VARIABLE = "TOOLCRIB_COMMAND_ID"
"""Every process of a command has the command's id in this environment variable."""
SESSION_FIELD = 3
POLL_SECONDS = 0.02
GIVE_UP_SECONDS = 5.0


async def end_tree(command_id: str, leader: Identity | None, grace_seconds: float) -> bool:
    """End every process of a command on this machine: TERM, later KILL. Returns whether none is left.

    The leader counts only if it is still the process that was started; the others are found by the command's id in
    their environment, or by the session that it led.
    """
    kill_at = time.monotonic() + grace_seconds
    give_up_at = kill_at + GIVE_UP_SECONDS
    signalled: set[int] = set()
    while found := processes_of(command_id, leader):
        now = time.monotonic()
        if now > give_up_at:
            return False
        for pid in found:
            if now >= kill_at:
                _send(pid, signal.SIGKILL)
            elif pid not in signalled:
                signalled.add(pid)
                _send(pid, signal.SIGTERM)
        await asyncio.sleep(POLL_SECONDS)
    return True


def processes_of(command_id: str, leader: Identity | None) -> list[int]:
    """The running processes of a command on this machine."""
    leader_pid = leader.pid if leader is not None and _leads_its_session(leader) else None
    marker = f"{COMMAND_ID_VARIABLE}={command_id}".encode()
    try:
        pids = [int(name) for name in os.listdir(PROC) if name.isdigit()]  # noqa: PTH208 - names are all we need
    except FileNotFoundError:
        return [leader.pid] if leader is not None and is_alive(leader) else []
    return [pid for pid in pids if pid != os.getpid() and _belongs(pid, marker, leader_pid)]


def _leads_its_session(leader: Identity) -> bool:
    """Whether its pid is still valid as a session id, which is not reused while the session has members."""
    return is_alive(leader) or identity_of(leader.pid) is None


def _belongs(pid: int, marker: bytes, leader_pid: int | None) -> bool:
    fields = stat_fields(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return False
    if leader_pid is not None and (pid == leader_pid or fields[SESSION_FIELD] == str(leader_pid)):
        return True
    try:
        return marker in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
