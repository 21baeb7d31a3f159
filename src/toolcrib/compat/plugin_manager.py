"""Plugins and their hooks as the reference system's `PluginManager` shows them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from toolcrib.api import default_runtime
from toolcrib.compat import plugin_records
from toolcrib.compat.callback_table import CallbackTable
from toolcrib.config.load import load_settings
from toolcrib.core.attempt import attempt
from toolcrib.core.types import JsonObject, Verdict
from toolcrib.hooks.manager import Callback, HookManager, HookRegistration
from toolcrib.hooks.specs import HOOKS, MIDDLEWARE, MIDDLEWARE_SCHEMA_VERSION, TELEMETRY_SCHEMA_VERSION
from toolcrib.plugins.load import LoadedPlugin, load_plugins
from toolcrib.registry.default import registry
from toolcrib.registry.registry import ToolRegistry

logger = logging.getLogger(__name__)


class PluginManager:
    """A set of plugins with hooks of its own; it registers their tools in the default registry."""

    def __init__(self) -> None:
        self._own_hooks = HookManager()
        self._loaded: list[LoadedPlugin] | None = None

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
        """What the callbacks answered, without None; one that raises is logged and left out."""
        keywords = {"telemetry_schema_version": TELEMETRY_SCHEMA_VERSION, **kwargs}
        return _answers(hook_name, self.hooks.hooks(hook_name), keywords)

    def invoke_middleware(self, kind: str, **kwargs: Any) -> list[Any]:
        """What the middleware answered, without None; each is called with the same keywords."""
        keywords = {
            "telemetry_schema_version": TELEMETRY_SCHEMA_VERSION,
            "middleware_schema_version": MIDDLEWARE_SCHEMA_VERSION,
            **kwargs,
        }
        return _answers(kind, self.hooks.middleware(kind), keywords)

    def policy_answers(self, keywords: JsonObject) -> list[Any]:
        """What `pre_tool_call` answered, where a callback that raises and is no observer blocks the call."""
        keywords = {"telemetry_schema_version": TELEMETRY_SCHEMA_VERSION, **keywords}
        answers = []
        for registered in self.hooks.hooks("pre_tool_call"):
            answer, error = attempt(_answer, registered, keywords)
            if error is None:
                answers.append(_with_reason(answer, keywords["tool_name"]))
                continue
            logger.error("hook 'pre_tool_call' of %s failed", registered.source, exc_info=error)
            if not registered.observer:
                message = f"{registered.source} could not check this call: {error}"
                answers.append({"action": "block", "message": message})
        return answers

    # Names that callers of the reference system look at

    @property
    def _plugins(self) -> dict[str, plugin_records.LoadedPlugin]:
        return {plugin.name: plugin_records.record_of(plugin) for plugin in self.plugins}

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


class DefaultPluginManager(PluginManager):
    """The plugins and hooks of the default runtime, whichever that is at the moment."""

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
    """Why a call that a plugin wants approved may not run; None when a person allowed it."""
    runtime = default_runtime()
    reason = why or f"A plugin wants {tool_name} to be approved"
    entry = runtime.registry.get_entry(tool_name)
    if entry is None:
        return f"{reason}; nobody can approve a tool that does not exist"
    rule = f"plugin_rule:{rule_key or f'{tool_name}:{reason}'}"
    ctx = runtime.context(tool_name=tool_name)
    asking = runtime._pipeline.gate.settle(entry, args, Verdict("ask", (reason,), rule), ctx)
    verdict = runtime.bridge.run(asking)
    return None if verdict.decision == "allow" else "This call was not allowed: " + "; ".join(verdict.reasons)


def _load_again(before: list[LoadedPlugin], target: ToolRegistry, hooks: HookManager) -> list[LoadedPlugin]:
    """The plugins that the config enables now; of the others, neither hooks nor tools are left."""
    _drop_plugin_callbacks(hooks)
    loaded = load_plugins(load_settings(), target, hooks)
    working = {plugin.name for plugin in loaded if not plugin.problem}
    for plugin in before:
        for name in plugin.tools if plugin.name not in working else ():
            entry = target.get_entry(name)
            if entry is not None and entry.source == plugin.source:
                # In the plugin's own name, since nobody else may remove its tools.
                with target.loading(plugin.source):
                    target.deregister(name)
    return loaded


def _drop_plugin_callbacks(hooks: HookManager) -> None:
    """Forget what plugins registered, so that loading them again does not call everything twice."""
    known = [one for name in HOOKS for one in hooks.hooks(name)]
    known += [one for kind in MIDDLEWARE for one in hooks.middleware(kind)]
    for registered in known:
        if registered.source.kind == "plugin":
            hooks.unregister(registered.callback)


def _answers(name: str, callbacks: tuple[HookRegistration, ...], keywords: JsonObject) -> list[Any]:
    answers = []
    for registered in callbacks:
        answer, error = attempt(_answer, registered, keywords)
        if error is not None:
            logger.error("hook %r of %s failed", name, registered.source, exc_info=error)
        if answer is not None:
            answers.append(answer)
    return answers


def _answer(registered: HookRegistration, keywords: JsonObject) -> Any:
    answer = registered(keywords)
    return default_runtime().bridge.run(answer) if inspect.iscoroutine(answer) else answer


def _with_reason(answer: Any, tool_name: str) -> Any:
    if isinstance(answer, dict) and answer.get("action") == "block" and not answer.get("message"):
        return {**answer, "message": f"A plugin blocked this call of {tool_name}"}
    return answer
