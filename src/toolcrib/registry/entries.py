"""Turns a tool's declaration into a ToolEntry, or says what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from inspect import CO_VARKEYWORDS
from types import FunctionType, MethodType
from typing import Any

from toolcrib.core.errors import RegistrationError
from toolcrib.core.origins import DELICATE_ROLES, ORIGIN_LEVELS, OriginDeclaration, is_origin, is_pointer
from toolcrib.core.types import (
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
    complete = complete_schema(name, schema)
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


def complete_schema(name: str, schema: Any) -> JsonObject:
    """The schema with its name and parameters filled in; rejects only non-dicts and non-JSON values."""
    if not isinstance(schema, dict):
        raise RegistrationError(
            f"schema of tool {name!r} is a {type(schema).__name__}; "
            "write a dict with 'description' and 'parameters' (a JSON Schema of type object)"
        )
    try:
        text = json.dumps({**schema, "name": name}, allow_nan=False, ensure_ascii=False)
        text.encode()
        # A copy of plain JSON values, which its author cannot change afterwards.
        complete: JsonObject = json.loads(text)
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
