"""Every seam of the runtime, as Protocols: layers meet here instead of importing each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject, ToolEntry, ToolResult, Verdict

if TYPE_CHECKING:
    from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest

__all__ = ["Approver", "FileSnapshots", "FireHook", "Gate", "Invoker", "Recorder", "ResultStore", "SecretAsker"]


class Invoker(Protocol):
    """Runs a call through the whole pipeline from synchronous code; what a Runtime binds to a registry."""

    def __call__(self, name: str, arguments: JsonObject, extra: Mapping[str, Any], /) -> str | JsonObject: ...


class Approver(Protocol):
    """Asks whoever is responsible. A time-out is an answer of its own, and no yes."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer: ...


@runtime_checkable
class SecretAsker(Protocol):
    """An approver that can also be told a secret, such as a password for sudo, without anybody else seeing it."""

    async def ask_secret(self, prompt: str, timeout_seconds: float) -> str | None:
        """What the person typed; None when there is nobody, or no answer in time, or he gives none."""
        ...


class Gate(Protocol):
    """Decides about one call: allow or deny, having asked where policy says so."""

    def judge(
        self, entry: ToolEntry, arguments: JsonObject, effects: tuple[Effect, ...] | None, ctx: ToolContext
    ) -> Verdict:
        """Policy and grants alone: allow, ask or deny. Asks nobody, writes nothing, and is quick."""
        ...

    async def settle(self, entry: ToolEntry, arguments: JsonObject, verdict: Verdict, ctx: ToolContext) -> Verdict:
        """Turn an ask into allow or deny, and put on record what was decided about the dangers of the call."""
        ...


class Recorder(Protocol):
    """Keeps what happened. `started` returns only when the record is durable."""

    def started(
        self, entry: ToolEntry, arguments: JsonObject, effects: tuple[Effect, ...], ctx: ToolContext, /
    ) -> None: ...

    def finished(self, entry: ToolEntry, result: ToolResult, ctx: ToolContext, /) -> None: ...


class FileSnapshots(Protocol):
    """Snapshots files before a call changes them, so that they can be restored. Never makes a call fail."""

    def wants(self, effects: tuple[Effect, ...], ctx: ToolContext, /) -> bool:
        """Whether there may be anything to snapshot. Quick: asked before every call that has effects."""
        ...

    async def before(self, entry: ToolEntry, effects: tuple[Effect, ...], ctx: ToolContext, /) -> None:
        """Snapshot what the call may change; from then on, no end of the process loses it."""
        ...

    async def after(self, ctx: ToolContext, /) -> None:
        """Record what the call left. `ctx` is the same object that `before` got."""
        ...


class ResultStore(Protocol):
    """Keeps texts that are too long for the model, and hands out readable handles."""

    def save(self, session_id: str, call_id: str, text: str) -> str: ...


class FireHook(Protocol):
    """Calls the hooks with this name; logs what they raise and ignores what they return."""

    def __call__(self, name: str, **keywords: Any) -> object: ...
