"""`run_agent`: an agent of the default runtime, for callers that are not async."""

from __future__ import annotations

import atexit
import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from toolcrib.agent.agent import Agent
from toolcrib.agent.events import AnyEvent, CallFinished, CallStarted, ReasoningStreamed, RunResult, TextStreamed
from toolcrib.agent.host import AgentHost
from toolcrib.api import default_runtime
from toolcrib.compat.chat_messages import read_messages, write_messages
from toolcrib.core.attempt import notify
from toolcrib.core.errors import SessionError, UsageError
from toolcrib.core.messages import Message
from toolcrib.core.types import JsonObject

__all__ = ["AIAgent"]

logger = logging.getLogger(__name__)

Watcher = Callable[..., object]


class _SharedHost:
    """The host of all agents made here: one for each default runtime, because the runtime's services belong to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._host: AgentHost | None = None

    def get(self) -> AgentHost:
        runtime = default_runtime()
        with self._lock:
            if self._host is None or self._host.runtime is not runtime:
                self._close()
                self._host = AgentHost(runtime=runtime, platform="library")
                atexit.register(self._close)
            return self._host

    def _close(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            atexit.unregister(self._close)
            host.loop.run_sync(host.close())
            host.loop.close()


_shared_host = _SharedHost()


class AIAgent:
    """A model, a set of tools and a conversation. What is not listed here is accepted and has no effect."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str | None = None,
        model: str = "",
        max_iterations: int = 90,
        enabled_toolsets: Sequence[str] | None = None,
        disabled_toolsets: Sequence[str] | None = None,
        quiet_mode: bool = False,
        ephemeral_system_prompt: str | None = None,
        session_id: str | None = None,
        tool_progress_callback: Watcher | None = None,
        tool_start_callback: Watcher | None = None,
        tool_complete_callback: Watcher | None = None,
        reasoning_callback: Watcher | None = None,
        stream_delta_callback: Watcher | None = None,
        prefill_messages: Sequence[JsonObject] | None = None,
        parent_session_id: str | None = None,
        **unused: Any,
    ) -> None:
        if unused:
            logger.debug("AIAgent ignores %s", ", ".join(sorted(unused)))
        self.max_iterations = max_iterations
        self.enabled_toolsets = enabled_toolsets
        self.disabled_toolsets = disabled_toolsets
        self.quiet_mode = quiet_mode
        self.ephemeral_system_prompt = ephemeral_system_prompt
        self.tool_progress_callback = tool_progress_callback
        self.tool_start_callback = tool_start_callback
        self.tool_complete_callback = tool_complete_callback
        self.reasoning_callback = reasoning_callback
        self.stream_delta_callback = stream_delta_callback
        host = _shared_host.get()
        opened, name = host.provider_for(model, provider or "", base_url=base_url or "", api_key=api_key or "")
        self._agent = Agent(
            host=host,
            model=opened,
            toolsets=enabled_toolsets,
            disabled_toolsets=tuple(disabled_toolsets or ()),
            session_id=_existing_session(host, session_id),
            max_turns=max_iterations,
            parent_id=parent_session_id or "",
        )
        self._agent.model = name
        host.store.update(self._agent.session_id, model=name)
        self._set_history(prefill_messages)

    @property
    def model(self) -> str:
        return self._agent.model

    @property
    def provider(self) -> str:
        return self._agent.provider.name

    @property
    def session_id(self) -> str:
        return self._agent.session_id

    @property
    def valid_tool_names(self) -> set[str]:
        """The tools that the model may call."""
        return set(self._agent.tools)

    @property
    def is_interrupted(self) -> bool:
        return self._was_interrupted

    _was_interrupted = False

    def chat(self, message: str, stream_callback: Watcher | None = None) -> str:
        """The answer to one message, in the conversation of this agent."""
        return str(self.run_conversation(message, stream_callback=stream_callback)["final_response"] or "")

    def run_conversation(
        self,
        user_message: Any,
        system_message: str | None = None,
        conversation_history: list[JsonObject] | None = None,
        task_id: str | None = None,
        stream_callback: Watcher | None = None,
        persist_user_message: Any | None = None,
        persist_user_timestamp: float | None = None,
        moa_config: JsonObject | None = None,
    ) -> JsonObject:
        """Work on one message until it is answered; `final_response`, the whole conversation as `messages`, and how.

        `conversation_history` replaces what was said before, and `system_message` the system prompt of this run.
        """
        if conversation_history is not None:
            self._set_history(conversation_history)
        question = read_messages([{"role": "user", "content": user_message}])[1][0]
        self._was_interrupted = False
        own_prompt = self._agent.system_prompt
        prompt = [system_message or own_prompt, self.ephemeral_system_prompt or ""]
        self._agent.system_prompt = "\n\n".join(filter(None, prompt))
        try:
            result = self._agent.run_sync(question, on_event=_Callbacks(self, stream_callback))
        finally:
            self._agent.system_prompt = own_prompt
        self._was_interrupted = result.outcome == "interrupted"
        return self._report(result, task_id)

    def interrupt(self, message: str | None = None) -> None:
        """Stop the work, from any thread."""
        self._agent.interrupt(message or "interrupted")

    def clear_interrupt(self) -> None:
        self._was_interrupted = False

    def steer(self, text: str) -> bool:
        """Tell the agent something while it works; False for an empty text."""
        if not text.strip():
            return False
        self._agent.steer(text)
        return True

    def switch_model(
        self, new_model: str, new_provider: str, api_key: str = "", base_url: str = "", api_mode: str = ""
    ) -> None:
        """Use another model from the next request on."""
        if api_key or base_url:
            raise UsageError("a model at another address needs another agent: AIAgent(base_url=…, api_key=…)")
        self._agent.use_model(new_model, new_provider)

    def close(self) -> None:
        """End the session, which can be resumed by its id, and close the connections to the model."""
        self._agent.close_sync()
        host = self._agent.host
        if self._agent.provider is not host.provider_for()[0]:
            host.loop.run_sync(self._agent.provider.close())

    def _set_history(self, given: Sequence[JsonObject] | None) -> None:
        """Make these messages the conversation so far."""
        _, messages = read_messages(given or ())
        known = self._agent.conversation.messages
        if [_essence(one) for one in messages] == [_essence(one) for one in known]:
            return
        # Callers pass the whole conversation each time; what it does not contain any more is undone.
        while given is not None and self._agent.conversation.messages:
            if not self._agent.conversation.undo():
                break
        self._agent.host.loop.run_sync(self._add(messages))

    async def _add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._agent.conversation.add(message)
        await self._agent.conversation.stored()

    def _report(self, result: RunResult, task_id: str | None) -> JsonObject:
        answered = result.outcome == "answered"
        return {
            "final_response": result.answer or (None if answered else result.problem),
            "messages": write_messages(self._agent.messages),
            "completed": answered,
            "failed": result.outcome == "failed",
            "partial": result.outcome == "budget",
            "interrupted": result.outcome == "interrupted",
            "error": result.problem or None,
            "api_calls": result.turns,
            "session_id": result.session_id,
            "task_id": task_id,
            "model": self.model,
            "input_tokens": result.usage.input_tokens,
            "output_tokens": result.usage.output_tokens,
        }


class _Callbacks:
    """Passes the events of one run to the callbacks of an agent."""

    def __init__(self, agent: AIAgent, on_text: Watcher | None) -> None:
        self._agent = agent
        self._on_text = on_text
        self._calls: dict[str, tuple[str, JsonObject]] = {}

    def __call__(self, event: AnyEvent) -> None:
        agent = self._agent
        if isinstance(event, TextStreamed):
            self._tell(self._on_text, event.text)
            self._tell(agent.stream_delta_callback, event.text)
        elif isinstance(event, ReasoningStreamed):
            self._tell(agent.reasoning_callback, event.text)
        elif isinstance(event, CallStarted):
            args = _arguments(event.call.arguments)
            self._calls[event.call.id] = (event.call.name, args)
            self._tell(agent.tool_progress_callback, "tool.started", event.call.name, event.summary, args)
            self._tell(agent.tool_start_callback, event.call.id, event.call.name, args)
        elif isinstance(event, CallFinished):
            name, args = self._calls.pop(event.call_id, (event.name, {}))
            self._tell(agent.tool_progress_callback, "tool.completed", name, None, None)
            self._tell(agent.tool_complete_callback, event.call_id, name, args, event.text)

    def _tell(self, callback: Watcher | None, *arguments: Any) -> None:
        if callback is not None:
            notify(callback, *arguments, name="a callback of AIAgent")


def _existing_session(host: AgentHost, session_id: str | None) -> str | None:
    """The id of a session that an agent can resume; one that does not exist yet is created under that id."""
    if not session_id:
        return None
    try:
        return host.store.get(session_id).id
    except SessionError:
        return host.store.create(source=host.platform, session_id=session_id).id


def _essence(message: Message) -> tuple[str, Any, Any]:
    return message.role, message.content, message.tool_calls


def _arguments(text: str) -> JsonObject:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
