"""Runs scheduled jobs, each in its own session under the `cron` policy, and delivers their results."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from toolcrib.agent.agent import Agent
from toolcrib.agent.events import OnEvent, RunResult
from toolcrib.agent.host import AgentHost
from toolcrib.agent.tool_selection import default_toolsets
from toolcrib.config.settings import Settings
from toolcrib.core.cancel import CancelToken
from toolcrib.core.errors import ToolcribError
from toolcrib.core.messages import Message, user_message
from toolcrib.cron.delivery import Destination, leave_notice, stored_destination
from toolcrib.cron.jobs import Job, JobError, RunOutcome, format_moment
from toolcrib.cron.store import Claim, JobStore
from toolcrib.environments.specs import ON_THIS_MACHINE
from toolcrib.registry.results import untrusted
from toolcrib.runtime import Runtime

FORBIDDEN_TOOLS = frozenset({"cronjob", "clarify"})
"""Jobs cannot create jobs, and no user can answer questions."""
MAX_CONTEXT_CHARS = 20_000
PLATFORM = "cron"
SERVERS_SECONDS = 20.0
"""How long a run waits for MCP servers; no user is waiting for it."""

FRAME = (
    "This is a scheduled run of the job {name!r}. Nobody watches it and nobody can be asked, so decide yourself. "
    "Your last message is kept as the result: let it stand for itself."
)


class JobRunner:
    """Carries out runs, for a scheduler or for a user who runs a job now."""

    def __init__(self, store: JobStore, load: Callable[[], Settings], on_event: OnEvent | None = None) -> None:
        self._store = store
        self._load = load
        self._on_event = on_event

    async def execute(self, claim: Claim, cancel: CancelToken) -> RunOutcome:
        """The outcome of the run and of its delivery."""
        host: AgentHost | None = None
        try:
            try:
                # Tool files may do anything while they are loaded.
                host = await asyncio.to_thread(self._open_host, claim.job)
                work = _Work(host, self._store, claim, cancel, self._on_event)
                report = await (work.with_script_alone() if claim.job.no_agent else work.with_agent())
            except ToolcribError as error:
                # Deliver the failure too.
                report = RunOutcome(state="failed", error=str(error))
            if cancel.cancelled:
                # Being stopped is a result too, and its delivery must not be stopped with it.
                report = msgspec.structs.replace(report, state="failed", error=cancel.reason or report.error)
                cancel = CancelToken()
            runtime = host.runtime if host is not None else None
            note = await deliver(Delivery(runtime, self._store, claim, report, cancel))
            return msgspec.structs.replace(report, note=note)
        finally:
            if host is not None:
                await host.close()

    def _open_host(self, job: Job) -> AgentHost:
        # Read for every run, so a scheduler that runs for weeks uses the current settings.
        settings = self._load()
        if job.workdir and settings.terminal.backend in ON_THIS_MACHINE and not Path(job.workdir).is_dir():
            raise JobError(
                f"the job's folder {job.workdir!r} no longer exists; set another one with "
                f"`toolcrib cron update {job.id} --workdir FOLDER`"
            )
        host = AgentHost(
            settings=settings,
            entry_point="cron",
            workspace=job.workdir or None,
            platform=PLATFORM,
            model=job.model or None,
            provider=job.provider,
        )
        host.runtime.load()
        return host


class _Work:
    """The work of one run."""

    def __init__(
        self, host: AgentHost, store: JobStore, claim: Claim, cancel: CancelToken, on_event: OnEvent | None
    ) -> None:
        self._host = host
        self._store = store
        self._job, self._run = claim.job, claim.run
        self._cancel = cancel
        self._on_event = on_event

    async def with_script_alone(self) -> RunOutcome:
        """The output of the script is the result; no model is used, but a session records it."""
        job, sessions = self._job, self._host.store
        session = sessions.create(source=PLATFORM, cwd=self._host.runtime.workspace, title=job.name, owner=job.owner)
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
        """The agent's last message is the result."""
        job = self._job
        agent = Agent(
            host=self._host,
            toolsets=None if job.toolsets is None else list(job.toolsets),
            disabled_toolsets=await self._late_toolsets(),
            without_tools=self._withheld(),
            session_id=job.attach_to_session or None,
            cwd=job.workdir or None,
            source=PLATFORM,
            owner=job.owner,
        )
        try:
            question = await self._question(agent)
            if self._cancel.cancelled:
                return RunOutcome(state="failed", error=self._cancel.reason, session_id=agent.session_id)
            unregister = self._cancel.on_cancel(lambda: agent.interrupt(self._cancel.reason))
            try:
                if job.prompt_by_person:
                    self._host.runtime.provenance(agent.session_id).add_person(job.prompt)
                # Skills, scripts and other jobs added to the prompt, so the whole is not the person's words.
                message = msgspec.structs.replace(user_message(question), origin="derived")
                result = await agent.run(message, on_event=self._on_event)
            finally:
                unregister()
        finally:
            if not job.attach_to_session:
                # After the run, because its first question sets a title.
                self._host.store.update(agent.session_id, title=job.name)
            await agent.close("done")
        return _report(result)

    async def _late_toolsets(self) -> list[str]:
        """The toolsets of MCP servers that are not ready, for a job that is limited to certain tools.

        Their tools are unknown, so we cannot tell whether the job's creator had them.
        """
        await self._host.servers.wait(SERVERS_SECONDS)
        if self._job.allowed_tools is None:
            return []
        runtime = self._host.runtime
        to_come = (name for name in sorted(runtime.toolsets.expected) if name.startswith("mcp-"))
        return [toolset for toolset in to_come if not runtime.registry.get_tool_names_for_toolset(toolset)]

    def _withheld(self) -> frozenset[str]:
        """The tools that the run does not get: those that no run gets, and those that the job's creator lacked."""
        job, runtime = self._job, self._host.runtime
        if job.allowed_tools is None:
            return FORBIDDEN_TOOLS
        toolsets = default_toolsets(runtime) if job.toolsets is None else list(job.toolsets)
        chosen = runtime.toolsets.select(toolsets, self._host.settings.agent.disabled_toolsets).tool_names
        return FORBIDDEN_TOOLS | (chosen - frozenset(job.allowed_tools))

    async def _question(self, agent: Agent) -> str:
        """The prompt, preceded by everything that the job adds to it."""
        job = self._job
        parts = [FRAME.format(name=job.name)]
        parts += [await self._skill(name, agent) for name in job.skills]
        provenance = self._host.runtime.provenance(agent.session_id)
        for other in job.context_from:
            context = self._context(other)
            provenance.add_untrusted(context, "another job")
            parts.append(context)
        if job.script:
            outcome = await self._script(agent.session_id)
            if outcome.denied:
                raise JobError(f"the script of the job was not run: {outcome.problem}")
            code = "" if outcome.exit_code == 0 else f" (exit code {outcome.exit_code})"
            parts.append(f"Output of `{job.script}`{code}:\n{_data(outcome.output, 'script')}")
        return "\n\n".join([*parts, job.prompt])

    async def _script(self, session_id: str) -> ShellResult:
        runtime = self._host.runtime
        call_id = f"script_{self._run.number}"
        return await run_in_shell(runtime, self._job.script, session_id, call_id, self._cancel)

    async def _skill(self, name: str, agent: Agent) -> str:
        runtime = self._host.runtime
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


MAX_NOTICE_CHARS = 4_000
OWNER_FILE = 0o600


class Delivery(msgspec.Struct, frozen=True):
    """A result to deliver."""

    runtime: Runtime | None
    """None if the run could not start."""
    store: JobStore
    claim: Claim
    report: RunOutcome
    cancel: CancelToken

    @property
    def text(self) -> str:
        """What is delivered: the result, and what went wrong."""
        report = self.report
        parts = [report.output, f"It failed: {report.error}" if report.state != "ok" else ""]
        return "\n".join(part for part in parts if part) or "It ended without a result."

    @property
    def heading(self) -> str:
        run = self.claim.run
        return f"{self.claim.job.name}, {format_moment(run.started_at)}, {self.report.state}"


async def deliver(delivery: Delivery) -> str:
    """Delivers the result; returns a note for the run. A failed delivery does not make the run fail."""
    try:
        destination = stored_destination(delivery.claim.job.deliver)
        return await DELIVERIES[destination.kind](delivery, destination)
    except (ToolcribError, OSError) as error:
        said = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        return f"not delivered to {delivery.claim.job.deliver}: {said}"


async def _keep(_delivery: Delivery, _destination: Destination) -> str:
    return ""


async def _tell_origin(delivery: Delivery, _destination: Destination) -> str:
    job, run = delivery.claim.job, delivery.claim.run
    text = delivery.text[:MAX_NOTICE_CHARS]
    if len(delivery.text) > MAX_NOTICE_CHARS:
        text += f"\n… (`toolcrib cron show {job.id}` shows all of it)"
    notice = f"[Result of the scheduled job {delivery.heading}]\n{untrusted(text, 'job')}"
    leave_notice(delivery.store.database, job.origin, run.number, notice)
    return f"left for session {job.origin}"


async def _append_to_file(delivery: Delivery, destination: Destination) -> str:
    await asyncio.to_thread(_append, destination.target, f"--- {delivery.heading}\n{delivery.text}\n")
    return f"added to {destination.target}"


def _append(path: str, text: str) -> None:
    """Append a text to a regular file; a link in the path did not exist when the job was approved."""
    if os.path.realpath(path) != path:
        raise JobError(f"the path {path!r} contains a link that did not exist when the job was created")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, OWNER_FILE)
    with os.fdopen(descriptor, "ab") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise JobError(f"{path!r} is not a regular file")
        stream.write(text.encode("utf-8", "replace"))


async def _give_to_command(delivery: Delivery, destination: Destination) -> str:
    """Run the command in the environment with the result as its input; the gate checks all of it."""
    if delivery.runtime is None:
        raise JobError("the command cannot run, because the job's run could not start")
    mark = f"RESULT_{secrets.token_hex(8)}"
    command = f"{{ {destination.target}\n}} <<'{mark}'\n{delivery.text}\n{mark}"
    session, call_id = delivery.report.session_id, f"delivery_{delivery.claim.run.number}"
    outcome = await run_in_shell(delivery.runtime, command, session, call_id, delivery.cancel)
    if outcome.problem:
        raise JobError(outcome.problem)
    return f"given to `{destination.target}`"


DELIVERIES: dict[str, Callable[[Delivery, Destination], Awaitable[str]]] = {
    "local": _keep,
    "origin": _tell_origin,
    "file": _append_to_file,
    "command": _give_to_command,
}


MAX_SECONDS = 600
"""The longest time that the terminal tool lets a command run in the foreground."""


class ShellResult(msgspec.Struct, frozen=True):
    """The output of a command, and what went wrong with it."""

    output: str = ""
    exit_code: int = 0
    problem: str = ""
    """Why it did not run, or that it failed; empty on success."""
    denied: bool = False
    """Whether it did not run at all."""


async def run_in_shell(
    runtime: Runtime, command: str, session_id: str, call_id: str, cancel: CancelToken
) -> ShellResult:
    """Run a command in the workspace of a runtime, in a recorded session."""
    ctx = runtime.context(
        tool_name="terminal",
        session_id=session_id,
        task_id=session_id,
        call_id=call_id,
        cwd=runtime.workspace,
        cancel=cancel,
        allowed_tools=frozenset({"terminal"}),
    )
    result = await runtime.call("terminal", {"command": command, "timeout": MAX_SECONDS}, ctx=ctx)
    try:
        answer = json.loads(result.text)
    except ValueError:
        answer = {}
    if not isinstance(answer, dict) or "exit_code" not in answer:
        return ShellResult(problem=result.error_message or result.text, denied=True, exit_code=-1)
    output, code = str(answer.get("output") or ""), int(answer["exit_code"] or 0)
    said = str(answer.get("error") or "")
    problem = said or (f"it ended with exit code {code}" if code else "")
    return ShellResult(output, code, problem, denied=bool(result.is_error and not output and code < 0))
