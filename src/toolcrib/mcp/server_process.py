"""The process of a server: started in a session of its own, and ended with everything that it started."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import subprocess
from typing import IO

import msgspec

from toolcrib.environments.host_process import on_exit
from toolcrib.mcp.failures import ServerFailed
from toolcrib.mcp.process_ledger import ProcessLedger
from toolcrib.mcp.server_log import ServerLog
from toolcrib.mcp.servers import Server
from toolcrib.process_identity import Identity, identity_of
from toolcrib.processes.host_tree import COMMAND_ID_VARIABLE, end_tree

LEAVE_SECONDS = 2.0
"""How long a server may take to go after its input was closed."""
TERM_SECONDS = 2.0


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to start the process of a server, besides its settings."""

    server: Server
    cwd: str
    log: ServerLog
    ledger: ProcessLedger


class ServerProcess:
    """A running server. Whoever started it must `end` it."""

    def __init__(self, program: Program) -> None:
        self._command_id = f"mcp-{secrets.token_hex(8)}"
        self._ledger = program.ledger
        self._ledger.write(self._command_id, program.server.name)
        self._child = self._start(program)
        self.leader = identity_of(self._child.pid) or Identity(self._child.pid)
        self._ledger.write(self._command_id, program.server.name, self.leader)
        self.has_ended = asyncio.Event()
        self._stop_watching = on_exit(self._child.pid, self._reap)

    def _start(self, program: Program) -> subprocess.Popen[bytes]:
        settings = program.server.settings
        try:
            return subprocess.Popen(
                [settings.command, *settings.args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={**program.server.environ, COMMAND_ID_VARIABLE: self._command_id},
                cwd=settings.cwd or program.cwd or None,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._ledger.remove(self._command_id)
            raise ServerFailed(_not_started(settings.command, error)) from error

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        """Its stdin, stdout and stderr."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        return child.stdin, child.stdout, child.stderr

    @property
    def how_it_ended(self) -> str:
        """Empty while it runs."""
        code = self._child.returncode
        if code is None:
            return ""
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"it was ended by {signal.Signals(-code).name}"
        return f"it ended with exit code {code}"

    async def end(self, leave_seconds: float = LEAVE_SECONDS) -> None:
        """Wait for it to leave by itself, then end it and all that it started; every wait has a limit."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.has_ended.wait(), leave_seconds)
        gone = await end_tree(self._command_id, self.leader, TERM_SECONDS)
        if not self.has_ended.is_set():
            self._reap()
        self._stop_watching()
        if gone:
            self._ledger.remove(self._command_id)

    def _reap(self) -> None:
        if self._child.poll() is None:
            # The pidfd is ready an instant before the process can be waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(0.5)
        self.has_ended.set()


def _not_started(command: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        if error.filename == command:
            return f"{command!r} was not found; install it, or write its full path"
        return f"its folder {str(error.filename)!r} does not exist; correct its cwd"
    return f"{command!r} could not be started: {getattr(error, 'strerror', None) or error}"
