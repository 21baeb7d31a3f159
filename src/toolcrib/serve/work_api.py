"""Background work and stored knowledge over the API: jobs, processes, memory and skills."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolcrib.agent.host import AgentHost
from toolcrib.core.types import JsonObject
from toolcrib.cron.drafts import JobAuthor, JobDraft, new_job, pause_job, resume_job, update_job
from toolcrib.cron.jobs import Job, describe_job, describe_run
from toolcrib.cron.store import JobStore
from toolcrib.processes.process import TrackedProcess
from toolcrib.serve.api_routes import LIMIT, ApiRoute, QueryParameter, body_of, limit_of, number_of
from toolcrib.serve.guard import identity_of
from toolcrib.serve.runs import RunManager, RunRefused
from toolcrib.serve.tokens import TokenIdentity
from toolcrib.sessions.memory import TARGETS, Author, MemoryOperation, MemoryStore, Target
from toolcrib.skills.authorship import SkillAuthorship
from toolcrib.skills.catalog import SkillCatalog
from toolcrib.skills.skill import Skill, read_text

SHOWN_RUNS = 20
SHOWN_OUTPUT_CHARS = 20_000
T = TypeVar("T")


class MemoryChangeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/memory`."""

    target: Target
    operations: tuple[MemoryOperation, ...]


class MemoryApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/memory/approve`."""

    target: Target
    entry: str


class WorkApi:
    """`/api/jobs`, `/api/processes`, `/api/memory` and `/api/skills`."""

    def __init__(self, host: AgentHost, runs: RunManager) -> None:
        self._host = host
        self._runs = runs

    def routes(self) -> list[ApiRoute]:
        job, process = "/api/jobs/{id}", "/api/processes/{id}"
        lines = QueryParameter("offset", "The first line; without it, the last lines.", "integer")
        return [
            ApiRoute(method="GET", path="/api/jobs", handler=self.jobs, summary="Scheduled jobs."),
            ApiRoute(method="POST", path="/api/jobs", handler=self.create_job, summary="Schedule a job.",
                     body=JobDraft, scope="admin", statuses=(201,)),
            ApiRoute(method="GET", path=job, handler=self.job, summary="A job and its latest runs.", query=(LIMIT,)),
            ApiRoute(method="PATCH", path=job, handler=self.update_job, summary="Change a job.", body=JobDraft,
                     scope="admin"),
            ApiRoute(method="DELETE", path=job, handler=self.delete_job, summary="Delete a job."),
            ApiRoute(method="POST", path=f"{job}/pause", handler=self.pause_job, summary="Pause a job."),
            ApiRoute(method="POST", path=f"{job}/resume", handler=self.resume_job, summary="Resume a job."),
            ApiRoute(method="POST", path=f"{job}/run", handler=self.run_job, summary="Run a job now.",
                     statuses=(202,)),
            ApiRoute(method="GET", path="/api/processes", handler=self.processes, summary="Background processes."),
            ApiRoute(method="GET", path=process, handler=self.process, summary="A process and its output.",
                     query=(lines, LIMIT)),
            ApiRoute(method="POST", path=f"{process}/kill", handler=self.kill, summary="End a process."),
            ApiRoute(method="GET", path="/api/memory", handler=self.memory, summary="What agents remember."),
            ApiRoute(method="POST", path="/api/memory", handler=self.change_memory, summary="Change memories.",
                     body=MemoryChangeRequest, scope="approve"),
            ApiRoute(method="POST", path="/api/memory/approve", handler=self.approve_memory, body=MemoryApproval,
                     scope="approve", summary="Make an agent's memory the person's own."),
            ApiRoute(method="GET", path="/api/skills", handler=self.skills, summary="Skills."),
            ApiRoute(method="GET", path="/api/skills/{name}", handler=self.skill, summary="A skill and its text."),
            ApiRoute(method="POST", path="/api/skills/{name}/approve", handler=self.approve_skill, scope="admin",
                     summary="Approve a skill that an agent wrote: agents follow it from now on."),
        ]  # fmt: skip

    # Jobs

    async def _with_jobs(self, request: Request, work: Callable[[JobStore], T]) -> T:
        """Work with the jobs of the token's owner, in a thread."""
        owner = identity_of(request.scope).owner

        def run() -> T:
            with closing(JobStore(self._host.settings.home.cron_file, owner=owner)) as store:
                return work(store)

        return await asyncio.to_thread(run)

    async def jobs(self, request: Request) -> Response:
        def read(store: JobStore) -> JsonObject:
            latest = store.latest_runs() if store.database.exists else {}
            rows = [
                {**self._job(job), "last_run": describe_run(latest[job.id]) if job.id in latest else None}
                for job in store.jobs()
            ]
            return {"jobs": rows, "has_scheduler": bool(store.database.exists and store.scheduler())}

        return JSONResponse(await self._with_jobs(request, read))

    async def job(self, request: Request) -> Response:
        limit = limit_of(request, SHOWN_RUNS)

        def read(store: JobStore) -> JsonObject:
            job = self._found(store, request)
            runs = [describe_run(run, SHOWN_OUTPUT_CHARS) for run in store.runs(job, limit)]
            return {**self._job(job), "latest_runs": runs}

        return JSONResponse(await self._with_jobs(request, read))

    async def create_job(self, request: Request) -> Response:
        draft = await body_of(request, JobDraft)
        self._host.runtime.toolsets.require(draft.toolsets or ())

        def create(store: JobStore) -> Job:
            return store.add(new_job(draft, self._author(), self._host.settings, store, time.time()))

        return JSONResponse(self._job(await self._with_jobs(request, create)), status_code=201)

    async def update_job(self, request: Request) -> Response:
        draft = await body_of(request, JobDraft)
        self._host.runtime.toolsets.require(draft.toolsets or ())

        def update(store: JobStore) -> Job:
            job = self._found(store, request)
            return store.replace(update_job(job, draft, self._author(), self._host.settings, store, time.time()), job)

        return JSONResponse(self._job(await self._with_jobs(request, update)))

    async def delete_job(self, request: Request) -> Response:
        def delete(store: JobStore) -> str:
            job = self._found(store, request)
            store.remove(job)
            return job.id

        return JSONResponse({"deleted": await self._with_jobs(request, delete)})

    async def pause_job(self, request: Request) -> Response:
        return await self._replaced(request, pause_job)

    async def resume_job(self, request: Request) -> Response:
        return await self._replaced(request, resume_job)

    async def _replaced(self, request: Request, change: Callable[[Job, float], Job]) -> Response:
        def replace(store: JobStore) -> Job:
            job = self._found(store, request)
            return store.replace(change(job, time.time()), job)

        return JSONResponse(self._job(await self._with_jobs(request, replace)))

    async def run_job(self, request: Request) -> Response:
        def ask(store: JobStore) -> Job:
            job = self._found(store, request)
            store.request_run(job, time.time())
            return job

        return JSONResponse(self._job(await self._with_jobs(request, ask)), status_code=202)

    def _found(self, store: JobStore, request: Request) -> Job:
        wanted = request.path_params["id"]
        found = [job for job in store.jobs() if job.id == wanted]
        if not found:
            raise RunRefused(f"there is no job {wanted!r}", 404)
        return found[0]

    def _author(self) -> JobAuthor:
        return JobAuthor(folder=self._host.runtime.workspace, is_person=True)

    def _job(self, job: Job) -> JsonObject:
        return describe_job(job, time.time())

    # Processes

    async def processes(self, request: Request) -> Response:
        found = await self._processes_of(identity_of(request.scope))
        service = self._host.runtime.terminal.processes if found else None
        listed = await service.act({"action": "list"}, None) if service is not None else {"processes": []}
        ids = {one.record.id: one.record.session_key for one in found}
        rows = [
            {**row, "id": row["session_id"], "session_id": ids[row["session_id"]]}
            for row in listed["processes"]
            if row["session_id"] in ids
        ]
        return JSONResponse({"processes": rows})

    async def process(self, request: Request) -> Response:
        args: JsonObject = {"action": "log", "limit": limit_of(request, 200)}
        if request.query_params.get("offset"):
            args["offset"] = number_of(request, "offset", 0)
        return JSONResponse(await self._act(request, args))

    async def kill(self, request: Request) -> Response:
        return JSONResponse(await self._act(request, {"action": "kill"}))

    async def _act(self, request: Request, args: JsonObject) -> JsonObject:
        wanted = request.path_params["id"]
        found = [one for one in await self._processes_of(identity_of(request.scope)) if one.record.id == wanted]
        if not found:
            raise RunRefused(f"there is no process {wanted!r}", 404)
        key = found[0].record.session_key
        answer = await self._host.runtime.terminal.processes.act({**args, "session_id": wanted}, key)
        return {**answer, "id": wanted, "session_id": key}

    async def _processes_of(self, identity: TokenIdentity) -> list[TrackedProcess]:
        """The processes of the sessions that a token reaches; those without a session are the terminal's."""
        if not self._host.runtime.has_terminal:
            return []
        found = self._host.runtime.terminal.processes.registry.list(None)

        def reached() -> set[str]:
            keys = {one.record.session_key for one in found}
            owners = self._host.store.owners(keys)
            mine = {key for key in keys if owners.get(key, "") == identity.owner}
            return {key for key in mine if self._runs.may_reach(key, identity)}

        keys = await asyncio.to_thread(reached)
        return [one for one in found if one.record.session_key in keys]

    # Memory and skills

    async def memory(self, request: Request) -> Response:
        store = self._memories(request)
        return JSONResponse(await asyncio.to_thread(_memories_shown, store))

    async def change_memory(self, request: Request) -> Response:
        wanted, store = await body_of(request, MemoryChangeRequest), self._memories(request)
        author = Author(who="person")
        await asyncio.to_thread(lambda: store.change(wanted.target, wanted.operations, by=author))
        return JSONResponse(await asyncio.to_thread(_memories_shown, store))

    async def approve_memory(self, request: Request) -> Response:
        wanted, store = await body_of(request, MemoryApproval), self._memories(request)
        await asyncio.to_thread(store.approve, wanted.target, wanted.entry)
        return JSONResponse(await asyncio.to_thread(_memories_shown, store))

    def _memories(self, request: Request) -> MemoryStore:
        return self._host.memories_of(identity_of(request.scope).owner)

    async def skills(self, request: Request) -> Response:
        catalog = await asyncio.to_thread(self._catalog)
        return JSONResponse({"skills": [_skill(one) for one in (*catalog.skills, *catalog.hidden)]})

    async def skill(self, request: Request) -> Response:
        def read() -> JsonObject:
            found = self._skill(request)
            return {**_skill(found), "text": read_text(found.folder, found.file.name)}

        return JSONResponse(await asyncio.to_thread(read))

    async def approve_skill(self, request: Request) -> Response:
        def approve() -> JsonObject:
            found = self._skill(request)
            if found.is_unreviewed:
                SkillAuthorship(self._host.settings.home).record_review(found.folder)
            return _skill(self._skill(request))

        return JSONResponse(await asyncio.to_thread(approve))

    def _skill(self, request: Request) -> Skill:
        wanted = request.path_params["name"]
        found = [one for one in self._catalog().skills if one.name == wanted]
        if not found:
            raise RunRefused(f"there is no skill {wanted!r}", 404)
        return found[0]

    def _catalog(self) -> SkillCatalog:
        runtime = self._host.runtime
        catalog: SkillCatalog = runtime.context().services.skills.catalog(runtime.workspace)
        return catalog


def _memories_shown(store: MemoryStore) -> JsonObject:
    rows = {}
    for target in TARGETS:
        entries, authors = store.entries(target), store.authors(target)
        rows[target] = {
            "entries": [{"text": one, "by": authors.get(one, "person")} for one in entries],
            "usage": store.usage(target, entries),
            "limit": store.limits[target],
        }
    return {"memory": rows}


def _skill(skill: Skill) -> JsonObject:
    return {
        "name": skill.name,
        "description": skill.description,
        "category": skill.category,
        "source": skill.source,
        "hidden_by": skill.hidden_by,
        "problem": skill.problem,
        "unreviewed": skill.is_unreviewed,
    }
