"""The scheduler: begins what is due, in time, and leaves everything on record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.cron.cron_jobs import HOUR, MINUTE, START, Clock, make_job
from toolcrib.config.settings import CronSettings
from toolcrib.core.cancel import CancelToken
from toolcrib.cron.jobs import JobError, RunOutcome
from toolcrib.cron.scheduler import Execute, Scheduler
from toolcrib.cron.store import Claim, JobStore

SECONDS = 20.0
"""How long a test waits for something to happen at most."""


class Runs:
    """Runs that end when the test lets them."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[Claim] = asyncio.Queue()
        self.go = asyncio.Event()
        self.stopped: list[str] = []

    async def execute(self, claim: Claim, cancel: CancelToken) -> RunOutcome:
        self.begun.put_nowait(claim)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        cancel.on_cancel(lambda: (loop.call_soon_threadsafe(stopped.set), None)[1])
        waits = [asyncio.ensure_future(self.go.wait()), asyncio.ensure_future(stopped.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        if stopped.is_set():
            self.stopped.append(cancel.reason)
            return RunOutcome(state="failed", output="half of it", error="it was interrupted")
        return RunOutcome(state="ok", output=f"result of {claim.job.name}")

    async def next_begun(self) -> Claim:
        return await asyncio.wait_for(self.begun.get(), SECONDS)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def runs() -> Runs:
    return Runs()


MakeScheduler = Callable[..., Scheduler]


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def make_scheduler(jobs: JobStore, clock: Clock, lines: list[str]) -> MakeScheduler:
    def make(execute: Execute, **settings: object) -> Scheduler:
        return Scheduler(jobs, execute, CronSettings(**settings), clock=clock, on_event=lines.append)  # type: ignore[arg-type]

    return make


async def serving(scheduler: Scheduler, body: Callable[[], Awaitable[None]], *, at_once: bool = False) -> None:
    """Do something while the scheduler serves, then stop it."""
    stop, stop_now = asyncio.Event(), asyncio.Event()
    served = asyncio.ensure_future(scheduler.serve(stop, stop_now))
    # It looks for the first time before it gives the loop back.
    await asyncio.sleep(0)
    try:
        await body()
    finally:
        stop.set()
        if at_once:
            stop_now.set()
        await asyncio.wait_for(served, SECONDS)


async def test_what_is_due_is_run_and_put_on_record(
    jobs: JobStore, clock: Clock, runs: Runs, make_scheduler: MakeScheduler, lines: list[str]
) -> None:
    """`run_due` runs all that is due and comes back; every run has its result, and a line at both ends."""
    due, later = make_job(jobs, name="due"), make_job(jobs, "every 2h", name="later")
    clock.now = START + HOUR
    runs.go.set()

    await make_scheduler(runs.execute).run_due()

    assert [(run.state, run.output) for run in jobs.runs(due)] == [("ok", "result of due")]
    assert jobs.runs(later) == []
    assert lines == ["due: run 1 started", "due: run 1 succeeded after 0 s"]


async def test_a_job_that_another_process_makes_is_noticed(
    jobs: JobStore, runs: Runs, make_scheduler: MakeScheduler
) -> None:
    """A scheduler that sleeps wakes when somebody else changes the jobs."""
    make_job(jobs, "every 1w", name="far away")
    runs.go.set()

    async def body() -> None:
        assert jobs.database.path is not None
        other = JobStore(jobs.database.path)
        job = other.find("far away")
        other.request_run(job, START)
        other.close()
        assert (await runs.next_begun()).job.name == "far away"

    await serving(make_scheduler(runs.execute), body)


async def test_a_clock_that_is_set_forward_is_noticed(
    jobs: JobStore, clock: Clock, runs: Runs, make_scheduler: MakeScheduler
) -> None:
    """After a sleep of the machine, or when its clock is set, what has become due is run."""
    make_job(jobs, "every 1w")
    runs.go.set()

    async def body() -> None:
        clock.now = START + 8 * 24 * HOUR
        assert (await runs.next_begun()).run.due_at == START + 7 * 24 * HOUR

    await serving(make_scheduler(runs.execute), body)


async def test_a_clock_that_is_set_back_is_noticed(
    jobs: JobStore, clock: Clock, runs: Runs, make_scheduler: MakeScheduler, lines: list[str]
) -> None:
    """A job that ran while the clock was ahead runs at its next time by the clock that is right again."""
    make_job(jobs, "0 * * * *")
    runs.go.set()
    scheduler = make_scheduler(runs.execute)
    clock.now = START + 1_000 * HOUR
    await scheduler.run_due()
    clock.now = START + HOUR / 2
    await scheduler.run_due()
    clock.now = START + 2 * HOUR
    await scheduler.run_due()

    begun = [runs.begun.get_nowait().run.due_at for _ in range(2)]
    assert begun == [START + HOUR, START + 2 * HOUR]
    assert any("the clock was set back" in line for line in lines)


async def test_jobs_wait_for_room(jobs: JobStore, clock: Clock, runs: Runs, make_scheduler: MakeScheduler) -> None:
    """With room for one, the second job begins when the first has ended."""
    make_job(jobs, "in 1m", name="first")
    make_job(jobs, "in 2m", name="second")
    clock.now = START + HOUR

    async def body() -> None:
        assert (await runs.next_begun()).job.name == "first"
        assert runs.begun.empty()
        runs.go.set()
        assert (await runs.next_begun()).job.name == "second"

    await serving(make_scheduler(runs.execute, max_parallel=1), body)


async def test_a_run_that_takes_too_long_is_stopped(
    jobs: JobStore, clock: Clock, runs: Runs, make_scheduler: MakeScheduler
) -> None:
    """When the run timed out a run is told to stop; what it has by then is kept."""
    job = make_job(jobs)
    clock.now = START + HOUR

    await make_scheduler(runs.execute, timeout=0.05).run_due()

    (run,) = jobs.runs(job)
    assert (run.state, run.output) == ("timed_out", "half of it")
    assert run.error == "it was stopped after 0.05 seconds (cron.timeout)"
    assert runs.stopped == ["the run timed out"]


async def test_a_run_that_fails_says_why(jobs: JobStore, clock: Clock, make_scheduler: MakeScheduler) -> None:
    """Whatever a run raises becomes its error, and the scheduler goes on."""
    job = make_job(jobs)
    clock.now = START + HOUR

    async def execute(claim: Claim, cancel: CancelToken) -> RunOutcome:
        raise JobError("the folder is gone")

    await make_scheduler(execute).run_due()

    assert [(run.state, run.error) for run in jobs.runs(job)] == [("failed", "the folder is gone")]


async def test_stopping_stops_what_runs(
    jobs: JobStore, clock: Clock, runs: Runs, make_scheduler: MakeScheduler
) -> None:
    """A scheduler that is told to stop at once stops its runs, and they are on record as failed."""
    job = make_job(jobs)
    clock.now = START + HOUR

    async def body() -> None:
        await runs.next_begun()

    await serving(make_scheduler(runs.execute), body, at_once=True)

    (run,) = jobs.runs(job)
    assert (run.state, run.error, run.output) == ("failed", "the scheduler was stopped", "half of it")
    assert jobs.scheduler() == 0


async def test_stopping_lets_runs_end(jobs: JobStore, clock: Clock, runs: Runs, make_scheduler: MakeScheduler) -> None:
    """A run that ends in the moment that it is given ends well."""
    job = make_job(jobs)
    clock.now = START + HOUR

    async def body() -> None:
        await runs.next_begun()
        asyncio.get_running_loop().call_later(0.01, runs.go.set)

    await serving(make_scheduler(runs.execute), body)

    assert [run.state for run in jobs.runs(job)] == ["ok"]


async def test_a_result_that_cannot_be_written_is_written_later(
    jobs: JobStore, clock: Clock, runs: Runs, make_scheduler: MakeScheduler, lines: list[str]
) -> None:
    """While the disk is full the scheduler says so once and goes on; the result is kept when there is room again."""
    job = make_job(jobs)
    clock.now = START + HOUR
    said = asyncio.Event()

    def read_only(on: int) -> None:
        with jobs.database.read() as connection:
            connection.execute(f"PRAGMA query_only = {on}")

    async def execute(claim: Claim, cancel: CancelToken) -> RunOutcome:
        read_only(1)
        asyncio.get_running_loop().call_later(0.01, said.set)
        return RunOutcome(state="ok", output="kept")

    scheduler = make_scheduler(execute)

    async def body() -> None:
        await asyncio.wait_for(said.wait(), SECONDS)
        read_only(0)
        runs.go.set()

    await serving(scheduler, body)

    assert [(run.state, run.output) for run in jobs.runs(job)] == [("ok", "kept")]
    assert sum("trying again" in line for line in lines) == 1


async def test_two_schedulers_share_the_work(jobs: JobStore, clock: Clock, runs: Runs) -> None:
    """Two schedulers of one home run every moment once between them."""
    job = make_job(jobs, "every 1m", missed="all")
    clock.now = START + 20 * MINUTE
    runs.go.set()
    assert jobs.database.path is not None
    other = JobStore(jobs.database.path)
    settings = CronSettings(keep_runs=100)

    both = [Scheduler(store, runs.execute, settings, clock=clock) for store in (jobs, other)]
    await asyncio.gather(*(scheduler.run_due() for scheduler in both))
    await both[0].run_due()

    assert sorted(run.due_at for run in jobs.runs(job, 100)) == [START + MINUTE * step for step in range(1, 21)]
    other.close()
