"""Runs of jobs: sessions of their own, under the policy for `cron`, with their results delivered."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolcrib.agent.agent import Agent
from toolcrib.agent.events import AnyEvent, TurnStarted
from toolcrib.agent.host import AgentHost
from toolcrib.agent.job_runner import JobRunner
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.core.cancel import CancelToken
from toolcrib.cron.drafts import JobAuthor, JobDraft, new_job
from toolcrib.cron.jobs import Job, RunOutcome
from toolcrib.cron.scheduler import run_with_timeout
from toolcrib.cron.store import JobStore
from toolcrib.sessions.store import SessionStore
from toolcrib.testing import ScriptedProvider, says

NOW = 1_800_000_000.0
RAW_SERVER = Path(__file__).parents[1] / "mcp" / "servers" / "raw_server.py"


@pytest.fixture
def jobs(home: Path) -> Iterator[JobStore]:
    home.mkdir()
    store = JobStore(home / "cron.db")
    yield store
    store.close()


@pytest.fixture
def sessions(home: Path) -> Iterator[SessionStore]:
    store = SessionStore(home / "sessions.db")
    yield store
    store.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def script(home: Path) -> Callable[..., None]:
    """What the model says and calls in the next run; further settings as lines of config.yaml."""

    def write(*steps: dict[str, Any], config: str = "") -> None:
        (home / "script.json").write_text(json.dumps(steps))
        model = f"model: {{provider: scripted}}\nproviders: {{scripted: {{base_url: {home / 'script.json'}}}}}\n"
        (home / "config.yaml").write_text(model + config)

    return write


@pytest.fixture
def make_job(jobs: JobStore, home: Path, workspace: Path) -> Callable[..., Job]:
    def make(*, author: JobAuthor | None = None, **wishes: Any) -> Job:
        wish = JobDraft(**{"schedule": "every 1h", "prompt": "Look at the harbour", "timezone": "UTC", **wishes})
        settings = load_settings(Home(home))
        return jobs.add(new_job(wish, author or JobAuthor(folder=str(workspace)), settings, jobs, NOW))

    return make


@pytest.fixture
def run(jobs: JobStore, home: Path) -> Callable[..., Any]:
    """Runs a job now; gives the report, which is on record."""

    async def execute(job: Job, cancel: CancelToken | None = None) -> RunOutcome:
        claim = jobs.claim_now(job, NOW)
        runs = JobRunner(jobs, lambda: load_settings(Home(home)))
        report = await runs.execute(claim, cancel or CancelToken())
        jobs.finish(claim.run, report, NOW + 1, keep_runs=10)
        return report

    return execute


Run = Callable[..., Any]
MakeJob = Callable[..., Job]
Script = Callable[..., None]


async def test_a_run_is_a_session_of_its_own(
    make_job: MakeJob, run: Run, script: Script, sessions: SessionStore
) -> None:
    """The answer is the result; the session says that it is one of a job, and of which."""
    script({"say": "A boat."})
    job = make_job(name="harbour")

    report = await run(job)

    assert (report.state, report.output) == ("ok", "A boat.")
    session = sessions.get(report.session_id)
    assert (session.source, session.title, session.cwd) == ("cron", "harbour", job.workdir)
    asked = sessions.messages(session.id)[0].message.text
    assert asked.endswith("Look at the harbour")
    assert "scheduled run of the job 'harbour'" in asked


async def test_nobody_agrees_to_what_is_dangerous(
    make_job: MakeJob, run: Run, script: Script, sessions: SessionStore, tmp_path: Path
) -> None:
    """What would be asked about is denied, and the model is told so."""
    kept = tmp_path / "kept"
    kept.mkdir()
    script({"call": "terminal", "arguments": {"command": f"rm -rf {kept}"}}, {"say": "I could not."})

    report = await run(make_job())

    assert kept.exists()
    (denied,) = [one.message for one in sessions.messages(report.session_id) if one.message.role == "tool"]
    assert denied.status == "blocked"
    assert "no one is available to approve it" in denied.text


MAILER = """
from toolcrib import Effect, registry

def send(args, **_):
    with open({path!r}, "w") as stream:
        stream.write(args["to"])
    return "sent"

parameters = {{"type": "object", "properties": {{"to": {{"type": "string"}}}}}}
effects = (Effect("publish", delicate={{"/to": "destination"}}),)
registry.register("send_mail", "mailer", {{"parameters": parameters}}, send, effects=effects)
"""


@pytest.mark.parametrize("by_person", [True, False])
async def test_a_prompt_vouches_for_its_values_only_if_a_person_wrote_it(
    make_job: MakeJob, run: Run, script: Script, home: Path, workspace: Path, by_person: bool
) -> None:
    """A job that a model scheduled runs with the words of nobody, so it may not mail anyone."""
    sent = workspace / "sent"
    (home / "tools").mkdir()
    (home / "tools" / "mailer.py").write_text(MAILER.format(path=str(sent)))
    script({"call": "send_mail", "arguments": {"to": "bob@corp.example"}}, {"say": "Done."})
    author = JobAuthor(folder=str(workspace), is_person=by_person)

    await run(make_job(author=author, prompt="Mail bob@corp.example", toolsets=("mailer",)))

    assert sent.exists() == by_person


async def test_the_policy_for_cron_counts(make_job: MakeJob, run: Run, script: Script, tmp_path: Path) -> None:
    """Who sets `approvals.policies.cron` to allow has his jobs do what they want."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script(
        {"call": "terminal", "arguments": {"command": f"rm -rf {gone}"}},
        {"say": "Done."},
        config="approvals: {policies: {cron: allow}}\n",
    )

    assert (await run(make_job())).state == "ok"

    assert not gone.exists()


async def test_a_run_works_in_its_folder(make_job: MakeJob, run: Run, script: Script, workspace: Path) -> None:
    """Commands start in the job's folder, and may write there."""
    script({"call": "terminal", "arguments": {"command": "echo boat > seen.txt"}}, {"say": "Done."})

    await run(make_job())

    assert (workspace / "seen.txt").read_text() == "boat\n"


@pytest.mark.parametrize("tool", ["cronjob", "clarify"])
async def test_no_run_makes_jobs_or_asks(
    make_job: MakeJob, run: Run, script: Script, sessions: SessionStore, tool: str
) -> None:
    """`cronjob` and `clarify` are not there, even for a model that calls them."""
    arguments = {"action": "list"} if tool == "cronjob" else {"question": "Which boat?"}
    script({"call": tool, "arguments": arguments}, {"say": "No."})

    report = await run(make_job(toolsets=("all",)))

    (refused,) = [one.message for one in sessions.messages(report.session_id) if one.message.role == "tool"]
    assert f"Tool '{tool}' is not part of this session" in refused.text


async def test_a_run_has_the_tools_of_its_job(
    make_job: MakeJob, run: Run, script: Script, sessions: SessionStore, workspace: Path
) -> None:
    """Toolsets that a job does not name, and tools that its maker lacked, are not there."""
    call = {"call": "terminal", "arguments": {"command": "ls"}}
    maker = JobAuthor(folder=str(workspace), session="s", allowed_tools=frozenset({"todo", "process"}))

    for job in (make_job(toolsets=("todo",)), make_job(toolsets=("terminal",), author=maker)):
        script(call, {"say": "No."})
        report = await run(job)
        (refused,) = [one.message for one in sessions.messages(report.session_id) if one.message.role == "tool"]
        assert "not part of this session" in refused.text


async def test_a_run_has_those_tools_of_servers_that_its_maker_had(
    make_job: MakeJob, run: Run, script: Script, sessions: SessionStore, workspace: Path
) -> None:
    """A run waits for MCP servers; what its maker lacked of them is not there, whenever it comes."""
    server = {"command": sys.executable, "args": ["-S", "-E", str(RAW_SERVER)], "trust": "all"}
    maker = JobAuthor(folder=str(workspace), session="s", allowed_tools=frozenset({"mcp__s__echo"}))
    calls = [{"call": f"mcp__s__{name}", "arguments": {"text": "boat"}} for name in ("echo", "count")]

    told = []
    for author in (maker, None):
        script(*calls, {"say": "Done."}, config=f"mcp_servers: {json.dumps({'s': server})}\n")
        report = await run(make_job(toolsets=("mcp-s",), author=author))
        told.append([one.message.text for one in sessions.messages(report.session_id) if one.message.role == "tool"])

    assert all("boat" in texts[0] for texts in told)
    assert "not part of this session" in told[0][1]
    assert "not part of this session" not in told[1][1]


async def test_a_script_without_an_agent_is_the_result(
    make_job: MakeJob, run: Run, script: Script, sessions: SessionStore
) -> None:
    """No model is asked; the output of the command is the result, and its session tells of both."""
    script()
    report = await run(make_job(script="echo boat; pwd", no_agent=True, prompt=""))

    assert (report.state, report.output.splitlines()[0]) == ("ok", "boat")
    said = [one.message.text for one in sessions.messages(report.session_id)]
    assert said == ["echo boat; pwd", report.output]
    assert [call.status for call in sessions.calls(report.session_id)] == ["ok"]


async def test_a_script_that_fails_makes_the_run_fail(make_job: MakeJob, run: Run, script: Script) -> None:
    """The exit code is the error; what was printed is kept."""
    script()
    report = await run(make_job(script="echo half; exit 3", no_agent=True, prompt=""))

    assert (report.state, report.output.strip(), report.error) == ("failed", "half", "it ended with exit code 3")


async def test_a_dangerous_script_is_denied(make_job: MakeJob, run: Run, script: Script, tmp_path: Path) -> None:
    """The gate judges a script as any command; with an agent, the model is not even asked."""
    kept = tmp_path / "kept"
    kept.mkdir()
    script({"say": "Never said."})

    report = await run(make_job(script=f"rm -rf {kept}", no_agent=True, prompt=""))
    with_agent = await run(make_job(script=f"rm -rf {kept}"))

    assert kept.exists()
    assert with_agent.error.startswith("the script of the job was not run: ")
    assert report.state == "failed"
    assert "no one is available to approve it" in report.error


async def test_what_a_job_is_given_stands_before_its_prompt(
    make_job: MakeJob, run: Run, script: Script, sessions: SessionStore, home: Path
) -> None:
    """Skills, the latest results of other jobs and the output of its script come first, the prompt last."""
    skill = home / "skills" / "tides" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: tides\ndescription: High and low water\n---\nLook at the moon.\n")
    script({"say": "A boat."})
    first = make_job(name="first")
    await run(first)

    script({"say": "Two boats."})
    report = await run(
        make_job(name="second", skills=("tides",), context_from=("first",), script="expr 20 + 3; exit 1")
    )

    asked = sessions.messages(report.session_id)[0].message.text
    places = [
        asked.index(text) for text in ("Look at the moon.", "A boat.", "(exit code 1)", "23", "Look at the harbour")
    ]
    assert places == sorted(places)


async def test_a_skill_that_is_missing_is_named(make_job: MakeJob, run: Run, script: Script) -> None:
    """A run that cannot have what its job names does not begin."""
    script({"say": "Never said."})

    report = await run(make_job(skills=("tids",)))

    assert report.state == "failed"
    assert "the skill 'tids' of the job cannot be used" in report.error


async def test_a_folder_that_is_gone_is_named(make_job: MakeJob, run: Run, script: Script, workspace: Path) -> None:
    """A run does not work in another folder than the one that was meant."""
    script({"say": "Never said."})
    job = make_job()
    os.rmdir(workspace)  # noqa: PTH106 - nothing waits here

    report = await run(job)

    assert report.state == "failed"
    assert re.match(r"the job's folder '.*work' no longer exists", report.error)


async def test_a_run_that_was_stopped_is_delivered(
    jobs: JobStore, home: Path, make_job: MakeJob, script: Script, workspace: Path
) -> None:
    """A run whose time is over says so where its result would have gone, also to a command."""
    script()
    job = make_job(script="sleep 60", no_agent=True, prompt="", deliver="command:cat > told")
    runs, cancel = JobRunner(jobs, lambda: load_settings(Home(home))), CancelToken()

    report = await run_with_timeout(runs.execute, jobs.claim_now(job, NOW), cancel, 0.5)

    assert (report.state, report.note) == ("timed_out", "given to `cat > told`")
    assert "It failed: the run timed out" in (workspace / "told").read_text()


@pytest.mark.parametrize("broken", ["skill", "folder", "settings"])
async def test_a_run_that_cannot_begin_is_delivered(
    make_job: MakeJob, run: Run, script: Script, tmp_path: Path, home: Path, broken: str
) -> None:
    """Whoever waits for a result hears why there is none."""
    script({"say": "Never said."})
    (folder := tmp_path / "other").mkdir()
    job = make_job(deliver=f"file:{tmp_path / 'results'}", workdir=str(folder))
    if broken == "skill":
        job = make_job(deliver=job.deliver, skills=("tids",))
    elif broken == "folder":
        folder.rmdir()
    else:
        (home / "config.yaml").write_text("model: [\n")

    report = await run(job)

    assert report.state == "failed"
    assert f"It failed: {report.error}" in (tmp_path / "results").read_text()


async def test_a_model_that_fails_makes_the_run_fail(make_job: MakeJob, run: Run, script: Script) -> None:
    """The problem of the model is the error of the run."""
    script({"fail": "no more quota", "kind": "quota"})

    report = await run(make_job())

    assert report.state == "failed"
    assert "no more quota" in report.error


async def test_a_run_that_is_told_to_stop_stops(make_job: MakeJob, run: Run, script: Script) -> None:
    """The token reaches the agent, and what it said so far is reported."""
    script({"delay_seconds": 60}, {"say": "Too late."})
    cancel = CancelToken()
    cancel.cancel("the run timed out")

    report = await run(make_job(), cancel)

    assert (report.state, report.error) == ("failed", "the run timed out")


async def test_a_run_at_work_can_be_stopped(jobs: JobStore, home: Path, make_job: MakeJob, script: Script) -> None:
    """Told to stop while the model thinks, the agent leaves everything in order and says so."""
    script({"delay_seconds": 60}, {"say": "Too late."})
    cancel = CancelToken()

    def stop_at_first_turn(event: AnyEvent) -> None:
        if isinstance(event, TurnStarted):
            cancel.cancel("the run timed out")

    runs = JobRunner(jobs, lambda: load_settings(Home(home)), stop_at_first_turn)
    report = await runs.execute(jobs.claim_now(make_job(), NOW), cancel)

    assert (report.state, report.error) == ("failed", "the run timed out")


async def test_runs_can_go_on_with_a_session(
    make_job: MakeJob, run: Run, script: Script, sessions: SessionStore
) -> None:
    """With a session named, each run is a further question in it."""
    session = sessions.create(source="cli", title="Harbour")
    job = make_job(attach_to_session=session.id)
    for answer in ("A boat.", "Two boats."):
        script({"say": answer})
        assert (await run(job)).session_id == session.id

    said = [one.message.text for one in sessions.messages(session.id) if one.message.role == "assistant"]
    assert said == ["A boat.", "Two boats."]
    assert sessions.get(session.id).title == "Harbour"


async def test_results_are_added_to_a_file(make_job: MakeJob, run: Run, script: Script, workspace: Path) -> None:
    """Each result goes behind the one before; a failure is told, too."""
    script()
    job = make_job(script="test -e once && exit 3; touch once; echo boat", no_agent=True, prompt="", deliver="file:log")
    first, second = await run(job), await run(job)

    text = (workspace / "log").read_text()
    assert text.count("--- ") == 2
    assert text.index("boat") < text.index("It failed: it ended with exit code 3")
    assert {first.note, second.note} == {f"added to {workspace}/log"}
    assert (workspace / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("swap", ["link", "fifo", "folder"])
async def test_a_file_that_was_swapped_is_not_written(
    make_job: MakeJob, run: Run, script: Script, workspace: Path, tmp_path: Path, swap: str
) -> None:
    """What was no plain file, or behind no link, when the job was agreed to is not written, and nothing hangs."""
    script()
    job = make_job(script="echo boat", no_agent=True, prompt="", deliver="file:log")
    if swap == "link":
        (workspace / "log").symlink_to(tmp_path / "elsewhere")
    elif swap == "fifo":
        os.mkfifo(workspace / "log")
    else:
        (workspace / "log").mkdir()

    report = await run(job)

    assert report.state == "ok"
    assert report.note.startswith(f"not delivered to file:{workspace}/log: ")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.services
async def test_results_are_given_to_a_command(make_job: MakeJob, run: Run, script: Script, workspace: Path) -> None:
    """The command gets the result on its input, whatever it contains; a dangerous one is denied."""
    script({"say": "It's $HOME `id`\nRESULT 'two' \\ lines"})
    report = await run(make_job(deliver="command:cat > got.txt; echo ok"))

    assert (workspace / "got.txt").read_text() == "It's $HOME `id`\nRESULT 'two' \\ lines\n"
    assert report.note == "given to `cat > got.txt; echo ok`"

    script({"say": "rm -rf ~"})
    refused = await run(make_job(deliver="command:bash"))
    assert refused.note.startswith("not delivered to command:bash: ")


async def test_results_reach_the_session_that_made_the_job(
    make_job: MakeJob, run: Run, script: Script, sessions: SessionStore, home: Path, workspace: Path
) -> None:
    """With `origin` the session hears each result once, before its next question is answered."""
    origin = sessions.create(source="cli")
    script({"say": "A boat."})
    job = make_job(name="harbour", deliver="origin", author=JobAuthor(folder=str(workspace), session=origin.id))
    report = await run(job)
    assert report.note == f"left for session {origin.id}"

    provider = ScriptedProvider([says("I see."), says("Yes.")])
    async with AgentHost(home=home, model=provider) as host:
        agent = Agent(host=host, model=provider, session_id=origin.id)
        await agent.run("Anything new?")
        await agent.run("Really?")
        await agent.close()

    heard = [one.message.text for one in sessions.messages(origin.id) if "A boat." in one.message.text]
    assert len(heard) == 1
    assert heard[0].startswith("[Result of the scheduled job harbour, ")
