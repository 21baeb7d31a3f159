"""What the agents of one home share: the runtime, the sessions, the memory, the models, and who is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from toolcrib.agent.delegate import Delegation, Helper, Order
from toolcrib.agent.events import ChildProgressed
from toolcrib.agent.judge import Auxiliary
from toolcrib.agent.offer import Renderings
from toolcrib.agent.servers import ServerWatch
from toolcrib.approval.approvers.smart import NoApprover, SmartApprover
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.core.approvals import Answer, ApprovalRequest, EntryPoint
from toolcrib.core.context import ToolContext, current_context
from toolcrib.core.errors import SessionError
from toolcrib.core.models import Provider, Usage
from toolcrib.core.ports import Approver, SecretAsker
from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects import render
from toolcrib.providers.create import create_auxiliary, create_provider
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.service_loop import ServiceLoop
from toolcrib.sessions.memory import MemoryStore
from toolcrib.sessions.memory_service import MemoryService
from toolcrib.sessions.records import Session
from toolcrib.sessions.search import SessionSearchService
from toolcrib.sessions.store import SessionStore
from toolcrib.sessions.todo import TodoService
from toolcrib.undo.history import FileHistory


class Asker(Protocol):
    """The front end of a session, as far as it can put a question to the person."""

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str: ...


class Worker(Helper, Protocol):
    """An agent, as far as its workshop needs it."""

    model: str

    @property
    def provider(self) -> Provider: ...

    def tell_watcher(self, event: ChildProgressed) -> None: ...

    def steer(self, text: str) -> None: ...

    async def stop(self) -> None: ...


class Workshop:
    """Made once by a front end; each agent made with it is one session.

    async with Workshop(approver=…) as workshop:
        agent = Agent(workshop=workshop, toolsets=["file"])
    """

    def __init__(
        self,
        *,
        home: Path | str | None = None,
        settings: Settings | None = None,
        entry_point: EntryPoint = "library",
        approver: Approver | None = None,
        asker: Asker | None = None,
        yolo: bool | None = None,
        workspace: Path | str | None = None,
        store: SessionStore | None = None,
        runtime: Runtime | None = None,
        registry: ToolRegistry | None = None,
        platform: str = "library",
        model: str | Provider | None = None,
        provider: str = "",
    ) -> None:
        if runtime is not None:
            settings = runtime.settings
        self.settings = settings or load_settings(Home(Path(home)) if home is not None else None)
        self.platform = platform
        self.store = store or SessionStore(self.settings.home.sessions_file)
        self.file_history = FileHistory(
            self.settings.home.undo_dir, self.settings.undo, terminal=lambda: self.runtime.terminal
        )
        self.renderings = Renderings()
        self.loop = ServiceLoop("toolcrib-agents")
        self.running: dict[str, Worker] = {}
        """The agents that are at work, by session."""
        self.helper_sessions: set[str] = set()
        """The sessions of helpers, which may be trusted more than the agent that sent them."""
        self._model, self._provider = model, provider
        self._main: tuple[Provider, str] | None = None
        self._opened: list[Provider] = []
        self._owns_runtime = runtime is None
        recorder = self.store.recorder()
        self.runtime = runtime or Runtime(
            settings=self.settings,
            registry=registry,
            entry_point=entry_point,
            approver=self._asked(approver),
            yolo=yolo,
            workspace=workspace,
            recorder=recorder,
        )
        if runtime is not None:
            runtime.keep_records(recorder)
        self.servers = ServerWatch(self.runtime)
        self.todo = TodoService()
        memory = self.settings.memory
        self.memory = MemoryService(
            MemoryStore(self.settings.home.memories_dir, memory.memory_char_limit, memory.user_char_limit),
            write_approval=memory.write_approval,
        )
        self.delegation: Delegation | None = None
        self._serve(asker)

    def _serve(self, asker: Asker | None) -> None:
        self.runtime.serve("todo", self.todo)
        self.runtime.serve("memory", self.memory)
        self.runtime.serve("session_search", SessionSearchService(self.store))
        self.runtime.serve("conversation", _Conversations(self.running))
        self.runtime.serve("llm", _Llm(self))
        if asker is not None:
            self.runtime.serve("asker", asker)

    def _asked(self, approver: Approver | None) -> Approver | None:
        """Who is asked: the person, after a model in smart mode; nobody about helpers that the config trusts."""
        approvals = self.settings.approvals
        if approvals.mode == "smart" and approver is not None:
            # Without anybody to fall back on, a model's word alone must not mean yes.
            approver = SmartApprover(_Judge(self), approver, classes=approvals.smart_classes)
        if self.settings.delegation.subagent_auto_approve:
            return _TrustedHelpers(self.helper_sessions, approver or NoApprover())
        return approver

    def send_helpers_with(self, start: Callable[[Order], Helper]) -> None:
        """How helpers are made, which only an agent knows; the first one says it for all."""
        if self.delegation is None:
            self.delegation = Delegation(self.settings.delegation, self.runtime.hooks, start, self._tell_watcher)
            self.runtime.serve("delegate_task", self.delegation)

    def _tell_watcher(self, session_id: str, event: ChildProgressed) -> None:
        worker = self.running.get(session_id)
        if worker is not None:
            worker.tell_watcher(event)

    def resting_session(self, session_id: str) -> Session:
        """The session of that id; refused while one of our own agents works on it."""
        session = self.store.get(session_id)
        if session.id in self.running:
            raise SessionError(
                f"another agent is working on session {session.id!r}; wait until it is done, or branch it"
            )
        return session

    def provider_for(self, model: str = "", provider: str = "") -> tuple[Provider, str]:
        """The provider and the model that these names mean; without names, the ones that were configured."""
        if not model and not provider:
            if self._main is None:
                self._main = self._open_main()
            return self._main
        return self._keep(create_provider(self.settings, model=model, provider=provider, render=rendered))

    def _open_main(self) -> tuple[Provider, str]:
        if self._model is not None and not isinstance(self._model, str):
            return self._model, ""
        made = create_provider(self.settings, model=self._model or "", provider=self._provider, render=rendered)
        return self._keep(made)

    def auxiliary(
        self, main: tuple[Provider, str] | None = None, spent: Callable[[Usage, str], None] | None = None
    ) -> Auxiliary:
        """The model for small jobs; the main one, unless the config names another."""
        main = main or self.provider_for()
        provider, model = create_auxiliary(self.settings, main)
        if provider is not main[0]:
            self._keep((provider, model))
        return Auxiliary(provider, model, spent)

    def _keep(self, made: tuple[Provider, str]) -> tuple[Provider, str]:
        if all(made[0] is not opened for opened in self._opened):
            self._opened.append(made[0])
        return made

    async def close(self) -> None:
        """End agents at work and their helpers, connections to models, commands and the session store."""
        for worker in list(self.running.values()):
            await worker.stop()
        if self.delegation is not None:
            await self.delegation.close()
        for provider in self._opened:
            await provider.close()
        if self._owns_runtime:
            self.runtime.close()
        self.store.close()
        if not self.loop.is_current:
            # A loop cannot wait for its own end; whoever runs this on it closes it behind us.
            self.loop.close()

    async def __aenter__(self) -> Workshop:
        self.runtime.load()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def rendered(definitions: Sequence[JsonObject], dialect: Any) -> list[JsonObject]:
    """The definitions in a dialect, for a fallback that speaks another one than the first provider."""
    return render(definitions, dialect).tools


class _Judge:
    """The auxiliary model, made when it is first asked."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    async def complete(self, prompt: str, *, timeout_seconds: float) -> str:
        return await self._workshop.auxiliary().complete(prompt, timeout_seconds=timeout_seconds)


class _Conversations:
    """Where plugins put their messages: into the session of the call they serve, else into the latest one at work."""

    def __init__(self, running: dict[str, Worker]) -> None:
        self._running = running

    def inject(self, content: str) -> bool:
        ctx = current_context.get()
        worker = self._running.get(ctx.session_id) if ctx is not None else None
        worker = worker or next(reversed(self._running.values()), None)
        if worker is not None:
            worker.steer(content)
        return worker is not None


class _Llm(_Judge):
    """The auxiliary model as plugins see it."""

    def model_of(self, session_id: str) -> tuple[Provider, str]:
        """The provider and the model that a session talks to; the configured ones for one that is not at work."""
        worker = self._workshop.running.get(session_id)
        return self._workshop.provider_for() if worker is None else (worker.provider, worker.model)

    async def complete(self, prompt: str, *, timeout_seconds: float = 120.0) -> str:
        return await self._workshop.auxiliary().complete(prompt, timeout_seconds=timeout_seconds, purpose="plugin")

    def complete_sync(self, prompt: str, *, timeout_seconds: float = 120.0) -> str:
        return self._workshop.loop.run_sync(self.complete(prompt, timeout_seconds=timeout_seconds))


class _TrustedHelpers:
    """Agrees to what helpers want to do; what is always denied never gets here."""

    def __init__(self, sessions: set[str], fallback: Approver) -> None:
        self._sessions = sessions
        self._fallback = fallback

    async def ask(self, request: ApprovalRequest) -> Answer:
        if request.session_key in self._sessions:
            return Answer(choice="once", decided_by="policy")
        return await self._fallback.ask(request)

    async def ask_secret(self, prompt: str, timeout_seconds: float) -> str | None:
        if not isinstance(self._fallback, SecretAsker):
            return None
        return await self._fallback.ask_secret(prompt, timeout_seconds)
