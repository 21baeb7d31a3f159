"""Runs of scheduled jobs: each is a session of its own, under the policy that the gate has for `cron`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec

from toolcrib.agent.agent import Agent
from toolcrib.agent.deliveries import Delivery, deliver
from toolcrib.agent.event_stream import OnEvent
from toolcrib.agent.events import RunResult
from toolcrib.agent.offer import default_toolsets
from toolcrib.agent.shell_call import ShellOutcome, run_in_shell
from toolcrib.agent.workshop import Workshop
from toolcrib.config.settings import Settings
from toolcrib.core.context import CancelToken
from toolcrib.core.errors import ToolcribError
from toolcrib.core.messages import Message, user_message
from toolcrib.cron.jobs import Job, JobError, RunOutcome, format_moment
from toolcrib.cron.store import Claim, JobStore
from toolcrib.environments.specs import ON_THIS_MACHINE
from toolcrib.registry.results import untrusted

FORBIDDEN_TOOLS = frozenset({"cronjob", "clarify"})
"""Jobs make no jobs, and there is nobody to ask."""
MAX_CONTEXT_CHARS = 20_000
PLATFORM = "cron"
SERVERS_SECONDS = 20.0
"""How long a run waits for MCP servers; nobody sits there waiting for it."""

FRAME = (
    "This is a scheduled run of the job {name!r}. Nobody watches it and nobody can be asked, so decide yourself. "
    "Your last message is kept as the result: let it stand for itself."
)


class ScheduledRuns:
    """Does the work of runs, for a scheduler or for a person who runs a job now."""

    def __init__(self, store: JobStore, load: Callable[[], Settings], on_event: OnEvent | None = None) -> None:
        self._store = store
        self._load = load
        self._on_event = on_event

    async def execute(self, claim: Claim, cancel: CancelToken) -> RunOutcome:
        """How the run went, and what became of its delivery."""
        workshop: Workshop | None = None
        try:
            try:
                # Tool files may do anything while they are loaded.
                workshop = await asyncio.to_thread(self._open_workshop, claim.job)
                work = _Work(workshop, self._store, claim, cancel, self._on_event)
                report = await (work.with_script_alone() if claim.job.no_agent else work.with_agent())
            except ToolcribError as error:
                # Whoever waits for a result is told that there is none.
                report = RunOutcome(state="failed", error=str(error))
            if cancel.cancelled:
                # That it was stopped is a result, too, and its delivery is not stopped with it.
                report = msgspec.structs.replace(report, state="failed", error=cancel.reason or report.error)
                cancel = CancelToken()
            runtime = workshop.runtime if workshop is not None else None
            note = await deliver(Delivery(runtime, self._store, claim, report, cancel))
            return msgspec.structs.replace(report, note=note)
        finally:
            if workshop is not None:
                await workshop.close()

    def _open_workshop(self, job: Job) -> Workshop:
        # Read for every run, so that a scheduler that runs for weeks goes by the settings of today.
        settings = self._load()
        if job.workdir and settings.terminal.backend in ON_THIS_MACHINE and not Path(job.workdir).is_dir():
            raise JobError(
                f"the folder {job.workdir!r} of the job is gone; name another one with "
                f"`toolcrib cron update {job.id} --workdir FOLDER`"
            )
        workshop = Workshop(
            settings=settings,
            entry_point="cron",
            workspace=job.workdir or None,
            platform=PLATFORM,
            model=job.model or None,
            provider=job.provider,
        )
        workshop.runtime.load()
        return workshop


class _Work:
    """The work of one run."""

    def __init__(
        self, workshop: Workshop, store: JobStore, claim: Claim, cancel: CancelToken, on_event: OnEvent | None
    ) -> None:
        self._workshop = workshop
        self._store = store
        self._job, self._run = claim.job, claim.run
        self._cancel = cancel
        self._on_event = on_event

    async def with_script_alone(self) -> RunOutcome:
        """The output of the script is the result; no model is asked, but there is a session that tells of it."""
        job, sessions = self._job, self._workshop.store
        session = sessions.create(source=PLATFORM, cwd=self._workshop.runtime.workspace, title=job.name)
        outcome = await self._script(session.id)
        said = outcome.problem or outcome.output
        sessions.append_many(session.id, [user_message(job.script), Message(role="assistant", content=said)])
        sessions.end(session.id, "done")
        return RunOutcome(
            state="failed" if outcome.problem else "ok",
            output=outcome.output,
            error=outcome.problem,
            session_id=session.id,
        )

    async def with_agent(self) -> RunOutcome:
        """What the agent says last is the result."""
        job = self._job
        agent = Agent(
            workshop=self._workshop,
            toolsets=None if job.toolsets is None else list(job.toolsets),
            disabled_toolsets=await self._late_toolsets(),
            without_tools=self._withheld(),
            session_id=job.attach_to_session or None,
            cwd=job.workdir or None,
            source=PLATFORM,
        )
        try:
            question = await self._question(agent)
            if self._cancel.cancelled:
                return RunOutcome(state="failed", error=self._cancel.reason, session_id=agent.session_id)
            unregister = self._cancel.on_cancel(lambda: agent.interrupt(self._cancel.reason))
            try:
                result = await agent.run(question, on_event=self._on_event)
            finally:
                unregister()
        finally:
            if not job.attach_to_session:
                # Behind the run: its first question made a title of its own.
                self._workshop.store.update(agent.session_id, title=job.name)
            await agent.close("done")
        return _report(result)

    async def _late_toolsets(self) -> list[str]:
        """The toolsets of MCP servers that are not ready, of a job that is bound to certain tools.

        What they will bring is not known, so that nobody could say whether the job's maker had it.
        """
        await self._workshop.servers.wait(SERVERS_SECONDS)
        if self._job.allowed_tools is None:
            return []
        runtime = self._workshop.runtime
        to_come = (name for name in sorted(runtime.toolsets.expected) if name.startswith("mcp-"))
        return [toolset for toolset in to_come if not runtime.registry.get_tool_names_for_toolset(toolset)]

    def _withheld(self) -> frozenset[str]:
        """The tools that the run does not get: those that no run gets, and those that the job's maker did not have."""
        job, runtime = self._job, self._workshop.runtime
        if job.allowed_tools is None:
            return FORBIDDEN_TOOLS
        toolsets = default_toolsets(runtime) if job.toolsets is None else list(job.toolsets)
        chosen = runtime.toolsets.select(toolsets, self._workshop.settings.agent.disabled_toolsets).tool_names
        return FORBIDDEN_TOOLS | (chosen - frozenset(job.allowed_tools))

    async def _question(self, agent: Agent) -> str:
        """The prompt, behind everything that the job has put before it."""
        job = self._job
        parts = [FRAME.format(name=job.name)]
        parts += [await self._skill(name, agent) for name in job.skills]
        parts += [self._context(other) for other in job.context_from]
        if job.script:
            outcome = await self._script(agent.session_id)
            if outcome.denied:
                raise JobError(f"the script of the job was not run: {outcome.problem}")
            code = "" if outcome.exit_code == 0 else f" (exit code {outcome.exit_code})"
            parts.append(f"Output of `{job.script}`{code}:\n{_data(outcome.output, 'script')}")
        return "\n\n".join([*parts, job.prompt])

    async def _script(self, session_id: str) -> ShellOutcome:
        runtime = self._workshop.runtime
        call_id = f"script_{self._run.number}"
        return await run_in_shell(runtime, self._job.script, session_id, call_id, self._cancel)

    async def _skill(self, name: str, agent: Agent) -> str:
        runtime = self._workshop.runtime
        ctx = runtime.context(session_id=agent.session_id, cwd=agent.cwd, allowed_tools=frozenset({"skill_view"}))
        result = await runtime.call("skill_view", {"name": name}, ctx=ctx)
        if result.is_error:
            raise JobError(f"the skill {name!r} of the job cannot be used: {result.error_message or result.text}")
        try:
            text = json.loads(result.text)["content"]
        except (ValueError, KeyError, TypeError):
            text = result.text
        return f"Go by the skill {name!r}:\n{text}"

    def _context(self, job_id: str) -> str:
        known = {job.id: job.name for job in self._store.jobs()}
        run, name = self._store.last_output(job_id), known.get(job_id, job_id)
        if run is None or run.finished_at is None:
            return f"The job {name!r} has no result yet."
        return f"Latest result of the job {name!r}, {format_moment(run.finished_at)}:\n{_data(run.output, 'job')}"


def _data(text: str, source: str) -> str:
    cut = text[:MAX_CONTEXT_CHARS] + ("\n…" if len(text) > MAX_CONTEXT_CHARS else "")
    return untrusted(cut, source)


def _report(result: RunResult) -> RunOutcome:
    went_well = result.outcome in ("answered", "denied")
    return RunOutcome(
        state="ok" if went_well else "failed",
        output=result.answer,
        error="" if went_well else result.problem,
        session_id=result.session_id,
    )
