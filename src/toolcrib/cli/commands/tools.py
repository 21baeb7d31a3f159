"""`toolcrib tools`: lists and explains tools; `tools_run` calls one, `tools_authoring` writes and checks them."""

from __future__ import annotations

from typing import Any

import click

from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import hint, note, plural, print_json, print_pairs, print_table
from toolcrib.cli.runtime import add_memory_tools, await_servers, complete_tools, complete_toolsets, open_runtime
from toolcrib.cli.tool_state import (
    ToolState,
    example_command,
    find_tool,
    missing_tool,
    refused_states,
    require_tool,
    tool_states,
    unused_declarations,
)
from toolcrib.config.environment import unset_variables
from toolcrib.core.types import JsonObject, ToolEntry
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.dispatch.schema import shorten
from toolcrib.runtime import Runtime
from toolcrib.toolsets.resolve import EVERYTHING

group = CommandGroup("tools")


@group.command("list")
@click.option("--toolset", metavar="NAME", shell_complete=complete_toolsets, help="Only tools of this toolset.")
@click.option("--all", "everything", is_flag=True, help="Include tools that toolsets list but nothing provides.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_tools(toolset: str | None, everything: bool, as_json: bool) -> None:
    """List the tools, and why a tool is not available.

    \b
    Examples:
      toolcrib tools list
      toolcrib tools list --toolset web --all
      toolcrib tools list --json

    Each object of --json has the keys name, toolset, description, emoji, available, reason, remedy, requires_env and
    source (kind, name, path; null if nothing provides the tool). Keys may be added, never removed.
    """
    runtime = open_runtime()
    await_servers(runtime)
    add_memory_tools(runtime)
    registry = runtime.registry
    if toolset is not None:
        runtime.toolsets.require([toolset])
    wanted = set(runtime.toolsets.select([toolset], None).tool_names) if toolset is not None else None
    chosen = [entry for entry in registry.entries() if wanted is None or entry.name in wanted]
    states = tool_states(registry, chosen)
    if wanted is None:
        states = sorted([*states, *refused_states(runtime)], key=lambda state: state.name)
    named = wanted if wanted is not None else set(runtime.toolsets.resolve("all"))
    missing = sorted(named - {entry.name for entry in registry.entries()})
    if everything:
        listed = {state.name for state in states}
        found = [missing_tool(runtime, name) for name in missing if name not in listed]
        states = sorted([*states, *(state for state in found if state)], key=lambda state: state.name)
    if as_json:
        print_json([state.as_json(registry.get_emoji(state.name)) for state in states])
        return
    rows = [_row(state, registry.get_emoji(state.name)) for state in states]
    heading = ["name", "toolset", "available", "emoji", "reason"]
    if any(_of_server(state) for state in states):
        heading.append("name on server")
        rows = [[*row, _of_server(state)] for row, state in zip(rows, states, strict=True)]
    print_table(heading, rows)
    _note_losses(runtime)
    if any(not state.outcome.available for state in states):
        hint("Run `toolcrib tools explain NAME` to see how to make a tool available.")
    elif states:
        hint("Run `toolcrib tools explain NAME` for details and how to call a tool.")
    if toolset is not None and missing and not everything:
        absent = f"{plural(len(missing), 'tool')} of toolset {toolset!r}"
        verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        say = hint if states else note
        say(f"{absent} {verb} not installed; run `toolcrib tools list --toolset {toolset} --all` to see {them}.")


def _note_losses(runtime: Runtime) -> None:
    """Mention tools that failed to load, so that nobody searches the list for them in vain."""
    failed = sum(bool(file.problem) for file in runtime.loaded_files)
    refused = len(set(runtime.registry.rejections))
    losses = [f"{plural(failed, 'tool file')} failed to load"] * bool(failed)
    losses += [f"{plural(refused, 'tool')} {'was' if refused == 1 else 'were'} rejected"] * bool(refused)
    if losses:
        note(f"{' and '.join(losses)}; run `toolcrib doctor` to see why.")


def _of_server(state: ToolState) -> str:
    """The name of an MCP tool on its server; empty for other tools."""
    return state.entry.title if state.entry is not None and state.entry.source.tool else ""


def _row(state: ToolState, emoji: str) -> list[str]:
    available = "yes" if state.outcome.available else "no"
    if state.entry is None:
        return [state.name, "-", available, "-", state.outcome.reason]
    return [state.name, state.entry.toolset, available, emoji, state.outcome.reason]


@group.command("explain")
@click.argument("name", metavar="NAME", shell_complete=complete_tools)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def explain_tool(name: str, as_json: bool) -> None:
    """Explain a tool: who declares it, whether it is available, and why.

    \b
    Example:
      toolcrib tools explain todo

    --json prints the object of `tools list --json` with the additional keys toolsets, parameters, effects,
    result_limit, schema_problem and not_used (files that declare the tool, too, and why they do not provide it).
    """
    runtime = open_runtime()
    add_memory_tools(runtime)
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
        pairs.append(("fix", state.outcome.remedy))
    pairs.append(("toolsets", ", ".join(toolsets) or "none"))
    if state.entry is not None:
        pairs[1:1] = [("description", state.entry.description or "none")]
        pairs += _declaration(runtime, state.entry)
        unused = unused_declarations(runtime, name)
        pairs += [("not used", unused)] if unused else []
    print_pairs(pairs)


def toolsets_with(runtime: Runtime, tool: str) -> list[str]:
    """The toolsets and presets that contain the tool, except those that contain everything."""
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
        pairs.append(("schema", f"invalid, so only its valid parts are enforced: {problem}"))
    pairs.append(("effects", _effects(entry)))
    pairs.append(("result limit", _limit(runtime, entry)))
    if runtime.has_agent_loop_stub(entry.name):
        pairs.append(("runs in", "sessions only, because it keeps session state: `toolcrib chat`"))
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


def _type(schema: Any) -> str:
    """The type in words: array of string or null, one of red, blue, object with name, size."""
    if not isinstance(schema, dict):
        return "any value"
    target = schema.get("$ref")
    if isinstance(target, str):
        # Recursive types stay references; the name says enough.
        return target.rpartition("/")[2]
    if isinstance(schema.get("enum"), list):
        return "one of " + ", ".join(str(option) for option in schema["enum"])
    if "const" in schema:
        return f"always {schema['const']}"
    members = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(members, list) and members:
        return " or ".join(dict.fromkeys(_type(member) for member in members))
    kind = schema.get("type", "any value")
    if isinstance(kind, list):
        return " or ".join(_type(schema | {"type": one}) for one in kind)
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"array of {_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    if kind == "object" and isinstance(schema.get("properties"), dict):
        return f"object with {', '.join(schema['properties'])}"
    return str(kind)


def _effects(entry: ToolEntry) -> str:
    if entry.effects is None:
        if entry.source.kind == "mcp":
            return "none declared: each call needs your approval"
        return "none declared: trusted to have none; calls run one at a time"
    if callable(entry.effects):
        return "depend on the arguments"
    if not entry.effects:
        return "none: calls may run in parallel"
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
        "not_used": unused_declarations(runtime, state.name),
    }


group.lazy("run", "tools_run:run_tool", "Call a tool and print its result.")
group.lazy("new", "tools_authoring:new_tool", "Write the first version of a tool or a skill.")
group.lazy("lint", "tools_authoring:lint_tools", "Check tool files against the checklist for authors.")
