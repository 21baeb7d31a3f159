"""Approvers and grants by session, for the functions of `tools.approval`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSet
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, cast, get_args

from msgspec.structs import replace

from toolcrib.api import default_runtime
from toolcrib.approval.approvers.gateway import GatewayApprover
from toolcrib.approval.build import build_gate
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.deferred_gate import DeferredGate
from toolcrib.approval.gate import ApprovalGate
from toolcrib.approval.grants import Grant, Grants
from toolcrib.approval.options import GateOptions
from toolcrib.approval.policy import Policy
from toolcrib.config.redact import redact
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Choice, Danger, EntryPoint
from toolcrib.core.attempt import attempt
from toolcrib.core.context import ToolContext, current_context
from toolcrib.core.ports import Approver
from toolcrib.core.types import JsonObject, ToolEntry, Verdict
from toolcrib.environments.specs import isolates

Mode = Literal["manual", "smart", "off"]
logger = logging.getLogger(__name__)

ApprovalCallback = Callable[..., str]
SudoCallback = Callable[[], str]
Observed = tuple[str, str]

session_key_var: ContextVar[str] = ContextVar("approval_session_key", default="")
interactive_var: ContextVar[bool | None] = ContextVar("approval_interactive", default=None)
observed_var: ContextVar[Observed] = ContextVar("approval_observed", default=("", ""))
"""The turn and the call that a question belongs to."""
approval_callback_var: ContextVar[ApprovalCallback | None] = ContextVar("approval_callback", default=None)
sudo_callback_var: ContextVar[SudoCallback | None] = ContextVar("sudo_password_callback", default=None)
"""Whom this thread asks. A context follows its work to the loops that do it, which a thread-local does not."""


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
        self.answer_for_runtime()

    def unregister(self, key: str) -> None:
        with self._lock:
            self._notified.discard(key)
        self.gateway.unregister_notify(key)

    def is_notified(self, key: str) -> bool:
        return key in self._notified

    def notified(self) -> list[str]:
        with self._lock:
            return list(self._notified)

    def ask_nothing(self, key: str, active: bool) -> None:
        """Switch the questions of a session off or on; blocks and deny rules never reach this point."""
        with self._lock:
            (self._unasked.add if active else self._unasked.discard)(key)
        if active:
            self.answer_for_runtime()

    def is_unasked(self, key: str) -> bool:
        return key in self._unasked

    def unasked(self) -> list[str]:
        with self._lock:
            return list(self._unasked)

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Answer for calls that the default runtime runs, so that one switch holds for both ways."""
        if self.is_unasked(request.session_key):
            return ApprovalAnswer(choice="once", decided_by="yolo")
        callback = approval_callback_var.get()
        if callback is not None:
            return await CallbackApprover(callback).ask(request)
        if self.is_notified(request.session_key):
            return await self.gateway.ask(request)
        return ApprovalAnswer(choice="deny", reason="no one is available to approve it", decided_by="policy")

    async def ask_secret(self, prompt: str, timeout_seconds: float) -> str | None:
        """The password that the callback of this thread gives; None without one."""
        callback = sudo_callback_var.get()
        if callback is None:
            return None
        said, error = await asyncio.to_thread(attempt, callback)
        if error is not None:
            logger.error("the callback for a password failed", exc_info=error)
        return said or None

    def answer_for_runtime(self) -> None:
        """Answer for the default runtime from now on, if nobody does so yet."""
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
            lambda: self.callback(
                redact(request.command), redact(request.description), allow_permanent=request.may_be_permanent
            )
        )
        if error is not None:
            logger.error("an approval callback failed, which is a no", exc_info=error)
            return ApprovalAnswer(choice="deny", reason="the approval callback failed", decided_by="policy")
        return ApprovalAnswer(choice=choice_of(said), decided_by="user")


@dataclass
class _AnswerRecorder:
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
    callback = callback or approval_callback_var.get()
    if callback is not None:
        return CallbackApprover(callback)
    if sessions.is_notified(current_session()):
        return sessions.gateway
    gate = default_runtime().gate
    own = gate.options.approver if isinstance(gate, DeferredGate) else None
    return own if own is not sessions else None


def session_policy(
    approver: Approver | None, mode: str, env_type: str = "local", has_host_access: bool = False
) -> Policy:
    """The policy of the default runtime, as it is for the session, the backend and the entry point of this call."""
    base = base_gate().policy
    point = entry_point()
    by_settings = getattr(default_runtime().settings.approvals.policies, point)
    asks = approver is not None and (point == "library" or by_settings == "ask")
    return replace(
        base,
        entry_point=point,
        mode=cast("Mode", mode),
        answer="ask" if asks else by_settings,
        attended=approver is not None,
        yolo=base.yolo or sessions.is_unasked(current_session()),
        backend=env_type,
        isolated=isolates(env_type) and not has_host_access,
    )


def settle(
    policy: Policy, approver: Approver | None, tool: str, text: str, verdict: Verdict
) -> tuple[Verdict, ApprovalAnswer | None]:
    """Have the gate ask about a verdict, with record, hooks and grants; also returns the answer, if there is one."""
    base = base_gate()
    runtime = default_runtime()
    heard = _AnswerRecorder(approver) if approver is not None else None
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


# What test suites of the reference look at, and clear between two tests


class PatternSet(MutableSet[str]):
    """The approved patterns of one session, or with None the permanent ones, as a live set."""

    def __init__(self, session_key: str | None) -> None:
        self._session_key = session_key

    def __contains__(self, pattern: object) -> bool:
        return any(grant.text == pattern for grant in self._held())

    def __iter__(self) -> Iterator[str]:
        return iter([grant.text for grant in self._held()])

    def __len__(self) -> int:
        return len(self._held())

    def add(self, value: str) -> None:
        if self._session_key is None:
            _grants().load([value])
        else:
            _grants().add_to_session(self._session_key, Grant(value))

    def discard(self, value: str) -> None:
        _grants().forget(self._session_key, Grant(value))

    def __repr__(self) -> str:
        return repr(set(self))

    def _held(self) -> tuple[Grant, ...]:
        grants = _grants()
        return grants.permanent() if self._session_key is None else grants.of_session(self._session_key)


class SessionPatterns(MutableMapping[str, MutableSet[str]]):
    """The approved patterns of every session, as a live dict."""

    def __getitem__(self, session_key: str) -> PatternSet:
        if session_key not in _grants().sessions():
            raise KeyError(session_key)
        return PatternSet(session_key)

    def __setitem__(self, session_key: str, patterns: MutableSet[str]) -> None:
        wanted = list(patterns)
        _grants().clear_session(session_key)
        _grants().add_to_session(session_key, *map(Grant, wanted))

    def __delitem__(self, session_key: str) -> None:
        self[session_key].clear()
        _grants().clear_session(session_key)

    def setdefault(self, key: str, default: Any = ()) -> PatternSet:
        if key not in self:
            self[key] = default
        return PatternSet(key)

    def __iter__(self) -> Iterator[str]:
        return iter(_grants().sessions())

    def __len__(self) -> int:
        return len(_grants().sessions())


class UnaskedSessions(MutableSet[str]):
    """The sessions in which nothing is asked, as a live set."""

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and sessions.is_unasked(key)

    def __iter__(self) -> Iterator[str]:
        return iter(sessions.unasked())

    def __len__(self) -> int:
        return len(sessions.unasked())

    def add(self, value: str) -> None:
        sessions.ask_nothing(value, True)

    def discard(self, value: str) -> None:
        sessions.ask_nothing(value, False)


class WaitingRequests(Mapping[str, list[ApprovalRequest]]):
    """The requests that wait for an answer, by session; what is taken out is denied."""

    def __getitem__(self, session_key: str) -> list[ApprovalRequest]:
        found = sessions.gateway.pending(session_key)
        if not found:
            raise KeyError(session_key)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(request.session_key for request in sessions.gateway.pending()))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def pop(self, session_key: str, default: Any = None) -> Any:
        found = self.get(session_key, default)
        sessions.gateway.resolve(session_key, "deny", resolve_all=True)
        return found

    def clear(self) -> None:
        for session_key in list(self):
            self.pop(session_key)


class NotifiedSessions(MutableMapping[str, Callable[[JsonObject], None]]):
    """The callbacks that are told about requests, by session; a change takes effect at once."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Callable[[JsonObject], None]] = {}

    def __getitem__(self, session_key: str) -> Callable[[JsonObject], None]:
        if not sessions.is_notified(session_key):
            raise KeyError(session_key)
        return self._callbacks[session_key]

    def __setitem__(self, session_key: str, callback: Callable[[JsonObject], None]) -> None:
        self._callbacks[session_key] = callback
        sessions.register(session_key, callback)

    def __delitem__(self, session_key: str) -> None:
        self[session_key]
        self._callbacks.pop(session_key)
        sessions.unregister(session_key)

    def __iter__(self) -> Iterator[str]:
        return iter(sessions.notified())

    def __len__(self) -> int:
        return len(sessions.notified())


def _grants() -> Grants:
    return base_gate().grants
