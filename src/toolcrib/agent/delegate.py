"""Subagents: agents that another agent starts for one task each, in parallel, with fewer tools and a budget.

They end with the agent that started them. A subagent reports what it found even if it did not finish.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from toolcrib.agent.compress import shorten
from toolcrib.agent.events import AnyEvent, CallStarted, RunResult, SubagentProgressed
from toolcrib.agent.hooks import fire
from toolcrib.config.agent_settings import DelegationSettings
from toolcrib.core.attempt import attempt_async
from toolcrib.core.cancel import CancelToken
from toolcrib.core.context import ToolContext
from toolcrib.core.messages import Message
from toolcrib.core.types import JsonObject
from toolcrib.hooks.manager import HookManager

logger = logging.getLogger(__name__)

FORBIDDEN_TOOLS = frozenset({"delegate_task", "clarify", "memory", "send_message", "execute_code", "cronjob"})
"""The tools that subagents do not get; an orchestrator that may still start subagents keeps `delegate_task`."""
GOAL_CHARS = 80
PARTIAL_MESSAGES = 3
STOP_SECONDS = 5.0

TASK = """\
You are a helper: another agent sent you to do one piece of work, and reads nothing but your last message.
What to do: {goal}
{context}
When you are done, report what you did, what you found (with paths, names and figures), and what is left."""

Role = Literal["leaf", "orchestrator"]
State = Literal["started", "working", "completed", "failed", "interrupted", "timeout", "budget"]


class DelegatedTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task for one subagent."""

    goal: str
    context: str = ""
    role: Role = "leaf"
    parent_id: str
    max_turns: int
    without_tools: frozenset[str] = FORBIDDEN_TOOLS
    cwd: str = ""
    model: str = ""

    @property
    def question(self) -> str:
        return TASK.format(goal=self.goal, context=f"What you need to know: {self.context}\n" if self.context else "")


class SubagentRunner(Protocol):
    """The part of an agent that its parent uses."""

    @property
    def session_id(self) -> str: ...

    @property
    def messages(self) -> Sequence[Message]: ...

    async def run(self, prompt: str, *, on_event: Callable[[AnyEvent], None] | None = None) -> RunResult: ...

    def interrupt(self, reason: str = "interrupted") -> None: ...

    async def close(self, reason: str = "closed") -> None: ...


class Subagent(msgspec.Struct):
    """One running subagent, for display and for stopping it."""

    id: str
    task: DelegatedTask
    agent: SubagentRunner
    depth: int
    started_at: float = msgspec.field(default_factory=time.time)
    state: State = "started"
    doing: str = ""
    calls: int = 0

    def as_json(self) -> JsonObject:
        return {
            "id": self.id,
            "goal": self.task.goal,
            "session_id": self.agent.session_id,
            "parent_session_id": self.task.parent_id,
            "state": self.state,
            "doing": self.doing,
            "calls": self.calls,
            "seconds": round(time.time() - self.started_at, 1),
        }


class Delegation:
    """The subagents of all agents of a host, and the service behind `delegate_task`."""

    def __init__(
        self,
        settings: DelegationSettings,
        hooks: HookManager,
        start: Callable[[DelegatedTask], SubagentRunner],
        tell_parent: Callable[[str, SubagentProgressed], None],
    ) -> None:
        self._settings = settings
        self._hooks = hooks
        self._start = start
        self._tell_parent = tell_parent
        self._subagents: dict[str, Subagent] = {}
        self._depths: dict[str, int] = {}
        self._running: set[asyncio.Future[list[JsonObject]]] = set()
        self._started_count = 0
        self.paused = False
        """While true, no subagent starts."""

    def active(self, session_id: str = "") -> list[Subagent]:
        """The running subagents, of one agent or of all."""
        return [subagent for subagent in self._subagents.values() if session_id in ("", subagent.task.parent_id)]

    def interrupt(self, child_id: str) -> bool:
        """Stop one subagent; it reports what it has. False if no subagent has that id."""
        subagent = self._subagents.get(child_id)
        if subagent is not None:
            subagent.agent.interrupt("stopped by the user")
        return subagent is not None

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """Start subagents and wait for all of them; what `delegate_task` answers."""
        tasks, problem = self._tasks(args, ctx)
        if problem:
            return json.dumps({"error": problem}, ensure_ascii=False)
        started = time.monotonic()
        reports = await self._run_all(tasks, ctx)
        seconds = round(time.monotonic() - started, 1)
        return json.dumps({"results": reports, "total_seconds": seconds}, ensure_ascii=False)

    async def close(self) -> None:
        """Stop all subagents, and wait a moment for their cleanup."""
        for subagent in list(self._subagents.values()):
            subagent.agent.interrupt("the agent that sent it is closed")
        here = asyncio.get_running_loop()
        ending = [work for work in self._running if work.get_loop() is here]
        if ending:
            await asyncio.wait(ending, timeout=STOP_SECONDS)

    async def _run_all(self, tasks: Sequence[DelegatedTask], ctx: ToolContext) -> list[JsonObject]:
        """One report for each task. Stopping this stops the subagents, which report what they have by then."""
        cancel = CancelToken(ctx.cancel)
        at_once, in_order = asyncio.Semaphore(self._settings.max_concurrent_children), asyncio.Lock()
        work = asyncio.gather(*(self._run_when_free(at_once, in_order, task, ctx, cancel) for task in tasks))
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            cancel.cancel("the agent that sent it was stopped")
            done, _ = await asyncio.wait([work], timeout=STOP_SECONDS)
            if not done:
                raise
            return work.result()

    def _tasks(self, args: JsonObject, ctx: ToolContext) -> tuple[list[DelegatedTask], str]:
        """The tasks, or why there are none."""
        depth = self._depths.get(ctx.session_id, 0)
        if self.paused:
            return [], "no helpers are sent out at the moment: the user paused it; do the work yourself"
        if depth >= self._settings.max_spawn_depth:
            return [], "helpers cannot be sent from here (delegation.max_spawn_depth); do the work yourself"
        tasks = args.get("tasks") or ([args] if args.get("goal") else [])
        if not tasks:
            return [], 'say what is to be done: {"goal": "…"} or {"tasks": [{"goal": "…"}, …]}'
        if any(not str(task.get("goal") or "").strip() for task in tasks):
            return [], "every task needs a goal"
        return [self._task(task, str(args.get("role") or "leaf"), depth, ctx) for task in tasks], ""

    def _task(self, task: JsonObject, role: str, depth: int, ctx: ToolContext) -> DelegatedTask:
        role = str(task.get("role") or role)
        may_delegate = role == "orchestrator" and depth + 1 < self._settings.max_spawn_depth
        return DelegatedTask(
            goal=str(task["goal"]).strip(),
            context=str(task.get("context") or "").strip(),
            role="orchestrator" if may_delegate else "leaf",
            parent_id=ctx.session_id,
            max_turns=self._settings.max_iterations,
            without_tools=FORBIDDEN_TOOLS - {"delegate_task"} if may_delegate else FORBIDDEN_TOOLS,
            cwd=ctx.cwd,
            model=self._settings.model,
        )

    async def _run_when_free(
        self,
        at_once: asyncio.Semaphore,
        in_order: asyncio.Lock,
        task: DelegatedTask,
        ctx: ToolContext,
        cancel: CancelToken,
    ) -> JsonObject:
        async with at_once:
            async with in_order:
                if cancel.cancelled:
                    return _not_begun(task, "interrupted", "it was stopped before it began")
                # A provider may be foreign code, and its failure must affect only this task.
                agent, error = await attempt_async(asyncio.to_thread(self._start, task))
                if agent is None:
                    return _not_begun(task, "failed", str(error))
                self._started_count += 1
                name = f"helper_{self._started_count}"
            subagent = Subagent(name, task, agent, self._depths.get(task.parent_id, 0) + 1)
            return await self._run_subagent(subagent, ctx, cancel)

    async def _run_subagent(self, subagent: Subagent, ctx: ToolContext, cancel: CancelToken) -> JsonObject:
        """The report of one subagent, from its start to its end."""
        self._subagents[subagent.id] = subagent
        self._depths[subagent.agent.session_id] = subagent.depth
        started = time.monotonic()
        await fire(self._hooks, "subagent_start", **self._start_keywords(subagent, ctx))
        self._report_progress(subagent, "started")
        unregister = cancel.on_cancel(lambda: subagent.agent.interrupt("the agent that sent it was stopped"))
        try:
            result, error = await attempt_async(self._run(subagent))
            report = self._report(subagent, result, error)
        finally:
            unregister()
            subagent.agent.interrupt("the agent that sent it is done")
            self._subagents.pop(subagent.id, None)
            self._depths.pop(subagent.agent.session_id, None)
        seconds = time.monotonic() - started
        report["seconds"] = round(seconds, 1)
        self._report_progress(subagent, subagent.state)
        await fire(self._hooks, "subagent_stop", **self._stop_keywords(subagent, ctx, report, seconds))
        await subagent.agent.close(subagent.state)
        return report

    async def _run(self, subagent: Subagent) -> RunResult | None:
        """How its run ended; None if it timed out."""
        seconds = self._settings.child_timeout_seconds
        running = asyncio.ensure_future(
            subagent.agent.run(subagent.task.question, on_event=lambda event: self._on_event(subagent, event))
        )
        try:
            done, _ = await asyncio.wait([running], timeout=seconds or None)
            if done:
                return running.result()
            subagent.agent.interrupt("its time is over")
            await asyncio.wait([running], timeout=STOP_SECONDS)
            return None
        finally:
            if not running.done():
                running.cancel()

    def _on_event(self, subagent: Subagent, event: AnyEvent) -> None:
        if isinstance(event, CallStarted):
            subagent.calls += 1
            subagent.doing = f"{event.shown_name} {event.summary}".strip()
            self._report_progress(subagent, "working")

    def _report_progress(self, subagent: Subagent, state: State) -> None:
        subagent.state = state
        goal = " ".join(subagent.task.goal.split())[:GOAL_CHARS]
        event = SubagentProgressed(child_id=subagent.id, goal=goal, state=state, what=subagent.doing)
        self._tell_parent(subagent.task.parent_id, event)

    def _report(self, subagent: Subagent, result: RunResult | None, error: BaseException | None) -> JsonObject:
        subagent.state = "failed" if error is not None else _state(result)
        summary = result.answer if result is not None else ""
        if subagent.state != "completed":
            summary = summary or _partial(subagent.agent.messages)
        report: JsonObject = {
            "goal": subagent.task.goal,
            "status": subagent.state,
            "summary": shorten(summary, self._settings.max_summary_chars),
            "session_id": subagent.agent.session_id,
            "calls": subagent.calls,
        }
        if result is not None:
            report["tokens"] = result.usage.input_tokens + result.usage.output_tokens
        if error is not None:
            logger.error("%s failed", subagent.id, exc_info=error)
            report["error"] = f"{type(error).__name__}: {error}"
        elif result is not None and result.problem:
            report["error"] = result.problem
        elif result is None:
            report["error"] = f"it was stopped after {self._settings.child_timeout_seconds:g} seconds"
        return report

    def _start_keywords(self, subagent: Subagent, ctx: ToolContext) -> JsonObject:
        return {
            "parent_session_id": ctx.session_id,
            "parent_turn_id": ctx.turn_id,
            "parent_subagent_id": next(
                (one.id for one in self._subagents.values() if one.agent.session_id == ctx.session_id), ""
            ),
            "child_session_id": subagent.agent.session_id,
            "child_subagent_id": subagent.id,
            "child_role": subagent.task.role,
            "child_goal": subagent.task.goal,
        }

    def _stop_keywords(self, subagent: Subagent, ctx: ToolContext, report: JsonObject, seconds: float) -> JsonObject:
        return {
            "parent_session_id": ctx.session_id,
            "parent_turn_id": ctx.turn_id,
            "child_session_id": subagent.agent.session_id,
            "child_role": subagent.task.role,
            "child_summary": report["summary"],
            "child_status": subagent.state,
            "duration_ms": round(seconds * 1000),
        }


def _not_begun(task: DelegatedTask, status: State, why: str) -> JsonObject:
    return {"goal": task.goal, "status": status, "summary": "", "error": why}


def _state(result: RunResult | None) -> State:
    if result is None:
        return "timeout"
    if result.outcome in ("answered", "denied"):
        return "completed"
    return "budget" if result.outcome == "budget" else "interrupted" if result.outcome == "interrupted" else "failed"


def _partial(messages: Sequence[Message]) -> str:
    """What a subagent last said and did, if it ended without a report."""
    said = [message.text for message in messages if message.role == "assistant" and message.text][-PARTIAL_MESSAGES:]
    called = [f"{call.name}({shorten(call.arguments, 100)})" for message in messages for call in message.tool_calls]
    parts = [*said, f"Calls so far: {'; '.join(called[-10:])}" if called else ""]
    return "\n".join(part for part in parts if part)
