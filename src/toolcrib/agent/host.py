"""Builds what the agents of one program share: runtime, sessions, memory, models and approver."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from toolcrib.agent.delegate import DelegatedTask, Delegation, SubagentRunner
from toolcrib.agent.events import SubagentProgressed
from toolcrib.agent.external_memory import ExternalMemory
from toolcrib.agent.model_request import AuxiliaryModel
from toolcrib.agent.tool_selection import RenderedTools
from toolcrib.approval.approvers.smart import NoApprover, SmartApprover
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, EntryPoint
from toolcrib.core.context import Asker, current_context
from toolcrib.core.errors import SessionError, ToolcribError, UsageError
from toolcrib.core.lazy import lazy
from toolcrib.core.models import Provider, Usage
from toolcrib.core.ports import Approver, SecretAsker
from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects import render
from toolcrib.providers.create import create_auxiliary, create_provider
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime, toolsets_of_servers
from toolcrib.service_loop import ServiceLoop
from toolcrib.sessions.memory import MemoryStore
from toolcrib.sessions.memory_service import MemoryService
from toolcrib.sessions.records import Session
from toolcrib.sessions.search import SessionSearchService
from toolcrib.sessions.store import SessionStore
from toolcrib.sessions.todo import TodoService

if TYPE_CHECKING:
    from toolcrib.undo.history import FileHistory


class HostedAgent(SubagentRunner, Protocol):
    """The part of an agent that its host uses."""

    model: str

    @property
    def provider(self) -> Provider: ...

    def notify_watcher(self, event: SubagentProgressed) -> None: ...

    def steer(self, text: str, *, by_person: bool = True) -> None: ...

    async def stop(self) -> None: ...


class AgentHost:
    """Made once by a front end; each agent made with it is one session.

    async with AgentHost(approver=…) as host:
        agent = Agent(host=host, toolsets=["file"])
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
        self.renderings = RenderedTools()
        self.loop = ServiceLoop("toolcrib-agents")
        self.running: dict[str, HostedAgent] = {}
        """The agents that are working, by session."""
        self.subagent_sessions: set[str] = set()
        """The sessions of subagents; the config may trust them more than the agents that started them."""
        self._model, self._provider = model, provider
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
            runtime.set_recorder(recorder)
        self.servers = McpServerWatcher(self.runtime)
        self.todo = TodoService()
        self.memory = MemoryService(
            self.memories_of(""),
            write_approval=self.settings.memory.write_approval,
            store_of=lambda session_id: self.memories_of(self.owner_of(session_id)),
            on_change=lambda *change: self.external_memory.memory_written(*change),
        )
        self.external_memory = ExternalMemory(self.runtime, self.subagent_sessions, self._spoken)
        self.delegation: Delegation | None = None
        self._serve(asker)

    def owner_of(self, session_id: str) -> str:
        """Whose session it is; empty for the owner of the home, and for a call without a session."""
        return self.store.owners([session_id]).get(session_id, "") if session_id else ""

    def _spoken(self, session_id: str) -> list[JsonObject]:
        """What was said in a session, as plugins see it."""
        stored = [one.message for one in self.store.messages(session_id)]
        return [{"role": one.role, "content": one.text} for one in stored if one.role in ("user", "assistant")]

    def memories_of(self, owner: str) -> MemoryStore:
        """The memories of an owner."""
        memory = self.settings.memory
        return MemoryStore(self.settings.home.memories_of(owner), memory.memory_char_limit, memory.user_char_limit)

    @lazy
    def file_history(self) -> FileHistory:
        """The files that tools changed."""
        # Costs 12 ms to import, and few conversations ask what changed.
        from toolcrib.undo.history import FileHistory  # noqa: PLC0415

        return FileHistory(self.settings.home.undo_dir, self.settings.undo, terminal=lambda: self.runtime.terminal)

    def _serve(self, asker: Asker | None) -> None:
        self.runtime.services.provide("todo", self.todo)
        self.runtime.services.provide("memory", self.memory)
        self.runtime.services.provide("session_search", SessionSearchService(self.store))
        self.runtime.services.provide("conversation", _Conversations(self.running))
        self.runtime.services.provide("llm", PluginModel(self))
        if asker is not None:
            self.runtime.services.provide("asker", asker)

    def _asked(self, approver: Approver | None) -> Approver | None:
        """The approver: the user, in smart mode after a model; subagents that the config trusts need no approval."""
        approvals = self.settings.approvals
        if approvals.mode == "smart" and approver is not None:
            # Without a user to fall back on, a model's answer alone must not mean yes.
            approver = SmartApprover(LazyAuxiliary(self), approver, classes=approvals.smart_classes)
        if self.settings.delegation.subagent_auto_approve:
            return TrustedSubagents(self.subagent_sessions, approver or NoApprover())
        return approver

    def start_subagents_with(self, start: Callable[[DelegatedTask], SubagentRunner]) -> None:
        """Use this to create subagents. Only an agent knows how; the first agent decides for all."""
        if self.delegation is None:
            self.delegation = Delegation(self.settings.delegation, self.runtime.hooks, start, self._tell_watcher)
            self.runtime.services.provide("delegation", self.delegation)

    def _tell_watcher(self, session_id: str, event: SubagentProgressed) -> None:
        worker = self.running.get(session_id)
        if worker is not None:
            worker.notify_watcher(event)

    def idle_session(self, session_id: str) -> Session:
        """The session with this id; raises SessionError while one of our own agents works on it."""
        session = self.store.get(session_id)
        if session.id in self.running:
            raise SessionError(
                f"another agent is working on session {session.id!r}; wait until it is done, or branch it"
            )
        return session

    def provider_for(
        self, model: str = "", provider: str = "", *, base_url: str = "", api_key: str = ""
    ) -> tuple[Provider, str]:
        """The provider and the model with these names; without names, the configured ones."""
        if not (model or provider or base_url or api_key):
            return self._main
        return self._keep(
            create_provider(
                self.settings, model=model, provider=provider, base_url=base_url, api_key=api_key, render=rendered
            )
        )

    @lazy
    def _main(self) -> tuple[Provider, str]:
        if self._model is not None and not isinstance(self._model, str):
            return self._model, ""
        made = create_provider(self.settings, model=self._model or "", provider=self._provider, render=rendered)
        return self._keep(made)

    def auxiliary(
        self, main: tuple[Provider, str] | None = None, spent: Callable[[Usage, str], None] | None = None
    ) -> AuxiliaryModel:
        """The model for small jobs: the main one, unless the config names another."""
        main = main or self.provider_for()
        provider, model = create_auxiliary(self.settings, main)
        if provider is not main[0]:
            self._keep((provider, model))
        return AuxiliaryModel(provider, model, spent)

    def _keep(self, made: tuple[Provider, str]) -> tuple[Provider, str]:
        if all(made[0] is not opened for opened in self._opened):
            self._opened.append(made[0])
        return made

    async def close(self) -> None:
        """Stop agents and subagents; close connections to models, the runtime and the session store."""
        for worker in list(self.running.values()):
            await worker.stop()
        if self.delegation is not None:
            await self.delegation.close()
        await self.external_memory.close()
        for provider in self._opened:
            await provider.close()
        if self._owns_runtime:
            self.runtime.close()
        self.store.close()
        if not self.loop.is_current:
            # A loop cannot wait for its own end; the code that runs this on it closes it afterwards.
            self.loop.close()

    async def __aenter__(self) -> AgentHost:
        self.runtime.load()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def rendered(definitions: Sequence[JsonObject], dialect: Any) -> list[JsonObject]:
    """The definitions in a dialect, for a fallback provider with another dialect than the first one."""
    return render(definitions, dialect).tools


class LazyAuxiliary:
    """The auxiliary model, created on first use."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    async def complete(self, prompt: str, *, timeout_seconds: float) -> str:
        return await self._host.auxiliary().complete(prompt, timeout_seconds=timeout_seconds)


class _Conversations:
    """Adds plugins' messages to the session of the current call, or to the one that started working last."""

    def __init__(self, running: dict[str, HostedAgent]) -> None:
        self._running = running

    def inject(self, content: str) -> bool:
        ctx = current_context.get()
        worker = self._running.get(ctx.session_id) if ctx is not None else None
        worker = worker or next(reversed(self._running.values()), None)
        if worker is not None:
            worker.steer(content, by_person=False)
        return worker is not None


class PluginModel(LazyAuxiliary):
    """The auxiliary model as plugins see it."""

    def model_of(self, session_id: str) -> tuple[Provider, str]:
        """The provider and the model of a session; the configured ones for a session that is not working."""
        worker = self._host.running.get(session_id)
        return self._host.provider_for() if worker is None else (worker.provider, worker.model)

    async def complete(self, prompt: str, *, timeout_seconds: float = 120.0) -> str:
        return await self._host.auxiliary().complete(prompt, timeout_seconds=timeout_seconds, purpose="plugin")

    def complete_sync(self, prompt: str, *, timeout_seconds: float = 120.0) -> str:
        return self._host.loop.run_sync(self.complete(prompt, timeout_seconds=timeout_seconds))


class TrustedSubagents:
    """Approves calls of subagents; calls that are always denied never get here."""

    def __init__(self, sessions: set[str], fallback: Approver) -> None:
        self._sessions = sessions
        self._fallback = fallback

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        if request.session_key in self._sessions:
            return ApprovalAnswer(choice="once", decided_by="policy")
        return await self._fallback.ask(request)

    async def ask_secret(self, prompt: str, timeout_seconds: float) -> str | None:
        if not isinstance(self._fallback, SecretAsker):
            return None
        return await self._fallback.ask_secret(prompt, timeout_seconds)


logger = logging.getLogger(__name__)

Signature = tuple[int, int, int] | None


class McpServerWatcher:
    """Keeps MCP servers in sync with the config file, for all agents of a host. Costs a `stat` before a request."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._file = runtime.settings.home.config_file
        self._settings = runtime.settings
        self._seen = self._signature()
        self._are_awaited = bool(runtime.settings.mcp_servers)
        self._warned = ""
        self._is_watching = not runtime.settings.safe_mode and self._came_from_the_file()

    @property
    def are_configured(self) -> bool:
        """Whether any servers are in use."""
        return bool(self._settings.mcp_servers) and not self._settings.safe_mode

    async def before_request(self) -> str:
        """Bring the servers in sync with the config file, and wait once, with a limit, for those that are starting.

        Reports each problem with the file once, as a sentence.
        """
        warning = ""
        if self._is_watching and self._settings.mcp.auto_reload_on_config_change:
            seen = self._signature()
            if seen != self._seen:
                # Set this first, so that another agent that gets here meanwhile has nothing to do.
                self._seen = seen
                warning = await self._follow_file()
        if self._are_awaited:
            self._are_awaited = False
            await self.wait()
        return warning

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until every server has been tried once; by default for as long as the config says."""
        if self.are_configured:
            hub = self._runtime.mcp
            await hub.wait_ready(hub.discovery_seconds if seconds is None else seconds)

    async def reload(self) -> None:
        """Read the config file now, and start, restart and stop servers accordingly; raises if the file is broken."""
        if self._settings.safe_mode:
            raise UsageError("safe mode is on, so toolcrib uses no MCP servers; unset TOOLCRIB_SAFE_MODE to end it")
        self._seen = self._signature()
        await self._use(await asyncio.to_thread(load_settings, self._runtime.settings.home))

    async def _follow_file(self) -> str:
        try:
            settings = await asyncio.to_thread(load_settings, self._runtime.settings.home)
            if settings.mcp_servers != self._settings.mcp_servers:
                await self._use(settings)
            self._settings = replace(self._settings, mcp=settings.mcp)
        except (ToolcribError, TimeoutError) as error:
            problem = f"the MCP servers were not updated, because the config file is broken: {_first_line(error)}"
            is_new, self._warned = problem != self._warned, problem
            if is_new:
                logger.warning("%s", problem)
            return problem if is_new else ""
        self._warned = ""
        return ""

    async def _use(self, settings: Settings) -> None:
        self._settings = replace(self._settings, mcp_servers=settings.mcp_servers)
        self._runtime.toolsets.expected = frozenset(toolsets_of_servers(self._settings))
        # It waits for servers to end, and this loop has other work to do.
        await asyncio.to_thread(self._runtime.mcp.reload, settings.mcp_servers)
        self._are_awaited = True

    def _signature(self) -> Signature:
        try:
            found = os.stat(self._file)  # noqa: PTH116 - before each request
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _came_from_the_file(self) -> bool:
        """Whether the servers come from the config file; those that a program names in code never change."""
        if not self._settings.mcp_servers:
            return True
        try:
            return b"mcp_servers" in self._file.read_bytes()
        except OSError:
            return False


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]
