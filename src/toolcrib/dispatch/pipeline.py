"""The one pipeline: every tool call of every kind takes this straight line, from every front end."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec.structs import replace

from toolcrib.bridge import NestedCallTimeout
from toolcrib.core.attempt import attempt, attempt_async
from toolcrib.core.context import ToolContext, current_context
from toolcrib.core.ports import FileSnapshots, Gate, Recorder, ResultStore
from toolcrib.core.types import ALLOW, SEARCH_TOOLS, TOOL_CALL, JsonObject, ToolCall, ToolEntry, ToolResult, Verdict
from toolcrib.dispatch import outcome, tool_hooks
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.dispatch.budget import within_call_budget
from toolcrib.dispatch.deferred import unwrap
from toolcrib.dispatch.edges import (
    CLEAN_UP_AFTER_EFFECTS_SECONDS,
    CLEAN_UP_SECONDS,
    CallCancelled,
    CallTimedOut,
    Edge,
    Limit,
)
from toolcrib.dispatch.effects import Footprint, effects_of
from toolcrib.hooks.manager import HookManager
from toolcrib.registry.registry import ToolRegistry

logger = logging.getLogger(__name__)


class Limits(msgspec.Struct, frozen=True):
    """What bounds every call of a runtime."""

    max_result_chars: int | float = 100_000
    timeouts: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Seconds that a tool may take, by its name."""


class Refused(Exception):
    """A stage ended the call before its handler ran; carries the result."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.error_message)
        self.result = result


# Made for every call, so a msgspec Struct, as ToolContext is.
class _Attempt(msgspec.Struct):
    """One call on its way, and what is known of it so far."""

    entry: ToolEntry
    ctx: ToolContext
    edge: Edge
    started: float
    args: JsonObject
    original: JsonObject
    trace: tuple[JsonObject, ...] = ()
    effects: Footprint = None
    recorded: bool = False
    kept: bool = False


class Pipeline:
    """Takes calls from a name and raw arguments to a well-formed result."""

    def __init__(
        self,
        registry: ToolRegistry,
        hooks: HookManager,
        gate: Gate,
        recorder: Recorder,
        store: ResultStore,
        limits: Limits,
        snapshots: FileSnapshots | None = None,
        restricted: Sequence[str] = (),
    ) -> None:
        """`restricted` names, with wildcards, tools that the gate judges whatever they say about themselves."""
        self.registry = registry
        self.hooks = hooks
        self.gate = gate
        self.recorder = recorder
        self.store = store
        self.limits = limits
        self.snapshots = snapshots
        self._restricted = tuple(restricted)
        self._checkers: dict[str, tuple[ToolEntry, ArgumentChecker]] = {}

    async def run(self, name: str, arguments: Mapping[str, Any] | str, ctx: ToolContext, edge: Edge) -> ToolResult:
        """Exactly one result for the call, whatever happens; only cancellation of the caller's task passes through.

        Every call of a tool that exists is told to `post_tool_call` once, also one that was refused or stopped.
        """
        try:
            if name == TOOL_CALL:
                name, arguments = unwrap(arguments)
            entry = self.registry.get_entry(name)
            if entry is None:
                return outcome.unknown(str(name), self.registry.get_all_tool_names(), ctx)
            call = _Attempt(entry, ctx, edge, time.perf_counter(), {}, {})
            result = await self._result(call, arguments)
            if (
                not (call.kept or call.recorded)
                and self.hooks.is_empty
                and len(result.content) <= self._max_chars(entry)
            ):
                return result  # Most calls: nobody to tell, and nothing to cut.
            return await self._finish(call, result)
        except Exception as error:
            logger.exception("call of tool %r failed outside its handler", name)
            return outcome.call_failed(error, str(name), ctx)

    def footprint(self, name: str, arguments: Mapping[str, Any] | str, ctx: ToolContext) -> Footprint:
        """The effects that a call would have; None where they are not known, so that it runs by itself."""
        footprint, error = attempt(self._footprint, name, arguments, ctx)
        if error is not None:
            logger.error("the effects of tool %r could not be computed", name, exc_info=error)
        return footprint

    def _footprint(self, name: str, arguments: Mapping[str, Any] | str, ctx: ToolContext) -> Footprint:
        if name == TOOL_CALL:
            name, arguments = unwrap(arguments)
        entry = self.registry.get_entry(name)
        if entry is None:
            return None
        args, problem = self._checker(entry).prepare(arguments) if callable(entry.effects) else ({}, None)
        return effects_of(entry, args, ctx) if problem is None else None

    def stopped(self, call: ToolCall, ctx: ToolContext) -> ToolResult:
        """The result of a call that was never run, or not to its end, because its batch was cancelled."""
        name = unwrap(call.arguments)[0] if call.name == TOOL_CALL else call.name
        ctx = replace(ctx, call_id=call.id)
        return outcome.cancelled(name, ctx, reason="the batch was cancelled")

    async def _result(self, call: _Attempt, arguments: Mapping[str, Any] | str) -> ToolResult:
        """What the call gives, before anybody is told: the second error layer is here."""
        entry, ctx = call.entry, call.ctx
        try:
            allowed = ctx.allowed_tools
            if allowed is not None and entry.name not in allowed and entry.name not in SEARCH_TOOLS:
                message = f"Tool {entry.name!r} is not part of this session"
                return outcome.problem(message, "blocked", "tool_scope_block", entry.name, ctx)
            call.args = call.original = self._checked(call, arguments)
            verdict = ALLOW if self.hooks.is_empty else await self._ask_plugins(call)
            if entry.effects or verdict is not ALLOW or self._is_judged(entry, entry.effects):
                await self._admit(call, verdict, call.edge)
            return await self._execute(call)
        except Refused as refused:
            return refused.result
        except GeneratorExit:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and call.edge.passes_on(error):
                await self._finish(call, outcome.cancelled(entry.name, ctx, call.started))
                raise
            if isinstance(error, CallCancelled):
                return outcome.cancelled(entry.name, ctx, call.started)
            if isinstance(error, CallTimedOut):
                return outcome.timed_out(error, entry.name, ctx, call.started)
            logger.exception("call of tool %r failed outside its handler", entry.name)
            return outcome.call_failed(error, entry.name, ctx)

    def _checked(self, call: _Attempt, arguments: Mapping[str, Any] | str) -> JsonObject:
        args, problem = self._checker(call.entry).prepare(arguments)
        if problem is not None:
            call.args = args
            raise Refused(
                outcome.problem(problem.message, "error", "invalid_arguments", call.entry.name, call.ctx, call.started)
            )
        return args

    async def _ask_plugins(self, call: _Attempt) -> Verdict:
        """Lets middleware rewrite the arguments and hooks judge the call; what they leave is validated again."""
        hooks = self.hooks
        if hooks.has_middleware("tool_request"):
            args, call.trace = await tool_hooks.rewrite_request(hooks, call.entry.name, call.args, call.ctx, call.edge)
            call.args = self._checked(call, args)
        if not hooks.has("pre_tool_call"):
            return ALLOW
        before = deepcopy(call.args)
        verdict = await tool_hooks.ask_pre_hooks(hooks, call.entry, call.args, call.ctx, call.trace, call.edge)
        if call.args != before:
            call.args = self._checked(call, call.args)
        return verdict

    async def _admit(self, call: _Attempt, verdict: Verdict, edge: Edge) -> None:
        """Has policy, and a person where it says so, agree to the call, and its start recorded; else it is refused."""
        entry, ctx = call.entry, call.ctx
        effects = call.effects = effects_of(entry, call.args, ctx)
        may_act = bool(effects) or self._is_judged(entry, effects)
        if may_act:
            verdict = verdict.joined(self.gate.judge(entry, call.args, effects, ctx))
        if verdict.decision == "ask" or verdict.dangers:
            asking = self.gate.settle(entry, call.args, verdict, ctx)
            verdict = await edge.wait_bounded(asking, Limit(_seconds_left(ctx), ctx.cancel))
        if verdict.decision != "allow":
            raise Refused(outcome.denied(verdict, entry.name, ctx))
        if may_act:
            if effects and self.snapshots is not None and self.snapshots.wants(effects, ctx):
                call.kept = True
                await self._guarded(edge.wait(self.snapshots.before(entry, effects, ctx)), entry.name)
            self.recorder.started(entry, call.args, effects or (), ctx)
            call.recorded = True

    def _is_judged(self, entry: ToolEntry, effects: object) -> bool:
        """Whether the gate looks at a tool that declares no effects."""
        if effects is None and entry.source.kind == "mcp":
            return True
        return bool(self._restricted) and any(fnmatchcase(entry.name, name) for name in self._restricted)

    async def _execute(self, call: _Attempt) -> ToolResult:
        """Runs the handler and turns whatever it gave or raised into a result: the first error layer."""
        entry, ctx = call.entry, call.ctx
        if ctx.cancel is not None and ctx.cancel.cancelled:
            return outcome.cancelled(entry.name, ctx, call.started)
        token = current_context.set(ctx)
        try:
            if self.hooks.is_empty or not self.hooks.has_middleware("tool_execution"):
                value = await self._call(call, call.args, call.edge)
            else:
                value = await self._call_through_middleware(call)
        except Refused:
            raise
        except CallCancelled:
            return outcome.cancelled(entry.name, ctx, call.started)
        except (CallTimedOut, NestedCallTimeout) as error:
            return outcome.timed_out(error, entry.name, ctx, call.started)
        except BaseException as error:
            if not isinstance(error, Exception) and call.edge.passes_on(error):
                raise
            logger.exception("tool %r failed", entry.name)
            return outcome.handler_failed(error, entry.name, ctx, call.started)
        finally:
            current_context.reset(token)
        return outcome.from_value(value, entry.name, ctx, call.started)

    async def _call_through_middleware(self, call: _Attempt) -> Any:
        async def run_handler(args: JsonObject, edge: Edge) -> Any:
            if args != call.args:
                # Nobody has agreed to these arguments yet.
                call.args = self._checked(call, args)
                if callable(call.entry.effects):
                    await self._admit(call, ALLOW, edge)
            return await self._call(call, call.args, edge)

        return await tool_hooks.run_through_middleware(
            self.hooks, call.entry.name, call.args, call.original, call.ctx, call.edge, run_handler
        )

    async def _call(self, call: _Attempt, args: JsonObject, edge: Edge) -> Any:
        entry, ctx = call.entry, call.ctx
        keywords = ctx.handler_kwargs
        if keywords is None:
            keywords = {
                "task_id": ctx.task_id or None,
                "session_id": ctx.session_id or None,
                "user_task": ctx.user_task or None,
            }
        if entry.keywords is not None:
            keywords = {name: value for name, value in keywords.items() if name in entry.keywords}
        if entry.takes_context:
            keywords = {**keywords, "ctx": ctx if call.effects is None else replace(ctx, effects=call.effects)}
        seconds = self.limits.timeouts.get(entry.name)
        if ctx.deadline is not None:
            left = ctx.deadline - time.monotonic()
            if left <= 0:
                raise CallTimedOut("no answer: its deadline had passed before it began")
            seconds = left if seconds is None else min(seconds, left)
        if entry.is_async:
            value = entry.handler(args, **keywords)
            if not inspect.isawaitable(value):
                return value
            clean_up = CLEAN_UP_AFTER_EFFECTS_SECONDS if entry.effects else CLEAN_UP_SECONDS
            return await edge.wait_bounded(value, Limit(seconds, ctx.cancel, clean_up))
        if edge.blocks_inline:
            return entry.handler(args, **keywords)
        return await edge.block(lambda: entry.handler(args, **keywords), seconds, ctx.cancel)

    async def _finish(self, call: _Attempt, result: ToolResult) -> ToolResult:
        """What files are now, post hooks for every outcome, then the budget, then the record."""
        entry, ctx, hooks = call.entry, call.ctx, self.hooks
        if call.kept and self.snapshots is not None:
            await self._guarded(call.edge.wait(self.snapshots.after(ctx)), entry.name)
        if not hooks.is_empty and (hooks.has("post_tool_call") or hooks.has("transform_tool_result")):
            content = await tool_hooks.fire_post_hooks(hooks, entry, call.args, result, ctx, call.trace, call.edge)
            if content is not result.content:
                result = replace(result, content=content)
        limit = self._max_chars(entry)
        if len(result.content) > limit:
            result = within_call_budget(result, limit, self.store, ctx.session_id)
        if call.recorded:
            _, error = attempt(self.recorder.finished, entry, result, ctx)
            if error is not None:
                # The tool has run: its result must reach the model all the same.
                logger.error("the end of a call of tool %r could not be recorded", entry.name, exc_info=error)
        return result

    async def _guarded(self, keeping: Awaitable[None], name: str) -> None:
        """That files cannot be kept for undo is no reason to fail a call, or to lose its result."""
        _, error = await attempt_async(keeping)
        if error is not None:
            logger.error("what a call of tool %r changes could not be kept", name, exc_info=error)

    def _max_chars(self, entry: ToolEntry) -> int | float:
        return entry.max_result_size_chars or self.limits.max_result_chars

    def _checker(self, entry: ToolEntry) -> ArgumentChecker:
        known = self._checkers.get(entry.name)
        if known is None or known[0] is not entry:
            known = self._checkers[entry.name] = (entry, ArgumentChecker(entry))
        return known[1]


def _seconds_left(ctx: ToolContext) -> float | None:
    return None if ctx.deadline is None else max(0.0, ctx.deadline - time.monotonic())
