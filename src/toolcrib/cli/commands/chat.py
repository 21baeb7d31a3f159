"""`toolcrib chat`."""

from __future__ import annotations

import click

from toolcrib.cli.output import plural
from toolcrib.cli.state import complete_toolsets, open_runtime, unknown_toolsets
from toolcrib.core.errors import ConfigError, ToolcribError
from toolcrib.runtime import Runtime

NOTHING = "none"


class NoModel(ToolcribError):
    """There is nobody to talk to yet."""


@click.command(name="chat")
@click.option("-q", "--query", metavar="TEXT", help="Ask this one question, print the answer and end.")
@click.option(
    "-t",
    "--toolsets",
    metavar="NAMES",
    shell_complete=complete_toolsets,
    help="Offer only these toolsets, separated by commas; `none` offers no tools.",
)
def command(query: str | None, toolsets: str | None) -> None:
    """Ask the agent a question, which it answers with the help of tools.

    \b
    Examples:
      toolcrib chat -q "Use the weather tool for London"
      toolcrib chat --toolsets web,file
    """
    runtime = open_runtime()
    problems = unknown_toolsets(runtime)
    if problems:
        key, problem = problems[0]
        raise ConfigError(f"{problem}; correct it with `toolcrib config set {key} NAME,NAME`")
    enabled = default_toolsets(runtime) if toolsets is None else _split(toolsets)
    runtime.toolsets.require(enabled)
    definitions = runtime.definitions(enabled, runtime.settings.agent.disabled_toolsets)
    missing = "so nobody can answer the question" if query else "so there is nobody to talk to"
    ready = plural(len(definitions.tools), "tool") if definitions.tools else "no tool"
    raise NoModel(
        f"no model is connected yet, {missing}; {ready} would be offered to one. Until then, "
        "`toolcrib tools list` shows the tools and `toolcrib tools run NAME JSON` calls one"
    )


def default_toolsets(runtime: Runtime) -> list[str]:
    """The toolsets of the config, and those that the user's own tools, plugins and servers bring along.

    An empty list in the config means no tools at all.
    """
    if not runtime.settings.toolsets:
        return []
    brought = {entry.toolset for entry in runtime.registry.entries() if entry.source.kind != "builtin"}
    return list(dict.fromkeys([*runtime.settings.toolsets, *sorted(brought)]))


def _split(names: str) -> list[str]:
    found = [name.strip() for name in names.split(",") if name.strip()]
    return [] if found == [NOTHING] else found
