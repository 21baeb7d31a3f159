"""Turns a draft into a job that can be stored: every value is checked, and defaults are filled in."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec.structs import replace

from toolcrib.config.environment import environment
from toolcrib.config.settings import Settings
from toolcrib.core.errors import SessionError, UsageError
from toolcrib.cron.delivery import parse_destination, stored_destination
from toolcrib.cron.jobs import Job, MissedPolicy
from toolcrib.cron.schedule import machine_zone, parse_schedule, zone_named
from toolcrib.cron.store import JobStore, rescheduled
from toolcrib.environments.specs import ON_THIS_MACHINE
from toolcrib.sessions.store import SessionStore

NAME_CHARS = 60
DERIVED_NAME_CHARS = 32
MAX_PROMPT_CHARS = 20_000
WRITING_TOOLS = frozenset({"write_file", "patch", "terminal"})


class JobDraft(msgspec.Struct, frozen=True, kw_only=True):
    """The options given for a job. None is not given: a new job gets the default, an existing one keeps its value."""

    schedule: str | None = None
    prompt: str | None = None
    name: str | None = None
    timezone: str | None = None
    repeat: int | None = None
    """0 means no limit."""
    missed: MissedPolicy | None = None
    deliver: str | None = None
    skills: tuple[str, ...] | None = None
    model: str | None = None
    provider: str | None = None
    script: str | None = None
    no_agent: bool | None = None
    context_from: tuple[str, ...] | None = None
    """Names or ids of jobs."""
    toolsets: tuple[str, ...] | None = None
    workdir: str | None = None
    attach_to_session: str | None = None


class JobAuthor(msgspec.Struct, frozen=True, kw_only=True):
    """Who creates or changes a job."""

    folder: str
    """Their working folder: relative paths start here, and new jobs work here."""
    session: str = ""
    """Empty for a person at the command line."""
    is_person: bool = False
    allowed_tools: frozenset[str] | None = None


def new_job(draft: JobDraft, author: JobAuthor, settings: Settings, store: JobStore, now: float) -> Job:
    """Create a job from a draft, without storing it; raises UsageError if it is not valid."""
    if draft.schedule is None:
        raise UsageError("the schedule is missing; give one such as `every 2h` or `0 9 * * 1-5`")
    blank = Job(id="", name="", schedule=draft.schedule, since=now, workdir=author.folder, created_at=now)
    job = _apply_draft(blank, draft, author, settings, store)
    job = _set_schedule(job, draft, settings, now)
    if not job.name:
        job = replace(job, name=_derive_name(job.prompt or job.script, store))
    return rescheduled(_limit_tools(job, author), now)


def update_job(job: Job, draft: JobDraft, author: JobAuthor, settings: Settings, store: JobStore, now: float) -> Job:
    """Apply a draft to a job; the next run is recomputed if the schedule changed."""
    changed = replace(_apply_draft(job, draft, author, settings, store), updated_at=now)
    if draft.schedule is not None or draft.timezone is not None:
        changed = _set_schedule(replace(changed, schedule=draft.schedule or job.schedule), draft, settings, now)
    changed = _limit_tools(changed, author)
    if (changed.schedule, changed.timezone, changed.since) != (job.schedule, job.timezone, job.since):
        changed = replace(changed, run_count=0)
        return changed if job.state == "paused" else rescheduled(changed, now)
    if changed.repeat != job.repeat and job.state != "paused":
        return rescheduled(changed, now)
    return changed


def _apply_draft(job: Job, draft: JobDraft, author: JobAuthor, settings: Settings, store: JobStore) -> Job:
    """Apply the options of a draft, each checked on its own and against the others."""
    given = {name: getattr(draft, name) for name in ("skills", "model", "provider", "script", "no_agent", "toolsets")}
    changes = {name: value for name, value in given.items() if value is not None}
    if draft.name is not None:
        changes["name"] = _checked_name(draft.name)
    if draft.prompt is not None:
        changes["prompt"] = draft.prompt.strip()
        changes["prompt_by_person"] = author.is_person
    if draft.missed is not None:
        changes["missed"] = draft.missed
    if draft.repeat is not None:
        if draft.repeat < 0:
            raise UsageError(f"a job cannot run {draft.repeat} times; use 1 or more, or 0 for no limit")
        changes["repeat"] = draft.repeat or None
    if draft.workdir is not None:
        changes["workdir"] = _checked_folder(draft.workdir, author, settings)
    if draft.deliver is not None:
        changes["deliver"] = str(parse_destination(draft.deliver, author.folder))
        changes["origin"] = author.session or job.origin
    if draft.context_from is not None:
        changes["context_from"] = tuple(store.find(name).id for name in draft.context_from)
    if draft.attach_to_session is not None:
        changes["attach_to_session"] = _session_id(draft.attach_to_session, author, settings)
    return _check_consistency(replace(job, **changes), author)


def _check_consistency(job: Job, author: JobAuthor) -> Job:
    if job.no_agent and not job.script:
        raise UsageError("a job without an agent needs a `script`, whose output is the result")
    if not job.prompt and not job.no_agent:
        raise UsageError("the `prompt` is empty; say what to do")
    if len(job.prompt) > MAX_PROMPT_CHARS:
        raise UsageError(f"the prompt has {len(job.prompt):,} characters; at most {MAX_PROMPT_CHARS:,} are allowed")
    if job.deliver == "origin" and not job.origin:
        raise UsageError(
            "there is no session to deliver to: `origin` works only for jobs created in a chat; use `local`"
        )
    if job.id and job.id in job.context_from:
        raise UsageError(
            f"the job {job.name!r} cannot use its own output as context; name other jobs in `context_from`"
        )
    if author.allowed_tools is not None:
        _refuse_escalation(job, author.allowed_tools)
    return job


def _refuse_escalation(job: Job, allowed: frozenset[str]) -> None:
    """Refuse a job that could do more on its own than its author can."""
    kind = stored_destination(job.deliver).kind
    if "terminal" not in allowed and (job.script or kind == "command"):
        what = "a script" if job.script else "a delivery command"
        raise UsageError(f"this session has no terminal, so its jobs cannot have {what}; leave it out")
    if kind == "file" and not allowed & WRITING_TOOLS:
        raise UsageError("this session cannot write files, so neither can its jobs; set `deliver` to local")


def _limit_tools(job: Job, author: JobAuthor) -> Job:
    """Limit the job to the tools of whoever creates or changes it."""
    if author.allowed_tools is None:
        return job
    allowed = author.allowed_tools
    if job.allowed_tools is not None:
        allowed &= frozenset(job.allowed_tools)
    return replace(job, allowed_tools=tuple(sorted(allowed)))


def _set_schedule(job: Job, draft: JobDraft, settings: Settings, now: float) -> Job:
    """Parse the schedule once and fix its time zone."""
    # An update keeps the job's zone; the machine's zone may have no name.
    name = draft.timezone or job.timezone or settings.cron.timezone
    zone = zone_named(name) if name else machine_zone(environment())
    text = " ".join(job.schedule.split())
    own = parse_schedule(text, zone, now).zone
    if draft.timezone and own != zone:
        raise UsageError(f"the schedule {text!r} already names a time zone; change it there, or remove it")
    return replace(job, schedule=text, timezone=str(getattr(own, "key", None) or name or ""), since=float(int(now)))


def _checked_name(name: str) -> str:
    name = " ".join(name.split())
    if not name or len(name) > NAME_CHARS or not name.isprintable():
        raise UsageError(f"{name[:NAME_CHARS]!r} is not a valid job name; use 1 to {NAME_CHARS} printable characters")
    return name


def _derive_name(text: str, store: JobStore) -> str:
    words = "".join(char if char.isprintable() else " " for char in text).split()
    name = words[0][:DERIVED_NAME_CHARS] if words else "job"
    for word in words[1:]:
        if len(name) + 1 + len(word) > DERIVED_NAME_CHARS:
            break
        name += f" {word}"
    taken = {job.name.casefold() for job in store.jobs()}
    numbers = (f"{name} {number}" for number in range(2, len(taken) + 3))
    return name if name.casefold() not in taken else next(one for one in numbers if one.casefold() not in taken)


def _checked_folder(folder: str, author: JobAuthor, settings: Settings) -> str:
    if "\0" in folder:
        raise UsageError(f"{folder!r} is not a valid path; remove the NUL byte")
    if settings.terminal.backend not in ON_THIS_MACHINE:
        return folder
    path = Path(os.path.realpath(Path(author.folder) / Path(folder).expanduser()))
    if not path.is_dir():
        raise UsageError(f"the folder {str(path)!r} does not exist; create it, or choose another one")
    return str(path)


def _session_id(wanted: str, author: JobAuthor, settings: Settings) -> str:
    if wanted.lower() in ("", "none", "new", "false"):
        return ""
    if wanted.lower() in ("this", "true"):
        if not author.session:
            raise UsageError("there is no session here to continue; name one from `toolcrib sessions list`")
        wanted = author.session
    if author.session and wanted != author.session:
        raise UsageError("a session's jobs can only continue that session: use `this`, or leave it out")
    store = SessionStore(settings.home.sessions_file)
    try:
        if store.database.exists:
            return store.get(wanted).id
    except SessionError as error:
        raise UsageError(str(error)) from error
    finally:
        store.close()
    raise UsageError(f"there is no session {wanted!r}; `toolcrib sessions list` lists all of them")


def pause_job(job: Job, now: float) -> Job:
    """Pause a job; raises UsageError for one that is done."""
    if job.state == "done":
        raise UsageError(
            f"the job {job.name!r} is done and will not run again; `toolcrib cron remove {job.id}` deletes it"
        )
    return replace(job, state="paused", next_run=None, asked_at=None, updated_at=now)


def resume_job(job: Job, now: float) -> Job:
    """Resume a job from now on; runs that were due while it was paused are not made up for."""
    if job.state == "active":
        raise UsageError(f"the job {job.name!r} is not paused; `toolcrib cron show {job.id}` shows its next run")
    again = rescheduled(replace(job, state="active", updated_at=now), now)
    if again.state == "done":
        raise UsageError(f"the job {job.name!r} has no runs left; give it a new schedule with update")
    return again
