"""`toolcrib doctor`."""

from __future__ import annotations

import platform
import shlex
import sys
from dataclasses import asdict, dataclass, field

import click

from toolcrib.cli.commands.doctor_agent import AgentState, examine_agent
from toolcrib.cli.models import installed_version
from toolcrib.cli.output import one_line, plural, print_json, print_line, print_pairs, stdout_reserved
from toolcrib.cli.runtime import open_runtime, unknown_toolsets
from toolcrib.cli.tool_state import ToolState, lint_command, tool_states
from toolcrib.config.env_file import exposure, load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import check_settings
from toolcrib.config.paths import find_home
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ConfigError
from toolcrib.core.types import JsonObject
from toolcrib.definitions.build import TOO_DEEP, is_too_deep
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.mcp.servers import read_server
from toolcrib.plugins.discover import FoundPlugin, discover_all
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.discovery import LoadedFile
from toolcrib.runtime import Runtime
from toolcrib.version import __version__

EXTRAS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "embedded": "xllamacpp",
    "mcp": "mcp",
    "ssh": "asyncssh",
    "documents": "python-pptx",
    "modal": "modal",
    "daytona": "daytona",
    "vercel": "vercel-sandbox",
}
"""The optional parts of the distribution, each with the package that it needs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is broken, and what to do about it."""

    what: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Examination:
    """The state of one installation. Only `problems` are broken; the rest is there to be read."""

    home: str
    config_file: str
    config_exists: bool
    env_file: str
    env_exists: bool
    safe_mode: bool
    tools: list[ToolState]
    failed_files: list[LoadedFile]
    plugins: list[FoundPlugin]
    packages: dict[str, str]
    """The version of the package behind each extra; empty when it is not installed."""
    servers: dict[str, str]
    """The configured MCP servers, each with the reason why it is not used; empty for one that is."""
    agent: AgentState
    problems: list[Problem] = field(default_factory=list)

    @property
    def unavailable(self) -> list[ToolState]:
        return [state for state in self.tools if not state.outcome.available]

    def as_json(self) -> JsonObject:
        """The object of `doctor --json`; keys are only ever added."""
        return {
            "ok": not self.problems,
            "version": __version__,
            "python": platform.python_version(),
            "home": self.home,
            "config": {"path": self.config_file, "exists": self.config_exists},
            "env_file": {"path": self.env_file, "exists": self.env_exists},
            "safe_mode": self.safe_mode,
            "tools": {
                "available": len(self.tools) - len(self.unavailable),
                "unavailable": [
                    {"name": state.name, "reason": state.outcome.reason, "remedy": state.outcome.remedy}
                    for state in self.unavailable
                ],
            },
            "failed_files": [{"path": str(file.path), "reason": file.problem} for file in self.failed_files],
            "plugins": [
                {"name": plugin.name, "state": plugin.state, "origin": plugin.origin, "problems": [*plugin.problems]}
                for plugin in self.plugins
            ],
            "packages": self.packages,
            "mcp": {"servers": [{"name": name, "problem": problem} for name, problem in self.servers.items()]},
            **self.agent.as_json(),
            "problems": [asdict(problem) for problem in self.problems],
        }


def examine(*, online: bool = False) -> Examination:
    """Look at everything. A broken config does not stop it: the defaults stand in. `online` asks the model too."""
    home = find_home()
    problems = [Problem(problem, "`toolcrib config check`") for problem in check_settings(home)]
    runtime = _runtime()
    exposed = exposure(home)
    problems += [Problem(exposed, f"`chmod 600 {shlex.quote(str(home.env_file))}`")] if exposed else []
    problems += [Problem(problem, f"correct the line in {str(home.env_file)!r}") for problem in runtime.problems]
    failed = [file for file in runtime.loaded_files if file.problem]
    problems += [
        Problem(f"tool file {str(file.path)!r} could not be loaded: {file.problem}", lint_command(file.path))
        for file in failed
    ]
    problems += [
        Problem(sentence, "correct the tool file or plugin that it names") for sentence in runtime.registry.rejections
    ]
    plugins = discover_all(runtime.settings)
    problems += _plugin_problems(plugins, runtime)
    for key, sentence in unknown_toolsets(runtime):
        problems.append(Problem(f"config key {key}: {sentence}", f"`toolcrib config set {key} NAME,NAME`"))
    problems += _schema_problems(runtime)
    problems += _server_problems(runtime.settings)
    agent = examine_agent(runtime.settings, online=online)
    problems += [Problem(what, remedy) for what, remedy in agent.problems()]
    return Examination(
        home=str(home.root),
        config_file=str(home.config_file),
        config_exists=home.config_file.exists(),
        env_file=str(home.env_file),
        env_exists=home.env_file.exists(),
        safe_mode=runtime.settings.safe_mode,
        tools=tool_states(runtime.registry, runtime.registry.entries()),
        failed_files=failed,
        plugins=plugins,
        packages={extra: installed_version(package) for extra, package in EXTRAS.items()},
        servers=_server_problems_by_name(runtime.settings),
        agent=agent,
        problems=problems,
    )


def _runtime() -> Runtime:
    try:
        return open_runtime()
    except ConfigError:
        with stdout_reserved():
            return Runtime(settings=Settings(home=find_home()), registry=default_registry).load(servers=False)


def _plugin_problems(plugins: list[FoundPlugin], runtime: Runtime) -> list[Problem]:
    """What is wrong with the plugins that should be loaded; one that is off harms nobody."""
    enabled = [plugin for plugin in plugins if plugin.state == "enabled"]
    gone = {plugin.name for plugin in enabled if plugin.origin == "missing"}
    said = [(plugin.name, sentence) for plugin in enabled for sentence in plugin.problems]
    for loaded in runtime.loaded_plugins:
        said += [(loaded.name, loaded.problem)] if loaded.problem else []
        said += [(loaded.name, f"{file.path}: {file.problem}") for file in loaded.files if file.problem]
    # What was seen before loading is said again by the loader.
    return [
        Problem(
            f"plugin {name!r}: {sentence}",
            f"`toolcrib plugins disable {name}` takes the name out" if name in gone else "`toolcrib plugins list`",
        )
        for name, sentence in dict.fromkeys(said)
    ]


def _server_problems_by_name(settings: Settings) -> dict[str, str]:
    """What the config says about MCP servers; none of them is asked."""
    variables = dict(environment())
    load_env_file(settings.home, variables)
    return {name: read_server(name, server, variables).problem for name, server in settings.mcp_servers.items()}


def _server_problems(settings: Settings) -> list[Problem]:
    enabled = {name for name, server in settings.mcp_servers.items() if server.enabled}
    found = [
        Problem(f"MCP server {name!r} is not used: {problem}", f"correct mcp_servers.{name} in the config file")
        for name, problem in _server_problems_by_name(settings).items()
        if problem and name in enabled
    ]
    if enabled and not installed_version(EXTRAS["mcp"]):
        what = f"{plural(len(enabled), 'MCP server')} configured, but the package that speaks to them is not installed"
        found.insert(0, Problem(what, "`pip install 'toolcrib[mcp]'`"))
    return found


def _schema_problems(runtime: Runtime) -> list[Problem]:
    found = []
    for entry in runtime.registry.entries():
        if is_too_deep(entry.schema):
            what = f"tool {entry.name!r} of {entry.source} is not offered to models: {TOO_DEEP}"
            found.append(Problem(what, "make its schema flatter"))
            continue
        problem = ArgumentChecker(entry).schema_problem
        if problem:
            what = f"tool {entry.name!r} of {entry.source} has an invalid schema, so its arguments are not checked"
            found.append(Problem(f"{what}: {problem}", f"`toolcrib tools explain {entry.name}`"))
    return found


@click.command(name="doctor")
@click.option("--online", is_flag=True, help="Also send one small request to the model.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def doctor(online: bool, as_json: bool) -> int:
    """Look at everything at once: what works, what does not, what to do first.

    Changes nothing, and asks nobody over the network unless --online is given. Exit code 1 when something is broken; a
    tool that only lacks a key, or an optional package that is not installed, is not broken.

    The object of --json has the keys ok, version, python, home, config, env_file, safe_mode, tools, failed_files,
    plugins, packages, mcp, model, sessions, memory, approvals, terminal, processes, disk and problems (each with what
    and remedy).
    """
    found = examine(online=online)
    if as_json:
        print_json(found.as_json())
    else:
        print_page(found)
    return 1 if found.problems else 0


def print_page(found: Examination) -> None:
    """The whole state on one page, ending in what to do first."""
    print_pairs(
        [
            ("toolcrib", __version__),
            ("python", f"{platform.python_version()} ({sys.executable})"),
            ("home", found.home),
            ("config", found.config_file if found.config_exists else "none, all settings have their defaults"),
            ("keys", found.env_file if found.env_exists else "none entered"),
            *found.agent.pairs(),
            ("tools", _tools(found)),
            ("plugins", _plugins(found)),
            ("packages", [f"{extra}: {version or 'not installed'}" for extra, version in found.packages.items()]),
            ("mcp servers", _servers(found)),
            ("problems", str(len(found.problems)) if found.problems else "none"),
        ]
    )
    for problem in found.problems:
        print_line(f"  - {one_line(problem.what)}")
        if problem.remedy not in problem.what:
            print_line(f"    to do: {problem.remedy}")
    print_line()
    print_line(_first_step(found))


def _tools(found: Examination) -> list[str]:
    total = plural(len(found.tools) - len(found.unavailable), "tool") + " available"
    lines = [total, *(f"{state.name}: {state.outcome.reason}" for state in found.unavailable)]
    return lines if found.unavailable else [f"{total}, none unavailable"]


def _plugins(found: Examination) -> list[str]:
    lines = [f"{plugin.name}: {plugin.state} ({plugin.origin}, {plugin.location or '-'})" for plugin in found.plugins]
    if found.safe_mode:
        lines.append("safe mode is on: none is loaded")
    return lines or ["none"]


def _servers(found: Examination) -> list[str]:
    """The MCP servers, as the config has them; `toolcrib mcp list` asks them."""
    if not found.servers:
        return ["none; `toolcrib mcp add` adds one"]
    unused = [f"{name}: {problem}" for name, problem in found.servers.items() if problem]
    missing = "" if found.packages["mcp"] else "; to use them: `pip install 'toolcrib[mcp]'`"
    return [f"{len(found.servers)} configured, {len(found.servers) - len(unused)} in use{missing}", *unused]


def _first_step(found: Examination) -> str:
    if found.problems:
        return f"Do this first: {found.problems[0].remedy}"
    if found.unavailable:
        state = found.unavailable[0]
        return f"Nothing is broken. To use {state.name}: {state.outcome.remedy}."
    return "Nothing is broken. Type `toolcrib tools list` to see the tools."
