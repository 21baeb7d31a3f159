"""Plugins and their hooks behind the reference system's `PluginManager`."""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from toolcrib.api import default_runtime
from toolcrib.config.load import load_settings
from toolcrib.config.paths import find_home
from toolcrib.config.redact import redact
from toolcrib.core.attempt import Attempt, attempt
from toolcrib.core.errors import PluginError
from toolcrib.core.types import JsonObject, Source, Verdict
from toolcrib.hooks.manager import Callback, HookManager, HookRegistration, accepted_names
from toolcrib.hooks.specs import HOOKS, MIDDLEWARE, MIDDLEWARE_SCHEMA_VERSION, TELEMETRY_SCHEMA_VERSION
from toolcrib.plugins import context, load
from toolcrib.plugins.load import LoadedPlugin, load_plugins, slug_of
from toolcrib.plugins.manifest import MANIFEST_NAMES, read_manifest
from toolcrib.plugins.manifest import PluginManifest as OurManifest
from toolcrib.registry.default import registry
from toolcrib.registry.registration import LoadScope
from toolcrib.registry.registry import ToolRegistry


@dataclass
class ManifestRecord:
    """A plugin's manifest, and where it was found."""

    name: str
    version: str = ""
    description: str = ""
    author: str = ""
    requires_env: list[Any] = field(default_factory=list)
    provides_tools: list[str] = field(default_factory=list)
    provides_hooks: list[str] = field(default_factory=list)
    source: str = ""
    path: str | None = None
    kind: str = "standalone"
    key: str = ""


@dataclass
class PluginRecord:
    """The outcome for one plugin: what it registered, or why it is missing."""

    manifest: ManifestRecord
    module: ModuleType | None = None
    tools_registered: list[str] = field(default_factory=list)
    hooks_registered: list[str] = field(default_factory=list)
    middleware_registered: list[str] = field(default_factory=list)
    commands_registered: list[str] = field(default_factory=list)
    enabled: bool = False
    error: str | None = None
    deferred: bool = False

    def as_dict(self) -> JsonObject:
        """The line of this plugin in `PluginManager.list_plugins()`."""
        return {
            "name": self.manifest.name,
            "key": self.manifest.key,
            "kind": self.manifest.kind,
            "version": self.manifest.version,
            "description": self.manifest.description,
            "source": self.manifest.source,
            "path": self.manifest.path,
            "enabled": self.enabled,
            "tools": len(self.tools_registered),
            "hooks": len(self.hooks_registered),
            "middleware": len(self.middleware_registered),
            "commands": len(self.commands_registered),
            "error": self.error,
        }


def record_of(plugin: load.LoadedPlugin) -> PluginRecord:
    """One of our plugins in these fields."""
    return PluginRecord(
        manifest=_manifest_of(plugin),
        module=sys.modules.get(f"hermes_plugins.{slug_of(plugin.name, set())}"),
        tools_registered=list(plugin.tools),
        hooks_registered=list(plugin.hooks),
        middleware_registered=list(plugin.middleware),
        commands_registered=list(plugin.commands),
        enabled=not plugin.problem,
        error=plugin.problem or None,
    )


def _manifest_of(plugin: load.LoadedPlugin) -> ManifestRecord:
    manifest = ManifestRecord(
        name=plugin.name, version=plugin.version, source=plugin.origin, path=plugin.path or None, key=plugin.name
    )
    files = (Path(plugin.path) / name for name in MANIFEST_NAMES) if plugin.path else ()
    file = next((file for file in files if file.is_file()), None)
    # An installed package has no manifest file; one that cannot be read is the problem that the plugin itself shows.
    written = None
    with contextlib.suppress(PluginError, OSError):
        written = read_manifest(file)[0] if file is not None else None
    if written is not None:
        manifest.description, manifest.author, manifest.kind = written.description, written.author, written.kind
        manifest.requires_env = list(written.requires_env)
        manifest.provides_tools, manifest.provides_hooks = list(written.provides_tools), list(written.provides_hooks)
    return manifest


class _AnyContext(type):
    """Makes what a plugin receives from our loader an instance of the class under the reference name too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, context.PluginContext)


class CompatPluginContext(context.PluginContext, metaclass=_AnyContext):
    """The runtime as one plugin sees it; hooks take effect at once, since no loader finishes this context."""

    def __init__(self, manifest: ManifestRecord | OurManifest, manager: PluginManager) -> None:
        source = Source("plugin", manifest.name)
        ours = manifest if isinstance(manifest, OurManifest) else OurManifest(name=manifest.name)
        super().__init__(ours, LoadScope(source, registry), registry, manager.hooks, find_home())
        # Shown as it was given; only the name counts for us.
        self.manifest: Any = manifest

        self._own_manager = manager

    def declare(self, kind: str, *arguments: Any, **options: Any) -> None:
        super().declare(kind, *arguments, **options)
        self._own_manager.own_declarations.append(self._declarations[-1])

    def _add(self, hooked: context._PendingHook) -> None:
        self._require_callable(f"{hooked.table} {hooked.name!r}", hooked.callback)
        self._apply(hooked)


logger = logging.getLogger(__name__)


class PluginManager:
    """A set of plugins with its own hooks; registers their tools in the default registry."""

    def __init__(self) -> None:
        self._own_hooks = HookManager()
        self._loaded: list[LoadedPlugin] | None = None
        self.own_declarations: list[context.Declaration] = []
        """What contexts that no loader made have declared."""

    @property
    def hooks(self) -> HookManager:
        return self._own_hooks

    @property
    def plugins(self) -> list[LoadedPlugin]:
        return list(self._loaded or [])

    def discover_and_load(self, force: bool = False) -> None:
        """Load the plugins that the config enables, once; `force` reads the config and loads them again."""
        if self._loaded is None or force:
            self._loaded = _load_again(self.plugins, registry, self.hooks)

    def list_plugins(self) -> list[JsonObject]:
        """What is known about each plugin, sorted by name."""
        return [plugin.as_dict() for _, plugin in sorted(self._plugins.items())]

    def register_hook(self, hook_name: str, callback: Callback) -> None:
        self.hooks.register(hook_name, callback)

    def register_middleware(self, kind: str, callback: Callback) -> None:
        self.hooks.register_middleware(kind, callback)

    def has_hook(self, hook_name: str) -> bool:
        return self.hooks.has(hook_name)

    def has_middleware(self, kind: str) -> bool:
        return self.hooks.has_middleware(kind)

    def invoke_hook(self, hook_name: str, **kwargs: Any) -> list[Any]:
        """The callbacks' answers, without None; one that raises is logged and skipped."""
        keywords = {"telemetry_schema_version": TELEMETRY_SCHEMA_VERSION, **kwargs}
        return _answers(hook_name, self.hooks.hooks(hook_name), keywords)

    def invoke_middleware(self, kind: str, **kwargs: Any) -> list[Any]:
        """The middleware's answers, without None; each gets the same keywords."""
        keywords = {
            "telemetry_schema_version": TELEMETRY_SCHEMA_VERSION,
            "middleware_schema_version": MIDDLEWARE_SCHEMA_VERSION,
            **kwargs,
        }
        return _answers(kind, self.hooks.middleware(kind), keywords)

    def policy_answers(self, keywords: JsonObject) -> list[Any]:
        """The answers of `pre_tool_call`; a callback that raises and is not an observer blocks the call."""
        keywords = {"telemetry_schema_version": TELEMETRY_SCHEMA_VERSION, **keywords}
        answers = []
        for registered in self.hooks.hooks("pre_tool_call"):
            answer, error = _answer("pre_tool_call", registered, keywords)
            if error is None:
                answers.append(_with_reason(answer, keywords["tool_name"]))
            elif not registered.observer:
                message = f"{registered.source} could not check this call: {error}"
                answers.append({"action": "block", "message": message})
        return answers

    def declarations(self, kind: str) -> list[context.Declaration]:
        """What plugins declared of one kind."""
        loaded = [one for plugin in self.plugins for one in plugin.declarations]
        return [one for one in (*loaded, *self.own_declarations) if one.kind == kind]

    def list_plugin_skills(self, plugin_name: str) -> list[str]:
        """The names of a plugin's skills, sorted."""
        return sorted(one.name for one in self.declarations("skill") if one.source.name == plugin_name)

    # Names that callers of the reference system look at

    @property
    def _discovered(self) -> bool:
        return self._loaded is not None

    @property
    def _plugin_tool_names(self) -> set[str]:
        return {entry.name for entry in registry.entries() if entry.source.kind == "plugin"}

    @property
    def _plugin_commands(self) -> dict[str, JsonObject]:
        names = ("name", "handler", "description", "args_hint")
        return {one.name: _described(one, names) for one in self.declarations("command")}

    @property
    def _cli_commands(self) -> dict[str, JsonObject]:
        names = ("name", "help", "setup_fn", "handler_fn", "description")
        found = self.declarations("cli_command")
        return {one.name: {"name": one.name, **_described(one, names)} for one in found}

    @property
    def _plugins(self) -> dict[str, PluginRecord]:
        return {plugin.name: record_of(plugin) for plugin in self.plugins}

    @property
    def _hooks(self) -> CallbackTable:
        return CallbackTable(self.hooks, "hooks")

    @_hooks.setter
    def _hooks(self, content: Mapping[str, Iterable[Callback]]) -> None:
        self._hooks.replace(content)

    @property
    def _middleware(self) -> CallbackTable:
        return CallbackTable(self.hooks, "middleware")

    @_middleware.setter
    def _middleware(self, content: Mapping[str, Iterable[Callback]]) -> None:
        self._middleware.replace(content)


def _described(declared: context.Declaration, names: tuple[str, ...]) -> JsonObject:
    """The arguments of a declaration by name, except its own, and who made it."""
    given = {**dict(zip(names, declared.arguments, strict=False)), **declared.options}
    empty: JsonObject = dict.fromkeys(names, "") | ({"handler_fn": None} if "handler_fn" in names else {})
    return {**{key: value for key, value in (empty | given).items() if key != "name"}, "plugin": declared.source.name}


class DefaultPluginManager(PluginManager):
    """The plugins and hooks of the current default runtime."""

    @property
    def _discovered(self) -> bool:
        return True

    @property
    def hooks(self) -> HookManager:
        return default_runtime().hooks

    @property
    def plugins(self) -> list[LoadedPlugin]:
        return list(default_runtime().loaded_plugins)

    def discover_and_load(self, force: bool = False) -> None:
        runtime = default_runtime()
        if force:
            runtime.loaded_plugins[:] = _load_again(runtime.loaded_plugins, runtime.registry, runtime.hooks)


def refusal(tool_name: str, args: JsonObject, why: str | None, rule_key: str) -> str | None:
    """Why a call that a plugin wants approved may not run; None if it was approved."""
    runtime = default_runtime()
    reason = why or f"A plugin requires approval for {tool_name}"
    entry = runtime.registry.get_entry(tool_name)
    if entry is None:
        return f"{reason}; a tool that does not exist cannot be approved"
    rule = f"plugin_rule:{rule_key or f'{tool_name}:{reason}'}"
    ctx = runtime.context(tool_name=tool_name)
    asking = runtime._pipeline.gate.resolve(entry, args, Verdict("ask", (reason,), rule), ctx)
    verdict = runtime.bridge.run(asking)
    return None if verdict.decision == "allow" else "This call was not allowed: " + redact("; ".join(verdict.reasons))


def _load_again(before: list[LoadedPlugin], target: ToolRegistry, hooks: HookManager) -> list[LoadedPlugin]:
    """The plugins that the config enables now; removes the hooks and tools of all others."""
    _drop_plugin_callbacks(hooks)
    loaded = load_plugins(load_settings(), target, hooks)
    working = {plugin.name for plugin in loaded if not plugin.problem}
    for plugin in before:
        for name in plugin.tools if plugin.name not in working else ():
            entry = target.get_entry(name)
            if entry is not None and entry.source == plugin.source:
                # On the plugin's behalf, because only it may remove its tools.
                with target.loading(plugin.source):
                    target.deregister(name)
    return loaded


def _drop_plugin_callbacks(hooks: HookManager) -> None:
    """Remove what plugins registered, so loading them again does not call everything twice."""
    known = [one for name in HOOKS for one in hooks.hooks(name)]
    known += [one for kind in MIDDLEWARE for one in hooks.middleware(kind)]
    for registered in known:
        if registered.source.kind == "plugin":
            hooks.unregister(registered.callback)


def _answers(name: str, callbacks: tuple[HookRegistration, ...], keywords: JsonObject) -> list[Any]:
    answers = (_answer(name, registered, keywords).value for registered in callbacks)
    return [answer for answer in answers if answer is not None]


def _answer(name: str, registered: HookRegistration, keywords: JsonObject) -> Attempt[Any]:
    """What a callback answers or raises; an error is logged."""

    def run() -> Any:
        answer = registered(keywords)
        return default_runtime().bridge.run(answer) if inspect.iscoroutine(answer) else answer

    outcome = attempt(run)
    if outcome.error is not None:
        logger.error("hook %r from %s failed", name, registered.source, exc_info=outcome.error)
    return outcome


def _with_reason(answer: Any, tool_name: str) -> Any:
    if isinstance(answer, dict) and answer.get("action") == "block" and not answer.get("message"):
        return {**answer, "message": f"A plugin blocked this call to {tool_name}"}
    return answer


class CallbackTable(MutableMapping[str, "Callbacks"]):
    """`manager._hooks` or `manager._middleware`: names with at least one callback, each with a live list of them."""

    def __init__(self, hooks: HookManager, table: Literal["hooks", "middleware"]) -> None:
        self._manager = hooks
        self._table = hooks._hooks if table == "hooks" else hooks._middleware

    def read(self, name: str) -> tuple[HookRegistration, ...]:
        return self._table.get(name, ())

    def write(self, name: str, callbacks: Iterable[Callback]) -> None:
        """Set the callbacks of a name; known callbacks keep their source."""
        known = {id(one.callback): one for one in self.read(name)}
        found = tuple(known.get(id(callback)) or _registered(callback) for callback in callbacks)
        with self._manager._lock:
            self._table[name] = found
            self._manager.is_empty = False

    def replace(self, content: Mapping[str, Iterable[Callback]]) -> None:
        """Replace everything with a dict."""
        wanted = {name: list(callbacks) for name, callbacks in content.items()}
        self.clear()
        self.update(wanted)  # type: ignore[arg-type]  # lists become live ones when they are written

    def setdefault(self, key: str, default: Any = ()) -> Callbacks:
        if key not in self:
            self[key] = default
        return Callbacks(self, key)

    def __getitem__(self, name: str) -> Callbacks:
        if not self.read(name):
            raise KeyError(name)
        return Callbacks(self, name)

    def __setitem__(self, name: str, callbacks: Iterable[Callback]) -> None:
        self.write(name, list(callbacks))

    def __delitem__(self, name: str) -> None:
        if not self.read(name):
            raise KeyError(name)
        self.write(name, ())

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, callbacks in self._table.items() if callbacks])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr({name: list(callbacks) for name, callbacks in self.items()})


class Callbacks(MutableSequence[Callback]):
    """The callbacks of one name; every change takes effect at once."""

    def __init__(self, table: CallbackTable, name: str) -> None:
        self._table = table
        self._name = name

    def __getitem__(self, index: Any) -> Any:
        return self._list()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        changed = self._list()
        changed[index] = value
        self._table.write(self._name, changed)

    def __delitem__(self, index: Any) -> None:
        changed = self._list()
        del changed[index]
        self._table.write(self._name, changed)

    def __len__(self) -> int:
        return len(self._table.read(self._name))

    def insert(self, index: int, value: Callback) -> None:
        changed = self._list()
        changed.insert(index, value)
        self._table.write(self._name, changed)

    def __eq__(self, other: object) -> bool:
        return self._list() == list(other) if isinstance(other, (list, Callbacks)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._list())

    def _list(self) -> list[Callback]:
        return [one.callback for one in self._table.read(self._name)]


def _registered(callback: Callback) -> HookRegistration:
    return HookRegistration(callback, accepted_names(callback), is_async=inspect.iscoroutinefunction(callback))
