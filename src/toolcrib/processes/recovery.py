"""Recovery after a crash of toolcrib: ends or adopts what still runs, and makes finished processes readable."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib.core.attempt import attempt_async
from toolcrib.core.environments import CommandExit, Environment, Execution
from toolcrib.processes.orphan_cleanup import end_tree
from toolcrib.processes.output import ProcessOutput
from toolcrib.processes.process import ProcessRecord, TrackedProcess
from toolcrib.processes.registry import FAILURES, HOST_KIND, ProcessRegistry

logger = logging.getLogger(__name__)

OrphanPolicy = Literal["end", "adopt"]
OpenEnvironment = Callable[[Mapping[str, str]], Awaitable[Environment | None]]
"""Opens the environment at an address again; None if it no longer exists."""

OPEN_SECONDS = 60.0
CONCURRENT_OPENS = 4
"""How many environments of one host are opened at once: sshd refuses too many."""
DRAIN_SECONDS = 120.0
"""How long the output of an ended process may take to arrive."""
LOOK_SECONDS = 0.5
"""How long an ended process may take to report that."""
END_SECONDS = 10.0
SOURCE = "recovery"
NOTE_LOST = "toolcrib ended unexpectedly while this ran, and its outcome is unknown"
NOTE_UNREACHABLE = (
    "toolcrib ended unexpectedly while this ran, and its environment is unreachable now; the next start tries again"
)
NOTE_ENDED = "toolcrib ended unexpectedly while this ran; the next start ended it"


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """What happened to each recovered process, by id."""

    ended: tuple[str, ...] = ()
    adopted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    """It had ended by itself."""
    lost: tuple[str, ...] = ()
    """Its outcome is unknown."""


async def recover(registry: ProcessRegistry, open_environment: OpenEnvironment, policy: OrphanPolicy) -> RecoveryReport:
    """Recover everything that dead toolcrib processes left on record; does not touch what living ones own."""
    orphans = registry.ledger.take_orphans()
    registry.notifier.store.prune()
    for record in orphans.finished:
        # Its orphans are ended below, or with its environment.
        registry.remember_finished(replace(record, children_run=False))
    # Track all of them before the first await, so that nobody is told meanwhile that a process does not exist.
    found = [registry.track(record) for record in orphans.running]
    by_address: dict[str, list[TrackedProcess]] = {_key(address): [] for address in orphans.environments}
    for tracked in found:
        by_address.setdefault(_key(tracked.record.address), []).append(tracked)
    recovery = _Recovery(registry, open_environment, policy)
    await asyncio.gather(*(recovery.recover(json.loads(key), processes) for key, processes in by_address.items()))
    await asyncio.gather(*(_end_orphans(record, registry) for record in orphans.finished))
    states = {one.record.id: one.record for one in found}
    return RecoveryReport(
        ended=tuple(name for name, record in states.items() if record.status == "killed"),
        adopted=tuple(name for name, record in states.items() if record.status == "running"),
        finished=tuple(name for name, record in states.items() if record.status == "exited"),
        lost=tuple(name for name, record in states.items() if record.status == "lost"),
    )


@runtime_checkable
class OrphanTerminator(Protocol):
    """An environment that also knows commands without a record: those in the foreground."""

    async def end_orphans(self, kept: Collection[str]) -> None:
        """End the commands of an earlier toolcrib process, except these."""
        ...


class _Recovery(Struct, frozen=True):
    """One recovery pass."""

    registry: ProcessRegistry
    open_environment: OpenEnvironment
    policy: OrphanPolicy
    turns: dict[str, asyncio.Semaphore] = field(default_factory=dict)

    async def recover(self, address: Mapping[str, str], processes: list[TrackedProcess]) -> None:
        """Recover the processes of one environment, and close it unless one of them continues."""
        # Third-party backends may raise anything, and the other environments must still be recovered.
        _, error = await attempt_async(self._recover(address, processes))
        if error is None:
            return
        # It may be reachable next time, with what runs in it.
        logger.warning("cannot recover an environment of an earlier run: %s: %s", dict(address), error)
        self.registry.ledger.environment_opened(address)
        await asyncio.gather(*(self._leave(tracked) for tracked in processes if tracked.is_running))

    async def _recover(self, address: Mapping[str, str], processes: list[TrackedProcess]) -> None:
        ledger = self.registry.ledger
        environment = await self._opened(address)
        await asyncio.gather(*(self._process(environment, tracked) for tracked in processes))
        if environment is None:
            ledger.environment_closed(address)
            return
        running = [one.record.command_id for one in processes if one.is_running]
        is_left = any(one.stays_on_record for one in processes)
        if not running and not is_left:
            await self._close(environment, address)
            return
        ledger.environment_opened(address)
        if isinstance(environment, OrphanTerminator):
            try:
                await environment.end_orphans(running)
            except FAILURES as error:
                logger.error("could not end commands of an earlier run: %s: %s", dict(address), error)
        if not is_left:
            self.registry.run_chore(self._close_when_unused(environment, address, processes))

    async def _opened(self, address: Mapping[str, str]) -> Environment | None:
        host = f"{address.get('kind')} {address.get('host')}"
        async with self.turns.setdefault(host, asyncio.Semaphore(CONCURRENT_OPENS)), asyncio.timeout(OPEN_SECONDS):
            return await self.open_environment(address)

    async def _leave(self, tracked: TrackedProcess) -> None:
        """Leave an unreachable process to the next start, after ending what can be ended from here."""
        self._load_kept_output(tracked)
        if self.policy == "end" and tracked.record.kind == HOST_KIND:
            await end_tree(tracked.record.command_id, tracked.record.identity, self.registry.limits.grace_seconds)
        self.registry.leave_to_next_start(tracked, NOTE_UNREACHABLE)

    async def _process(self, environment: Environment | None, tracked: TrackedProcess) -> None:
        if self.registry.notifier.store.has_completion(tracked.record.session_key, tracked.record.id):
            # We died between publishing its end and recording it.
            tracked.record = replace(tracked.record, notify_on_complete=False)
        execution = None
        if environment is not None:
            try:
                execution = await environment.reattach(tracked.record.command_id, self.registry.sink(tracked.record.id))
            except FAILURES as error:
                logger.warning("cannot reach %s now: %s", tracked.record.id, error)
                await self._leave(tracked)
                return
        if execution is None:
            await self._without_execution(tracked)
            return
        tracked.execution = execution
        is_over = getattr(execution, "is_over", False)
        ended = await _within(execution, DRAIN_SECONDS if is_over else LOOK_SECONDS)
        if ended is None and self.policy == "adopt":
            self.registry.ledger.save(tracked.record)
            self.registry.follow(tracked, execution.wait)
            return
        # Even if it has ended by itself: something it started may still run.
        try:
            await execution.terminate(self.registry.limits.grace_seconds)
        except FAILURES:
            logger.exception("could not end %s", tracked.record.id)
        if ended is None:
            tracked.record = replace(tracked.record, termination_source=SOURCE)
            ended = await _within(execution, END_SECONDS)
            ended = ended and replace(ended, note=ended.note or NOTE_ENDED)
        self.registry.finish(tracked, ended or CommandExit(exit_code=-1, reason="lost", note=NOTE_LOST))

    async def _without_execution(self, tracked: TrackedProcess) -> None:
        """End what can be ended from here, and keep the output that we had saved ourselves."""
        record = tracked.record
        self._load_kept_output(tracked)
        if record.kind == HOST_KIND:
            await end_tree(record.command_id, record.identity, self.registry.limits.grace_seconds)
        self.registry.finish(tracked, CommandExit(exit_code=-1, reason="lost", note=NOTE_LOST))

    def _load_kept_output(self, tracked: TrackedProcess) -> None:
        limits = self.registry.limits
        tracked.output = ProcessOutput.stored(
            self.registry.ledger.folder_of(tracked.record.id),
            buffer_chars=limits.buffer_chars,
            kept_bytes=limits.kept_output_bytes,
            chars=0,
            newlines=0,
        )
        tracked.output.load()

    async def _close_when_unused(
        self, environment: Environment, address: Mapping[str, str], tracked: list[TrackedProcess]
    ) -> None:
        for one in tracked:
            await one.done.wait()
        await self._close(environment, address)

    async def _close(self, environment: Environment, address: Mapping[str, str]) -> None:
        try:
            await environment.close()
        except FAILURES as error:
            logger.warning("cannot close an environment of an earlier run: %s", dict(address), exc_info=error)
            return
        self.registry.ledger.environment_closed(address)


async def _end_orphans(record: ProcessRecord, registry: ProcessRegistry) -> None:
    """End the orphans of a finished command on this machine; other environments are closed as a whole."""
    if record.children_run and record.kind == HOST_KIND:
        await end_tree(record.command_id, None, registry.limits.grace_seconds)


async def _within(execution: Execution, seconds: float) -> CommandExit | None:
    """The exit of the process; None if it has not ended in time, or cannot be asked."""
    try:
        return await asyncio.wait_for(execution.wait(), seconds)
    except TimeoutError:
        return None
    except FAILURES as error:
        logger.warning("cannot wait for %s", execution.id, exc_info=error)
        return None


def _key(address: Mapping[str, str]) -> str:
    return json.dumps(dict(address), sort_keys=True)
