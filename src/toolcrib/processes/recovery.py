"""After a crash of ours: what it left running is ended or taken over, what it left finished can be read."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

from toolcrib.core.attempt import Attempt, attempt_async
from toolcrib.core.environments import CommandExit, Environment, Execution
from toolcrib.processes.host_tree import end_tree
from toolcrib.processes.output import ProcessOutput
from toolcrib.processes.process import ProcessRecord, TrackedProcess
from toolcrib.processes.registry import HOST_KIND, ProcessRegistry

logger = logging.getLogger(__name__)

OrphanPolicy = Literal["end", "adopt"]
OpenEnvironment = Callable[[Mapping[str, str]], Awaitable[Environment | None]]
"""From the address of a place to the place, opened again; None when it does not exist any more."""

OPEN_SECONDS = 60.0
AT_ONCE = 4
"""How many places of one host are opened together: an sshd refuses a crowd."""
DRAIN_SECONDS = 120.0
"""How long the output of a process that has ended may take to arrive."""
LOOK_SECONDS = 0.5
"""How long a process that has ended may take to say so."""
END_SECONDS = 10.0
SOURCE = "recovery"
NOTE_LOST = "toolcrib ended unexpectedly while this ran, and what became of it cannot be told"
NOTE_UNREACHABLE = (
    "toolcrib ended unexpectedly while this ran, and where it ran cannot be reached now; the next start tries again"
)
NOTE_ENDED = "toolcrib ended unexpectedly while this ran; it was ended at the next start"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What was found, by process id."""

    ended: tuple[str, ...] = ()
    adopted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    """Had ended by itself."""
    lost: tuple[str, ...] = ()
    """Nobody can tell what became of it."""


async def recover(registry: ProcessRegistry, open_environment: OpenEnvironment, policy: OrphanPolicy) -> RecoveryReport:
    """Deal with everything that dead processes of ours left on record; what living ones have is not touched."""
    orphans = registry.ledger.take_orphans()
    registry.notifier.store.prune()
    for record in orphans.finished:
        # What it left running is ended below, or with its place.
        registry.remember_finished(replace(record, children_run=False))
    # All are known before the first wait, so that nobody who asks meanwhile hears that there is no such process.
    found = [registry.track(record) for record in orphans.running]
    at_place: dict[str, list[TrackedProcess]] = {_key(address): [] for address in orphans.places}
    for tracked in found:
        at_place.setdefault(_key(tracked.record.address), []).append(tracked)
    recovery = _Recovery(registry, open_environment, policy)
    await asyncio.gather(*(recovery.place(json.loads(key), there) for key, there in at_place.items()))
    await asyncio.gather(*(_end_orphans(record, registry) for record in orphans.finished))
    states = {one.record.id: one.record for one in found}
    return RecoveryReport(
        ended=tuple(name for name, record in states.items() if record.status == "killed"),
        adopted=tuple(name for name, record in states.items() if record.status == "running"),
        finished=tuple(name for name, record in states.items() if record.status == "exited"),
        lost=tuple(name for name, record in states.items() if record.status == "lost"),
    )


@runtime_checkable
class EndsOrphans(Protocol):
    """A place that knows more commands than are on record here: those in the foreground."""

    async def end_orphans(self, kept: Collection[str]) -> None:
        """End the commands of an earlier process of ours, except these."""
        ...


@dataclass(frozen=True, slots=True)
class _Recovery:
    """One pass over what was left."""

    registry: ProcessRegistry
    open_environment: OpenEnvironment
    policy: OrphanPolicy
    turns: dict[str, asyncio.Semaphore] = field(default_factory=dict)

    async def place(self, address: Mapping[str, str], processes: list[TrackedProcess]) -> None:
        """Deal with the processes of one place, and give the place back unless one of them goes on."""
        ledger = self.registry.ledger
        environment, error = await attempt_async(self._opened(address))
        if error is not None:
            # It may be there again next time, with what runs in it.
            logger.warning("a place of an earlier run cannot be opened: %s: %s", dict(address), error)
            ledger.environment_opened(address)
            await asyncio.gather(*map(self._leave, processes))
            return
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
        if isinstance(environment, EndsOrphans):
            _, error = await attempt_async(environment.end_orphans(running))
            if error is not None:
                logger.error("commands of an earlier run could not be ended: %s: %s", dict(address), error)
        if not is_left:
            self.registry.keep(self._close_when_unused(environment, address, processes))

    async def _opened(self, address: Mapping[str, str]) -> Environment | None:
        host = f"{address.get('kind')} {address.get('host')}"
        async with self.turns.setdefault(host, asyncio.Semaphore(AT_ONCE)), asyncio.timeout(OPEN_SECONDS):
            return await self.open_environment(address)

    async def _leave(self, tracked: TrackedProcess) -> None:
        """Let a process be that cannot be reached now, except for what can be seen of it from here."""
        self._load_kept_output(tracked)
        if self.policy == "end" and tracked.record.kind == HOST_KIND:
            await end_tree(tracked.record.command_id, tracked.record.identity, self.registry.limits.grace_seconds)
        self.registry.leave_to_next_start(tracked, NOTE_UNREACHABLE)

    async def _process(self, environment: Environment | None, tracked: TrackedProcess) -> None:
        if self.registry.notifier.store.has_completion(tracked.record.session_key, tracked.record.id):
            # We died between telling of its end and putting it on record.
            tracked.record = replace(tracked.record, notify_on_complete=False)
        execution, error = await self._execution(environment, tracked)
        if error is not None:
            logger.warning("%s cannot be reached now: %s", tracked.record.id, error)
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
        # Also when it has ended by itself: something that it started may go on.
        _, error = await attempt_async(execution.terminate(self.registry.limits.grace_seconds))
        if error is not None:
            logger.error("%s could not be ended", tracked.record.id, exc_info=error)
        if ended is None:
            tracked.record = replace(tracked.record, termination_source=SOURCE)
            ended = await _within(execution, END_SECONDS)
            ended = ended and replace(ended, note=ended.note or NOTE_ENDED)
        self.registry.finish(tracked, ended or CommandExit(exit_code=-1, reason="lost", note=NOTE_LOST))

    async def _execution(self, environment: Environment | None, tracked: TrackedProcess) -> Attempt[Execution | None]:
        if environment is None:
            return Attempt(None, None)
        sink = self.registry.sink(tracked.record.id)
        return await attempt_async(environment.reattach(tracked.record.command_id, sink))

    async def _without_execution(self, tracked: TrackedProcess) -> None:
        """End what can be seen of it from here, and keep the output that we had kept ourselves."""
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
        _, error = await attempt_async(environment.close())
        if error is not None:
            logger.warning("a place of an earlier run cannot be closed: %s", dict(address), exc_info=error)
            return
        self.registry.ledger.environment_closed(address)


async def _end_orphans(record: ProcessRecord, registry: ProcessRegistry) -> None:
    """End what a finished command had left running; in other places the place itself is given back."""
    if record.children_run and record.kind == HOST_KIND:
        await end_tree(record.command_id, None, registry.limits.grace_seconds)


async def _within(execution: Execution, seconds: float) -> CommandExit | None:
    """How the process ended; None when it has not ended within the time, or cannot be asked."""
    ended, error = await attempt_async(asyncio.wait_for(execution.wait(), seconds))
    if error is not None and not isinstance(error, TimeoutError):
        logger.warning("%s cannot be waited for", execution.id, exc_info=error)
    return ended


def _key(address: Mapping[str, str]) -> str:
    return json.dumps(dict(address), sort_keys=True)
