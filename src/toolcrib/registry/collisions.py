"""Who registers, and whether they may take a name that somebody has.

A plugin is recognised in three ways, so that no kind of callable hides it: it is being loaded, its module is on the
call stack, or its module made the handler.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FrameType, FunctionType
from typing import Any

import msgspec

from toolcrib.core.errors import PluginToolOverrideError
from toolcrib.core.types import Handler, Source, ToolEntry

logger = logging.getLogger(__name__)

PLUGIN_NAMESPACE = "toolcrib_plugins"
# The second is where the reference system puts its plugins.
_PLUGIN_PREFIXES = (f"{PLUGIN_NAMESPACE}.", "hermes_plugins.")
BUILTIN_NAMESPACE = "toolcrib.tools"
# Set by the plugin loader in a plugin's own module, so that code it runs later is still recognised.
SOURCE_ATTRIBUTE = "__toolcrib_source__"
# Somebody who handed a method of the registry to a thread or a hook, with a handler that tells nothing either.
UNKNOWN = Source("code", "unknown")
# Handlers are peeled this deep at most: an object may claim to wrap itself.
MAX_LAYERS = 50


class LoadScope(msgspec.Struct):
    """A tool file or plugin that is being loaded: who it is, where its tools go, and what it registered."""

    source: Source
    target: object
    """The registry that its tools go to."""
    registered: list[str] = msgspec.field(default_factory=list)
    before: dict[str, ToolEntry | None] = msgspec.field(default_factory=dict)
    """What stood in the target under each name that was changed, so that everything can be taken back."""


_loading: ContextVar[LoadScope | None] = ContextVar("toolcrib_loading", default=None)


def current_loading() -> LoadScope | None:
    return _loading.get()


@contextmanager
def loading_scope(loading: LoadScope) -> Iterator[LoadScope]:
    token = _loading.set(loading)
    try:
        yield loading
    finally:
        _loading.reset(token)


def source_of_registration(handler: Handler, loading: LoadScope | None) -> Source:
    """Who declares a tool with this handler."""
    caller = source_of_caller(loading)
    if caller.kind != "code":
        return caller
    behind = _modules_behind(handler)
    sources = [source for source in map(_source_in, behind) if source is not None]
    # A plugin's function around a built-in handler is the plugin's.
    for source in sorted(sources, key=lambda source: source.kind != "plugin"):
        return source
    if caller != UNKNOWN:
        return caller
    names = (str(module_globals.get("__name__", "")) for module_globals in behind)
    return next((Source("code", name) for name in names if not _is_machinery(name)), UNKNOWN)


def source_of_caller(loading: LoadScope | None) -> Source:
    """Who is calling the registry right now."""
    if loading is not None:
        return loading.source
    frame: FrameType | None = sys._getframe(1)
    plain: Source | None = None
    while frame is not None:
        source = _source_in(frame.f_globals)
        if source is not None:
            return source
        module = str(frame.f_globals.get("__name__", ""))
        if plain is None and not module.startswith("toolcrib.registry"):
            plain = UNKNOWN if _is_machinery(module) else Source("code", module or "python", frame.f_code.co_filename)
        frame = frame.f_back
    return plain or UNKNOWN


# By namespace, for plugins that our loader did not bring in: declarations of the operator, no live state.
_override_consent: dict[str, bool] = {}


def set_override_consent(namespace: str, allowed: bool) -> None:
    """Say whether the plugin in a namespace may replace other people's tools. A plugin cannot say so itself."""
    caller = source_of_caller(current_loading())
    if caller.kind == "plugin":
        raise PluginToolOverrideError(
            f"plugin {caller.name!r} wants to decide who may replace tools; only the operator may: "
            "`toolcrib config set plugins.entries.NAME.allow_tool_override true`"
        )
    _override_consent[namespace] = allowed


def refusal(existing: ToolEntry, new: ToolEntry, override: bool) -> str:
    """Why the new entry may not take the name, or "" if it may. Raises for a plugin that overrides without consent."""
    both_mcp = existing.toolset.startswith("mcp-") and new.toolset.startswith("mcp-")
    if both_mcp:
        logger.debug("MCP tool %r of %r replaces the one of %r", new.name, new.toolset, existing.toolset)
        return ""
    foreign_plugin = _needs_consent(new.source, existing)
    if override:
        if foreign_plugin and not new.source.may_override:
            raise _without_consent("replace", existing, new.source)
        logger.info("tool %r of %s (toolset %r) is replaced by %s (toolset %r)",
                    new.name, existing.source, existing.toolset, new.source, new.toolset)  # fmt: skip
        return ""
    if existing.toolset == new.toolset and not foreign_plugin:
        return ""
    return (
        f"tool {new.name!r} (toolset {new.toolset!r}, {new.source}) was refused: "
        f"{existing.source} has that name in toolset {existing.toolset!r}; "
        "choose another name, or pass override=True if the replacement is meant"
    )


def require_removal_allowed(entry: ToolEntry, caller: Source) -> None:
    """Raises for a plugin that removes a tool of somebody else without the operator's consent."""
    if caller.may_override or entry.toolset.startswith("mcp-"):
        return
    if _needs_consent(caller, entry):
        raise _without_consent("remove", entry, caller)


def _needs_consent(acting: Source, entry: ToolEntry) -> bool:
    """Whether the operator must allow this actor to touch the tool: a plugin, or somebody who may well be one."""
    if acting == UNKNOWN:
        return entry.source.kind != "code"
    same_owner = entry.source.kind == acting.kind and entry.source.name == acting.name
    return acting.kind == "plugin" and not same_owner


def _without_consent(verb: str, entry: ToolEntry, acting: Source) -> PluginToolOverrideError:
    if acting == UNKNOWN:
        return PluginToolOverrideError(
            f"somebody wants to {verb} tool {entry.name!r} of {entry.source}, and nothing on the call stack says who; "
            "call the registry from a function of your own module"
        )
    return PluginToolOverrideError(
        f"plugin {acting.name!r} wants to {verb} tool {entry.name!r} of {entry.source}; "
        f"to allow it: `toolcrib config set plugins.entries.{acting.name}.allow_tool_override true`"
    )


def _modules_behind(handler: Handler) -> list[dict[str, Any]]:
    """The globals of every module that had a part in a handler: wrappers, partials, methods and callable objects."""
    found: list[dict[str, Any]] = []
    layer: Any = handler
    for _ in range(MAX_LAYERS):
        functions = (layer, getattr(layer, "__func__", None), getattr(type(layer), "__call__", None))  # noqa: B004 - not a test
        found += [function.__globals__ for function in functions if isinstance(function, FunctionType)]
        owners = (layer, getattr(layer, "__self__", None))
        modules = [sys.modules.get(str(getattr(owner, "__module__", ""))) for owner in owners]
        found += [vars(module) for module in modules if module is not None]
        layer = layer.func if isinstance(layer, partial) else getattr(layer, "__wrapped__", None)
        if layer is None:
            break
    return found


def _is_machinery(module: str) -> bool:
    """Whether code of this module calls on behalf of others, so that it does not say who acts."""
    package = module.split(".")[0]
    return package == "toolcrib" or package in sys.stdlib_module_names


def _source_in(module_globals: dict[str, Any]) -> Source | None:
    """The source that a module's globals belong to, if it is a plugin, a tool file, or a module inside one."""
    source = module_globals.get(SOURCE_ATTRIBUTE)
    if isinstance(source, Source):
        return source
    module = str(module_globals.get("__name__", ""))
    if module.startswith(BUILTIN_NAMESPACE + "."):
        return Source("builtin", module, str(module_globals.get("__file__", "")))
    package = module.rpartition(".")[0]
    while package:
        source = getattr(sys.modules.get(package), SOURCE_ATTRIBUTE, None)
        if isinstance(source, Source):
            return source
        package = package.rpartition(".")[0]
    if not module.startswith(_PLUGIN_PREFIXES):
        return None
    namespace = ".".join(module.split(".")[:2])
    return Source("plugin", namespace.partition(".")[2], may_override=_override_consent.get(namespace, False))
