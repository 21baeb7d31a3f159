"""The runtime's protocols: layers meet here instead of importing each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject, ToolEntry, ToolResult, Verdict

if TYPE_CHECKING:
    from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest

__all__ = [
    "Approver",
    "FileSnapshots",
    "FireHook",
    "Gate",
    "Invoker",
    "ProvenanceRecorder",
    "Recorder",
    "ResultStore",
    "SecretAsker",
    "SelfTimedApprover",
    "WebGuard",
]


class Invoker(Protocol):
    """Runs a call through the whole pipeline from synchronous code; a Runtime binds this to a registry."""

    def __call__(self, name: str, arguments: JsonObject, extra: Mapping[str, Any], /) -> str | JsonObject: ...


class Approver(Protocol):
    """Asks the person in charge for approval. A timeout is a separate answer, and not a yes."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer: ...


@runtime_checkable
class SelfTimedApprover(Protocol):
    """An approver that enforces its own timeout, because only it knows when the person saw the question."""

    has_own_timeout: bool


@runtime_checkable
class SecretAsker(Protocol):
    """An approver that can also read a secret, such as a sudo password, without echoing it anywhere."""

    async def ask_secret(self, prompt: str, timeout_seconds: float) -> str | None:
        """What the user typed; None if there is no user, no answer in time, or the user declined."""
        ...


class Gate(Protocol):
    """Allows or denies one call, and asks for approval if policy says so."""

    def judge(
        self, entry: ToolEntry, arguments: JsonObject, effects: tuple[Effect, ...] | None, ctx: ToolContext
    ) -> Verdict:
        """Apply policy and grants only: allow, ask or deny. Quick; does not ask for approval or write anything."""
        ...

    async def resolve(self, entry: ToolEntry, arguments: JsonObject, verdict: Verdict, ctx: ToolContext) -> Verdict:
        """Turn an ask into allow or deny, and record the decision about the call's dangers."""
        ...


class Recorder(Protocol):
    """Records calls. `started` returns only when the record is durable."""

    def started(
        self, entry: ToolEntry, arguments: JsonObject, effects: tuple[Effect, ...], ctx: ToolContext, /
    ) -> None: ...

    def finished(self, entry: ToolEntry, result: ToolResult, ctx: ToolContext, /) -> None: ...


class ProvenanceRecorder(Protocol):
    """Remembers where the values of a session come from."""

    def record(self, entry: ToolEntry, arguments: JsonObject, result: ToolResult, ctx: ToolContext, /) -> ToolResult:
        """Add the result of a call; returns it with its origin. Quick: runs after every call."""
        ...


class FileSnapshots(Protocol):
    """Snapshots files before a call changes them, for undo. Never makes a call fail."""

    def wants(self, effects: tuple[Effect, ...], ctx: ToolContext, /) -> bool:
        """Whether there may be anything to snapshot. Quick: runs before every call that has effects."""
        ...

    async def before(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext, /) -> None:
        """Snapshot what the call may change; the snapshot survives a crash of the process."""
        ...

    async def after(self, ctx: ToolContext, /) -> tuple[str, ...]:
        """Record the state after the call; gives notices for the person. `ctx` is the same object that `before` got."""
        ...


class ResultStore(Protocol):
    """Stores texts that are too long for the model and returns handles for reading them."""

    def save(self, session_id: str, call_id: str, text: str) -> str: ...


class FireHook(Protocol):
    """Calls the hooks with this name; logs what they raise and ignores what they return."""

    def __call__(self, name: str, **keywords: Any) -> object: ...


class WebGuard(Protocol):
    """Decides which web addresses may be reached. Refusals are ToolcribErrors that say why."""

    def check(self, url: str) -> Any:
        """The parsed address (`host`, `port`); raises for whatever can be refused without a look-up."""
        ...

    def check_host(self, host: str, port: int) -> None: ...

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        """The addresses to connect to; raises if any of them must not be reached."""
        ...
