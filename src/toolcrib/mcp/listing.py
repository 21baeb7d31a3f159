"""The tools that a server lists, one by one: a tool that is wrong costs itself, not the list."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp_types import Tool
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolcrib.core.types import JsonObject
from toolcrib.dispatch.schema import CompiledSchema
from toolcrib.mcp.schema_cost import too_costly
from toolcrib.mcp.untrusted_text import one_line

MAX_TOOLS = 1000
MAX_LIST_CHARS = 4_000_000
"""Of all tools of a server; a model could read a small part of that."""
MAX_TOOL_CHARS = 400_000
MAX_SCHEMA_CHARS = 200_000
JUDGING_SECONDS = 3.0
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


class Mended(msgspec.Struct, frozen=True):
    """What came of one page of a list."""

    set_aside: list[SetAside]
    chars: int
    """How long it is, as far as it was looked at."""


def mend(result: JsonObject, version: str | None, room: int = MAX_LIST_CHARS) -> Mended:
    """Change the raw answer to `tools/list` so that the SDK accepts it; at most `room` characters of it are kept."""
    given, set_aside, chars = _first(result["tools"], room)
    for tool in given:
        if isinstance(tool, dict):
            _mend_schema(tool)
    are_valid = _problem({**result, "tools": given}, version) == ""
    kept: list[Any] = []
    for tool in given:
        reason = "" if are_valid else _mended(tool, result, version)
        if not reason and version in MODERN_PROTOCOL_VERSIONS:
            reason = _header_problem(tool)
        if reason:
            set_aside.append(SetAside(_name_of(tool), reason))
        else:
            kept.append(tool)
    result["tools"] = kept
    return Mended(set_aside, chars)


def _first(tools: list[Any], room: int) -> tuple[list[Any], list[SetAside], int]:
    """As many tools of a list as anybody could use, what is left out, and their length; a list may be without end."""
    kept: list[Any] = []
    set_aside: list[SetAside] = []
    chars = 0
    for number, tool in enumerate(tools):
        size = _chars_of(tool)
        if len(kept) >= MAX_TOOLS or number >= 2 * MAX_TOOLS or chars + min(size, MAX_TOOL_CHARS) > room:
            left = f"{len(tools) - number} tools"
            return kept, [*set_aside, SetAside(left, f"the server lists more than anybody could use: {left}")], room
        if size > MAX_TOOL_CHARS:
            set_aside.append(SetAside(_name_of(tool), f"it is described in more than {MAX_TOOL_CHARS} characters"))
        else:
            kept.append(tool)
            chars += size
    return kept, set_aside, chars


def _name_of(tool: Any) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return one_line(str(name or "without a name")[:1000], 80)


def _chars_of(tool: Any) -> int:
    try:
        return len(msgspec.json.encode(tool))
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return 0  # It is set aside for that.


async def usable(tools: list[Tool], set_aside: list[SetAside]) -> Listing:
    """The tools that can be offered, in the order of their names, and those that cannot.

    Others get their turn between two tools: schemas take long to read, and some are made to.
    """
    chosen: dict[str, Tool] = {}
    left_out = list(set_aside)
    spent = 0.0
    for tool in tools:
        began = time.perf_counter()
        reason = _why_not(tool, chosen) if spent < JUDGING_SECONDS else "the schemas before it took too long to read"
        if reason:
            left_out.append(SetAside(one_line(tool.name, 80), reason))
        else:
            chosen[tool.name] = tool
        spent += time.perf_counter() - began
        await asyncio.sleep(0)
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
    costly = too_costly(schema)
    if costly:
        return f"its schema {costly}"
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
