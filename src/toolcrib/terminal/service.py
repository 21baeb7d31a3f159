"""The environments and background processes of one Runtime, for callers on any loop or thread."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import (
    BackendPath,
    CommandRequest,
    Environment,
    EnvironmentSpec,
    ExecutionTarget,
    Leftover,
    TerminalSize,
)
from toolcrib.core.errors import EnvironmentFailed, EnvironmentGone, ToolcribError
from toolcrib.core.ports import SecretAsker
from toolcrib.core.types import Effect, JsonObject, ShellSession
from toolcrib.environments.create import create_environment, open_address, remove_leftover, resolve
from toolcrib.environments.foreground import CommandLimits, ForegroundCommand, ForegroundResult
from toolcrib.environments.git_guard import GitGuards
from toolcrib.environments.pool import EnvironmentPool
from toolcrib.environments.shell import EnvironmentFiles, ShellEnvironment
from toolcrib.environments.specs import ON_THIS_MACHINE, guarded_folders, is_self_contained
from toolcrib.processes.output import readable
from toolcrib.processes.process import AdoptedCommand
from toolcrib.processes.recovery import RecoveryReport, recover
from toolcrib.processes.registry import ProcessRegistry
from toolcrib.processes.service import DEFAULT_SESSION, ProcessService, session_key_of
from toolcrib.service_loop import ServiceLoop
from toolcrib.terminal import results
from toolcrib.terminal.call import TerminalCall, folder_of, read_call
from toolcrib.terminal.sudo import StopEvent, Sudo, asks_for_password, explain_sudo_failure


@dataclass(frozen=True, kw_only=True)
class TerminalOptions:
    """The options of a TerminalService."""

    settings: Settings
    workspace: Path
    environ: Callable[[], Mapping[str, str]]
    """The variables of this process, as they are now."""
    mask: Callable[[str], str]
    transform: Callable[[], Callable[[TerminalCall, JsonObject], str] | None]
    """Gives the function that lets hooks change the output, which may block; None where there are no such hooks."""
    secret_asker: Callable[[], SecretAsker | None] = lambda: None
    """Who can be asked for a password at this moment."""


class EnvironmentDecorator(Protocol):
    """A front end that takes part in the environments of this machine: an editor, whose unsaved files count and whose
    terminals show commands. Used on the service loop."""

    def files(self, files: EnvironmentFiles) -> EnvironmentFiles:
        """The files of an environment that was just opened, as the tools should see them."""
        ...

    def runner(self, environment: Environment, call: TerminalCall) -> Environment:
        """What starts the command of a call: the environment itself, or a wrapper around it."""
        ...


logger = logging.getLogger(__name__)

T = TypeVar("T")

MEGABYTE = 1024 * 1024
CLOSE_SECONDS = 90.0
ANSWER_SECONDS = 10.0
NEW_ENVIRONMENT = "a new environment was opened: its folder, variables and functions are those of the start"


class EnvironmentLost(EnvironmentFailed):
    """The environment was lost before the command began."""


REPORT_SECONDS = 0.2
"""How often a watcher hears of output; a command that ends sooner reports nothing."""
REPORTED_BYTES = 4096
RECOVERY_SECONDS = 5.0
"""How long closing waits until the leftovers of earlier runs are dealt with; the rest is for the next start."""
GUARD_SECONDS = 1.0
"""How often repositories are looked after while a sandboxed process runs in the background."""


class TerminalService:
    """The service behind the `terminal` and `process` tools. One for each Runtime."""

    def __init__(self, options: TerminalOptions) -> None:
        self.options = options
        self.decorator: EnvironmentDecorator | None = None
        """Set by a front end before the first call."""
        self.loop = ServiceLoop()
        self._process = os.getpid()
        self._made: _LoopState | None = None

    # The tool

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """Run a call of the `terminal` tool. Cancelling it ends its command, and the result says so."""
        try:
            call = read_call(args, ctx, self.options.settings.terminal, self.execution_target(ctx))
        except ToolcribError as error:
            return _text(results.failed(str(error)))
        answer = await self._interruptible(call, ctx)
        transform = self.options.transform()
        if transform is not None and not call.background:
            answer["output"] = await asyncio.to_thread(transform, call, answer)
        return _text(answer)

    async def _interruptible(self, call: TerminalCall, ctx: ToolContext) -> JsonObject:
        made = self._on_loop()
        interrupt = CallInterrupt()
        watch = None
        if ctx.on_output is not None:
            watch = OutputReporter(partial(ctx.on_output, ctx.call_id), self.options.mask)
        future = self.loop.start(made.run(call, interrupt, watch))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self.loop.loop.call_soon_threadsafe(interrupt.set)
            answer = await asyncio.shield(future)
            if ctx.cancelled:
                return answer
            raise

    def effect_of(self, args: JsonObject, ctx: ToolContext) -> Effect:
        """The command of a call with its environment and folder, for the gate."""
        where = self.execution_target(ctx)
        return where.effect("exec", args["command"], folder_of(args, where) or where.folder)

    # For other tools

    def execution_target(self, ctx: ToolContext) -> ExecutionTarget:
        """Where a call works; quick, opens nothing, and is determined once for each call."""
        memo = ctx.memo
        if memo is not None and memo.target is not None:
            return memo.target
        made = self._on_loop()
        spec = made.spec(session_key_of(ctx), ctx.task_id, ctx.cwd)
        opened = made.pool.find(spec)
        isolated = spec.backend == "sandbox" or is_self_contained(spec, self.options.settings.terminal)
        target = ExecutionTarget(
            spec=spec,
            folder=opened.cwd if opened is not None else spec.cwd,
            isolated=isolated,
            is_here=spec.backend in ON_THIS_MACHINE,
            session=made.sessions.get(spec) if opened is not None else None,
        )
        if memo is not None:
            memo.target = target
        return target

    async def work_in(self, spec: EnvironmentSpec, work: Callable[[Environment], Awaitable[T]]) -> T:
        """What `work` gives in the environment of that key, on the loop where it lives; cancelling stops it."""
        return await self.loop.run(self._on_loop().work_in(spec, work))

    @property
    def workspace(self) -> Path:
        return self.options.workspace

    @property
    def mask(self) -> Callable[[str], str]:
        """Hides known secrets in a text."""
        return self.options.mask

    # For front ends

    @property
    def processes(self) -> ProcessService:
        return self._on_loop().process_service

    def runs_on(self, session_key: str, command: str) -> bool:
        """Whether a command of a session goes on in the background."""
        made = self._on_loop()
        if not made.registry.count_running():
            return False

        async def look() -> bool:
            known = [one.record for one in made.registry.list(session_key)]
            return any(one.is_running and one.command == command for one in known)

        return bool(self.run(look()))

    @property
    def environments(self) -> EnvironmentPool:
        """To be used on the service loop; see `run`."""
        return self._on_loop().pool

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine of one of the parts where they live, from synchronous code."""
        return self.loop.run_sync(coroutine)

    def environment_of(self, key: str) -> Environment | None:
        """The open environment of a session or task, if there is one."""
        return self._on_loop().environment_of(key)

    def set_override(self, task: str, overrides: Mapping[str, str]) -> None:
        self._on_loop().pool.set_override(task, overrides)

    def clear_override(self, task: str) -> None:
        self._on_loop().pool.clear_override(task)

    def override_of(self, task: str) -> Mapping[str, str]:
        return self._on_loop().pool.override_of(task)

    def start_recovery(self) -> None:
        """Begin to look after what earlier processes of ours left running, without waiting for it."""
        self._on_loop()

    def recover(self) -> RecoveryReport:
        """End or take over what earlier processes of ours left running, once; says what was found."""
        return self.loop.run_sync(self._on_loop().recovered())

    def close(self) -> None:
        """End everything that runs, and give back every environment."""
        made, self._made = self._made, None
        if made is not None and self.loop.is_started and self._process == os.getpid():
            self.loop.run_sync(made.close(), CLOSE_SECONDS)
        self.loop.close()

    def _on_loop(self) -> _LoopState:
        # What was inherited by a fork belongs to the parent process.
        if self._made is None or self._process != os.getpid():
            self._process = os.getpid()
            self._made = self.loop.run_sync(self._make())
        return self._made

    async def _make(self) -> _LoopState:
        return _LoopState(self.options, lambda: self.decorator)


class _LoopState:
    """What lives on the service loop."""

    def __init__(self, options: TerminalOptions, decorator: Callable[[], EnvironmentDecorator | None]) -> None:
        self._options = options
        self._decorator = decorator
        self._settings = options.settings
        self._sudo = Sudo(options.secret_asker, timeout_seconds=self._settings.approvals.timeout, mask=options.mask)
        home = self._settings.home
        self._lost: set[EnvironmentSpec] = set()
        """Whose environment went away, and who has not been told that the next one is new."""
        self.sessions: dict[EnvironmentSpec, ShellSession] = {}
        """What the shells of open environments know from earlier commands."""
        self.registry = ProcessRegistry(home.processes_dir)
        self.process_service = ProcessService(self.registry, asyncio.get_running_loop(), mask=options.mask)
        self.pool = EnvironmentPool(
            self._create,
            lifetime_seconds=self._settings.terminal.lifetime_seconds,
            is_busy=self._is_busy,
            on_open=self._opened,
            on_close=lambda environment: self.registry.ledger.environment_closed(environment.address()),
        )
        self._guards = GitGuards("the command's")
        self._guarding: set[asyncio.Task[None]] = set()
        self._recovery = asyncio.ensure_future(self._recover())

    async def run(
        self, call: TerminalCall, interrupt: CallInterrupt, watch: OutputReporter | None = None
    ) -> JsonObject:
        sink = _Sink(watch)
        try:
            try:
                return await self._run_once(call, interrupt, sink)
            except EnvironmentLost:
                # Nothing has run yet, so it runs in a new environment.
                return await self._run_once(call, interrupt, sink)
        except ToolcribError as error:
            return results.failed(str(error))
        finally:
            if watch is not None:
                watch.close()

    async def work_in(self, spec: EnvironmentSpec, work: Callable[[Environment], Awaitable[T]]) -> T:
        async with self.pool.acquire(spec) as environment:
            try:
                return await work(environment)
            except EnvironmentFailed:
                await self._lose(environment, spec)
                raise

    async def _run_once(self, call: TerminalCall, interrupt: CallInterrupt, sink: _Sink) -> JsonObject:
        spec = call.target.spec
        was_lost = spec in self._lost
        async with self.pool.acquire(spec) as environment:
            self._lost.discard(spec)
            answer = await self._run_guarded(environment, call, interrupt, sink)
        if was_lost:
            answer["note"] = f"{answer.get('note', '')} {NEW_ENVIRONMENT}".strip()
        return answer

    async def _run_guarded(
        self, environment: Environment, call: TerminalCall, interrupt: CallInterrupt, sink: _Sink
    ) -> JsonObject:
        """Run a call; from a sandbox or a container, nothing gets into the workspace that git would run outside."""
        spec, folders = call.target.spec, tuple[Path, ...]()
        if spec.backend != "local":
            folders = await asyncio.to_thread(guarded_folders, spec, self._settings.terminal)
        for folder in folders:
            await asyncio.to_thread(self._guards.enter, folder)
        answer: JsonObject = {}
        try:
            if asks_for_password(call):
                answer = await self._run_with_sudo(environment, call, interrupt, sink)
            else:
                runner = self._runner(environment, call)
                answer = explain_sudo_failure(await self._run_in(environment, runner, call, interrupt, sink))
        finally:
            process = answer.get("session_id") if folders else None
            if process:
                # It goes on in the background, and so does the guard.
                task = asyncio.ensure_future(self._guard_until_it_ends(str(process), folders))
                self._guarding.add(task)
                task.add_done_callback(self._guarding.discard)
            undone = [self._guards.check(folder) if process else self._guards.leave(folder) for folder in folders]
        return results.with_note(answer, "; ".join(filter(None, undone)))

    async def _guard_until_it_ends(self, process: str, folders: tuple[Path, ...]) -> None:
        tracked = self.registry.get(process, None)
        try:
            while not await self.registry.wait(tracked, GUARD_SECONDS):
                for folder in folders:
                    undone = await asyncio.to_thread(self._guards.check, folder)
                    if undone:
                        logger.warning("%s: %s", process, undone)
        finally:
            for folder in folders:
                self._guards.leave(folder)

    async def _run_with_sudo(
        self, environment: Environment, call: TerminalCall, interrupt: CallInterrupt, sink: _Sink
    ) -> JsonObject:
        prepared = await self._sudo.prepare(environment, call, interrupt.stops(StopEvent()))
        if prepared.answer is not None:
            return prepared.answer
        return explain_sudo_failure(
            await self._run_in(environment, prepared.environment, call, interrupt, sink), prepared.hint
        )

    async def _run_in(
        self, environment: Environment, runner: Environment, call: TerminalCall, interrupt: CallInterrupt, sink: _Sink
    ) -> JsonObject:
        """Run a call through `runner`: the environment itself, or a wrapper around it."""
        request = CommandRequest(
            command=call.command,
            terminal=TerminalSize() if call.pty else None,
            cwd=BackendPath(call.folder) if call.folder else None,
        )
        if call.background:
            record = await self.registry.start(
                runner,
                request,
                session_key=call.session_key,
                task_id=call.task_id,
                notify_on_complete=call.notify_on_complete,
                watch_patterns=call.watch_patterns,
            )
            return results.started(call, record)
        try:
            result = await interrupt.stops(ForegroundCommand(self._limits(call), sink)).result(runner, request)
        except EnvironmentFailed as error:
            await self._lose(environment, call.target.spec)
            raise EnvironmentLost(str(error)) from error
        await self._note_session(environment, call.target)
        return await self._tell(environment, call, result, sink)

    async def _note_session(self, environment: Environment, target: ExecutionTarget) -> None:
        """Keep what the session's shell knows now: the gate reads the next command with it."""
        # In a disposable environment nothing that it could point to needs protection.
        if target.is_here or not target.isolated:
            session = await environment.session()
            if session is not None:
                self.sessions[target.spec] = session
            else:
                self.sessions.pop(target.spec, None)

    async def _lose(self, environment: Environment, spec: EnvironmentSpec) -> None:
        """Give up an environment that no longer answers; the next command of its session hears of it."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await environment.status(BackendPath("/"))
        except (EnvironmentFailed, OSError):
            self._lost.add(spec)
            self.sessions.pop(spec, None)
            await self.pool.discard(environment)

    async def _tell(
        self, environment: Environment, call: TerminalCall, result: ForegroundResult, sink: _Sink
    ) -> JsonObject:
        mask = self._options.mask
        if result.ended is None:
            record = self._adopt(environment, call, result, sink, pids=())
            return results.waiting(result, record, mask)
        if result.ended.reason == "lost":
            await self._lose(environment, call.target.spec)
        answer = results.ended(call, result, mask)
        left = result.ended.orphans
        if not left or result.timed_out or result.interrupted:
            return answer
        record = self._adopt(environment, call, result, sink, pids=tuple(one.pid for one in left))
        return results.with_orphans(answer, record, left)

    def _adopt(
        self, environment: Environment, call: TerminalCall, result: ForegroundResult, sink: _Sink, pids: tuple[int, ...]
    ) -> Any:
        record = self.registry.adopt(
            AdoptedCommand(
                execution=result.execution,
                session_key=call.session_key,
                command=call.command,
                task_id=call.task_id,
                cwd=environment.cwd,
                kind=environment.kind,
                address=environment.address(),
                pids=pids,
                output=b"" if pids else result.text.encode(),
                has_terminal=call.pty,
                notify_on_complete=call.notify_on_complete,
                watch_patterns=call.watch_patterns,
            )
        )
        sink.target = self.registry.sink(record.id)
        return record

    def _limits(self, call: TerminalCall) -> CommandLimits:
        output, terminal = self._settings.tool_output, self._settings.terminal
        name = f"terminal-{os.urandom(6).hex()}.txt"
        return CommandLimits(
            timeout_seconds=call.timeout_seconds,
            limit_bytes=output.max_bytes,
            save_to=self._settings.home.results_dir / name,
            max_saved=terminal.max_saved_output_mb * MEGABYTE,
            return_when_waiting=True,
        )

    def spec(self, session_key: str, task_id: str, workspace: str) -> EnvironmentSpec:
        """The environment that a call of this session and task would run in."""
        return resolve(
            self._settings,
            self.pool.override_of(task_id),
            session=session_key,
            task="" if task_id in (session_key, DEFAULT_SESSION) else task_id,
            workspace=Path(workspace) if workspace else self._options.workspace,
            environ=self._options.environ(),
        )

    def environment_of(self, key: str) -> Environment | None:
        # Those that serve something else, such as scripts, have no shell that anybody talks to.
        usual = [entry for entry in self.pool.entries() if "for" not in dict(entry.spec.options)]
        own = (entry for entry in usual if entry.spec.session == key and not entry.spec.task)
        of_task = (entry for entry in usual if entry.spec.task == key)
        entries = itertools.chain(own, of_task)
        return next((entry.environment for entry in entries if entry.environment is not None), None)

    def _create(self, spec: EnvironmentSpec) -> Environment:
        return create_environment(spec, self._settings, self._options.environ())

    def _opened(self, environment: Environment) -> None:
        self.registry.ledger.environment_opened(environment.address())
        decorator = self._decorator()
        if decorator is not None and environment.kind in ON_THIS_MACHINE and isinstance(environment, ShellEnvironment):
            environment.parts.files = decorator.files(environment.parts.files)

    def _runner(self, environment: Environment, call: TerminalCall) -> Environment:
        decorator = self._decorator()
        if decorator is None or call.background or call.pty or environment.kind != "local":
            return environment
        return decorator.runner(environment, call)

    def _is_busy(self, environment: Environment) -> bool:
        return self.registry.is_used(environment.address())

    async def recovered(self) -> RecoveryReport:
        return await asyncio.shield(self._recovery)

    async def _recover(self) -> RecoveryReport:
        return await recover(self.registry, self._open_again, self._settings.terminal.orphans)

    async def _open_again(self, address: Mapping[str, str]) -> Environment | None:
        """The environment, or None if it is gone for good; raises if it cannot be reached now."""
        environ = self._options.environ()
        try:
            environment = open_address(address, self._settings, environ)
            await environment.open()
        except EnvironmentGone as error:
            logger.info("what was left in %s is gone: %s", dict(address), error)
            if folder := address.get("scratch"):
                # A sandbox has ended with its owner, but its folder has not.
                left = Leftover(kind="sandbox folder", name=folder, detail="", owner_alive=False)
                await remove_leftover(left, self._settings, environ)
            return None
        return environment

    async def close(self) -> None:
        # Also a program that runs one command and ends is a next start: what was left must not wait for a longer one.
        await asyncio.wait([self._recovery], timeout=RECOVERY_SECONDS)
        self._recovery.cancel()
        (outcome,) = await asyncio.gather(self._recovery, return_exceptions=True)
        if isinstance(outcome, Exception):
            logger.error("what an earlier run left could not be looked after", exc_info=outcome)
        await self.registry.close()
        await self.pool.close_all()
        for task in self._guarding:
            task.cancel()
        await asyncio.gather(*self._guarding, return_exceptions=True)


class _Sink:
    """Hands output on to whoever listens now: a watcher of the call, then the registry of background commands."""

    def __init__(self, target: Callable[[bytes], None] | None) -> None:
        self.target = target

    def __call__(self, data: bytes) -> None:
        if self.target is not None:
            self.target(data)


class OutputReporter:
    """Reports the latest lines of a running command a few times a second, however fast it prints."""

    def __init__(self, report: Callable[[str, int], None], mask: Callable[[str], str]) -> None:
        self._report = report
        self._mask = mask
        self._latest = b""
        self._lines = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __call__(self, data: bytes) -> None:
        self._lines += data.count(b"\n")
        self._latest = (self._latest + data[-REPORTED_BYTES:])[-REPORTED_BYTES:]
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._tell)

    def _tell(self) -> None:
        self._timer = None
        text = readable(self._latest.decode(errors="replace"))
        if len(self._latest) == REPORTED_BYTES:
            # The first line may have lost its beginning.
            text = text.partition("\n")[2] or text
        self._report(self._mask(text.rstrip("\n")), self._lines + (not self._latest.endswith(b"\n")))

    def close(self) -> None:
        """The command has ended, and its result says the rest."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()


def _text(answer: JsonObject) -> str:
    return json.dumps(answer, ensure_ascii=False)


class Stoppable(Protocol):
    def interrupt(self) -> None: ...


S = TypeVar("S", bound=Stoppable)


class CallInterrupt:
    """Stops the command of one call, now or as soon as it starts. Used on the service loop."""

    def __init__(self) -> None:
        self._is_set = False
        self._run: Stoppable | None = None

    def set(self) -> None:
        self._is_set = True
        if self._run is not None:
            self._run.interrupt()

    def stops(self, run: S) -> S:
        """From now on this is what it stops."""
        self._run = run
        if self._is_set:
            run.interrupt()
        return run
