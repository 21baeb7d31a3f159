"""`toolcrib tools explain NAME`."""

from __future__ import annotations

import click

from toolcrib.cli.output import print_json, print_pairs
from toolcrib.cli.state import (
    ToolState,
    complete_tools,
    example_command,
    find_tool,
    missing_tool,
    open_runtime,
    require_tool,
    tool_states,
)
from toolcrib.config.environment import unset_variables
from toolcrib.core.types import JsonObject, ToolEntry
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.dispatch.schema import shorten
from toolcrib.runtime import Runtime
from toolcrib.toolsets.reading import EVERYTHING


@click.command(name="explain")
@click.argument("name", metavar="NAME", shell_complete=complete_tools)
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(name: str, as_json: bool) -> None:
    """Say all about one tool: who declared it, whether it is available and why.

    \b
    Example:
      toolcrib tools explain todo

    The object of --json is the one of `tools list --json` with the keys toolsets, parameters, effects, result_limit
    and schema_problem beside it.
    """
    runtime = open_runtime()
    entry = find_tool(runtime, name)
    name = entry.name if entry is not None else name
    state = missing_tool(runtime, name) if entry is None else None
    if state is None:
        [state] = tool_states(runtime.registry, [require_tool(runtime, name)])
    toolsets = toolsets_with(runtime, name)
    if as_json:
        print_json(_as_json(runtime, state, toolsets))
        return
    pairs: list[tuple[str, str | list[str]]] = [
        ("tool", name),
        ("available", _availability(state)),
    ]
    if state.outcome.remedy and not state.outcome.available:
        pairs.append(("what to do", state.outcome.remedy))
    pairs.append(("toolsets", ", ".join(toolsets) or "none"))
    if state.entry is not None:
        pairs[1:1] = [("does", state.entry.description or "its author did not say")]
        pairs += _declaration(runtime, state.entry)
    print_pairs(pairs)


def toolsets_with(runtime: Runtime, tool: str) -> list[str]:
    """Every toolset and preset that resolves to the tool, except the names for everything."""
    names = [name for name in runtime.toolsets.names() if name not in EVERYTHING]
    return [name for name in names if tool in runtime.toolsets.resolve(name)]


def _availability(state: ToolState) -> str:
    word = "yes" if state.outcome.available else "no"
    if not state.outcome.reason:
        return word
    return f"{word}, although {state.outcome.reason}" if state.outcome.available else f"{word}: {state.outcome.reason}"


def _declaration(runtime: Runtime, entry: ToolEntry) -> list[tuple[str, str | list[str]]]:
    pairs: list[tuple[str, str | list[str]]] = [
        ("declared by", f"{entry.source}, in toolset {entry.toolset!r}"),
    ]
    if entry.requires_env:
        unset = unset_variables(entry.requires_env)
        pairs.append(("needs", [f"{key} ({'not set' if key in unset else 'set'})" for key in entry.requires_env]))
    pairs.append(("arguments", _arguments(entry.parameters)))
    problem = ArgumentChecker(entry).schema_problem
    if problem:
        pairs.append(("schema", f"not valid, so arguments are not checked: {problem}"))
    pairs.append(("effects", _effects(entry)))
    pairs.append(("result limit", _limit(runtime, entry)))
    if runtime.has_agent_loop_stub(entry.name):
        pairs.append(("runs in", "a conversation only, whose state it keeps: `toolcrib chat`"))
    else:
        pairs.append(("try it", example_command(entry)))
    return pairs


def _arguments(parameters: JsonObject) -> list[str]:
    properties = parameters.get("properties")
    if not isinstance(properties, dict) or not properties:
        return ["none"]
    required = parameters.get("required", [])
    lines = []
    for name, schema in properties.items():
        about: JsonObject = schema if isinstance(schema, dict) else {}
        words = [_type(about), "required" if name in required else ""]
        if "default" in about:
            words.append(f"default {shorten(about['default'])}")
        head = f"{name} ({', '.join(word for word in words if word)})"
        lines.append(f"{head}: {about['description']}" if about.get("description") else head)
    return lines


def _type(schema: JsonObject) -> str:
    if isinstance(schema.get("enum"), list):
        return "one of " + ", ".join(str(option) for option in schema["enum"])
    kind = schema.get("type", "any value")
    return " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _effects(entry: ToolEntry) -> str:
    if entry.effects is None:
        if entry.source.kind == "mcp":
            return "none declared: you are asked before each call"
        return "none declared: trusted to have none, calls run one after the other"
    if callable(entry.effects):
        return "depend on the arguments of the call"
    if not entry.effects:
        return "none: calls may run beside others"
    return ", ".join(f"{effect.kind} {effect.target}".rstrip() for effect in entry.effects)


def _limit(runtime: Runtime, entry: ToolEntry) -> str:
    limit = entry.max_result_size_chars
    if limit is None:
        return f"{runtime.settings.tool_output.max_result_chars} characters (tool_output.max_result_chars)"
    return "never cut" if limit == float("inf") else f"{limit:g} characters"


def _as_json(runtime: Runtime, state: ToolState, toolsets: list[str]) -> JsonObject:
    entry = state.entry
    limit = entry.max_result_size_chars if entry else None
    return {
        **state.as_json(runtime.registry.get_emoji(state.name)),
        "toolsets": toolsets,
        "parameters": entry.parameters if entry else None,
        "effects": _effects(entry) if entry else "",
        "result_limit": None if limit is None or limit == float("inf") else limit,
        "schema_problem": ArgumentChecker(entry).schema_problem if entry else None,
    }
