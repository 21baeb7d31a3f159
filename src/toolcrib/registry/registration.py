"""Checks a registration: whether it is complete, who makes it, and whether they may take a name that is in use.

We recognise a plugin in three ways, so no kind of callable can hide it: it is being loaded, its module is on the call
stack, or its module made the handler.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from inspect import CO_VARKEYWORDS
from types import FrameType, FunctionType, MethodType
from typing import Any

import msgspec

from toolcrib.core.errors import PluginToolOverrideError, RegistrationError
from toolcrib.core.origins import DELICATE_ROLES, ORIGIN_LEVELS, OriginDeclaration, is_origin, is_pointer
from toolcrib.core.types import (
    AGENT_LOOP_TOOLS,
    SEARCH_TOOLS,
    CheckFn,
    Effect,
    EffectsDeclaration,
    Handler,
    JsonObject,
    Preview,
    SchemaOverrides,
    Source,
    ToolEntry,
)


def make_entry(
    *,
    name: str,
    toolset: str,
    schema: JsonObject,
    handler: Handler,
    check_fn: CheckFn | None,
    requires_env: list[str] | None,
    is_async: bool,
    description: str,
    emoji: str,
    max_result_size_chars: int | float | None,
    dynamic_schema_overrides: SchemaOverrides | None,
    effects: EffectsDeclaration | None,
    source: Source,
    origin: OriginDeclaration = "",
    preview: Preview | None = None,
) -> ToolEntry:
    """The entry for one registration; raises a RegistrationError that names the tool and what to change."""
    if not isinstance(name, str) or not name:
        raise RegistrationError(f"a tool needs a name, not {name!r}; pass name='…' to register()")
    if not isinstance(toolset, str) or not toolset:
        raise RegistrationError(f"tool {name!r} needs a toolset, not {toolset!r}; pass toolset='…' to register()")
    for label, value in (
        ("handler", handler),
        ("check_fn", check_fn),
        ("dynamic_schema_overrides", dynamic_schema_overrides),
        ("preview", preview),
    ):
        if not callable(value) and (value is not None or label == "handler"):
            raise RegistrationError(f"{label} of tool {name!r} is not callable: {value!r}; pass a function")
    complete = complete_schema(name, schema, is_plain=source.kind == "builtin")
    takes_context, keywords = handler_keywords(handler)
    return ToolEntry(
        name=name,
        toolset=toolset,
        schema=complete,
        handler=handler,
        check_fn=_hashable(check_fn),
        requires_env=_variables(name, requires_env),
        is_async=bool(is_async),
        description=description or str(complete.get("description") or ""),
        emoji=emoji,
        max_result_size_chars=_result_limit(name, max_result_size_chars),
        dynamic_schema_overrides=dynamic_schema_overrides,
        effects=_effects(name, effects),
        source=source,
        takes_context=takes_context,
        keywords=keywords,
        origin=_origin(name, origin) or _implied_origin(effects),
        preview=preview,
    )


def complete_schema(name: str, schema: Any, *, is_plain: bool = False) -> JsonObject:
    """The schema with its name and parameters filled in; rejects only non-dicts and non-JSON values.

    `is_plain`: it is known to have nothing but JSON values, so they need no check.
    """
    if not isinstance(schema, dict):
        raise RegistrationError(
            f"schema of tool {name!r} is a {type(schema).__name__}; "
            "write a dict with 'description' and 'parameters' (a JSON Schema of type object)"
        )
    try:
        # A copy of plain JSON values, which its author cannot change afterwards.
        if is_plain:
            # In a tenth of the time, but it would also accept what is no JSON.
            complete: JsonObject = msgspec.json.decode(msgspec.json.encode({**schema, "name": name}))
        else:
            text = json.dumps({**schema, "name": name}, allow_nan=False, ensure_ascii=False)
            text.encode()
            complete = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise RegistrationError(f"schema of tool {name!r} is not JSON: {error}; use plain JSON values only") from error
    if complete.get("parameters") is None:
        complete["parameters"] = {"type": "object", "properties": {}}
    return complete


def handler_keywords(handler: Handler) -> tuple[bool, frozenset[str] | None]:
    """Whether the handler has a `ctx` parameter, and which keywords it accepts (None: any)."""
    function: Any = handler
    bound = 0
    given: set[str] = set()
    while isinstance(function, (partial, MethodType)):
        if isinstance(function, partial):
            given.update(function.keywords)
            bound += len(function.args)
            function = function.func
        else:
            bound += 1
            function = function.__func__
    if not isinstance(function, FunctionType):
        call = getattr(type(function), "__call__", None)  # noqa: B004 - looked at, not tested for
        if not isinstance(call, FunctionType):
            return False, None
        function, bound = call, bound + 1
    code = function.__code__
    # The first positional parameter receives the arguments, whatever its name.
    first_by_keyword = max(bound + 1, code.co_posonlyargcount)
    by_keyword = code.co_varnames[first_by_keyword : code.co_argcount]
    keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    names = frozenset((*by_keyword, *keyword_only)) - given
    takes_any = bool(code.co_flags & CO_VARKEYWORDS)
    return "ctx" in names, None if takes_any else names


def _hashable(check_fn: CheckFn | None) -> CheckFn | None:
    """The check as a hashable object: for an unhashable one, its bound `__call__`."""
    if check_fn is None or getattr(type(check_fn), "__hash__", None) is not None:
        return check_fn
    bound: CheckFn = check_fn.__call__  # type: ignore[operator]
    return bound


def _variables(name: str, requires_env: Any) -> list[str]:
    given = [requires_env] if isinstance(requires_env, str) else requires_env or []
    variables = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(variable, str) for variable in variables):
        raise RegistrationError(
            f"requires_env of tool {name!r} is {requires_env!r}; use a list of variable names, as in ['SOME_API_KEY']"
        )
    return variables


def _effects(name: str, effects: Any) -> EffectsDeclaration | None:
    if effects is None or callable(effects):
        return effects  # type: ignore[no-any-return]
    if not isinstance(effects, (tuple, list)) or not all(isinstance(effect, Effect) for effect in effects):
        raise RegistrationError(
            f"effects of tool {name!r} are {effects!r}; use a tuple of Effect, as in (Effect('network'),), "
            "or a function that returns one"
        )
    for effect in effects:
        for pointer, role in (effect.delicate or {}).items():
            if not is_pointer(pointer) or role not in DELICATE_ROLES:
                raise RegistrationError(
                    f"tool {name!r} names the delicate argument {pointer!r} as {role!r}; use a JSON pointer such as "
                    f"'/to' and one of the roles {', '.join(DELICATE_ROLES)}"
                )
    return tuple(effects)


def _origin(name: str, origin: Any) -> OriginDeclaration:
    if not is_origin(origin):
        raise RegistrationError(
            f"origin of tool {name!r} is {origin!r}; use one of {', '.join(ORIGIN_LEVELS)}, or a mapping from JSON "
            "pointers to these, as in {'': 'untrusted', '/sender': 'trusted'}"
        )
    return origin  # type: ignore[no-any-return]


def _implied_origin(effects: Any) -> OriginDeclaration:
    """The origin that follows from the declaration alone; empty if it depends on the call."""
    if effects is None:
        return "untrusted"
    if callable(effects):
        return ""
    kinds = {effect.kind for effect in effects}
    return "untrusted" if "network" in kinds else "" if kinds & {"exec", "read"} else "derived"


def _result_limit(name: str, limit: Any) -> int | float | None:
    if limit is None:
        return None
    # This also rejects `nan`, which is not greater than anything.
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
        raise RegistrationError(
            f"max_result_size_chars of tool {name!r} is {limit!r}; use a positive number, float('inf') or None"
        )
    return limit


logger = logging.getLogger(__name__)

PLUGIN_NAMESPACE = "toolcrib_plugins"
# The second is where the reference system puts its plugins.
_PLUGIN_PREFIXES = (f"{PLUGIN_NAMESPACE}.", "hermes_plugins.")
BUILTIN_NAMESPACE = "toolcrib.tools"
# The plugin loader sets this in a plugin's module, to recognise code that the plugin runs later.
SOURCE_ATTRIBUTE = "__toolcrib_source__"
# An unknown caller: it passed a registry method to a thread or a hook, and its handler does not identify it either.
UNKNOWN = Source("code", "unknown")
AGENT_STATE_TOOLS = AGENT_LOOP_TOOLS | SEARCH_TOOLS | {"clarify", "cronjob", "execute_code", "process"}
"""Built-in tools that work on what a running agent holds: its plan, memory and tools, its processes, its user."""
# The most wrappers to unwrap: an object may claim to wrap itself.
MAX_LAYERS = 50


class LoadScope(msgspec.Struct):
    """A tool file or plugin that is being loaded: its source, its target registry, and what it registered."""

    source: Source
    target: object
    """The registry that its tools go to."""
    registered: list[str] = msgspec.field(default_factory=list)
    before: dict[str, ToolEntry | None] = msgspec.field(default_factory=dict)
    """The target's previous entry under each changed name, to undo the changes."""
    replaced_builtins: list[str] = msgspec.field(default_factory=list)
    """The built-in tools that it declares again without `override=True`."""


_loading: ContextVar[LoadScope | None] = ContextVar("toolcrib_loading", default=None)


def current_loading() -> LoadScope | None:
    return _loading.get()


def line_in(path: str) -> int | None:
    """The line of this file that is running, further up the call stack; None if none is."""
    frame: FrameType | None = sys._getframe(1)
    while path and frame is not None:
        if frame.f_code.co_filename == path:
            return frame.f_lineno
        frame = frame.f_back
    return None


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
    # A plugin's function that wraps a built-in handler belongs to the plugin.
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
    # A deep stack has few modules: each is looked at once.
    seen: set[int] = set()
    while frame is not None:
        module_globals = frame.f_globals
        if id(module_globals) not in seen:
            seen.add(id(module_globals))
            source = _source_in(module_globals)
            if source is not None:
                return source
            module = str(module_globals.get("__name__", ""))
            if plain is None and not module.startswith("toolcrib.registry"):
                path = frame.f_code.co_filename
                plain = UNKNOWN if _is_machinery(module) else Source("code", module or "python", path)
        frame = frame.f_back
    return plain or UNKNOWN


# By namespace, for plugins that our loader did not load: declarations by the operator, not live state.
_override_consent: dict[str, bool] = {}


def set_override_consent(namespace: str, allowed: bool) -> None:
    """Set whether the plugin in a namespace may replace tools from other sources. A plugin cannot call this itself."""
    caller = source_of_caller(current_loading())
    if caller.kind == "plugin":
        raise PluginToolOverrideError(
            f"plugin {caller.name!r} tried to set who may replace tools; only the operator may do that: "
            "`toolcrib config set plugins.entries.NAME.allow_tool_override true`"
        )
    _override_consent[namespace] = allowed


def override_consents() -> dict[str, bool]:
    """Who may replace tools from other sources, by namespace; a copy, because only the operator may change it."""
    return dict(_override_consent)


def refusal(existing: ToolEntry, new: ToolEntry, override: bool) -> str:
    """Why the new entry may not take the name, or "" if it may. Raises if a plugin overrides a tool without consent."""
    both_mcp = existing.toolset.startswith("mcp-") and new.toolset.startswith("mcp-")
    if both_mcp:
        logger.debug("MCP tool %r from %r replaces the one from %r", new.name, new.toolset, existing.toolset)
        return ""
    foreign_plugin = _needs_consent(new.source, existing)
    if override:
        if foreign_plugin and not new.source.may_override:
            raise _without_consent("replace", existing, new.source)
        logger.info("tool %r from %s (toolset %r) is replaced by %s (toolset %r)",
                    new.name, existing.source, existing.toolset, new.source, new.toolset)  # fmt: skip
        return ""
    same_toolset = existing.toolset == new.toolset
    if same_toolset and existing.is_ours and new.source.kind == "user" and new.name in AGENT_STATE_TOOLS:
        return (
            f"tool {new.name!r} ({new.source}) was refused: the built-in tool works on the state of the running agent, "
            "which a tool file does not receive; delete it there, or pass override=True to replace it on purpose"
        )
    if same_toolset and not foreign_plugin:
        return ""
    return (
        f"tool {new.name!r} (toolset {new.toolset!r}, {new.source}) was refused: "
        f"{existing.source} already uses that name in toolset {existing.toolset!r}; "
        "choose another name, or pass override=True to replace it on purpose"
    )


def require_removal_allowed(entry: ToolEntry, caller: Source) -> None:
    """Raises if a plugin removes another source's tool without the operator's consent."""
    if caller.may_override or entry.toolset.startswith("mcp-"):
        return
    if _needs_consent(caller, entry):
        raise _without_consent("remove", entry, caller)


def require_change_allowed(entry: ToolEntry) -> None:
    """Raises if a plugin changes another source's tool in place without the operator's consent."""
    caller = source_of_caller(current_loading())
    if caller.kind == "plugin" and not caller.may_override and _needs_consent(caller, entry):
        raise _without_consent("change", entry, caller)


def _needs_consent(acting: Source, entry: ToolEntry) -> bool:
    """Whether this caller needs the operator's consent to change the tool: a plugin, or an unknown caller."""
    if acting == UNKNOWN:
        return entry.source.kind != "code"
    same_owner = entry.source.kind == acting.kind and entry.source.name == acting.name
    return acting.kind == "plugin" and not same_owner


def _without_consent(verb: str, entry: ToolEntry, acting: Source) -> PluginToolOverrideError:
    if acting == UNKNOWN:
        return PluginToolOverrideError(
            f"an unknown caller tried to {verb} tool {entry.name!r} from {entry.source}; "
            "call the registry from a function in your own module"
        )
    return PluginToolOverrideError(
        f"plugin {acting.name!r} tried to {verb} tool {entry.name!r} from {entry.source}; "
        f"to allow it: `toolcrib config set plugins.entries.{acting.name}.allow_tool_override true`"
    )


def _modules_behind(handler: Handler) -> list[dict[str, Any]]:
    """The globals of every module involved in a handler: wrappers, partials, methods and callable objects."""
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
    """Whether this module's code calls on behalf of others and so does not identify the caller."""
    package = module.split(".")[0]
    return package == "toolcrib" or package in sys.stdlib_module_names


def _source_in(module_globals: dict[str, Any]) -> Source | None:
    """The source of a module's globals, if it is a plugin, a tool file, or a module inside one."""
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
