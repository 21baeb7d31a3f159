"""The pipeline that every tool call from every front end goes through."""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec.structs import replace

from toolcrib.bridge import NestedCallTimeout
from toolcrib.core.approvals import Danger
from toolcrib.core.context import CallMemo, ToolContext, current_context
from toolcrib.core.ports import FileSnapshots, Gate, ProvenanceRecorder, Recorder, ResultStore
from toolcrib.core.types import (
    ALLOW,
    SEARCH_TOOLS,
    TOOL_CALL,
    Effect,
    JsonObject,
    ToolCall,
    ToolEntry,
    ToolResult,
    Verdict,
)
from toolcrib.dispatch import outcome
from toolcrib.dispatch.argument_errors import ArgumentError
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.dispatch.effects import Effects, effects_of
from toolcrib.dispatch.executors import (
    CLEAN_UP_AFTER_EFFECTS_SECONDS,
    CLEAN_UP_SECONDS,
    CallCancelled,
    CallLimit,
    CallTimedOut,
    Executor,
    SyncExecutor,
    drive,
)
from toolcrib.dispatch.hooks import ask_pre_hooks, fire_post_hooks, rewrite_request, run_through_middleware
from toolcrib.dispatch.truncation import within_call_budget
from toolcrib.hooks.manager import HookManager
from toolcrib.registry.registry import ToolRegistry

logger = logging.getLogger(__name__)

SNAPSHOT_FAILED = "cannot snapshot the files that a call to tool %r changes"

FILE_CHANGING_KINDS = frozenset({"write", "delete", "exec"})
"""The effects that can change files."""


class PipelineLimits(msgspec.Struct, frozen=True):
    """The limits for every call of a runtime."""

    max_result_chars: int | float = 100_000
    timeouts: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The timeout in seconds for each tool, by name."""


class CallRefused(Exception):
    """Raised by a stage that ends the call before its handler runs; carries the result."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.error_message)
        self.result = result


class PreparedCall(msgspec.Struct, frozen=True):
    """A call with its tool looked up and its arguments checked, once for both planning and running."""

    name: str
    """The name of the tool that really runs, even behind `tool_call`."""
    arguments: Mapping[str, Any] | str
    """As they were given."""
    entry: ToolEntry | None
    args: JsonObject
    problem: ArgumentError | None


class ToolRules(msgspec.Struct, frozen=True, kw_only=True):
    """What applies to every call of one tool, determined once."""

    entry: ToolEntry
    checker: ArgumentChecker
    is_restricted: bool
    """Whether the gate checks it whatever effects it declares."""
    is_gated: bool
    """Whether the gate checks every call, or has to look at its effects first."""
    is_plain: bool
    """Whether a call without hooks or limits needs none of the stages that may wait."""
    max_chars: int | float
    timeout_seconds: float | None

    def is_judged(self, effects: Effects) -> bool:
        """Whether the gate checks a call with these effects, even if there are none."""
        return bool(effects) or self.is_restricted or (effects is None and self.entry.source.kind == "mcp")


# Made for every call, so a msgspec Struct, like ToolContext.
class CallState(msgspec.Struct):
    """One call in progress, and what is known about it so far."""

    rules: ToolRules
    entry: ToolEntry
    ctx: ToolContext
    executor: Executor
    started: float
    args: JsonObject
    original: JsonObject
    trace: tuple[JsonObject, ...] = ()
    effects: Effects = None
    prepared: PreparedCall | None = None
    recorded: bool = False
    snapshots: FileSnapshots | None = None
    edited: str = ""
    """The command as the person changed it."""
    approved: tuple[Danger, ...] = ()
    """The dangers that the person saw when editing it."""


@contextmanager
def _logged(message: str, name: str) -> Iterator[None]:
    """Log what effects, snapshots or the recorder raise: a call must not lose its result over that."""
    try:
        yield
    except Exception:
        logger.exception(message, name)


class Pipeline:
    """Turns a tool name and raw arguments into a well-formed result."""

    def __init__(
        self,
        registry: ToolRegistry,
        hooks: HookManager,
        gate: Gate,
        recorder: Recorder,
        store: ResultStore,
        limits: PipelineLimits,
        snapshots: Callable[[], FileSnapshots | None] = lambda: None,
        restricted: Sequence[str] = (),
        provenance: ProvenanceRecorder | None = None,
    ) -> None:
        """`restricted` names, with wildcards, the tools that the gate checks whatever effects they declare."""
        self.registry = registry
        self.hooks = hooks
        self.gate = gate
        self.recorder = recorder
        self.store = store
        self.limits = limits
        self._snapshots = snapshots
        self._restricted = tuple(restricted)
        self._provenance = provenance
        self._rules: dict[str, ToolRules] = {}

    async def run(
        self,
        name: str,
        arguments: Mapping[str, Any] | str,
        ctx: ToolContext,
        executor: Executor,
        prepared: PreparedCall | None = None,
    ) -> ToolResult:
        """Exactly one result for the call, whatever happens; only cancellation of the caller's task passes through.

        `post_tool_call` runs once for every call to an existing tool, even if the call was denied or stopped.
        """
        try:
            entry = None if prepared is None else prepared.entry
            if entry is None or self.registry.get_entry(name) is not entry:
                prepared = None
                if name == TOOL_CALL:
                    name, arguments = unwrap_tool_call(arguments)
                entry = self.registry.get_entry(name)
            if entry is None:
                return outcome.unknown(str(name), self.registry.get_all_tool_names(), ctx)
            rules = self._rules.get(name)
            if rules is None or rules.entry is not entry:
                rules = self._rules_of(entry)
            call = CallState(rules, entry, ctx, executor, time.perf_counter(), {}, {}, prepared=prepared)
            result = await self._result(call, arguments)
            if (
                call.snapshots is None
                and not call.recorded
                and call.effects is None
                and self.hooks.is_empty
                and len(result.content) <= rules.max_chars
            ):
                if self._provenance is not None:
                    result = self._provenance.record(entry, call.args, result, ctx)
                return result  # Most calls: no hooks to run, and nothing to shorten.
            return await self._finish(call, result)
        except Exception as error:
            logger.exception("call of tool %r failed outside its handler", name)
            return outcome.call_failed(error, str(name), ctx)

    def run_sync(
        self, name: str, arguments: Mapping[str, Any] | str, ctx: ToolContext, executor: SyncExecutor
    ) -> ToolResult:
        """Like `run`, for a synchronous caller.

        A call that no stage could change, deny, stop or delay runs here, without coroutines: they would cost more than
        the rest of it.
        """
        try:
            rules = self._rules.get(name)
            if (
                rules is None
                or not rules.is_plain
                or not self.hooks.is_empty
                or rules.entry is not self.registry.get_entry(name)
                or (ctx.deadline or ctx.cancel or ctx.allowed_tools) is not None
                or ctx.mode == "plan"
            ):
                return drive(self.run(name, arguments, ctx, executor))
            entry, started = rules.entry, time.perf_counter()
            args, problem = rules.checker.prepare(arguments)
            if problem is not None:
                return drive(self.run(name, arguments, ctx, executor))
            token = current_context.set(ctx)
            try:
                value = entry.handler(args, **_handler_keywords(entry, ctx, None))
            except BaseException as error:
                if executor.propagates(error):
                    raise
                result = _handler_failed(error, entry, ctx, started)
            else:
                result = outcome.from_value(value, entry, ctx, started)
            finally:
                current_context.reset(token)
            if self._provenance is not None:
                result = self._provenance.record(entry, args, result, ctx)
            if len(result.content) > rules.max_chars:
                result = within_call_budget(result, rules.max_chars, self.store, ctx.session_id)
            return result
        except Exception as error:
            logger.exception("call of tool %r failed outside its handler", name)
            return outcome.call_failed(error, str(name), ctx)

    async def run_prepared(self, prepared: PreparedCall, ctx: ToolContext, executor: Executor) -> ToolResult:
        """Like `run`, without checking the arguments again, unless the tool was replaced in the meantime."""
        return await self.run(prepared.name, prepared.arguments, ctx, executor, prepared)

    def prepare(self, name: str, arguments: Mapping[str, Any] | str) -> PreparedCall:
        """The call, looked up and checked; for `planned_effects` and `run_prepared`."""
        if name == TOOL_CALL:
            name, arguments = unwrap_tool_call(arguments)
        try:
            entry = self.registry.get_entry(name)
            args, problem = ({}, None) if entry is None else self._rules_of(entry).checker.prepare(arguments)
        except (TypeError, ValueError, RecursionError):
            # `run` reports it to the model.
            return PreparedCall(name, arguments, None, {}, None)
        return PreparedCall(name, arguments, entry, args, problem)

    def planned_effects(self, prepared: PreparedCall, ctx: ToolContext) -> Effects:
        """The effects that a call would have now; None if unknown, so it runs alone.

        For planning only: admission decides, after the hooks and after earlier calls.
        """
        entry = prepared.entry
        if entry is None:
            return None
        if not callable(entry.effects):
            return entry.effects
        if prepared.problem is not None:
            return None
        effects: Effects = None
        with _logged("cannot compute the effects of tool %r", prepared.name):
            effects = effects_of(entry, prepared.args, ctx)
        return effects  # noqa: RET504 - what raises ends the block before it assigns

    def stopped(self, call: ToolCall, ctx: ToolContext) -> ToolResult:
        """The result of a call that did not run or did not finish because its batch was cancelled."""
        name = unwrap_tool_call(call.arguments)[0] if call.name == TOOL_CALL else call.name
        ctx = replace(ctx, call_id=call.id)
        return outcome.cancelled(name, ctx, reason="the batch was cancelled")

    async def _result(self, call: CallState, arguments: Mapping[str, Any] | str) -> ToolResult:
        """The call's result before hooks and recorder see it; contains the second error layer."""
        entry, ctx = call.entry, call.ctx
        try:
            allowed = ctx.allowed_tools
            if allowed is not None and entry.name not in allowed and entry.name not in SEARCH_TOOLS:
                message = f"Tool {entry.name!r} is not part of this session"
                return outcome.problem(message, "blocked", "tool_scope_block", entry.name, ctx)
            call.args = call.original = self._checked(call, arguments, call.prepared)
            verdict = ALLOW if self.hooks.is_empty else await self._ask_plugins(call)
            if call.rules.is_gated or verdict is not ALLOW or ctx.mode == "plan":
                await self._admit(call, verdict, call.executor)
            result = await self._execute(call)
            return result if not call.edited else replace(result, edited=call.edited)
        except CallRefused as refused:
            return refused.result
        except GeneratorExit:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and call.executor.propagates(error):
                await self._finish(call, outcome.cancelled(entry.name, ctx, call.started))
                raise
            if isinstance(error, CallCancelled):
                return outcome.cancelled(entry.name, ctx, call.started)
            if isinstance(error, CallTimedOut):
                return outcome.timed_out(error, entry.name, ctx, call.started)
            logger.exception("call of tool %r failed outside its handler", entry.name)
            return outcome.call_failed(error, entry.name, ctx)

    def _checked(
        self, call: CallState, arguments: Mapping[str, Any] | str, prepared: PreparedCall | None = None
    ) -> JsonObject:
        if prepared is None:
            args, problem = call.rules.checker.prepare(arguments)
        else:
            args, problem = prepared.args, prepared.problem
        if problem is not None:
            call.args = args
            raise CallRefused(
                outcome.problem(problem.message, "error", "invalid_arguments", call.entry.name, call.ctx, call.started)
            )
        return args

    async def _ask_plugins(self, call: CallState) -> Verdict:
        """Lets middleware rewrite the arguments and hooks judge the call; validates the new arguments again."""
        hooks = self.hooks
        if hooks.has_middleware("tool_request"):
            args, call.trace = await rewrite_request(hooks, call.entry.name, call.args, call.ctx, call.executor)
            call.args = self._checked(call, args)
        if not hooks.has("pre_tool_call"):
            return ALLOW
        before = deepcopy(call.args)
        verdict = await ask_pre_hooks(hooks, call.entry, call.args, call.ctx, call.trace, call.executor)
        if call.args != before:
            call.args = self._checked(call, call.args)
        return verdict

    async def _admit(self, call: CallState, verdict: Verdict, executor: Executor) -> None:
        """Checks the call against policy, asks for approval if needed, and records its start; otherwise denies it."""
        entry, ctx = call.entry, call.ctx
        if callable(entry.effects) and ctx.memo is None:
            # One context for the whole call: this object links the snapshots before and after it.
            ctx = call.ctx = replace(ctx, memo=CallMemo())
        memo = ctx.memo
        if memo is not None:
            memo.clear()
        effects = call.effects = effects_of(entry, call.args, ctx)
        may_act = call.rules.is_judged(effects)
        # In plan mode, even a tool that says nothing about its effects has to be allowed.
        if may_act or ctx.mode == "plan":
            verdict = verdict.joined(self.gate.judge(entry, call.args, effects, ctx))
        if verdict.decision == "ask" and call.edited and _is_known(verdict, call.approved):
            verdict = replace(verdict, decision="allow", rule="edited")
        if verdict.decision == "ask" or verdict.dangers:
            asked, began = verdict, time.perf_counter()
            verdict = await self._settle(call, verdict, executor)
            # The time that a person takes to answer is not the tool's.
            call.started += time.perf_counter() - began
            if verdict.edited:
                # The person wrote this command, so only a new danger needs another question.
                call.args = self._checked(call, {**call.args, "command": verdict.edited})
                call.edited, call.approved = verdict.edited, verdict.dangers
                again = ALLOW if self.hooks.is_empty else await self._ask_plugins(call)
                await self._admit(call, again, executor)
                return
            if may_act and asked.decision == "ask" and verdict.decision == "allow":
                verdict = self._judged_again(call, asked, verdict)
                effects = call.effects
        if verdict.decision != "allow":
            raise CallRefused(outcome.denied(verdict, entry.name, ctx))
        if may_act:
            snapshots = (
                self._snapshots() if effects and any(effect.kind in FILE_CHANGING_KINDS for effect in effects) else None
            )
            if effects and snapshots is not None and snapshots.wants(effects, ctx):
                call.snapshots = snapshots
                with _logged(SNAPSHOT_FAILED, entry.name):
                    await executor.wait(snapshots.before(entry, effects, ctx))
            if not isinstance(self.recorder, NullRecorder):
                # Set first: if the call is cancelled meanwhile, its end is recorded as well.
                call.recorded = True
                await executor.record(lambda: self.recorder.started(entry, call.args, effects or (), call.ctx))

    def _judged_again(self, call: CallState, asked: Verdict, answered: Verdict) -> Verdict:
        """The answer, unless the call has become more dangerous since the question: links and folders may change."""
        entry, ctx = call.entry, call.ctx
        if ctx.memo is None:
            return answered
        ctx.memo.clear()
        effects = call.effects = effects_of(entry, call.args, ctx)
        now = self.gate.judge(entry, call.args, effects, ctx)
        known = {(danger.rule, danger.paths) for danger in asked.dangers}
        if now.decision != "deny" and all((danger.rule, danger.paths) in known for danger in now.dangers):
            return answered
        return Verdict("deny", (*now.reasons, "what it reaches changed after it was approved"), "changed", now.dangers)

    async def _settle(self, call: CallState, verdict: Verdict, executor: Executor) -> Verdict:
        """Asks for approval if the verdict is to ask, and has the gate record the decision."""
        ctx = call.ctx
        settling = self.gate.resolve(call.entry, call.args, verdict, ctx)
        if verdict.decision != "ask":
            return await executor.wait(settling)
        if ctx.memo is not None:
            # An answer may take long, so determine the environment again after it.
            ctx.memo.target = None
        return await executor.wait_bounded(settling, CallLimit(_seconds_left(ctx), ctx.cancel))

    async def _execute(self, call: CallState) -> ToolResult:
        """Runs the handler and turns whatever it returns or raises into a result: the first error layer."""
        entry, ctx = call.entry, call.ctx
        if ctx.cancel is not None and ctx.cancel.cancelled:
            return outcome.cancelled(entry.name, ctx, call.started)
        token = current_context.set(ctx)
        try:
            if not self.hooks.is_empty and self.hooks.has_middleware("tool_execution"):
                value = await self._call_through_middleware(call)
            else:
                value = await self._call(call, call.args, call.executor)
        except CallRefused:
            raise
        except BaseException as error:
            if call.executor.propagates(error):
                raise
            return _handler_failed(error, entry, ctx, call.started)
        finally:
            current_context.reset(token)
        return outcome.from_value(value, entry, ctx, call.started)

    async def _call_through_middleware(self, call: CallState) -> Any:
        async def run_handler(args: JsonObject, executor: Executor) -> Any:
            if args != call.args:
                # These arguments are not approved yet.
                call.args = self._checked(call, args)
                if callable(call.entry.effects):
                    await self._admit(call, ALLOW, executor)
            return await self._call(call, call.args, executor)

        return await run_through_middleware(
            self.hooks, call.entry.name, call.args, call.original, call.ctx, call.executor, run_handler
        )

    async def _call(self, call: CallState, args: JsonObject, executor: Executor) -> Any:
        entry, ctx = call.entry, call.ctx
        keywords, seconds = _handler_keywords(entry, ctx, call.effects), _seconds_for(call)
        if entry.is_async:
            value = entry.handler(args, **keywords)
            if not inspect.isawaitable(value):
                return value
            clean_up = CLEAN_UP_AFTER_EFFECTS_SECONDS if entry.effects else CLEAN_UP_SECONDS
            return await executor.wait_bounded(value, CallLimit(seconds, ctx.cancel, clean_up))
        if executor.runs_inline:
            return entry.handler(args, **keywords)
        return await executor.block(lambda: entry.handler(args, **keywords), seconds, ctx.cancel)

    async def _finish(self, call: CallState, result: ToolResult) -> ToolResult:
        """Records the changed files, runs post hooks for every outcome, applies the budget, then records the result."""
        entry, ctx, hooks = call.entry, call.ctx, self.hooks
        if call.snapshots is not None:
            with _logged(SNAPSHOT_FAILED, entry.name):
                notices = await call.executor.wait(call.snapshots.after(ctx))
                result = replace(result, notices=notices) if notices else result
        if not hooks.is_empty and (hooks.has("post_tool_call") or hooks.has("transform_tool_result")):
            content = await fire_post_hooks(hooks, entry, call.args, result, ctx, call.trace, call.executor)
            if content is not result.content:
                result = replace(result, content=content)
        if call.effects is not None:
            result = replace(result, effects=call.effects)
        if self._provenance is not None:
            result = self._provenance.record(entry, call.args, result, ctx)
        if len(result.content) > call.rules.max_chars:
            result = within_call_budget(result, call.rules.max_chars, self.store, ctx.session_id)
        if call.recorded:
            with _logged("cannot record the end of a call to tool %r", entry.name):
                await call.executor.record(lambda: self.recorder.finished(entry, result, ctx))
        return result

    def _rules_of(self, entry: ToolEntry) -> ToolRules:
        known = self._rules.get(entry.name)
        if known is None or known.entry is not entry:
            is_restricted = any(fnmatchcase(entry.name, name) for name in self._restricted)
            is_gated = bool(entry.effects) or is_restricted or (entry.effects is None and entry.source.kind == "mcp")
            known = self._rules[entry.name] = ToolRules(
                entry=entry,
                checker=ArgumentChecker(entry),
                is_restricted=is_restricted,
                is_gated=is_gated,
                is_plain=not (is_gated or entry.is_async or entry.effects is not None or entry.name == TOOL_CALL),
                max_chars=entry.max_result_size_chars or self.limits.max_result_chars,
                timeout_seconds=self.limits.timeouts.get(entry.name),
            )
        return known


def _is_known(verdict: Verdict, approved: Sequence[Danger]) -> bool:
    """Whether a question is about nothing but dangers that were approved, in the same scopes."""
    if verdict.rule and verdict.rule not in {danger.rule for danger in approved}:
        return False
    known = {(danger.rule, danger.scope) for danger in approved}
    return all((danger.rule, danger.scope) in known for danger in verdict.dangers)


def _handler_failed(error: BaseException, entry: ToolEntry, ctx: ToolContext, started: float) -> ToolResult:
    """The result for what a handler raised."""
    if isinstance(error, CallCancelled):
        return outcome.cancelled(entry.name, ctx, started)
    if isinstance(error, (CallTimedOut, NestedCallTimeout)):
        return outcome.timed_out(error, entry.name, ctx, started)
    logger.error("tool %r failed", entry.name, exc_info=error)
    return outcome.handler_failed(error, entry.name, ctx, started)


def _handler_keywords(entry: ToolEntry, ctx: ToolContext, effects: Effects) -> Mapping[str, Any]:
    """What the handler gets besides the arguments."""
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
        keywords = {**keywords, "ctx": ctx if effects is None else replace(ctx, effects=effects)}
    return keywords


def _seconds_for(call: CallState) -> float | None:
    """How long the handler may take; raises CallTimedOut if the deadline of the call has passed."""
    seconds, deadline = call.rules.timeout_seconds, call.ctx.deadline
    if deadline is None:
        return seconds
    left = deadline - time.monotonic()
    if left <= 0:
        raise CallTimedOut("no answer: its deadline passed before it started")
    return left if seconds is None else min(seconds, left)


def _seconds_left(ctx: ToolContext) -> float | None:
    return None if ctx.deadline is None else max(0.0, ctx.deadline - time.monotonic())


def unwrap_tool_call(arguments: Mapping[str, Any] | str) -> tuple[str, Mapping[str, Any] | str]:
    """The name and arguments of the inner call; those of `tool_call` itself if there is no valid one."""
    outer: Any = arguments
    if isinstance(outer, str):
        try:
            outer = json.loads(outer)
        except ValueError:
            return TOOL_CALL, arguments
    if not isinstance(outer, Mapping):
        return TOOL_CALL, arguments
    name, inner = outer.get("name"), outer.get("arguments")
    if not isinstance(name, str) or name in SEARCH_TOOLS:
        return TOOL_CALL, arguments
    if inner is None:
        inner = {}
    return (name, inner) if isinstance(inner, (Mapping, str)) else (TOOL_CALL, arguments)


class NullRecorder:
    """Does nothing."""

    def started(
        self, _entry: ToolEntry, _arguments: JsonObject, _effects: tuple[Effect, ...], _ctx: ToolContext, /
    ) -> None:
        return None

    def finished(self, _entry: ToolEntry, _result: ToolResult, _ctx: ToolContext, /) -> None:
        return None
