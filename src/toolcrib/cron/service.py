"""The service behind the tool `cronjob`.

A job runs later, when nobody watches, so it gets no more than the session that creates it: at most that session's
tools, and never `cronjob` itself. Its prompt must not contain disguised instructions. Every change of the schedule has
the effect `schedule`, so the gate asks a person, once per change or once per session. A script and a delivery command
are also judged as commands; a delivery file, and a folder other than the session's, as paths that are written to.
Listing jobs has no effect.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.cron.delivery import parse_destination
from toolcrib.cron.drafts import JobAuthor, JobDraft, new_job, pause_job, resume_job, update_job
from toolcrib.cron.jobs import Job, describe_job, describe_run
from toolcrib.cron.store import JobStore
from toolcrib.environments.specs import ON_THIS_MACHINE
from toolcrib.registry.results import sendable, tool_error, tool_result
from toolcrib.sessions.injection_scan import OrderWording, ask_about_order, threat_in
from toolcrib.sessions.owners import session_owner

if TYPE_CHECKING:
    from toolcrib.core.context import Services

SCHEDULED = OrderWording(
    question="Schedule this prompt?",
    because="the job runs unattended",
    agree="Schedule it",
    undone="nothing was scheduled",
    unwanted="scheduled",
)
SHOWN_JOBS = 50
SHOWN_RUNS = 5
SHOWN_OUTPUT_CHARS = 4_000
SHOWN_PROMPT_CHARS = 200
NO_SCHEDULER = "No scheduler is running, so no job will run: tell the user to keep `toolcrib cron serve` running."
TEXTS = ("schedule", "prompt", "name", "deliver", "model", "script", "workdir", "attach_to_session")


class CronService:
    """The jobs in the home of one Runtime. Stateless: every call reads the database."""

    def __init__(self, settings: Settings, services: Services, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._services = services
        self._clock = clock
        self._actions = {
            "create": self._create,
            "list": self._list,
            "update": self._update,
            "pause": self._pause,
            "resume": self._resume,
            "run": self._run,
            "remove": self._remove,
        }

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """Run an action and return its result as JSON."""
        refusal = await self._ask_about_order(args, ctx)
        if refusal:
            return tool_error(refusal)
        # Another process may lock the database for a moment, and the loop must not wait for it.
        return await asyncio.to_thread(self._handle, args, ctx)

    def effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        """What a call changes, now and later."""
        action = str(args.get("action"))
        if action == "list":
            return ()
        about = [str(args[name]) for name in ("job_id", "name", "schedule") if args.get(name)]
        if action != "create":
            about += self._job_label(args, ctx)
        prompt = " ".join(str(args.get("prompt") or "").split())[:SHOWN_PROMPT_CHARS]
        effects = [Effect("schedule", " ".join([action, *about]) + (f": {prompt}" if prompt else ""))]
        if action in ("create", "update"):
            effects += self._later_effects(args, ctx)
        return tuple(effects)

    def _jobs_of(self, ctx: ToolContext) -> JobStore:
        """The jobs that a session may see: those of its owner."""
        home = self._settings.home
        return JobStore(home.cron_file, owner=session_owner(home, ctx.session_id))

    def _job_label(self, args: JsonObject, ctx: ToolContext) -> list[str]:
        """The job of a call, described for a person who does not know ids."""
        store = self._jobs_of(ctx)
        try:
            job = self._find_job(args, store)
            return [f"(the job {job.name!r}, {job.schedule})"]
        except ToolcribError:
            return []  # The handler reports that there is none.
        finally:
            store.close()

    def _later_effects(self, args: JsonObject, ctx: ToolContext) -> list[Effect]:
        """What runs of the job will do for certain, or may do without approval at that time."""
        commands, effects = [], []
        folder = self._folder(ctx)
        # The handler refuses an invalid path.
        if args.get("workdir") and "\0" not in str(args["workdir"]):
            where = self._services.terminal.execution_target(ctx)
            folder = os.path.join(folder or "/", os.path.expanduser(str(args["workdir"])))  # noqa: PTH111, PTH118
            folder = os.path.realpath(folder) if where.is_here else os.path.normpath(folder)
            if folder != (os.path.realpath(self._folder(ctx)) if where.is_here else ctx.cwd):
                effects.append(where.effect("write", f"{folder}/*"))
        if args.get("script"):
            commands.append(str(args["script"]))
        if args.get("deliver"):
            try:
                destination = parse_destination(str(args["deliver"]), self._folder(ctx))
            except UsageError:
                destination = None  # The handler reports what is wrong with it.
            if destination is not None and destination.kind == "command":
                commands.append(destination.target)
            if destination is not None and destination.kind == "file":
                effects.append(Effect("write", destination.target))
        if not commands:
            return effects
        terminal = self._services.terminal
        return effects + [terminal.effect_of({"command": one, "workdir": folder}, ctx) for one in commands]

    async def _ask_about_order(self, args: JsonObject, ctx: ToolContext) -> str:
        """Why a prompt may not be stored: it gives orders about approvals, secrets or tools, and nobody agreed."""
        prompt = str(args.get("prompt") or "")
        if threat_in(prompt) or args.get("action") not in ("create", "update"):
            return ""
        return await ask_about_order(prompt, SCHEDULED, ctx)

    def _handle(self, args: JsonObject, ctx: ToolContext) -> str:
        if ctx.effects is not None and ctx.effects != self.effects(args, ctx):
            return tool_error("a path changed after the call was approved; nothing was done, so try again")
        store = self._jobs_of(ctx)
        try:
            return sendable(tool_result(self._actions[args["action"]](args, ctx, store)))
        except ToolcribError as error:
            return tool_error(str(error))
        finally:
            store.close()

    # Actions

    def _create(self, args: JsonObject, ctx: ToolContext, store: JobStore) -> JsonObject:
        draft, author = self._draft(args), self._author(ctx)
        self._refuse_foreign_toolsets(draft.toolsets, ctx)
        job = new_job(draft, author, self._settings, store, self._clock())
        self._refuse_unknown_skills(job)
        return self._job_result(store.add(job), store, "The job was created; check that the next runs are as intended.")

    def _update(self, args: JsonObject, ctx: ToolContext, store: JobStore) -> JsonObject:
        before, draft = self._find_job(args, store), self._draft(args)
        self._refuse_foreign_toolsets(draft.toolsets, ctx)
        job = update_job(before, draft, self._author(ctx), self._settings, store, self._clock())
        if draft.skills:
            self._refuse_unknown_skills(job)
        return self._job_result(store.replace(job, before), store, "The job was changed.")

    def _list(self, args: JsonObject, _ctx: ToolContext, store: JobStore) -> JsonObject:
        if args.get("job_id"):
            job = self._find_job(args, store)
            runs = [describe_run(run, SHOWN_OUTPUT_CHARS) for run in store.runs(job, SHOWN_RUNS)]
            return {"job": self._facts(job), "runs": runs, **self._warning(store)}
        known, latest = store.jobs(), store.latest_runs()
        jobs = [
            {
                **self._facts(job),
                "prompt": job.prompt[:SHOWN_PROMPT_CHARS] + ("…" if len(job.prompt) > SHOWN_PROMPT_CHARS else ""),
                "last_run": describe_run(latest[job.id]) if job.id in latest else None,
            }
            for job in known[:SHOWN_JOBS]
        ]
        more = {"note": f"Only the first {SHOWN_JOBS} jobs are listed; use job_id for any other."}
        return {
            "jobs": jobs,
            "count": len(known),
            **(more if len(known) > SHOWN_JOBS else {}),
            **(self._warning(store) if jobs else {}),
        }

    def _pause(self, args: JsonObject, _ctx: ToolContext, store: JobStore) -> JsonObject:
        job = self._find_job(args, store)
        return self._job_result(
            store.replace(pause_job(job, self._clock()), job), store, "The job is paused until it is resumed."
        )

    def _resume(self, args: JsonObject, _ctx: ToolContext, store: JobStore) -> JsonObject:
        job = self._find_job(args, store)
        return self._job_result(store.replace(resume_job(job, self._clock()), job), store, "The job is active again.")

    def _run(self, args: JsonObject, _ctx: ToolContext, store: JobStore) -> JsonObject:
        job = self._find_job(args, store)
        store.request_run(job, self._clock())
        return self._job_result(
            job, store, "The scheduler runs it now in the background; list with its job_id shows the result."
        )

    def _remove(self, args: JsonObject, _ctx: ToolContext, store: JobStore) -> JsonObject:
        job = self._find_job(args, store)
        store.remove(job)
        return {"removed": job.name, "job_id": job.id}

    # Arguments

    def _find_job(self, args: JsonObject, store: JobStore) -> Job:
        wanted = str(args.get("job_id") or args.get("name") or "")
        if not wanted:
            raise UsageError("which job? Give its job_id, as shown by list")
        return store.find(wanted)

    def _draft(self, args: JsonObject) -> JobDraft:
        given: dict[str, Any] = {name: str(args[name]) for name in TEXTS if args.get(name) is not None}
        for name, key in (("skills", "skills"), ("context_from", "context_from"), ("enabled_toolsets", "toolsets")):
            if args.get(name) is not None:
                given[key] = tuple(dict.fromkeys(str(one).strip() for one in args[name]))
        for name in ("repeat", "no_agent"):
            if args.get(name) is not None:
                given[name] = args[name]
        for name in ("prompt", "name"):
            threat = threat_in(given.get(name, ""))
            if threat:
                raise UsageError(f"the {name} was refused: {threat}; a job runs unattended, so rephrase it")
        return JobDraft(**given)

    def _author(self, ctx: ToolContext) -> JobAuthor:
        allowed = None if ctx.allowed_tools is None else ctx.allowed_tools - {"cronjob"}
        return JobAuthor(folder=self._folder(ctx), session=ctx.session_id, allowed_tools=allowed)

    def _folder(self, ctx: ToolContext) -> str:
        """The session's working folder; empty if only another machine knows it."""
        if ctx.cwd or self._settings.terminal.backend not in ON_THIS_MACHINE:
            return ctx.cwd
        return os.path.abspath(os.curdir)  # noqa: PTH100 - `Path` would be asked for a folder that may be gone

    def _refuse_foreign_toolsets(self, toolsets: Sequence[str] | None, ctx: ToolContext) -> None:
        """A session can only pass on toolsets that it has."""
        resolver = self._services.tool_catalog.builder.resolver
        resolver.require(toolsets or ())
        for name in toolsets or ():
            if ctx.allowed_tools is not None and not ctx.allowed_tools.intersection(resolver.resolve_many([name])):
                raise UsageError(f"this session has no tools from the toolset {name!r}, so neither can its jobs")

    def _refuse_unknown_skills(self, job: Job) -> None:
        if job.skills:
            catalog = self._services.skills.catalog(job.workdir)
            for name in job.skills:
                catalog.get(name)

    # Results

    def _job_result(self, job: Job, store: JobStore, message: str) -> JsonObject:
        return {"job": self._facts(job), "message": message, **self._warning(store)}

    def _facts(self, job: Job) -> JsonObject:
        return describe_job(job, self._clock())

    def _warning(self, store: JobStore) -> JsonObject:
        return {} if store.scheduler() else {"warning": NO_SCHEDULER}
