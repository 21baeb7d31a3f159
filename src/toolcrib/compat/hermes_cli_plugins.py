"""`hermes_cli.plugins`: the plugins and hooks of the default runtime.

The functions look each other up by name at call time, so replacing one of them (or the manager) changes what the others
and `model_tools.handle_function_call` do.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from toolcrib.api import default_runtime
from toolcrib.compat.plugin_manager import CompatPluginContext as PluginContext
from toolcrib.compat.plugin_manager import DefaultPluginManager, PluginManager, refusal
from toolcrib.compat.plugin_manager import ManifestRecord as PluginManifest
from toolcrib.compat.plugin_manager import PluginRecord as LoadedPlugin
from toolcrib.config.load import load_settings
from toolcrib.core.errors import PluginError, PluginToolOverrideError
from toolcrib.core.types import JsonObject
from toolcrib.hooks.specs import HOOKS, MIDDLEWARE, TELEMETRY_SCHEMA_VERSION
from toolcrib.registry.default import registry

__all__ = [
    "VALID_HOOKS",
    "VALID_MIDDLEWARE",
    "LoadedPlugin",
    "PluginContext",
    "PluginError",
    "PluginManager",
    "PluginManifest",
    "PluginToolOverrideError",
    "clear_thread_tool_whitelist",
    "discover_plugins",
    "get_plugin_command_handler",
    "get_plugin_commands",
    "get_plugin_manager",
    "get_plugin_toolsets",
    "get_pre_tool_call_block_message",
    "get_pre_tool_call_directive",
    "has_hook",
    "has_middleware",
    "invoke_hook",
    "invoke_middleware",
    "resolve_plugin_command_result",
    "resolve_pre_tool_block",
    "set_thread_tool_whitelist",
]

logger = logging.getLogger(__name__)

VALID_HOOKS: set[str] = set(HOOKS)
VALID_MIDDLEWARE: set[str] = set(MIDDLEWARE)
ENTRY_POINTS_GROUP = "hermes_agent.plugins"
OBSERVER_SCHEMA_VERSION = TELEMETRY_SCHEMA_VERSION
DENIED_IN_THREAD = "Tool '{tool_name}' is not available here"

# One per process: the functions below take no manager. It has no state; the default runtime does.
_plugin_manager: PluginManager | None = DefaultPluginManager()


class _ThreadBounds(threading.local):
    """The tools that a thread may call (None: all), and the answer to every other call."""

    allowed: frozenset[str] | None = None
    message: str = DENIED_IN_THREAD


_thread = _ThreadBounds()


def get_plugin_manager() -> PluginManager:
    """The manager of the default runtime's plugins; a new, empty one after somebody set `_plugin_manager` to None."""
    global _plugin_manager
    if _plugin_manager is None:
        _plugin_manager = PluginManager()
    return _plugin_manager


def _ensure_plugins_discovered(force: bool = False) -> PluginManager:
    """The manager, after it loaded its plugins."""
    discover_plugins(force=force)
    return get_plugin_manager()


def discover_plugins(force: bool = False) -> None:
    """Load the plugins that the config enables, once; `force` reads the config and loads them again."""
    get_plugin_manager().discover_and_load(force=force)


def invoke_hook(hook_name: str, **kwargs: Any) -> list[Any]:
    """The answers of a hook's callbacks, without None; one that raises is logged and skipped."""
    return get_plugin_manager().invoke_hook(hook_name, **kwargs)


def has_hook(hook_name: str) -> bool:
    return get_plugin_manager().has_hook(hook_name)


def invoke_middleware(kind: str, **kwargs: Any) -> list[Any]:
    """The answers of all middleware of a kind, without None; one that raises is logged and skipped."""
    return get_plugin_manager().invoke_middleware(kind, **kwargs)


def has_middleware(kind: str) -> bool:
    return get_plugin_manager().has_middleware(kind)


def get_plugin_commands() -> dict[str, JsonObject]:
    """The slash commands of plugins by name: handler, description, args_hint and plugin."""
    return get_plugin_manager()._plugin_commands


def get_plugin_command_handler(name: str) -> Callable[..., Any] | None:
    """What runs a slash command of a plugin; None if no plugin has it."""
    found = get_plugin_commands().get(name.lstrip("/"))
    return found["handler"] if found is not None else None


def resolve_plugin_command_result(result: Any) -> Any:
    """The answer of a slash command, awaited if it is a coroutine."""
    return default_runtime().bridge.run(result) if inspect.iscoroutine(result) else result


def _get_enabled_plugins() -> set[str] | None:
    """The plugins that the config enables; None if it does not say."""
    return set(load_settings().plugins.enabled) or None


def _get_disabled_plugins() -> set[str]:
    return set(load_settings().plugins.disabled)


def get_plugin_toolsets() -> list[tuple[str, str, str]]:
    """The name, label and description of each toolset from plugins."""
    tools: dict[str, list[str]] = {}
    descriptions: dict[str, str] = {}
    about = {plugin["name"]: plugin["description"] for plugin in get_plugin_manager().list_plugins()}
    for entry in registry.entries():
        if entry.source.kind == "plugin":
            tools.setdefault(entry.toolset, []).append(entry.name)
            descriptions.setdefault(entry.toolset, about.get(entry.source.name, ""))
    return [
        (name, f"🔌 {name.replace('_', ' ').title()}", descriptions[name] or ", ".join(tools[name]))
        for name in sorted(tools)
    ]


def set_thread_tool_whitelist(allowed: Collection[str] | None, deny_msg_fmt: str = DENIED_IN_THREAD) -> None:
    """Let this thread call only the named tools; every other call returns the message."""
    _thread.allowed = None if allowed is None else frozenset(allowed)
    _thread.message = deny_msg_fmt


def clear_thread_tool_whitelist() -> None:
    """Let this thread call every tool again."""
    _thread.allowed = None


def thread_has_whitelist() -> bool:
    return _thread.allowed is not None


@dataclass(frozen=True, slots=True)
class _Directive:
    """What to do with a call: nothing special (no action), block it, or ask for approval."""

    action: str | None = None
    message: str | None = None
    rule_key: str = ""


def get_pre_tool_call_directive(
    tool_name: str,
    args: JsonObject | None,
    task_id: str = "",
    session_id: str = "",
    tool_call_id: str = "",
    turn_id: str = "",
    api_request_id: str = "",
    middleware_trace: list[JsonObject] | None = None,
) -> tuple[str | None, str | None]:
    """`("block", why)`, `("approve", why or None)` or `(None, None)`: the first valid answer to `pre_tool_call`."""
    found = _directive(tool_name, args, task_id, session_id, tool_call_id, turn_id, api_request_id, middleware_trace)
    return found.action, found.message


def get_pre_tool_call_block_message(
    tool_name: str,
    args: JsonObject | None,
    task_id: str = "",
    session_id: str = "",
    tool_call_id: str = "",
    turn_id: str = "",
    api_request_id: str = "",
    middleware_trace: list[JsonObject] | None = None,
) -> str | None:
    """Why a plugin, or the whitelist of this thread, blocks a call; None if nothing does."""
    action, message = get_pre_tool_call_directive(
        tool_name, args, task_id, session_id, tool_call_id, turn_id, api_request_id, middleware_trace
    )
    return message if action == "block" else None


def resolve_pre_tool_block(
    tool_name: str,
    args: JsonObject | None,
    task_id: str = "",
    session_id: str = "",
    tool_call_id: str = "",
    turn_id: str = "",
    api_request_id: str = "",
    middleware_trace: list[JsonObject] | None = None,
) -> str | None:
    """Why a call may not run, after asking for approval if a plugin wants that; None if it may."""
    call = (tool_name, args, task_id, session_id, tool_call_id, turn_id, api_request_id, middleware_trace)
    if is_replaced("get_pre_tool_call_block_message"):
        return get_pre_tool_call_block_message(*call)
    if is_replaced("get_pre_tool_call_directive"):
        found = _Directive(*get_pre_tool_call_directive(*call))
    else:
        found = _directive(*call)
    if found.action == "approve":
        return refusal(tool_name, args or {}, found.message, found.rule_key)
    return found.message if found.action == "block" else None


def _directive(
    tool_name: str,
    args: JsonObject | None,
    task_id: str,
    session_id: str,
    tool_call_id: str,
    turn_id: str,
    api_request_id: str,
    middleware_trace: list[JsonObject] | None,
) -> _Directive:
    denial = _thread_denial(tool_name)
    if denial is not None:
        return _Directive("block", denial)
    keywords = {
        "tool_name": tool_name,
        "args": args if isinstance(args, dict) else {},
        "task_id": task_id,
        "session_id": session_id,
        "tool_call_id": tool_call_id,
        "turn_id": turn_id,
        "api_request_id": api_request_id,
        "middleware_trace": list(middleware_trace or []),
    }
    manager = get_plugin_manager()
    if not is_replaced("invoke_hook") and isinstance(manager, PluginManager):
        answers = manager.policy_answers(keywords)
    else:
        answers = invoke_hook("pre_tool_call", **keywords)
    return next((found for answer in answers or () if (found := _read_directive(answer))), _Directive())


def _read_directive(answer: Any) -> _Directive | None:
    """What a callback wants, or None if its answer is unusable."""
    if not isinstance(answer, dict):
        return None
    message, rule_key = answer.get("message"), answer.get("rule_key")
    why = message if isinstance(message, str) and message else None
    if answer.get("action") == "approve":
        return _Directive("approve", why, rule_key if isinstance(rule_key, str) else "")
    # A block needs a reason for the model; an approval request has its own wording.
    return _Directive("block", why) if answer.get("action") == "block" and why else None


def _thread_denial(tool_name: str) -> str | None:
    if _thread.allowed is None or tool_name in _thread.allowed:
        return None
    try:
        return _thread.message.format(tool_name, tool_name=tool_name, name=tool_name, tool=tool_name)
    except (KeyError, IndexError, ValueError):
        return _thread.message


# The originals of everything that callers may replace.
plain_parts: dict[str, Any] = {
    "invoke_hook": invoke_hook,
    "has_hook": has_hook,
    "invoke_middleware": invoke_middleware,
    "has_middleware": has_middleware,
    "get_plugin_manager": get_plugin_manager,
    "resolve_pre_tool_block": resolve_pre_tool_block,
    "get_pre_tool_call_directive": get_pre_tool_call_directive,
    "get_pre_tool_call_block_message": get_pre_tool_call_block_message,
    "_plugin_manager": _plugin_manager,
}


plain_values = tuple(plain_parts.values())


def is_replaced(name: str) -> bool:
    """Whether a caller replaced a function or the manager."""
    return globals()[name] is not plain_parts[name]
