"""`toolcrib doctor`: checks the whole installation without changing anything."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from pathlib import Path

import click
from msgspec import Struct, field
from msgspec.structs import asdict

from toolcrib.cli.commands.doctor_agent import AgentState, inspect_agent
from toolcrib.cli.models import installed_version
from toolcrib.cli.output import one_line, plural, print_json, print_line, print_pairs, stdout_reserved
from toolcrib.cli.runtime import open_runtime, unknown_toolsets
from toolcrib.cli.tool_state import ToolState, lint_command, rejection_text, tool_states
from toolcrib.config.env_file import exposure, load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import check_settings
from toolcrib.config.paths import find_home
from toolcrib.config.settings import Settings
from toolcrib.core.errors import ConfigError
from toolcrib.core.types import JsonObject
from toolcrib.definitions.build import TOO_DEEP, is_too_deep
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.mcp.client.servers import read_server
from toolcrib.plugins.discover import FoundPlugin, discover_all
from toolcrib.plugins.load import with_outcomes
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
    "web": "trafilatura",
    "browser": "playwright",
    "serve": "uvicorn",
    "vision": "pillow",
    "ocr": "rapidocr-onnxruntime",
    "video": "imageio-ffmpeg",
    "speech": "onnxruntime",
    "modal": "modal",
    "daytona": "daytona",
    "vercel": "vercel-sandbox",
    "hermes": "PyYAML",
}
"""The extras of the distribution, each with the package that it installs."""


class InstallationProblem(Struct, frozen=True):
    """Something that is broken, and how to fix it."""

    what: str
    remedy: str


class DoctorReport(Struct, frozen=True, kw_only=True):
    """The state of an installation. Only `problems` are broken; the rest is information."""

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
    """The version of the package behind each extra; empty if it is not installed."""
    servers: dict[str, str]
    """The configured MCP servers, each with the reason why it is not used; empty if it is."""
    agent: AgentState
    problems: list[InstallationProblem] = field(default_factory=list)

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


def inspect_installation(*, online: bool = False) -> DoctorReport:
    """Inspect everything; a broken config is replaced by the defaults. `online` also sends a request to the model."""
    home = find_home()
    problems = [InstallationProblem(problem, "`toolcrib config check`") for problem in check_settings(home)]
    problems += _home_problems(home.root)
    runtime = _runtime()
    exposed = exposure(home)
    problems += [InstallationProblem(exposed, f"`chmod 600 {shlex.quote(str(home.env_file))}`")] if exposed else []
    problems += [
        InstallationProblem(problem, f"fix the line in {str(home.env_file)!r}") for problem in runtime.problems
    ]
    failed = [file for file in runtime.loaded_files if file.problem]
    problems += [
        InstallationProblem(
            f"tool file {str(file.path)!r} could not be loaded: {file.problem}", lint_command(file.path)
        )
        for file in failed
    ]
    problems += [
        InstallationProblem(
            rejection_text(one), lint_command(Path(one.path)) if one.path else "fix the plugin that it names"
        )
        for one in dict.fromkeys(runtime.registry.rejected)
    ]
    plugins = with_outcomes(discover_all(runtime.settings), runtime.loaded_plugins)
    problems += _plugin_problems(plugins)
    for key, sentence in unknown_toolsets(runtime):
        problems.append(InstallationProblem(f"config key {key}: {sentence}", f"`toolcrib config set {key} NAME,NAME`"))
    problems += _schema_problems(runtime)
    problems += _server_problems(runtime.settings)
    agent = inspect_agent(runtime.settings, online=online)
    problems += [InstallationProblem(what, remedy) for what, remedy in agent.problems()]
    return DoctorReport(
        home=str(home.root),
        config_file=str(home.config_file),
        config_exists=os.path.exists(home.config_file),  # noqa: PTH110 - `Path` raises where access is denied
        env_file=str(home.env_file),
        env_exists=os.path.exists(home.env_file),  # noqa: PTH110 - as above
        safe_mode=runtime.settings.safe_mode,
        tools=tool_states(runtime.registry, runtime.registry.entries()),
        failed_files=failed,
        plugins=plugins,
        packages={extra: installed_version(package) for extra, package in EXTRAS.items()},
        servers=_server_problems_by_name(runtime.settings),
        agent=agent,
        problems=problems,
    )


def _home_problems(root: Path) -> list[InstallationProblem]:
    """What keeps toolcrib from writing to its home, without writing to it."""
    try:
        if not root.is_dir() or os.access(root, os.W_OK | os.X_OK):
            return []
    except OSError:
        pass  # a folder above it denies access
    return [InstallationProblem(f"the home {str(root)!r} cannot be written to", f"`ls -ld {shlex.quote(str(root))}`")]


def _runtime() -> Runtime:
    try:
        return open_runtime()
    except ConfigError:
        with stdout_reserved():
            return Runtime(settings=Settings(home=find_home()), registry=default_registry).load(servers=False)


def _plugin_problems(plugins: list[FoundPlugin]) -> list[InstallationProblem]:
    """Problems of the enabled plugins; a disabled one cannot break anything."""
    enabled = [plugin for plugin in plugins if plugin.state in ("enabled", "failed")]
    return [
        InstallationProblem(
            f"plugin {plugin.name!r}: {sentence}",
            f"`toolcrib plugins disable {plugin.name}` removes the name"
            if plugin.origin == "missing"
            else "`toolcrib plugins list`",
        )
        for plugin in enabled
        for sentence in plugin.problems
    ]


def _server_problems_by_name(settings: Settings) -> dict[str, str]:
    """The configured MCP servers with their problems; connects to none of them."""
    variables = dict(environment())
    load_env_file(settings.home, variables)
    return {name: read_server(name, server, variables).problem for name, server in settings.mcp_servers.items()}


def _server_problems(settings: Settings) -> list[InstallationProblem]:
    enabled = {name for name, server in settings.mcp_servers.items() if server.enabled}
    found = [
        InstallationProblem(f"MCP server {name!r} is not used: {problem}", f"fix mcp_servers.{name} in the config file")
        for name, problem in _server_problems_by_name(settings).items()
        if problem and name in enabled
    ]
    if enabled and not installed_version(EXTRAS["mcp"]):
        what = f"{plural(len(enabled), 'MCP server')} configured, but the package `mcp` is not installed"
        found.insert(0, InstallationProblem(what, "`pip install 'toolcrib[mcp]'`"))
    return found


def _schema_problems(runtime: Runtime) -> list[InstallationProblem]:
    found = []
    for entry in runtime.registry.entries():
        if is_too_deep(entry.schema):
            what = f"tool {entry.name!r} of {entry.source} is not offered to models: {TOO_DEEP}"
            found.append(InstallationProblem(what, "make its schema flatter"))
            continue
        problem = ArgumentChecker(entry).schema_problem
        if problem:
            what = f"tool {entry.name!r} of {entry.source} has an invalid schema, so only its valid parts are enforced"
            found.append(InstallationProblem(f"{what}: {problem}", f"`toolcrib tools explain {entry.name}`"))
    return found


@click.command(name="doctor")
@click.option("--online", is_flag=True, help="Also send a small request to the model.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def doctor(online: bool, as_json: bool) -> int:
    """Check the whole installation and show what to fix first.

    Changes nothing, and uses the network only with --online. Exit code 1 if something is broken; a missing key or an
    optional package that is not installed does not count as broken.

    --json prints an object with the keys ok, version, python, home, config, env_file, safe_mode, tools, failed_files,
    plugins, packages, mcp, model, sessions, memory, approvals, terminal, processes, disk and problems (each with what
    and remedy).
    """
    report = inspect_installation(online=online)
    if as_json:
        print_json(report.as_json())
    else:
        print_page(report)
    return 1 if report.problems else 0


def print_page(report: DoctorReport) -> None:
    """Print the report on one page; the last line is what to do first."""
    print_pairs(
        [
            ("toolcrib", __version__),
            ("python", f"{platform.python_version()} ({sys.executable})"),
            ("home", report.home),
            ("config", report.config_file if report.config_exists else "none; all settings have their defaults"),
            ("keys", report.env_file if report.env_exists else "none set"),
            *report.agent.pairs(),
            ("tools", _tools(report)),
            ("plugins", _plugins(report)),
            ("packages", [f"{extra}: {version or 'not installed'}" for extra, version in report.packages.items()]),
            ("mcp servers", _servers(report)),
            ("problems", str(len(report.problems)) if report.problems else "none"),
        ]
    )
    for problem in report.problems:
        print_line(f"  - {one_line(problem.what)}")
        if problem.remedy not in problem.what:
            print_line(f"    fix: {problem.remedy}")
    print_line()
    print_line(_first_step(report))


def _tools(report: DoctorReport) -> list[str]:
    total = plural(len(report.tools) - len(report.unavailable), "tool") + " available"
    by_reason: dict[str, list[str]] = {}
    for state in report.unavailable:
        by_reason.setdefault(state.outcome.reason, []).append(state.name)
    lines = [total, *(f"{_named(names)}: {reason}" for reason, names in by_reason.items())]
    return lines if report.unavailable else [f"{total}, none unavailable"]


def _named(names: list[str]) -> str:
    """The names, or the first ones of many."""
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def _plugins(report: DoctorReport) -> list[str]:
    lines = [f"{plugin.name}: {plugin.state} ({plugin.origin}, {plugin.location or '-'})" for plugin in report.plugins]
    if report.safe_mode:
        lines.append("safe mode is on: no plugin is loaded")
    return lines or ["none"]


def _servers(report: DoctorReport) -> list[str]:
    """The MCP servers in the config; `toolcrib mcp list` connects to them."""
    if not report.servers:
        return ["none; run `toolcrib mcp add` to add one"]
    unused = [f"{name}: {problem}" for name, problem in report.servers.items() if problem]
    missing = "" if report.packages["mcp"] else "; to use them: `pip install 'toolcrib[mcp]'`"
    return [f"{len(report.servers)} configured, {len(report.servers) - len(unused)} in use{missing}", *unused]


def _first_step(report: DoctorReport) -> str:
    if report.problems:
        return f"Fix this first: {report.problems[0].remedy}"
    if report.unavailable:
        state = report.unavailable[0]
        return f"Nothing is broken. To use {state.name}: {state.outcome.remedy}."
    return "Nothing is broken. Run `toolcrib tools list` to see the tools."
