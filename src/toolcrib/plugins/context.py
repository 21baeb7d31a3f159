"""The context that a plugin's `register(ctx)` receives, for adding tools, hooks and everything else.

Tools go to the registry at once, so the plugin sees a rejection. Hooks and declarations take effect after
`register(ctx)` returns: a plugin that fails leaves nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from toolcrib.config.paths import Home
from toolcrib.core.errors import PluginError, UsageError
from toolcrib.core.types import CheckFn, EffectsDeclaration, Handler, JsonObject, SchemaOverrides, Source
from toolcrib.hooks.manager import Callback, HookManager
from toolcrib.plugins.manifest import PluginManifest
from toolcrib.registry.registration import LoadScope, loading_scope
from toolcrib.registry.registry import ToolRegistry

logger = logging.getLogger(__name__)

DEFAULT_PROFILE = "default"
SHOWN_CHARS = 60


class Declaration(msgspec.Struct, frozen=True):
    """One thing that a plugin offers to a part of the runtime: a command, a platform, a provider …"""

    kind: str
    name: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    source: Source


class _PendingHook(msgspec.Struct, frozen=True):
    """A hook or middleware that takes effect once the plugin is loaded."""

    table: Literal["hook", "middleware"]
    name: str
    callback: Callback
    observer: bool = False


def _declaring(kind: str) -> Callable[..., None]:
    """A method that stores its arguments as a declaration of this kind."""

    def declare(self: PluginContext, *arguments: Any, **options: Any) -> None:
        self.declare(kind, *arguments, **options)

    declare.__name__ = f"register_{kind}"
    declare.__doc__ = f"Offer a {kind.replace('_', ' ')} to the part of the runtime that uses them."
    return declare


FindService = Callable[[str], Any]
"""Returns a named service of the runtime; raises UsageError if it is missing."""


class PluginContext:
    """The runtime as one plugin sees it."""

    def __init__(
        self,
        manifest: PluginManifest,
        loading: LoadScope,
        registry: ToolRegistry,
        hooks: HookManager,
        home: Home,
        services: FindService | None = None,
    ) -> None:
        self.manifest = manifest
        self._loading = loading
        self._registry = registry
        self._manager = hooks
        self._home = home
        self._services = services
        self._state: Literal["registering", "loaded", "failed"] = "registering"
        self._hooked: list[_PendingHook] = []
        self._declarations: list[Declaration] = []

    # Adding

    def register_tool(
        self,
        name: str,
        toolset: str,
        schema: JsonObject,
        handler: Handler,
        check_fn: CheckFn | None = None,
        requires_env: list[str] | None = None,
        is_async: bool = False,
        description: str = "",
        emoji: str = "",
        override: bool = False,
        *,
        max_result_size_chars: int | float | None = None,
        dynamic_schema_overrides: SchemaOverrides | None = None,
        effects: EffectsDeclaration | None = None,
    ) -> None:
        """Declare a tool, as `registry.register` does. Replacing another source's tool needs the operator's consent."""
        self._require_usable()
        with loading_scope(self._loading):
            self._registry.register(
                name=name,
                toolset=toolset,
                schema=schema,
                handler=handler,
                check_fn=check_fn,
                requires_env=requires_env,
                is_async=is_async,
                description=description,
                emoji=emoji,
                max_result_size_chars=max_result_size_chars,
                dynamic_schema_overrides=dynamic_schema_overrides,
                override=override,
                effects=effects,
            )

    def register_hook(self, hook_name: str, callback: Callback, observer: bool = False) -> None:
        """Register `callback` for a hook; an observer of `pre_tool_call` cannot stop a call by raising."""
        self._add(_PendingHook("hook", hook_name, callback, observer))

    def register_middleware(self, kind: str, callback: Callback) -> None:
        """Wrap `callback` around requests or executions of tools or models."""
        self._add(_PendingHook("middleware", kind, callback))

    def register_command(
        self, name: str, handler: Callable[..., Any], description: str = "", *arguments: Any, **options: Any
    ) -> None:
        """Add the slash command `/name` to chats."""
        self._require_callable(f"command {name!r}", handler)
        self.declare("command", name.lstrip("/"), handler, description, *arguments, **options)

    def declare(self, kind: str, *arguments: Any, **options: Any) -> None:
        """Store a declaration for the part of the runtime that uses this kind."""
        self._require_usable()
        if self._state == "loaded":
            raise UsageError(f"plugin {self.manifest.name!r} registered a {kind} too late; do it inside register(ctx)")
        name = _name_in(arguments, options)
        logger.debug("plugin %r registered the %s %r, but nothing may use it yet", self.manifest.name, kind, name)
        self._declarations.append(Declaration(kind, name, arguments, options, self._loading.source))

    register_cli_command = _declaring("cli_command")
    register_skill = _declaring("skill")
    register_platform = _declaring("platform")
    register_context_engine = _declaring("context_engine")
    register_auxiliary_task = _declaring("auxiliary_task")
    register_image_gen_provider = _declaring("image_gen_provider")
    register_video_gen_provider = _declaring("video_gen_provider")
    register_web_search_provider = _declaring("web_search_provider")
    register_browser_provider = _declaring("browser_provider")
    register_tts_provider = _declaring("tts_provider")
    register_transcription_provider = _declaring("transcription_provider")
    register_dashboard_auth_provider = _declaring("dashboard_auth_provider")
    register_memory_provider = _declaring("memory_provider")
    register_secret_source = _declaring("secret_source")
    register_slack_action_handler = _declaring("slack_action_handler")

    # Using the runtime

    def dispatch_tool(self, tool_name: str, args: JsonObject, **keywords: Any) -> str | JsonObject:
        """Call a tool of this runtime, with all its hooks and checks, and return its result."""
        return self._registry.dispatch(tool_name, args, **keywords)

    def inject_message(self, content: str, role: str = "user") -> None:
        """Add a message to the running conversation; the model sees it with its next request."""
        conversation = self._service("conversation")
        if conversation is None or not conversation.inject(content):
            message = f"{content[:SHOWN_CHARS]}…" if len(content) > SHOWN_CHARS else content
            needs = _needs_agent("a running conversation")
            raise UsageError(f"the {role} message {message!r} cannot be delivered: {needs}")

    @property
    def llm(self) -> Any:
        """The model for small jobs: `await ctx.llm.complete(text)`, or `ctx.llm.complete_sync(text)`."""
        model = self._service("llm")
        if model is None:
            raise UsageError(f"ctx.llm cannot be used: {_needs_agent('a model')}")
        return model

    def _service(self, name: str) -> Any:
        """A service of the running agent; None without an agent."""
        if self._services is None:
            return None
        try:
            return self._services(name)
        except UsageError:
            return None

    @property
    def profile_name(self) -> str:
        """The name of the profile that this home belongs to."""
        root = self._home.root
        return root.name if root.parent.name == "profiles" else DEFAULT_PROFILE

    # For the loader

    def finish(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Declaration, ...]]:
        """Activate the hooks and middleware; returns their names and the declarations."""
        self._state = "loaded"
        for hooked in self._hooked:
            self._apply(hooked)
        hooks = tuple(hooked.name for hooked in self._hooked if hooked.table == "hook")
        middleware = tuple(hooked.name for hooked in self._hooked if hooked.table == "middleware")
        return hooks, middleware, tuple(self._declarations)

    def abandon(self) -> None:
        """Remove the tools, and reject everything the plugin still tries through this context."""
        self._state = "failed"
        self._registry.take_back(self._loading)

    def _add(self, hooked: _PendingHook) -> None:
        self._require_usable()
        self._require_callable(f"{hooked.table} {hooked.name!r}", hooked.callback)
        if self._state == "registering":
            self._hooked.append(hooked)
        else:
            self._apply(hooked)

    def _apply(self, hooked: _PendingHook) -> None:
        source = self._loading.source
        if hooked.table == "hook":
            self._manager.register(hooked.name, hooked.callback, source=source, observer=hooked.observer)
        else:
            self._manager.register_middleware(hooked.name, hooked.callback, source=source)

    def _require_usable(self) -> None:
        if self._state == "failed":
            raise PluginError(f"plugin {self.manifest.name!r} failed to load and can no longer add anything")

    def _require_callable(self, what: str, callback: object) -> None:
        if not callable(callback):
            raise PluginError(f"{what} of plugin {self.manifest.name!r} is not callable: {callback!r}; pass a function")


def _needs_agent(service: str) -> str:
    return f"this runtime has no agent with {service}; use it from a hook or tool while `toolcrib chat` runs"


def _name_in(arguments: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """The name of a declaration: its `name`, its first argument, or the `name` of the declared object."""
    candidates = (options.get("name"), options.get("key"), *arguments[:1], *options.values())
    for candidate in candidates:
        name = candidate if isinstance(candidate, str) else getattr(candidate, "name", None)
        if isinstance(name, str) and name:
            return name
    return ""
