"""`tools.approval`: detection, questions, grants and sessions, over the gate of the default runtime.

Two things differ from the reference system: if no user can answer, the answer is no; and no switch, backend or grant
lifts a block.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from threading import Lock
from typing import Any, get_args

from msgspec.structs import replace

from toolcrib.api import default_runtime
from toolcrib.approval.analyse import DANGEROUS_PATTERNS, detect_dangerous_command, detect_hardline_command
from toolcrib.approval.approvers.gateway import GatewayApprover
from toolcrib.approval.build import build_gate
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.deferred_gate import DeferredGate
from toolcrib.approval.gate import ApprovalGate
from toolcrib.approval.grants import Grant, may_be_permanent
from toolcrib.approval.options import GateOptions
from toolcrib.approval.policy import ISOLATED_BACKENDS, Action, Decision, Policy, answer_dangers, decide
from toolcrib.config.edit import add_to_list, remove_from_list
from toolcrib.config.load import load_settings
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Choice, Danger, EntryPoint
from toolcrib.core.attempt import attempt
from toolcrib.core.context import ToolContext, current_context
from toolcrib.core.ports import Approver
from toolcrib.core.types import Effect, JsonObject, ToolEntry, Verdict

__all__ = ["DANGEROUS_PATTERNS", "HARDLINE_PATTERNS", "detect_dangerous_command", "detect_hardline_command"]

HARDLINE_PATTERNS: list[tuple[str, str]] = [
    (r"\brm\s+(?:-\S+\s+)*(?:/|~|\$HOME)(?:\s|$|\*)", "recursive delete"),
    (r"\brm\s+(?:-\S+\s+)*/(?:etc|usr|var|bin|sbin|lib|boot|home|root)(?:\s|$|/\*)", "recursive delete"),
    (r"\bmkfs(?:\.\w+)?\b", "filesystem format"),
    (r"\bdd\b.*\bof=/dev/(?:sd|nvme|vd|hd|mmcblk)", "raw disk write"),
    (r">\s*/dev/(?:sd|nvme|vd|hd|mmcblk)", "raw disk write"),
    (r":\(\)\s*\{\s*:\s*\|\s*:\s*&\s*\}\s*;\s*:", "fork bomb"),
    (r"\bkill\s+(?:-\w+\s+)*-1\b", "process kill"),
    (r"\b(?:shutdown|reboot|halt|poweroff)\b", "system power"),
    (r"\b(?:init|telinit)\s+[06]\b", "system power"),
    (r"\bsystemctl\s+(?:poweroff|reboot|halt|kexec)\b", "system power"),
]
"""What is always blocked, for people to read; the verdict comes from the analyser."""
DANGEROUS_PATTERNS_COMPILED = [(re.compile(row[0], re.I | re.S), row[1]) for row in DANGEROUS_PATTERNS]
HARDLINE_PATTERNS_COMPILED = [(re.compile(row[0], re.I | re.S), row[1]) for row in HARDLINE_PATTERNS]

EXECUTE_CODE = "execute_code"
ELICITATION = "elicitation"


# Guards


def check_all_command_guards(
    command: str, env_type: str, approval_callback: ApprovalCallback | None = None, has_host_access: bool = False
) -> JsonObject:
    """Whether a command may run: `approved`, `message`, and who said so. Asks where policy says so."""
    approver = who_answers(approval_callback)
    policy = session_policy(approver, env_type, has_host_access)
    return _settled(policy, approver, "terminal", command, _decide(policy, command))


check_dangerous_command = check_all_command_guards


def check_execute_code_guard(code: str, env_type: str, has_host_access: bool = False) -> JsonObject:
    """Whether a script may run. A front end elsewhere is asked about every script, a terminal about its dangers."""
    approver = who_answers(None)
    policy = session_policy(approver, env_type, has_host_access)
    decision = _decide(policy, f"python3 -c {shlex.quote(code)}")
    if decision.outcome != "deny" and not policy.isolated and policy.entry_point != "interactive":
        whole = Danger(rule=EXECUTE_CODE, description=EXECUTE_CODE, reason="it runs a whole script")
        if not is_approved(get_current_session_key(), EXECUTE_CODE):
            decision = answer_dangers(policy, (whole,))
    return _settled(policy, approver, EXECUTE_CODE, code, decision)


def request_tool_approval(
    tool_name: str, reason: str, *, rule_key: str = "", approval_callback: ApprovalCallback | None = None
) -> JsonObject:
    """Whether a call that a plugin wants approved may go on; the grant is kept as `plugin_rule:<rule_key>`."""
    approver = who_answers(approval_callback)
    policy = session_policy(approver)
    danger = Danger(rule=f"plugin_rule:{rule_key or tool_name}", description=reason, reason=reason)
    if any(grant.covers(danger) for grant in base_gate().grants.in_force(get_current_session_key())):
        return {"approved": True, "message": None}
    return _settled(policy, approver, tool_name, f"{tool_name}: {reason}", answer_dangers(policy, (danger,)))


def request_elicitation_consent(
    message: str, description: str, *, timeout_seconds: float | None = None, surface: str = "mcp-elicitation"
) -> str:
    """What the person says to a server that wants something: accept, decline or cancel. No grant answers for him."""
    approver = who_answers(None)
    if approver is None:
        return "decline"
    danger = Danger(rule=ELICITATION, description=description, reason=message, scope=surface)
    answer = _put(request_for(surface, message, danger, permanent=False), approver, timeout_seconds)
    if answer.choice in ("timeout", "cancelled"):
        return "cancel"
    return "accept" if answer.allows else "decline"


def prompt_dangerous_approval(
    command: str,
    description: str,
    timeout_seconds: float | None = None,
    allow_permanent: bool = True,
    approval_callback: ApprovalCallback | None = None,
    *,
    smart_denied: bool = False,
) -> str:
    """What the person says: once, session, always or deny. Nothing is remembered; without a person it is deny."""
    approver = who_answers(approval_callback)
    if approver is None:
        return "deny"
    reason = f"{description} (a model reviewed it and advises against it)" if smart_denied else description
    danger = Danger(rule=description, description=description, reason=reason, span=(0, len(command)))
    request = request_for("terminal", command, danger, permanent=allow_permanent)
    answer = _put(request, approver, timeout_seconds)
    if answer.choice == "always" and not allow_permanent:
        return "session"
    return answer.choice if answer.allows else "deny"


# Grants


def approve_session(session_key: str, pattern_key: str) -> None:
    """Approve a class of danger, in every scope, until the session ends."""
    base_gate().grants.add_to_session(session_key, Grant(pattern_key))


def approve_permanent(pattern_key: str) -> None:
    """Approve a class of danger in this process; `save_permanent_allowlist` makes it permanent."""
    load_permanent({pattern_key})


def is_approved(session_key: str, pattern_key: str) -> bool:
    """Whether a class of danger is approved in every scope."""
    danger = Danger(rule=pattern_key, description=pattern_key, reason="")
    return any(grant.covers(danger) for grant in base_gate().grants.in_force(session_key))


def load_permanent(patterns: Iterable[str]) -> None:
    """Apply entries from now on, without writing them."""
    base_gate().grants.load(patterns)


def load_permanent_allowlist() -> set[str]:
    """The entries of `command_allowlist`. The gate took them in when it was made, and does not read them again."""
    return set(load_settings().command_allowlist)


def save_permanent_allowlist(patterns: Iterable[str]) -> None:
    """Make `command_allowlist` hold exactly these; comments beside what stays are kept."""
    home = default_runtime().settings.home
    wanted, present = set(patterns), load_permanent_allowlist()
    for text in sorted(present - wanted):
        remove_from_list(home, "command_allowlist", text)
    for text in sorted(wanted - present):
        add_to_list(home, "command_allowlist", text)


def clear_session(session_key: str) -> None:
    """Revoke a session's grants, and deny its pending requests."""
    sessions.ask_nothing(session_key, False)
    base_gate().grants.clear_session(session_key)
    sessions.gateway.resolve(session_key, "deny", resolve_all=True, reason="the session was ended")


# Sessions without questions


def enable_session_yolo(session_key: str) -> None:
    """Ask nothing in a session; what is blocked or denied by a rule stays so."""
    sessions.ask_nothing(session_key, True)


def disable_session_yolo(session_key: str) -> None:
    sessions.ask_nothing(session_key, False)


def is_session_yolo_enabled(session_key: str) -> bool:
    return sessions.is_unasked(session_key)


def is_current_session_yolo_enabled() -> bool:
    return sessions.is_unasked(get_current_session_key())


def is_approval_bypass_active() -> bool:
    """Whether dangerous commands run without a question here."""
    policy = base_gate().policy
    return policy.yolo or policy.mode == "off" or is_current_session_yolo_enabled()


# Questions that are answered elsewhere


def register_gateway_notify(session_key: str, cb: Callable[[JsonObject], None]) -> None:
    """Tell `cb` about the questions of a session; `resolve_gateway_approval` answers them."""
    sessions.register(session_key, cb)


def unregister_gateway_notify(session_key: str) -> None:
    sessions.unregister(session_key)


def resolve_gateway_approval(
    session_key: str, choice: str, resolve_all: bool = False, reason: str | None = None
) -> int:
    """Answer the oldest question of a session, or all of them; returns how many."""
    count = sessions.gateway.resolve(session_key, choice, resolve_all=resolve_all, reason=reason)
    grants = base_gate().grants
    for late in sessions.gateway.late_answers(session_key):
        # Nothing is waiting for it any more, so it applies to the next try.
        if late.answer.choice == "session":
            grants.allow_in_session(session_key, late.request.dangers)
        elif late.answer.choice == "always":
            grants.allow_permanently(late.request.dangers)
    return count


def has_blocking_approval(session_key: str) -> bool:
    return sessions.gateway.is_waiting(session_key)


def submit_pending(session_key: str, approval: JsonObject) -> None:
    """Record a request without waiting for it; the answer applies to the next try."""
    key = str(approval.get("pattern_key") or approval.get("description") or "")
    danger = Danger(rule=key, description=key, reason=str(approval.get("description") or key))
    token = session_key_var.set(session_key)
    try:
        request = request_for("terminal", str(approval.get("command", "")), danger, permanent=True)
    finally:
        session_key_var.reset(token)
    base_gate().log.requested(request)


# Contexts


def set_current_session_key(session_key: str) -> Token[str]:
    return session_key_var.set(session_key)


def reset_current_session_key(token: Token[str]) -> None:
    session_key_var.reset(token)


def get_current_session_key(default: str = "default") -> str:
    return current_session(default)


def set_hermes_interactive_context(interactive: bool) -> Token[bool | None]:
    return interactive_var.set(interactive)


def reset_hermes_interactive_context(token: Token[bool | None]) -> None:
    interactive_var.reset(token)


def set_current_observability_context(turn_id: str = "", tool_call_id: str = "", **_: Any) -> Token[Observed]:
    return observed_var.set((turn_id, tool_call_id))


def reset_current_observability_context(token: Token[Observed]) -> None:
    observed_var.reset(token)


# How a decision becomes the dictionary that callers know


def _decide(policy: Policy, command: str) -> Decision:
    action = Action(tool="terminal", effects=(Effect("exec", command),), cwd=call_context("terminal").cwd)
    grants = base_gate().grants.in_force(get_current_session_key())
    return decide(policy, action, grants, read_command)


def _settled(policy: Policy, approver: Approver | None, tool: str, text: str, decision: Decision) -> JsonObject:
    if decision.decided_by == "nobody" and policy.entry_point == "gateway":
        return _pending(tool, text, decision)
    verdict, answer = decision.verdict(), None
    if decision.outcome == "ask" or decision.dangers:
        verdict, answer = settle(policy, approver, tool, text, verdict)
    return _result(verdict, answer, decision)


def _pending(tool: str, text: str, decision: Decision) -> JsonObject:
    """The answer comes later, in the chat: the request is recorded, and nothing runs."""
    keys = _keys(decision)
    permanent = may_be_permanent(decision.dangers)
    base_gate().log.requested(request_for(tool, text, *decision.dangers, permanent=permanent))
    return {
        "approved": False,
        "status": "pending_approval",
        "approval_pending": True,
        "command": text,
        "pattern_key": keys[0],
        "pattern_keys": keys,
        "description": "; ".join(keys),
        "message": f"This needs approval ({'; '.join(keys)}), and the question is waiting; nothing has run.",
    }


def _result(verdict: Verdict, answer: ApprovalAnswer | None, decision: Decision) -> JsonObject:
    keys = _keys(decision)
    about: JsonObject = {"pattern_key": keys[0], "description": "; ".join(keys)} if keys else {}
    if verdict.decision == "allow":
        said: JsonObject = {"approved": True, "message": None, **about}
        if answer is not None:
            said |= {"smart_approved": True} if answer.decided_by == "smart" else {"user_approved": True}
            said["user_consent"] = answer.decided_by == "user"
        return said
    reasons = "; ".join(verdict.reasons)
    said = {"approved": False, **about, "outcome": "denied", "user_consent": False}
    if decision.decided_by == "block":
        return {**said, "hardline": True, "message": f"BLOCKED (hardline): {reasons}"}
    if decision.decided_by == "user_rule":
        said["user_deny"] = True
    if verdict.rule == "approval_timeout":
        said["outcome"] = "timeout"
    if answer is not None and answer.reason:
        said["deny_reason"] = answer.reason
    return {**said, "message": f"BLOCKED: {reasons}"}


def _keys(decision: Decision) -> list[str]:
    """The dangers as the reference system names them: by description, a plugin's by its rule."""
    named = (one.rule if one.rule.startswith("plugin_rule:") else one.description for one in decision.dangers)
    return list(dict.fromkeys(named))


def _put(request: ApprovalRequest, approver: Approver, timeout_seconds: float | None) -> ApprovalAnswer:
    """Ask once, and record the request and its answer."""
    runtime = default_runtime()
    seconds = runtime.settings.approvals.timeout if timeout_seconds is None else timeout_seconds
    log = base_gate().log
    log.requested(request)

    async def ask() -> ApprovalAnswer:
        try:
            return await asyncio.wait_for(approver.ask(request), seconds)
        except TimeoutError:
            return ApprovalAnswer(choice="timeout", decided_by="timeout")

    answer = runtime.bridge.run(ask())
    log.answered(request.id, answer)
    return answer


logger = logging.getLogger(__name__)

ApprovalCallback = Callable[..., str]
Observed = tuple[str, str]

session_key_var: ContextVar[str] = ContextVar("approval_session_key", default="")
interactive_var: ContextVar[bool | None] = ContextVar("approval_interactive", default=None)
observed_var: ContextVar[Observed] = ContextVar("approval_observed", default=("", ""))
"""The turn and the call that a question belongs to."""


def current_session(default: str = "default") -> str:
    """The session that was set, else that of the call being served, else that of the environment."""
    ctx = current_context.get()
    serving = ctx.session_id if ctx is not None else ""
    return session_key_var.get() or serving or os.environ.get("HERMES_SESSION_KEY") or default


class Sessions:
    """What was said about sessions under the reference names, and the queue of their questions."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._unasked: set[str] = set()
        self._notified: set[str] = set()
        self._gateway: GatewayApprover | None = None

    @property
    def gateway(self) -> GatewayApprover:
        """The queue, over the record of the default runtime."""
        gate = base_gate()
        with self._lock:
            if self._gateway is None:
                timeout = default_runtime().settings.approvals.timeout
                self._gateway = GatewayApprover(gate.log, timeout_seconds=timeout)
            return self._gateway

    def register(self, key: str, callback: Callable[[JsonObject], None]) -> None:
        self.gateway.register_notify(key, callback)
        with self._lock:
            self._notified.add(key)
        self._answer_for_runtime()

    def unregister(self, key: str) -> None:
        with self._lock:
            self._notified.discard(key)
        self.gateway.unregister_notify(key)

    def is_notified(self, key: str) -> bool:
        return key in self._notified

    def ask_nothing(self, key: str, active: bool) -> None:
        """Switch the questions of a session off or on; blocks and deny rules never reach this point."""
        with self._lock:
            (self._unasked.add if active else self._unasked.discard)(key)
        if active:
            self._answer_for_runtime()

    def is_unasked(self, key: str) -> bool:
        return key in self._unasked

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Answer for calls that the default runtime runs, so that one switch holds for both ways."""
        if self.is_unasked(request.session_key):
            return ApprovalAnswer(choice="once", decided_by="yolo")
        if self.is_notified(request.session_key):
            return await self.gateway.ask(request)
        return ApprovalAnswer(choice="deny", reason="no one is available to approve it", decided_by="policy")

    def _answer_for_runtime(self) -> None:
        gate = default_runtime().gate
        if isinstance(gate, DeferredGate):
            gate.attend(self)


sessions = Sessions()


def base_gate() -> ApprovalGate:
    """The gate of the default runtime, with its grants and its record."""
    runtime = default_runtime()
    if isinstance(runtime.gate, DeferredGate):
        return runtime.gate.made
    if isinstance(runtime.gate, ApprovalGate):
        return runtime.gate
    return build_gate(GateOptions(settings=runtime.settings, workspace="", fire=runtime.hooks.invoke))


def entry_point() -> EntryPoint:
    """Where the work of this thread comes from, as the variables and contexts of the reference system say it."""
    environ = os.environ
    if environ.get("HERMES_CRON_SESSION"):
        return "cron"
    if (
        sessions.is_notified(current_session())
        or environ.get("HERMES_GATEWAY_SESSION")
        or environ.get("HERMES_SESSION_PLATFORM")
        or environ.get("HERMES_EXEC_ASK")
    ):
        return "gateway"
    said = interactive_var.get()
    return "interactive" if said or (said is None and environ.get("HERMES_INTERACTIVE")) else "library"


@dataclass(frozen=True)
class CallbackApprover:
    """Asks by a callback `(command, description, *, allow_permanent=True)`; what is no known answer is a no."""

    callback: ApprovalCallback

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        # Called in place: callbacks of the reference system expect the thread that asked.
        said, error = attempt(
            lambda: self.callback(request.command, request.description, allow_permanent=request.may_be_permanent)
        )
        if error is not None:
            logger.error("an approval callback failed, which is a no", exc_info=error)
            return ApprovalAnswer(choice="deny", reason="the approval callback failed", decided_by="policy")
        return ApprovalAnswer(choice=choice_of(said), decided_by="user")


@dataclass
class _Heard:
    """Passes a request on and remembers the answer, which the verdict alone does not contain."""

    approver: Approver
    answer: ApprovalAnswer | None = None

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        self.answer = await self.approver.ask(request)
        return self.answer


def choice_of(said: Any) -> Choice:
    known: tuple[Choice, ...] = get_args(Choice)
    return next((choice for choice in known if choice == said), "deny")


def who_answers(callback: ApprovalCallback | None) -> Approver | None:
    """The approver for this thread's requests; None if no user can answer."""
    if entry_point() == "cron":
        return None
    if callback is not None:
        return CallbackApprover(callback)
    if sessions.is_notified(current_session()):
        return sessions.gateway
    gate = default_runtime().gate
    own = gate.options.approver if isinstance(gate, DeferredGate) else None
    return own if own is not sessions else None


def session_policy(approver: Approver | None, env_type: str = "local", has_host_access: bool = False) -> Policy:
    """The policy of the default runtime, as it is for the session, the backend and the entry point of this call."""
    base = base_gate().policy
    point = entry_point()
    by_settings = getattr(default_runtime().settings.approvals.policies, point)
    asks = approver is not None and (point == "library" or by_settings == "ask")
    return replace(
        base,
        entry_point=point,
        answer="ask" if asks else by_settings,
        attended=approver is not None,
        yolo=base.yolo or sessions.is_unasked(current_session()),
        backend=env_type,
        isolated=env_type in ISOLATED_BACKENDS and not has_host_access,
    )


def settle(
    policy: Policy, approver: Approver | None, tool: str, text: str, verdict: Verdict
) -> tuple[Verdict, ApprovalAnswer | None]:
    """Have the gate ask about a verdict, with record, hooks and grants; also returns the answer, if there is one."""
    base = base_gate()
    runtime = default_runtime()
    heard = _Heard(approver) if approver is not None else None
    gate = ApprovalGate(
        policy,
        grants=base.grants,
        log=base.log,
        read=read_command,
        approver=heard,
        timeout_seconds=runtime.settings.approvals.timeout,
        fire=runtime.hooks.invoke,
    )
    entry = ToolEntry(tool, "terminal", {}, _never_called)
    settling = gate.resolve(entry, {"command": text}, verdict, call_context(tool))
    return runtime.bridge.run(settling), heard.answer if heard else None


def call_context(tool: str) -> ToolContext:
    turn_id, call_id = observed_var.get()
    return default_runtime().context(tool_name=tool, session_id=current_session(), turn_id=turn_id, call_id=call_id)


def request_for(tool: str, text: str, *dangers: Danger, permanent: bool) -> ApprovalRequest:
    turn_id, call_id = observed_var.get()
    return ApprovalRequest(
        id=os.urandom(8).hex(),
        tool=tool,
        command=text,
        dangers=dangers,
        session_key=current_session(),
        call_id=call_id,
        turn_id=turn_id,
        entry_point=entry_point(),
        may_be_permanent=permanent,
    )


def _never_called(*_: Any, **__: Any) -> str:
    raise AssertionError("this entry only names the tool for the gate")
