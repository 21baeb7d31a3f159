"""`tools.approval`: detection, questions, grants and sessions, over the gate of the default runtime.

Two things differ from the reference system: if no user can answer, the answer is no; and no switch, backend or grant
lifts a block.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Iterable
from contextvars import Token
from typing import Any

from msgspec import to_builtins

from toolcrib.api import default_runtime
from toolcrib.approval.analyse import DANGEROUS_PATTERNS, detect_dangerous_command, detect_hardline_command
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.grants import Grant, may_be_permanent
from toolcrib.approval.policy import Action, Decision, Policy, answer_dangers, decide
from toolcrib.compat.approval_sessions import (
    ApprovalCallback,
    NotifiedSessions,
    Observed,
    PatternSet,
    SessionPatterns,
    UnaskedSessions,
    WaitingRequests,
    base_gate,
    call_context,
    current_session,
    interactive_var,
    observed_var,
    request_for,
    session_key_var,
    session_policy,
    sessions,
    settle,
    who_answers,
)
from toolcrib.config.edit import add_to_list, remove_from_list
from toolcrib.config.load import load_settings
from toolcrib.config.redact import redact
from toolcrib.config.tool_call_mark import refuse_in_tool_call
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Danger
from toolcrib.core.ports import Approver
from toolcrib.core.types import Effect, JsonObject, Verdict

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
    policy = session_policy(approver, _get_approval_mode(), env_type, has_host_access)
    return _settled(policy, approver, "terminal", command, _decide(policy, command))


check_dangerous_command = check_all_command_guards


def check_execute_code_guard(code: str, env_type: str, has_host_access: bool = False) -> JsonObject:
    """Whether a script may run. A remote front end must approve every script, a terminal only its dangers."""
    approver = who_answers(None)
    policy = session_policy(approver, _get_approval_mode(), env_type, has_host_access)
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
    policy = session_policy(approver, _get_approval_mode())
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


# Settings


def _get_approval_config() -> JsonObject:
    """The section `approvals` of the config, with its defaults."""
    section: JsonObject = to_builtins(load_settings().approvals)
    return section


def _get_approval_mode() -> str:
    """Who judges dangerous commands: `manual`, `smart` or `off`; anything else means manual."""
    mode = _get_approval_config().get("mode")
    # YAML reads a bare `off` as False.
    said = "off" if mode is False else str(mode or "").strip().lower()
    return said if said in ("smart", "off") else "manual"


def _get_approval_timeout() -> int:
    """How many seconds a person has to answer."""
    return int(_get_approval_config()["timeout"])


def _get_cron_approval_mode() -> str:
    """What happens to dangerous commands of jobs: `approve` or `deny`."""
    return "approve" if load_settings().approvals.policies.cron == "allow" else "deny"


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
    refuse_in_tool_call("run dangerous calls without approval")
    sessions.ask_nothing(session_key, True)


def disable_session_yolo(session_key: str) -> None:
    sessions.ask_nothing(session_key, False)


def is_session_yolo_enabled(session_key: str) -> bool:
    return sessions.is_unasked(session_key)


def is_current_session_yolo_enabled() -> bool:
    return sessions.is_unasked(get_current_session_key())


def is_approval_bypass_active() -> bool:
    """Whether dangerous commands run without a question here."""
    return base_gate().policy.yolo or _get_approval_mode() == "off" or is_current_session_yolo_enabled()


# Questions that are answered elsewhere


def register_gateway_notify(session_key: str, cb: Callable[[JsonObject], None]) -> None:
    """Tell `cb` about the questions of a session; `resolve_gateway_approval` answers them."""
    _gateway_notify_cbs[session_key] = cb


def unregister_gateway_notify(session_key: str) -> None:
    _gateway_notify_cbs.pop(session_key, None)


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
        return _pending_result(tool, text, decision)
    verdict, answer = decision.verdict(), None
    if decision.outcome == "ask" or decision.dangers:
        verdict, answer = settle(policy, approver, tool, text, verdict)
    return _result(verdict, answer, decision)


def _pending_result(tool: str, text: str, decision: Decision) -> JsonObject:
    """The answer comes later, in the chat: the request is recorded, and nothing runs."""
    keys = _keys(decision)
    permanent = may_be_permanent(decision.dangers)
    base_gate().log.requested(request_for(tool, text, *decision.dangers, permanent=permanent))
    return {
        "approved": False,
        "status": "pending_approval",
        "approval_pending": True,
        "command": redact(text),
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
    reasons = redact("; ".join(verdict.reasons))
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


# Test suites clear these between two tests.
_session_approved = SessionPatterns()
_permanent_approved = PatternSet(None)
_session_yolo = UnaskedSessions()
_gateway_queues = WaitingRequests()
_gateway_notify_cbs = NotifiedSessions()
