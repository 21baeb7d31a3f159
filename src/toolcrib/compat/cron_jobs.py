"""`cron.jobs`: the jobs of the home as dicts. They run where `toolcrib cron serve` runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.core.types import JsonObject
from toolcrib.cron import drafts
from toolcrib.cron.drafts import JobAuthor, JobDraft
from toolcrib.cron.jobs import Job, JobError, JobRun, RunOutcome, format_moment, schedule_of
from toolcrib.cron.schedule import CronSchedule, DailySchedule, IntervalSchedule, OnceSchedule, Schedule, machine_zone
from toolcrib.cron.schedule import parse_schedule as parse_our_schedule
from toolcrib.cron.store import JobStore, rescheduled

_STATES = {"active": "scheduled", "paused": "paused", "done": "completed"}
_NOT_DELIVERED = "not delivered: "
_TEXTS = ("name", "prompt", "deliver", "model", "provider", "script", "workdir")
_UPDATABLE = frozenset(
    {*_TEXTS, "schedule", "skill", "skills", "context_from", "enabled_toolsets", "repeat", "no_agent", "enabled"}
    | {"state", "paused_reason", "attach_to_session", "base_url", "origin", "schedule_display"}
)
MINUTE = 60


class AmbiguousJobReference(LookupError):
    """A name matches more than one job."""


def create_job(
    prompt: str | None,
    schedule: str,
    name: str | None = None,
    repeat: int | None = None,
    deliver: str | None = None,
    origin: JsonObject | None = None,
    skill: str | None = None,
    skills: list[str] | None = None,
    model: str | None = None,
    provider: str | None = None,
    base_url: str | None = None,
    script: str | None = None,
    context_from: str | list[str] | None = None,
    enabled_toolsets: list[str] | None = None,
    workdir: str | None = None,
    no_agent: bool = False,
    attach_to_session: bool | None = None,
) -> JsonObject:
    """Store a new job; raises ValueError that says what is wrong with it."""
    if base_url:
        raise ValueError("a job cannot have an address of its own; add the server to `providers` in the config")
    given = {
        "name": name, "prompt": prompt, "schedule": schedule, "repeat": repeat, "deliver": deliver, "skill": skill,
        "skills": skills, "model": model, "provider": provider, "script": script, "context_from": context_from,
        "enabled_toolsets": enabled_toolsets, "workdir": workdir, "no_agent": no_agent or None,
        "attach_to_session": attach_to_session,
    }  # fmt: skip
    with _store() as store:
        settings = load_settings()
        draft = _draft({key: value for key, value in given.items() if value is not None})
        if draft.name is not None:
            draft = replace(draft, name=_free_name(draft.name, store))
        job = drafts.new_job(draft, _author(origin), settings, store, time.time())
        return _described(store.add(job), store)


def get_job(job_id: str) -> JsonObject | None:
    with _store() as store:
        job = _by_id(store, job_id)
        return None if job is None else _described(job, store)


def list_jobs(include_disabled: bool = False) -> list[JsonObject]:
    """The jobs that will run; with `include_disabled` also paused and completed ones."""
    with _store() as store:
        latest = store.latest_runs()
        jobs = [job for job in store.jobs() if include_disabled or job.state == "active"]
        return [_as_dict(job, latest.get(job.id)) for job in sorted(jobs, key=lambda job: job.created_at)]


def resolve_job_ref(ref: str) -> JsonObject | None:
    """The job with that id or name, in any case; None if there is none."""
    wanted = (ref or "").strip().casefold()
    with _store() as store:
        found = [job for job in store.jobs() if wanted in (job.id, job.name.casefold())]
        if len(found) > 1:
            raise AmbiguousJobReference(f"{ref!r} matches {', '.join(job.id for job in found)}; use an id")
        return _described(found[0], store) if found else None


def update_job(job_id: str, updates: JsonObject) -> JsonObject | None:
    """Change a job; None if there is none. Raises ValueError for fields that cannot be changed."""
    unknown = sorted(set(updates) - _UPDATABLE)
    if unknown:
        raise ValueError(f"these fields of a job cannot be changed: {', '.join(unknown)}")

    def change(job: Job, store: JobStore) -> Job:
        draft = _draft({key: value for key, value in updates.items() if key not in ("enabled", "state")})
        changed = drafts.update_job(job, draft, _author(updates.get("origin")), load_settings(), store, time.time())
        paused = updates.get("state") == "paused" or updates.get("enabled") is False
        if paused and changed.state == "active":
            return _paused(changed, str(updates.get("paused_reason") or ""))
        if changed.state == "paused" and (updates.get("state") == "scheduled" or updates.get("enabled") is True):
            return drafts.resume_job(changed, time.time())
        return changed

    return _change(job_id, change)


def pause_job(job_id: str, reason: str | None = None) -> JsonObject | None:
    """Pause a job; None if there is none."""
    return _change(job_id, lambda job, _: job if job.state == "paused" else _paused(job, reason or ""))


def resume_job(job_id: str) -> JsonObject | None:
    """Let a paused job run again, from now on; None if there is none."""
    return _change(job_id, lambda job, _: job if job.state == "active" else drafts.resume_job(job, time.time()))


def remove_job(job_id: str) -> bool:
    """Delete a job; False if there is none."""
    with _store() as store:
        job = _by_id(store, job_id)
        if job is not None:
            store.remove(job)
        return job is not None


def parse_schedule(schedule: str) -> JsonObject:
    """A schedule as a dict: once, interval or cron. Raises ValueError with examples."""
    now = time.time()
    try:
        return _schedule(parse_our_schedule(schedule, machine_zone(environment()), now), schedule)
    except UsageError as error:
        raise ValueError(str(error)) from error


def claim_job_for_fire(job_id: str, *, claim_ttl_seconds: int = 300) -> bool:  # noqa: ARG001 - a claim ends with its process
    """Start a run of a job now; False while another one runs, or if there is no such job."""
    with _store() as store:
        job = _by_id(store, job_id)
        if job is None:
            return False
        try:
            store.claim_now(job, time.time())
        except JobError:
            return False
        return True


def mark_job_run(job_id: str, success: bool, error: str | None = None, delivery_error: str | None = None) -> None:
    """Record how a run ended, the claimed one or a new one, and move the job on to its next run."""
    with _store() as store:
        job = _by_id(store, job_id)
        if job is None:
            return
        now = time.time()
        running = next((run for run in store.runs(job, 1) if run.state == "running"), None)
        run = running or store.claim_now(job, now).run
        note = f"{_NOT_DELIVERED}{delivery_error}" if delivery_error else ""
        outcome = RunOutcome(state="ok" if success else "failed", error=error or "", note=note)
        store.finish(run, outcome, now, keep_runs=load_settings().cron.keep_runs)
        if job.state == "active":
            store.replace(_after_run(job, now), job)


@contextmanager
def _store() -> Iterator[JobStore]:
    """The jobs of the home; whatever is wrong with a job is a ValueError here."""
    store = JobStore(load_settings().home.cron_file)
    try:
        yield store
    except ToolcribError as error:
        raise ValueError(str(error)) from error
    finally:
        store.close()


def _by_id(store: JobStore, job_id: str) -> Job | None:
    return next((job for job in store.jobs() if job.id == job_id), None)


def _change(job_id: str, change: Callable[[Job, JobStore], Job]) -> JsonObject | None:
    with _store() as store:
        job = _by_id(store, job_id)
        if job is None:
            return None
        changed = change(job, store)
        return _described(store.replace(changed, job) if changed != job else job, store)


def _paused(job: Job, reason: str) -> Job:
    return replace(drafts.pause_job(job, time.time()), paused_reason=reason)


def _after_run(job: Job, now: float) -> Job:
    counted = replace(job, run_count=job.run_count + 1)
    if isinstance(schedule_of(job), OnceSchedule):
        return replace(counted, state="done", next_run=None)
    return rescheduled(counted, now)


def _draft(given: JsonObject) -> JobDraft:
    """The options of a job, from the names and forms of the reference."""
    options: JsonObject = {name: str(given[name] or "") for name in _TEXTS if name in given}
    if "schedule" in given:
        options["schedule"] = _schedule_text(given["schedule"])
    if "repeat" in given:
        times = given["repeat"].get("times") if isinstance(given["repeat"], dict) else given["repeat"]
        options["repeat"] = int(times or 0)
    if given.get("no_agent") is not None:
        options["no_agent"] = bool(given["no_agent"])
    skills = given.get("skills") or ([given["skill"]] if given.get("skill") else None)
    for key, value in (("skills", skills), ("context_from", given.get("context_from"))):
        if value is not None:
            options[key] = tuple(_listed(value))
    if given.get("enabled_toolsets") is not None:
        options["toolsets"] = tuple(_listed(given["enabled_toolsets"]))
    if given.get("attach_to_session"):
        options["attach_to_session"] = "this"
    return JobDraft(**{key: value for key, value in options.items() if value != "" or key in ("prompt", "script")})


def _schedule_text(schedule: Any) -> str:
    if not isinstance(schedule, dict):
        return str(schedule)
    if schedule.get("kind") == "interval":
        return f"every {schedule['minutes']}m"
    return str(schedule.get("expr") or schedule.get("run_at") or schedule.get("display") or "")


def _listed(value: str | Sequence[Any]) -> list[str]:
    return [value] if isinstance(value, str) else [str(one).strip() for one in value]


def _author(origin: JsonObject | None) -> JobAuthor:
    session = str((origin or {}).get("session_id") or "")
    return JobAuthor(folder=os.path.abspath(os.curdir), session=session)  # noqa: PTH100 - the folder may be gone


def _free_name(name: str, store: JobStore) -> str:
    """The name, with a number if another job has it: ours are unique."""
    taken = {job.name.casefold() for job in store.jobs()}
    numbered = (f"{name} {number}" for number in range(2, len(taken) + 3))
    return name if name.casefold() not in taken else next(one for one in numbered if one.casefold() not in taken)


def _described(job: Job, store: JobStore) -> JsonObject:
    return _as_dict(job, next(iter(store.runs(job, 1)), None))


def _as_dict(job: Job, last: JobRun | None) -> JsonObject:
    schedule = _stored_schedule(job)
    ended = last is not None and last.finished_at is not None
    note = last.note.partition(_NOT_DELIVERED)[2] if last is not None else ""
    return {
        "id": job.id,
        "name": job.name,
        "prompt": job.prompt,
        "skills": list(job.skills),
        "skill": job.skills[0] if job.skills else None,
        "model": job.model or None,
        "provider": job.provider or None,
        "base_url": None,
        "script": job.script or None,
        "no_agent": job.no_agent,
        "context_from": list(job.context_from) or None,
        "schedule": schedule,
        "schedule_display": schedule["display"],
        "repeat": {"times": 1 if schedule["kind"] == "once" else job.repeat, "completed": job.run_count},
        "enabled": job.state == "active",
        "state": _STATES[job.state],
        "paused_at": _moment(job.updated_at) if job.state == "paused" else None,
        "paused_reason": job.paused_reason or None if job.state == "paused" else None,
        "created_at": _moment(job.created_at),
        "next_run_at": _moment(job.next_run),
        "last_run_at": _moment(last.started_at) if last is not None else None,
        "last_status": None if last is None or not ended else "ok" if last.state == "ok" else "error",
        "last_error": (last.error or None) if last is not None else None,
        "last_delivery_error": note or None,
        "deliver": job.deliver,
        "origin": {"session_id": job.origin} if job.origin else None,
        "enabled_toolsets": None if job.toolsets is None else list(job.toolsets),
        "workdir": job.workdir or None,
    }


def _stored_schedule(job: Job) -> JsonObject:
    try:
        return _schedule(schedule_of(job), job.schedule)
    except UsageError:
        # For example, it ran once and its moment is over.
        return {"kind": "once", "run_at": _moment(job.next_run), "display": job.schedule}


def _schedule(found: Schedule, text: str) -> JsonObject:
    if isinstance(found, CronSchedule):
        return {"kind": "cron", "expr": found.expression, "display": found.expression}
    if isinstance(found, (IntervalSchedule, DailySchedule)):
        seconds = found.seconds if isinstance(found, IntervalSchedule) else found.days * 24 * 60 * MINUTE
        return {"kind": "interval", "minutes": seconds // MINUTE, "display": f"every {seconds // MINUTE}m"}
    assert isinstance(found, OnceSchedule)
    written = " ".join(text.split())
    display = (
        f"once at {written}" if written[:1].isdigit() and "-" in written else f"once in {written.removeprefix('in ')}"
    )
    return {"kind": "once", "run_at": format_moment(found.at, found.zone), "display": display}


def _moment(moment: float | None) -> str | None:
    return None if not moment else format_moment(moment)
