"""Finds and ends the processes of commands: natively on this machine, with a script in any other environment."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from toolcrib.core.environments import BackendPath, Engine, OrphanedProcess
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.host_process import on_exit
from toolcrib.environments.programs import run_program
from toolcrib.environments.scripts import ENTRY, SERVING_ENTRY, script

_MARK = b"\0TOOLCRIB_COMMAND_ID="
MAX_ENVIRON_BYTES = 256 * 1024
PIECE_BYTES = 64 * 1024
"""Read at once. The memory for more would be mapped for each read, which takes longer than the read itself."""
KILL_SECONDS = 5.0
BEGIN_SECONDS = 10.0
"""How long a shell may take to record that it runs a command."""
FEW_PROCESSES = 200
SHOWN_COMMAND_CHARS = 200
RUNNER_WORDS = tuple(f"--norc --noprofile -c {entry}" for entry in (ENTRY, SERVING_ENTRY))
UNNAMED_SHELL = "bash (a part of the command)"
NAP_SECONDS = (0.005, 0.01, 0.02, 0.05)
SETTLED_NAP_SECONDS = 1.0


ALL_COMMANDS = "*"
"""Stands for every command in the session file, in `end`."""


class ProcessTree(Protocol):
    """The processes of an environment, by the commands they belong to."""

    async def end(self, ids: Sequence[str], grace_seconds: float) -> None:
        """Send TERM, and after the grace period KILL, to every process of the commands; returns when none is left.

        Raises EnvironmentFailed for processes that do not end.
        """
        ...

    async def remaining(self, ids: Sequence[str]) -> list[OrphanedProcess]:
        """The processes of the commands that run now."""
        ...

    async def settled(self, ids: Sequence[str]) -> None:
        """Returns when no process of the commands runs any more."""
        ...


class BackendTree:
    """Runs a script in the environment: its processes cannot be reached from outside."""

    def __init__(self, engine: Engine, folder: BackendPath) -> None:
        self._engine = engine
        self._folder = folder

    async def end(self, ids: Sequence[str], grace_seconds: float) -> None:
        tenths = str(max(0, round(grace_seconds * 10)))
        answer = await self._answer("end", tenths, *ids, seconds=grace_seconds + 4 * KILL_SECONDS)
        if answer[0] != "gone":
            raise EnvironmentFailed(f"processes {answer[1:]} in the {self._engine.kind} environment did not end")

    async def remaining(self, ids: Sequence[str]) -> list[OrphanedProcess]:
        answer = await self._answer("list_processes", *ids, seconds=4 * KILL_SECONDS)
        return parse_orphans(answer[1]) if len(answer) > 1 else []

    async def _answer(self, name: str, *arguments: str, seconds: float) -> list[str]:
        text = script("find") + script(name)
        argv = [self._engine.shell, "--norc", "--noprofile", "-c", text, "bash", self._folder, *arguments]
        return await run_program(self._engine, argv, timeout_seconds=seconds)

    async def settled(self, ids: Sequence[str]) -> None:
        while await self.remaining(ids):  # noqa: ASYNC110 - nothing in there notifies us
            await asyncio.sleep(SETTLED_NAP_SECONDS)


def parse_orphans(text: str) -> list[OrphanedProcess]:
    """Parse the `pid command` lines of the scripts."""
    pairs = (line.partition(" ") for line in text.splitlines())
    return [OrphanedProcess(pid=int(pid), command=_display(words)) for pid, _, words in pairs if pid.isdigit()]


def _display(words: str) -> str:
    """A command line for people; a subshell of the command has no command line of its own."""
    return UNNAMED_SHELL if any(text in words for text in RUNNER_WORDS) else words[:SHOWN_COMMAND_CHARS]


class ProcessInfo(NamedTuple):
    """One process, as /proc describes it."""

    pid: int
    parent: int
    group: int
    session: int
    started: str

    def is_led_by(self, pid: int) -> bool:
        """Whether it is in a session or process group led by that process, or is its child."""
        return pid in (self.session, self.group, self.parent)


class HostTree:
    """The processes of this machine. Scans /proc once for all callers of the same moment."""

    def __init__(self, sessions_file: Path) -> None:
        self._file = sessions_file
        self._read_bytes = 0
        self._leaders: dict[str, tuple[int, str]] = {}
        self._ended: set[str] = set()
        self._scanning: asyncio.Task[_ProcessTable] | None = None

    async def end(self, ids: Sequence[str], grace_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        told: set[int] = set()
        for nap in itertools.chain(NAP_SECONDS, itertools.repeat(NAP_SECONDS[-1])):
            # Checked before the scan: a command that begins in between is found by the next scan.
            begun = self._all_have_begun(ids)
            found = await self._find(ids)
            waited = loop.time() - started
            # A command that was just requested has not recorded itself yet.
            if not found and (begun or waited > BEGIN_SECONDS):
                return
            if waited > grace_seconds + KILL_SECONDS:
                pids = [process.pid for process in found]
                raise EnvironmentFailed(f"processes {pids} do not end; inspect them with `ps`")
            if waited >= grace_seconds:
                _signal(found, signal.SIGKILL)
            elif found and not told:
                told = {process.pid for process in found}
                _signal(found, signal.SIGTERM)
                # A suspended process cannot react to TERM.
                _signal(found, signal.SIGCONT)
            else:
                _signal_parents(found, told)
            await asyncio.sleep(nap)

    def _all_have_begun(self, ids: Sequence[str]) -> bool:
        self._read_leaders()
        return all(command_id in self._leaders or command_id == ALL_COMMANDS for command_id in ids)

    async def remaining(self, ids: Sequence[str]) -> list[OrphanedProcess]:
        return [_orphan(process) for process in await self._find(ids)]

    async def settled(self, ids: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        while found := await self._find(ids):
            ended: asyncio.Future[None] = loop.create_future()
            stop_watching = on_exit(found[0].pid, partial(_set, ended))
            try:
                await ended
            finally:
                stop_watching()

    def orphans_of(self, command_id: str, pid: int | None) -> list[OrphanedProcess]:
        """The orphans of a command that has just ended; quick, because it only looks at newer processes.

        `pid` is the command's leader, where known.
        """
        if pid is None:
            self._read_leaders()
            pid, _ = self._leaders.get(command_id, (0, ""))
        mark = command_id.encode()
        return [
            _orphan(process)
            for process in _newer_processes(pid)
            if process.is_led_by(pid) or command_id_of(process.pid) == mark
        ]

    def leader_of(self, command_id: str) -> int | None:
        """The pid of a command's shell, if it still runs."""
        self._read_leaders()
        pid, started = self._leaders.get(command_id, (0, ""))
        seen = _read_stat(pid) if pid else None
        return pid if seen is not None and seen.started == started else None

    async def _find(self, ids: Sequence[str]) -> list[ProcessInfo]:
        self._read_leaders()
        names = [*self._leaders] if ALL_COMMANDS in ids else ids
        # For all commands ever run: the session id of one that has ended may have been reused by now.
        led = [name for name in names if name in self._leaders and not (ALL_COMMANDS in ids and name in self._ended)]
        leaders = {pid for pid, started in map(self._leaders.__getitem__, led) if _is_same_or_gone(pid, started)}
        return (await self._scan()).of_commands(names, leaders)

    async def _scan(self) -> _ProcessTable:
        if self._scanning is None:
            self._scanning = asyncio.ensure_future(self._scan_soon())
        return await asyncio.shield(self._scanning)

    async def _scan_soon(self) -> _ProcessTable:
        # All callers of this turn of the loop share the scan.
        await asyncio.sleep(0)
        self._scanning = None
        return _ProcessTable(_processes())

    def _read_leaders(self) -> None:
        try:
            with self._file.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
        except FileNotFoundError:
            return
        # A line that is still being written is read next time.
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            command_id, _, leader = line.partition(" ")
            pid, _, started = leader.partition(" ")
            if pid.isdigit():
                self._leaders[command_id] = (int(pid), started)
            else:
                self._ended.add(command_id)


class _ProcessTable:
    """All processes at one moment, by their leaders and by the command id in their environment."""

    def __init__(self, processes: list[ProcessInfo]) -> None:
        self._children: dict[int, list[ProcessInfo]] = defaultdict(list)
        self._led: dict[int, list[ProcessInfo]] = defaultdict(list)
        self.by_command: dict[bytes, list[ProcessInfo]] = defaultdict(list)
        for process in processes:
            self._children[process.parent].append(process)
            self._led[process.session].append(process)
            self._led[process.group].append(process)
            mark = command_id_of(process.pid)
            if mark:
                self.by_command[mark].append(process)

    def of_commands(self, names: Sequence[str], leaders: set[int]) -> list[ProcessInfo]:
        """The processes with these command ids or in a session or group of the leaders, and their descendants."""
        found = {process for name in names for process in self.by_command.get(name.encode(), ())}
        found.update(process for leader in leaders for process in self._led.get(leader, ()))
        to_look_at = [*found]
        while to_look_at:
            children = {child for child in self._children.get(to_look_at.pop().pid, ()) if child not in found}
            found |= children
            to_look_at += children
        return [*found]


def _orphan(process: ProcessInfo) -> OrphanedProcess:
    return OrphanedProcess(pid=process.pid, command=_command_line(process.pid))


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _is_same_or_gone(pid: int, started: str) -> bool:
    # A session id is not reused while the session has members; a new process with that pid is unrelated.
    seen = _read_stat(pid)
    return seen is None or seen.started == started


def _processes() -> list[ProcessInfo]:
    seen = (_read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - the quickest way
    return [process for process in seen if process is not None]


def _newer_processes(pid: int) -> list[ProcessInfo]:
    """The processes that were started after this one."""
    newest = int(_read_system("loadavg").split()[-1] or 0)
    if not pid <= newest < pid + FEW_PROCESSES:
        return [process for process in _processes() if process.pid != pid]
    seen = (_read_stat(number) for number in range(pid + 1, newest + 1))
    return [process for process in seen if process is not None]


def _read_stat(pid: int) -> ProcessInfo | None:
    """The process, unless it has ended; a zombie has."""
    fields = _read_proc(pid, "stat").rpartition(b") ")[2].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return ProcessInfo(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[19].decode())


def command_id_of(pid: int) -> bytes:
    """The command id in the environment of the process; empty when there is none."""
    environ = b"\0" + _read_proc(pid, "environ")
    start = environ.find(_MARK)
    return environ[start + len(_MARK) :].split(b"\0", 1)[0] if start >= 0 else b""


def is_ours(pid: int) -> bool:
    """Whether this process started that one, at any depth, or it belongs to a command of toolcrib."""
    # Set if toolcrib itself runs as a command of toolcrib.
    outer = command_id_of(os.getpid())
    while pid > 1:
        if pid == os.getpid() or command_id_of(pid) not in (b"", outer):
            return True
        seen = _read_stat(pid)
        pid = 0 if seen is None else seen.parent
    return False


def command_name(pid: int) -> str:
    """The name of the program that a process runs."""
    return _read_proc(pid, "comm").decode(errors="replace").strip() or "a process that has ended"


def _read_proc(pid: int, name: str) -> bytes:
    """A file of /proc; empty for a process that has ended or belongs to another user."""
    return _read_system(f"{pid}/{name}")


def _read_system(name: str) -> bytes:
    try:
        descriptor = os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        content = piece = os.read(descriptor, PIECE_BYTES)
        while len(piece) == PIECE_BYTES and len(content) < MAX_ENVIRON_BYTES:
            piece = os.read(descriptor, PIECE_BYTES)
            content += piece
        return content
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _command_line(pid: int) -> str:
    words = _read_proc(pid, "cmdline")
    return _display(words.replace(b"\0", b" ").decode(errors="replace").strip())


def _signal_parents(found: list[ProcessInfo], told: set[int]) -> None:
    """Signal the parents of processes of another user: a sudo that may have been prompting when it got TERM itself."""
    foreign = [process for process in found if process.pid not in told and not _can_signal(process.pid)]
    starters = {process.parent for process in foreign}
    _signal([process for process in found if process.pid in starters], signal.SIGTERM)
    told.update(process.pid for process in foreign)


def _can_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _signal(processes: list[ProcessInfo], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)
