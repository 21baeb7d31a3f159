"""The validated arguments of one call of the `terminal` tool."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from toolcrib.approval.build import read_on_first_use
from toolcrib.approval.calls import CommandReading, ProgramCall
from toolcrib.config.terminal_settings import TerminalSettings
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import ExecutionTarget
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.processes.service import session_key_of

ANSWER_SECONDS = 1.5
"""How long before a call's deadline its command is ended, so that its answer still arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalCall:
    """What is to be run, for whom, and how long it may take."""

    command: str
    session_key: str
    target: ExecutionTarget
    """Where it runs, as it was admitted."""
    task_id: str = ""
    call_id: str = ""
    background: bool = False
    pty: bool = False
    workdir: str = ""
    """The folder of its own that it asks for, as it was written."""
    folder: str = ""
    """The same as it was judged, which is where it runs."""
    reading: CommandReading | None = None
    """The command as the gate read it."""
    timeout_seconds: float = 180.0
    notify_on_complete: bool = False
    watch_patterns: tuple[str, ...] = ()

    @property
    def programs(self) -> tuple[ProgramCall, ...]:
        """The programs that the command line calls, in order, with their arguments."""
        reading = self.reading or read_on_first_use(self.command, cwd="/", home="/")
        return reading.calls


def read_call(args: JsonObject, ctx: ToolContext, settings: TerminalSettings, target: ExecutionTarget) -> TerminalCall:
    """The call that the arguments mean; raises UsageError for one that makes no sense."""
    command = args["command"]
    if not command.strip():
        raise UsageError("the command is empty")
    background = bool(args.get("background"))
    return TerminalCall(
        command=command,
        session_key=session_key_of(ctx),
        task_id=ctx.task_id,
        call_id=ctx.call_id,
        background=background,
        pty=bool(args.get("pty")),
        workdir=args.get("workdir") or "",
        folder=folder_of(args, target),
        target=target,
        reading=None if ctx.memo is None else ctx.memo.readings.get(command),
        timeout_seconds=_seconds(args.get("timeout"), ctx.deadline, settings, background=background),
        notify_on_complete=bool(args.get("notify_on_complete")),
        watch_patterns=tuple(pattern for pattern in args.get("watch_patterns") or () if pattern),
    )


def folder_of(args: JsonObject, target: ExecutionTarget) -> str:
    """The folder that a call asks for, so that it is judged where it runs; empty if it asks for none.

    On this machine it is absolute. Elsewhere only the shell there knows its home, so a leading `~` stays.
    """
    folder = str(args.get("workdir") or "")
    is_in_home = folder == "~" or folder.startswith("~/")
    if not folder or (is_in_home and not target.is_here):
        return folder
    return os.path.join(target.folder or "/", os.path.expanduser(folder) if is_in_home else folder)  # noqa: PTH111, PTH118


def _seconds(asked: float | None, deadline: float | None, settings: TerminalSettings, *, background: bool) -> float:
    longest = settings.max_foreground_timeout
    if asked is not None and asked > longest and not background:
        raise UsageError(
            f"a command in the foreground may take {longest:g} seconds at most; run it with background=true and "
            "notify_on_complete=true, or ask for less"
        )
    seconds = min(settings.timeout, longest) if asked is None or asked <= 0 else asked
    if deadline is not None:
        seconds = min(seconds, max(0.1, deadline - time.monotonic() - ANSWER_SECONDS))
    return seconds
