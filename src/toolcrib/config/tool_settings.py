"""Settings of the built-in tools: code, undo, skills, scheduled jobs.

Like settings.py, this holds real annotations, and the text under each field is its entry in the reference docs.
"""

from dataclasses import dataclass, field
from typing import Literal

from toolcrib.config.limits import ABOVE_ZERO, AT_LEAST_ONE, AT_LEAST_ZERO


@dataclass(frozen=True, kw_only=True)
class CodeExecutionSettings:
    """How `execute_code` runs a script."""

    mode: Literal["project", "strict"] = "project"
    """`project`: in the session's folder, with the Python of the project; `strict`: in an empty folder, with the
    standard library alone."""
    sandbox: Literal["auto", "on", "off"] = "auto"
    """With the local backend: run scripts in the kernel sandbox. `auto` does so where there is one, `on` refuses to run
    without one."""
    network: bool = False
    """Let scripts in the sandbox use the network."""
    python: str = ""
    """The interpreter to run scripts with; empty means the project's, else `python3`."""
    timeout: float = field(default=300, metadata=ABOVE_ZERO)
    """How many seconds one script may take."""
    max_tool_calls: int = field(default=50, metadata=AT_LEAST_ZERO)
    """How many tools one script may call."""
    max_output_bytes: int = field(default=50_000, metadata=AT_LEAST_ONE)
    """How much of what a script prints reaches the model."""
    max_error_bytes: int = field(default=10_000, metadata=AT_LEAST_ONE)
    """How much of what a script prints as errors reaches the model."""
    memory_mb: int = field(default=1024, metadata=AT_LEAST_ZERO)
    """How much memory one script may use, in megabytes; 0 means no limit."""
    max_processes: int = field(default=64, metadata=AT_LEAST_ZERO)
    """How many processes one script may start, where the kernel can count them; 0 means no limit."""


@dataclass(frozen=True, kw_only=True)
class UndoSettings:
    """What is kept of files before tools change them, for `toolcrib undo`."""

    enabled: bool = True
    """Keep what files are before a tool changes or deletes them."""
    max_file_mb: float = field(default=50, metadata=AT_LEAST_ZERO)
    """Larger files are not kept, in megabytes."""
    max_session_mb: float = field(default=500, metadata=AT_LEAST_ZERO)
    """How much is kept for one session, in megabytes."""
    max_total_mb: float = field(default=2000, metadata=AT_LEAST_ZERO)
    """How much is kept for all sessions, in megabytes; the oldest goes first."""


@dataclass(frozen=True, kw_only=True)
class SkillSettings:
    """Which skills the agent sees."""

    folders: list[str] = field(default_factory=list)
    """More folders with skills, besides those in the home and in the project."""
    disabled: list[str] = field(default_factory=list)
    """Names of skills that are not shown."""
    bundled: bool = True
    """Show the skills that come with toolcrib."""
    project: bool = True
    """Show the skills of the project that toolcrib is started in."""


@dataclass(frozen=True, kw_only=True)
class CronSettings:
    """How scheduled jobs run."""

    missed: Literal["once", "skip", "all"] = "once"
    """What happens to runs whose time passed while no scheduler was running: one for all of them, none, or each."""
    timezone: str = ""
    """The time zone of schedules that name none, for example `Europe/Berlin`; empty means this machine's."""
    max_parallel: int = field(default=3, metadata=AT_LEAST_ONE)
    """How many jobs run at the same time."""
    timeout: float = field(default=3600, metadata=ABOVE_ZERO)
    """How many seconds one run may take."""
    keep_runs: int = field(default=50, metadata=AT_LEAST_ONE)
    """How many runs of each job are kept."""
