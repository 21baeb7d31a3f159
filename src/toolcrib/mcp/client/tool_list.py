"""Reads the tool list of a server: an invalid tool is rejected on its own, not together with the whole list.

Schemas come from the server, so validating against them must be cheap: choices that refer to further choices double
with every step, and forty lines can mean a trillion comparisons. Output schemas are checked here as well, because the
SDK would run the server's patterns, which may never finish, on the loop that all servers share.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp_types import CallToolResult, Tool
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolcrib.core.types import JsonObject
from toolcrib.dispatch.schema import CompiledSchema
from toolcrib.mcp.client.untrusted_text import one_line

MAX_TOOLS = 1000
MAX_LIST_CHARS = 4_000_000
"""Of all tools of a server; a model could read only a small part of that."""
MAX_TOOL_CHARS = 400_000
MAX_SCHEMA_CHARS = 200_000
MAX_CHECK_SECONDS = 3.0
MAX_SCHEMA_DEPTH = 80
FALLBACK_VERSION = "2025-11-25"
_OPTIONAL = ("annotations", "outputSchema", "icons", "title", "_meta", "execution", "description")


class RejectedTool(msgspec.Struct, frozen=True):
    """A tool that is not registered, and why."""

    tool: str
    reason: str


class ToolListing(msgspec.Struct, frozen=True):
    """The tools of a server."""

    tools: tuple[Tool, ...] = ()
    rejected: tuple[RejectedTool, ...] = ()


class RepairedPage(msgspec.Struct, frozen=True):
    """The outcome of repairing one page of a tool list."""

    rejected: list[RejectedTool]
    chars: int
    """The length of what was read."""


def repair_tool_page(result: JsonObject, version: str | None, room: int = MAX_LIST_CHARS) -> RepairedPage:
    """Repair the raw result of `tools/list` in place so that the SDK accepts it, keeping at most `room` characters."""
    given, rejected, chars = _first(result["tools"], room)
    for tool in given:
        if isinstance(tool, dict):
            _repair_schema(tool)
    are_valid = _problem({**result, "tools": given}, version) == ""
    kept: list[Any] = []
    for tool in given:
        reason = "" if are_valid else _repair_tool(tool, result, version)
        if not reason and version in MODERN_PROTOCOL_VERSIONS:
            reason = _header_problem(tool)
        if reason:
            rejected.append(RejectedTool(_name_of(tool), reason))
        else:
            kept.append(tool)
    result["tools"] = kept
    return RepairedPage(rejected, chars)


def _first(tools: list[Any], room: int) -> tuple[list[Any], list[RejectedTool], int]:
    """The tools up to the limits, those left out, and the length of the former; a list may be endless."""
    kept: list[Any] = []
    rejected: list[RejectedTool] = []
    chars = 0
    for number, tool in enumerate(tools):
        size = _chars_of(tool)
        if len(kept) >= MAX_TOOLS or number >= 2 * MAX_TOOLS or chars + min(size, MAX_TOOL_CHARS) > room:
            left = f"{len(tools) - number} tools"
            return kept, [*rejected, RejectedTool(left, f"the server lists too many tools: {left} were left out")], room
        if size > MAX_TOOL_CHARS:
            rejected.append(RejectedTool(_name_of(tool), f"its definition is longer than {MAX_TOOL_CHARS} characters"))
        else:
            kept.append(tool)
            chars += size
    return kept, rejected, chars


def _name_of(tool: Any) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return one_line(str(name or "unnamed")[:1000], 80)


def _chars_of(tool: Any) -> int:
    try:
        return len(msgspec.json.encode(tool))
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return 0  # It is rejected for that later.


async def select_tools(tools: list[Tool], rejected: list[RejectedTool]) -> ToolListing:
    """The valid tools, sorted by name, and the rejected ones.

    Other tasks run between two tools: schemas can take long to check, and some are made to.
    """
    chosen: dict[str, Tool] = {}
    left_out = list(rejected)
    spent = 0.0
    for tool in tools:
        began = time.perf_counter()
        reason = (
            _tool_problem(tool, chosen) if spent < MAX_CHECK_SECONDS else "the schemas before it took too long to check"
        )
        if reason:
            left_out.append(RejectedTool(one_line(tool.name, 80), reason))
        else:
            chosen[tool.name] = tool
        spent += time.perf_counter() - began
        await asyncio.sleep(0)
    return ToolListing(tuple(chosen[name] for name in sorted(chosen)), tuple(left_out))


def _tool_problem(tool: Tool, chosen: dict[str, Tool]) -> str:
    if not tool.name.strip():
        return "it has no name"
    if tool.name in chosen:
        return "the server lists another tool with that name"
    if len(chosen) >= MAX_TOOLS:
        return f"the server lists more than {MAX_TOOLS} tools"
    if tool.execution is not None and tool.execution.task_support == "required":
        return "it only runs as a task, which toolcrib does not support"
    return schema_problem(tool.input_schema)


def schema_problem(schema: JsonObject) -> str:
    """Why a schema cannot describe arguments; empty if it can."""
    if depth_of(schema) > MAX_SCHEMA_DEPTH:
        return "its schema is nested too deeply"
    try:
        size = len(msgspec.json.encode(schema))
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        return f"its schema is not JSON: {error}"
    if size > MAX_SCHEMA_CHARS:
        return f"its schema is longer than {MAX_SCHEMA_CHARS} characters"
    costly = cost_problem(schema)
    if costly:
        return f"its schema {costly}"
    problem = CompiledSchema(schema).problem
    return f"its schema is invalid: {one_line(problem, 300)}" if problem else ""


def depth_of(value: Any) -> int:
    """The nesting depth of objects and lists, counted only up to the limit."""
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


def _repair_schema(tool: JsonObject) -> None:
    """Add the type "object" to a schema without one, which is what everybody means."""
    schema = tool.get("inputSchema")
    if isinstance(schema, dict) and (schema.get("type") is None or _allows_object(schema["type"])):
        tool["inputSchema"] = {**schema, "type": "object"}


def _allows_object(kind: Any) -> bool:
    return isinstance(kind, list) and "object" in kind


def _header_problem(tool: JsonObject) -> str:
    """Invalid header arguments, for which the SDK would drop the tool silently."""
    schema = tool.get("inputSchema")
    problem = find_invalid_x_mcp_header(schema) if depth_of(schema) <= MAX_SCHEMA_DEPTH else None
    return f"its arguments cannot be sent as headers: {one_line(problem, 300)}" if problem else ""


def _repair_tool(tool: Any, result: JsonObject, version: str | None) -> str:
    """Drop invalid optional fields; returns what is wrong with the rest."""
    if not isinstance(tool, dict):
        return "it is not an object"
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


MAX_COMPARISONS = 20_000
MAX_PATTERNS = 50
MAX_PATTERN_CHARS = 1000
MAX_OTHER_REFERENCES = 20
"""References that are not paths within the document; these are not followed."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# These apply to the same value again; all other keywords apply to a part of it.
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "extends")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")


def cost_problem(schema: JsonObject, *, whole: bool = False) -> str:
    """Why validating against a schema would cost too much, as the end of a sentence; empty if it would not.

    `whole`: the author of the schema also sends the values, so their parts count as well.
    """
    nodes = list(_objects(schema))
    patterns = [pattern for node in nodes for pattern in _patterns(node)]
    if len(patterns) > MAX_PATTERNS or any(len(pattern) > MAX_PATTERN_CHARS for pattern in patterns):
        return f"contains more than {MAX_PATTERNS} patterns, or one longer than {MAX_PATTERN_CHARS} characters"
    references = [node[key] for node in nodes for key in _REFERENCES if isinstance(node.get(key), str)]
    if sum(not text.startswith("#/") and text != "#" for text in references) > MAX_OTHER_REFERENCES:
        return f"contains more than {MAX_OTHER_REFERENCES} references that do not point into itself"
    if references and _comparisons(schema, nodes, whole) > MAX_COMPARISONS:
        return "refers to itself in too many ways"
    return ""


def _objects(value: Any) -> Iterator[JsonObject]:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
        if isinstance(one, (dict, list)):
            left += one.values() if isinstance(one, dict) else one


def _patterns(node: JsonObject) -> list[str]:
    found = [node["pattern"]] if isinstance(node.get("pattern"), str) else []
    keyed = node.get("patternProperties")
    return found + (list(keyed) if isinstance(keyed, dict) else [])


def _comparisons(schema: JsonObject, nodes: list[JsonObject], whole: bool) -> float:
    """The most schema objects that one value is compared with, each counted once per path to it."""
    known: dict[int, float] = {}
    for start in [schema] if whole else nodes:
        if id(start) in known:
            continue
        inner = list(_next(schema, start, whole))
        path = {id(start): (inner, iter(inner))}
        while path:
            at, (inner, left) = next(reversed(path.items()))
            further = next((one for one in left if id(one) not in known), None)
            if further is None:
                known[at] = 1 + sum(known[id(one)] for one in inner)
                del path[at]
            elif id(further) in path:
                return math.inf
            else:
                beyond = list(_next(schema, further, whole))
                path[id(further)] = (beyond, iter(beyond))
    return max(known.values(), default=0)


def _next(schema: JsonObject, node: JsonObject, whole: bool) -> Iterator[JsonObject]:
    for key, value in node.items():
        if key in _REFERENCES and isinstance(value, str):
            target = _target(schema, value)
            if target is not None:
                yield target
        elif key in _IN_PLACE_MAPS and isinstance(value, dict):
            yield from _nearest(list(value.values()))
        elif whole or key in _IN_PLACE:
            yield from _nearest(value)


def _nearest(value: Any) -> Iterator[JsonObject]:
    """The value itself if it is an object, or the objects of a list."""
    if isinstance(value, dict):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _nearest(one)


def _target(schema: JsonObject, reference: str) -> JsonObject | None:
    found: Any = schema
    for step in unquote(reference).removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found if isinstance(found, dict) else None


MAX_CHECKED_CHARS = 200_000
"""A longer result is not validated."""


class OutputSchemas:
    """The output schemas of the tools of one connection. One that is invalid or too costly is ignored."""

    def __init__(self) -> None:
        self._schemas: dict[str, JsonObject] = {}
        self._compiled: dict[str, CompiledSchema] = {}

    def extract(self, tools: list[Any], *, only_objects: bool) -> None:
        """Remove the output schemas from a raw list of tools, so that the SDK does not see them.

        `only_objects`: the protocol version allows no other structured content.
        """
        for tool in tools:
            schema = tool.pop("outputSchema", None) if isinstance(tool, dict) else None
            name = tool.get("name") if isinstance(tool, dict) else None
            if isinstance(name, str):
                self._compiled.pop(name, None)
                self._schemas.pop(name, None)
                if isinstance(schema, dict) and (schema.get("type") == "object" or not only_objects):
                    self._schemas[name] = schema

    def problem(self, tool: str, result: CallToolResult) -> str:
        """Why a result does not match its output schema; empty if it does."""
        if result.is_error or tool not in self._schemas:
            return ""
        content = result.structured_content
        if content is None:
            return "it declares structured output and returned none"
        compiled = self._compiled.get(tool)
        if compiled is None:
            compiled = self._compiled[tool] = CompiledSchema(_usable_schema(self._schemas[tool]))
        if compiled.problem is not None or _is_long(content):
            return ""
        error = None if compiled.is_valid(content) else next(compiled.errors(content), None)
        if error is None:
            return ""
        return f"its structured output does not match its schema: {one_line(error.message, 300)}"


def _usable_schema(schema: JsonObject) -> JsonObject:
    """The schema, or one that allows everything if validation would cost too much."""
    try:
        is_long = len(msgspec.json.encode(schema)) > MAX_SCHEMA_CHARS
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return {}
    return {} if is_long or depth_of(schema) > MAX_SCHEMA_DEPTH or cost_problem(schema, whole=True) else schema


def _is_long(content: Any) -> bool:
    try:
        return len(msgspec.json.encode(content)) > MAX_CHECKED_CHARS
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return True
