"""The process of a stdio server: started in its own session, and ended together with everything it started.

The ledger records on disk which processes we started, so that after a crash the next start can end what was left
running:

    processes/mcp/<command id>.json

An entry is written before the server starts and names the process of ours that owns it. Nobody touches the entry of a
live owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import subprocess
from pathlib import Path
from typing import IO

import msgspec

from toolcrib.config.environment import hide_environment
from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.config.os_errors import ANOTHER_HOME, explain_os_error
from toolcrib.environments.host_process import on_exit
from toolcrib.mcp.client.errors import ServerFailed
from toolcrib.mcp.client.servers import Server
from toolcrib.process_identity import Identity, identity_of, is_alive, own_identity
from toolcrib.processes.orphan_cleanup import COMMAND_ID_VARIABLE, end_tree

MAX_LOG_BYTES = 1024 * 1024
TAIL_BYTES = 2000
_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


class ServerLog:
    """What one server prints to stderr: at most twice MAX_LOG_BYTES, in two files. Logging never fails a connection."""

    def __init__(self, folder: Path, server: str) -> None:
        name = _NOT_IN_FILE_NAMES.sub("_", server).lstrip(".")[:100] or "server"
        self.path = folder / f"{name}.log"
        self._size = -1
        self._recent = b""

    @property
    def tail(self) -> str:
        """The last output."""
        return self._recent.decode("utf-8", "replace").strip()

    def begin(self, line: str) -> None:
        """Mark the start of a new process or connection."""
        self._recent = b""
        self._append(f"--- {line}\n".encode("utf-8", "replace"))

    def write(self, data: bytes) -> None:
        self._recent = (self._recent + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        self._append(data[-MAX_LOG_BYTES:])

    def _append(self, data: bytes) -> None:
        try:
            self._make_room(len(data))
            with self.path.open("ab") as stream:
                stream.write(data)
            self._size += len(data)
        except OSError:
            return  # A full disk is no reason to lose the server.

    def _make_room(self, wanted: int) -> None:
        if self._size < 0:
            make_folder(self.path.parent)
            self.path.touch(mode=OWNER_FILE)
            self._size = self.path.stat().st_size
        if self._size + wanted > MAX_LOG_BYTES:
            self.path.replace(self.path.with_suffix(".log.1"))
            self.path.touch(mode=OWNER_FILE)
            self._size = 0


ORPHAN_GRACE_SECONDS = 2.0


class ProcessLedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One server process and the process of ours that started it."""

    command_id: str
    server: str
    owner: Identity
    leader: Identity | None = None
    """The server process; None while it starts."""


class ProcessLedger:
    """The server processes started from one home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, command_id: str, server: str, leader: Identity | None = None) -> None:
        entry = ProcessLedgerEntry(command_id=command_id, server=server, owner=own_identity(), leader=leader)
        temporary = self._folder / f".{command_id}.new"
        try:
            make_folder(self._folder)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_FILE)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(msgspec.json.encode(entry))
            temporary.replace(self._path(command_id))
        except OSError as error:
            raise ServerFailed(explain_os_error(error, "write to", self._folder, otherwise=ANOTHER_HOME)) from error

    def remove(self, command_id: str) -> None:
        self._path(command_id).unlink(missing_ok=True)

    def entries(self) -> list[ProcessLedgerEntry]:
        """All readable entries."""
        found: list[ProcessLedgerEntry] = []
        for path in sorted(self._folder.glob("*.json")):
            # A damaged entry, or one of another version, cannot be interpreted.
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found.append(msgspec.json.decode(path.read_bytes(), type=ProcessLedgerEntry))
        return found

    async def end_orphans(self) -> list[str]:
        """End the servers that crashed processes of ours left running; returns their names."""
        orphans = [entry for entry in self.entries() if not is_alive(entry.owner)]
        # Two processes may do this at once and signal the same servers, which does no harm.
        gone = await asyncio.gather(
            *(end_tree(entry.command_id, entry.leader, ORPHAN_GRACE_SECONDS) for entry in orphans)
        )
        ended = [entry for entry, is_gone in zip(orphans, gone, strict=True) if is_gone]
        for entry in ended:
            self.remove(entry.command_id)
        return [entry.server for entry in ended]

    def _path(self, command_id: str) -> Path:
        return self._folder / f"{command_id}.json"


EXIT_SECONDS = 2.0
"""How long a server may take to exit after its stdin was closed."""
TERM_SECONDS = 2.0


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to launch or connect a server."""

    server: Server
    cwd: str
    log: ServerLog
    ledger: ProcessLedger


class ServerProcess:
    """A running server. Whoever started it must call `end`."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._command_id = f"mcp-{secrets.token_hex(8)}"
        self._ledger = spec.ledger
        self._ledger.write(self._command_id, spec.server.name)
        self._child = self._start(spec)
        self.leader = identity_of(self._child.pid) or Identity(self._child.pid)
        self._ledger.write(self._command_id, spec.server.name, self.leader)
        self.has_ended = asyncio.Event()
        self._stop_watching = on_exit(self._child.pid, self._reap)

    def _start(self, spec: LaunchSpec) -> subprocess.Popen[bytes]:
        settings = spec.server.settings
        hide_environment()
        try:
            return subprocess.Popen(
                [settings.command, *settings.args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={**spec.server.environ, COMMAND_ID_VARIABLE: self._command_id},
                cwd=settings.cwd or spec.cwd or None,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._ledger.remove(self._command_id)
            raise ServerFailed(_start_failure(settings.command, error)) from error

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
    def exit_description(self) -> str:
        """How it ended; empty while it runs."""
        code = self._child.returncode
        if code is None:
            return ""
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"it was ended by {signal.Signals(-code).name}"
        return f"it ended with exit code {code}"

    async def end(self, exit_seconds: float = EXIT_SECONDS) -> None:
        """Wait for it to exit, then end it and everything it started; every wait has a limit."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.has_ended.wait(), exit_seconds)
        gone = await end_tree(self._command_id, self.leader, TERM_SECONDS)
        if not self.has_ended.is_set():
            self._reap()
        self._stop_watching()
        if gone:
            self._ledger.remove(self._command_id)

    def _reap(self) -> None:
        if self._child.poll() is None:
            # The pidfd becomes ready an instant before the process can be waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(0.5)
        self.has_ended.set()


def _start_failure(command: str, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        if error.filename == command:
            return f"{command!r} was not found; install it, or use its full path"
        return f"its folder {str(error.filename)!r} does not exist; fix its cwd"
    return f"{command!r} could not be started: {getattr(error, 'strerror', None) or error}"
