"""The background processes of one Runtime. Lives on one event loop; needs no thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from toolcrib.core.attempt import attempt_async
from toolcrib.core.environments import CommandExit, CommandRequest, Environment, Execution, OnOutput
from toolcrib.core.errors import EnvironmentFailed, ToolcribError
from toolcrib.process_identity import Identity, identity_of, own_identity
from toolcrib.processes.events import ProcessNotifier
from toolcrib.processes.ledger import Ledger
from toolcrib.processes.output import OutputWatch, ProcessOutput, WatchLimits
from toolcrib.processes.process import AdoptedCommand, ProcessLimits, ProcessRecord, TrackedProcess, UnknownProcess

logger = logging.getLogger(__name__)

FAILURES = (ToolcribError, OSError, TimeoutError)
"""What an environment raises when it fails."""
WaitForExit = Callable[[], Awaitable[CommandExit | None]]
HOST_KIND = "local"
"""The backend whose process ids are those of this machine."""
LOOK_SECONDS = 0.25
"""How long a search for orphans takes when there are none."""
SETTLE_SECONDS = 5.0
"""How long an ended process may take to be reported as ended."""


class ProcessRegistry:
    """Starts, watches and ends background processes, and records them on disk.

    Only `get` checks who asks: every other method takes a process that `get` returned.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limits: ProcessLimits | None = None,
        watch_limits: WatchLimits | None = None,
        clock: Callable[[], float] = time.time,
        on_event: Callable[[str], None] | None = None,
        owner: Identity | None = None,
    ) -> None:
        self.limits = limits or ProcessLimits()
        self.ledger = Ledger(folder, owner or own_identity())
        self.notifier = ProcessNotifier(folder / "events", watch_limits or WatchLimits(), clock, on_event)
        self.clock = clock
        self._watch_limits = watch_limits or WatchLimits()
        self._processes: dict[str, TrackedProcess] = {}
        self._finished: dict[str, TrackedProcess] = {}
        self._chores: set[asyncio.Task[None]] = set()

    # Adding processes

    async def start(
        self,
        environment: Environment,
        request: CommandRequest,
        *,
        session_key: str,
        task_id: str = "",
        notify_on_complete: bool = False,
        watch_patterns: tuple[str, ...] = (),
    ) -> ProcessRecord:
        """Run a command in the background; raises what the environment raises if it cannot be started."""
        process_id = self._new_id()
        record = ProcessRecord(
            id=process_id,
            session_key=session_key,
            command=request.command,
            task_id=task_id,
            cwd=request.cwd or environment.cwd,
            kind=environment.kind,
            address=dict(environment.address()),
            command_id=process_id,
            owner=self.ledger.owner,
            started_at=self.clock(),
            notify_on_complete=notify_on_complete,
            watch_patterns=tuple(watch_patterns),
            has_terminal=request.terminal is not None,
        )
        tracked = self._track(record)
        to_run = replace(request, id=process_id, mode="background")
        starting = asyncio.ensure_future(environment.start(to_run, self.sink(process_id)))
        with contextlib.ExitStack() as undo:
            undo.callback(self._drop, tracked)
            try:
                tracked.execution = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # It may have started by now: a cancelled start must not leave it running.
                undo.pop_all()
                self.run_chore(self._end_unwanted(tracked, starting))
                raise
            undo.pop_all()
        pid = tracked.execution.pid
        tracked.record = replace(record, pid=pid, identity=_host_identity(record.kind, pid))
        self.ledger.save(tracked.record)
        self.follow(tracked, tracked.execution.wait)
        return tracked.record

    def adopt(self, adoption: AdoptedCommand) -> ProcessRecord:
        """Take over the orphans of a foreground command, or a foreground command that continues.

        Its further output goes to `sink(record.id)`.
        """
        execution = adoption.execution
        pid = adoption.pids[0] if adoption.pids else execution.pid
        record = ProcessRecord(
            id=self._new_id(),
            session_key=adoption.session_key,
            command=adoption.command,
            task_id=adoption.task_id,
            cwd=adoption.cwd,
            kind=adoption.kind,
            address=dict(adoption.address),
            command_id=execution.id,
            pid=pid,
            identity=_host_identity(adoption.kind, pid),
            owner=self.ledger.owner,
            started_at=self.clock(),
            notify_on_complete=adoption.notify_on_complete,
            watch_patterns=tuple(adoption.watch_patterns),
            has_terminal=adoption.has_terminal,
            adopted=True,
        )
        tracked = self._track(record)
        tracked.execution = execution
        self.sink(record.id)(adoption.output)
        self.follow(tracked, execution.settled if adoption.pids else execution.wait)
        return record

    def track(self, record: ProcessRecord) -> TrackedProcess:
        """Track a process that an earlier toolcrib process started and whose state is not known yet.

        Its output arrives through `sink`; `follow` waits for its end, or `finish` reports it.
        """
        return self._remember(record)

    def remember_finished(self, record: ProcessRecord) -> None:
        """Remember a process that ended under an earlier toolcrib process."""
        output = ProcessOutput.stored(
            self.ledger.folder_of(record.id),
            buffer_chars=self.limits.buffer_chars,
            kept_bytes=self.limits.kept_output_bytes,
            chars=record.output_chars,
            newlines=record.output_lines,
        )
        tracked = TrackedProcess(record, output, None)
        tracked.done.set()
        self._keep_finished(tracked)

    def sink(self, process_id: str) -> OnOutput:
        """The callback for the output of a process."""
        tracked = self._processes[process_id]

        def take_in(data: bytes) -> None:
            text = tracked.output.feed(data)
            if text and tracked.watch is not None:
                self.notifier.scan(tracked, text)

        return take_in

    # Queries

    def get(self, process_id: str, session_key: str | None) -> TrackedProcess:
        """A process of this session (None: of any); raises the same UnknownProcess for a missing one and another's."""
        self._forget_old()
        tracked = self._processes.get(process_id) or self._finished.get(process_id)
        if tracked is None or (session_key is not None and tracked.record.session_key != session_key):
            raise UnknownProcess(process_id)
        return tracked

    def list(self, session_key: str | None) -> list[TrackedProcess]:
        """The processes of a session (None: of all), oldest first."""
        self._forget_old()
        known = [*self._processes.values(), *self._finished.values()]
        mine = [one for one in known if session_key is None or one.record.session_key == session_key]
        return sorted(mine, key=lambda one: (one.record.started_at, one.record.id))

    def count_running(self, session_key: str | None = None) -> int:
        """How many processes run, in one session or in all."""
        if session_key is None:
            return len(self._processes)
        return sum(one.record.session_key == session_key for one in self._processes.values())

    def has_active(self, session_key: str) -> bool:
        """Whether a process of the session runs."""
        return any(one.record.session_key == session_key for one in self._processes.values())

    def is_used(self, address: Mapping[str, str]) -> bool:
        """Whether one of our processes runs in that environment, so that it must not be closed as idle."""
        children = (one for one in self._finished.values() if one.execution is not None)
        return any(one.record.address == address for one in (*self._processes.values(), *children))

    async def wait(self, tracked: TrackedProcess, timeout_seconds: float) -> bool:
        """Wait for the end of the process; returns whether it ended in time. Cancelling does not affect the process."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await tracked.done.wait()
        return tracked.done.is_set()

    # Ending

    async def kill(self, tracked: TrackedProcess, *, source: str) -> bool:
        """End the whole tree of a process; False if it had already ended (its orphans are ended all the same).

        Returns when none of it is left. Cancelling the caller does not stop this.
        """
        was_running = tracked.is_running
        if not was_running and tracked.execution is None:
            return False
        if tracked.killing is None:
            if was_running:
                tracked.record = replace(tracked.record, termination_source=source)
            tracked.killing = asyncio.create_task(self._end(tracked))
            tracked.killing.add_done_callback(_read_outcome)
        await asyncio.shield(tracked.killing)
        return was_running

    async def kill_all(self, session_key: str | None = None, *, source: str = "kill_all") -> int:
        """End all processes of a session or task (None: of all) together; returns how many were running."""
        # One without an execution has ended, or is being recovered, and recovery decides about it.
        known = [one for one in (*self._processes.values(), *self._finished.values()) if one.execution is not None]
        chosen = [one for one in known if session_key in (None, one.record.session_key, one.record.task_id)]
        outcomes = await asyncio.gather(*(self.kill(one, source=source) for one in chosen), return_exceptions=True)
        for tracked, outcome in zip(chosen, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                logger.error("could not end %s", tracked.record.id, exc_info=outcome)
        return sum(outcome is True for outcome in outcomes)

    async def close(self) -> None:
        """End everything. What does not end in time stays on record; the next start ends it."""
        try:
            async with asyncio.timeout(self.limits.close_seconds):
                await self.kill_all(source="shutdown")
                if self._chores:
                    await asyncio.wait(self._chores)
        except TimeoutError:
            left = ", ".join(self._processes)
            logger.error("these processes did not end in time; the next start will end them: %s", left)
        tasks = [task for one in self._processes.values() for task in (one.waiter, one.killing) if task is not None]
        tasks += self._chores
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._processes.values():
            self.notifier.stop_watching(one)
        self.notifier.close()

    # Inside

    def run_chore(self, chore: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background; `close` waits for it."""
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _end_unwanted(self, tracked: TrackedProcess, starting: asyncio.Future[Execution]) -> None:
        try:
            execution = await starting
            await execution.terminate(self.limits.grace_seconds)
        except FAILURES as error:
            logger.warning("could not end %s after its start was cancelled", tracked.record.id, exc_info=error)
        finally:
            self._drop(tracked)

    def _drop(self, tracked: TrackedProcess) -> None:
        del self._processes[tracked.record.id]
        self.ledger.remove(tracked.record.id)

    def _new_id(self) -> str:
        return f"proc_{secrets.token_hex(6)}"

    def _track(self, record: ProcessRecord) -> TrackedProcess:
        # On disk before it starts: a crash right after the start must not leave an unknown process.
        self.ledger.save(record, first=True)
        return self._remember(record)

    def _remember(self, record: ProcessRecord) -> TrackedProcess:
        output = ProcessOutput(
            self.ledger.folder_of(record.id),
            buffer_chars=self.limits.buffer_chars,
            kept_bytes=self.limits.kept_output_bytes,
        )
        watch = OutputWatch(record.watch_patterns, self._watch_limits) if record.watch_patterns else None
        tracked = self._processes[record.id] = TrackedProcess(record, output, watch)
        return tracked

    def follow(self, tracked: TrackedProcess, gone: WaitForExit) -> None:
        """Record the end of a process when `gone` returns its exit."""
        tracked.waiter = asyncio.create_task(self._until_gone(tracked, gone))

    async def _until_gone(self, tracked: TrackedProcess, gone: WaitForExit) -> None:
        # The backend may be third-party: whatever it raises means that we have lost the process.
        ended, error = await attempt_async(gone())
        if error is not None:
            logger.warning("%s was lost", tracked.record.id, exc_info=error)
            ended = CommandExit(exit_code=-1, reason="lost", note=str(error))
        self.finish(tracked, ended)

    def finish(self, tracked: TrackedProcess, ended: CommandExit | None) -> None:
        """Record the end of a process, and publish it if requested."""
        if not tracked.is_running:
            return
        rest = tracked.output.feed(b"", final=True)
        tracked.record = tracked.ended(ended, self.clock())
        self.notifier.ended(tracked, rest)
        tracked.output.keep()
        if tracked.record.status == "exited" and tracked.execution is not None:
            self.run_chore(self._until_settled(tracked, tracked.execution))
        else:
            tracked.execution = None
        # After the event: recovery finds the event after a crash in between, and does not publish it again.
        with _logging_os_errors("cannot record the end of %s", tracked.record.id):
            self.ledger.save(tracked.record)
        self._processes.pop(tracked.record.id, None)
        self._keep_finished(tracked)
        tracked.done.set()

    def leave_to_next_start(self, tracked: TrackedProcess, note: str) -> None:
        """Count a process as lost for now, but keep its record: its environment is unreachable."""
        tracked.record = tracked.ended(CommandExit(exit_code=-1, reason="lost", note=note), self.clock())
        tracked.stays_on_record = True
        self.notifier.stop_watching(tracked)
        self._processes.pop(tracked.record.id, None)
        self._keep_finished(tracked)
        tracked.done.set()

    async def _until_settled(self, tracked: TrackedProcess, execution: Execution) -> None:
        """Track an ended command until everything it started has ended."""
        settling = asyncio.ensure_future(execution.settled())
        try:
            done, _ = await asyncio.wait({settling}, timeout=LOOK_SECONDS)
            if not done:
                self._mark(tracked, children_run=True)
            await settling
        except FAILURES as error:
            logger.warning("lost the orphans of %s", tracked.record.id, exc_info=error)
        finally:
            settling.cancel()
        tracked.execution = None
        if tracked.record.children_run:
            self._mark(tracked, children_run=False)

    def _mark(self, tracked: TrackedProcess, *, children_run: bool) -> None:
        tracked.record = replace(tracked.record, children_run=children_run)
        if tracked.record.id in self._finished:
            with _logging_os_errors("cannot record the orphans of %s", tracked.record.id):
                self.ledger.save(tracked.record)

    async def _end(self, tracked: TrackedProcess) -> None:
        try:
            if tracked.execution is not None:
                await tracked.execution.terminate(self.limits.grace_seconds)
            if tracked.is_running and not await self.wait(tracked, SETTLE_SECONDS):
                raise EnvironmentFailed(f"{tracked.record.id} did not confirm that it has ended")
        finally:
            # The next call tries again.
            tracked.killing = None

    def _keep_finished(self, tracked: TrackedProcess) -> None:
        tracked.kept_until = self.clock() + self.limits.finished_seconds
        self._finished[tracked.record.id] = tracked
        self._forget_old()

    def _forget_old(self) -> None:
        now = self.clock()
        # One with running orphans is the only handle to them, so it stays. The dict is ordered by their ends.
        finished = [one for one in self._finished.values() if not one.record.children_run]
        surplus = len(finished) - self.limits.finished_kept
        for number, one in enumerate(finished):
            if number < surplus or one.kept_until <= now:
                del self._finished[one.record.id]
                if not one.stays_on_record:
                    self.ledger.remove(one.record.id)


def _host_identity(kind: str, pid: int | None) -> Identity | None:
    return identity_of(pid) if kind == HOST_KIND and pid is not None else None


def _read_outcome(task: asyncio.Task[None]) -> None:
    """Mark the exception of a task as retrieved: everybody who waited for it may have given up."""
    if not task.cancelled():
        task.exception()


@contextlib.contextmanager
def _logging_os_errors(message: str, *values: object) -> Iterator[None]:
    try:
        yield
    except OSError:
        logger.exception(message, *values)
