"""`toolcrib mcp test NAME`."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from textwrap import wrap

import click

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.cli.approval import console_approver
from toolcrib.cli.chat.symbols import fitted
from toolcrib.cli.console_asker import ConsoleAsker
from toolcrib.cli.mcp_servers import ToolView, complete_servers, require_servers
from toolcrib.cli.mcp_trial import AgreedApprover, Step, Trial
from toolcrib.cli.output import note, on_terminal, one_line, person_present, print_json, print_line, stdout_reserved
from toolcrib.cli.progress_lines import ProgressLines
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.dispatch.coercion import InvalidJson, read_json
from toolcrib.mcp.server_log import ServerLog
from toolcrib.mcp.servers import Server, read_server
from toolcrib.runtime import Runtime

MAX_ABOUT_COLUMNS = 100
Agree = Callable[[ToolView], Awaitable[bool]]


@click.command(name="test")
@click.argument("name", metavar="NAME", shell_complete=complete_servers)
@click.option("--call", "tool", metavar="TOOL", help="Call this tool and print its whole result.")
@click.option("--args", "arguments", metavar="JSON", help="With --call: its arguments, as an object.")
@click.option("--yes", is_flag=True, help="Also call tools that may change something, without a question.")
@click.option("--no-calls", is_flag=True, help="Connect and list, but call nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(name: str, tool: str | None, arguments: str | None, yes: bool, no_calls: bool, as_json: bool) -> int:
    """Try an MCP server, and say what is wrong with it.

    Connects to this one server, lists its tools, resources and prompts, and calls the tools that need no arguments.
    Tools that do not say that they only read are called when you agree, or with --yes. Exit code 1 when something is
    wrong.

    The object of --json has the keys name, ok, protocol_version, tools (how many are offered) and steps (each with
    name, state (ok, failed or skipped), tool, detail, lines, advice, seconds and result).

    \b
    Examples:
      toolcrib mcp test files
      toolcrib mcp test files --call read_text_file --args '{"path": "README.md"}'
    """
    given = _arguments(tool, arguments)
    settings = load_settings()
    known = require_servers(settings, [name])[name]
    if not known.enabled:
        note(f"{name!r} is switched off; it is tried all the same.")
        known = replace(known, enabled=True)
    environ = dict(environment())
    load_env_file(settings.home, environ)
    server = read_server(name, known, environ)
    console = console_approver(settings)
    approver = AgreedApprover(console)
    alone = replace(settings, mcp_servers={name: known})
    progress = None if as_json or not sys.stderr.isatty() else ProgressLines(note)
    runtime = Runtime(settings=alone, approver=approver, entry_point="interactive", on_progress=progress)
    runtime.serve("asker", ConsoleAsker(console))
    try:
        with stdout_reserved():
            runtime.load()
        if not as_json and not server.problem:
            note(f"Trying {name!r}, which may take up to {known.connect_timeout:g} seconds …")
        on_step = _silent if as_json else _print_step
        trial = Trial(runtime, server, approver, agree=_agreement(console, yes, as_json), on_step=on_step)
        trial.all_names = tuple(settings.mcp_servers)
        asyncio.run(_try(trial, tool, given, no_calls))
    finally:
        runtime.close()
    if as_json:
        print_json(_as_json(name, trial))
    else:
        if tool is not None and trial.steps[-1].result:
            print_line(trial.steps[-1].result)
        _print_verdict(name, server, trial, settings)
    return 0 if trial.is_ok else 1


def _arguments(tool: str | None, text: str | None) -> JsonObject:
    if text is not None and tool is None:
        raise UsageError("arguments are for a tool; name it with `--call TOOL`")
    try:
        given = read_json(text or "{}")
    except InvalidJson as error:
        raise UsageError(
            f"the arguments are not JSON: {error}; type `--args` with an object in single quotes"
        ) from error
    if not isinstance(given, dict):
        raise UsageError('the arguments are no object; type `--args` like \'{"path": "."}\'')
    return given


async def _try(trial: Trial, tool: str | None, arguments: JsonObject, no_calls: bool) -> None:
    if not await trial.connect() or no_calls:
        return
    if tool is not None:
        await trial.call(trial.find(tool), arguments, must=True)
    else:
        await trial.call_what_needs_nothing()


def _agreement(console: ConsoleApprover, yes: bool, as_json: bool) -> Agree | None:
    """Who says whether a tool that may change something is called; None where nobody can be asked."""
    if not yes and (as_json or not person_present()):
        return None
    has_enough = False

    async def agree(tool: ToolView) -> bool:
        nonlocal has_enough
        if yes or has_enough:
            return yes
        about = f" ({fitted(one_line(tool.description), MAX_ABOUT_COLUMNS)})" if tool.description.strip() else ""
        question = f"{one_line(tool.tool)}{about} may change something. Call it? [y/n, Enter leaves out the rest] "
        said = await console.ask_line("\n".join(wrap(question, shutil.get_terminal_size().columns - 4)) + " ")
        has_enough = said is None
        return said is not None and said.strip().lower() in ("y", "yes")

    return agree


def _silent(step: Step) -> None:
    """A program reads all steps at the end."""


def _print_step(step: Step) -> None:
    took = f"  ({step.seconds:.2f} s)" if step.seconds >= 0.01 else ""
    detail = f"{step.tool}: {step.detail}" if step.tool else step.detail
    line = f"{step.state:<8} {step.name:<10} {one_line(detail)}".rstrip()
    if step.name == "call" and step.state == "ok" and on_terminal():
        # That there is an answer matters here; `--call` prints all of it.
        line = fitted(line, shutil.get_terminal_size().columns - len(took))
    print_line(line + took)
    for line in step.lines:
        print_line(f"         | {one_line(line)}")
    if step.advice:
        print_line(f"         to do: {step.advice}")


def _print_verdict(name: str, server: Server, trial: Trial, settings: Settings) -> None:
    wrong = [step for step in trial.steps if step.state == "failed"]
    if not wrong:
        print_line(f"{name!r} works.")
        return
    path = ServerLog(settings.home.log_file.parent / "mcp", name).path
    more = f"; its log is {path}" if server.transport == "stdio" and path.exists() else ""
    print_line(f"{name!r} has a problem with: {', '.join(step.name for step in wrong)}{more}.")


def _as_json(name: str, trial: Trial) -> JsonObject:
    view = trial.view
    return {
        "name": name,
        "ok": trial.is_ok,
        "protocol_version": view.status.protocol_version if view is not None else "",
        "tools": len(view.offered) if view is not None else 0,
        "steps": [
            {
                "name": step.name,
                "state": step.state,
                "tool": step.tool,
                "detail": step.detail,
                "lines": list(step.lines),
                "advice": step.advice,
                "seconds": round(step.seconds, 3),
                "result": step.result,
            }
            for step in trial.steps
        ],
    }
