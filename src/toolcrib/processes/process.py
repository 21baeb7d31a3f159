"""One background process: its record on disk, and the live object that tracks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.core.environments import CommandExit, EndReason, Execution
from toolcrib.core.errors import EnvironmentFailed, ToolcribError
from toolcrib.process_identity import Identity
from toolcrib.processes.output import OutputWatch, ProcessOutput

ProcessStatus = Literal["running", "exited", "killed", "lost"]
CompletionReason = Literal["", "exited", "killed", "lost", "failed_start"]


class UnknownProcess(ToolcribError):
    """There is no such process, or it belongs to another session; the message does not reveal which."""

    def __init__(self, process_id: str) -> None:
        super().__init__(f'no process {process_id!r} in this session; process(action="list") shows the ones it has')


class InputRefused(ToolcribError):
    """Nothing can be written to the process; the message says why."""


class ProcessLimits(Struct, frozen=True, kw_only=True):
    """How much output and how many processes are kept, and time limits."""

    buffer_chars: int = 200_000
    """How much of the newest output of each process is kept in memory."""
    kept_output_bytes: int = 10_000_000
    """How much of the oldest output of each process is kept on disk."""
    finished_kept: int = 64
    """How many finished processes are remembered."""
    finished_seconds: float = 1800.0
    """How long a finished process is remembered."""
    grace_seconds: float = 1.0
    """The time between TERM and KILL."""
    max_wait_seconds: float = 180.0
    """The longest single `wait`."""
    write_seconds: float = 10.0
    """How long a process may take to read its input."""
    close_seconds: float = 15.0
    """How long closing waits for all processes together; the next start ends the rest."""


class ProcessRecord(Struct, frozen=True, kw_only=True):
    """One background process. A change of state creates a new record."""

    id: str
    session_key: str
    command: str
    task_id: str = ""
    cwd: str = ""
    kind: str = ""
    """The backend it runs in."""
    address: Mapping[str, str] = field(default_factory=dict)
    """How another toolcrib process finds its environment again."""
    command_id: str = ""
    """Its id in the environment."""
    pid: int | None = None
    """Inside the backend."""
    identity: Identity | None = None
    """The process, if it runs on this machine."""
    owner: Identity
    """The toolcrib process that owns it."""
    started_at: float
    notify_on_complete: bool = False
    watch_patterns: tuple[str, ...] = ()
    has_terminal: bool = False
    adopted: bool = False
    """Taken over from a foreground command instead of started in the background."""
    status: ProcessStatus = "running"
    exit_code: int | None = None
    completion_reason: CompletionReason = ""
    termination_source: str = ""
    """What ended it, if we did: process_tool, kill_all, shutdown, recovery …"""
    ended_at: float | None = None
    note: str = ""
    """A message about something unusual at its end."""
    children_run: bool = False
    """The command itself has ended, but something it started still runs."""
    output_chars: int = 0
    output_lines: int = 0
    """How many newlines its output had."""

    @property
    def is_running(self) -> bool:
        return self.status == "running"


ASK_SECONDS = 2.0
"""How long the environment may take to tell whether a process waits for input."""
FIRST_SIGNAL_CODE = 128
KEPT_TYPED_CHARS = 20_000
_END: dict[EndReason, tuple[ProcessStatus, CompletionReason]] = {
    "exited": ("exited", "exited"),
    "killed": ("killed", "killed"),
    "lost": ("lost", "lost"),
    "no_folder": ("exited", "failed_start"),
}


class AdoptedCommand(Struct, frozen=True, kw_only=True):
    """A foreground command that continues in the background."""

    execution: Execution
    session_key: str
    command: str
    task_id: str = ""
    cwd: str = ""
    kind: str = ""
    address: Mapping[str, str] = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    """The remaining processes if the command itself has ended; empty if it still runs."""
    output: bytes = b""
    """Its output so far."""
    has_terminal: bool = False
    notify_on_complete: bool = False
    watch_patterns: tuple[str, ...] = ()


class TrackedProcess:
    """A background process of this registry: running, or ended and still remembered."""

    def __init__(self, record: ProcessRecord, output: ProcessOutput, watch: OutputWatch | None) -> None:
        self.record = record
        self.output = output
        self.watch = watch
        self.execution: Execution | None = None
        """None when none of its processes run any more."""
        self.watch_timer: asyncio.TimerHandle | None = None
        self.waiter: asyncio.Task[None] | None = None
        self.killing: asyncio.Task[None] | None = None
        self.done = asyncio.Event()
        self.kept_until = 0.0
        self.stays_on_record = False
        """It counts as lost here, but the next start may know more, so its record stays on disk."""
        self.seen_until: dict[str, int] = {}
        """The output position up to which each reader has polled."""
        self.typed = ""
        """The latest of what was typed into it."""
        self.forgot_typed = False
        """More was typed than `typed` holds."""

    @property
    def is_running(self) -> bool:
        return self.record.is_running

    def new_output(self, reader: str) -> str:
        """The output since this reader last asked."""
        position = self.seen_until.get(reader, 0)
        text = self.output.since(position)
        self.seen_until[reader] = self.output.rolling.end
        return text

    async def write(self, data: bytes, limits: ProcessLimits) -> None:
        """Write to the input of the process; raises InputRefused."""
        execution = self._listener()
        try:
            await asyncio.wait_for(execution.write(data), limits.write_seconds)
            typed = self.typed + data.decode("utf-8", "replace")
            self.forgot_typed = self.forgot_typed or len(typed) > KEPT_TYPED_CHARS
            self.typed = typed[-KEPT_TYPED_CHARS:]
        except TimeoutError:
            raise InputRefused(
                f"{self.record.id} has not read its input for {limits.write_seconds:g} seconds; it may be busy, "
                "or not read input at all"
            ) from None
        except (BrokenPipeError, ConnectionError):
            raise InputRefused(f"the input of {self.record.id} is closed; nothing more can be written to it") from None

    async def close_input(self) -> None:
        """End the input of the process."""
        await self._listener().close_input()

    async def waits_for_input(self) -> bool:
        """Whether it is reading its input right now, as far as can be seen."""
        if self.execution is None or not self.is_running:
            return False
        try:
            return await asyncio.wait_for(self.execution.waits_for_input(), ASK_SECONDS)
        except (TimeoutError, EnvironmentFailed, OSError):
            return False

    def ended(self, ended: CommandExit | None, now: float) -> ProcessRecord:
        """The record of the process after its end; None means that its exit code is unknown."""
        reason = ended.reason if ended is not None else "exited"
        exit_code = ended.exit_code if ended is not None else None
        status, completion = _END[reason]
        by_signal = exit_code is None or exit_code > FIRST_SIGNAL_CODE
        if self.record.termination_source and reason == "exited" and by_signal:
            status = completion = "killed"
        return replace(
            self.record,
            status=status,
            exit_code=exit_code,
            completion_reason=completion,
            # A process that ended just before we could end it was not ended by us.
            termination_source=self.record.termination_source if status == "killed" else "",
            ended_at=now,
            note=ended.note if ended is not None else "",
            output_chars=self.output.rolling.end,
            output_lines=self.output.rolling.newlines,
        )

    def completion(self, tail_chars: int, readable: Callable[[str], str]) -> dict[str, Any]:
        """The fields of its completion event."""
        record = self.record
        return {
            "session_id": record.id,
            "session_key": record.session_key,
            "command": record.command,
            "exit_code": record.exit_code,
            "completion_reason": record.completion_reason,
            "termination_source": record.termination_source,
            "output": readable(self.output.tail(tail_chars)),
            "started_at": record.started_at,
        }

    def _listener(self) -> Execution:
        if not self.is_running:
            raise InputRefused(f"{self.record.id} has already ended; nothing can be written to it")
        if self.execution is None:
            raise InputRefused(f"{self.record.id} is being recovered after a crash; try again in a moment")
        return self.execution
