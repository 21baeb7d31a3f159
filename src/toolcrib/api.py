"""The synchronous API, over one default Runtime that is created on first use."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from toolcrib.core.approvals import EntryPoint
from toolcrib.core.context import ToolContext
from toolcrib.core.ports import Approver
from toolcrib.core.types import JsonObject
from toolcrib.registry.default import registry
from toolcrib.registry.results import call_failed
from toolcrib.runtime import Runtime

logger = logging.getLogger(__name__)

_lock = threading.RLock()
_default: list[Runtime] = []


def default_runtime(
    approver: Approver | None = None,
    *,
    entry_point: EntryPoint = "library",
    yolo: bool | None = None,
    servers: bool = True,
) -> Runtime:
    """The Runtime behind the functions of this module, made on first use and closed at exit.

    `approver` approves dangerous calls; `servers=False` connects no MCP servers. The arguments of the first use apply.
    """
    if _default:
        return _default[0]
    with _lock:
        if not _default:
            runtime = Runtime(registry=registry, approver=approver, entry_point=entry_point, yolo=yolo)
            # Set before loading: a tool file may ask for it while it is imported.
            _default.append(runtime)
            runtime.load(servers=servers)
            atexit.register(reset_default_runtime)
    return _default[0]


def adopt_runtime(runtime: Runtime) -> None:
    """Use this Runtime for the functions of this module; its owner closes it."""
    with _lock:
        reset_default_runtime()
        _default.append(runtime)


def reset_default_runtime() -> None:
    """Close the default Runtime; the next use makes a new one with the settings at that time."""
    with _lock:
        while _default:
            _default.pop().close()


def get_tool_definitions(
    enabled_toolsets: Sequence[str] | None = None,
    disabled_toolsets: Sequence[str] | None = None,
    quiet_mode: bool = False,
    skip_tool_search_assembly: bool = False,
) -> list[JsonObject]:
    """The definitions of the available tools, in OpenAI's format, sorted by name.

    Without `enabled_toolsets`, all toolsets are enabled; an empty list means none. `disabled_toolsets` always wins.
    """
    definitions = default_runtime().definitions(
        enabled_toolsets, disabled_toolsets, defer=not skip_tool_search_assembly
    )
    if not quiet_mode:
        chosen = "all toolsets" if enabled_toolsets is None else f"the toolsets {enabled_toolsets!r}"
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
    skip_pre_tool_call_hook: bool = False,  # noqa: ARG001
    skip_tool_request_middleware: bool = False,  # noqa: ARG001
    tool_request_middleware_trace: Sequence[JsonObject] | None = None,  # noqa: ARG001
    enabled_toolsets: Sequence[str] | None = None,
    disabled_toolsets: Sequence[str] | None = None,
) -> str | JsonObject:
    """Call a tool and return its result text (or multimodal object); an error is a result too, never an exception.

    `enabled_toolsets` and `disabled_toolsets` limit what may be called. The two `skip_` arguments and the trace are
    accepted for compatibility; nothing bypasses the hooks.
    """
    try:
        runtime = _default[0] if _default else default_runtime()
        stub = runtime.stub_for(function_name, function_args)
        if stub is not None:
            return stub
        allowed = None
        if enabled_toolsets is not None or disabled_toolsets is not None:
            allowed = runtime.toolsets.select(enabled_toolsets, disabled_toolsets).tool_names
        keywords: dict[str, Any] | None = None
        if function_name == "execute_code":
            keywords = {"task_id": task_id, "session_id": session_id, "enabled_tools": enabled_tools}
        # Not `runtime.context(…)`, which would pack and unpack its keywords for every call.
        ctx = ToolContext(
            services=runtime.services,
            on_progress=runtime.on_progress,
            tool_name=function_name,
            call_id=tool_call_id or "",
            session_id=session_id or "",
            task_id=task_id or "",
            turn_id=turn_id or "",
            api_request_id=api_request_id or "",
            user_task=user_task or "",
            allowed_tools=allowed,
            handler_kwargs=keywords,
        )
        return runtime.call_sync(function_name, function_args, ctx).content
    except Exception as error:  # the contract: a caller of this function always receives a result
        logger.exception("call to tool %r failed", function_name)
        return call_failed(function_name, error)
