"""The one place where a call is allowed, asked about or denied: what was granted, what policy says, whom we ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolcrib.approval.shell.syntax import Script

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from toolcrib.approval.approvers import keeps_time
from toolcrib.approval.audit_log import ApprovalLog
from toolcrib.approval.calls import CommandReading, ReadCommand
from toolcrib.approval.grants import Grants, may_be_permanent
from toolcrib.approval.options import FireHook
from toolcrib.approval.policy import Action, Policy, answer_dangers, decide, in_words
from toolcrib.core.approvals import Answer, ApprovalRequest, Choice, Danger
from toolcrib.core.context import CallMemo, ToolContext
from toolcrib.core.errors import ConfigError
from toolcrib.core.ports import Approver
from toolcrib.core.types import Effect, JsonObject, ToolEntry, Verdict

logger = logging.getLogger(__name__)

DEFAULT_SESSION = "default"
TIMEOUT_GRACE_SECONDS = 1.0
"""An approver that keeps the time itself gets this much longer, to say so in its own words."""
PENDING = "pending"
"""`decided_by` of a deny that answers the call but not the question, which stays open on record."""
MAX_SHOWN_ARGUMENTS = 2_000
SURFACES = {"interactive": "cli", "gateway": "gateway"}


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    """One question on its way, with what the hooks are told about it."""

    request: ApprovalRequest
    keywords: dict[str, Any]


class ApprovalGate:
    """Decides about calls by policy and grants, asks where they say so, and keeps the record."""

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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.policy = policy
        self.grants = grants
        self.log = log
        self._read = read
        self._approver = approver
        self._timeout_seconds = timeout_seconds
        self._fire = fire
        self._clock = clock

    def attend(self, approver: Approver, policy: Policy) -> None:
        """Ask this approver from now on, by a policy that knows of him."""
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
        )
        read = self._read if ctx.memo is None else _remembered(self._read, ctx.memo)
        return decide(self.policy, action, self.grants.in_force(session_key(ctx)), read).verdict()

    async def settle(self, entry: ToolEntry, arguments: JsonObject, verdict: Verdict, ctx: ToolContext) -> Verdict:
        dangers = _dangers_of(verdict)
        request = self._request(entry, arguments, verdict, dangers, ctx)
        if verdict.decision != "ask":
            return self._record_decision(verdict, request)
        granted = self.grants.in_force(request.session_key)
        still_open = tuple(
            danger for danger in dangers if not any(grant.covers(danger, verdict.command) for grant in granted)
        )
        request = replace(request, dangers=still_open or dangers, may_be_permanent=may_be_permanent(still_open))
        if not still_open:
            return self._record_decision(Verdict("allow", (), "grant", dangers), request)
        # A question that policy has just put stands; a plugin's own has not been held against policy yet.
        if not verdict.dangers:
            decision = answer_dangers(self.policy, still_open)
            if decision.outcome != "ask":
                return self._record_decision(decision.verdict(), request)
        return await self._ask(request)

    async def _ask(self, request: ApprovalRequest) -> Verdict:
        if self._approver is None:
            reasons = (*_reasons(request), "nobody is here to approve it")
            return self._record_decision(Verdict("deny", reasons, "nobody", request.dangers), request)
        try:
            self.log.requested(request)
        except OSError as error:
            return _unrecorded(request, error)
        question = _Question(request=request, keywords=_hook_keywords(request))
        self._tell("pre_approval_request", question.keywords)
        answer = Answer(choice="deny", reason="the approver failed", decided_by="error")
        try:
            answer = await self._answer_in_time(self._approver, request)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
            answer = Answer(choice="cancelled", decided_by="interrupt")
            raise
        finally:
            # Also when the call is cancelled while it waits: a question on record has an end.
            problem = self._close(question, answer)
        if problem is not None and answer.allows:
            return _unrecorded(request, problem)
        if answer.allows:
            self.remember(request, answer)
            return Verdict("allow", (), answer.choice, request.dangers)
        return _denial(request, answer, self._timeout_seconds)

    async def _answer_in_time(self, approver: Approver, request: ApprovalRequest) -> Answer:
        # A question may have to wait for its turn at the terminal, and its time begins when it is seen.
        limit = None if keeps_time(approver) else self._timeout_seconds + TIMEOUT_GRACE_SECONDS
        try:
            answer = await asyncio.wait_for(approver.ask(request), limit)
        except TimeoutError:
            return Answer(choice="timeout", decided_by="timeout")
        if not isinstance(answer, Answer):
            raise TypeError(f"the approver gave {answer!r}, which is no Answer")
        if answer.choice == "always" and not request.may_be_permanent:
            answer = replace(answer, choice="session")
        return answer if answer.decided_by else replace(answer, decided_by="user")

    def _close(self, question: _Question, answer: Answer) -> OSError | None:
        """Record the answer and tell the hooks; gives the error when it could not be recorded."""
        if answer.decided_by == PENDING:
            return None
        problem = None
        try:
            self.log.answered(question.request.id, answer)
        except OSError as error:
            logger.error("the answer to approval %s could not be recorded: %s", question.request.id, error)
            problem = error
        told = {**question.keywords, "choice": _hook_choice(answer), "decided_by": answer.decided_by}
        if answer.decided_by == "smart":
            told["surface"] = "smart"
        self._tell("post_approval_response", told)
        return problem

    def remember(self, request: ApprovalRequest, answer: Answer) -> None:
        """Keep what an answer allows beyond its call; also for an answer that came when the call had gone."""
        if answer.choice == "session" or (answer.choice == "always" and answer.decided_by == "smart"):
            self.grants.allow_in_session(request.session_key, request.dangers, every_scope=answer.every_scope)
        elif answer.choice == "always":
            try:
                self.grants.allow_for_good(request.dangers, every_scope=answer.every_scope)
            except ConfigError as error:
                # The person agreed; only the file did not take it. It holds for this session.
                logger.error("an approval could not be kept for good: %s", error)
                self.grants.allow_in_session(request.session_key, request.dangers, every_scope=answer.every_scope)

    def _record_decision(self, verdict: Verdict, request: ApprovalRequest) -> Verdict:
        """Put on record what was decided without a question; what cannot be recorded is not allowed.

        Otherwise a full disk would let a tool act without a trace.
        """
        choice: Choice = "once" if verdict.decision == "allow" else "deny"
        try:
            self.log.decided(request, Answer(choice=choice, decided_by=verdict.rule or "policy"))
        except OSError as error:
            logger.error("a decision about %s could not be recorded: %s", request.tool, error)
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
        )

    def _tell(self, name: str, keywords: dict[str, Any]) -> None:
        if self._fire is not None:
            self._fire(name, **keywords)


def session_key(ctx: ToolContext) -> str:
    """The session that grants belong to."""
    return ctx.session_id or DEFAULT_SESSION


def _dangers_of(verdict: Verdict) -> tuple[Danger, ...]:
    """The dangers of a verdict, and the plugin's question as one more."""
    if not verdict.rule.startswith("plugin_rule:") or any(danger.rule == verdict.rule for danger in verdict.dangers):
        return verdict.dangers
    reason = verdict.reasons[0] if verdict.reasons else "a plugin wants it to be approved"
    return (Danger(rule=verdict.rule, description=reason, reason=reason), *verdict.dangers)


def _reasons(request: ApprovalRequest) -> tuple[str, ...]:
    return tuple(dict.fromkeys(in_words(danger, request.command) for danger in request.dangers))


def _denial(request: ApprovalRequest, answer: Answer, timeout_seconds: float) -> Verdict:
    """What the model reads: what was denied and why; never how to get around it."""
    what = _reasons(request)
    if answer.choice == "timeout":
        said = f"nobody answered within {timeout_seconds:g} seconds; that is no refusal, so ask before you try again"
        return Verdict("deny", (*what, said), "approval_timeout")
    if answer.choice == "cancelled":
        return Verdict("deny", (*what, "the question was cancelled"), "cancelled")
    if answer.decided_by != "user":
        return Verdict("deny", (*what, answer.reason or "it was denied"), answer.decided_by)
    said = "the user denied it" + (f": {answer.reason}" if answer.reason else "; do not try it another way")
    return Verdict("deny", (*what, said), "denied")


def _unrecorded(request: ApprovalRequest, error: OSError) -> Verdict:
    why = (
        f"what is dangerous must be on record before it runs, and it could not be recorded ({error.strerror or error})"
    )
    return Verdict("deny", (*_reasons(request), why), "unrecorded")


def _call_text(tool: str, arguments: JsonObject) -> str:
    """A call that runs no command, as a line for the person who is asked."""
    shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    cut = shown if len(shown) <= MAX_SHOWN_ARGUMENTS else f"{shown[:MAX_SHOWN_ARGUMENTS]}…"
    return f"{tool}({cut})"


def _hook_keywords(request: ApprovalRequest) -> dict[str, Any]:
    keys = list(dict.fromkeys(_pattern_key(danger) for danger in request.dangers))
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


def _pattern_key(danger: Danger) -> str:
    return danger.rule if danger.rule.startswith("plugin_rule:") else danger.description


def _hook_choice(answer: Answer) -> str:
    if answer.decided_by == "smart":
        return "smart_approve" if answer.allows else "smart_deny"
    return "deny" if answer.choice == "cancelled" else answer.choice


def _remembered(read: ReadCommand, memo: CallMemo) -> ReadCommand:
    """Reads commands, and leaves what was read to whoever runs the call."""

    def read_and_keep(command: str | Script, *, cwd: str, home: str, own: tuple[str, ...] = ()) -> CommandReading:
        reading = read(command, cwd=cwd, home=home, own=own)
        memo.readings[command if isinstance(command, str) else command.source] = reading
        return reading

    return read_and_keep
