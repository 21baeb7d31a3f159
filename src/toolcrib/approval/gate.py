"""The approval gate: applies policy and grants to a call, asks the approver where needed, and records the outcome."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from toolcrib.approval.approvers import has_own_timeout
from toolcrib.approval.audit_log import ApprovalLog
from toolcrib.approval.calls import CommandReading, ReadCommand
from toolcrib.approval.grants import Grants, may_be_permanent
from toolcrib.approval.policy import Action, Policy, answer_dangers, decide, describe_danger
from toolcrib.approval.provenance import ProvenanceStore
from toolcrib.config.os_errors import ANOTHER_HOME, explain_os_error
from toolcrib.core.approvals import PENDING, USER_DENIED, ApprovalAnswer, ApprovalRequest, Choice, Danger
from toolcrib.core.attempt import attempt_async
from toolcrib.core.cancel import finish_in_thread
from toolcrib.core.context import CallMemo, ToolContext
from toolcrib.core.errors import ConfigError
from toolcrib.core.origins import ValueFinding
from toolcrib.core.ports import Approver, FireHook
from toolcrib.core.types import Effect, JsonObject, Preview, ShellSession, ToolEntry, Verdict

if TYPE_CHECKING:
    from toolcrib.approval.shell.syntax import Script

logger = logging.getLogger(__name__)

DEFAULT_SESSION = "default"
TIMEOUT_GRACE_SECONDS = 1.0
"""Extra time for an approver that enforces the timeout itself, so that it can report it in its own words."""
MAX_SHOWN_ARGUMENTS = 2_000
PREVIEW_SECONDS = 5.0
SURFACES = {"interactive": "cli", "gateway": "gateway"}


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question being asked, with the keywords that hooks receive."""

    request: ApprovalRequest
    keywords: dict[str, Any]


class ApprovalGate:
    """Decides calls by policy and grants, asks the approver where needed, and records every outcome."""

    def __init__(
        self,
        policy: Policy,
        *,
        grants: Grants,
        log: ApprovalLog,
        read: ReadCommand,
        approver: Approver | None = None,
        timeout_seconds: float = 60.0,
        fire: FireHook | None = None,
        provenance: ProvenanceStore | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.policy = policy
        self.grants = grants
        self.log = log
        self._read = read
        self._approver = approver
        self._timeout_seconds = timeout_seconds
        self._fire = fire
        self._provenance = provenance
        self._clock = clock

    def attend(self, approver: Approver, policy: Policy) -> None:
        """Ask this approver from now on, under a policy that takes it into account."""
        self._approver = approver
        self.policy = policy

    def judge(
        self, entry: ToolEntry, arguments: JsonObject, effects: tuple[Effect, ...] | None, ctx: ToolContext
    ) -> Verdict:
        action = Action(
            tool=entry.name,
            effects=effects,
            mcp_server=entry.source.name if entry.source.kind == "mcp" else "",
            is_builtin=entry.is_ours,
            title=entry.title,
            cwd=ctx.cwd,
            arguments=arguments,
            findings=self._findings(entry, arguments, effects, ctx),
            origin_of=None if self._provenance is None else self._provenance.of(ctx.session_id).origin_of,
        )
        read = self._read if ctx.memo is None else _remembered(self._read, ctx.memo)
        policy = self.policy if ctx.mode == self.policy.session_mode else replace(self.policy, session_mode=ctx.mode)
        return decide(policy, action, self.grants.in_force(session_key(ctx)), read).verdict()

    def _findings(
        self, entry: ToolEntry, arguments: JsonObject, effects: tuple[Effect, ...] | None, ctx: ToolContext
    ) -> tuple[ValueFinding, ...] | None:
        if self._provenance is None or self.policy.provenance == "off" or not effects:
            return None
        limit = self.policy.provenance_limit
        return self._provenance.of(ctx.session_id).findings(entry, arguments, effects, limit=limit)

    async def resolve(self, entry: ToolEntry, arguments: JsonObject, verdict: Verdict, ctx: ToolContext) -> Verdict:
        dangers = _dangers_of(verdict)
        request = self._request(entry, arguments, verdict, dangers, ctx)
        if verdict.decision != "ask":
            return await self._record_decision(verdict, request)
        granted = self.grants.in_force(request.session_key)
        still_open = tuple(
            danger for danger in dangers if not any(grant.covers(danger, verdict.command) for grant in granted)
        )
        request = replace(request, dangers=still_open or dangers, may_be_permanent=may_be_permanent(still_open))
        if not still_open:
            return await self._record_decision(
                Verdict("allow", (), "grant", dangers, findings=verdict.findings), request
            )
        # Policy has just asked this question, so it stands; a plugin's question must still be checked against policy.
        if not verdict.dangers:
            decision = answer_dangers(self.policy, still_open)
            if decision.outcome != "ask":
                return await self._record_decision(decision.verdict(), request)
        if entry.preview is not None and self._approver is not None:
            request = replace(request, diff=await _preview(entry.preview, arguments, ctx))
        return await self._ask(request)

    async def _ask(self, request: ApprovalRequest) -> Verdict:
        if self._approver is None:
            reasons = (*_reasons(request), "no one is available to approve it")
            verdict = Verdict("deny", reasons, "nobody", request.dangers, findings=request.findings)
            return await self._record_decision(verdict, request)
        try:
            await finish_in_thread(self.log.requested, request)
        except OSError as error:
            return _unrecorded(request, error)
        question = _Question(request=request, keywords=_hook_keywords(request))
        self._fire_hook("pre_approval_request", question.keywords)
        answer, can_wait = ApprovalAnswer(choice="deny", reason="the approver failed", decided_by="error"), True
        try:
            answer = await self._answer_in_time(self._approver, request)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit) as error:
            answer = ApprovalAnswer(choice="cancelled", decided_by="interrupt")
            can_wait = isinstance(error, asyncio.CancelledError)
            raise
        finally:
            # Also if the call is cancelled while it waits: every recorded question gets an outcome.
            recorded = (question.request, answer)
            problem = await finish_in_thread(self._record, *recorded) if can_wait else self._record(*recorded)
            self._announce(question, answer)
        if problem is not None and answer.allows:
            return _unrecorded(request, problem)
        if answer.allows:
            await finish_in_thread(self.remember, request, answer)
            edited = answer.command if request.can_be_edited else ""
            return Verdict("allow", (), answer.choice, request.dangers, edited=edited)
        return _denial(request, answer, self._timeout_seconds)

    async def _answer_in_time(self, approver: Approver, request: ApprovalRequest) -> ApprovalAnswer:
        # A question may queue for the terminal, and its timeout starts only when it is shown.
        limit = None if has_own_timeout(approver) else self._timeout_seconds + TIMEOUT_GRACE_SECONDS
        try:
            answer = await asyncio.wait_for(approver.ask(request), limit)
        except TimeoutError:
            return ApprovalAnswer(choice="timeout", decided_by="timeout")
        if not isinstance(answer, ApprovalAnswer):
            raise TypeError(f"the approver returned {answer!r} instead of an ApprovalAnswer")
        if answer.choice == "always" and not request.may_be_permanent:
            answer = replace(answer, choice="session")
        return answer if answer.decided_by else replace(answer, decided_by="user")

    def _record(self, request: ApprovalRequest, answer: ApprovalAnswer) -> OSError | None:
        """Record the answer; returns the error if that failed."""
        if answer.decided_by == PENDING:
            return None
        try:
            self.log.answered(request.id, answer)
        except OSError as error:
            logger.error("cannot record the answer to approval %s: %s", request.id, error)
            return error
        return None

    def _announce(self, question: _Question, answer: ApprovalAnswer) -> None:
        if answer.decided_by == PENDING:
            return
        keywords = {**question.keywords, "choice": _hook_choice(answer), "decided_by": answer.decided_by}
        if answer.decided_by == "smart":
            keywords["surface"] = "smart"
        self._fire_hook("post_approval_response", keywords)

    def remember(self, request: ApprovalRequest, answer: ApprovalAnswer) -> None:
        """Grant what an answer allows beyond its call, even if the answer came after the call had ended."""
        if answer.choice == "session" or (answer.choice == "always" and answer.decided_by == "smart"):
            self.grants.allow_in_session(request.session_key, request.dangers, every_scope=answer.every_scope)
        elif answer.choice == "always":
            try:
                self.grants.allow_permanently(request.dangers, every_scope=answer.every_scope)
            except ConfigError as error:
                # The person agreed and only the file failed, so the grant holds for this session.
                logger.error("cannot save a permanent approval: %s", error)
                self.grants.allow_in_session(request.session_key, request.dangers, every_scope=answer.every_scope)

    async def _record_decision(self, verdict: Verdict, request: ApprovalRequest) -> Verdict:
        """Record a decision that needed no question; deny the call if recording fails.

        Otherwise a full disk would let a tool act without a trace.
        """
        choice: Choice = "once" if verdict.decision == "allow" else "deny"
        try:
            answer = ApprovalAnswer(choice=choice, decided_by=verdict.rule or "policy")
            await finish_in_thread(self.log.decided, request, answer)
        except OSError as error:
            logger.error("cannot record a decision about %s: %s", request.tool, error)
            return verdict if verdict.decision != "allow" else _unrecorded(request, error)
        return verdict

    def _request(
        self, entry: ToolEntry, arguments: JsonObject, verdict: Verdict, dangers: tuple[Danger, ...], ctx: ToolContext
    ) -> ApprovalRequest:
        return ApprovalRequest(
            id=os.urandom(8).hex(),
            tool=entry.name,
            title=entry.title if entry.title != entry.name else "",
            command=verdict.command or _call_text(entry.title, arguments),
            dangers=dangers,
            session_key=session_key(ctx),
            call_id=ctx.call_id,
            turn_id=ctx.turn_id,
            cwd=ctx.cwd or self.policy.workspace,
            backend=verdict.backend or self.policy.backend,
            entry_point=self.policy.entry_point,
            asked_at=self._clock(),
            may_be_permanent=may_be_permanent(dangers),
            arguments=arguments,
            findings=verdict.findings,
        )

    def _fire_hook(self, name: str, keywords: dict[str, Any]) -> None:
        if self._fire is not None:
            self._fire(name, **keywords)


async def _preview(preview: Preview, arguments: JsonObject, ctx: ToolContext) -> str:
    """What the call would change; empty if that cannot be found out soon."""
    shown, error = await attempt_async(asyncio.wait_for(preview(arguments, ctx), PREVIEW_SECONDS))
    if error is not None:
        logger.info("no preview of a call to %s: %r", ctx.tool_name, error)
    return shown if isinstance(shown, str) else ""


def session_key(ctx: ToolContext) -> str:
    """The session that the call's grants belong to."""
    return ctx.session_id or DEFAULT_SESSION


def _dangers_of(verdict: Verdict) -> tuple[Danger, ...]:
    """The dangers of a verdict, plus the plugin's question as one more."""
    if not verdict.rule.startswith("plugin_rule:") or any(danger.rule == verdict.rule for danger in verdict.dangers):
        return verdict.dangers
    reason = verdict.reasons[0] if verdict.reasons else "a plugin requires approval"
    return (Danger(rule=verdict.rule, description=reason, reason=reason), *verdict.dangers)


def _reasons(request: ApprovalRequest) -> tuple[str, ...]:
    return tuple(dict.fromkeys(describe_danger(danger, request.command) for danger in request.dangers))


def _denial(request: ApprovalRequest, answer: ApprovalAnswer, timeout_seconds: float) -> Verdict:
    """What the model reads: what was denied and why, never how to get around it."""
    what = _reasons(request)
    if answer.choice == "timeout":
        reason = (
            f"no one answered within {timeout_seconds:g} seconds; this is not a refusal, so ask before you try again"
        )
        return Verdict("deny", (*what, reason), "approval_timeout")
    if answer.choice == "cancelled":
        return Verdict("deny", (*what, "the question was cancelled"), "cancelled")
    if answer.decided_by != "user":
        return Verdict("deny", (*what, answer.reason or "it was denied"), answer.decided_by)
    reason = USER_DENIED + (f": {answer.reason}" if answer.reason else "; do not try it another way")
    return Verdict("deny", (*what, reason), "denied")


def _unrecorded(request: ApprovalRequest, error: OSError) -> Verdict:
    failed = explain_os_error(error, "write the record", otherwise=ANOTHER_HOME)
    why = f"toolcrib records a dangerous call before it runs, and recording failed: {failed}"
    return Verdict("deny", (*_reasons(request), why), "unrecorded")


def _call_text(tool: str, arguments: JsonObject) -> str:
    """A call that runs no command, as one line of text for the question."""
    shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    cut = shown if len(shown) <= MAX_SHOWN_ARGUMENTS else f"{shown[:MAX_SHOWN_ARGUMENTS]}…"
    return f"{tool}({cut})"


def _hook_keywords(request: ApprovalRequest) -> dict[str, Any]:
    keys = list(dict.fromkeys(danger.pattern_key for danger in request.dangers))
    return {
        "command": request.command,
        "description": request.description,
        "pattern_key": keys[0] if keys else "",
        "pattern_keys": keys,
        "session_key": request.session_key,
        "surface": SURFACES.get(request.entry_point, request.entry_point),
        "turn_id": request.turn_id,
        "tool_call_id": request.call_id,
    }


def _hook_choice(answer: ApprovalAnswer) -> str:
    if answer.decided_by == "smart":
        return "smart_approve" if answer.allows else "smart_deny"
    return "deny" if answer.choice == "cancelled" else answer.choice


def _remembered(read: ReadCommand, memo: CallMemo) -> ReadCommand:
    """Reads commands, and leaves what was read to whoever runs the call."""

    def read_and_keep(
        command: str | Script,
        *,
        cwd: str,
        home: str,
        own: tuple[str, ...] = (),
        here: bool = False,
        session: ShellSession | None = None,
    ) -> CommandReading:
        reading = read(command, cwd=cwd, home=home, own=own, here=here, session=session)
        memo.readings[command if isinstance(command, str) else command.source] = reading
        return reading

    return read_and_keep
