"""What a server prints as errors, in a file that cannot grow without end."""

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

from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.environments.exit_watch import on_exit
from toolcrib.mcp.client.errors import ServerFailed
from toolcrib.mcp.client.servers import Server
from toolcrib.process_identity import Identity, identity_of, is_alive, own_identity
from toolcrib.processes.host_tree import COMMAND_ID_VARIABLE, end_tree

MAX_LOG_BYTES = 1024 * 1024
TAIL_BYTES = 2000
_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


class ServerLog:
    """The log of one server: at most twice MAX_LOG_BYTES, in two files. Logging never fails a connection."""

    def __init__(self, folder: Path, server: str) -> None:
        name = _NOT_IN_FILE_NAMES.sub("_", server).lstrip(".")[:100] or "server"
        self.path = folder / f"{name}.log"
        self._size = -1
        self._recent = b""

    @property
    def tail(self) -> str:
        """What was printed last."""
        return self._recent.decode("utf-8", "replace").strip()

    def begin(self, line: str) -> None:
        """Note that a new process or connection begins."""
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


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One server process, and who started it."""

    command_id: str
    server: str
    owner: Identity
    leader: Identity | None = None
    """The process itself; None while it is being started."""


class ProcessLedger:
    """The entries of one home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, command_id: str, server: str, leader: Identity | None = None) -> None:
        make_folder(self._folder)
        entry = Entry(command_id=command_id, server=server, owner=own_identity(), leader=leader)
        temporary = self._folder / f".{command_id}.new"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_FILE)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.json.encode(entry))
        temporary.replace(self._path(command_id))

    def remove(self, command_id: str) -> None:
        self._path(command_id).unlink(missing_ok=True)

    def entries(self) -> list[Entry]:
        """Every entry that can be read."""
        found: list[Entry] = []
        for path in sorted(self._folder.glob("*.json")):
            # Damaged, or of a version that wrote something else: nobody can tell what it stands for.
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found.append(msgspec.json.decode(path.read_bytes(), type=Entry))
        return found

    async def end_orphans(self) -> list[str]:
        """End what dead processes of ours left running; gives the names of the servers that ran."""
        orphans = [entry for entry in self.entries() if not is_alive(entry.owner)]
        # Two that do this at once tell the same processes to end, which does no harm.
        gone = await asyncio.gather(
            *(end_tree(entry.command_id, entry.leader, ORPHAN_GRACE_SECONDS) for entry in orphans)
        )
        ended = [entry for entry, is_gone in zip(orphans, gone, strict=True) if is_gone]
        for entry in ended:
            self.remove(entry.command_id)
        return [entry.server for entry in ended]

    def _path(self, command_id: str) -> Path:
        return self._folder / f"{command_id}.json"


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
