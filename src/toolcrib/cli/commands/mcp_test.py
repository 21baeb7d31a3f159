"""`toolcrib mcp test NAME`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import click

from toolcrib.cli.approval import console_approver
from toolcrib.cli.mcp_servers import ToolView, complete_servers, require_servers
from toolcrib.cli.mcp_trial import AgreedApprover, Step, Trial
from toolcrib.cli.output import clean, note, one_line, person_present, print_json, print_line, stdout_reserved
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject
from toolcrib.dispatch.json_text import BadJson, read_json
from toolcrib.mcp.servers import Server, read_server
from toolcrib.runtime import Runtime


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
    approver = AgreedApprover(console_approver(settings))
    alone = replace(settings, mcp_servers={name: known})
    runtime = Runtime(settings=alone, approver=approver, entry_point="interactive")
    try:
        with stdout_reserved():
            runtime.load()
        if not as_json and not server.problem:
            note(f"Trying {name!r}, which may take up to {known.connect_timeout:g} seconds …")
        on_step = _silent if as_json else _print_step
        trial = Trial(runtime, server, approver, agree=_agreement(yes, as_json), on_step=on_step)
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
    except BadJson as error:
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


def _agreement(yes: bool, as_json: bool) -> Callable[[ToolView], bool] | None:
    """Who says whether a tool that may change something is called; None where nobody can be asked."""
    if not yes and (as_json or not person_present()):
        return None

    def agree(tool: ToolView) -> bool:
        if yes:
            return True
        about = f" ({one_line(tool.description)[:100]})" if tool.description.strip() else ""
        return click.confirm(clean(f"{tool.tool}{about} may change something. Call it?"), default=False, err=True)

    return agree


def _silent(step: Step) -> None:
    """A program reads all steps at the end."""


def _print_step(step: Step) -> None:
    took = f"  ({step.seconds:.2f} s)" if step.seconds >= 0.01 else ""
    detail = f"{step.tool}: {step.detail}" if step.tool else step.detail
    print_line(f"{step.state:<8} {step.name:<10} {one_line(detail)}{took}".rstrip())
    for line in step.lines:
        print_line(f"         | {one_line(line)}")
    if step.advice:
        print_line(f"         to do: {step.advice}")


def _print_verdict(name: str, server: Server, trial: Trial, settings: Settings) -> None:
    wrong = [step for step in trial.steps if step.state == "failed"]
    if not wrong:
        print_line(f"{name!r} works.")
        return
    log = settings.home.log_file.parent / "mcp"
    more = f"; its log is in {log}" if server.transport == "stdio" and not server.problem else ""
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
