"""The services of a runtime: the only place that builds them, each on first use.

Most processes need few of them, and importing one costs more than starting without it, so each module is imported
where its service is built.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toolcrib.approval.deferred_gate import DeferredGate
from toolcrib.config.browser_settings import has_playwright
from toolcrib.config.environment import environment
from toolcrib.config.redact import redact
from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import MissingService, UsageError
from toolcrib.core.lazy import lazy
from toolcrib.core.ports import Gate, ResultStore, SecretAsker
from toolcrib.core.types import Effect, JsonObject, ToolResult
from toolcrib.definitions.build import DefinitionBuilder
from toolcrib.definitions.search import ToolIndex
from toolcrib.hooks.manager import HookManager
from toolcrib.registry.registry import ToolRegistry

if TYPE_CHECKING:
    from toolcrib.board.service import BoardService
    from toolcrib.browser.service import BrowserService
    from toolcrib.code_execution.service import CodeExecutionService
    from toolcrib.core.context import Asker, ConversationPort, FrontEndTerminals, ModelPort, ProcessesPort, ToolService
    from toolcrib.core.ports import FileSnapshots
    from toolcrib.cron.service import CronService
    from toolcrib.dispatch.parallel import CallQueue
    from toolcrib.files.projects import ProjectService
    from toolcrib.files.service import FileService
    from toolcrib.integrations.desktop import DesktopService
    from toolcrib.integrations.discord import DiscordService
    from toolcrib.integrations.feishu import FeishuService
    from toolcrib.integrations.home_assistant import HomeAssistantService
    from toolcrib.integrations.spotify import SpotifyService
    from toolcrib.integrations.x_search import PostSearchService
    from toolcrib.mcp.client.manager import McpClientManager
    from toolcrib.media.generation.service import GenerationService
    from toolcrib.media.service import VisionService
    from toolcrib.media.speech.service import SpeechService
    from toolcrib.plugins.load import LoadedPlugin
    from toolcrib.providers.mixture import MixtureService
    from toolcrib.skills.service import SkillService
    from toolcrib.terminal.call import TerminalCall
    from toolcrib.terminal.service import TerminalService
    from toolcrib.web.service import WebService

RENAMED = {"code": "code_execution", "delegate_task": "delegation", "call_turns": "call_queue"}
"""Names that plugins and programs may still use."""


class RuntimePort(Protocol):
    """The part of a Runtime that its services need."""

    settings: Settings
    registry: ToolRegistry
    hooks: HookManager
    gate: Gate
    workspace: str
    definition_builder: DefinitionBuilder
    results: ResultStore
    loaded_plugins: list[LoadedPlugin]

    def call_queue(self) -> CallQueue: ...

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str | None = None, *, ctx: ToolContext | None = None
    ) -> ToolResult: ...


class ToolCatalog(msgspec.Struct, frozen=True):
    """The tools that `tool_search` searches: those that the call's session may use."""

    builder: DefinitionBuilder
    default_limit: int
    max_limit: int

    def definitions(self, ctx: ToolContext) -> list[JsonObject]:
        return self.builder.available(ctx.allowed_tools)

    def definition(self, ctx: ToolContext, name: str) -> JsonObject | None:
        return self.builder.find(ctx.allowed_tools, name)

    def index(self, ctx: ToolContext) -> ToolIndex:
        return self.builder.index(ctx.allowed_tools)


class RuntimeServices:
    """The runtime as handlers see it (`ctx.services`); see `core/context.py`.

    Services that only an agent has are missing until `provide` adds them.
    """

    def __init__(self, runtime: RuntimePort, provided: Mapping[str, Any], closing: ExitStack) -> None:
        """Services that need closing are pushed on `closing`, so they close in reverse order."""
        self._runtime = runtime
        self._closing = closing
        self._extra: dict[str, Any] = {}
        for name, service in provided.items():
            self.provide(name, service)

    def provide(self, name: str, service: Any) -> None:
        """Use this service under this name instead of building one."""
        name = RENAMED.get(name, name)
        if name in SERVICE_NAMES:
            setattr(self, name, service)
            self._runtime.registry.availability.services.add(name)
        else:
            self._extra[name] = service

    def get(self, name: str) -> Any:
        """A service by name; raises UsageError if this runtime lacks it."""
        name = RENAMED.get(name, name)
        if name in SERVICE_NAMES:
            return getattr(self, name)
        if name in self._extra:
            return self._extra[name]
        raise _missing(name)

    # What handlers do through `ctx`

    async def call(self, ctx: ToolContext, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._runtime.call(
            name,
            arguments,
            ctx=msgspec.structs.replace(ctx, tool_name=name, handler_kwargs=None, effects=None, memo=None),
        )

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        return await self.asker.ask(ctx, question, choices)

    def spill(self, ctx: ToolContext, text: str) -> str:
        return self._runtime.results.save(ctx.session_id, ctx.call_id or ctx.tool_name, text)

    def call_queue(self) -> CallQueue:
        return self._runtime.call_queue()

    # Built on first use

    @lazy
    def terminal(self) -> TerminalService:
        """Environments and background processes, with their own event loop."""
        from toolcrib.terminal.service import TerminalOptions, TerminalService  # noqa: PLC0415

        settings, gate, hooks = self._runtime.settings, self._runtime.gate, self._runtime.hooks
        options = TerminalOptions(
            settings=settings,
            workspace=Path(self._runtime.workspace or "/"),
            environ=environment,
            mask=redact if settings.security.redact_secrets else str,
            transform=lambda: _output_transform(hooks, settings.terminal.backend),
            secret_asker=lambda: _secret_asker(gate),
        )
        service = TerminalService(options)
        self._closing.callback(service.close)
        return service

    @lazy
    def processes(self) -> ProcessesPort:
        return self.terminal.processes

    @lazy
    def mcp(self) -> McpClientManager:
        """The MCP servers of this runtime."""
        from toolcrib.mcp.client.manager import McpClientManager  # noqa: PLC0415

        runtime = self._runtime
        manager = McpClientManager(
            runtime.settings,
            runtime.registry,
            workspace=runtime.workspace,
            forget_grants=runtime.gate.forget_tool if isinstance(runtime.gate, DeferredGate) else None,
            gate=runtime.gate,
            services=weakref.ref(self),
        )
        self._closing.callback(manager.close)
        return manager

    @lazy
    def files(self) -> FileService:
        from toolcrib.files.service import FileService  # noqa: PLC0415

        return FileService(self._runtime.settings, self)

    @lazy
    def projects(self) -> ProjectService:
        from toolcrib.files.projects import ProjectService  # noqa: PLC0415

        return ProjectService(self._runtime.settings.home, self)

    @lazy
    def code_execution(self) -> CodeExecutionService:
        from toolcrib.code_execution.service import CodeExecutionService  # noqa: PLC0415

        return CodeExecutionService(self._runtime.settings, self)

    @lazy
    def skills(self) -> SkillService:
        from toolcrib.skills.service import SkillService  # noqa: PLC0415

        return SkillService(self._runtime.settings, self)

    @lazy
    def cron(self) -> CronService:
        from toolcrib.cron.service import CronService  # noqa: PLC0415

        return CronService(self._runtime.settings, self)

    @lazy
    def board(self) -> BoardService:
        from toolcrib.board.service import BoardService  # noqa: PLC0415

        return BoardService(self._runtime.settings, self, self._runtime.hooks.invoke)

    @lazy
    def web(self) -> WebService:
        """Search and pages; it ends its worker processes when it is closed."""
        from toolcrib.web.service import WebService  # noqa: PLC0415

        service = WebService(self._runtime.settings, self, render=self._render_page)
        self._closing.callback(service.close)
        return service

    @lazy
    def browser(self) -> BrowserService:
        """Browsers of sessions, with their own event loop."""
        from toolcrib.browser.service import BrowserService  # noqa: PLC0415
        from toolcrib.web.guard import AddressGuard, AddressRules  # noqa: PLC0415

        settings = self._runtime.settings
        service = BrowserService(
            settings,
            self,
            guard=lambda: AddressGuard(AddressRules.from_settings(settings)),
            admit=self._admit,
        )
        self._closing.callback(service.close)
        return service

    async def _render_page(self, url: str, seconds: float) -> tuple[str, str] | None:
        """A page after its scripts ran; None if there is no browser."""
        if not has_playwright():
            return None
        return await self.browser.render(url, seconds)

    async def _admit(self, ctx: ToolContext, arguments: JsonObject, effects: tuple[Effect, ...]) -> str:
        """Ask the gate about effects that a running call turns out to have; returns why they are denied."""
        entry = self._runtime.registry.get_entry(ctx.tool_name)
        if entry is None:
            return "its tool is gone"
        verdict = self._runtime.gate.judge(entry, arguments, effects, ctx)
        if verdict.decision == "ask" or verdict.dangers:
            verdict = await self._runtime.gate.resolve(entry, arguments, verdict, ctx)
        return "" if verdict.decision == "allow" else "; ".join(verdict.reasons) or "it was denied"

    async def end_session(self, session_id: str) -> None:
        """Give back what only a session that ended needed."""
        if RuntimeServices.browser.is_built(self):
            await self.browser.end_session(session_id)

    @lazy
    def vision(self) -> VisionService:
        """Images and videos; it ends its worker processes when it is closed."""
        from toolcrib.media.service import VisionService  # noqa: PLC0415

        service = VisionService(self._runtime.settings, self)
        self._closing.callback(service.close)
        return service

    @lazy
    def generation(self) -> GenerationService:
        from toolcrib.media.generation.service import GenerationService  # noqa: PLC0415

        return GenerationService(self._runtime.settings, self, lambda: self.web.client)

    @lazy
    def speech(self) -> SpeechService:
        """Speech and its recognition; it ends its worker process when it is closed."""
        from toolcrib.media.speech.service import SpeechService  # noqa: PLC0415

        service = SpeechService(self._runtime.settings, self, lambda: self.web.client)
        self._closing.callback(service.close)
        return service

    @lazy
    def mixture(self) -> MixtureService:
        from toolcrib.providers.mixture import MixtureService  # noqa: PLC0415

        return MixtureService(self._runtime.settings)

    @lazy
    def home_assistant(self) -> HomeAssistantService:
        from toolcrib.integrations.home_assistant import HomeAssistantService  # noqa: PLC0415

        return HomeAssistantService(lambda: self.web.client)

    @lazy
    def post_search(self) -> PostSearchService:
        from toolcrib.integrations.x_search import PostSearchService  # noqa: PLC0415

        return PostSearchService(lambda: self.web.client)

    @lazy
    def discord(self) -> DiscordService:
        from toolcrib.integrations.discord import DiscordService  # noqa: PLC0415

        return DiscordService(lambda: self.web.client)

    @lazy
    def feishu(self) -> FeishuService:
        from toolcrib.integrations.feishu import FeishuService  # noqa: PLC0415

        return FeishuService(lambda: self.web.client)

    @lazy
    def spotify(self) -> SpotifyService:
        from toolcrib.integrations.spotify import SpotifyService  # noqa: PLC0415

        return SpotifyService(self._runtime.settings.home, lambda: self.web.client)

    @lazy
    def desktop(self) -> DesktopService:
        from toolcrib.integrations.desktop import DesktopService  # noqa: PLC0415

        return DesktopService()

    @lazy
    def snapshots(self) -> FileSnapshots | None:
        """Snapshots files before calls change them; None if the settings or the platform rule it out."""
        settings = self._runtime.settings
        if not settings.undo.enabled or sys.platform == "win32":
            return None
        from toolcrib.undo.snapshotter import Snapshotter  # noqa: PLC0415

        snapshotter = Snapshotter(settings, self, self._runtime.workspace)
        self._closing.callback(snapshotter.close)
        return snapshotter

    @lazy
    def tool_catalog(self) -> ToolCatalog:
        search = self._runtime.settings.tools.tool_search
        return ToolCatalog(self._runtime.definition_builder, search.search_default_limit, search.max_search_limit)

    @lazy
    def plugins(self) -> list[LoadedPlugin]:
        return self._runtime.loaded_plugins

    # Provided by an agent host or a front end

    @lazy
    def todo(self) -> ToolService:
        raise _missing("todo")

    @lazy
    def memory(self) -> ToolService:
        raise _missing("memory")

    @lazy
    def session_search(self) -> ToolService:
        raise _missing("session_search")

    @lazy
    def delegation(self) -> ToolService:
        raise _missing("delegate_task")

    @lazy
    def asker(self) -> Asker:
        raise _missing("asker")

    @lazy
    def front_end_terminals(self) -> FrontEndTerminals:
        raise UsageError("this front end has no terminal of its own")

    @lazy
    def llm(self) -> ModelPort:
        raise _missing("llm")

    @lazy
    def conversation(self) -> ConversationPort:
        raise _missing("conversation")


SERVICE_NAMES = {name for name, value in vars(RuntimeServices).items() if isinstance(value, lazy)} | {"call_queue"}


def _missing(name: str) -> MissingService:
    return MissingService(
        f"the service {name!r} is missing; pass services={{{name!r}: …}} to Runtime or run the tool in an Agent"
    )


def _secret_asker(gate: Gate) -> SecretAsker | None:
    """The gate's approver, if it can ask for a secret."""
    approver = gate.options.approver if isinstance(gate, DeferredGate) else None
    return approver if isinstance(approver, SecretAsker) else None


def _output_transform(hooks: HookManager, backend: str) -> Callable[[TerminalCall, JsonObject], str] | None:
    """A command's output as the hooks transform it; None if no hook wants to change it."""
    if not hooks.has("transform_terminal_output"):
        return None

    def transform(call: TerminalCall, answer: JsonObject) -> str:
        output: str = answer["output"]
        answers = hooks.invoke(
            "transform_terminal_output",
            command=call.command,
            output=output,
            returncode=answer["exit_code"],
            task_id=call.task_id,
            env_type=backend,
        )
        return next((text for text in answers if isinstance(text, str)), output)

    return transform
