"""The events that an agent emits while it works."""

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
    """The agent's last text; of a run that did not end in an answer, what there is."""
    is_incomplete: bool = False
    """The last text breaks off: the model's answer did, the run was interrupted, or the output limit was reached."""
    is_plan: bool = False
    """In plan mode, the answer is a plan to accept or reject, not talk: it has numbered steps or a to-do list."""
    problem: str = ""
    """What went wrong and what to do, as one sentence; empty if the question was answered."""
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
    """One event. As JSON it has its kind under `event`."""


class RunStarted(AgentEvent, frozen=True, kw_only=True):
    """The agent started to work on a question."""

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
    """A piece of the model's reasoning before its answer."""

    text: str


class Notified(AgentEvent, frozen=True, kw_only=True):
    """A notice: a retry, a fallback, a tool that was left out, a deletion that undo has not recorded, a warning to the
    model.

    With the kind `restart`, the partial answer is discarded and the answer starts over.
    """

    kind: str
    message: str
    tool: str = ""

    @classmethod
    def of(cls, notice: Notice) -> Notified:
        return cls(kind=notice.kind, message=notice.message, tool=notice.tool)


class ModelProgressed(AgentEvent, frozen=True, kw_only=True):
    """What a slow model does before its answer begins, such as reading the prompt."""

    message: str


class MessageAdded(AgentEvent, frozen=True, kw_only=True):
    """A message became part of the conversation (and is on disk)."""

    message: Message
    usage: Usage | None = None
    """For an answer: its usage."""


class CallStarted(AgentEvent, frozen=True, kw_only=True):
    """A tool is called."""

    call: RequestedCall
    title: str = ""
    """The tool's display name, if it differs from the name in the call; may include the server's name."""
    emoji: str = ""
    summary: str = ""
    """The argument that says most about the call, in one line: a command, a path, a question."""

    @property
    def shown_name(self) -> str:
        return self.title or self.call.name


class CallProgressed(AgentEvent, frozen=True, kw_only=True):
    """A tool reports its progress."""

    call_id: str
    message: str


class CallOutput(AgentEvent, frozen=True, kw_only=True):
    """A command that runs for a while has printed something. Sent a few times a second, however much it prints."""

    call_id: str
    text: str
    """The latest lines, as far as they fit into a few kilobytes; the result has the rest."""
    lines: int
    """How many lines it has printed so far."""


class CallFinished(AgentEvent, frozen=True, kw_only=True):
    """A call has its result."""

    call_id: str
    name: str
    status: ResultStatus
    text: str
    """The result text for the model, without images."""
    error_message: str = ""
    error_type: str = ""
    duration_ms: float = 0.0
    handle: str = ""
    edited: str = ""
    """The command that ran, if the person changed it first."""


class Compressed(AgentEvent, frozen=True, kw_only=True):
    """A summary replaced the older part of the conversation."""

    messages: int
    """How many messages the summary replaced."""
    tokens_before: int
    tokens_after: int


class Steered(AgentEvent, frozen=True, kw_only=True):
    """A message that the user sent while the agent worked has been added."""

    text: str


class SteeringDropped(AgentEvent, frozen=True, kw_only=True):
    """A message that the user sent while the agent worked came too late; the agent never saw it."""

    text: str


class SubagentProgressed(AgentEvent, frozen=True, kw_only=True, tag="child_progressed"):
    """A subagent did something; `what` is one line to display."""

    child_id: str
    goal: str
    state: Literal["started", "working", "completed", "failed", "interrupted", "timeout", "budget"]
    what: str = ""


class RunEnded(AgentEvent, frozen=True, kw_only=True):
    """The run ended, with or without an answer."""

    result: RunResult


AnyEvent = (
    RunStarted
    | TurnStarted
    | TextStreamed
    | ReasoningStreamed
    | Notified
    | ModelProgressed
    | MessageAdded
    | CallStarted
    | CallProgressed
    | CallOutput
    | CallFinished
    | Compressed
    | Steered
    | SteeringDropped
    | SubagentProgressed
    | RunEnded
)


OnEvent = Callable[[AnyEvent], None]


async def stream_events(run: Callable[[OnEvent], Coroutine[Any, Any, Any]]) -> AsyncGenerator[AnyEvent, None]:
    """The events that `run` passes to its watcher, until it ends. Leaving the loop ends the run."""
    events: asyncio.Queue[AnyEvent | None] = asyncio.Queue()
    loop, home_thread = asyncio.get_running_loop(), threading.get_ident()

    def put(event: AnyEvent) -> None:
        if threading.get_ident() == home_thread:
            events.put_nowait(event)
        else:
            # An event from a tool's thread must also wake the loop.
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
