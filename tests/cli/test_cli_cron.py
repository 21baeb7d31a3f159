"""`toolcrib cron …`: jobs made, shown, changed, run and served by the real program."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.cli_program import DEADLINE_SECONDS, Program
from toolcrib.core.types import JsonObject
from toolcrib.cron.store import JobStore

# Schedulers run in processes of their own, and wait for their moments.
pytestmark = pytest.mark.services

SchedulerProcess = subprocess.Popen[str]


@pytest.fixture
def scripted(toolcrib: Program) -> Callable[..., None]:
    """Lets a model answer that plays these steps, anew for each run."""

    def write(*steps: dict[str, object]) -> None:
        script = toolcrib.write("script.json", json.dumps(steps))
        toolcrib.write(
            "config.yaml", f"model: {{provider: scripted}}\nproviders: {{scripted: {{base_url: {script}}}}}\n"
        )

    return write


@pytest.fixture
def serve(toolcrib: Program) -> Iterator[Callable[..., SchedulerProcess]]:
    """Schedulers in processes of their own, ended with the test."""
    started: list[SchedulerProcess] = []

    def start(*options: str) -> SchedulerProcess:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "toolcrib", "cron", "serve", *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=toolcrib.environment(),
                cwd=toolcrib.root,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(text: str, *processes: SchedulerProcess) -> tuple[SchedulerProcess, list[str]]:
    """The first process that prints a line with this text, and what all of them printed up to it."""
    seen: list[str] = []
    with selectors.DefaultSelector() as selector:
        for process in processes:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, process)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while ready := selector.select(max(0.0, deadline - time.monotonic())):
            for key, _ in ready:
                line = key.data.stdout.readline()
                assert line, f"it ended before {text!r}: {seen} {key.data.stderr.read()}"
                seen.append(line.rstrip("\n"))
                if text in line:
                    return key.data, seen
    raise AssertionError(f"waited for {text!r}, saw {seen}")


def stop(process: SchedulerProcess) -> tuple[int, str]:
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, stdout


def shown(toolcrib: Program, job: str) -> JsonObject:
    outcome = toolcrib("cron", "show", job, "--json")
    assert outcome.code == 0, outcome.stderr
    facts: JsonObject = json.loads(outcome.stdout)
    return facts


def states(toolcrib: Program, job: str) -> list[str]:
    return [run["state"] for run in shown(toolcrib, job)["run_list"]]


@pytest.mark.parametrize("command", ["list", "show", "serve"])
def test_looking_at_an_empty_home(toolcrib: Program, command: str) -> None:
    """Without jobs the commands say so and what to type, and looking leaves no file behind."""
    arguments = {"list": ["list"], "show": ["show", "harbour"], "serve": ["serve", "--once"]}[command]

    outcome = toolcrib("cron", *arguments)

    assert outcome.code == (2 if command == "show" else 0)
    assert "`toolcrib cron create" in outcome.stdout + outcome.stderr or "no job is due" in outcome.stdout
    assert not (toolcrib.home / "cron.db").exists()


def test_create_says_what_the_schedule_was_taken_for(toolcrib: Program) -> None:
    """The meaning, the zone, the next three times, and what has to run so that the job does."""
    outcome = toolcrib("cron", "create", "0 9 * * 1-5", "Sum up the mail", "--name", "mail", "--tz", "Europe/Berlin")

    assert outcome.code == 0
    assert "at 09:00 on Monday through Friday (Europe/Berlin)" in outcome.stdout
    assert outcome.stdout.count("09:00:00") == 3
    assert "`toolcrib cron serve`" in outcome.stderr


BAD = [
    (["create", "every now and then", "x"], "cannot parse the schedule 'every now and then'"),
    (["create", "every 2h"], "the `prompt` is empty"),
    (["create", "every 2h", "x", "--deliver", "telegram"], "no messaging platform with that name is configured"),
    (["create", "every 2h", "x", "--tz", "Berlin"], "did you mean 'Europe/Berlin'"),
    (["create", "every 2h", "x", "--toolsets", "termnal"], "did you mean 'terminal'"),
    (["create", "every 2h", "x", "--skill", "data-analysys"], "did you mean 'data-analysis'"),
    (["update", "harbour", "--skill", "data-analysys"], "did you mean 'data-analysis'"),
    (["create", "every 2h", "x", "--no-agent"], "needs a `script`"),
    (["pause", "harbor"], "did you mean 'harbour'"),
    (["update", "harbour"], "nothing to change"),
    (["remove", "harbour"], "add `--yes`"),
    (["resume", "harbour"], "is not paused"),
]


@pytest.mark.parametrize(("arguments", "because"), BAD, ids=[because for _, because in BAD])
def test_what_cannot_be_done_is_one_line(toolcrib: Program, arguments: list[str], because: str) -> None:
    """A mistake is said in one line on stderr that says what to type, with exit code 2."""
    toolcrib("cron", "create", "every 1h", "x", "--name", "harbour")

    outcome = toolcrib("cron", *arguments)

    assert (outcome.code, outcome.stdout) == (2, "")
    assert because in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert "`" in outcome.stderr


def test_a_job_cannot_name_a_disabled_skill(toolcrib: Program) -> None:
    """A run would not find the skill, so the job is refused when it is made."""
    toolcrib.write("config.yaml", "skills: {disabled: [data-analysis]}\n")

    made = toolcrib("cron", "create", "every 2h", "x", "--skill", "data-analysis")

    assert made.code == 2
    assert "toolcrib skills list" in made.stderr


def test_a_job_from_its_making_to_its_end(toolcrib: Program, scripted: Callable[..., None]) -> None:
    """Make it, see it, change it, let it rest, run it now, see the result, remove it."""
    scripted({"say": "A boat."})
    toolcrib("cron", "create", "every 2h", "Look at the harbour", "--name", "harbour")

    listed = toolcrib("cron", "list")
    assert "harbour" in listed.stdout
    assert "No scheduler is running" in listed.stderr
    assert "at 08:00 every day" in toolcrib("cron", "update", "harb", "--schedule", "0 8 * * *").stdout
    assert "Paused the job" in toolcrib("cron", "pause", "harbour").stdout
    assert json.loads(toolcrib("cron", "list", "--json").stdout)[0]["state"] == "paused"
    assert "next run: " in toolcrib("cron", "resume", "harbour").stdout

    ran = toolcrib("cron", "run", "harbour")
    assert (ran.code, ran.stdout) == (0, "A boat.\n")
    text = toolcrib("cron", "show", "harbour").stdout
    assert "manual, session 20" in text
    assert "  A boat." in text
    assert "harbour" in toolcrib("sessions", "list", "--source", "cron").stdout

    assert toolcrib("cron", "remove", "harbour", "--yes").stdout == "Deleted the job 'harbour'.\n"
    assert json.loads(toolcrib("cron", "list", "--json").stdout) == []


def test_a_run_that_fails_has_an_exit_code(toolcrib: Program) -> None:
    """What a script printed is on stdout, what went wrong on stderr; a dangerous one is foretold and denied."""
    toolcrib("cron", "create", "every 2h", "--script", "echo half; exit 3", "--no-agent", "--name", "half")
    made = toolcrib("cron", "create", "every 2h", "--script", "rm -rf ~/boats", "--no-agent", "--name", "bad")

    half, bad = toolcrib("cron", "run", "half"), toolcrib("cron", "run", "bad")

    assert (half.code, half.stdout) == (1, "half\n")
    assert "it ended with exit code 3" in half.stderr
    assert "Its command would be denied" in made.stderr
    assert (bad.code, bad.stdout) == (1, "")
    assert "no one is available to approve it" in bad.stderr


def test_serve_once_runs_what_is_due(toolcrib: Program) -> None:
    """With --once, what is due is run, each with a line at its beginning and its end, and the program ends."""
    toolcrib("cron", "create", "in 1s", "--script", "echo boat > seen", "--no-agent", "--name", "harbour")
    wait_until_due(toolcrib)

    outcome = toolcrib("cron", "serve", "--once")

    assert outcome.code == 0
    assert [line.split(" ", 2)[2].rpartition(" after ")[0] or line for line in outcome.stdout.splitlines()][1:] == [
        "harbour: run 1 succeeded"
    ]
    assert (toolcrib.root / "seen").read_text() == "boat\n"
    assert shown(toolcrib, "harbour")["state"] == "done"


def wait_until_due(toolcrib: Program) -> None:
    """Comes back when the time of the latest job has come; it was made a second ago at the least."""
    facts = json.loads(toolcrib("cron", "list", "--json").stdout)[0]
    assert facts["next_runs"]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while "is due" not in toolcrib("cron", "list").stderr:
        assert time.monotonic() < deadline


def test_several_schedulers_run_each_moment_once(toolcrib: Program, serve: Callable[..., SchedulerProcess]) -> None:
    """Three schedulers of one home begin a due job once between them, and end when they are told to."""
    processes = [serve() for _ in range(3)]
    for process in processes:
        wait_for("scheduling 0 jobs", process)
    toolcrib("cron", "create", "in 1s", "--script", "echo boat >> seen", "--no-agent", "--name", "harbour")

    wait_for("harbour: run 1 succeeded", *processes)

    assert "No scheduler is running" not in toolcrib("cron", "list").stderr
    assert [stop(process)[0] for process in processes] == [0, 0, 0]
    assert (toolcrib.root / "seen").read_text() == "boat\n"
    assert states(toolcrib, "harbour") == ["ok"]


def test_a_killed_scheduler_leaves_a_lost_run(
    toolcrib: Program, serve: Callable[..., SchedulerProcess], scripted: Callable[..., None]
) -> None:
    """After kill -9 in the middle of a run it is shown as lost and not repeated, and the next run happens."""
    scripted({"delay_seconds": 60}, {"say": "Too late."})
    toolcrib("cron", "create", "every 1d", "Look at the harbour", "--name", "harbour")
    process = serve()
    wait_for("scheduling 1 job", process)
    ask_for_run(toolcrib, "harbour")
    wait_for("harbour: run 1 started", process)

    os.kill(process.pid, signal.SIGKILL)
    process.wait(DEADLINE_SECONDS)

    assert states(toolcrib, "harbour") == ["lost"]
    assert "it is not repeated automatically" in toolcrib("cron", "show", "harbour").stdout
    scripted({"say": "A boat."})
    assert "lost" in toolcrib("cron", "serve", "--once").stdout
    assert states(toolcrib, "harbour") == ["lost"]
    assert toolcrib("cron", "run", "harbour").stdout == "A boat.\n"
    assert states(toolcrib, "harbour") == ["ok", "lost"]


def ask_for_run(toolcrib: Program, job: str) -> None:
    """As the tool `cronjob` does it: the scheduler is to run it at once."""
    store = JobStore(toolcrib.home / "cron.db")
    store.request_run(store.find(job), time.time())
    store.close()


def test_two_signals_end_a_scheduler_at_once(
    toolcrib: Program, serve: Callable[..., SchedulerProcess], scripted: Callable[..., None]
) -> None:
    """The first lets runs go on for a moment, the second stops them; what they were is on record."""
    scripted({"delay_seconds": 60}, {"say": "Too late."})
    toolcrib("cron", "create", "every 1d", "Look at the harbour", "--name", "harbour")
    process = serve()
    wait_for("scheduling 1 job", process)
    ask_for_run(toolcrib, "harbour")
    wait_for("harbour: run 1 started", process)

    process.send_signal(signal.SIGINT)
    wait_for("stopping; 1 still running", process)
    code, stdout = stop(process)

    assert code == 0
    assert "failed" in stdout
    (run,) = shown(toolcrib, "harbour")["run_list"]
    assert (run["state"], run["error"]) == ("failed", "the scheduler was stopped")


def test_a_home_that_cannot_be_written_is_named(toolcrib: Program) -> None:
    """A store that cannot be made is one line that names the file and what to do."""
    toolcrib.home.parent.mkdir(parents=True, exist_ok=True)
    toolcrib.home.mkdir()
    (toolcrib.home / "cron.db").mkdir()

    outcome = toolcrib("cron", "create", "every 2h", "x")

    assert outcome.code == 1
    assert f"cannot write to {str(toolcrib.home / 'cron.db')!r}" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_an_interrupted_run_is_on_record(toolcrib: Program, scripted: Callable[..., None]) -> None:
    """Ctrl-C stops a run in the foreground, which is on record as failed."""
    scripted({"delay_seconds": 60}, {"say": "Too late."})
    toolcrib("cron", "create", "every 1d", "Look at the harbour", "--script", "echo low water", "--name", "harbour")
    command = [sys.executable, "-m", "toolcrib", "cron", "run", "harbour"]
    process = subprocess.Popen(
        command, env=toolcrib.environment(), cwd=toolcrib.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + DEADLINE_SECONDS
    while states(toolcrib, "harbour") != ["running"]:
        assert time.monotonic() < deadline

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_SECONDS)

    assert process.returncode == 130
    assert states(toolcrib, "harbour") == ["failed"]


def test_jobs_are_completed_by_the_shell(toolcrib: Program) -> None:
    """Tab offers the names and ids of jobs."""
    toolcrib("cron", "create", "every 2h", "x", "--name", "harbour")

    offered = toolcrib(_TOOLCRIB_COMPLETE="bash_complete", COMP_WORDS="toolcrib cron show har", COMP_CWORD="3").stdout

    assert "plain,harbour" in offered


def test_the_folder_of_a_job_is_where_it_was_made(toolcrib: Program, tmp_path: Path) -> None:
    """A job works where it was made, wherever the scheduler runs; `--workdir` names another folder."""
    folder = tmp_path / "there"
    folder.mkdir()
    toolcrib("cron", "create", "every 2h", "--script", "pwd", "--no-agent", "--name", "here", cwd=folder)
    toolcrib(
        "cron", "create", "every 2h", "--script", "pwd", "--no-agent", "--name", "root", "--workdir", "..", cwd=folder
    )

    assert toolcrib("cron", "run", "here", "-q").stdout == f"{folder}\n"
    assert toolcrib("cron", "run", "root", "-q").stdout == f"{tmp_path}\n"
