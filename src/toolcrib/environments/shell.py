"""An environment over any engine: one shell session, whose commands behave the same wherever they run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from toolcrib.core.environments import (
    BackendPath,
    CommandRequest,
    Engine,
    EngineProcess,
    Execution,
    FileStatus,
    LeftBehind,
    OnOutput,
)
from toolcrib.core.errors import EnvironmentFailed, UsageError
from toolcrib.environments.background import (
    BackendInput,
    BackendWatcher,
    BackgroundExecution,
    LogWatcher,
)
from toolcrib.environments.executions import ForegroundExecution, Shell, TerminalExecution
from toolcrib.environments.files import BackendFiles
from toolcrib.environments.process_tree import ALL, BackendTree, ProcessTree
from toolcrib.environments.programs import answer_of
from toolcrib.environments.quoting import assignments, exports
from toolcrib.environments.scripts import ENTRY, script
from toolcrib.environments.trailer import TrailerReader

OPEN_SECONDS = 60.0
ANSWER_SECONDS = 20.0
CLOSE_GRACE_SECONDS = 0.5
MAX_COMMAND_BYTES = 1024 * 1024
MAX_LOG_BYTES = 64 * 1024 * 1024


class Files(Protocol):
    """The files of a place."""

    async def read_file(self, path: BackendPath) -> bytes: ...

    async def write_file(self, path: BackendPath, data: bytes, *, mode: int | None = None) -> None: ...

    async def status(self, path: BackendPath) -> FileStatus | None: ...

    async def upload(self, source: Path, target: BackendPath) -> None: ...

    async def download(self, source: BackendPath, target: Path) -> None: ...


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How the shell session of an environment begins."""

    cwd: str = ""
    """The folder it starts in; empty means the home of the place's user."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Exported on top of what the place has."""
    profile_files: Sequence[str] = ()
    """Files of the place that are read once when it opens, as a login shell would; `~/` is the home there."""
    secret_names: str = ""
    """A regular expression: variables of these names that the profile exports are dropped."""
    max_log_bytes: int = MAX_LOG_BYTES
    """A background command's log is emptied when it grows beyond this; what was printed has been heard by then."""
    folder: str = ""
    """Where the session keeps its state in the place; made up when empty."""


@dataclass(slots=True)
class PlaceParts:
    """What an engine does better than programs inside the place would; see the local engine."""

    tree: ProcessTree
    watcher: LogWatcher
    files: Files
    left_behind: Callable[[str, int], list[LeftBehind]] | None = None


class ShellEnvironment:
    """See Environment. `engine` is opened and closed with it."""

    def __init__(self, engine: Engine, options: SessionOptions | None = None) -> None:
        self.engine = engine
        self.kind = engine.kind
        self._options = options or SessionOptions()
        self.folder = BackendPath(self._options.folder)
        self._cwd = BackendPath(self._options.cwd)
        self._home = ""
        self._was_there = False
        self._version = 0
        self._spare: asyncio.Task[Shell] | None = None
        self._running: dict[str, Execution] = {}
        self._drafts: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False
        self.parts: PlaceParts
        """Known once the engine is open."""

    def _make_parts(self) -> PlaceParts:
        return PlaceParts(
            tree=BackendTree(self.engine, self.folder),
            watcher=BackendWatcher(self.engine, self.folder, self._options.max_log_bytes),
            files=BackendFiles(self.engine, lambda: self.cwd),
        )

    @property
    def isolated(self) -> bool:
        # Some engines know only when they are open what the machine lets them do.
        return self.engine.isolated

    @property
    def cwd(self) -> BackendPath:
        return self._cwd

    @property
    def home(self) -> BackendPath:
        """The home folder of the place's user."""
        return BackendPath(self._home)

    @property
    def running(self) -> tuple[Execution, ...]:
        """The commands that have not ended, background ones too."""
        return tuple(self._running.values())

    async def open(self) -> None:
        if self._is_open:
            return
        await self.engine.open()
        if not self.folder:
            self.folder = BackendPath(f"{self.engine.temporary}/toolcrib-{os.urandom(6).hex()}")
        self.parts = self._make_parts()
        try:
            await self._begin_session()
        except BaseException:
            await self.engine.close()
            raise
        self._is_open = True
        self._prepare_spare()

    async def _begin_session(self) -> None:
        options = self._options
        argv = self._bash(
            "open",
            self.folder,
            options.cwd,
            "\n".join(options.profile_files),
            exports(options.variables),
            options.secret_names,
        )
        answer = await answer_of(self.engine, argv, timeout_seconds=OPEN_SECONDS)
        if answer[0] != "ready":
            raise EnvironmentFailed(f"the {self.kind} environment cannot be used: {answer[1]}")
        _, was_there, cwd, self._home = answer
        self._was_there = was_there == "old"
        self._cwd = BackendPath(cwd)

    async def close(self) -> None:
        if not self._is_open:
            await self.engine.close()
            return
        self._is_open = False
        async with contextlib.AsyncExitStack() as closing:
            closing.push_async_callback(self.engine.close)
            closing.push_async_callback(self._remove_folder)
            closing.push_async_callback(self.parts.watcher.close)
            closing.push_async_callback(self._drop_spare)
            closing.push_async_callback(self._end_everything)

    async def _end_everything(self) -> None:
        with contextlib.suppress(EnvironmentFailed):
            if self._running:
                await asyncio.gather(*(one.terminate(CLOSE_GRACE_SECONDS) for one in list(self._running.values())))
            if self._was_there:
                # Taken over from an earlier process of ours, whose commands nobody else knows.
                await self.parts.tree.end([ALL], CLOSE_GRACE_SECONDS)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ANSWER_SECONDS)

    async def _remove_folder(self) -> None:
        with contextlib.suppress(EnvironmentFailed):
            argv = [self.engine.shell, "-c", 'rm -rf -- "$1"; printf "\\0done\\0\\4\\0"', "bash", self.folder]
            await answer_of(self.engine, argv, timeout_seconds=ANSWER_SECONDS)

    # Commands

    async def start(self, request: CommandRequest, on_output: OnOutput) -> Execution:
        if not self._is_open:
            raise UsageError("the environment is not open")
        if len(request.command.encode(errors="surrogateescape")) > MAX_COMMAND_BYTES:
            raise UsageError(f"the command is longer than {MAX_COMMAND_BYTES:,} bytes; put it into a file and run that")
        if "\0" in request.command:
            raise UsageError("the command contains a NUL byte, which no shell can take")
        command_id = request.id or f"cmd_{os.urandom(6).hex()}"
        if request.terminal is not None:
            execution: Execution = await self._start_on_terminal(command_id, request, on_output)
        elif request.mode == "background":
            execution = await self.start_in_background(command_id, request, on_output)
        else:
            execution = await self._start_in_foreground(command_id, request, on_output)
        self._running[command_id] = execution
        self._keep(asyncio.ensure_future(self._forget_when_ended(execution)))
        return execution

    async def _forget_when_ended(self, execution: Execution) -> None:
        ended = await execution.wait()
        if ended.left_behind:
            # Still ours to end when the environment closes.
            await execution.settled()
        self._running.pop(execution.id, None)

    async def _start_in_foreground(
        self, command_id: str, request: CommandRequest, on_output: OnOutput
    ) -> ForegroundExecution:
        marker = os.urandom(16).hex()
        stdin = "none" if request.stdin is None else "open"
        shell = await self._take_shell()
        process = shell.process
        draft = self._take_draft()
        blob = self._blob(command_id, request, marker=marker, keep="1", input=stdin, new=f"{self.folder}/{draft}")
        execution = ForegroundExecution(
            command_id,
            process,
            self.parts.tree,
            self.waits_for_input,
            reader=shell.reader,
            left_behind=self.parts.left_behind,
            on_change=self._on_change,
        )
        execution.begin(marker, on_output)
        await process.write(b"%d\n%b" % (len(blob), blob))
        # The next one starts while this one works, from the state that most commands leave as it is.
        self._prepare_spare()
        self._keep(execution.watch())
        self._keep(asyncio.ensure_future(self._give_draft_back(draft, execution)))
        if request.stdin is not None:
            self._keep(asyncio.ensure_future(_feed(process, request.stdin)))
        return execution

    async def _start_on_terminal(
        self, command_id: str, request: CommandRequest, on_output: OnOutput
    ) -> TerminalExecution:
        # In a file, because the terminal is for the command's own input.
        file = BackendPath(f"{self.folder}/{command_id}.blob")
        await self.parts.files.write_file(file, self._blob(command_id, request, input="open"), mode=0o600)
        process = await self.engine.spawn(self._runner(file), on_output=on_output, terminal=request.terminal)
        execution = TerminalExecution(command_id, process, self.parts.tree, self.waits_for_input)
        self._keep(execution.watch())
        return execution

    async def start_in_background(
        self, command_id: str, request: CommandRequest, on_output: OnOutput
    ) -> BackgroundExecution:
        blob = self._blob(command_id, request, input="open", exit_file=f"{self.folder}/{command_id}.exit")
        argv = self._bash("keeper", self.folder, command_id, ENTRY, script("trap") + script("runner"))
        stdin = b"%d\n%b" % (len(blob), blob)
        answer = await answer_of(self.engine, argv, timeout_seconds=ANSWER_SECONDS, stdin=stdin)
        if answer != ["started"]:
            raise EnvironmentFailed(f"the {self.kind} environment could not start the command in the background")
        execution = self._attached(command_id, None)
        await execution.watch(on_output)
        return execution

    async def reattach(self, command_id: str, on_output: OnOutput, *, offset: int = 0) -> Execution | None:
        log = await self.parts.files.status(BackendPath(f"{self.folder}/{command_id}.log"))
        if log is None:
            return None
        execution = self._attached(command_id, None)
        await execution.watch(on_output, offset)
        self._running[command_id] = execution
        self._keep(asyncio.ensure_future(self._forget_when_ended(execution)))
        return execution

    def _attached(self, command_id: str, pid: int | None) -> BackgroundExecution:
        return BackgroundExecution(
            command_id,
            pid=pid,
            watcher=self.parts.watcher,
            tree=self.parts.tree,
            waits=self.waits_for_input,
            stdin=BackendInput(self.engine, self.folder, command_id),
        )

    async def waits_for_input(self, command_id: str) -> bool:
        """Whether a process of the command reads from its input right now."""
        argv = self._bash("waiting", self.folder, command_id)
        with contextlib.suppress(EnvironmentFailed):
            return (await answer_of(self.engine, argv, timeout_seconds=ANSWER_SECONDS))[0] == "yes"
        return False

    def _runner(self, *arguments: str) -> list[str]:
        text = script("trap") + script("runner")
        return [self.engine.shell, "--norc", "--noprofile", "-c", ENTRY, "bash", text, self.folder, *arguments]

    def _bash(self, name: str, *arguments: str) -> list[str]:
        text = script("trap") + script(name) if name == "open" else script(name)
        return [self.engine.shell, "--norc", "--noprofile", "-c", text, "bash", *arguments]

    def _blob(self, command_id: str, request: CommandRequest, **values: str) -> bytes:
        named = {"marker": "", "keep": "0", "exit_file": "", "new": "", **values}
        named |= {"id": command_id, "cwd": request.cwd or "", "command": request.command}
        named["scan"] = "1" if values.get("marker") and self.parts.left_behind is None else "0"
        return assignments({f"__tc_{name}": value for name, value in named.items()}).encode(errors="surrogateescape")

    def _take_draft(self) -> str:
        """A file for the session as a command leaves it. Few names are used again and again, so that few files stay."""
        number = next(number for number in itertools.count() if f"draft.{number}" not in self._drafts)
        self._drafts.add(f"draft.{number}")
        return f"draft.{number}"

    async def _give_draft_back(self, draft: str, execution: ForegroundExecution) -> None:
        await execution.wait()
        self.discard_draft(draft)
        self._drafts.discard(draft)

    def discard_draft(self, draft: str) -> None:
        """Nothing: the next command overwrites it."""

    # Shells started ahead

    def _on_change(self, cwd: BackendPath | None) -> None:
        self._version += 1
        if cwd is not None:
            self._cwd = cwd
        spare, self._spare = self._spare, None
        if spare is not None:
            self._keep(asyncio.ensure_future(_discard(spare)))
            self._prepare_spare()

    def _prepare_spare(self) -> None:
        if self._spare is None and self._is_open and self.engine.keeps_spare_shells:
            self._spare = asyncio.ensure_future(self._start_shell())

    async def _start_shell(self) -> Shell:
        version, reader = self._version, TrailerReader()
        process = await self.engine.spawn(self._runner(), on_output=reader.feed)
        return Shell(version=version, reader=reader, process=process)

    async def _take_shell(self) -> Shell:
        spare, self._spare = self._spare, None
        if spare is not None:
            try:
                shell = await spare
            except EnvironmentFailed:
                # It may have been a passing failure; the command is what counts.
                return await self._start_shell()
            if shell.version == self._version and not _has_ended(shell.process):
                return shell
            await _discard(spare)
        return await self._start_shell()

    async def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            await _discard(spare)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Files

    async def read_file(self, path: BackendPath) -> bytes:
        return await self.parts.files.read_file(path)

    async def write_file(self, path: BackendPath, data: bytes, *, mode: int | None = None) -> None:
        await self.parts.files.write_file(path, data, mode=mode)

    async def status(self, path: BackendPath) -> FileStatus | None:
        return await self.parts.files.status(path)

    async def upload(self, source: Path, target: BackendPath) -> None:
        await self.parts.files.upload(source, target)

    async def download(self, source: BackendPath, target: Path) -> None:
        await self.parts.files.download(source, target)

    def address(self) -> Mapping[str, str]:
        return {"kind": self.kind, "folder": self.folder, **self.engine.address()}


def _has_ended(process: EngineProcess) -> bool:
    return bool(getattr(process, "has_ended", False))


async def _feed(process: EngineProcess, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, EnvironmentFailed):
        await process.write(data)
    await process.close_input()


async def _discard(spare: asyncio.Task[Shell]) -> None:
    """End a shell that nobody needs: it leaves when its input ends."""
    with contextlib.suppress(EnvironmentFailed, TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            shell = await spare
            await shell.process.close_input()
            await shell.process.wait()
            await shell.process.abandon()
