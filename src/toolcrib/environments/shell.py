"""An environment over any engine: one shell session whose commands behave the same wherever they run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from toolcrib.core.environments import (
    BackendPath,
    CommandExit,
    CommandRequest,
    Engine,
    EngineProcess,
    Execution,
    FileSlice,
    FileStatus,
    OnOutput,
    OrphanedProcess,
)
from toolcrib.core.errors import EnvironmentFailed, UsageError
from toolcrib.core.types import ShellSession
from toolcrib.environments.background import (
    BackendInput,
    BackendLogWatcher,
    BackgroundExecution,
    LogWatcher,
    OrphanExecution,
)
from toolcrib.environments.executions import ForegroundExecution, TerminalExecution
from toolcrib.environments.files import BackendFiles
from toolcrib.environments.process_tree import ALL_COMMANDS, BackendTree, ProcessTree
from toolcrib.environments.programs import assignments, exports, run_program
from toolcrib.environments.scripts import ENTRY, RUNNER, SERVING, SERVING_ENTRY, runner_text, script
from toolcrib.environments.shell_pool import Shell, ShellPool

MAX_LOG_BYTES = 64 * 1024 * 1024


class RunningCommand(Execution, Protocol):
    """An execution that also calls back when it ends."""

    def when_ended(self, callback: Callable[[CommandExit], None]) -> None: ...


class EnvironmentFiles(Protocol):
    """The files of an environment; see Environment."""

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes: ...

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice: ...

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None: ...

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None: ...

    async def remove_folder(self, path: BackendPath) -> None: ...

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None: ...

    async def make_link(self, path: BackendPath, target: str) -> None: ...

    async def list_folder(self, path: BackendPath) -> list[str]: ...

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None: ...

    async def upload(self, source: Path, target: BackendPath) -> None: ...

    async def download(self, source: BackendPath, target: Path) -> None: ...


class SessionOptions(Struct, frozen=True, kw_only=True):
    """How the shell session of an environment starts."""

    cwd: str = ""
    """The folder it starts in; empty means the home of the user there."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Exported on top of what the environment already has."""
    profile_files: Sequence[str] = ()
    """Files of the environment, sourced once when it opens, as a login shell does; `~/` is the home there."""
    secret_names: str = ""
    """A regular expression. Variables with a matching name that the profile exports are dropped."""
    max_log_bytes: int = MAX_LOG_BYTES
    """A background command's log is truncated once it grows beyond this; its content has been delivered by then."""
    folder: str = ""
    """Where the session keeps its state; empty picks a new folder."""


class EnvironmentParts(Struct):
    """The parts that a backend may implement natively instead of with programs inside the environment."""

    tree: ProcessTree
    watcher: LogWatcher
    files: EnvironmentFiles
    find_orphans: Callable[[str, int | None], list[OrphanedProcess]] | None = None


OPEN_SECONDS = 60.0
ANSWER_SECONDS = 20.0
CLOSE_GRACE_SECONDS = 0.5
BEFORE = {"open": "trap", "command_status": "find"}
"""Scripts that are prepended to others."""
MAX_COMMAND_BYTES = 1024 * 1024


class ShellEnvironment:
    """See Environment. `engine` is opened and closed with it."""

    runner = runner_text(RUNNER)
    """The shell text that every command runs under."""
    parts: EnvironmentParts
    """Known once the environment is open."""

    def __init__(self, engine: Engine, options: SessionOptions | None = None) -> None:
        self.engine = engine
        self.kind = engine.kind
        self._options = options or SessionOptions()
        self.folder = BackendPath(self._options.folder)
        self._is_taken_over = bool(self._options.folder)
        """The folder was created by an earlier process and holds the output of its commands."""
        self._cwd = BackendPath(self._options.cwd)
        self._home = ""
        self._address: Mapping[str, str] | None = None
        self._all_ended = True
        self._shells = ShellPool(engine, self._serving)
        self._running: dict[str, RunningCommand] = {}
        self._drafts: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._first_state = ""
        self._session: ShellSession | None = None
        self._is_session_stale = False

    def _make_parts(self) -> EnvironmentParts:
        return EnvironmentParts(
            tree=BackendTree(self.engine, self.folder),
            watcher=BackendLogWatcher(self.engine, self.folder, self._options.max_log_bytes),
            files=BackendFiles(self.engine, lambda: self.cwd),
        )

    @property
    def isolated(self) -> bool:
        # Some engines only know once they are open what the machine allows.
        return self.engine.isolated

    @property
    def cwd(self) -> BackendPath:
        return self._cwd

    @property
    def home(self) -> BackendPath:
        """The home folder of the user inside the environment."""
        return BackendPath(self._home)

    @property
    def running(self) -> tuple[Execution, ...]:
        """The commands that have not ended, including background ones."""
        return tuple(self._running.values())

    async def open(self) -> None:
        if self._is_open:
            return
        await self.engine.open()
        if not self.folder:
            self.folder = BackendPath(f"{self.engine.temporary}/toolcrib-{os.urandom(6).hex()}")
        self.parts = self._make_parts()
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self.engine.close)
            if not self._is_taken_over:
                undo.push_async_callback(self._remove_folder)
            await self._begin_session()
            undo.pop_all()
        self._is_open = True
        self._address = self.address()
        self._shells.prepare()

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
        answer = await run_program(self.engine, argv, timeout_seconds=OPEN_SECONDS)
        if answer[0] != "ready":
            raise EnvironmentFailed(f"the {self.kind} environment cannot be used: {answer[1]}")
        _, cwd, self._home, self._first_state = answer
        self._cwd = BackendPath(cwd)

    async def session(self) -> ShellSession | None:
        if self._is_session_stale:
            self._is_session_stale = False
            try:
                state = await self.parts.files.read_file(BackendPath(f"{self.folder}/state"))
            except (OSError, EnvironmentFailed):
                # The next command's shell has the same difficulty.
                return self._session
            self._session = ShellSession(self._first_state, state.decode(errors="replace"))
        return self._session

    async def close(self) -> None:
        if not self._is_open:
            await self.engine.close()
            return
        self._is_open = False
        async with contextlib.AsyncExitStack() as closing:
            closing.push_async_callback(self.engine.close)
            closing.push_async_callback(self._release_folder)
            closing.push_async_callback(self.parts.watcher.close)
            closing.push_async_callback(self._shells.close)
            closing.push_async_callback(self._end_everything)

    async def _end_everything(self) -> None:
        ending = [one.terminate(CLOSE_GRACE_SECONDS) for one in self._running.values()]
        # Includes what nobody tracks: jobs of a closed terminal, commands of an earlier toolcrib process.
        ending.append(self.parts.tree.end([ALL_COMMANDS], CLOSE_GRACE_SECONDS))
        failures = [error for error in await asyncio.gather(*ending, return_exceptions=True) if error is not None]
        self._all_ended = not failures
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ANSWER_SECONDS)
        if failures:
            raise failures[0]

    async def _release_folder(self) -> None:
        # The next start needs this folder to find whatever still runs.
        if self._all_ended:
            await self._remove_folder()

    async def _remove_folder(self) -> None:
        with contextlib.suppress(EnvironmentFailed):
            argv = [self.engine.shell, "-c", 'rm -rf -- "$1"; printf "\\0done\\0\\4\\0"', "bash", self.folder]
            await run_program(self.engine, argv, timeout_seconds=ANSWER_SECONDS)

    # Commands

    async def start(self, request: CommandRequest, on_output: OnOutput) -> Execution:
        if not self._is_open:
            raise UsageError("the environment is not open")
        _check(request)
        command_id = request.id or f"cmd_{os.urandom(6).hex()}"
        if request.terminal is not None:
            execution: RunningCommand = await self._start_on_terminal(command_id, request, on_output)
        elif request.mode == "background":
            execution = await self.start_in_background(command_id, request, on_output)
        else:
            execution = await self._start_in_foreground(command_id, request, on_output)
        self._track(execution)
        return execution

    def _track(self, execution: RunningCommand) -> None:
        """Remember a command until none of its processes run; closing the environment ends all of them."""

        def forget(ended: CommandExit) -> None:
            if ended.orphans:
                self._keep_task(asyncio.ensure_future(self._forget_when_settled(execution)))
            else:
                self._running.pop(execution.id, None)

        self._running[execution.id] = execution
        execution.when_ended(forget)

    async def _forget_when_settled(self, execution: RunningCommand) -> None:
        with contextlib.suppress(EnvironmentFailed):
            await execution.settled()
            self._running.pop(execution.id, None)
        await execution.abandon()

    async def _start_in_foreground(
        self, command_id: str, request: CommandRequest, on_output: OnOutput
    ) -> ForegroundExecution:
        draft = self._take_draft()
        stdin = "none" if request.stdin is None and not request.open_input else "open"
        blob = self._blob(command_id, request, keep="1", input=stdin, new=f"{self.folder}/{draft}")
        shells: list[Shell] = []

        def free(execution: ForegroundExecution) -> None:
            # A shell whose command had input has reached the end of its own input, so it cannot serve another one.
            if shells and stdin == "open":
                self._shells.discard(shells.pop())
            elif shells and execution.is_shell_free:
                self._shells.release(shells.pop())

        execution = ForegroundExecution(
            command_id,
            self.parts.tree,
            self.waits_for_input,
            find_orphans=self.parts.find_orphans,
            on_change=self._on_change,
            on_done=free,
        )
        shells.append(await self._send_command(execution, on_output, blob))
        execution.process = shells[0].process

        def on_end(_: CommandExit) -> None:
            self._release_draft(draft)
            if execution.is_shell_free and shells and stdin == "none":
                self._shells.expect(shells[0])

        execution.when_ended(on_end)
        if request.stdin is not None:
            self._keep_task(asyncio.ensure_future(_feed(shells[0].process, request.stdin)))
        return execution

    async def _send_command(self, execution: ForegroundExecution, on_output: OnOutput, blob: bytes) -> Shell:
        """A shell that has received the command. One that died while idle is replaced: nothing has run yet."""
        shell = await self._shells.acquire()
        try:
            await shell.run(execution, on_output, blob)
        except BrokenPipeError:
            shell = await self._shells.start()
            await shell.run(execution, on_output, blob)
        return shell

    async def _start_on_terminal(
        self, command_id: str, request: CommandRequest, on_output: OnOutput
    ) -> TerminalExecution:
        # In a file, because the terminal carries the command's own input.
        file = BackendPath(f"{self.folder}/{command_id}.blob")
        exit_file = BackendPath(f"{self.folder}/{command_id}.exit")
        blob = self._blob(command_id, request, input="open", exit_file=exit_file)
        await self.parts.files.write_file(file, blob, mode=0o600)
        execution = TerminalExecution(command_id, self.parts.tree, self.waits_for_input)
        watched_output = execution.watch_for_prompt(on_output)
        execution.process = await self.engine.spawn(
            self._runner(file), on_output=watched_output, terminal=request.terminal
        )
        read_exit_file = partial(self.parts.files.read_file, exit_file) if request.cwd else None
        self._keep_task(asyncio.ensure_future(execution.watch(read_exit_file)))
        return execution

    async def start_in_background(
        self, command_id: str, request: CommandRequest, on_output: OnOutput
    ) -> BackgroundExecution:
        blob = self._blob(command_id, request, input="open", exit_file=f"{self.folder}/{command_id}.exit")
        argv = self._bash("supervisor", self.folder, command_id, ENTRY, runner_text(RUNNER))
        stdin = b"%d\n%b" % (len(blob), blob)
        answer = await run_program(self.engine, argv, timeout_seconds=ANSWER_SECONDS, stdin=stdin)
        if answer != ["started"]:
            raise EnvironmentFailed(f"the {self.kind} environment could not start the command in the background")
        execution = self._attached(command_id)
        await execution.watch(on_output)
        return execution

    async def reattach(self, command_id: str, on_output: OnOutput, *, offset: int = 0) -> Execution | None:
        argv = self._bash("command_status", self.folder, command_id)
        (state,) = await run_program(self.engine, argv, timeout_seconds=ANSWER_SECONDS)
        if state in ("none", "left"):
            return OrphanExecution(command_id, self.parts.tree) if state == "left" else None
        execution = self._attached(command_id)
        execution.is_over = state == "over"
        await execution.watch(on_output, offset)
        self._track(execution)
        return execution

    async def spawn(self, argv: Sequence[str], *, on_output: OnOutput) -> EngineProcess:
        return await self.engine.spawn(argv, on_output=on_output)

    async def end_orphans(self, kept: Collection[str]) -> None:
        """End the commands that an earlier toolcrib process left running here, except these."""
        text = (await self.parts.files.read_file(BackendPath(f"{self.folder}/sessions"))).decode(errors="replace")
        begun = {line.partition(" ")[0] for line in text.splitlines()}
        ended = {line.partition(" ")[0] for line in text.splitlines() if line.endswith(" ended")}
        if others := begun - ended - set(kept):
            await self.parts.tree.end(sorted(others), CLOSE_GRACE_SECONDS)

    def _attached(self, command_id: str) -> BackgroundExecution:
        return BackgroundExecution(
            command_id,
            pid=None,
            watcher=self.parts.watcher,
            tree=self.parts.tree,
            waits=self.waits_for_input,
            stdin=BackendInput(self.engine, self.folder, command_id),
        )

    # Files

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes:
        return await self.parts.files.read_file(path, plain=plain)

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice:
        return await self.parts.files.read_lines(path, first=first, count=count, max_bytes=max_bytes, plain=plain)

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None:
        await self.parts.files.write_file(path, data, mode=mode, expected=expected, plain=plain)

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None:
        await self.parts.files.remove_file(path, expected=expected, plain=plain)

    async def remove_folder(self, path: BackendPath) -> None:
        await self.parts.files.remove_folder(path)

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None:
        await self.parts.files.make_folder(path, mode=mode)

    async def make_link(self, path: BackendPath, target: str) -> None:
        await self.parts.files.make_link(path, target)

    async def list_folder(self, path: BackendPath) -> list[str]:
        return await self.parts.files.list_folder(path)

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None:
        return await self.parts.files.status(path, follow_links=follow_links)

    async def upload(self, source: Path, target: BackendPath) -> None:
        await self.parts.files.upload(source, target)

    async def download(self, source: BackendPath, target: Path) -> None:
        await self.parts.files.download(source, target)

    # Inside

    async def waits_for_input(self, command_id: str, shows_prompt: bool) -> bool:
        """Whether a process of the command is reading its input right now."""
        argv = self._bash("waiting", self.folder, command_id, "prompt" if shows_prompt else "")
        with contextlib.suppress(EnvironmentFailed):
            return (await run_program(self.engine, argv, timeout_seconds=ANSWER_SECONDS))[0] == "yes"
        return False

    def _runner(self, file: str = "") -> list[str]:
        """The argv of a shell for one command, which it reads from a file or from standard input."""
        return [self.engine.shell, "--norc", "--noprofile", "-c", ENTRY, "bash", self.runner, self.folder, file]

    def _serving(self, marker: str) -> list[str]:
        text = f"{self.runner}\n{runner_text(SERVING)}"
        return [self.engine.shell, "--norc", "--noprofile", "-c", SERVING_ENTRY, "bash", text, self.folder, marker]

    def _bash(self, name: str, *arguments: str) -> list[str]:
        text = script(BEFORE[name]) + script(name) if name in BEFORE else script(name)
        return [self.engine.shell, "--norc", "--noprofile", "-c", text, "bash", *arguments]

    def _blob(self, command_id: str, request: CommandRequest, **values: str) -> bytes:
        named = {"keep": "0", "exit_file": "", "new": "", **values}
        named |= {"id": command_id, "cwd": request.cwd or "", "command": request.command}
        named["mark"] = "0" if request.by_person else "1"
        named["scan"] = "1" if named["keep"] == "1" and self.parts.find_orphans is None else "0"
        return assignments({f"__tc_{name}": value for name, value in named.items()}).encode(errors="surrogateescape")

    def _take_draft(self) -> str:
        """A file for the session state that a command leaves. Names are reused, so that few files accumulate."""
        number = next(number for number in itertools.count() if f"draft.{number}" not in self._drafts)
        self._drafts.add(f"draft.{number}")
        return f"draft.{number}"

    def _release_draft(self, draft: str) -> None:
        self.discard_draft(draft)
        self._drafts.discard(draft)

    def discard_draft(self, draft: str) -> None:
        """Do nothing: the next command overwrites it."""

    def _on_change(self, cwd: BackendPath | None) -> None:
        if cwd is not None:
            self._cwd = cwd
        self._is_session_stale = True
        # Shells started ahead have loaded the previous state of the session.
        self._shells.invalidate()

    def _keep_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def address(self) -> Mapping[str, str]:
        # As it was when opened: engines forget their address when they lose or close the environment.
        return self._address or {"kind": self.kind, "folder": self.folder, **self.engine.address()}


def _check(request: CommandRequest) -> None:
    """Raises UsageError for text that no shell accepts."""
    for name, text in (("command", request.command), ("folder", request.cwd or "")):
        try:
            size = len(text.encode(errors="surrogateescape"))
        except UnicodeEncodeError:
            raise UsageError(
                f"the {name} contains half a character (a lone surrogate), which no shell accepts"
            ) from None
        if size > MAX_COMMAND_BYTES:
            raise UsageError(
                f"the {name} is longer than {MAX_COMMAND_BYTES:,} bytes; write it to a file and run the file"
            )
        if "\0" in text:
            raise UsageError(f"the {name} contains a NUL byte, which no shell accepts")


async def _feed(process: EngineProcess, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, EnvironmentFailed):
        await process.write(data)
    await process.close_input()
