"""`toolcrib doctor`."""

from __future__ import annotations

import platform
import sys

import click

from toolcrib.cli.examination import Examination, examine
from toolcrib.cli.output import one_line, plural, print_json, print_line, print_pairs
from toolcrib.version import __version__


@click.command(name="doctor")
@click.option("--online", is_flag=True, help="Also send one small request to the model.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(online: bool, as_json: bool) -> int:
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
