"""Turns what an agent does, and what a stored session holds, into the updates that an editor shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from acp import (
    image_block,
    plan_entry,
    start_tool_call,
    text_block,
    tool_terminal_ref,
    update_agent_message,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
    update_user_message,
    update_user_message_text,
)
from acp.schema import AgentPlanUpdate, Cost, ToolCallStatus, Usage, UsageUpdate

from toolcrib.acp.tool_calls import (
    Content,
    FileDiff,
    ReadText,
    ShownCall,
    fenced,
    result_content,
    shown_call,
    text_content,
)
from toolcrib.agent import events
from toolcrib.agent.compress import HEADING
from toolcrib.core.messages import Image, Message, RequestedCall, spoken_text
from toolcrib.core.models import Usage as TokenUsage
from toolcrib.core.types import ResultStatus
from toolcrib.sessions.todo import TodoItem

Update = Any
"""One of the SDK's session updates."""
PLAN_STATUS = {"pending": "pending", "in_progress": "in_progress", "completed": "completed", "cancelled": "completed"}


class EventTranslator:
    """The updates for the events of one session's runs."""

    def __init__(
        self,
        cwd: str,
        read_text: ReadText | None,
        plan: Callable[[], Sequence[TodoItem]],
        replaced: Callable[[str, str | None], str | None] = lambda _, before: before,
    ) -> None:
        """`replaced` knows better than the disk what an edit replaced: the unsaved text of a buffer."""
        self._cwd = cwd
        self._read_text = read_text
        self._plan = plan
        self._replaced = replaced
        self._calls: dict[str, ShownCall] = {}
        self._before: dict[str, dict[str, str | None]] = {}
        self._terminals: dict[str, str] = {}
        self._results: dict[str, list[Content]] = {}

    def of(self, event: events.AnyEvent) -> Iterator[Update]:
        match event:
            case events.TextStreamed():
                yield update_agent_message_text(event.text)
            case events.ReasoningStreamed():
                yield update_agent_thought_text(event.text)
            case events.CallStarted():
                yield self._started(event)
            case events.CallOutput():
                if event.call_id not in self._terminals:
                    yield update_tool_call(event.call_id, content=[text_content(fenced(event.text, ""))])
            case events.CallProgressed() if event.call_id in self._calls:
                yield update_tool_call(event.call_id, content=[text_content(event.message)])
            case events.CallFinished():
                yield from self._finished(event)
            case events.MessageAdded() if event.message.role == "tool":
                yield from self._images(event.message)
            case events.SubagentProgressed():
                yield update_agent_thought_text(f"Subagent ({event.goal}): {event.what or event.state}\n")
            case events.Notified() if event.kind == "restart":
                yield update_agent_message_text("\n\n(The answer starts over.)\n\n")
            case events.Notified():
                yield update_agent_thought_text(f"{event.message}\n")
            case events.Compressed():
                yield update_agent_thought_text(f"A summary replaced {event.messages} older messages.\n")

    def show(self, call_id: str) -> ShownCall | None:
        """A call that was started and has no result yet."""
        return self._calls.get(call_id)

    def in_terminal(self, call_id: str, terminal_id: str) -> Update:
        """The command of a call runs in a terminal of the editor."""
        self._terminals[call_id] = terminal_id
        return update_tool_call(call_id, content=[tool_terminal_ref(terminal_id)])

    def _started(self, event: events.CallStarted) -> Update:
        call = shown_call(event.call, event.title, self._cwd, self._read_text)
        self._calls[call.id] = call
        if self._read_text is not None:
            self._before[call.id] = {path: self._read_text(path) for path in call.paths}
        return start_tool_call(
            call.id,
            call.title,
            kind=call.kind,
            status="in_progress",
            content=call.opening(),
            locations=call.locations or None,
            raw_input=call.arguments,
        )

    def _finished(self, event: events.CallFinished) -> Iterator[Update]:
        call = self._calls.pop(event.call_id, None)
        before = self._before.pop(event.call_id, {})
        if call is None:
            # It was refused before it started, so the editor has not heard of it.
            requested = RequestedCall(id=event.call_id, name=event.name, arguments="{}")
            call = shown_call(requested, "", self._cwd, None)
            yield start_tool_call(call.id, call.title, kind=call.kind, status="pending")
        status = status_of(event.status)
        content: list[Content] = []
        if terminal := self._terminals.pop(event.call_id, ""):
            content.append(tool_terminal_ref(terminal))
        elif status == "completed" and call.diffs:
            content += [diff.content() for diff in self._changes(call, before)]
        if not content or status == "failed":
            content += result_content(call.name, event.text or event.error_message)
        self._results = {event.call_id: content}
        edited = {"command": event.edited} if event.edited else None
        yield update_tool_call(event.call_id, status=status, content=content, raw_input=edited)
        if call.name == "todo" and status == "completed":
            yield plan_update(self._plan())

    def _changes(self, call: ShownCall, before: dict[str, str | None]) -> Iterable[FileDiff]:
        """What really became of the files; on another machine, what the call said."""
        if self._read_text is None:
            return call.diffs
        found = [
            FileDiff(path, self._replaced(path, before.get(path)), self._read_text(path) or "") for path in call.paths
        ]
        return [one for one in found if one.old != one.new] or call.diffs

    def _images(self, message: Message) -> Iterator[Update]:
        if message.images:
            content = self._results.pop(message.call_id, []) + result_content(message.name, "", message.images)
            yield update_tool_call(message.call_id, content=content)


def status_of(status: ResultStatus) -> ToolCallStatus:
    return "completed" if status == "ok" else "failed"


def plan_update(items: Sequence[TodoItem]) -> AgentPlanUpdate:
    return update_plan(
        plan_entry(item["content"], status=PLAN_STATUS[item["status"]])  # type: ignore[arg-type]
        for item in items
    )


def usage_update(used: int, size: int, usage: TokenUsage) -> UsageUpdate:
    """How full the context is, and what the session has cost."""
    cost = None if usage.cost_usd is None else Cost(amount=usage.cost_usd, currency="USD")
    return UsageUpdate(session_update="usage_update", used=max(0, used), size=max(0, size), cost=cost)


def turn_usage(usage: TokenUsage) -> Usage:
    return Usage(
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        thought_tokens=usage.reasoning_tokens or None,
        cached_read_tokens=usage.cached_tokens or None,
        cached_write_tokens=usage.cache_write_tokens or None,
    )


def replay(messages: Sequence[Message], cwd: str) -> Iterator[Update]:
    """A stored conversation, as it was shown when it took place."""
    results = {one.call_id: one for one in messages if one.role == "tool"}
    for message in messages:
        if message.role == "user" and not message.text.startswith(HEADING):
            yield from _spoken(message)
        elif message.role == "assistant":
            if message.reasoning:
                yield update_agent_thought_text(message.reasoning)
            if message.text:
                yield update_agent_message_text(message.text)
            yield from (update_agent_message(_image(one)) for one in message.images if one.data)
            for call in message.tool_calls:
                yield _replayed(call, results.get(call.id), cwd)


def _spoken(message: Message) -> Iterator[Update]:
    words = spoken_text(message.text)
    if words:
        yield update_user_message_text(words)
    yield from (update_user_message(_image(one)) for one in message.images if one.data)


def _image(image: Image) -> Any:
    return image_block(image.data, image.media_type or "image/png") if image.data else text_block(image.url)


def _replayed(call: RequestedCall, result: Message | None, cwd: str) -> Update:
    shown = shown_call(call, "", cwd, lambda _: None)
    status: ToolCallStatus = "failed" if result is None else status_of(result.status)
    content: list[Content] = [diff.content() for diff in shown.diffs]
    if result is not None and (not content or status == "failed" or result.images):
        content += result_content(shown.name, result.text, result.images)
    return start_tool_call(
        shown.id,
        shown.title,
        kind=shown.kind,
        status=status,
        content=content,
        locations=shown.locations or None,
        raw_input=shown.arguments,
    )
