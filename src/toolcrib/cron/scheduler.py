"""Runs jobs when they are due: sleeps until the next one, and wakes up when another process changes something."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from toolcrib.config.settings import CronSettings
from toolcrib.core.cancel import CancelToken
from toolcrib.cron.jobs import JobError, JobRun, RunOutcome
from toolcrib.cron.store import Claim, JobStore

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""How soon the scheduler notices a change by another process or an adjusted clock."""
FULL_CHECK_SECONDS = 30.0
"""The longest time between two full checks: a process may have died silently."""
STOP_SECONDS = 10.0
"""How long a run may take to clean up after its timeout."""
GRACE_SECONDS = 5.0
"""How long runs may continue after the scheduler was told to stop."""

Execute = Callable[[Claim, CancelToken], Awaitable[RunOutcome]]
"""Executes one run. When the token is cancelled, it returns what it has."""
EventCallback = Callable[[str], None]


class CompletedRun(msgspec.Struct, frozen=True):
    """A run that has ended and must be recorded."""

    run: JobRun
    outcome: RunOutcome
    at: float


class Scheduler:
    """Runs the jobs of one home. Several schedulers may do so at once, also in other processes."""

    def __init__(
        self,
        store: JobStore,
        execute: Execute,
        settings: CronSettings,
        *,
        clock: Callable[[], float] = time.time,
        on_event: EventCallback = lambda _: None,
    ) -> None:
        self._store = store
        self._execute = execute
        self._settings = settings
        self._clock = clock
        self._on_event = on_event
        self._running: dict[asyncio.Task[None], tuple[Claim, CancelToken]] = {}
        self._unrecorded: list[CompletedRun] = []
        self._last_error = ""
        self._latest = math.inf
        """The time of the last check; the clock is behind it only if it was set back."""

    async def serve(self, stop: asyncio.Event, stop_now: asyncio.Event | None = None) -> None:
        """Run jobs until told to stop; running ones then get a grace period, which `stop_now` cuts short."""
        with self._store.serving(self._clock()):
            stopping = asyncio.ensure_future(stop.wait())
            try:
                while not stop.is_set():
                    # Read before the check, so that nothing that happens meanwhile is missed.
                    version, checked_at = self._version(), self._clock()
                    self._check()
                    await self._wait_for_event(stopping, version, checked_at)
            finally:
                stopping.cancel()
                await self._stop_runs(stop_now or asyncio.Event())

    async def run_due(self, stop: asyncio.Event | None = None) -> None:
        """Run everything that is due, including what becomes due meanwhile, then return."""
        stop = stop or asyncio.Event()
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                self._check(retry=False)
                if not self._running:
                    return
                await asyncio.wait([stopping, *self._running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            await self._stop_runs(asyncio.Event())

    def _check(self, *, retry: bool = True) -> None:
        """Record runs that have ended and start those that are due."""
        try:
            self._record_ended()
            for run in self._store.mark_lost(self._clock()):
                self._on_event(f"run {run.number} of job {run.job} is lost: its process died")
            now, settings = self._clock(), self._settings
            if now < self._latest:
                for job in self._store.reschedule_after_clock_change(now):
                    self._on_event(f"{job.name}: the clock was set back, so its next run was recomputed")
            self._latest = now
            claims = self._store.claim_due(now, missed=settings.missed, max_parallel=settings.max_parallel)
        except JobError as error:
            if not retry:
                raise
            # A full disk may have space again later; report it once, not every second.
            if str(error) != self._last_error:
                self._on_event(f"{error}; trying again")
                logger.error("the scheduler cannot use its database: %s", error)
            self._last_error = str(error)
            return
        self._last_error = ""
        for claim in claims:
            self._start(claim)

    def _start(self, claim: Claim) -> None:
        cancel = CancelToken()
        note = f" ({claim.run.note})" if claim.run.note else ""
        self._on_event(f"{claim.job.name}: run {claim.run.number} started{note}")
        task = asyncio.ensure_future(self._run(claim, cancel))
        self._running[task] = (claim, cancel)
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def _run(self, claim: Claim, cancel: CancelToken) -> None:
        """Execute one run, at the latest until its timeout."""
        outcome = await run_with_timeout(self._execute, claim, cancel, self._settings.timeout)
        ended = CompletedRun(claim.run, outcome, self._clock())
        self._unrecorded.append(ended)
        self._on_event(f"{claim.job.name}: run {claim.run.number} {summary(ended)}")
        with suppress(JobError):
            # If it cannot be written now, the next check tries again.
            self._record_ended()

    def _record_ended(self) -> None:
        while self._unrecorded:
            one = self._unrecorded[0]
            self._store.finish(one.run, one.outcome, one.at, keep_runs=self._settings.keep_runs)
            self._unrecorded.pop(0)

    async def _wait_for_event(self, stopping: asyncio.Future[Any], version: int, checked_at: float) -> None:
        """Sleep until a job is due, a run has ended, something changed, or a full check is due."""
        due = self._next_due(checked_at)
        began, awaited = time.monotonic(), [stopping, *self._running]
        while time.monotonic() - began < FULL_CHECK_SECONDS:
            # Read the wall clock with every tick: it may have been adjusted, or the machine was asleep.
            left = TICK_SECONDS if due is None else min(TICK_SECONDS, max(0.0, due - self._clock()))
            done, _ = await asyncio.wait(awaited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if done or self._version() != version or (due is not None and due <= self._clock()):
                return

    def _next_due(self, checked_at: float) -> float | None:
        """When to check again; a job that was due at the last check waits for a running one, whose end wakes us."""
        try:
            due = self._store.next_due()
        except JobError:
            return None
        return None if due is not None and due <= checked_at else due

    def _version(self) -> int:
        try:
            return self._store.version
        except JobError:
            return 0

    async def _stop_runs(self, stop_now: asyncio.Event) -> None:
        """Let runs finish during a grace period, then stop them; all of them are recorded."""
        if self._running:
            hurry = asyncio.ensure_future(stop_now.wait())
            self._on_event(f"stopping; {len(self._running)} still running")
            ending = asyncio.gather(*self._running, return_exceptions=True)
            awaited: list[asyncio.Future[Any]] = [hurry, ending]
            await asyncio.wait(awaited, timeout=GRACE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for _, cancel in self._running.values():
                cancel.cancel("the scheduler was stopped")
            await asyncio.wait([ending], timeout=2 * STOP_SECONDS)
            hurry.cancel()
        with suppress(JobError):
            self._record_ended()


async def run_with_timeout(execute: Execute, claim: Claim, cancel: CancelToken, timeout_seconds: float) -> RunOutcome:
    """Execute a run; after its timeout or a cancellation it gets a moment to clean up."""
    cancelled = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_cancel() -> None:
        loop.call_soon_threadsafe(cancelled.set)

    unregister = cancel.on_cancel(on_cancel)
    stopping = asyncio.ensure_future(cancelled.wait())
    work = asyncio.ensure_future(execute(claim, cancel))
    awaited: list[asyncio.Future[Any]] = [work, stopping]
    try:
        await asyncio.wait(awaited, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return _to_outcome(claim, work)
        state, why = ("failed", cancel.reason) if cancel.cancelled else ("timed_out", "")
        cancel.cancel("the run timed out")
        await asyncio.wait([work], timeout=STOP_SECONDS)
        is_partial = work.done() and work.exception() is None
        partial = work.result() if is_partial else RunOutcome(state="failed")
        error = why or f"it was stopped after {timeout_seconds:g} seconds (cron.timeout)"
        return msgspec.structs.replace(partial, state="failed" if state == "failed" else "timed_out", error=error)
    finally:
        unregister()
        stopping.cancel()
        work.cancel()


def _to_outcome(claim: Claim, work: asyncio.Future[RunOutcome]) -> RunOutcome:
    error = work.exception()
    if error is None:
        return work.result()
    if not isinstance(error, JobError):
        logger.error("run %d of job %r failed", claim.run.number, claim.job.name, exc_info=error)
    return RunOutcome(state="failed", error=str(error) or type(error).__name__)


def summary(ended: CompletedRun) -> str:
    """The outcome of a run in a few words."""
    seconds = f"{max(0.0, ended.at - ended.run.started_at):.0f} s"
    state = {"ok": "succeeded", "timed_out": "timed out"}.get(ended.outcome.state, "failed")
    return f"{state} after {seconds}" + (f": {ended.outcome.error}" if ended.outcome.error else "")
