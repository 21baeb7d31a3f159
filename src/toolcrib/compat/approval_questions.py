"""How the functions of `tools.approval` reach the gate of the default runtime, and whom they ask.

The sessions below are one for the process, because those functions are given a session key and nothing else.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, get_args

from msgspec.structs import replace

from toolcrib.api import default_runtime
from toolcrib.approval.approvers.gateway import GatewayApprover
from toolcrib.approval.build import build_gate
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.deferred_gate import DeferredGate
from toolcrib.approval.gate import ApprovalGate
from toolcrib.approval.options import GateOptions
from toolcrib.approval.policy import ISOLATED_BACKENDS, Policy
from toolcrib.core.approvals import Answer, ApprovalRequest, Choice, Danger, EntryPoint
from toolcrib.core.attempt import attempt
from toolcrib.core.context import ToolContext, current_context
from toolcrib.core.ports import Approver
from toolcrib.core.types import JsonObject, ToolEntry, Verdict

logger = logging.getLogger(__name__)

ApprovalCallback = Callable[..., str]
Observed = tuple[str, str]

session_key: ContextVar[str] = ContextVar("approval_session_key", default="")
interactive: ContextVar[bool | None] = ContextVar("approval_interactive", default=None)
observed: ContextVar[Observed] = ContextVar("approval_observed", default=("", ""))
"""The turn and the call that a question belongs to."""


def current_session(default: str = "default") -> str:
    """The session that was set, else that of the call being served, else that of the environment."""
    ctx = current_context.get()
    serving = ctx.session_id if ctx is not None else ""
    return session_key.get() or serving or os.environ.get("HERMES_SESSION_KEY") or default


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

    async def ask(self, request: ApprovalRequest) -> Answer:
        """Answer for calls that the default runtime runs, so that one switch holds for both ways."""
        if self.is_unasked(request.session_key):
            return Answer(choice="once", decided_by="yolo")
        if self.is_notified(request.session_key):
            return await self.gateway.ask(request)
        return Answer(choice="deny", reason="no one is available to approve it", decided_by="policy")

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
    said = interactive.get()
    return "interactive" if said or (said is None and environ.get("HERMES_INTERACTIVE")) else "library"


@dataclass(frozen=True)
class CallbackApprover:
    """Asks by a callback `(command, description, *, allow_permanent=True)`; what is no known answer is a no."""

    callback: ApprovalCallback

    async def ask(self, request: ApprovalRequest) -> Answer:
        # Called in place: callbacks of the reference system expect the thread that asked.
        said, error = attempt(
            lambda: self.callback(request.command, request.description, allow_permanent=request.may_be_permanent)
        )
        if error is not None:
            logger.error("an approval callback failed, which is a no", exc_info=error)
            return Answer(choice="deny", reason="the approval callback failed", decided_by="policy")
        return Answer(choice=choice_of(said), decided_by="user")


@dataclass
class _Heard:
    """Passes a question on and remembers the answer, which the verdict alone does not tell."""

    approver: Approver
    answer: Answer | None = None

    async def ask(self, request: ApprovalRequest) -> Answer:
        self.answer = await self.approver.ask(request)
        return self.answer


def choice_of(said: Any) -> Choice:
    known: tuple[Choice, ...] = get_args(Choice)
    return next((choice for choice in known if choice == said), "deny")


def who_answers(callback: ApprovalCallback | None) -> Approver | None:
    """Whom a question of this thread goes to; None where nobody can be asked."""
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
) -> tuple[Verdict, Answer | None]:
    """Have the gate ask about a verdict, with record, hooks and grants; also gives the answer, if somebody gave one."""
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
    settling = gate.settle(entry, {"command": text}, verdict, call_context(tool))
    return runtime.bridge.run(settling), heard.answer if heard else None


def call_context(tool: str) -> ToolContext:
    turn_id, call_id = observed.get()
    return default_runtime().context(tool_name=tool, session_id=current_session(), turn_id=turn_id, call_id=call_id)


def request_for(tool: str, text: str, *dangers: Danger, permanent: bool) -> ApprovalRequest:
    turn_id, call_id = observed.get()
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
