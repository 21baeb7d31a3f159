"""Approvals and questions for calls of MCP clients: the client shows its user a form, or the policy decides."""

from __future__ import annotations

import asyncio
from typing import Literal

from msgspec.structs import replace

from toolcrib.approval.approvers.question import Style, describe_scopes, question
from toolcrib.approval.approvers.smart import NoApprover
from toolcrib.config.redact import redact
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Choice
from toolcrib.core.context import NO_ANSWER, ToolContext
from toolcrib.core.errors import UsageError
from toolcrib.core.ports import Approver
from toolcrib.core.types import JsonObject
from toolcrib.mcp.server.pending_calls import ClientReply, PendingCalls
from toolcrib.registry.results import sendable

ServePolicy = Literal["ask", "allow", "deny"]
CHOICES: dict[str, Choice] = {"once": "once", "session": "session", "deny": "deny"}
COLUMNS = 100
MAX_REASON_CHARS = 500
MAX_ANSWER_CHARS = 10_000
ANSWER_SECONDS = 600.0
"""How long a tool's question waits, so that a client that never returns does not leave its call open."""


class ClientApprover:
    """Asks the user of the client that made a call; applies the policy if that is not possible."""

    def __init__(self, calls: PendingCalls, policy: ServePolicy = "deny", operator: Approver | None = None) -> None:
        """`operator` is the person at the server itself, whom the policy `ask` asks."""
        self._calls = calls
        self._policy = policy
        self._operator = operator or NoApprover("this client cannot ask its user")

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        call = self._calls.find(request.call_id, request.session_key)
        if call is None or not call.can_be_asked:
            return await self._apply_policy(request)
        return parse_approval(await call.ask(approval_text(request), approval_form(request)))

    async def _apply_policy(self, request: ApprovalRequest) -> ApprovalAnswer:
        if self._policy == "allow":
            return ApprovalAnswer(choice="once", decided_by="policy")
        if self._policy == "ask":
            return await self._operator.ask(request)
        return await NoApprover("this client cannot ask its user").ask(request)


class ClientAsker:
    """Asks the user of the client on behalf of a tool."""

    def __init__(self, calls: PendingCalls) -> None:
        self._calls = calls

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        """The user's answer; raises UsageError if nobody answers."""
        call = self._calls.find(ctx.call_id, ctx.session_id)
        if call is None or not call.can_be_asked:
            raise UsageError("this client cannot ask its user")
        form = question_form(tuple(sendable(choice) for choice in choices))
        try:
            reply = await asyncio.wait_for(call.ask(sendable(question), form), ANSWER_SECONDS)
        except TimeoutError as error:
            raise UsageError("the user did not answer in time") from error
        if reply.action == "failed":
            raise UsageError("the client could not ask its user")
        given = reply.content.get("own_words") or reply.content.get("answer")
        if reply.action != "accept" or not isinstance(given, str):
            return NO_ANSWER
        return given[:MAX_ANSWER_CHARS]


def approval_text(request: ApprovalRequest) -> str:
    """The call and its dangers as text, with hidden characters escaped and secrets masked."""
    command = redact(request.command)
    # After masking, the marked span would point to other words.
    dangers = tuple(
        replace(danger, reason=redact(danger.reason), span=danger.span if command == request.command else None)
        for danger in request.dangers
    )
    shown = replace(request, command=command, dangers=dangers)
    return sendable(question(shown, (), COLUMNS, Style(colour=False), whole=True).strip("\n"))


def approval_form(request: ApprovalRequest) -> JsonObject:
    """The form for an approval: once, for the session, or deny."""
    scopes = sendable(describe_scopes(request))
    return {
        "type": "object",
        "properties": {
            "answer": {
                "type": "string",
                "title": "ApprovalAnswer",
                "description": f"session also allows, until this session ends: {scopes}",
                "enum": list(CHOICES),
                "enumNames": ["Allow this once", "Allow for this session", "Deny"],
            },
            "reason": {"type": "string", "title": "Reason", "description": "Sent to the model if you deny it"},
        },
        "required": ["answer"],
    }


def question_form(choices: tuple[str, ...]) -> JsonObject:
    """The form for a question: free text, and choices if there are any."""
    own_words: JsonObject = {"type": "string", "title": "ApprovalAnswer"}
    if not choices:
        return {"type": "object", "properties": {"own_words": own_words}, "required": ["own_words"]}
    chosen: JsonObject = {"type": "string", "title": "ApprovalAnswer", "enum": list(choices)}
    return {
        "type": "object",
        "properties": {"answer": chosen, "own_words": {**own_words, "title": "In your own words"}},
    }


def parse_approval(reply: ClientReply) -> ApprovalAnswer:
    """The decision in a submitted form; only an explicit yes allows the call."""
    if reply.action == "failed":
        return ApprovalAnswer(choice="deny", reason="the client could not ask its user", decided_by="policy")
    if reply.action == "cancel":
        return ApprovalAnswer(choice="cancelled", reason="the question was closed without an answer", decided_by="user")
    reason = str(reply.content.get("reason") or "")[:MAX_REASON_CHARS]
    if reply.action == "decline":
        return ApprovalAnswer(choice="deny", reason=reason, decided_by="user")
    given = reply.content.get("answer")
    choice = CHOICES.get(given) if reply.action == "accept" and isinstance(given, str) else None
    if choice is None:
        return ApprovalAnswer(choice="deny", reason="the client gave no clear answer", decided_by="policy")
    return ApprovalAnswer(choice=choice, reason=reason if choice == "deny" else "", decided_by="user")
