"""`toolcrib doctor`: checks the whole installation without changing anything."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import click
from msgspec import Struct, field
from msgspec.structs import asdict

from toolcrib.cli.commands.model_check import ModelState, inspect_model
from toolcrib.cli.models import (
    installed_version,
    megabytes,
)
from toolcrib.cli.output import one_line, plural, print_json, print_line, print_pairs, stdout_reserved
from toolcrib.cli.runtime import add_memory_tools, open_runtime, unknown_toolsets
from toolcrib.cli.tool_state import ToolState, lint_command, rejection_text, tool_states
from toolcrib.config.env_file import exposure, load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import check_settings
from toolcrib.config.paths import find_home
from toolcrib.config.settings import Settings
from toolcrib.core.environments import BackendStatus
from toolcrib.core.errors import ConfigError, UnknownName
from toolcrib.core.types import JsonObject
from toolcrib.definitions.build import TOO_DEEP, is_too_deep
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.environments.create import backend_statuses
from toolcrib.environments.specs import backend_name
from toolcrib.mcp.client.servers import read_server
from toolcrib.plugins.discover import FoundPlugin, discover_all
from toolcrib.plugins.load import with_outcomes
from toolcrib.process_identity import is_alive, own_identity
from toolcrib.processes.ledger import Ledger
from toolcrib.processes.process import ProcessRecord
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.discovery import LoadedFile
from toolcrib.runtime import Runtime
from toolcrib.sessions.health import DatabaseHealth, examine_database
from toolcrib.sessions.memory import TARGETS, MemoryStore, size_of
from toolcrib.version import __version__

LEAST_FREE_BYTES = 50_000_000
SHOWN_SESSIONS = 3
DO_SETUP = "`toolcrib setup`"
REQUIREMENT = re.compile(r"(?P<package>[\w.-]+).*extra == ['\"](?P<extra>[\w-]+)")
NOT_FOR_USERS = ("all", "dev")


def extra_packages() -> dict[str, list[str]]:
    """The extras of the distribution, each with the packages that it installs, its own ones first."""
    found: dict[str, list[str]] = {}
    try:
        requirements = requires("toolcrib") or ()
    except PackageNotFoundError:
        return found  # It runs from its source, without having been installed.
    for requirement in map(REQUIREMENT.match, requirements):
        if requirement is not None and requirement["extra"] not in NOT_FOR_USERS:
            found.setdefault(requirement["extra"], []).append(requirement["package"])
    uses = Counter(package for packages in found.values() for package in packages)
    return {extra: sorted(packages, key=uses.__getitem__) for extra, packages in found.items()}


def _version_of(packages: Sequence[str]) -> str:
    """The version of the first package, if all of them are installed; otherwise empty."""
    versions = [installed_version(package) for package in packages]
    return versions[0] if all(versions) else ""


class InstallationProblem(Struct, frozen=True):
    """Something that is broken, and how to fix it."""

    what: str
    remedy: str


class MemoryFile(Struct, frozen=True, kw_only=True):
    """One memory file."""

    path: str
    entries: int
    chars: int
    limit: int
    left_out: tuple[str, ...]
    """Entries that are hidden from the model, each with the reason."""
    problem: str = ""

    def lines(self) -> list[str]:
        if self.problem:
            return [self.problem]
        count = "1 entry" if self.entries == 1 else f"{self.entries} entries"
        full = f"{count}, {self.chars:,} of {self.limit:,} characters"
        return [f"{Path(self.path).name}: {full}", *self.left_out]

    def as_json(self) -> JsonObject:
        return {
            "path": self.path,
            "entries": self.entries,
            "chars": self.chars,
            "limit": self.limit,
            "left_out": list(self.left_out),
        }


class AgentState(Struct, frozen=True, kw_only=True):
    """Everything that an agent of this home depends on."""

    model: ModelState
    sessions: DatabaseHealth
    memory: tuple[MemoryFile, ...]
    memory_provider: tuple[str, ...]
    approval_mode: str
    yolo: bool
    allowed_for_good: int
    rules: int
    terminal: BackendStatus
    running_processes: int
    orphaned_processes: int
    """Still running, although the toolcrib process that started them is dead."""
    free_bytes: int
    total_bytes: int

    def problems(self) -> list[tuple[str, str]]:
        """What is broken, as pairs of problem and fix."""
        found = []
        if self.model.missing is not None and self.model.is_wanted:
            found.append((self.model.missing.what, self.model.missing.remedy or DO_SETUP))
        if self.model.auxiliary_problem:
            found.append((self.model.auxiliary_problem, "`toolcrib model list` shows their names"))
        if self.sessions.problem:
            path = self.sessions.path
            remedy = self.sessions.remedy or f"`mv {path} {path}.damaged` starts with an empty one"
            found.append((self.sessions.problem, remedy))
        found += [(file.problem, "make the file readable") for file in self.memory if file.problem]
        if not self.terminal.usable:
            what = f"the terminal backend {self.terminal.kind!r} cannot be used: {self.terminal.detail}"
            found.append((what, self.terminal.remedy or "run `toolcrib env list` to see the backends you can use"))
        if self.free_bytes < LEAST_FREE_BYTES:
            found.append((f"only {megabytes(self.free_bytes)} left on the disk of the home folder", "free some space"))
        return found

    def as_json(self) -> JsonObject:
        return {
            "model": self.model.as_json(),
            "sessions": {
                "path": str(self.sessions.path),
                "exists": self.sessions.exists,
                "size_bytes": self.sessions.size_bytes,
                "sessions": self.sessions.sessions,
                "messages": self.sessions.messages,
                "ok": not self.sessions.problem,
                "checked": self.sessions.is_checked,
                "unknown_outcomes": dict(self.sessions.unknown_outcomes),
            },
            "memory": [file.as_json() for file in self.memory],
            "approvals": {
                "mode": self.approval_mode,
                "yolo": self.yolo,
                "allowed_for_good": self.allowed_for_good,
                "rules": self.rules,
            },
            "terminal": {
                "backend": self.terminal.kind,
                "usable": self.terminal.usable,
                "detail": self.terminal.detail,
                "remedy": self.terminal.remedy,
            },
            "processes": {"running": self.running_processes, "orphaned": self.orphaned_processes},
            "disk": {"free_bytes": self.free_bytes, "total_bytes": self.total_bytes},
        }

    def pairs(self) -> list[tuple[str, str | list[str]]]:
        """The report as labels and texts."""
        approvals = (
            f"{self.approval_mode}, {plural(self.allowed_for_good, 'permanent grant')}, {plural(self.rules, 'rule')}"
        )
        state = "" if self.terminal.usable else "cannot be used: "
        processes = f"{self.running_processes} running" if self.running_processes else "none running"
        orphans = [f"{self.orphaned_processes} orphaned by a process that died; the next start ends them"]
        return [
            ("model", self.model.lines()),
            ("sessions", _session_lines(self.sessions)),
            ("memory", [*(line for file in self.memory for line in file.lines()), *self.memory_provider]),
            (
                "approvals",
                f"{approvals}; TOOLCRIB_YOLO is set, so calls run without approval" if self.yolo else approvals,
            ),
            ("terminal", f"{self.terminal.kind}: {state}{self.terminal.detail}"),
            ("processes", [processes, *(orphans if self.orphaned_processes else [])]),
            ("disk", f"{megabytes(self.free_bytes)} free in the home folder"),
        ]


def inspect_agent(settings: Settings, *, online: bool) -> AgentState:
    """Inspect all of it; changes nothing, and uses the network only if `online`."""
    running, provider = _running_processes(settings), settings.memory.provider
    orphaned = [record for record in running if not is_alive(record.owner)]
    usage = shutil.disk_usage(_existing(settings.home.root))
    return AgentState(
        model=inspect_model(settings, online=online),
        sessions=examine_database(settings.home.sessions_file),
        memory=_memory(settings),
        memory_provider=(f"provider: {provider}",) if provider else (),
        approval_mode=settings.approvals.mode,
        yolo=settings.yolo,
        allowed_for_good=len(settings.command_allowlist),
        rules=len(settings.approvals.rules) + len(settings.approvals.deny),
        terminal=_terminal(settings),
        running_processes=len(running) - len(orphaned),
        orphaned_processes=len(orphaned),
        free_bytes=usage.free,
        total_bytes=usage.total,
    )


def _running_processes(settings: Settings) -> list[ProcessRecord]:
    try:
        records = list(Ledger(settings.home.processes_dir, own_identity()).records())
    except OSError:
        return []  # the home itself is reported
    return [record for record in records if record.is_running]


def _memory(settings: Settings) -> tuple[MemoryFile, ...]:
    limits = settings.memory
    store = MemoryStore(settings.home.memories_dir, limits.memory_char_limit, limits.user_char_limit)
    files = []
    for target in TARGETS:
        path = store.path(target)
        try:
            entries = store.entries(target)
            left_out = tuple(str(one) for one in store.load().left_out if one.target == target)
        except OSError as error:
            problem = f"the memory {str(path)!r} cannot be read ({error.strerror or error})"
            files.append(MemoryFile(path=str(path), entries=0, chars=0, limit=0, left_out=(), problem=problem))
            continue
        files.append(
            MemoryFile(
                path=str(path),
                entries=len(entries),
                chars=size_of(entries),
                limit=store.limits[target],
                left_out=left_out,
            )
        )
    return tuple(files)


def _terminal(settings: Settings) -> BackendStatus:
    try:
        kind = backend_name(settings.terminal.backend)
    except UnknownName as error:
        what, _, remedy = str(error).partition("; ")
        return BackendStatus(kind=settings.terminal.backend, usable=False, detail=what, remedy=remedy)
    statuses = asyncio.run(backend_statuses(settings, environment()))
    return next(status for status in statuses if status.kind == kind)


def _session_lines(found: DatabaseHealth) -> list[str]:
    if not found.exists:
        return ["none yet"]
    checked = "" if found.is_checked else ", too large for a full check"
    counts = f"{plural(found.sessions, 'session')}, {plural(found.messages, 'message')}"
    lines = [f"{counts}, {megabytes(found.size_bytes)} in {found.path}{checked}"]
    unknown = found.unknown_outcomes
    if unknown:
        shown = ", ".join(list(unknown)[:SHOWN_SESSIONS]) + (" …" if len(unknown) > SHOWN_SESSIONS else "")
        calls = plural(sum(unknown.values()), "call")
        lines.append(f"the outcome of {calls} is unknown, in {shown}; run `toolcrib sessions show ID` to see them")
    return lines


def _existing(path: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


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
    memory = add_memory_tools(runtime)
    problems += [InstallationProblem(memory, f"`toolcrib setup {runtime.settings.memory.provider}`")] if memory else []
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
        packages={extra: _version_of(packages) for extra, packages in extra_packages().items()},
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
    if enabled and not installed_version("mcp"):
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
    missing = "" if report.packages.get("mcp") else "; to use them: `pip install 'toolcrib[mcp]'`"
    return [f"{len(report.servers)} configured, {len(report.servers) - len(unused)} in use{missing}", *unused]


def _first_step(report: DoctorReport) -> str:
    if report.problems:
        return f"Fix this first: {report.problems[0].remedy}"
    # What the person added comes first; few want every built-in tool.
    added = [one for one in report.unavailable if one.entry is not None and one.entry.source.kind != "builtin"]
    if added:
        return f"Nothing is broken. To use {added[0].name}: {added[0].outcome.remedy}."
    if report.unavailable:
        needy = plural(len(report.unavailable), "tool")
        return f"Nothing is broken. {needy} above need something first: `toolcrib tools explain NAME` says what."
    return "Nothing is broken. Run `toolcrib tools list` to see the tools."
