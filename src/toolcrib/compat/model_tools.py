"""`model_tools`: definitions, calls and the async bridge over the default runtime, which importing it loads."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from toolcrib import api
from toolcrib.api import default_runtime
from toolcrib.compat import replaced_calls
from toolcrib.compat.replaced_calls import LegacyCall
from toolcrib.config.environment import unset_variables
from toolcrib.core.types import AGENT_LOOP_TOOLS, SEARCH_TOOLS, JsonObject
from toolcrib.dispatch.coercion import coerce
from toolcrib.registry.default import registry
from toolcrib.registry.registration import current_loading
from toolcrib.registry.results import MAX_ERROR_CHARS, safe_error_text
from toolcrib.toolsets.catalog import LEGACY_TOOLSETS

T = TypeVar("T")

logger = logging.getLogger(__name__)

_AGENT_LOOP_TOOLS = set(AGENT_LOOP_TOOLS)
_READ_SEARCH_TOOLS = replaced_calls.READ_SEARCH_TOOLS
_LEGACY_TOOLSET_MAP = LEGACY_TOOLSETS
_TOOL_ERROR_MAX_LEN = MAX_ERROR_CHARS
# Definitions are not kept; test suites clear this.
_tool_defs_cache: dict[Any, Any] = {}
_TOOL_ERROR_PREFIX = "[TOOL_ERROR] "
_CDATA_SECTION = re.compile(r"<!\[CDATA\[.*?\]\]>", re.DOTALL)

# What the last build offered, by name. A global of the module because callers of the reference system save and
# restore it here; nothing but `execute_code` calls that name no tools reads it.
_last_resolved_tool_names: list[str] = []


def get_tool_definitions(
    enabled_toolsets: Sequence[str] | None = None,
    disabled_toolsets: Sequence[str] | None = None,
    quiet_mode: bool = False,
    skip_tool_search_assembly: bool = False,
) -> list[JsonObject]:
    """The definitions of the available tools, in OpenAI's format, sorted by name. None means all toolsets, [] none."""
    return _compute_tool_definitions(enabled_toolsets, disabled_toolsets, quiet_mode, skip_tool_search_assembly)


def _compute_tool_definitions(
    enabled_toolsets: Sequence[str] | None = None,
    disabled_toolsets: Sequence[str] | None = None,
    quiet_mode: bool = False,
    skip_tool_search_assembly: bool = False,
) -> list[JsonObject]:
    global _last_resolved_tool_names
    if enabled_toolsets is not None and not unset_variables(["HERMES_KANBAN_TASK"]):
        enabled_toolsets = [*enabled_toolsets, "kanban"]
    definitions = default_runtime().definitions(
        enabled_toolsets, disabled_toolsets, defer=not skip_tool_search_assembly
    )
    offered = set(definitions.names) - SEARCH_TOOLS if definitions.deferred else set(definitions.names)
    _last_resolved_tool_names = sorted(offered.union(definitions.deferred))
    if not quiet_mode:
        chosen = "all toolsets" if enabled_toolsets is None else ", ".join(enabled_toolsets) or "no toolset"
        logger.info("%d tools from %s", len(definitions.tools), chosen)
    return definitions.tools


def handle_function_call(
    function_name: str,
    function_args: Mapping[str, Any] | str,
    task_id: str | None = None,
    tool_call_id: str | None = None,
    session_id: str | None = None,
    turn_id: str | None = None,
    api_request_id: str | None = None,
    user_task: str | None = None,
    enabled_tools: Sequence[str] | None = None,
    skip_pre_tool_call_hook: bool = False,
    skip_tool_request_middleware: bool = False,
    tool_request_middleware_trace: Sequence[JsonObject] | None = None,
    enabled_toolsets: Sequence[str] | None = None,
    disabled_toolsets: Sequence[str] | None = None,
) -> Any:
    """Call a tool and return its result text (or multimodal object); an error is a result too, never an exception."""
    if enabled_tools is None and function_name == "execute_code":
        enabled_tools = list(_last_resolved_tool_names)
    # If the caller says that hooks already ran, do not run them again.
    asked_before = skip_pre_tool_call_hook or skip_tool_request_middleware or tool_request_middleware_trace
    if not asked_before and replaced_calls.nothing_is_replaced(registry):
        return api.handle_function_call(
            function_name,
            function_args,
            task_id,
            tool_call_id,
            session_id,
            turn_id,
            api_request_id,
            user_task,
            enabled_tools,
            enabled_toolsets=enabled_toolsets,
            disabled_toolsets=disabled_toolsets,
        )
    call = LegacyCall(
        function_name=function_name,
        function_args=function_args,
        task_id=task_id,
        tool_call_id=tool_call_id,
        session_id=session_id,
        turn_id=turn_id,
        api_request_id=api_request_id,
        user_task=user_task,
        enabled_tools=enabled_tools,
        skip_pre_tool_call_hook=skip_pre_tool_call_hook,
        skip_tool_request_middleware=skip_tool_request_middleware,
        trace=tool_request_middleware_trace or (),
        enabled_toolsets=enabled_toolsets,
        disabled_toolsets=disabled_toolsets,
    )
    return replaced_calls.call_with_replacements(call, registry)


def _emit_post_tool_call_hook(
    *,
    function_name: str,
    function_args: JsonObject | None,
    result: Any,
    task_id: str | None = None,
    session_id: str | None = None,
    tool_call_id: str | None = None,
    turn_id: str | None = None,
    api_request_id: str | None = None,
    duration_ms: float = 0,
    status: str | None = None,
    error_type: str | None = None,
    error_message: str | None = None,
    middleware_trace: Sequence[JsonObject] | None = None,
) -> None:
    """Tell `post_tool_call` how a call ended; without a status, the result says whether it is an error."""
    replaced_calls.tell_post_hook(
        tool_name=function_name,
        args=function_args or {},
        result=result,
        task_id=task_id or "",
        session_id=session_id or "",
        tool_call_id=tool_call_id or "",
        turn_id=turn_id or "",
        api_request_id=api_request_id or "",
        duration_ms=duration_ms,
        status=status,
        error_type=error_type,
        error_message=error_message,
        middleware_trace=list(middleware_trace or ()),
    )


def coerce_tool_args(tool_name: str, args: JsonObject) -> JsonObject:
    """The same dict, with its values converted to the types of the tool's schema without loss."""
    if isinstance(args, dict) and args:
        args.update(replaced_calls.coerced(registry, tool_name, args))
    return args


def _coerce_value(value: Any, expected_type: str | list[str], schema: JsonObject | None = None) -> Any:
    """The value converted to the expected type, or unchanged if the conversion would lose something."""
    wanted = {**(schema or {}), "type": expected_type}
    coerced = coerce({"type": "object", "properties": {"value": wanted}}, {"value": value}).get("value", value)
    # Only whole arguments (`coerce_tool_args`) wrap a lone value in a list, single values do not.
    return value if coerced == [value] else coerced


def _coerce_number(value: str, integer_only: bool = False) -> Any:
    return _coerce_value(value, "integer" if integer_only else "number")


def _coerce_boolean(value: str) -> Any:
    return _coerce_value(value, "boolean")


def _coerce_json(value: str, expected_python_type: type) -> Any:
    """The JSON value in a text if it is of the expected type, else the text."""
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if isinstance(found, expected_python_type) else value


def _schema_allows_null(schema: JsonObject | None) -> bool:
    """Whether null is a value of a schema: by its type, as `nullable`, or in one of its alternatives."""
    if not isinstance(schema, dict):
        return False
    types = schema.get("type")
    named = types == "null" or (isinstance(types, list) and "null" in types) or schema.get("nullable") is True
    return named or any(_schema_allows_null(one) for key in ("anyOf", "oneOf") for one in schema.get(key) or ())


def _run_async(coro: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, from synchronous code in any thread, inside or outside a running loop."""
    return default_runtime().bridge.run(coro)


def _get_tool_loop() -> asyncio.AbstractEventLoop:
    """The persistent loop on which coroutines of the main thread run."""
    return default_runtime().bridge.main_loop()


def _get_worker_loop() -> asyncio.AbstractEventLoop:
    """The persistent loop of the calling thread."""
    return default_runtime().bridge.loop()


def _sanitize_tool_error(error_msg: str | None) -> str:
    """An error text that a model cannot mistake for conversation framing, marked as an error."""
    text = _CDATA_SECTION.sub("", str(error_msg or "")[: _TOOL_ERROR_MAX_LEN * 4])
    return _TOOL_ERROR_PREFIX + safe_error_text(text)


def _clear_tool_defs_cache() -> None:
    """Nothing to do: definitions are never older than the tools, toolsets and checks that they come from."""


def get_all_tool_names() -> list[str]:
    return registry.get_all_tool_names()


def get_toolset_for_tool(tool_name: str) -> str | None:
    return registry.get_toolset_for_tool(tool_name)


def get_available_toolsets() -> dict[str, JsonObject]:
    return registry.get_available_toolsets()


def check_toolset_requirements() -> dict[str, bool]:
    return registry.check_toolset_requirements()


def check_tool_availability(quiet: bool = False) -> tuple[list[str], list[JsonObject]]:
    return registry.check_tool_availability(quiet=quiet)


def __getattr__(name: str) -> Any:
    if name == "TOOL_TO_TOOLSET_MAP":
        return registry.get_tool_to_toolset_map()
    if name == "TOOLSET_REQUIREMENTS":
        return registry.get_toolset_requirements()
    raise AttributeError(f"module 'model_tools' has no attribute {name!r}")


default_runtime()
# A tool file that imports this module during loading must not freeze an incomplete map.
if current_loading() is None:
    TOOL_TO_TOOLSET_MAP = registry.get_tool_to_toolset_map()
    TOOLSET_REQUIREMENTS = registry.get_toolset_requirements()
