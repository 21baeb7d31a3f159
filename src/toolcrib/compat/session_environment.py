"""The environment of a session of the default runtime and its `terminal` tool, for callers that are not async."""

from __future__ import annotations

from typing import Any

from toolcrib.api import default_runtime
from toolcrib.compat.tools_environments import BaseEnvironment, ProcessHandle
from toolcrib.compat.tools_environments_backends import _Handle
from toolcrib.compat.tools_interrupt import cancelled_with_thread
from toolcrib.core.environments import BackendPath, CommandRequest, Environment
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.environments.foreground import CommandLimits, run_foreground
from toolcrib.terminal.service import TerminalService

MEGABYTE = 1024 * 1024


class SessionEnvironment(BaseEnvironment):
    """Shares folder, variables and functions with the `terminal` tool of that session."""

    def __init__(self, terminal: TerminalService, session_key: str, environment: Environment) -> None:
        settings = terminal.options.settings.terminal
        super().__init__(environment.cwd, int(settings.timeout), dict(settings.env))
        self.session_key = session_key
        self.environment = environment
        self._terminal = terminal

    def execute(
        self,
        command: str,
        cwd: str = "",
        *,
        timeout: int | None = None,
        stdin_data: str | None = None,
        rewrite_compound_background: bool = True,
        bounded_capture: bool = False,
    ) -> dict[str, Any]:
        """Run a command in the session: `{"output", "returncode"}`; 124 on timeout."""
        request = CommandRequest(
            command=command,
            cwd=BackendPath(cwd) if cwd else None,
            stdin=None if stdin_data is None else stdin_data.encode(errors="surrogateescape"),
        )
        kept = self._terminal.options.settings.tool_output.max_bytes if bounded_capture else 64 * MEGABYTE
        limits = CommandLimits(timeout_seconds=timeout or self.timeout, limit_bytes=kept)
        result = self._terminal.run(run_foreground(self.environment, request, limits))
        self.cwd = self.environment.cwd
        note = f"\n[Command timed out after {timeout or self.timeout}s]" if result.timed_out else ""
        return {"output": result.text + note, "returncode": result.exit_code}

    def _run_bash(
        self, cmd_string: str, *, login: bool = False, timeout: int = 120, stdin_data: str | None = None
    ) -> ProcessHandle:
        handle = _Handle(self._terminal.loop)
        stdin = None if stdin_data is None else stdin_data.encode(errors="surrogateescape")
        request = CommandRequest(command=cmd_string, stdin=stdin)
        handle.follow(self._terminal.run(self.environment.start(request, handle.take)))
        return handle

    def get_temp_dir(self) -> str:
        return self.environment.address()["folder"]

    def cleanup(self) -> None:
        """End everything that runs in it, and release it."""
        self._has_session = False
        registry = self._terminal.processes.registry
        self._terminal.run(registry.kill_all(self.session_key, source="cleanup"))
        self._terminal.run(self._terminal.environments.close_session(self.session_key))


def run_terminal(arguments: JsonObject, task_id: str, session_id: str) -> ToolResult:
    """Call the `terminal` tool; an interrupt of this thread ends the command."""
    runtime = default_runtime()
    with cancelled_with_thread() as token:
        ctx = runtime.context(tool_name="terminal", task_id=task_id, session_id=session_id, cancel=token)
        return runtime.call_sync("terminal", arguments, ctx)
