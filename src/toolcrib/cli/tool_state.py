"""The state of each tool: who provides it, whether it is available, and why not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path

import msgspec

from toolcrib.cli.output import stdout_reserved
from toolcrib.cli.runtime import await_servers
from toolcrib.core.errors import UnknownName, UsageError
from toolcrib.core.types import JsonObject, ToolEntry
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.registry.availability import AVAILABLE, Availability, with_remedy
from toolcrib.registry.discovery import LoadedFile
from toolcrib.registry.lint_code import read_source
from toolcrib.registry.registry import RejectedRegistration, ToolRegistry
from toolcrib.runtime import Runtime


class UnknownTool(UnknownName):
    kind = "tool"


class ToolState(msgspec.Struct, frozen=True):
    """One tool and whether it is available. `entry` is None for a tool that nothing installed provides."""

    name: str
    entry: ToolEntry | None
    outcome: Availability

    def as_json(self, emoji: str) -> JsonObject:
        """The object of `tools list --json`; keys are only ever added."""
        entry = self.entry
        return {
            "name": self.name,
            "toolset": entry.toolset if entry else "",
            "description": entry.description if entry else "",
            "emoji": emoji if entry else "",
            "available": self.outcome.available,
            "reason": self.outcome.reason,
            "remedy": self.outcome.remedy,
            "requires_env": list(entry.requires_env) if entry else [],
            "source": {
                "kind": entry.source.kind,
                "name": entry.source.name,
                "path": entry.source.path,
                "tool": entry.source.tool,
            }
            if entry
            else None,
        }


def tool_states(registry: ToolRegistry, entries: Iterable[ToolEntry]) -> list[ToolState]:
    """The state of each tool; a check that several tools share runs once."""
    asked = list(entries)
    with stdout_reserved():
        outcomes = registry.availability.ask([entry.check_fn for entry in asked if entry.check_fn is not None])
    return [
        ToolState(
            entry.name,
            entry,
            AVAILABLE if entry.check_fn is None else with_remedy(entry, outcomes[entry.check_fn]),
        )
        for entry in asked
    ]


def missing_tool(runtime: Runtime, name: str) -> ToolState | None:
    """Why a tool that is not registered is missing; None for a name that nothing mentions."""
    for loaded in _failed_files(runtime, name):
        return ToolState(name, None, _not_loaded(loaded))
    for one in _rejected(runtime, name):
        return rejected_state(one)
    if name in runtime.toolsets.resolve("all"):
        reason = "toolsets list it, but no tool file, plugin or MCP server provides it"
        remedy = f"enable a plugin that provides it (`toolcrib plugins list`), or write it: `toolcrib tools new {name}`"
        return ToolState(name, None, Availability(False, reason, remedy))
    return None


def unused_declarations(runtime: Runtime, name: str) -> list[str]:
    """Why files that declare a tool, too, do not provide it, as sentences."""
    failed = [f"{str(loaded.path)!r} is not used: {loaded.problem}" for loaded in _failed_files(runtime, name)]
    return failed + [rejection_text(one) for one in _rejected(runtime, name)]


def load_tracebacks(runtime: Runtime, name: str) -> list[str]:
    """Where the files that declare a tool raised while they were loaded."""
    return [loaded.traceback for loaded in _failed_files(runtime, name) if loaded.traceback]


def _failed_files(runtime: Runtime, name: str) -> list[LoadedFile]:
    return [file for file in _all_files(runtime) if file.problem and name in declared_names(file)]


def _all_files(runtime: Runtime) -> list[LoadedFile]:
    return [*runtime.loaded_files, *(file for plugin in runtime.loaded_plugins for file in plugin.files)]


def _not_loaded(file: LoadedFile) -> Availability:
    reason = f"its file {str(file.path)!r} could not be loaded: {file.problem}"
    return Availability(False, reason, f"run {lint_command(file.path)}")


def _rejected(runtime: Runtime, name: str) -> list[RejectedRegistration]:
    return [one for one in dict.fromkeys(runtime.registry.rejected) if one.name == name]


def rejection_text(one: RejectedRegistration) -> str:
    """The reason, after the file and the line unless it names the file itself."""
    return f"{one.place}: {one.reason}" if one.place and one.path not in one.reason else one.reason


def rejected_state(one: RejectedRegistration) -> ToolState:
    """A tool whose file was loaded but which was not accepted."""
    fix = f"run {lint_command(Path(one.path))}" if one.path else "run `toolcrib doctor` to see all rejected tools"
    return ToolState(one.name, None, Availability(False, f"rejected: {rejection_text(one)}", fix))


def refused_states(runtime: Runtime) -> list[ToolState]:
    """The tools that files declare but that nothing provides, because the file or the tool was refused."""
    broken = [file for file in _all_files(runtime) if file.problem]
    found = [ToolState(name, None, _not_loaded(file)) for file in broken for name in sorted(declared_names(file))]
    found += [rejected_state(one) for one in runtime.registry.rejected]
    provided = {entry.name for entry in runtime.registry.entries()}
    return [one for one in {state.name: state for state in reversed(found)}.values() if one.name not in provided]


def lint_command(path: Path) -> str:
    """The command that shows all problems of a tool file."""
    return f"`toolcrib tools lint {shlex.quote(str(path))}`"


def example_command(entry: ToolEntry) -> str:
    """The command that calls a tool, with example arguments that match its schema if there are any."""
    checker = ArgumentChecker(entry)
    _, problem = checker.prepare({})
    text = "{}"
    if problem is not None:
        # The error for something that is no object includes an example of the whole call.
        _, problem = checker.prepare("[]")
        example = problem.example if problem is not None else None
        if example is None:  # none can be made up for a pattern, for instance
            required = entry.parameters.get("required", ())
            text = "{" + ", ".join(f"{json.dumps(one)}: …" for one in required) + "}"
        else:
            text = json.dumps(example, ensure_ascii=False)
    return f"toolcrib tools run {entry.name} {shlex.quote(text)}"


def declared_names(loaded: LoadedFile) -> set[str]:
    """The tools that a broken file declares, as far as its text shows; else the name of the file."""
    try:
        source = read_source(Path(loaded.path).read_text(encoding="utf-8-sig"))
    except (OSError, SyntaxError, ValueError):
        return {loaded.path.stem, loaded.path.stem.removesuffix("_tool")}
    names = [
        found.function.name if found.function and "name" not in found.options else source.value(found.options["name"])
        for found in source.registrations
        if found.function or "name" in found.options
    ]
    return {name for name in names if isinstance(name, str)}


def require_tool(runtime: Runtime, name: str) -> ToolEntry:
    """The tool with this name, ours or its server's; raises UnknownTool with the nearest names, UsageError with the
    reason why a tool that something declares is missing."""
    entry = find_tool(runtime, name)
    if entry is not None:
        return entry
    missing = missing_tool(runtime, name)
    if missing is not None:
        raise UsageError(
            f"tool {name!r} is not available: {missing.outcome.reason}; run `toolcrib tools explain {name}`"
        )
    raise UnknownTool(name, runtime.registry.get_all_tool_names(), advice="`toolcrib tools list` lists them all")


def find_tool(runtime: Runtime, name: str) -> ToolEntry | None:
    """The tool with this name, or with this name on its MCP server: `tool`, `server: tool` or `server/tool`."""
    entry = runtime.registry.get_entry(name)
    if entry is not None:
        return entry
    await_servers(runtime)
    meant = [
        entry
        for entry in runtime.registry.entries()
        if name == entry.name
        or (entry.source.tool and name in (entry.source.tool, entry.title, f"{entry.source.name}/{entry.source.tool}"))
    ]
    if len(meant) > 1:
        names = ", ".join(entry.name for entry in meant)
        raise UsageError(f"several MCP servers have a tool {name!r}; use one of {names}")
    return meant[0] if meant else None
