"""Importing scheduled jobs: what arrives, what is changed and told, and what is left there with a reason."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.cron.hermes_import import ImportedJob, import_jobs, plan_jobs
from toolcrib.cron.store import JobStore

NOW = 1_800_000_000.0
PROVIDERS = frozenset({"openai", "gemini"})
DAILY = {"kind": "cron", "expr": "0 9 * * *", "display": "0 9 * * *"}


def job(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"id-{name}", "name": name, "prompt": f"do {name}", "schedule": DAILY, "skills": [], "deliver": "local",
        "repeat": {"times": None, "completed": 4}, "state": "scheduled", "enabled": True,
        "next_run_at": "2027-01-16T09:00:00Z", "last_status": "ok", "model": None, "provider": None, "script": None,
        **fields,
    }  # fmt: skip


class HermesJobs:
    """An old home with jobs, and a new one to import them into."""

    def __init__(self, root: Path) -> None:
        self.source = root / "hermes"
        self.settings = Settings(home=Home(root / "home"))
        (self.source / "cron").mkdir(parents=True)

    def write(self, *jobs: Any) -> None:
        self.write_text(json.dumps({"jobs": list(jobs), "updated_at": "2027-01-15T09:00:00Z"}))

    def write_text(self, text: str) -> None:
        (self.source / "cron/jobs.json").write_text(text)

    def store(self) -> JobStore:
        return JobStore(self.settings.home.cron_file)

    def plan(self) -> dict[str, ImportedJob]:
        with closing(self.store()) as store:
            return {one.name: one for one in plan_jobs(self.source, self.settings, store, PROVIDERS, NOW)}

    def bring(self) -> dict[str, Any]:
        """Import, and return the jobs by name."""
        with closing(self.store()) as store:
            assert import_jobs(plan_jobs(self.source, self.settings, store, PROVIDERS, NOW), store) == []
            return {one.name: one for one in store.jobs()}


@pytest.fixture
def hermes(tmp_path: Path) -> HermesJobs:
    return HermesJobs(tmp_path)


def test_a_job_arrives_with_its_schedule_prompt_and_options(hermes):
    """What both programs know carries over."""
    hermes.write(
        job("brief", skills=["news"], model="gpt-5", provider="google", repeat={"times": 10, "completed": 4}),
        job("often", schedule={"kind": "interval", "minutes": 90}, skill="old-style", enabled_toolsets=["web"]),
        job("later", schedule={"kind": "once", "run_at": "2027-06-01T10:00:00+02:00"}),
    )

    jobs = hermes.bring()

    brief = jobs["brief"]
    assert (brief.prompt, brief.schedule, brief.skills) == ("do brief", "0 9 * * *", ("news",))
    assert (brief.model, brief.provider, brief.repeat, brief.run_count) == ("gpt-5", "gemini", 10, 4)
    assert (brief.state, brief.next_run is not None) == ("active", True)
    assert (jobs["often"].schedule, jobs["often"].skills) == ("every 90m", ("old-style",))
    assert jobs["often"].toolsets == ("web",)
    assert jobs["later"].schedule == "2027-06-01T10:00:00+02:00"


def test_a_plan_writes_nothing(hermes):
    """The dry run does not even create the database."""
    hermes.write(job("brief"))

    hermes.plan()

    assert not hermes.settings.home.root.exists()


def test_importing_twice_gives_the_same_jobs(hermes):
    """Jobs of the same name are told apart in the same way each time."""
    hermes.write(job("brief"), job("brief", prompt="something else"), job("Brief", prompt="third"))
    first = hermes.bring()

    plan = hermes.plan()

    assert sorted(first) == ["Brief (3)", "brief", "brief (2)"]
    assert {one.action for one in plan.values()} == {"unchanged"}
    assert hermes.bring() == first


def test_a_job_of_that_name_that_is_here_stays(hermes):
    """Ours is not overwritten, and the conflict is named."""
    hermes.write(job("brief"))
    hermes.bring()
    hermes.write(job("brief", prompt="changed there"))

    assert hermes.plan()["cron: brief"].action == "keep ours"
    assert hermes.bring()["brief"].prompt == "do brief"


def test_a_paused_job_stays_paused_and_a_finished_one_is_left(hermes):
    """The state carries over; what has no runs left is not imported."""
    hermes.write(job("off", enabled=False), job("resting", state="paused"), job("over", state="completed"))

    plan, jobs = hermes.plan(), hermes.bring()

    assert {name: one.state for name, one in jobs.items()} == {"off": "paused", "resting": "paused"}
    assert plan["cron: over"].action == "not carried over"


def test_what_a_job_loses_is_told(hermes):
    """Platforms, unknown providers and unknown fields are named with the job."""
    hermes.write(job("brief", deliver="telegram:-100123", provider="unheard-of", base_url="http://127.0.0.1:1"))

    planned = hermes.plan()["cron: brief"]

    assert planned.action == "bring"
    assert "its results stay here instead of going to 'telegram'" in planned.reason
    assert "toolcrib has none named 'unheard-of'" in planned.reason
    assert "without base_url" in planned.reason
    assert "-100123" not in planned.reason
    assert hermes.bring()["brief"].deliver == "local"


def test_a_job_with_a_script_arrives_paused(hermes):
    """A script runs without anybody looking, so a person starts it first."""
    (hermes.source / "scripts").mkdir()
    script = hermes.source / "scripts" / "check mail.py"
    script.write_text("print('mail')")
    hermes.write(job("mail", script="check mail.py", no_agent=True), job("gone", script="gone.py"))

    plan, jobs = hermes.plan(), hermes.bring()

    assert (jobs["mail"].state, jobs["mail"].no_agent) == ("paused", True)
    assert jobs["mail"].script == f"python3 '{script}'"
    assert plan["cron: gone"].action == "not carried over"
    assert "gone.py" in plan["cron: gone"].reason


def test_jobs_that_build_on_each_other_still_do(hermes):
    """The ids are new here, and the order in the file does not matter."""
    hermes.write(
        job("report", context_from=["id-collect", "id-nobody"]),
        job("collect"),
        job("circle", context_from=["id-square"]),
        job("square", context_from=["id-circle"]),
    )

    jobs = hermes.bring()

    assert jobs["report"].context_from == (jobs["collect"].id,)
    assert len(jobs) == 4


def test_a_broken_job_does_not_stop_the_others(hermes):
    """Each has a line with the reason."""
    hermes.write(
        job("good"),
        "nonsense",
        job("no schedule", schedule=None),
        job("past", schedule={"kind": "once", "run_at": "2020-01-01"}),
        job("wrong", schedule={"kind": "cron", "expr": "61 * * * *"}),
        job("silent", prompt=""),
        {},
    )

    plan = hermes.plan()

    assert plan["cron: good"].action == "bring"
    assert [one.action for name, one in plan.items() if name != "cron: good"] == ["not carried over"] * 6
    assert all(one.reason for one in plan.values())
    assert list(hermes.bring()) == ["good"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1, 2",
        '"jobs"',
        "3",
        '{"jobs": 5}',
        "[" * 100_000,
        "\ud800".encode("utf-8", "surrogatepass").decode("latin1"),
    ],
)
def test_a_broken_file_is_one_line(hermes, text: str):
    """Nothing is imported, and the file is named."""
    hermes.write_text(text)

    (planned,) = hermes.plan().values()

    assert (planned.name, planned.action) == ("cron/jobs.json", "not carried over")


def test_files_beside_the_jobs_are_named(hermes):
    """Results of earlier runs stay where they are."""
    (hermes.source / "cron/output/a1").mkdir(parents=True)
    (hermes.source / "cron/.tick.lock").write_text("")

    assert {name: one.action for name, one in hermes.plan().items()} == {
        "cron/.tick.lock": "left in place",
        "cron/output": "left in place",
    }


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)
FIELDS = st.sampled_from([*sorted(job("x")), "context_from", "workdir", "enabled_toolsets", "no_agent"])


@hypothesis_settings(max_examples=100, deadline=None)
@given(odd=st.lists(st.dictionaries(FIELDS, ODD, max_size=4), max_size=3))
def test_any_jobs_are_imported_or_explained(tmp_path_factory, odd):
    """Whatever a job holds, it arrives or has a reason, and the second import brings nothing."""
    hermes = HermesJobs(tmp_path_factory.mktemp("any"))
    hermes.write(*(job(f"job {number}") | fields for number, fields in enumerate(odd)))

    plan = hermes.plan()
    hermes.bring()

    assert all(one.reason or one.action in ("bring", "unchanged") for one in plan.values())
    assert "bring" not in {one.action for one in hermes.plan().values()}
