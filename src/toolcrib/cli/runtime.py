"""The runtime that commands use: opened with all tools loaded, its MCP servers awaited, its toolset names checked.

The commands that only read the config import this module too, so everything heavy is imported by `open_runtime`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.output import note, plural, stdout_reserved
from toolcrib.core.errors import ConfigError, UnknownName
from toolcrib.toolsets.catalog import SHORT_NAMES

if TYPE_CHECKING:
    from toolcrib.core.approvals import EntryPoint
    from toolcrib.core.ports import Approver
    from toolcrib.runtime import Runtime

SERVERS_SECONDS = 15.0
"""How long a command waits for MCP servers; some are downloaded before they start."""


def open_runtime(approver: Approver | None = None, *, yolo: bool | None = None, servers: bool = False) -> Runtime:
    """The default runtime with all tools loaded; what tool files print while they load goes to stderr.

    With an approver, the runtime is one for a person at a terminal. Pass `servers` to connect the MCP servers, or call
    `await_servers` later.
    """
    # Half of the start-up time of a command; see the docstring of the module.
    from toolcrib.api import default_runtime  # noqa: PLC0415

    entry_point: EntryPoint = "library" if approver is None else "interactive"
    with stdout_reserved():
        return default_runtime(approver, entry_point=entry_point, yolo=yolo, servers=servers)


def add_memory_tools(runtime: Runtime) -> str:
    """Add the tools of the memory provider, which otherwise come with an agent; returns why there are none."""
    if not runtime.settings.memory.provider or runtime.settings.safe_mode:
        return ""
    # Few homes have one.
    from toolcrib.agent.external_memory import ExternalMemory  # noqa: PLC0415

    memory = ExternalMemory(runtime, (), lambda _session: [])
    memory.attach()
    return memory.problem


def await_servers(runtime: Runtime) -> None:
    """Wait a while for the tools of the MCP servers; names the servers that did not connect."""
    settings = runtime.settings
    if not settings.mcp_servers or settings.safe_mode:
        return
    runtime.mcp.start()
    runtime.mcp.wait_ready_sync(max(SERVERS_SECONDS, runtime.mcp.discovery_seconds))
    missing = [one.name for one in runtime.mcp.servers() if one.state not in ("ready", "degraded", "disabled")]
    if missing:
        names = ", ".join(repr(name) for name in missing)
        note(f"no tools yet from {plural(len(missing), 'MCP server')} ({names}); run `toolcrib mcp list` to see why")


def unknown_toolsets(runtime: Runtime) -> list[tuple[str, str]]:
    """The toolset names in the config that do not exist, as pairs of config key and error message."""
    settings = runtime.settings
    named = [("toolsets", name) for name in settings.toolsets]
    named += [("agent.disabled_toolsets", name) for name in settings.agent.disabled_toolsets]
    for own, custom in settings.custom_toolsets.items():
        named += [(f"custom_toolsets.{own}.includes", name) for name in custom.includes]
    found = []
    for key, name in named:
        try:
            runtime.toolsets.require([name])
        except UnknownName as error:
            found.append((key, str(error)))
    return found


def require_known_toolsets(runtime: Runtime, named: Iterable[str] = ()) -> None:
    """Raises for a toolset that does not exist, in the config or among `named`."""
    problems = unknown_toolsets(runtime)
    if problems:
        key, problem = problems[0]
        raise ConfigError(f"{problem}; fix it with `toolcrib config set {key} NAME,NAME`")
    runtime.toolsets.require(named)


def complete_tools(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Tool names for the shell."""
    return matching_names(lambda: open_runtime().registry.get_all_tool_names(), incomplete)


def complete_toolsets(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Toolset names for the shell, short names included."""
    return matching_names(lambda: sorted({*open_runtime().toolsets.names(), *SHORT_NAMES, "all"}), incomplete)
