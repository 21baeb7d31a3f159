"""Helpers that an agent sends out: agents of their own, with fewer tools and a budget, working side by side.

They end with the agent that sent them. What one found is reported also when it did not come to its end.
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
from toolcrib.core.attempt import attempt, attempt_async
from toolcrib.core.context import CancelToken, ToolContext
from toolcrib.core.messages import Message
from toolcrib.core.types import JsonObject
from toolcrib.hooks.manager import HookManager

logger = logging.getLogger(__name__)

FORBIDDEN_TOOLS = frozenset({"delegate_task", "clarify", "memory", "send_message", "execute_code", "cronjob"})
"""What helpers are not given; `delegate_task` only to an orchestrator that may still send helpers."""
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
    """One piece of work for one helper."""

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
    """An agent, as far as the one who sent it needs it."""

    @property
    def session_id(self) -> str: ...

    @property
    def messages(self) -> Sequence[Message]: ...

    async def run(self, prompt: str, *, on_event: Callable[[AnyEvent], None] | None = None) -> RunResult: ...

    def interrupt(self, reason: str = "interrupted") -> None: ...

    async def close(self, reason: str = "closed") -> None: ...


class Subagent(msgspec.Struct):
    """One helper at work, for whoever wants to see or stop it."""

    id: str
    order: DelegatedTask
    helper: SubagentRunner
    depth: int
    started_at: float = msgspec.field(default_factory=time.time)
    state: State = "started"
    doing: str = ""
    calls: int = 0

    def as_json(self) -> JsonObject:
        return {
            "id": self.id,
            "goal": self.order.goal,
            "session_id": self.helper.session_id,
            "parent_session_id": self.order.parent_id,
            "state": self.state,
            "doing": self.doing,
            "calls": self.calls,
            "seconds": round(time.time() - self.started_at, 1),
        }


class Delegation:
    """The helpers of all agents of a host, and the service behind `delegate_task`."""

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
        self._children: dict[str, Subagent] = {}
        self._depths: dict[str, int] = {}
        self._at_work: set[asyncio.Future[list[JsonObject]]] = set()
        self._made = 0
        self.paused = False
        """While true, no helper is sent out."""

    def active(self, session_id: str = "") -> list[Subagent]:
        """The helpers at work, of one agent or of all."""
        return [child for child in self._children.values() if session_id in ("", child.order.parent_id)]

    def interrupt(self, child_id: str) -> bool:
        """Stop one helper; it reports what it has. False when there is none of that id."""
        child = self._children.get(child_id)
        if child is not None:
            child.helper.interrupt("stopped by the user")
        return child is not None

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """Send helpers out and wait for all of them; what `delegate_task` answers."""
        orders, problem = self._orders(args, ctx)
        if problem:
            return json.dumps({"error": problem}, ensure_ascii=False)
        started = time.monotonic()
        reports = await self._all_reports(orders, ctx)
        seconds = round(time.monotonic() - started, 1)
        return json.dumps({"results": reports, "total_seconds": seconds}, ensure_ascii=False)

    async def close(self) -> None:
        """Stop all helpers, and wait a moment until they have left everything in order."""
        for child in list(self._children.values()):
            child.helper.interrupt("the agent that sent it is closed")
        here = asyncio.get_running_loop()
        ending = [work for work in self._at_work if work.get_loop() is here]
        if ending:
            await asyncio.wait(ending, timeout=STOP_SECONDS)

    async def _all_reports(self, orders: Sequence[DelegatedTask], ctx: ToolContext) -> list[JsonObject]:
        """One report for each order. Told to stop, the helpers are, too, and what they have by then is reported."""
        cancel = CancelToken(ctx.cancel)
        at_once = asyncio.Semaphore(self._settings.max_concurrent_children)
        work = asyncio.gather(*(self._in_turn(at_once, order, ctx, cancel) for order in orders))
        self._at_work.add(work)
        work.add_done_callback(self._at_work.discard)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            cancel.cancel("the agent that sent it was stopped")
            done, _ = await asyncio.wait([work], timeout=STOP_SECONDS)
            if not done:
                raise
            return work.result()

    def _orders(self, args: JsonObject, ctx: ToolContext) -> tuple[list[DelegatedTask], str]:
        """What is to be done, or why nothing is."""
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
        return [self._order(task, str(args.get("role") or "leaf"), depth, ctx) for task in tasks], ""

    def _order(self, task: JsonObject, role: str, depth: int, ctx: ToolContext) -> DelegatedTask:
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

    async def _in_turn(
        self, at_once: asyncio.Semaphore, order: DelegatedTask, ctx: ToolContext, cancel: CancelToken
    ) -> JsonObject:
        async with at_once:
            if cancel.cancelled:
                return _not_begun(order, "interrupted", "it was stopped before it began")
            helper, error = attempt(self._start, order)
            if helper is None:
                return _not_begun(order, "failed", str(error))
            self._made += 1
            child = Subagent(f"helper_{self._made}", order, helper, self._depths.get(order.parent_id, 0) + 1)
            return await self._watched(child, ctx, cancel)

    async def _watched(self, child: Subagent, ctx: ToolContext, cancel: CancelToken) -> JsonObject:
        """The report of one helper, from its start to its end."""
        self._children[child.id] = child
        self._depths[child.helper.session_id] = child.depth
        started = time.monotonic()
        await fire(self._hooks, "subagent_start", **self._start_keywords(child, ctx))
        self._say(child, "started")
        unregister = cancel.on_cancel(lambda: child.helper.interrupt("the agent that sent it was stopped"))
        try:
            result, error = await attempt_async(self._run(child))
            report = self._report(child, result, error)
        finally:
            unregister()
            child.helper.interrupt("the agent that sent it is done")
            self._children.pop(child.id, None)
            self._depths.pop(child.helper.session_id, None)
        seconds = time.monotonic() - started
        report["seconds"] = round(seconds, 1)
        self._say(child, child.state)
        await fire(self._hooks, "subagent_stop", **self._stop_keywords(child, ctx, report, seconds))
        await child.helper.close(child.state)
        return report

    async def _run(self, child: Subagent) -> RunResult | None:
        """How its run ended; None when its time was over."""
        seconds = self._settings.child_timeout_seconds
        running = asyncio.ensure_future(
            child.helper.run(child.order.question, on_event=lambda event: self._heard(child, event))
        )
        try:
            done, _ = await asyncio.wait([running], timeout=seconds or None)
            if done:
                return running.result()
            child.helper.interrupt("its time is over")
            await asyncio.wait([running], timeout=STOP_SECONDS)
            return None
        finally:
            if not running.done():
                running.cancel()

    def _heard(self, child: Subagent, event: AnyEvent) -> None:
        if isinstance(event, CallStarted):
            child.calls += 1
            child.doing = f"{event.shown_name} {event.summary}".strip()
            self._say(child, "working")

    def _say(self, child: Subagent, state: State) -> None:
        child.state = state
        goal = " ".join(child.order.goal.split())[:GOAL_CHARS]
        event = SubagentProgressed(child_id=child.id, goal=goal, state=state, what=child.doing)
        self._tell_parent(child.order.parent_id, event)

    def _report(self, child: Subagent, result: RunResult | None, error: BaseException | None) -> JsonObject:
        child.state = "failed" if error is not None else _state(result)
        summary = result.answer if result is not None else ""
        if child.state != "completed":
            summary = summary or _partial(child.helper.messages)
        report: JsonObject = {
            "goal": child.order.goal,
            "status": child.state,
            "summary": shorten(summary, self._settings.max_summary_chars),
            "session_id": child.helper.session_id,
            "calls": child.calls,
        }
        if result is not None:
            report["tokens"] = result.usage.input_tokens + result.usage.output_tokens
        if error is not None:
            logger.error("%s failed", child.id, exc_info=error)
            report["error"] = f"{type(error).__name__}: {error}"
        elif result is not None and result.problem:
            report["error"] = result.problem
        elif result is None:
            report["error"] = f"it was stopped after {self._settings.child_timeout_seconds:g} seconds"
        return report

    def _start_keywords(self, child: Subagent, ctx: ToolContext) -> JsonObject:
        return {
            "parent_session_id": ctx.session_id,
            "parent_turn_id": ctx.turn_id,
            "parent_subagent_id": next(
                (one.id for one in self._children.values() if one.helper.session_id == ctx.session_id), ""
            ),
            "child_session_id": child.helper.session_id,
            "child_subagent_id": child.id,
            "child_role": child.order.role,
            "child_goal": child.order.goal,
        }

    def _stop_keywords(self, child: Subagent, ctx: ToolContext, report: JsonObject, seconds: float) -> JsonObject:
        return {
            "parent_session_id": ctx.session_id,
            "parent_turn_id": ctx.turn_id,
            "child_session_id": child.helper.session_id,
            "child_role": child.order.role,
            "child_summary": report["summary"],
            "child_status": child.state,
            "duration_ms": round(seconds * 1000),
        }


def _not_begun(order: DelegatedTask, status: State, why: str) -> JsonObject:
    return {"goal": order.goal, "status": status, "summary": "", "error": why}


def _state(result: RunResult | None) -> State:
    if result is None:
        return "timeout"
    if result.outcome in ("answered", "denied"):
        return "completed"
    return "budget" if result.outcome == "budget" else "interrupted" if result.outcome == "interrupted" else "failed"


def _partial(messages: Sequence[Message]) -> str:
    """What a helper said and did last, for when it did not come to its report."""
    said = [message.text for message in messages if message.role == "assistant" and message.text][-PARTIAL_MESSAGES:]
    called = [f"{call.name}({shorten(call.arguments, 100)})" for message in messages for call in message.tool_calls]
    parts = [*said, f"Calls so far: {'; '.join(called[-10:])}" if called else ""]
    return "\n".join(part for part in parts if part)
