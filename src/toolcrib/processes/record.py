"""What is known about one background process, as a value that is written to disk and read again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from toolcrib.core.errors import ToolcribError
from toolcrib.process_identity import Identity

ProcessStatus = Literal["running", "exited", "killed", "lost"]
CompletionReason = Literal["", "exited", "killed", "lost", "failed_start"]


class UnknownProcess(ToolcribError):
    """There is no such process, or it belongs to another session: nobody can tell which from the message."""

    def __init__(self, process_id: str) -> None:
        super().__init__(f'no process {process_id!r} in this session; process(action="list") shows the ones it has')


class InputRefused(ToolcribError):
    """Nothing can be typed into the process; says why."""


class ProcessLimits(Struct, frozen=True, kw_only=True):
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


class ProcessRecord(Struct, frozen=True, kw_only=True):
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
