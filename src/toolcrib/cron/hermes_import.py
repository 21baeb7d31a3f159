"""Imports the scheduled jobs of a Hermes Agent home; a job that is already here stays unchanged."""

from __future__ import annotations

import json
import os
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.config.hermes_settings import PROVIDER_NAMES
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.cron.drafts import DERIVED_NAME_CHARS, NAME_CHARS, JobAuthor, JobDraft, new_job, pause_job
from toolcrib.cron.jobs import Job
from toolcrib.cron.store import JobStore

FOLDER = "cron"
JOBS_FILE = "jobs.json"
MAX_FILE_BYTES = 50_000_000
INTERPRETERS = {".py": "python3", ".sh": "bash", ".bash": "bash"}
KNOWN_FIELDS = frozenset(
    {
        *("id", "name", "prompt", "schedule", "schedule_display", "skill", "skills", "model", "provider", "script"),
        *("no_agent", "repeat", "enabled", "state", "deliver", "workdir", "enabled_toolsets", "context_from"),
        *("attach_to_session", "origin", "created_at", "updated_at", "next_run_at", "last_run_at", "last_status"),
        *("last_error", "last_delivery_error", "paused_at", "paused_reason"),
    }
)
"""The fields of a job that are imported, or that only say how it ran so far."""


class ImportedJob(Struct, frozen=True):
    """What happens to one job, or to a file beside the jobs."""

    name: str
    action: Literal["bring", "keep ours", "unchanged", "not carried over", "left in place"]
    reason: str = ""
    job: Job | None = None
    context: tuple[str, ...] = ()
    """The names of the jobs whose output it gets."""


def plan_jobs(
    source: Path, settings: Settings, store: JobStore, known_providers: Collection[str], now: float
) -> list[ImportedJob]:
    """What would be imported from a Hermes Agent home; only reads."""
    folder = source / FOLDER
    if not os.path.lexists(folder):
        return []
    if not folder.is_dir():
        return [ImportedJob(FOLDER, "not carried over", "it is not a folder")]
    found = list(_other_files(folder))
    try:
        written = _read_jobs(folder / JOBS_FILE)
    except UsageError as error:
        return [ImportedJob(f"{FOLDER}/{JOBS_FILE}", "not carried over", str(error)), *found]
    plan = _JobPlan(source, settings, store, known_providers, now)
    return [*plan.jobs(written), *found]


def import_jobs(plan: Iterable[ImportedJob], store: JobStore) -> list[str]:
    """Store the planned jobs; returns a sentence for each that failed."""
    problems = []
    for planned in plan:
        if planned.job is None or planned.action != "bring":
            continue
        try:
            # The jobs whose output it gets come before it, or are already here.
            context = tuple(store.find(name).id for name in planned.context)
            store.add(replace(planned.job, context_from=context))
        except ToolcribError as error:
            problems.append(f"could not import the job {planned.job.name!r} ({error})")
    return problems


def _other_files(folder: Path) -> Iterator[ImportedJob]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        yield ImportedJob(FOLDER, "not carried over", f"it cannot be read ({error.strerror})")
        return
    for entry in entries:
        if entry.name != JOBS_FILE:
            reason = "results of earlier runs" if entry.name == "output" else "it belongs to Hermes Agent's scheduler"
            yield ImportedJob(f"{FOLDER}/{entry.name}", "left in place", reason)


def _read_jobs(file: Path) -> list[Any]:
    """The jobs as written; raises UsageError if the file cannot be used."""
    try:
        about = file.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE_BYTES:
            raise UsageError("it is not a file of jobs")
        data = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        if file.is_symlink():
            raise UsageError("it is a link to nowhere") from error
        return []
    except OSError as error:
        raise UsageError(f"it cannot be read ({error.strerror}); check its permissions and import again") from error
    except (ValueError, RecursionError) as error:
        raise UsageError("it is not valid JSON; correct it and import again") from error
    jobs = data.get("jobs") if isinstance(data, dict) else data
    if isinstance(jobs, dict):
        jobs = [{"id": key, **job} if isinstance(job, dict) else job for key, job in jobs.items()]
    if not isinstance(jobs, list):
        raise UsageError("it has no list of jobs; correct it and import again")
    return jobs


class _JobPlan:
    """Turns the jobs of one file into ours."""

    def __init__(
        self, source: Path, settings: Settings, store: JobStore, known_providers: Collection[str], now: float
    ) -> None:
        self._source = source
        self._settings = settings
        self._store = store
        self._providers = {*known_providers, *settings.providers}
        self._now = now
        self._here = {job.name.casefold(): job for job in store.jobs()}

    def jobs(self, written: list[Any]) -> list[ImportedJob]:
        names = self._names(written)
        by_id = {str(job.get("id")): names[at] for at, job in enumerate(written) if isinstance(job, dict)}
        planned = [self._plan(job, names[at], by_id) for at, job in enumerate(written)]
        return list(_in_order(planned))

    def _names(self, written: list[Any]) -> list[str]:
        """A name for each job that no other has; the same at every import."""
        names: list[str] = []
        taken: set[str] = set()
        for number, job in enumerate(written, 1):
            wanted = _clean_name(job) if isinstance(job, dict) else f"job {number}"
            name, again = wanted, 2
            while name.casefold() in taken:
                ending = f" ({again})"
                name, again = wanted[: NAME_CHARS - len(ending)] + ending, again + 1
            taken.add(name.casefold())
            names.append(name)
        return names

    def _plan(self, written: Any, name: str, by_id: dict[str, str]) -> ImportedJob:
        label = f"{FOLDER}: {name}"
        if not isinstance(written, dict):
            return ImportedJob(label, "not carried over", "it is not a job")
        here = self._here.get(name.casefold())
        if here is not None:
            is_same = here.prompt == _text(written, "prompt") and here.name == name
            reason = "" if is_same else "another job with that name exists here"
            return ImportedJob(label, "unchanged" if is_same else "keep ours", reason)
        if written.get("state") == "completed":
            return ImportedJob(label, "not carried over", "it has run as often as it should")
        notes: list[str] = []
        try:
            draft = self._draft(written, name, notes)
            author = JobAuthor(folder=str(Path.home()))
            job = new_job(draft, author, self._settings, self._store, self._now)
        except UsageError as error:
            return ImportedJob(label, "not carried over", " ".join(str(error).split()))
        job = self._with_state(job, written, notes)
        context = self._context(written, by_id, notes)
        unknown = sorted(str(key) for key, value in written.items() if key not in KNOWN_FIELDS and value)
        notes += [f"without {', '.join(unknown)}, which toolcrib's jobs do not have"] if unknown else []
        return ImportedJob(label, "bring", "; ".join(notes), job, context)

    def _draft(self, written: dict[str, Any], name: str, notes: list[str]) -> JobDraft:
        repeat = written.get("repeat")
        times = repeat.get("times") if isinstance(repeat, dict) else repeat
        toolsets = written.get("enabled_toolsets")
        return JobDraft(
            name=name,
            schedule=_schedule(written),
            prompt=_text(written, "prompt"),
            repeat=times if isinstance(times, int) and not isinstance(times, bool) and times > 0 else None,
            deliver=self._deliver(written, notes),
            skills=_texts(written.get("skills") or written.get("skill")) or None,
            model=_text(written, "model") or None,
            provider=self._provider(written, notes),
            script=self._script(written, notes),
            no_agent=written.get("no_agent") is True or None,
            toolsets=_texts(toolsets) if isinstance(toolsets, list) and toolsets else None,
            workdir=_text(written, "workdir") or None,
        )

    def _deliver(self, written: dict[str, Any], notes: list[str]) -> str:
        wanted = written.get("deliver")
        if wanted not in (None, "", "local"):
            notes.append(f"its results stay here instead of going to {str(wanted).partition(':')[0]!r}")
        if written.get("attach_to_session"):
            notes.append("each run gets its own session")
        return "local"

    def _provider(self, written: dict[str, Any], notes: list[str]) -> str | None:
        wanted = _text(written, "provider").lower().removeprefix("custom:")
        if wanted in ("", "auto"):
            return None
        ours = wanted if wanted in self._providers else PROVIDER_NAMES.get(wanted, "")
        if ours not in self._providers:
            notes.append(f"with the provider of the config, because toolcrib has none named {wanted!r}")
            return None
        return ours

    def _script(self, written: dict[str, Any], notes: list[str]) -> str | None:
        """Scripts are files in the old home there and shell commands here."""
        script = _text(written, "script")
        if not script:
            return None
        file = self._source / "scripts" / Path(script).expanduser()
        if "\0" in script or not file.is_file():
            raise UsageError(f"its script {script!r} is not in {self._source / 'scripts'}")
        notes.append("paused, because it runs a script; read it, then run `toolcrib cron resume`")
        return shlex.join((INTERPRETERS.get(file.suffix, "bash"), str(file)))

    def _with_state(self, job: Job, written: dict[str, Any], notes: list[str]) -> Job:
        repeat = written.get("repeat")
        done = repeat.get("completed") if isinstance(repeat, dict) else 0
        if job.repeat is not None and isinstance(done, int) and 0 < done < job.repeat:
            job = replace(job, run_count=done)
        if written.get("enabled") is False or written.get("state") == "paused":
            notes.append("paused, as it is there")
            return pause_job(job, self._now)
        if job.script:
            return pause_job(job, self._now)
        notes.append("pause it there, or both programs run it")
        return job

    def _context(self, written: dict[str, Any], by_id: dict[str, str], notes: list[str]) -> tuple[str, ...]:
        wanted = _texts(written.get("context_from"))
        known = tuple(by_id[id] for id in wanted if id in by_id)
        if len(known) < len(wanted):
            notes.append("without the output of a job that does not exist")
        return known


def _in_order(planned: list[ImportedJob]) -> Iterator[ImportedJob]:
    """The jobs, each after those whose output it gets; what is not imported, or refers to itself, is left out there."""
    known = {one.name.removeprefix(f"{FOLDER}: "): one for one in planned}
    usable = {name for name, one in known.items() if one.action != "not carried over"}
    waiting = [replace(one, context=tuple(name for name in one.context if name in usable)) for one in planned]
    done = {name for name, one in known.items() if one.action != "bring"}
    while waiting:
        ready = [one for one in waiting if done.issuperset(one.context)]
        if not ready:
            # They wait for each other.
            ready = [replace(waiting[0], context=tuple(name for name in waiting[0].context if name in done))]
            waiting = waiting[1:]
        else:
            waiting = [one for one in waiting if not done.issuperset(one.context)]
        done.update(one.name.removeprefix(f"{FOLDER}: ") for one in ready)
        yield from ready


def _schedule(written: dict[str, Any]) -> str:
    """A schedule in our words; raises UsageError if it is none."""
    schedule = written.get("schedule")
    if isinstance(schedule, str):
        return schedule
    if isinstance(schedule, dict):
        kind = schedule.get("kind")
        minutes, expression = schedule.get("minutes"), schedule.get("expr")
        moment = schedule.get("run_at")
        if kind == "interval" and isinstance(minutes, int) and not isinstance(minutes, bool) and minutes > 0:
            return f"every {minutes}m"
        if kind == "cron" and isinstance(expression, str):
            return expression
        if kind == "once" and isinstance(moment, str):
            return moment
    raise UsageError("its schedule is none that toolcrib knows")


def _clean_name(written: dict[str, Any]) -> str:
    text = _text(written, "name") or _text(written, "prompt")[:DERIVED_NAME_CHARS] or str(written.get("id") or "job")
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())[:NAME_CHARS].strip() or "job"


def _text(written: dict[str, Any], key: str) -> str:
    value = written.get(key)
    return value.strip() if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    return tuple(item for item in items if isinstance(item, str) and item)
