"""What an agent tells whoever watches it, while it works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Literal

import msgspec

from toolcrib.core.messages import Image, Message, RequestedCall
from toolcrib.core.models import Notice, Usage
from toolcrib.core.types import ResultStatus

Outcome = Literal["answered", "failed", "budget", "denied", "interrupted"]
EXIT_CODES: dict[Outcome, int] = {"answered": 0, "failed": 1, "budget": 3, "denied": 4, "interrupted": 130}


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one question ended."""

    outcome: Outcome
    answer: str = ""
    """What the agent said last; with another outcome than `answered`, as far as it came."""
    problem: str = ""
    """What went wrong and what to do, as one sentence; empty when it was answered."""
    images: tuple[Image, ...] = ()
    session_id: str = ""
    turns: int = 0
    """Requests to the model."""
    calls: int = 0
    """Tool calls."""
    usage: Usage = Usage()

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=_snake):
    """One thing that happened. As JSON it carries its kind under `event`."""


class RunStarted(AgentEvent, frozen=True, kw_only=True):
    """A question is being worked on."""

    session_id: str
    model: str
    provider: str


class TurnStarted(AgentEvent, frozen=True, kw_only=True):
    """A request goes to the model."""

    turn: int


class TextStreamed(AgentEvent, frozen=True, kw_only=True):
    """A piece of the answer."""

    text: str


class ReasoningStreamed(AgentEvent, frozen=True, kw_only=True):
    """A piece of what the model thinks before it answers."""

    text: str


class Notified(AgentEvent, frozen=True, kw_only=True):
    """Something to know: a retry, a fallback, a tool that was set aside, a warning to the model.

    With the kind `restart`, what was streamed of this answer is void and it begins anew.
    """

    kind: str
    message: str
    tool: str = ""

    @classmethod
    def of(cls, notice: Notice) -> Notified:
        return cls(kind=notice.kind, message=notice.message, tool=notice.tool)


class MessageAdded(AgentEvent, frozen=True, kw_only=True):
    """A message became part of the conversation (and is on disk)."""

    message: Message
    usage: Usage | None = None
    """Of an answer: what it used."""


class CallStarted(AgentEvent, frozen=True, kw_only=True):
    """A tool is called."""

    call: RequestedCall
    title: str = ""
    """What people know the tool by, where that is not the name in the call: of one of a server, the names of both."""
    emoji: str = ""
    summary: str = ""
    """The argument that says most about the call, in one line: a command, a path, a question."""

    @property
    def shown_name(self) -> str:
        return self.title or self.call.name


class CallProgressed(AgentEvent, frozen=True, kw_only=True):
    """A tool says how far it is."""

    call_id: str
    message: str


class CallFinished(AgentEvent, frozen=True, kw_only=True):
    """A call has its result."""

    call_id: str
    name: str
    status: ResultStatus
    text: str
    """What the model is told, without images."""
    error_message: str = ""
    error_type: str = ""
    duration_ms: float = 0.0
    handle: str = ""


class Compressed(AgentEvent, frozen=True, kw_only=True):
    """The older part of the conversation was replaced by a summary."""

    messages: int
    """How many messages were folded."""
    tokens_before: int
    tokens_after: int


class Steered(AgentEvent, frozen=True, kw_only=True):
    """Something that was said while the agent worked has reached it."""

    text: str


class SubagentProgressed(AgentEvent, frozen=True, kw_only=True, tag="child_progressed"):
    """A helper that the agent sent out did something; `what` is one line for people."""

    child_id: str
    goal: str
    state: Literal["started", "working", "completed", "failed", "interrupted", "timeout", "budget"]
    what: str = ""


class RunEnded(AgentEvent, frozen=True, kw_only=True):
    """The question is done with, one way or the other."""

    result: RunResult


AnyEvent = (
    RunStarted
    | TurnStarted
    | TextStreamed
    | ReasoningStreamed
    | Notified
    | MessageAdded
    | CallStarted
    | CallProgressed
    | CallFinished
    | Compressed
    | Steered
    | SubagentProgressed
    | RunEnded
)


OnEvent = Callable[[AnyEvent], None]


async def stream_events(run: Callable[[OnEvent], Coroutine[Any, Any, Any]]) -> AsyncGenerator[AnyEvent, None]:
    """What `run` tells the watcher that it is given, until it ends. Leaving the loop ends the run."""
    events: asyncio.Queue[AnyEvent | None] = asyncio.Queue()
    loop, home_thread = asyncio.get_running_loop(), threading.get_ident()

    def put(event: AnyEvent) -> None:
        if threading.get_ident() == home_thread:
            events.put_nowait(event)
        else:
            # What a tool in a thread says must also wake the loop.
            loop.call_soon_threadsafe(events.put_nowait, event)

    task = asyncio.ensure_future(run(put))
    task.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
        task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])
