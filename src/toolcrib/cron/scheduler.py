"""Runs jobs at their times: sleeps until the next one is due, and wakes when another process changes something."""

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
from toolcrib.core.attempt import attempt_async
from toolcrib.core.context import CancelToken
from toolcrib.cron.jobs import JobError, JobRun, RunOutcome
from toolcrib.cron.store import Claim, JobStore

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""How soon a change by another process, or a clock that was set, is noticed."""
LOOK_SECONDS = 30.0
"""How long nothing is looked at anew at most: a process may have died without a word."""
STOP_SECONDS = 10.0
"""How long a run may take to leave everything in order when its time is over."""
LEAVE_SECONDS = 5.0
"""How long runs may go on by themselves when the scheduler is told to stop."""

Execute = Callable[[Claim, CancelToken], Awaitable[RunOutcome]]
"""Does the work of one run. Told to stop by the token, it reports what there is."""
Tell = Callable[[str], None]


class CompletedRun(msgspec.Struct, frozen=True):
    """A run that has ended, as it is to be put on record."""

    run: JobRun
    report: RunOutcome
    at: float


class Scheduler:
    """Looks after the jobs of one home. Several may do so at the same time, also in other processes."""

    def __init__(
        self,
        store: JobStore,
        execute: Execute,
        settings: CronSettings,
        *,
        clock: Callable[[], float] = time.time,
        tell: Tell = lambda _: None,
    ) -> None:
        self._store = store
        self._execute = execute
        self._settings = settings
        self._clock = clock
        self._tell = tell
        self._running: dict[asyncio.Task[None], tuple[Claim, CancelToken]] = {}
        self._unrecorded: list[CompletedRun] = []
        self._trouble = ""
        self._latest = math.inf
        """What the clock showed at the last look; it can only be behind that when it was set back."""

    async def serve(self, stop: asyncio.Event, stop_now: asyncio.Event | None = None) -> None:
        """JobRun jobs at their times until told to stop; then runs get a moment, `stop_now` takes that away."""
        with self._store.serving(self._clock()):
            stopping = asyncio.ensure_future(stop.wait())
            try:
                while not stop.is_set():
                    # Taken before the look, so that nothing which happens meanwhile is slept through.
                    version, looked_at = self._version(), self._clock()
                    self._look()
                    await self._until_something_happens(stopping, version, looked_at)
            finally:
                stopping.cancel()
                await self._leave(stop_now or asyncio.Event())

    async def run_due(self, stop: asyncio.Event | None = None) -> None:
        """JobRun everything that is due now, also what becomes due meanwhile, and come back."""
        stop = stop or asyncio.Event()
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                self._look(patient=False)
                if not self._running:
                    return
                await asyncio.wait([stopping, *self._running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            await self._leave(asyncio.Event())

    def _look(self, *, patient: bool = True) -> None:
        """Put on record what has ended, and begin what is due."""
        try:
            self._record_ended()
            for run in self._store.mark_lost(self._clock()):
                self._tell(f"run {run.number} of job {run.job} is lost: its process was ended")
            now, settings = self._clock(), self._settings
            if now < self._latest:
                for job in self._store.count_anew(now):
                    self._tell(f"{job.name}: the clock was set back, so its next time was counted anew")
            self._latest = now
            claims = self._store.claim_due(now, missed=settings.missed, max_parallel=settings.max_parallel)
        except JobError as error:
            if not patient:
                raise
            # A full disk may have room again; said once, not every second.
            if str(error) != self._trouble:
                self._tell(f"{error}; trying again")
                logger.error("the scheduler cannot use its database: %s", error)
            self._trouble = str(error)
            return
        self._trouble = ""
        for claim in claims:
            self._start(claim)

    def _start(self, claim: Claim) -> None:
        cancel = CancelToken()
        note = f" ({claim.run.note})" if claim.run.note else ""
        self._tell(f"{claim.job.name}: run {claim.run.number} started{note}")
        task = asyncio.ensure_future(self._run(claim, cancel))
        self._running[task] = (claim, cancel)
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def _run(self, claim: Claim, cancel: CancelToken) -> None:
        """One run from its start to its end, which comes when its time is over at the latest."""
        report = await run_with_timeout(self._execute, claim, cancel, self._settings.timeout)
        ended = CompletedRun(claim.run, report, self._clock())
        self._unrecorded.append(ended)
        self._tell(f"{claim.job.name}: run {claim.run.number} {summary(ended)}")
        with suppress(JobError):
            # What cannot be written now is tried again at the next look.
            self._record_ended()

    def _record_ended(self) -> None:
        while self._unrecorded:
            one = self._unrecorded[0]
            self._store.finish(one.run, one.report, one.at, keep_runs=self._settings.keep_runs)
            self._unrecorded.pop(0)

    async def _until_something_happens(self, stopping: asyncio.Future[Any], version: int, looked_at: float) -> None:
        """Sleep until a job is due, a run has ended, somebody changed something, or it is time to look anew."""
        due = self._next_due(looked_at)
        began, awaited = time.monotonic(), [stopping, *self._running]
        while time.monotonic() - began < LOOK_SECONDS:
            # The clock of the wall is read with every tick: it may have been set, or the machine was asleep.
            left = TICK_SECONDS if due is None else min(TICK_SECONDS, max(0.0, due - self._clock()))
            done, _ = await asyncio.wait(awaited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if done or self._version() != version or (due is not None and due <= self._clock()):
                return

    def _next_due(self, looked_at: float) -> float | None:
        """When to look again; what was due at the last look waits for other runs to end, which is told by itself."""
        try:
            due = self._store.next_moment()
        except JobError:
            return None
        return None if due is not None and due <= looked_at else due

    def _version(self) -> int:
        try:
            return self._store.version
        except JobError:
            return 0

    async def _leave(self, stop_now: asyncio.Event) -> None:
        """Let runs end by themselves for a moment, then stop them; each of them is put on record."""
        if self._running:
            hurry = asyncio.ensure_future(stop_now.wait())
            self._tell(f"stopping; {len(self._running)} still running")
            ending = asyncio.gather(*self._running, return_exceptions=True)
            awaited: list[asyncio.Future[Any]] = [hurry, ending]
            await asyncio.wait(awaited, timeout=LEAVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for _, cancel in self._running.values():
                cancel.cancel("the scheduler was stopped")
            await asyncio.wait([ending], timeout=2 * STOP_SECONDS)
            hurry.cancel()
        with suppress(JobError):
            self._record_ended()


async def run_with_timeout(execute: Execute, claim: Claim, cancel: CancelToken, timeout_seconds: float) -> RunOutcome:
    """How a run went. One whose time is over, or that is told to stop, gets a moment to leave things in order."""
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        loop.call_soon_threadsafe(told_to_stop.set)

    unregister = cancel.on_cancel(hear)
    stopping = asyncio.ensure_future(told_to_stop.wait())
    work = asyncio.ensure_future(attempt_async(execute(claim, cancel)))
    awaited: list[asyncio.Future[Any]] = [work, stopping]
    try:
        await asyncio.wait(awaited, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return _reported(claim, *work.result())
        state, why = ("failed", cancel.reason) if cancel.cancelled else ("timed_out", "")
        cancel.cancel("its time is over")
        await asyncio.wait([work], timeout=STOP_SECONDS)
        partial = work.result().value if work.done() else None
        partial = partial or RunOutcome(state="failed")
        error = why or f"it was stopped after {timeout_seconds:g} seconds (cron.timeout)"
        return msgspec.structs.replace(partial, state="failed" if state == "failed" else "timed_out", error=error)
    finally:
        unregister()
        stopping.cancel()
        work.cancel()


def _reported(claim: Claim, report: RunOutcome | None, error: BaseException | None) -> RunOutcome:
    if report is not None:
        return report
    if error is not None and not isinstance(error, JobError):
        logger.error("run %d of job %r failed", claim.run.number, claim.job.name, exc_info=error)
    return RunOutcome(state="failed", error=str(error) or type(error).__name__)


def summary(ended: CompletedRun) -> str:
    """How a run ended, in a few words."""
    seconds = f"{max(0.0, ended.at - ended.run.started_at):.0f} s"
    state = {"ok": "ended well", "timed_out": "ran out of time"}.get(ended.report.state, "failed")
    return f"{state} after {seconds}" + (f": {ended.report.error}" if ended.report.error else "")
