"""`toolcrib tools list`."""

from __future__ import annotations

import click

from toolcrib.cli.output import hint, note, plural, print_json, print_table
from toolcrib.cli.state import ToolState, await_servers, complete_toolsets, missing_tool, open_runtime, tool_states
from toolcrib.runtime import Runtime


@click.command(name="list")
@click.option("--toolset", metavar="NAME", shell_complete=complete_toolsets, help="Only the tools of this toolset.")
@click.option("--all", "everything", is_flag=True, help="Also the tools that toolsets name but nothing here provides.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def command(toolset: str | None, everything: bool, as_json: bool) -> None:
    """List the tools that are here, and say why one is not available.

    \b
    Examples:
      toolcrib tools list
      toolcrib tools list --toolset web --all
      toolcrib tools list --json

    Each object of --json has the keys name, toolset, description, emoji, available, reason, remedy, requires_env and
    source (kind, name, path; null when nothing provides the tool). Keys may be added later, never taken away.
    """
    runtime = open_runtime()
    await_servers(runtime)
    registry = runtime.registry
    if toolset is not None:
        runtime.toolsets.require([toolset])
    wanted = set(runtime.toolsets.select([toolset], None).tool_names) if toolset is not None else None
    chosen = [entry for entry in registry.entries() if wanted is None or entry.name in wanted]
    states = tool_states(registry, chosen)
    named = wanted if wanted is not None else set(runtime.toolsets.resolve("all"))
    missing = sorted(named - {entry.name for entry in registry.entries()})
    if everything:
        found = [missing_tool(runtime, name) for name in missing]
        states = sorted([*states, *(state for state in found if state)], key=lambda state: state.name)
    if as_json:
        print_json([state.as_json(registry.get_emoji(state.name)) for state in states])
        return
    rows = [_row(state, registry.get_emoji(state.name)) for state in states]
    heading = ["name", "toolset", "available", "emoji", "reason"]
    if any(_of_server(state) for state in states):
        heading.append("of server")
        rows = [[*row, _of_server(state)] for row, state in zip(rows, states, strict=True)]
    print_table(heading, rows)
    _note_losses(runtime)
    if any(not state.outcome.available for state in states):
        hint("`toolcrib tools explain NAME` says what to do about a tool that is not available.")
    elif states:
        hint("`toolcrib tools explain NAME` says all about one, and how to call it.")
    if toolset is not None and missing and not everything:
        lacking = f"{plural(len(missing), 'tool')} of toolset {toolset!r}"
        verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        say = hint if states else note
        say(f"{lacking} {verb} not here; `toolcrib tools list --toolset {toolset} --all` shows {them} too.")


def _note_losses(runtime: Runtime) -> None:
    """A tool that somebody just wrote and does not find in the list has a reason."""
    failed = sum(bool(file.problem) for file in runtime.loaded_files)
    refused = len(runtime.registry.rejections)
    losses = [f"{plural(failed, 'tool file')} could not be loaded"] * bool(failed)
    losses += [f"{plural(refused, 'tool')} {'was' if refused == 1 else 'were'} refused"] * bool(refused)
    if losses:
        note(f"{' and '.join(losses)}; `toolcrib doctor` says why.")


def _of_server(state: ToolState) -> str:
    """What the server of a tool calls it; empty for every other tool."""
    return state.entry.title if state.entry is not None and state.entry.source.tool else ""


def _row(state: ToolState, emoji: str) -> list[str]:
    available = "yes" if state.outcome.available else "no"
    if state.entry is None:
        return [state.name, "-", available, "-", state.outcome.reason]
    return [state.name, state.entry.toolset, available, emoji, state.outcome.reason]
