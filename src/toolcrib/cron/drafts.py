"""From what somebody wishes to a job that can be kept: every value checked, and what was left out filled in."""

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
    """What was said about a job. None: nothing was said, so that a new job gets the default and an old one keeps it."""

    schedule: str | None = None
    prompt: str | None = None
    name: str | None = None
    timezone: str | None = None
    repeat: int | None = None
    """0 means without end."""
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
    """Who makes or changes a job."""

    folder: str
    """Where he works: relative paths start here, and new jobs work here."""
    session: str = ""
    """Empty for a person at the command line."""
    allowed_tools: frozenset[str] | None = None


def new_job(wish: JobDraft, author: JobAuthor, settings: Settings, store: JobStore, now: float) -> Job:
    """The job that was wished for, not kept yet; raises UsageError for what it cannot be."""
    if wish.schedule is None:
        raise UsageError("say when it is to run: give a schedule, as `every 2h` or `0 9 * * 1-5`")
    blank = Job(id="", name="", schedule=wish.schedule, since=now, workdir=author.folder, created_at=now)
    job = _with_wishes(blank, wish, author, settings, store)
    job = _scheduled(job, wish, settings, now)
    if not job.name:
        job = replace(job, name=_free_name(job.prompt or job.script, store))
    return rescheduled(_bounded(job, author), now)


def update_job(job: Job, wish: JobDraft, author: JobAuthor, settings: Settings, store: JobStore, now: float) -> Job:
    """The job with what was wished for; its next moment is counted anew where its schedule changed."""
    changed = replace(_with_wishes(job, wish, author, settings, store), updated_at=now)
    if wish.schedule is not None or wish.timezone is not None:
        changed = _scheduled(replace(changed, schedule=wish.schedule or job.schedule), wish, settings, now)
    changed = _bounded(changed, author)
    if (changed.schedule, changed.timezone, changed.since) != (job.schedule, job.timezone, job.since):
        changed = replace(changed, run_count=0)
        return changed if job.state == "paused" else rescheduled(changed, now)
    if changed.repeat != job.repeat and job.state != "paused":
        return rescheduled(changed, now)
    return changed


def _with_wishes(job: Job, wish: JobDraft, author: JobAuthor, settings: Settings, store: JobStore) -> Job:
    """The job with every plain wish in place, each checked by itself and against the others."""
    given = {name: getattr(wish, name) for name in ("skills", "model", "provider", "script", "no_agent", "toolsets")}
    changes = {name: value for name, value in given.items() if value is not None}
    if wish.name is not None:
        changes["name"] = _checked_name(wish.name)
    if wish.prompt is not None:
        changes["prompt"] = wish.prompt.strip()
    if wish.missed is not None:
        changes["missed"] = wish.missed
    if wish.repeat is not None:
        if wish.repeat < 0:
            raise UsageError(f"a job cannot run {wish.repeat} times; give 1 or more, or 0 for without end")
        changes["repeat"] = wish.repeat or None
    if wish.workdir is not None:
        changes["workdir"] = _checked_folder(wish.workdir, author, settings)
    if wish.deliver is not None:
        changes["deliver"] = str(parse_destination(wish.deliver, author.folder))
        changes["origin"] = author.session or job.origin
    if wish.context_from is not None:
        changes["context_from"] = tuple(store.find(name).id for name in wish.context_from)
    if wish.attach_to_session is not None:
        changes["attach_to_session"] = _session_id(wish.attach_to_session, author, settings)
    return _consistent(replace(job, **changes), author)


def _consistent(job: Job, author: JobAuthor) -> Job:
    if job.no_agent and not job.script:
        raise UsageError("a job without an agent needs a `script`, whose output is its result")
    if not job.prompt and not job.no_agent:
        raise UsageError("say what is to be done: the `prompt` is empty")
    if len(job.prompt) > MAX_PROMPT_CHARS:
        raise UsageError(
            f"the prompt is too long: {len(job.prompt):,} characters, and {MAX_PROMPT_CHARS:,} are allowed"
        )
    if job.deliver == "origin" and not job.origin:
        raise UsageError("there is no session to deliver to: `origin` is for jobs that are made in a chat; use `local`")
    if job.id and job.id in job.context_from:
        raise UsageError(f"the job {job.name!r} cannot have its own output as context; name others in `context_from`")
    if author.allowed_tools is not None:
        _refuse_more_power(job, author.allowed_tools)
    return job


def _refuse_more_power(job: Job, allowed: frozenset[str]) -> None:
    """What the job does by itself, its maker must be able to do."""
    kind = stored_destination(job.deliver).kind
    if "terminal" not in allowed and (job.script or kind == "command"):
        what = "a script" if job.script else "a command for the delivery"
        raise UsageError(f"this session has no terminal, so its jobs cannot have {what}; leave it out")
    if kind == "file" and not allowed & WRITING_TOOLS:
        raise UsageError("this session cannot write files, so its jobs cannot either; use `deliver` with local")


def _bounded(job: Job, author: JobAuthor) -> Job:
    """The job with no more tools than whoever makes or changes it has."""
    if author.allowed_tools is None:
        return job
    allowed = author.allowed_tools
    if job.allowed_tools is not None:
        allowed &= frozenset(job.allowed_tools)
    return replace(job, allowed_tools=tuple(sorted(allowed)))


def _scheduled(job: Job, wish: JobDraft, settings: Settings, now: float) -> Job:
    """The job with its schedule read once, in a zone that it keeps from now on."""
    # An update keeps the zone that the job has; the zone of the machine may be one without a name.
    name = wish.timezone or job.timezone or settings.cron.timezone
    zone = zone_named(name) if name else machine_zone(environment())
    text = " ".join(job.schedule.split())
    own = parse_schedule(text, zone, now).zone
    if wish.timezone and own != zone:
        raise UsageError(f"the schedule {text!r} names its time zone itself; change it there, or take it out")
    return replace(job, schedule=text, timezone=str(getattr(own, "key", None) or name or ""), since=float(int(now)))


def _checked_name(name: str) -> str:
    name = " ".join(name.split())
    if not name or len(name) > NAME_CHARS or not name.isprintable():
        raise UsageError(f"{name[:NAME_CHARS]!r} is no name for a job; use 1 to {NAME_CHARS} printable characters")
    return name


def _free_name(text: str, store: JobStore) -> str:
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
        raise UsageError(f"{folder!r} cannot be the path of a folder; write it without the zero byte")
    if settings.terminal.backend not in ON_THIS_MACHINE:
        return folder
    path = Path(os.path.realpath(Path(author.folder) / Path(folder).expanduser()))
    if not path.is_dir():
        raise UsageError(f"there is no folder {str(path)!r} to work in; create it, or name another one")
    return str(path)


def _session_id(wanted: str, author: JobAuthor, settings: Settings) -> str:
    if wanted.lower() in ("", "none", "new", "false"):
        return ""
    if wanted.lower() in ("this", "true"):
        if not author.session:
            raise UsageError("there is no session here to go on with; name one of `toolcrib sessions list`")
        wanted = author.session
    if author.session and wanted != author.session:
        raise UsageError("jobs of a session can only go on with that session: write `this`, or leave it out")
    store = SessionStore(settings.home.sessions_file)
    try:
        if store.database.exists:
            return store.get(wanted).id
    except SessionError as error:
        raise UsageError(str(error)) from error
    finally:
        store.close()
    raise UsageError(f"there is no session {wanted!r}; `toolcrib sessions list` shows all of them")


def pause_job(job: Job, now: float) -> Job:
    """The job at rest; refused for one that is done."""
    if job.state == "done":
        raise UsageError(
            f"the job {job.name!r} is done and does not run any more; `toolcrib cron remove {job.id}` deletes it"
        )
    return replace(job, state="paused", next_run=None, asked_at=None, updated_at=now)


def resume_job(job: Job, now: float) -> Job:
    """The job with its next moment from now on; what was due while it rested is not made up for."""
    if job.state == "active":
        raise UsageError(f"the job {job.name!r} is not paused; `toolcrib cron show {job.id}` says when it runs next")
    again = rescheduled(replace(job, state="active", updated_at=now), now)
    if again.state == "done":
        raise UsageError(f"the job {job.name!r} has no time left to run at; give it another schedule with update")
    return again
