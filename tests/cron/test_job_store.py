"""The store of jobs: what is kept, what is due, and that each moment is run once."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cron.cron_jobs import HOUR, MINUTE, START, make_job, settings_of
from toolcrib.core.errors import UsageError
from toolcrib.cron.delivery import Inbox, leave_notice
from toolcrib.cron.drafts import JobAuthor, JobDraft, new_job, pause_job, resume_job, update_job
from toolcrib.cron.jobs import Job, JobError, MissedPolicy, RunOutcome, UnknownJob
from toolcrib.cron.store import Claim, JobStore

DONE = RunOutcome(state="ok", output="A boat.")


def claim(store: JobStore, now: float, missed: MissedPolicy = "once", max_parallel: int = 3) -> list[Claim]:
    return store.claim_due(now, missed=missed, max_parallel=max_parallel)


def run_all(store: JobStore, now: float, missed: MissedPolicy = "once") -> list[Claim]:
    """Every run that is due at that moment, one after the other."""
    found: list[Claim] = []
    while claims := claim(store, now, missed):
        for one in claims:
            store.finish(one.run, DONE, now, keep_runs=100)
        found += claims
    return found


def test_a_job_comes_back_as_it_was_kept(jobs: JobStore) -> None:
    """Everything that was said about a job is there for another process."""
    other = make_job(jobs, name="other")
    job = make_job(
        jobs, "0 9 * * *", name="Ⓗarbour 🌊", script="ls", skills=("tides",), context_from=("other",), repeat=3
    )

    again = JobStore(jobs.database.path or Path())

    assert again.find("Ⓗarbour 🌊") == job
    assert job.context_from == (other.id,)
    again.close()


def test_only_the_owner_can_read_the_file(jobs: JobStore) -> None:
    """Prompts and results are nobody else's business."""
    make_job(jobs)

    assert jobs.database.path is not None
    for path in jobs.database.path.parent.glob("cron.db*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_looking_at_nothing_creates_nothing(jobs: JobStore) -> None:
    """Without jobs there is no file, and all answers are empty."""
    assert (jobs.jobs(), claim(jobs, START), jobs.next_due(), jobs.scheduler()) == ([], [], None, 0)
    assert jobs.database.path is not None
    assert not jobs.database.path.exists()


def test_jobs_are_found_by_name_by_id_and_by_their_beginning(jobs: JobStore) -> None:
    """What could mean two jobs, or none, is refused with what was probably meant."""
    mail = make_job(jobs, name="Mail of today")
    make_job(jobs, name="Mail of tomorrow")
    make_job(jobs, name="harbour")

    assert jobs.find("mail of TODAY") == jobs.find(mail.id) == mail
    assert jobs.find("harb").name == "harbour"
    with pytest.raises(UnknownJob, match="'Mail of today' and 'Mail of tomorrow' both match"):
        jobs.find("mail")
    with pytest.raises(UnknownJob, match="did you mean 'harbour'"):
        jobs.find("harbor")
    with pytest.raises(UnknownJob):
        jobs.find("")


def test_a_name_is_given_once(jobs: JobStore) -> None:
    """A second job of the same name is refused; a name that we make up ourselves is made different."""
    make_job(jobs, name="harbour")

    with pytest.raises(JobError, match="a job named 'Harbour' already exists"):
        make_job(jobs, name="Harbour")
    assert [make_job(jobs).name for _ in range(3)] == [
        "Look at the harbour", "Look at the harbour 2", "Look at the harbour 3",
    ]  # fmt: skip


IMPOSSIBLE = [
    ({"prompt": " "}, "the `prompt` is empty"),
    ({"prompt": "x" * 20_001}, "characters; at most"),
    ({"no_agent": True}, "needs a `script`"),
    ({"repeat": -1}, "cannot run -1 times"),
    ({"deliver": "telegram"}, "no messaging platform with that name is configured"),
    ({"deliver": "orgin"}, "did you mean 'origin'"),
    ({"deliver": "file:"}, "does not say which file"),
    ({"deliver": "origin"}, "there is no session to deliver to"),
    ({"workdir": "nowhere"}, "does not exist"),
    ({"context_from": ("nothing",)}, "unknown job 'nothing'"),
    ({"attach_to_session": "20200101_000000_abcdef"}, "there is no session"),
    ({"attach_to_session": "this"}, "there is no session here"),
    ({"timezone": "Berlin"}, "unknown time zone"),
    ({"name": "\x1b[31m"}, "is not a valid job name"),
    ({"schedule": "0 9 * * * Asia/Tokyo"}, "already names a time zone"),
]


@pytest.mark.parametrize(("wishes", "because"), IMPOSSIBLE, ids=[because for _, because in IMPOSSIBLE])
def test_what_cannot_be_a_job_is_refused(jobs: JobStore, wishes: dict[str, Any], because: str) -> None:
    """Each wish is checked when it is made, not when the job runs, and nothing is kept of a bad one."""
    with pytest.raises((UsageError, UnknownJob), match=because):
        make_job(jobs, **wishes)

    assert jobs.jobs() == []


def test_a_moment_is_run_once(jobs: JobStore) -> None:
    """A job is due at its moment and not before; once it was claimed there is nothing until the next."""
    job = make_job(jobs)

    assert claim(jobs, START + HOUR - 1) == []
    (found,) = claim(jobs, START + HOUR)
    assert (found.run.due_at, found.run.state) == (START + HOUR, "running")
    assert claim(jobs, START + HOUR) == []
    jobs.finish(found.run, DONE, START + HOUR + 5, keep_runs=10)
    assert claim(jobs, START + HOUR + 5) == []
    assert jobs.find(job.id).next_run == START + 2 * HOUR
    (kept,) = jobs.runs(job)
    assert (kept.state, kept.output, kept.finished_at) == ("ok", "A boat.", START + HOUR + 5)


def test_once_lets_one_run_stand_for_all_that_were_missed(jobs: JobStore) -> None:
    """After a long rest there is one run, which says how many moments have passed, and then the next moment."""
    job = make_job(jobs)

    (found,) = run_all(jobs, START + 10.5 * HOUR)

    assert found.run.note == "it stands for 10 missed runs"
    assert jobs.find(job.id).next_run == START + 11 * HOUR


def test_all_makes_up_for_each_moment(jobs: JobStore) -> None:
    """With `all` every missed moment has its run, one after the other."""
    make_job(jobs, missed="all")

    found = run_all(jobs, START + 4.5 * HOUR, "skip")

    assert [one.run.due_at for one in found] == [START + number * HOUR for number in (1, 2, 3, 4)]


def test_skip_leaves_out_what_was_missed(jobs: JobStore) -> None:
    """With `skip` nothing is made up for, and that is said; what is due just now is run."""
    job = make_job(jobs, missed="skip")

    assert run_all(jobs, START + 3.5 * HOUR) == []
    (left_out,) = jobs.runs(job)
    assert (left_out.state, left_out.note) == ("skipped", "skipped: 3 runs missed while no scheduler could start them")
    assert [one.run.due_at for one in run_all(jobs, START + 6 * HOUR + 30)] == [START + 6 * HOUR]
    assert jobs.find(job.id).next_run == START + 7 * HOUR


def test_a_single_moment_that_is_late_is_still_run(jobs: JobStore) -> None:
    """`in 30m` runs late rather than never, unless the job says `skip`; either way it is done then."""
    late, skipped = make_job(jobs, "in 30m", name="late"), make_job(jobs, "in 30m", name="skipped", missed="skip")

    assert [one.job.name for one in run_all(jobs, START + 24 * HOUR)] == ["late"]
    assert {jobs.find(job.id).state for job in (late, skipped)} == {"done"}


def test_years_of_missed_minutes_are_no_burden(jobs: JobStore) -> None:
    """A job of every minute that rested for two years is counted no further than it is worth."""
    job = make_job(jobs, "* * * * *")

    (found,) = run_all(jobs, START + 2 * 365 * 24 * HOUR)

    assert found.run.note == "it stands for more than 10,000 missed runs"
    assert (jobs.find(job.id).next_run or 0) > START + 2 * 365 * 24 * HOUR


def test_a_job_never_overlaps_itself(jobs: JobStore) -> None:
    """While a run goes on its job is not due; what passes meanwhile was missed, and goes by the policy."""
    make_job(jobs)
    (first,) = claim(jobs, START + HOUR)

    assert claim(jobs, START + 3 * HOUR) == []
    assert jobs.next_due() is None
    jobs.finish(first.run, DONE, START + 3.5 * HOUR, keep_runs=10)
    (second,) = claim(jobs, START + 3.5 * HOUR)
    assert second.run.note == "it stands for 2 missed runs"


def test_no_more_than_the_limit_run_at_once(jobs: JobStore) -> None:
    """Those that have waited longest go first; others follow when there is room, for all processes together."""
    for number in range(4):
        make_job(jobs, f"in {number + 1}m", name=f"job {number}")

    first = claim(jobs, START + HOUR, max_parallel=2)
    assert [one.job.name for one in first] == ["job 0", "job 1"]
    assert claim(jobs, START + HOUR, max_parallel=2) == []
    jobs.finish(first[0].run, DONE, START + HOUR, keep_runs=10)
    assert [one.job.name for one in claim(jobs, START + HOUR, max_parallel=2)] == ["job 2"]


def test_a_job_that_is_repeated_ends(jobs: JobStore) -> None:
    """After as many runs as were wished for a job is done, and keeps its results."""
    job = make_job(jobs, repeat=2, missed="all")

    assert len(run_all(jobs, START + 9 * HOUR)) == 2
    assert (jobs.find(job.id).state, jobs.find(job.id).next_run) == ("done", None)
    assert len(jobs.runs(job)) == 2


def test_only_the_latest_runs_are_kept(jobs: JobStore) -> None:
    """As many runs are kept as the settings say, and the one that is running."""
    job = make_job(jobs, "every 1m")
    for number in range(1, 8):
        (one,) = claim(jobs, START + number * MINUTE)
        jobs.finish(one.run, DONE, START + number * MINUTE, keep_runs=3)

    assert [run.number for run in jobs.runs(job, 100)] == [7, 6, 5]


def test_a_paused_job_rests(jobs: JobStore) -> None:
    """What is due while a job rests is not made up for; resumed, it goes on with the next moment."""
    job = make_job(jobs, missed="all")
    resting = jobs.replace(pause_job(job, START), job)

    assert run_all(jobs, START + 5 * HOUR) == []
    again = jobs.replace(resume_job(resting, START + 5.5 * HOUR), resting)
    assert (again.state, again.next_run) == ("active", START + 6 * HOUR)
    with pytest.raises(UsageError, match="is not paused"):
        resume_job(again, START)


def test_a_run_can_be_asked_for(jobs: JobStore) -> None:
    """A run at once leaves the schedule as it is, also of a job that rests; a second one waits for the first."""
    job = make_job(jobs)
    job = jobs.replace(pause_job(job, START), job)
    jobs.request_run(job, START + 7)

    (found,) = claim(jobs, START + 8)

    assert (found.run.trigger, found.run.due_at) == ("manual", START + 7)
    assert (jobs.find(job.id).next_run, jobs.find(job.id).run_count, jobs.find(job.id).asked_at) == (None, 0, None)
    with pytest.raises(JobError, match=f"is running in process {os.getpid()}"):
        jobs.claim_now(job, START + 9)
    with pytest.raises(JobError, match="is running"):
        jobs.remove(job)


def test_a_new_schedule_counts_from_now(jobs: JobStore, home: Path) -> None:
    """What is not named stays; a schedule that is named is counted anew."""
    job, author, settings = make_job(jobs, repeat=5), JobAuthor(folder=str(home)), settings_of(home)

    named = update_job(job, JobDraft(name="boats"), author, settings, jobs, START + 60)
    moved = update_job(job, JobDraft(schedule="every 2h"), author, settings, jobs, START + 60)

    assert (named.name, named.next_run, named.updated_at) == ("boats", job.next_run, START + 60)
    assert (moved.schedule, moved.next_run, moved.prompt, moved.repeat) == (
        "every 2h",
        START + 60 + 2 * HOUR,
        job.prompt,
        5,
    )


def test_a_job_that_is_done_runs_again_with_a_new_schedule(jobs: JobStore, home: Path) -> None:
    """A new schedule wakes a job that is done; one that rests goes on resting."""
    author, settings = JobAuthor(folder=str(home)), settings_of(home)
    make_job(jobs, "in 30m", name="done")
    run_all(jobs, START + HOUR)
    resting = make_job(jobs, name="resting")
    resting = jobs.replace(pause_job(resting, START), resting)

    woken, still = (
        update_job(job, JobDraft(schedule="every 2h"), author, settings, jobs, START + HOUR)
        for job in (jobs.find("done"), resting)
    )

    assert (woken.state, woken.next_run, woken.run_count) == ("active", START + 3 * HOUR, 0)
    assert (still.state, still.next_run) == ("paused", None)


def test_a_change_does_not_undo_what_happened_meanwhile(jobs: JobStore) -> None:
    """Who changes a job that moved on since he looked is told so, and changes nothing."""
    job = make_job(jobs)
    run_all(jobs, START + HOUR)

    with pytest.raises(JobError, match="check it and try again"):
        jobs.replace(replace(job, prompt="Something else"), job)
    assert jobs.find(job.id).run_count == 1


def test_a_session_cannot_pass_on_tools_that_it_lacks(jobs: JobStore, home: Path) -> None:
    """A job keeps the tools of its maker; who changes it can only take away from them."""
    settings = settings_of(home)
    maker = JobAuthor(folder=str(home), session="s", allowed_tools=frozenset({"terminal", "read_file"}))
    helper = JobAuthor(folder=str(home), session="t", allowed_tools=frozenset({"terminal", "web_search"}))
    job = new_job(JobDraft(schedule="@daily", prompt="x", timezone="UTC"), maker, settings, jobs, START)

    changed = update_job(job, JobDraft(prompt="y"), helper, settings, jobs, START)

    assert job.allowed_tools == ("read_file", "terminal")
    assert changed.allowed_tools == ("terminal",)
    with pytest.raises(UsageError, match="has no terminal"):
        update_job(
            job, JobDraft(script="ls"), JobAuthor(folder=str(home), allowed_tools=frozenset()), settings, jobs, START
        )


def test_a_zone_that_is_gone_pauses_the_job(jobs: JobStore) -> None:
    """A job whose schedule cannot be read any more rests, and says why; the others run."""
    job = make_job(jobs, name="odd")
    jobs.replace(replace(job, timezone="Mars/Olympus"), job)
    make_job(jobs, name="fine")

    assert [one.job.name for one in run_all(jobs, START + HOUR)] == ["fine"]
    assert jobs.find("odd").state == "paused"
    assert "unknown time zone 'Mars/Olympus'" in jobs.runs(job)[0].note


CLAIMER = """
import json, sys
from pathlib import Path
from toolcrib.cron.jobs import RunOutcome
from toolcrib.cron.store import JobStore
store, start = JobStore(Path(sys.argv[1])), float(sys.argv[2])
store.jobs()
print("ready", flush=True)
sys.stdin.readline()
for step in range(int(sys.argv[3])):
    now = start + 60.0 * step
    for claim in store.claim_due(now, missed="all", max_parallel=100):
        print(json.dumps([claim.job.name, claim.run.due_at]), flush=True)
        store.finish(claim.run, RunOutcome(state="ok"), now, keep_runs=10_000)
while claims := store.claim_due(now, missed="all", max_parallel=100):
    for claim in claims:
        print(json.dumps([claim.job.name, claim.run.due_at]), flush=True)
        store.finish(claim.run, RunOutcome(state="ok"), now, keep_runs=10_000)
"""


@pytest.mark.services
def test_four_processes_run_each_moment_once(jobs: JobStore) -> None:
    """Four processes that look at the same jobs at the same time begin every moment exactly once between them."""
    steps = 60
    for number in range(3):
        make_job(jobs, "* * * * *", name=f"job {number}", missed="all")
    assert jobs.database.path is not None
    command = [sys.executable, "-c", CLAIMER, str(jobs.database.path), str(START + MINUTE), str(steps)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]

    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()

    ended = [worker.communicate(timeout=120) for worker in workers]

    assert [stderr for _, stderr in ended] == [""] * 4
    found = Counter(tuple(json.loads(line)) for stdout, _ in ended for line in stdout.splitlines())
    expected = {(f"job {number}", START + MINUTE * step) for number in range(3) for step in range(1, steps + 1)}
    assert set(found) == expected
    assert set(found.values()) == {1}


HOLDER = """
import sys
from pathlib import Path
from toolcrib.cron.store import JobStore
store = JobStore(Path(sys.argv[1]))
with store.serving(0):
    assert len(store.claim_due(float(sys.argv[2]), missed="once", max_parallel=3)) == 1
    print("claimed", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def kill_in_the_middle_of_a_run() -> Callable[[JobStore, float], None]:
    def kill(store: JobStore, now: float) -> None:
        command = [sys.executable, "-c", HOLDER, str(store.database.path), str(now)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "claimed\n"
            assert store.scheduler() == holder.pid
            holder.send_signal(signal.SIGKILL)

    return kill


def test_a_run_whose_process_was_killed_is_lost(
    jobs: JobStore, kill_in_the_middle_of_a_run: Callable[[JobStore, float], None]
) -> None:
    """It is shown as lost at once, is never run again by itself, and keeps no later run from happening."""
    job = make_job(jobs)
    kill_in_the_middle_of_a_run(jobs, START + HOUR)

    (shown,) = jobs.runs(job)
    assert (shown.state, jobs.scheduler()) == ("lost", 0)
    assert claim(jobs, START + HOUR + 60) == []
    assert [run.state for run in jobs.mark_lost(START + HOUR + 60)] == ["running"]
    assert [(one.run.due_at, one.run.note) for one in run_all(jobs, START + 2 * HOUR)] == [(START + 2 * HOUR, "")]
    assert [run.state for run in jobs.runs(job)] == ["ok", "lost"]
    assert "not repeated" in jobs.runs(job)[1].error


def test_a_job_with_a_lost_run_can_be_removed(
    jobs: JobStore, kill_in_the_middle_of_a_run: Callable[[JobStore, float], None]
) -> None:
    """A process that is gone keeps nobody from anything."""
    job = make_job(jobs)
    kill_in_the_middle_of_a_run(jobs, START + HOUR)

    jobs.remove(job)

    assert jobs.jobs() == []


def test_a_run_that_was_thought_lost_can_still_be_finished(jobs: JobStore) -> None:
    """A process that others cannot see, as in a container, may still say how its run went."""
    job = make_job(jobs)
    (found,) = claim(jobs, START + HOUR)
    with jobs.database.write() as connection:
        connection.execute("UPDATE runs SET state = 'lost'")

    jobs.finish(found.run, DONE, START + HOUR + 9, keep_runs=10)

    assert [run.state for run in jobs.runs(job)] == ["ok"]


def test_a_store_that_cannot_be_written_says_so(jobs: JobStore) -> None:
    """What cannot be written is an error that names the file and what to do."""
    make_job(jobs)
    with jobs.database.read() as connection:
        connection.execute("PRAGMA query_only = ON")

    with pytest.raises(JobError, match=r"cannot write to '.*cron\.db'"):
        claim(jobs, START + HOUR)


FULL_DISK = """
import resource, sys
from pathlib import Path
from toolcrib.cron.jobs import JobError, RunOutcome
from toolcrib.cron.store import JobStore
store = JobStore(Path(sys.argv[1]))
(claim,) = store.claim_due(float(sys.argv[2]), missed="once", max_parallel=3)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    store.finish(claim.run, RunOutcome(state="ok", output="x" * 900_000), float(sys.argv[2]), keep_runs=5)
except JobError as error:
    print(error)
"""


@pytest.mark.services
def test_a_full_disk_is_said(jobs: JobStore) -> None:
    """A result that does not fit is an error in words, and the run is not thought to have ended."""
    job = make_job(jobs)

    command = [sys.executable, "-c", FULL_DISK, str(jobs.database.path), str(START + HOUR)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert "disk" in done.stdout
    assert str(jobs.database.path) in done.stdout
    assert [run.state for run in jobs.runs(job)] == ["lost"]


def test_a_damaged_file_is_named(home: Path) -> None:
    """What is no database of ours is not touched, and the message says which file it is."""
    home.mkdir()
    path = home / "cron.db"
    path.write_bytes(b"SQLite format 3\0" + b"junk" * 2000)
    store = JobStore(path)

    with pytest.raises(JobError, match=r"database of scheduled jobs .* is damaged"):
        store.jobs()
    store.close()


def test_a_name_is_given_once_in_any_script(jobs: JobStore) -> None:
    """Names are compared as they are looked for, not only in ASCII: `Übung` and `übung` could not be told apart."""
    make_job(jobs, name="Übung")

    with pytest.raises(JobError, match="a job named 'übung' already exists"):
        make_job(jobs, name="übung")


def test_a_prompt_without_a_printable_word_has_a_name(jobs: JobStore) -> None:
    """A name is always found, also where the prompt has nothing to make one of."""
    assert [make_job(jobs, prompt="\x01").name, make_job(jobs, prompt="\x02").name] == ["job", "job 2"]


def test_a_moment_that_was_run_holds_nothing_up(jobs: JobStore) -> None:
    """With `skip`, a moment that is on record is left out too, and other jobs are run."""
    job = make_job(jobs, "every 1h", name="first")
    (begun,) = claim(jobs, START + HOUR)
    jobs.finish(begun.run, DONE, START + HOUR, keep_runs=10)
    moved = jobs.find("first")
    jobs.replace(replace(moved, next_run=START - HOUR), moved)
    make_job(jobs, "every 1h", name="second")

    claims = claim(jobs, START + HOUR + 1, "skip")

    assert [one.job.name for one in claims] == ["second"]
    assert jobs.find("first").next_run == START + 2 * HOUR
    assert jobs.find("first").run_count == 1
    assert job.id != claims[0].job.id


def test_a_clock_that_was_set_back_lets_jobs_run_again(jobs: JobStore) -> None:
    """What ran while the clock was weeks ahead does not wait for those weeks to pass; nothing is run twice."""
    job = make_job(jobs, "0 * * * *")
    run_all(jobs, START + 1_000 * HOUR)
    waits_until = jobs.find(job.id).next_run

    counted = jobs.reschedule_after_clock_change(START + HOUR / 2)
    again = jobs.reschedule_after_clock_change(START + HOUR / 2)
    at_once, later = run_all(jobs, START + HOUR), run_all(jobs, START + 2 * HOUR)

    assert waits_until == START + 1_001 * HOUR
    assert ([one.id for one in counted], again) == ([job.id], [])
    assert (at_once, [one.run.due_at for one in later]) == ([], [START + 2 * HOUR])


def test_a_job_made_while_the_clock_was_ahead_counts_from_now(jobs: JobStore) -> None:
    """Spans are counted from the time at which the clock was right again."""
    job = make_job(jobs, "every 2h", now=START + 1_000 * HOUR)

    jobs.reschedule_after_clock_change(START)

    assert jobs.find(job.id).next_run == START + 2 * HOUR


def test_a_clock_that_is_right_changes_nothing(jobs: JobStore) -> None:
    """A job that is not due for long is left as it is."""
    make_job(jobs, "0 0 1 1 *")
    run_all(jobs, START)

    assert jobs.reschedule_after_clock_change(START) == []


def test_the_latest_runs_come_without_their_outputs(jobs: JobStore) -> None:
    """A list of many jobs reads none of the large results."""
    ran, never = make_job(jobs, name="ran"), make_job(jobs, name="never")
    for _ in range(2):
        begun = jobs.claim_now(ran, START)
        jobs.finish(begun.run, DONE, START, keep_runs=10)

    latest = jobs.latest_runs()

    assert {job: (run.number, run.state, run.output) for job, run in latest.items()} == {
        ran.id: (begun.run.number, "ok", "")
    }
    assert never.id not in latest


def test_a_session_that_was_away_hears_only_the_latest_results(jobs: JobStore, home: Path) -> None:
    """They come in one message, which must leave room for a conversation."""
    for number in range(15):
        leave_notice(jobs.database, "s1", number, f"result {number}")
    leave_notice(jobs.database, "s2", 99, "of another session")

    waiting = Inbox(home / "cron.db", "s1").waiting()

    assert [notice.text for notice in waiting] == [f"result {number}" for number in range(5, 15)]


LACKING = [
    ({"deliver": "command:wall"}, {"write_file"}, "no terminal"),
    ({"deliver": "file:/tmp/x"}, {"read_file"}, "cannot write files"),
    ({"script": "ls"}, {"write_file"}, "no terminal"),
    ({"attach_to_session": "20200101_000000_abcdef"}, {"terminal"}, "only continue that session"),
]


@pytest.mark.parametrize(("wishes", "tools", "because"), LACKING, ids=[str(wishes) for wishes, _, _ in LACKING])
def test_a_job_does_nothing_that_its_session_cannot(
    jobs: JobStore, home: Path, wishes: dict[str, Any], tools: set[str], because: str
) -> None:
    """What a job does besides asking its model needs a tool of the session; other sessions are none of its business."""
    author = JobAuthor(folder=str(home), session="s1", allowed_tools=frozenset(tools))
    wish = JobDraft(schedule="every 1h", prompt="x", **wishes)

    with pytest.raises(UsageError, match=because):
        new_job(wish, author, settings_of(home), jobs, START)


def test_the_job_struct_has_a_place_for_every_wish() -> None:
    """No wish gets lost between what is asked for and what is kept."""
    assert set(JobDraft.__struct_fields__) <= set(Job.__struct_fields__)
