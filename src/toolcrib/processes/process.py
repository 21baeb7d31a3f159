"""What is known about one background process, as a value that is written to disk and read again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from toolcrib.core.environments import CommandExit, EndReason, Execution
from toolcrib.core.errors import EnvironmentFailed, ToolcribError
from toolcrib.process_identity import Identity
from toolcrib.processes.output import OutputWatch, ProcessOutput

ProcessStatus = Literal["running", "exited", "killed", "lost"]
CompletionReason = Literal["", "exited", "killed", "lost", "failed_start"]


class UnknownProcess(ToolcribError):
    """There is no such process, or it belongs to another session: nobody can tell which from the message."""

    def __init__(self, process_id: str) -> None:
        super().__init__(f'no process {process_id!r} in this session; process(action="list") shows the ones it has')


class InputRefused(ToolcribError):
    """Nothing can be typed into the process; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """How much is kept, and for how long."""

    buffer_chars: int = 200_000
    """The newest output that is kept in memory, of each process."""
    kept_output_bytes: int = 10_000_000
    """The oldest output that is kept on disk, of each process."""
    finished_kept: int = 64
    """How many finished processes can still be asked about."""
    finished_seconds: float = 1800.0
    """How long after its end."""
    grace_seconds: float = 1.0
    """How long a process has between TERM and KILL."""
    max_wait_seconds: float = 180.0
    """The longest that one `wait` lasts."""
    write_seconds: float = 10.0
    """How long a process may take to read what was typed."""
    close_seconds: float = 15.0
    """How long an orderly end waits for all processes together; what is left then is ended at the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One background process. A change of its state makes a new record."""

    id: str
    session_key: str
    command: str
    task_id: str = ""
    cwd: str = ""
    kind: str = ""
    """The backend that it runs in."""
    address: Mapping[str, str] = field(default_factory=dict)
    """How another process finds the place again that it runs in."""
    command_id: str = ""
    """Under which id the environment knows it."""
    pid: int | None = None
    """Inside the backend."""
    identity: Identity | None = None
    """The process on this machine, where it is one of this machine."""
    owner: Identity
    """The process of ours that looks after it."""
    started_at: float
    notify_on_complete: bool = False
    watch_patterns: tuple[str, ...] = ()
    has_terminal: bool = False
    adopted: bool = False
    """Taken over from a foreground command, instead of started in the background."""
    status: ProcessStatus = "running"
    exit_code: int | None = None
    completion_reason: CompletionReason = ""
    termination_source: str = ""
    """Who ended it, if we did: process_tool, kill_all, shutdown, recovery …"""
    ended_at: float | None = None
    note: str = ""
    """A sentence about something odd at its end."""
    children_run: bool = False
    """The command itself has ended, and something that it started goes on."""
    output_chars: int = 0
    output_lines: int = 0
    """How many line ends its output held."""

    @property
    def is_running(self) -> bool:
        return self.status == "running"


ASK_SECONDS = 2.0
"""How long the place may take to say whether a process waits for input."""
FIRST_SIGNAL_CODE = 128
_END: dict[EndReason, tuple[ProcessStatus, CompletionReason]] = {
    "exited": ("exited", "exited"),
    "killed": ("killed", "killed"),
    "lost": ("lost", "lost"),
    "no_folder": ("exited", "failed_start"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedCommand:
    """A foreground command that goes on in the background."""

    execution: Execution
    session_key: str
    command: str
    task_id: str = ""
    cwd: str = ""
    kind: str = ""
    address: Mapping[str, str] = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    """The processes that are left, if the command itself has ended. None: it still runs itself."""
    output: bytes = b""
    """What it has printed so far."""
    has_terminal: bool = False
    notify_on_complete: bool = False
    watch_patterns: tuple[str, ...] = ()


class TrackedProcess:
    """A background process of this registry: running, or ended and still asked about."""

    def __init__(self, record: ProcessRecord, output: ProcessOutput, watch: OutputWatch | None) -> None:
        self.record = record
        self.output = output
        self.watch = watch
        self.execution: Execution | None = None
        """None when nothing of it runs any more."""
        self.watch_timer: asyncio.TimerHandle | None = None
        self.waiter: asyncio.Task[None] | None = None
        self.killing: asyncio.Task[None] | None = None
        self.done = asyncio.Event()
        self.kept_until = 0.0
        self.stays_on_record = False
        """It counts as lost here, but the next start may know more: what is on disk about it is not ours to remove."""
        self.seen_until: dict[str, int] = {}
        """How far each reader has polled, as a position in the output."""

    @property
    def is_running(self) -> bool:
        return self.record.is_running

    def new_output(self, reader: str) -> str:
        """What was printed since this reader asked last."""
        position = self.seen_until.get(reader, 0)
        text = self.output.since(position)
        self.seen_until[reader] = self.output.rolling.end
        return text

    async def write(self, data: bytes, limits: ProcessLimits) -> None:
        """Type something into the process; raises InputRefused."""
        execution = self._listener()
        try:
            await asyncio.wait_for(execution.write(data), limits.write_seconds)
        except TimeoutError:
            raise InputRefused(
                f"{self.record.id} has not read its input for {limits.write_seconds:g} seconds; it may be busy, "
                "or it does not read input at all"
            ) from None
        except (BrokenPipeError, ConnectionError):
            raise InputRefused(f"the input of {self.record.id} is closed; nothing more can be typed into it") from None

    async def close_input(self) -> None:
        """End the input of the process."""
        await self._listener().close_input()

    async def waits_for_input(self) -> bool:
        """Whether it reads its input right now, as far as can be seen."""
        if self.execution is None or not self.is_running:
            return False
        try:
            return await asyncio.wait_for(self.execution.waits_for_input(), ASK_SECONDS)
        except (TimeoutError, EnvironmentFailed, OSError):
            return False

    def ended(self, ended: CommandExit | None, now: float) -> ProcessRecord:
        """The record of the process after its end; None: nobody knows its exit code."""
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
            # A process that ended by itself just before we could end it was not ended by us.
            termination_source=self.record.termination_source if status == "killed" else "",
            ended_at=now,
            note=ended.note if ended is not None else "",
            output_chars=self.output.rolling.end,
            output_lines=self.output.rolling.newlines,
        )

    def completion(self, tail_chars: int, readable: Callable[[str], str]) -> dict[str, Any]:
        """The fields of the event that tells of its end."""
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
            raise InputRefused(f"{self.record.id} has already ended; nothing can be typed into it")
        if self.execution is None:
            raise InputRefused(f"{self.record.id} is just being found again after a crash; try in a moment")
        return self.execution
