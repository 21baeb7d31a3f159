"""The `local` backend: commands on this machine, as the user who runs toolcrib."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from weakref import WeakSet

from msgspec.structs import replace

from toolcrib.core.environments import (
    BackendPath,
    BackendStatus,
    CommandExit,
    CommandRequest,
    Execution,
    Leftover,
    OnOutput,
    TerminalSize,
)
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backend import Backend, EnvironmentRequest
from toolcrib.environments.background import BackgroundExecution, HostLogWatcher, exit_from_file
from toolcrib.environments.containers import is_alive, this_process
from toolcrib.environments.host_files import HostFiles
from toolcrib.environments.host_process import HostProcess, on_exit, spawn_on_host
from toolcrib.environments.process_tree import ALL_COMMANDS, HostTree
from toolcrib.environments.scripts import LOCAL_RUNNER, runner_text
from toolcrib.environments.shell import EnvironmentParts, SessionOptions, ShellEnvironment

IN_MEMORY = Path("/dev/shm")
ROOM_BYTES = 256 * 1024 * 1024
MAX_LOG_BYTES = 8 * 1024 * 1024
"""Logs are kept in memory; their content has been read by the time they are truncated."""
USUAL_TEMPORARY = Path("/tmp")
PREFIX = "toolcrib-"
OWNER = "session-owner"
"""The file in a session's folder that names the toolcrib process that created it."""
BASH_REMEDY = "install bash 4.4 or later (Debian: apt-get install bash; macOS: brew install bash)"


class LocalEngine:
    """Starts programs on this machine; see Engine."""

    kind = "local"
    isolated = False
    shell_pool_size = 1
    temporary = BackendPath("/tmp")

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self.shell = shutil.which("bash", path=self._environ.get("PATH")) or ""

        self._for_programs: Mapping[str, str] = self._environ
        # Those that have ended leave by themselves: only the loop that waits for their exit refers to them.
        self._started: WeakSet[HostProcess] = WeakSet()

    async def open(self) -> None:
        if not self.shell:
            raise EnvironmentFailed(f"bash was not found; {BASH_REMEDY}")

    def forget_environment(self) -> None:
        """Start programs without any variables from now on: the session's variables are in its state."""
        self._for_programs = {}

    async def close(self) -> None:
        """End the programs of ours that linger; the environment has ended its commands."""
        for process in list(self._started):
            await process.end()

    async def spawn(
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> HostProcess:
        process = await spawn_on_host(argv, on_output=on_output, environ=self._for_programs, terminal=terminal)
        self._started.add(process)
        return process

    async def spawn_logged(self, argv: Sequence[str], log: Path) -> HostProcess:
        """Start a program whose output goes to a file."""
        process = await spawn_on_host(argv, on_output=lambda _: None, environ=self._for_programs, log=log)
        self._started.add(process)
        return process

    def address(self) -> Mapping[str, str]:
        return {}


class LocalShellEnvironment(ShellEnvironment):
    """This machine. Does natively what other environments do with programs inside them."""

    engine: LocalEngine
    runner = runner_text(LOCAL_RUNNER)

    def __init__(self, environ: Mapping[str, str], options: SessionOptions | None = None) -> None:
        options = options or SessionOptions()
        is_taken_over = bool(options.folder)
        if not is_taken_over:
            folder = tempfile.mkdtemp(prefix=PREFIX, dir=_memory_folder())
            (Path(folder) / OWNER).write_text(this_process())
            options = replace(options, folder=folder)
        super().__init__(LocalEngine(environ), options)
        self._is_taken_over = is_taken_over

    def _make_parts(self) -> EnvironmentParts:
        folder = Path(self.folder)
        self._tree = tree = HostTree(folder / "sessions")
        self._watcher = HostLogWatcher(folder, min(self._options.max_log_bytes, MAX_LOG_BYTES))
        return EnvironmentParts(
            tree=tree, watcher=self._watcher, files=HostFiles(lambda: self.cwd), find_orphans=tree.orphans_of
        )

    async def _begin_session(self) -> None:
        await super()._begin_session()
        self.engine.forget_environment()

    async def start_in_background(
        self, command_id: str, request: CommandRequest, on_output: OnOutput
    ) -> BackgroundExecution:
        exit_file = f"{self.folder}/{command_id}.exit"
        blob = self._blob(command_id, request, input="open", exit_file=exit_file)
        process = await self.engine.spawn_logged(self._runner(), Path(self.folder) / f"{command_id}.log")
        execution = BackgroundExecution(
            command_id,
            pid=process.pid,
            watcher=self._watcher,
            tree=self.parts.tree,
            waits=self.waits_for_input,
            stdin=_PipeInput(process),
        )
        await execution.watch(on_output)
        self._keep_task(asyncio.ensure_future(self._report_exit(command_id, process)))
        await process.write(b"- %d\n%b" % (len(blob), blob))
        return execution

    async def _report_exit(self, command_id: str, process: HostProcess) -> None:
        code = await process.wait()
        said = self._exit_file(command_id)
        ended = exit_from_file(said) if said == "no_folder" else CommandExit(exit_code=code)
        if not said:
            # Killed, or replaced by `exec`: record the exit for whoever recovers after a crash.
            with contextlib.suppress(OSError):
                (Path(self.folder) / f"{command_id}.exit").write_text(f"{code}\n")
        self._watcher.finish(command_id, ended)
        await process.abandon()

    async def reattach(self, command_id: str, on_output: OnOutput, *, offset: int = 0) -> Execution | None:
        execution = await super().reattach(command_id, on_output, offset=offset)
        if isinstance(execution, BackgroundExecution):
            self._keep_task(asyncio.ensure_future(self._report_orphan_exit(command_id)))
        return execution

    async def _report_orphan_exit(self, command_id: str) -> None:
        """Report the exit of a process that is not our child; its shell has recorded the exit code."""
        leader = self._tree.leader_of(command_id)
        if leader is not None:
            gone = asyncio.Event()
            stop_watching = on_exit(leader, gone.set)
            try:
                await gone.wait()
            finally:
                stop_watching()
        self._watcher.finish(command_id, exit_from_file(self._exit_file(command_id)))

    def _exit_file(self, command_id: str) -> str:
        try:
            return (Path(self.folder) / f"{command_id}.exit").read_text().strip()
        except OSError:
            return ""

    def discard_draft(self, draft: str) -> None:
        # Truncating a file costs more than creating a new one.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.folder}/{draft}")  # noqa: PTH108 - after every command

    async def _remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _memory_folder() -> Path | None:
    """A file system in memory, if there is one with room: every command writes a few small files.

    None if the user chose a folder for temporary files (TMPDIR).
    """
    if Path(tempfile.gettempdir()) != USUAL_TEMPORARY:
        return None
    try:
        free = os.statvfs(IN_MEMORY)
    except OSError:
        return None
    has_room = free.f_bavail * free.f_frsize >= ROOM_BYTES
    return IN_MEMORY if has_room and os.access(IN_MEMORY, os.W_OK | os.X_OK) else None


class _PipeInput:
    def __init__(self, process: HostProcess) -> None:
        self._process = process

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def close(self) -> None:
        await self._process.close_input()


def probe(environ: Mapping[str, str]) -> BackendStatus:
    """Whether commands can run on this machine."""
    bash = shutil.which("bash", path=environ.get("PATH"))
    if bash is None:
        return BackendStatus(kind="local", usable=False, detail="bash was not found", remedy=BASH_REMEDY)
    return BackendStatus(kind="local", usable=True, detail=f"commands run here with your permissions, in {bash}")


async def _probe(request: EnvironmentRequest) -> BackendStatus:
    return probe(request.host_environ())


async def leftovers(_: EnvironmentRequest) -> list[Leftover]:
    """The folders of sessions, and whether something still runs in them."""
    found = []
    for parent in {_memory_folder() or Path(tempfile.gettempdir()), Path(tempfile.gettempdir())}:
        for note in parent.glob(f"{PREFIX}*/{OWNER}"):
            with contextlib.suppress(OSError):
                alive = is_alive(note.read_text())
                running = await HostTree(note.parent / "sessions").remaining([ALL_COMMANDS])
                detail = f"{len(running)} processes run in it" if running else "nothing runs in it"
                found.append(Leftover(kind="local folder", name=str(note.parent), detail=detail, owner_alive=alive))
    return found


async def remove(leftover: Leftover, _: EnvironmentRequest) -> None:
    """End the processes of a session that lost its owner, and remove its folder."""
    folder = Path(leftover.name)
    await HostTree(folder / "sessions").end([ALL_COMMANDS], 1.0)
    shutil.rmtree(folder, ignore_errors=True)


BACKEND = Backend(
    kind="local",
    location="host",
    create=lambda request: LocalShellEnvironment(request.host_environ(), request.session_options()),
    probe=_probe,
    leftovers=leftovers,
    remove=remove,
)
