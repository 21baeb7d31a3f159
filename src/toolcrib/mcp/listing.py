"""The tools that a server lists, one by one: a tool that is wrong costs itself, not the list."""

from __future__ import annotations

from typing import Any

import msgspec
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp_types import Tool
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolcrib.core.types import JsonObject
from toolcrib.dispatch.validation import CompiledSchema
from toolcrib.mcp.untrusted_text import one_line

MAX_TOOLS = 1000
MAX_SCHEMA_CHARS = 200_000
MAX_SCHEMA_DEPTH = 80
FALLBACK_VERSION = "2025-11-25"
_OPTIONAL = ("annotations", "outputSchema", "icons", "title", "_meta", "execution", "description")


class SetAside(msgspec.Struct, frozen=True):
    """A tool that is not offered, and why."""

    tool: str
    reason: str


class Listing(msgspec.Struct, frozen=True):
    """What a server offers."""

    tools: tuple[Tool, ...] = ()
    set_aside: tuple[SetAside, ...] = ()


def mend(result: JsonObject, version: str | None) -> list[SetAside]:
    """Change the raw answer to `tools/list` so that the SDK accepts it; gives what had to be left out."""
    given: list[Any] = result["tools"]
    for tool in given:
        if isinstance(tool, dict):
            _mend_schema(tool)
    are_valid = _problem({**result, "tools": given}, version) == ""
    kept: list[Any] = []
    set_aside: list[SetAside] = []
    for tool in given:
        reason = "" if are_valid else _mended(tool, result, version)
        if not reason and version in MODERN_PROTOCOL_VERSIONS:
            reason = _header_problem(tool)
        if reason:
            name = tool.get("name") if isinstance(tool, dict) else None
            set_aside.append(SetAside(one_line(str(name or "without a name"), 80), reason))
        else:
            kept.append(tool)
    result["tools"] = kept
    return set_aside


def usable(tools: list[Tool], set_aside: list[SetAside]) -> Listing:
    """The tools that can be offered, in the order of their names, and those that cannot."""
    chosen: dict[str, Tool] = {}
    left_out = list(set_aside)
    for tool in tools:
        reason = _why_not(tool, chosen)
        if reason:
            left_out.append(SetAside(one_line(tool.name, 80), reason))
        else:
            chosen[tool.name] = tool
    return Listing(tuple(chosen[name] for name in sorted(chosen)), tuple(left_out))


def _why_not(tool: Tool, chosen: dict[str, Tool]) -> str:
    if not tool.name.strip():
        return "it has no name"
    if tool.name in chosen:
        return "the server lists another tool of that name"
    if len(chosen) >= MAX_TOOLS:
        return f"the server lists more than {MAX_TOOLS} tools"
    if tool.execution is not None and tool.execution.task_support == "required":
        return "it only runs as a task, which toolcrib does not support"
    return schema_problem(tool.input_schema)


def schema_problem(schema: JsonObject) -> str:
    """Why arguments cannot be described by this schema; empty when they can."""
    if depth_of(schema) > MAX_SCHEMA_DEPTH:
        return "its schema is nested too deeply"
    try:
        size = len(msgspec.json.encode(schema))
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        return f"its schema is not JSON: {error}"
    if size > MAX_SCHEMA_CHARS:
        return f"its schema is longer than {MAX_SCHEMA_CHARS} characters"
    problem = CompiledSchema(schema).problem
    return f"its schema is invalid: {one_line(problem, 300)}" if problem else ""


def depth_of(value: Any) -> int:
    """How many objects and lists stand inside each other; not counted beyond what is too many."""
    depth, level = 0, [value]
    while level and depth <= MAX_SCHEMA_DEPTH:
        depth += 1
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


def _mend_schema(tool: JsonObject) -> None:
    """Says "object" where a schema leaves that out, which is what everybody means."""
    schema = tool.get("inputSchema")
    if isinstance(schema, dict) and (schema.get("type") is None or _allows_object(schema["type"])):
        tool["inputSchema"] = {**schema, "type": "object"}


def _allows_object(kind: Any) -> bool:
    return isinstance(kind, list) and "object" in kind


def _header_problem(tool: JsonObject) -> str:
    """What the SDK drops without a word: arguments that are to be sent as headers, and cannot be."""
    schema = tool.get("inputSchema")
    problem = find_invalid_x_mcp_header(schema) if depth_of(schema) <= MAX_SCHEMA_DEPTH else None
    return f"what it wants to have sent as headers cannot be: {one_line(problem, 300)}" if problem else ""


def _mended(tool: Any, result: JsonObject, version: str | None) -> str:
    """Drops what is optional and wrong; says what is wrong with the rest."""
    if not isinstance(tool, dict):
        return "it is no object"
    problem = _problem({**result, "tools": [tool]}, version)
    if not problem:
        return ""
    without = {key: value for key, value in tool.items() if key not in _OPTIONAL}
    if _problem({**result, "tools": [without]}, version):
        return problem
    for key in _OPTIONAL:
        if key in tool and _problem({**result, "tools": [{**without, key: tool[key]}]}, version):
            del tool[key]
    return ""


def _problem(result: JsonObject, version: str | None) -> str:
    try:
        validate_server_result("tools/list", version or FALLBACK_VERSION, result)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"][2:]) or "it"
        return one_line(f"{place}: {first['msg']}", 300)
    except (KeyError, ValueError, RecursionError):
        return ""
    return ""
