"""Fakes and builders for testing tools and programs that use toolcrib. Our own tests use them too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Choice
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import UsageError
from toolcrib.core.types import Effect, JsonObject, ToolEntry, ToolResult
from toolcrib.providers.scripted import ScriptedProvider, call, calls, says
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime

__all__ = [
    "ListRecorder",
    "ScriptedApprover",
    "ScriptedAsker",
    "ScriptedProvider",
    "call",
    "calls",
    "isolated_runtime",
    "says",
]


@contextmanager
def isolated_runtime(home: Path, config: str = "", **options: Any) -> Iterator[Runtime]:
    """A Runtime with its own home and registry; `config` is the text of its config.yaml."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(config)
    runtime = Runtime(home=home, **{"registry": ToolRegistry(), **options})
    try:
        yield runtime
    finally:
        runtime.close()


class ScriptedApprover:
    """Returns its answers in order, and then denies. Records the requests."""

    def __init__(self, *answers: Choice | ApprovalAnswer | BaseException) -> None:
        self._answers = list(answers)
        self.asked: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        self.asked.append(request)
        answer = self._answers.pop(0) if self._answers else "deny"
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, ApprovalAnswer) else ApprovalAnswer(choice=answer, decided_by="user")


class ScriptedAsker:
    """Returns its answers to tools' questions in order; after the last one, asking raises UsageError.

    Records the questions with their choices. For a runtime: `services={"asker": ScriptedAsker(…)}`.
    """

    def __init__(self, *answers: str | BaseException) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        self.asked.append((question, choices))
        answer = self._answers.pop(0) if self._answers else UsageError("no scripted answer is left")
        if isinstance(answer, BaseException):
            raise answer
        return answer


class ListRecorder:
    """Records calls in a list, as `("started" | "finished", tool name)`."""

    def __init__(self) -> None:
        self.events: list[tuple[Literal["started", "finished"], str]] = []
        self.results: list[ToolResult] = []

    def started(self, entry: ToolEntry, arguments: JsonObject, effects: tuple[Effect, ...], ctx: ToolContext) -> None:
        self.events.append(("started", entry.name))

    def finished(self, entry: ToolEntry, result: ToolResult, ctx: ToolContext) -> None:
        self.events.append(("finished", entry.name))
        self.results.append(result)
