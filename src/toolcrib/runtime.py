"""The runtime: offers tools to a model and calls them. All live state belongs to a runtime."""

from __future__ import annotations

import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from toolcrib.approval.deferred_gate import DeferredGate
from toolcrib.approval.options import GateOptions
from toolcrib.approval.provenance import Provenance, ProvenanceStore
from toolcrib.bridge import Bridge
from toolcrib.config.approval_entries import restricted_tools
from toolcrib.config.env_file import fill_environment
from toolcrib.config.load import load_settings
from toolcrib.config.logs import configure_logging, is_logging
from toolcrib.config.paths import Home
from toolcrib.config.redact import known_secrets
from toolcrib.config.settings import Settings
from toolcrib.core.cancel import CancelToken
from toolcrib.core.context import ToolContext
from toolcrib.core.lazy import lazy, lazy_module
from toolcrib.core.ports import Approver, Gate, Recorder, ResultStore
from toolcrib.core.types import AGENT_LOOP_TOOLS, TOOL_CALL, JsonObject, ToolCall, ToolResult
from toolcrib.definitions.build import DeferPolicy, DefinitionBuilder, ToolDefinitions
from toolcrib.dispatch.executors import AsyncExecutor, DaemonPool, SyncExecutor
from toolcrib.dispatch.truncation import FileResultStore, within_turn_budget
from toolcrib.hooks.manager import HookManager
from toolcrib.plugins.load import LoadedPlugin, load_plugins
from toolcrib.registry import discovery
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.discovery import LoadedFile, ScanCache
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import agent_loop_error
from toolcrib.runtime_services import RuntimeServices
from toolcrib.toolsets.resolve import ToolsetResolver

if TYPE_CHECKING:
    from toolcrib.config import tool_call_mark
    from toolcrib.core.approvals import EntryPoint
    from toolcrib.dispatch import parallel, pipeline
    from toolcrib.hooks import shell
    from toolcrib.mcp.client.manager import McpClientManager
    from toolcrib.terminal.service import TerminalService
else:
    # Definitions need neither calls nor shell hooks, and these would be a tenth of the way to them.
    tool_call_mark = lazy_module("toolcrib.config.tool_call_mark")
    parallel = lazy_module("toolcrib.dispatch.parallel")
    pipeline = lazy_module("toolcrib.dispatch.pipeline")
    shell = lazy_module("toolcrib.hooks.shell")

BLOCKING_HANDLERS_AT_ONCE = 64
MCP_TOOL = "mcp__"
MEDIA_PROVIDERS = ("image_gen_provider", "video_gen_provider")
SERVERS_SECONDS = 15.0
"""How long a call waits for a tool of an MCP server that is still starting."""


class Runtime:
    """Offers tools to a model and calls them.

    async with Runtime() as runtime:
        result = await runtime.call("weather", {"location": "London"})

    Two runtimes in one process share declarations (the default registry) and nothing else.
    """

    def __init__(
        self,
        *,
        home: Path | str | None = None,
        settings: Settings | None = None,
        registry: ToolRegistry | None = None,
        entry_point: EntryPoint = "library",
        approver: Approver | None = None,
        yolo: bool | None = None,
        workspace: Path | str | None = None,
        gate: Gate | None = None,
        recorder: Recorder | None = None,
        results: ResultStore | None = None,
        services: Mapping[str, Any] | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings or load_settings(Home(Path(home)) if home is not None else None)
        self.registry = registry if registry is not None else ToolRegistry(parent=default_registry)
        self.registry.availability.timeout_seconds = self.settings.tools.check_timeout_seconds
        self.hooks = HookManager()
        self.toolsets = ToolsetResolver(
            self.registry, self.settings.custom_toolsets, expected=toolsets_of_servers(self.settings)
        )
        self.bridge = Bridge(self.settings.tools.nested_call_timeout_seconds)
        self.results = results or FileResultStore(self.settings.home.results_dir)
        self.loaded_files: list[LoadedFile] = []
        self.loaded_plugins: list[LoadedPlugin] = []
        self.problems: list[str] = []
        """Problems in the `.env` file, as sentences."""
        self.definition_builder = DefinitionBuilder(self.registry, self.toolsets, _defer_policy(self.settings))
        self.workspace = _absolute(workspace)
        """The folder that calls work in; empty if it was deleted."""
        self.provenances = ProvenanceStore(self.workspace)
        self.gate: Gate = gate or DeferredGate(
            GateOptions(
                provenance=self.provenances,
                settings=self.settings,
                workspace=self.workspace,
                workspace_follows_cwd=workspace is None,
                entry_point=entry_point,
                approver=approver,
                yolo=_said_yolo(self.settings.yolo if yolo is None else yolo),
                fire=self.hooks.invoke,
            )
        )
        self._closing = ExitStack()
        self.services = RuntimeServices(self, services or {}, self._closing)
        # Every call asks whether there are MCP servers, so not through a property.
        self._built_services = vars(self.services)
        self._recorder = recorder
        pool = DaemonPool(BLOCKING_HANDLERS_AT_ONCE)
        self._closing.callback(pool.close)
        self._async_executor, self._sync_executor = AsyncExecutor(pool), SyncExecutor(self.bridge)
        self.on_progress = on_progress
        self._stop_logging: Callable[[], None] = lambda: None
        self._loaded = self._is_loading = False
        self._loading = threading.RLock()
        self.registry.bind(self._invoke)
        # Otherwise the commands, threads and loops of a runtime that is dropped without `close` would leak.
        weakref.finalize(self, _release, self._closing, self.bridge)

    @lazy
    def _pipeline(self) -> pipeline.Pipeline:
        return pipeline.Pipeline(
            registry=self.registry,
            hooks=self.hooks,
            gate=self.gate,
            recorder=self._recorder or pipeline.NullRecorder(),
            store=self.results,
            limits=pipeline.PipelineLimits(self.settings.tool_output.max_result_chars, self.settings.tools.timeouts),
            snapshots=lambda: self.services.snapshots,
            restricted=restricted_tools(self.settings.approvals.rules),
            provenance=None if self.settings.approvals.provenance == "off" else self.provenances,
        )

    def prepare_calls(self) -> None:
        """Import and build what the first call needs: the gate and undo. Takes a while, so call it in a thread."""
        if isinstance(self.gate, DeferredGate):
            _ = self.gate.made
        _ = self.services.snapshots

    async def __aenter__(self) -> Self:
        self.load()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def load(self, *, servers: bool = True) -> Self:
        """Load the built-in tools, the user's tools, MCP servers and plugins, in this order, once.

        Servers connect in the background; `mcp.wait_ready` waits for them. `servers=False` does not start them.
        """
        if self._loaded:
            return self
        with self._loading:
            # A tool file may list tools while it is imported; it sees those loaded so far.
            if not self._loaded and not self._is_loading:
                self._is_loading = True
                try:
                    self._load(servers)
                    self._loaded = True
                finally:
                    self._is_loading = False
        return self

    def _load(self, servers: bool) -> None:
        home = self.settings.home
        if not is_logging():
            self._stop_logging = configure_logging(home, self.settings.logging.level, known_secrets)
        self.problems += fill_environment(home)
        cache = ScanCache(home.scan_cache_file)
        self.loaded_files += discovery.load_builtin_tools(cache)
        self.loaded_files += discovery.load_tool_folder(home.tools_dir, self.registry, cache)
        if servers and self.settings.mcp_servers and not self.settings.safe_mode:
            self.mcp.start()
        self.loaded_plugins += load_plugins(
            self.settings, self.registry, self.hooks, cache=cache, services=self.services.get
        )
        if any(one.kind in MEDIA_PROVIDERS for plugin in self.loaded_plugins for one in plugin.declarations):
            self.services.generation.follow_plugins(self.registry)
        if self.settings.shell_hooks and not self.settings.safe_mode:
            shell.register_shell_hooks(self.hooks, self.settings.shell_hooks)
        cache.save()

    def close(self) -> None:
        """Stop running calls; release environments, loops and threads. The runtime cannot be used afterwards."""
        self.registry.bind(None)
        self._closing.close()
        self.bridge.close()
        self._stop_logging()

    # Offering

    def definitions(
        self,
        enabled_toolsets: Sequence[str] | None = None,
        disabled_toolsets: Sequence[str] | None = None,
        *,
        defer: bool = True,
        context_window_tokens: int | None = None,
    ) -> ToolDefinitions:
        """The definitions that a session with these toolsets sends to its model."""
        self.load()
        return self.definition_builder.build(
            enabled_toolsets, disabled_toolsets, defer=defer, context_window_tokens=context_window_tokens
        )

    # Calling

    def context(self, **fields: Any) -> ToolContext:
        """A context for calls of this runtime; accepts the fields of ToolContext."""
        return ToolContext(services=self.services, on_progress=self.on_progress, **fields)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        ctx: ToolContext | None = None,
        timeout_seconds: float | None = None,
        cancel: CancelToken | None = None,
    ) -> ToolResult:
        """Call a tool through the whole pipeline. Never raises for what the tool does; look at `result.is_error`."""
        if not self._loaded:
            self.load()
        if "mcp" in self._built_services and self._may_come(name):
            await self.mcp.wait_ready(SERVERS_SECONDS)
        ctx = self._context_of(name, ctx)
        if timeout_seconds is not None or cancel is not None:
            ctx = _bounded(ctx, timeout_seconds, cancel)
        return await self._pipeline.run(name, {} if arguments is None else arguments, ctx, self._async_executor)

    async def call_many(
        self,
        calls: Sequence[ToolCall],
        *,
        ctx: ToolContext | None = None,
        limit: int | None = None,
        on_start: parallel.OnStart | None = None,
        on_result: parallel.OnResult | None = None,
    ) -> list[ToolResult]:
        """Call the tools of one turn, in parallel if their effects allow it; results are in call order."""
        self.load()
        ctx = ctx or self.context()
        results = await parallel.run_batch(
            self._pipeline,
            calls,
            ctx,
            self._async_executor,
            limit=limit or self.settings.tools.max_parallel,
            on_start=on_start,
            on_result=on_result,
        )
        never_cut = {result.name for result in results if self.registry.get_max_result_size(result.name, 0) == math.inf}
        return within_turn_budget(
            results, self.settings.tool_output.max_turn_chars, self.results, ctx.session_id, never_cut
        )

    def call_sync(self, name: str, arguments: Mapping[str, Any] | str, ctx: ToolContext | None = None) -> ToolResult:
        """Call a tool from synchronous code, from any thread, inside or outside a running loop."""
        if not self._loaded:
            self.load()
        if "mcp" in self._built_services and self._may_come(name):
            self.mcp.wait_ready_sync(SERVERS_SECONDS)
        ctx = self._context_of(name, ctx)
        return self._pipeline.run_sync(name, arguments, ctx, self._sync_executor)

    def _context_of(self, name: str, ctx: ToolContext | None) -> ToolContext:
        """The context of one call: handlers of several tools tell by it which one was called."""
        if ctx is None:
            return ToolContext(services=self.services, tool_name=name, on_progress=self.on_progress)
        return ctx if ctx.tool_name == name else msgspec.structs.replace(ctx, tool_name=name)

    def _may_come(self, name: str) -> bool:
        """Whether an unknown tool may belong to an MCP server that is still starting."""
        return name.startswith(MCP_TOOL) and self.registry.get_entry(name) is None

    def provenance(self, session_id: str = "") -> Provenance:
        """What a session has heard from the person and read from tools; add the person's words to it."""
        return self.provenances.of(session_id)

    @property
    def terminal(self) -> TerminalService:
        """The environments and background processes of this runtime."""
        return self.services.terminal

    @property
    def has_terminal(self) -> bool:
        """Whether anything has used `terminal` yet."""
        return RuntimeServices.terminal.is_built(self.services)

    @property
    def mcp(self) -> McpClientManager:
        """The MCP servers of this runtime."""
        return self.services.mcp

    async def end_session(self, session_id: str) -> None:
        """End the processes of a client that disconnected, close its environments and browser, drop its grants."""
        if self.has_terminal:
            terminal = self.terminal
            await terminal.loop.run(terminal.processes.registry.kill_all(session_id, source="client_gone"))
            await terminal.loop.run(terminal.environments.close_session(session_id))
        await self.services.end_session(session_id)
        gate = getattr(self.gate, "made", None)
        if gate is not None:
            gate.grants.clear_session(session_id)

    def set_recorder(self, recorder: Recorder) -> None:
        """Record the calls of this runtime from now on, unless something records them already."""
        if isinstance(self._pipeline.recorder, pipeline.NullRecorder):
            self._pipeline.recorder = recorder

    def provide_service(self, name: str, service: Any) -> None:
        """Provide a service (`todo`, `memory`, `asker` …) to the tools of this runtime."""
        self.services.provide(name, service)

    def may_have_side_effects(self, result: ToolResult) -> bool:
        """Whether the call behind a result could have an effect: one was approved, or its effects are undeclared."""
        effects = result.effects
        if effects is None:
            entry = self.registry.get_entry(result.name)
            declared = entry.effects if entry is not None else None
            effects = None if callable(declared) else declared
        return effects is None or any(effect.kind not in ("read", "interactive") for effect in effects)

    def call_queue(self) -> parallel.CallQueue:
        """A queue for calls that arrive one by one, with the same rule as `call_many`."""
        calls = self._pipeline
        return parallel.CallQueue(
            lambda name, arguments, ctx: calls.planned_effects(calls.prepare(name, arguments), ctx),
            self.settings.tools.max_parallel,
        )

    def has_agent_loop_stub(self, name: str) -> bool:
        """True for the agent-loop tools, unless a user's tool replaces one."""
        if name not in AGENT_LOOP_TOOLS:
            return False
        entry = self.registry.get_entry(name)
        return entry is None or entry.is_ours

    def stub_for(self, name: str, arguments: Mapping[str, Any] | str) -> str | None:
        """What synchronous callers get for an agent-loop tool, even behind `tool_call`; None for all other tools."""
        if name == TOOL_CALL:
            name, _ = pipeline.unwrap_tool_call(arguments)
        # Asked for every call, and a call of a method costs as much as the answer.
        if name not in AGENT_LOOP_TOOLS or not self.has_agent_loop_stub(name):
            return None
        return agent_loop_error(name)

    def _invoke(self, name: str, arguments: JsonObject, keywords: Mapping[str, Any]) -> str | JsonObject:
        """What `registry.dispatch` does while this runtime is bound to the registry."""
        stub = self.stub_for(name, arguments)
        if stub is not None:
            return stub
        ctx = ToolContext(
            services=self.services,
            tool_name=name,
            task_id=keywords.get("task_id") or "",
            session_id=keywords.get("session_id") or "",
            user_task=keywords.get("user_task") or "",
            handler_kwargs=dict(keywords),
            on_progress=self.on_progress,
        )
        return self.call_sync(name, arguments, ctx).content


def toolsets_of_servers(settings: Settings) -> list[str]:
    """The toolsets that the configured MCP servers will provide, each under both of its names."""
    return [name for server in settings.mcp_servers for name in (server, f"mcp-{server}") if not settings.safe_mode]


def _defer_policy(settings: Settings) -> DeferPolicy:
    search = settings.tools.tool_search
    return DeferPolicy(search.enabled, search.threshold_pct)


def _absolute(workspace: Path | str | None) -> str:
    """The workspace, or the current folder of the process; empty if it was deleted."""
    try:
        return str(Path.cwd() if workspace is None else Path(workspace).expanduser().absolute())
    except FileNotFoundError:
        return ""


def _said_yolo(yolo: bool) -> bool:
    if yolo:
        tool_call_mark.refuse_in_tool_call("run dangerous calls without approval")
        sys.stderr.write(
            "toolcrib: dangerous calls run without approval (--yolo); "
            "catastrophic commands and deny rules still apply\n"
        )
    return yolo


def _release(closing: ExitStack, bridge: Bridge) -> None:
    closing.close()
    bridge.let_go()


def _bounded(ctx: ToolContext, timeout_seconds: float | None, cancel: CancelToken | None) -> ToolContext:
    """The context with an earlier deadline and one more cancel token."""
    deadline = ctx.deadline
    if timeout_seconds is not None:
        ends = time.monotonic() + timeout_seconds
        deadline = ends if deadline is None else min(deadline, ends)
    if cancel is not None and ctx.cancel is not None and cancel is not ctx.cancel:
        cancel = CancelToken(ctx.cancel, cancel)
    return msgspec.structs.replace(ctx, deadline=deadline, cancel=cancel or ctx.cancel)
