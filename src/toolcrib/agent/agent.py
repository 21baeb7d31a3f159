"""An agent: a model, a set of tools and a conversation that lasts."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from toolcrib.agent.compress import compress
from toolcrib.agent.conversation import Conversation, estimate_text_tokens, restore_provenance
from toolcrib.agent.delegate import DelegatedTask
from toolcrib.agent.events import AnyEvent, Compressed, OnEvent, RunResult, stream_events
from toolcrib.agent.hooks import fire
from toolcrib.agent.host import AgentHost
from toolcrib.agent.loop import run_question
from toolcrib.agent.prompt import PromptSources, build_prompt
from toolcrib.agent.tool_selection import ToolSelection
from toolcrib.config.agent_settings import AgentSettings
from toolcrib.core.approvals import EntryPoint, Mode
from toolcrib.core.attempt import notify
from toolcrib.core.cancel import CancelToken
from toolcrib.core.context import Asker
from toolcrib.core.errors import UsageError
from toolcrib.core.messages import Message, user_message
from toolcrib.core.models import ModelProfile, Provider, Usage
from toolcrib.core.ports import Approver
from toolcrib.sessions.records import Session
from toolcrib.sessions.recovery import is_outcome_unknown
from toolcrib.sessions.store import SessionStore

logger = logging.getLogger(__name__)

STOP_SECONDS = 15.0
"""How long an interrupted run may take to clean up."""


class Agent:
    """Answers questions with the help of tools. Each agent is one session, stored in the home.

    agent = Agent(model="openai/gpt-…", toolsets=["web", "file"])
    result = agent.run_sync("What changed in this folder today?")
    print(result.answer)

    In async code: `result = await agent.run(…)`, or `async for event in agent.stream(…)`.
    """

    def __init__(
        self,
        *,
        model: str | Provider | None = None,
        provider: str = "",
        toolsets: Sequence[str] | None = None,
        disabled_toolsets: Sequence[str] = (),
        approver: Approver | None = None,
        asker: Asker | None = None,
        home: Path | str | None = None,
        store: SessionStore | None = None,
        host: AgentHost | None = None,
        workshop: AgentHost | None = None,
        session_id: str | None = None,
        system_prompt: str | None = None,
        max_turns: int | None = None,
        max_calls: int | None = None,
        cwd: Path | str | None = None,
        yolo: bool | None = None,
        entry_point: EntryPoint = "library",
        dry_run: bool = False,
        mode: Mode | None = None,
        without_tools: Collection[str] = (),
        source: str = "",
        parent_id: str = "",
        owner: str = "",
    ) -> None:
        host = _renamed_host(host, workshop)
        if host is not None and (approver is not None or asker is not None or home is not None):
            raise UsageError("approver, asker and home belong to the host; pass them to AgentHost(…)")
        self._owns_host = host is None
        self.host = host or AgentHost(
            home=home,
            entry_point=entry_point,
            approver=approver,
            asker=asker,
            yolo=yolo,
            workspace=cwd,
            store=store,
            model=model,
            provider=provider,
        )
        runtime, settings = self.host.runtime, self.host.settings
        self.tool_selection = self._selection(toolsets, disabled_toolsets, without_tools)
        self._provider, self.model = self._chosen(model, provider)
        self.steering: deque[Message] = deque()
        self._is_subagent = bool(parent_id)
        self._queue: deque[str] = deque()
        self._cancel: CancelToken | None = None
        self._at_rest: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._at_rest.set_result(None)
        self._cwd = str(Path(cwd).expanduser().absolute()) if cwd is not None else runtime.workspace
        self.max_turns, self.max_calls = _checked_budget(settings.agent, max_turns, max_calls)
        self.dry_run = dry_run
        self.mode: Mode = mode or settings.agent.mode
        """How much it may do on its own; may be changed at any time, also while it works."""
        self._own_prompt, self._ended = system_prompt, False
        self._owner = owner
        session = self._open_session(session_id, source or self.host.platform, parent_id)
        self._open(session, is_new=session_id is None)

    def _selection(
        self, toolsets: Sequence[str] | None, disabled: Sequence[str], without: Collection[str]
    ) -> ToolSelection:
        runtime = self.host.runtime
        runtime.load()
        self.host.external_memory.attach()
        runtime.toolsets.require([*(toolsets or ()), *disabled])
        disabled = [*self.host.settings.agent.disabled_toolsets, *disabled]
        return ToolSelection(runtime, self.host.renderings, toolsets, disabled, without)

    def _open(self, session: Session, *, is_new: bool) -> None:
        self.conversation = Conversation(self.host.store, session)
        self.repaired: list[Message] = []
        """The results that toolcrib added because a process died while it worked on this session."""
        if not is_new:
            self.repaired = self.conversation.load()
            restore_provenance(self.host.runtime.provenances, self.host.store, session)
            self._restore_plan()
        self.is_first_run = not self.conversation.messages
        self.system_prompt = self._prompt(session)
        self._auxiliary = self.host.auxiliary((self._provider, self.model), self._spent)
        self.host.start_subagents_with(self._subagent)

    # What it is

    @property
    def session_id(self) -> str:
        return self.conversation.session_id

    @property
    def provider(self) -> Provider:
        return self._provider

    @property
    def profile(self) -> ModelProfile:
        """The model's limits and abilities."""
        return self._provider.profile(self.model)

    @property
    def messages(self) -> list[Message]:
        """The conversation as the model sees it."""
        return list(self.conversation.messages)

    @property
    def session(self) -> Session:
        return self.host.store.get(self.session_id)

    @property
    def usage(self) -> Usage:
        """The usage of the whole session so far."""
        return self.session.usage

    @property
    def cwd(self) -> str:
        """The folder that the agent works in."""
        return self._cwd

    @property
    def tools(self) -> list[str]:
        """The tools that would be offered now, by name."""
        profile = self.profile
        return self.tool_selection.current(profile, self._provider.dialect, "", mode=self.mode).names

    @property
    def context_tokens(self) -> int:
        """How many tokens the next request takes, about."""
        if not self.conversation.fixed_tokens and self.messages:
            # A resumed session, which has sent nothing yet.
            offered = self.tool_selection.current(self.profile, self._provider.dialect, "", mode=self.mode)
            self.conversation.fixed_tokens = estimate_text_tokens(self.system_prompt) + offered.tokens
        return self.conversation.tokens

    @property
    def context_share(self) -> float:
        """How much of the model's context window the conversation takes, from 0 to 1."""
        window = self.profile.context_window
        return self.context_tokens / window if window else 0.0

    @property
    def warnings(self) -> list[str]:
        """What the user should know about this session before resuming it, as sentences."""
        unknown = [message.name for message in self.repaired if is_outcome_unknown(message)]
        told = [f"the outcome of a call to {name} is unknown, because its process was killed" for name in unknown]
        missing = [self.host.external_memory.problem] if self.host.external_memory.problem else []
        return [*told, *missing, *(str(one) for one in self.host.memory.left_out(self.session_id))]

    def changed_paths(self) -> list[str]:
        """The files that the tools of this session changed."""
        return [one.path for one in self.host.file_history.changed(self.session_id)]

    @property
    def is_running(self) -> bool:
        return self._cancel is not None

    # Working

    async def run(self, prompt: str | Message, *, on_event: OnEvent | None = None) -> RunResult:
        """Work on one question until it is answered, fails, is interrupted or runs out of budget."""
        if self._cancel is not None:
            raise UsageError("this agent is busy; steer it, queue the question, or make another agent")
        if self.session_id in self.host.running:
            raise UsageError(f"another agent is working on session {self.session_id!r}; wait until it is done")
        question = user_message(prompt) if isinstance(prompt, str) else prompt
        if not question.origin and not self._is_subagent:
            # A model wrote the question of a subagent; any other caller speaks for a person, unless they say otherwise.
            question = msgspec.structs.replace(question, origin="person")
        self._cancel, self._at_rest = CancelToken(), concurrent.futures.Future()
        self.host.running[self.session_id] = self
        self.on_event = on_event
        try:
            return await run_question(self, question, self.notify_watcher, self._cancel)
        finally:
            self._cancel = None
            self.on_event = None
            self.host.running.pop(self.session_id, None)
            self._at_rest.set_result(None)

    on_event: OnEvent | None = None
    """Receives this agent's events while it runs."""

    def notify_watcher(self, event: AnyEvent) -> None:
        """Pass on an event of this agent or one of its subagents."""
        if self.on_event is not None:
            notify(self.on_event, event, name=f"the watcher of session {self.session_id}")

    def run_sync(self, prompt: str | Message, *, on_event: OnEvent | None = None) -> RunResult:
        """Like `run`, from code without an event loop. Ctrl-C stops the work and is raised after the cleanup."""
        if self.host.loop.is_current:
            raise UsageError("run_sync would wait for itself here; use `await agent.run(…)`")
        future = self.host.loop.submit(self.run(prompt, on_event=on_event))
        try:
            return future.result()
        except KeyboardInterrupt:
            self.interrupt() if self.is_running else future.cancel()
            concurrent.futures.wait([future], timeout=STOP_SECONDS)
            raise

    def stream(self, prompt: str | Message) -> AsyncGenerator[AnyEvent, None]:
        """The events of one run; the last one is RunEnded. Leaving the loop ends the run."""
        return stream_events(lambda watch: self.run(prompt, on_event=watch))

    def interrupt(self, reason: str = "interrupted") -> None:
        """Stop the work, from any thread. The session stays usable; every call has a result."""
        if self._cancel is not None:
            self._cancel.cancel(reason)

    async def stop(self) -> None:
        """Like `interrupt`, and wait until the cleanup is done."""
        self.interrupt()
        await asyncio.wait([asyncio.wrap_future(self._at_rest)], timeout=STOP_SECONDS)

    def steer(self, text: str, *, by_person: bool = True) -> None:
        """Send the agent a message while it works; the model sees it with its next request. Thread-safe."""
        if text.strip():
            message = user_message(text)
            self.steering.append(msgspec.structs.replace(message, origin="person") if by_person else message)

    def drop_steering(self) -> list[str]:
        """Remove what the person sent too late for this run, so that it doesn't reach the next question."""
        dropped = [message.text for message in self.steering if message.origin == "person"]
        kept = [message for message in self.steering if message.origin != "person"]
        self.steering.clear()
        self.steering.extend(kept)
        return dropped

    def queue(self, text: str) -> None:
        """Queue a question behind the current one; the front end takes it with `next_queued`."""
        self._queue.append(text)

    def next_queued(self) -> str | None:
        return self._queue.popleft() if self._queue else None

    # Changing

    async def compress(self, topic: str = "") -> Compressed | None:
        """Replace the older part of the conversation with a summary now; None if it is too short for that."""
        self._require_rest("compressing its conversation")
        return await self.summarise(topic)

    async def summarise(self, topic: str = "") -> Compressed | None:
        """Like `compress`, while the agent works."""
        spoken = [{"role": one.role, "content": one.text} for one in self.messages]
        kept = await self.host.external_memory.before_compressing(self.session_id, spoken)
        return await compress(
            self.conversation,
            self._auxiliary,
            keep_messages=self.host.settings.compression.keep_messages,
            topic=topic,
            plan=self.host.todo.store(self.session_id).format_for_injection() or "",
            kept=kept,
            transcript_chars=self.profile.context_window * 2,
        )

    def use_model(self, model: str, provider: str = "") -> None:
        """Use another model from the next request on."""
        self._provider, self.model = self.host.provider_for(model, provider)
        self.system_prompt = self._prompt(self.session)
        self._auxiliary = self.host.auxiliary((self._provider, self.model), self._spent)
        self.host.store.update(self.session_id, model=self.model, provider=self._provider.name)

    def renew_prompt(self) -> None:
        """Build the system prompt again before the first question, because the person now trusts the project."""
        self._require_rest("changing its prompt")
        if self.is_first_run and not self._own_prompt:
            self.system_prompt = self._prompt(msgspec.structs.replace(self.session, system_prompt=""))

    def undo(self) -> int:
        """Remove the latest question and everything after it; returns the number of messages. Does not change files."""
        self._require_rest("removing messages")
        taken_back = self.conversation.undo()
        self._restore_plan()
        self.host.external_memory.switched(self.session_id, self.session_id, rewound=True)
        return taken_back

    def _require_rest(self, doing: str) -> None:
        if self._cancel is not None:
            raise UsageError(f"this agent is busy; stop it before {doing}")

    def _restore_plan(self) -> None:
        # A plan survives even if a summary replaced the call that made it.
        stored = self.host.store.messages(self.session_id, states=("live", "folded"))
        self.host.todo.restore(self.session_id, [one.message for one in stored])

    def branch(self) -> Agent:
        """A new agent that continues from a copy of this conversation."""
        copy = self.host.store.branch(self.session_id)
        self.host.external_memory.switched(copy.id, self.session_id)
        return Agent(
            host=self.host,
            session_id=copy.id,
            toolsets=self.tool_selection.chosen,
            disabled_toolsets=self.tool_selection.disabled,
            model=self._provider if not self.model else self.model,
            provider=self._provider.name if self.model else "",
            cwd=self._cwd,
            system_prompt=self._own_prompt,
            max_turns=self.max_turns,
            max_calls=self.max_calls,
            dry_run=self.dry_run,
            mode=self.mode,
            without_tools=self.tool_selection.without,
        )

    async def close(self, reason: str = "closed") -> None:
        """End the session; it can be resumed. An agent that made its own host closes that too."""
        if self._ended:
            return
        self._ended = True
        await self.stop()
        about = {"session_id": self.session_id, "platform": self.host.platform, "reason": reason}
        await fire(self.host.runtime.hooks, "on_session_finalize", **about)
        await self.host.runtime.services.end_session(self.session_id)
        await asyncio.to_thread(self.host.store.end, self.session_id, reason)
        if self._owns_host:
            await self.host.close()

    def close_sync(self) -> None:
        """Like `close`, from code without an event loop."""
        self.host.loop.run_sync(self.close())
        if self._owns_host:
            self.host.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_sync()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _chosen(self, model: str | Provider | None, provider: str) -> tuple[Provider, str]:
        if model is not None and not isinstance(model, str):
            return model, ""
        if self._owns_host:
            return self.host.provider_for()
        return self.host.provider_for(model or "", provider)

    def _open_session(self, session_id: str | None, source: str, parent_id: str) -> Session:
        store = self.host.store
        if session_id is not None:
            return self.host.idle_session(session_id)
        return store.create(
            source=source,
            model=self.model,
            provider=self._provider.name,
            cwd=self._cwd,
            toolsets=tuple(self.tool_selection.toolsets),
            parent_id=parent_id,
            parent_kind="delegate" if parent_id else "",
            owner=self._owner,
        )

    def _subagent(self, task: DelegatedTask) -> Agent:
        """An agent for one task, with the tools and the model of the agent that starts it."""
        sender = self.host.running.get(task.parent_id)
        parent = sender if isinstance(sender, Agent) else self
        subagent = Agent(
            host=self.host,
            model=task.model or (parent.model if parent.model else parent.provider),
            provider="" if task.model or not parent.model else parent.provider.name,
            toolsets=parent.tool_selection.chosen,
            disabled_toolsets=parent.tool_selection.disabled,
            without_tools=task.without_tools | parent.tool_selection.without,
            max_turns=task.max_turns,
            cwd=task.cwd or None,
            mode=parent.mode,
            source="subagent",
            parent_id=task.parent_id,
        )
        self.host.subagent_sessions.add(subagent.session_id)
        self.host.runtime.provenances.share(subagent.session_id, task.parent_id)
        return subagent

    def _prompt(self, session: Session) -> str:
        """The system prompt: the given one, or the stored one unless the model cannot handle it."""
        settings, profile = self.host.settings, self.profile
        if self._own_prompt:
            self.host.store.update(session.id, system_prompt=self._own_prompt)
            return self._own_prompt
        if session.system_prompt and profile.project_files:
            return session.system_prompt
        sources = PromptSources(
            home=settings.home,
            cwd=self._cwd,
            memory=self._memory_for_prompt(session.id),
            tool_names=frozenset(self.tools),
            plugins=self.host.runtime.loaded_plugins,
        )
        prompt = build_prompt(settings, profile, sources)
        if profile.project_files:
            self.host.store.update(session.id, system_prompt=prompt)
        return prompt

    def _memory_for_prompt(self, session_id: str) -> str:
        own = self.host.memory.snapshot(session_id) if self.host.settings.memory.enabled else ""
        return "\n\n".join(filter(None, (own, self.host.external_memory.prompt_block())))

    def _spent(self, usage: Usage, purpose: str) -> None:
        self.host.store.add_usage(self.session_id, usage, purpose=purpose)


def _renamed_host(host: AgentHost | None, workshop: AgentHost | None) -> AgentHost | None:
    if workshop is not None:
        warnings.warn("Agent(workshop=…) is now Agent(host=…)", DeprecationWarning, stacklevel=3)
    return host or workshop


def _checked_budget(configured: AgentSettings, turns: int | None, calls: int | None) -> tuple[int, int]:
    max_turns = configured.max_turns if turns is None else turns
    max_calls = configured.max_calls if calls is None else calls
    if max_turns < 1 or max_calls < 0:
        raise UsageError(f"a budget of {max_turns} turns and {max_calls} calls is too small; allow at least one turn")
    return max_turns, max_calls


def run_sync(prompt: str, **options: Any) -> RunResult:
    """Ask one question and then close everything; accepts the arguments of `Agent`."""
    with Agent(**options) as agent:
        return agent.run_sync(prompt)
