"""`toolcrib mcp test`: checks an MCP server step by step, from its start to its tools, and suggests fixes."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import click
import msgspec
from msgspec.structs import replace

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.cli.chat.symbols import fitted
from toolcrib.cli.commands.mcp import ServerView, ToolView, complete_servers, inspect_servers, require_servers, tools_of
from toolcrib.cli.console import ConsoleAsker, ProgressLines, console_approver
from toolcrib.cli.output import (
    is_interactive,
    note,
    one_line,
    plural,
    print_json,
    print_line,
    stdout_is_terminal,
    stdout_reserved,
)
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.core.errors import ToolcribError, UnknownName, UsageError
from toolcrib.core.ports import Approver
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.dispatch.coercion import InvalidJson, read_json
from toolcrib.mcp.client.server_process import ServerLog
from toolcrib.mcp.client.servers import Server, ServerStatus, read_server
from toolcrib.mcp.names import component, plain_name
from toolcrib.runtime import Runtime

LOG_LINES = 6
LOG_BYTES = 8000
ON_STDOUT = "[on stdout, no message]"
"""The log's mark for output on stdout that is no protocol message."""
INSTALL = {
    "npx": "install Node.js, which includes npx",
    "node": "install Node.js",
    "uvx": "install uv, which includes uvx: `pip install uv`",
    "uv": "install uv: `pip install uv`",
    "docker": "install Docker, or install Podman and use podman instead",
    "deno": "install Deno",
    "bunx": "install Bun, which includes bunx",
}
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PAT|URL)\b")
_STATUS = re.compile(r"HTTP (\d{3})")
CALL_SECONDS = 30.0
LIST_SECONDS = 20.0
OTHER_TRANSPORT_SECONDS = 8.0
END_SECONDS = 5.0
"""How long it may take to end a server that did not respond in time."""
CLOCK_SECONDS = 0.1
"""How far the clock of a file system may lag behind."""
MAX_CALLS = 25
MAX_SHOWN_CHARS = 120
MODERN = "2026-07-28"
ADD_YES = "add --yes to call it"
FAILURES = {
    "config": "load its config",
    "start": "start",
    "connect": "connect",
    "greet": "initialise",
    "tools": "list its tools",
    "resources": "list its resources",
    "prompts": "list its prompts",
    "call": "answer a call",
}
"""What a server failed to do, by the name of the step."""
StepState = Literal["ok", "failed", "skipped"]
MAX_ABOUT_COLUMNS = 100
ConfirmCall = Callable[[ToolView], Awaitable[bool]]


def log_tail(folder: Path, server: str, since: float) -> list[str]:
    """The last lines that the server process logged since then."""
    path = ServerLog(folder, server).path
    try:
        if path.stat().st_mtime < since:
            return []
        text = path.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace")
    except OSError:
        return []
    of_this_start = text.rpartition("\n--- ")[2] if "\n--- " in text else text.removeprefix("--- ")
    return [line for line in of_this_start.splitlines()[1:] if line.strip()][-LOG_LINES:]


def suggest_fix(server: Server, error: str, words: list[str]) -> str:
    """How to fix the error, in one sentence."""
    return _about_http(server, error) if server.transport != "stdio" else _about_process(server, error, words)


def _about_process(server: Server, error: str, words: list[str]) -> str:
    name, command = server.name, server.settings.command
    output = "\n".join(words)
    key = f"mcp_servers.{name}"
    if "was not found" in error:
        program = Path(command).name
        return INSTALL.get(program, f"install {program!r}, or set its full path: `toolcrib config set {key}.command …`")
    if "could not be started" in error:
        return f"make sure that {command!r} is an executable"
    if "is not installed" in error or "does not exist" in error:
        return ""  # The error already says how to fix it.
    if ON_STDOUT in output:
        return "it prints text on stdout, which is for messages only: start the server itself, with its stdio option"
    if "did not answer in time" in error:
        return f"if it is just slow, allow more time: `toolcrib config set {key}.connect_timeout 120`"
    variables = list(dict.fromkeys(_VARIABLE.findall(output)))
    if variables:
        first = variables[0]
        return f"it mentions {', '.join(variables)}; set it with `toolcrib config set {key}.env.{first} …`"
    if "E404" in output or "No matching distribution" in output:
        return f"the package was not found; check the spelling in {key}.args"
    if "exit code 127" in error:
        return "it needs a program that is not installed; install it"
    # With the names of the variables, not with the secrets in them.
    line = server.address
    if any(word in error for word in ("exit code", "ended by", "closed its", "has just gone")):
        return f"run its command yourself to see why it exits: `{line}`"
    return f"is it an MCP server? its command is `{line}`"


def _about_http(server: Server, error: str) -> str:
    url, key = server.address, f"mcp_servers.{server.name}"
    if "`toolcrib mcp login" in error:
        return ""  # The error already says how to fix it.
    found = _STATUS.search(error)
    status = int(found[1]) if found else 0
    if status in (401, 403):
        if server.settings.auth == "oauth":
            return f"log in: `toolcrib mcp login {server.name}`"
        again = f"toolcrib mcp add {server.name} --replace --url {shlex.quote(url)}"
        return (
            f"send a token (`{again} --header 'Authorization: Bearer …'`) "
            f"or log in (`toolcrib config set {key}.auth oauth`, then `toolcrib mcp login {server.name}`)"
        )
    if status in (400, 404, 405, 406, 410):
        return f"there is no MCP server at this path; check {key}.url, which often ends in /mcp or /sse"
    if status >= 500:
        return "the server itself failed; try again later, or check its log"
    if "CERTIFICATE" in error.upper():
        return "its certificate is not trusted; if it is your own, set SSL_CERT_FILE to the file of its authority"
    if "WRONG_VERSION" in error or "record layer" in error.lower():
        return f"it does not use TLS; write http:// instead of https:// in {key}.url"
    if "no connection" in error or "Name or service" in error:
        return "nothing responds at this address; is the server running, and is the host correct?"
    if "did not answer in time" in error or "in time" in error:
        return f"if it is just slow, allow more time: `toolcrib config set {key}.connect_timeout 120`"
    if "is not installed" in error:
        return ""
    return f"is there an MCP server at {url}?"


class CheckStep(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step of the check."""

    name: str
    """start or connect, greet, tools, resources, prompts, call"""
    state: StepState
    tool: str = ""
    """The tool that was called."""
    detail: str = ""
    lines: tuple[str, ...] = ()
    """Further details."""
    advice: str = ""
    seconds: float = 0.0
    result: str = ""
    """The whole result of a tool."""


class UnknownServerTool(UnknownName):
    kind = "tool"


class PreapprovingApprover:
    """Approves the calls that the person confirmed in advance, and asks about all others."""

    def __init__(self, otherwise: Approver) -> None:
        self.agreed: set[str] = set()
        self._otherwise = otherwise

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        if request.tool in self.agreed:
            return ApprovalAnswer(choice="once", decided_by="user")
        return await self._otherwise.ask(request)


class ServerCheck:
    """The check of one server; `steps` holds the results."""

    def __init__(
        self,
        runtime: Runtime,
        server: Server,
        approver: PreapprovingApprover,
        *,
        agree: Callable[[ToolView], Awaitable[bool]] | None,
        on_step: Callable[[CheckStep], None],
    ) -> None:
        """`agree` decides whether to call a tool that may change something; None if nobody can be asked."""
        self.steps: list[CheckStep] = []
        self.view: ServerView | None = None
        self.all_names: tuple[str, ...] = (server.name,)
        """The names of all servers in the config."""
        self._runtime = runtime
        self._server = server
        self._approver = approver
        self._agree = agree
        self._on_step = on_step

    @property
    def is_ok(self) -> bool:
        return all(step.state != "failed" for step in self.steps)

    async def connect(self) -> bool:
        """Start or reach the server, initialise it, and list what it offers."""
        if self._server.problem:
            self._add(CheckStep(name="config", state="failed", detail=self._server.problem))
            return False
        hub, name = self._runtime.mcp, self._server.name
        began = time.monotonic()
        hub.start()
        await hub.wait_ready(self._server.settings.connect_timeout + END_SECONDS)
        status = hub.servers()[0]
        if status.state != "ready":
            self._add(await self._failed(status, time.monotonic() - began))
            return False
        self._add(self._reached(status, time.monotonic() - began))
        try:
            about = await hub.use(name, _about, LIST_SECONDS)
        except (ToolcribError, TimeoutError) as error:
            self._add(CheckStep(name="greet", state="failed", detail=str(error)))
            return False
        self._add(_greeted(about, status))
        self.view = ServerView(status=status, tools=await tools_of(hub, self._runtime.registry, status))
        self._add(self._listed(self.view))
        for kind in ("resources", "prompts"):
            self._add(_counted(kind, about[kind]))
        return True

    async def call_tools_without_arguments(self) -> None:
        """Call the tools that need no arguments: read-only ones, and others if the person agrees."""
        offered = self.view.offered if self.view is not None else []
        able = [tool for tool in offered if self._needs_no_arguments(tool)]
        left = [tool for tool in able if self._agree is None and not _is_harmless(tool)]
        called = [tool for tool in able if tool not in left]
        for tool in called[:MAX_CALLS]:
            await self.call(tool, {})
        if not able:
            what = (
                "every tool needs arguments; call one with --call TOOL --args JSON" if offered else "there are no tools"
            )
            self._add(CheckStep(name="call", state="skipped", detail=what))
        if left:
            names = ", ".join(tool.tool for tool in left)
            what = f"{plural(len(left), 'tool')} may change something; add --yes to call them: {names}"
            self._add(CheckStep(name="call", state="skipped", detail=what))
        if len(called) > MAX_CALLS:
            more = f"{plural(len(called) - MAX_CALLS, 'more tool')} without arguments; call one with --call TOOL"
            self._add(CheckStep(name="call", state="skipped", detail=more))

    async def call(self, tool: ToolView, arguments: JsonObject, *, must: bool = False) -> None:
        """Call a tool; with `must`, a refusal is a failure and the timeout is that of a chat."""
        if not _is_harmless(tool):
            if self._agree is None or not await self._agree(tool):
                state: StepState = "failed" if must else "skipped"
                self._add(
                    CheckStep(name="call", tool=tool.tool, state=state, detail=f"it may change something; {ADD_YES}")
                )
                return
            self._approver.agreed.add(tool.name)
        ctx = self._runtime.context(tool_name=tool.name, call_id=f"test_{tool.tool}")
        seconds = self._server.settings.timeout
        began = time.monotonic()
        result = await self._runtime.call(
            tool.name, arguments, ctx=ctx, timeout_seconds=seconds if must else min(seconds, CALL_SECONDS)
        )
        self._add(_called(tool, result, time.monotonic() - began))

    def find(self, name: str) -> ToolView:
        """The tool with this name, the server's or ours; raises UnknownServerTool."""
        tools = self.view.tools if self.view is not None else ()
        for tool in tools:
            if name in (tool.tool, tool.name):
                if not tool.name:
                    raise UnknownServerTool(name, (), advice=f"it is hidden: {tool.why_hidden}")
                return tool
        advice = f"`toolcrib mcp tools {self._server.name}` lists them all"
        raise UnknownServerTool(name, [tool.tool for tool in tools if tool.name], advice=advice)

    def _add(self, step: CheckStep) -> None:
        self.steps.append(step)
        self._on_step(step)

    def _needs_no_arguments(self, tool: ToolView) -> bool:
        entry = self._runtime.registry.get_entry(tool.name)
        return entry is not None and ArgumentChecker(entry).prepare({})[1] is None

    async def _failed(self, status: ServerStatus, seconds: float) -> CheckStep:
        server, settings = self._server, self._runtime.settings
        error = status.last_error or "it did not respond in time"
        folder, since = settings.home.log_file.parent / "mcp", time.time() - seconds - CLOCK_SECONDS
        words = log_tail(folder, server.name, since) if server.transport == "stdio" else []
        better = await self._other_transport(settings, error)
        return CheckStep(
            name=_first_step_name(server),
            state="failed",
            detail=error,
            lines=tuple(words),
            advice=better or suggest_fix(server, error, words),
            seconds=seconds,
        )

    async def _other_transport(self, settings: Settings, error: str) -> str:
        """The fix if the server responds to the other HTTP transport; empty if it does not."""
        server = self._server
        if server.transport == "stdio" or status_is(error, 401, 403) or "no connection" in error:
            return ""
        other: Literal["http", "sse"] = "sse" if server.transport == "http" else "http"
        tried = {server.name: replace(settings.mcp_servers[server.name], transport=other)}
        changed = replace(settings, mcp_servers=tried)
        views = await asyncio.to_thread(inspect_servers, changed, tried, OTHER_TRANSPORT_SECONDS)
        if views[0].status.state != "ready":
            return ""
        what = "the older SSE" if other == "sse" else "streamable HTTP"
        return f"it uses {what}: `toolcrib config set mcp_servers.{server.name}.transport {other}`"

    def _reached(self, status: ServerStatus, seconds: float) -> CheckStep:
        detail = _cut(one_line(status.address)) + (f" (process {status.pid})" if status.pid else "")
        return CheckStep(name=_first_step_name(self._server), state="ok", detail=detail, seconds=seconds)

    def _listed(self, view: ServerView) -> CheckStep:
        name = self._server.name
        lines = [f"{tool.tool} is hidden: {tool.why_hidden}" for tool in view.hidden]
        for tool in view.offered:
            if tool.name != plain_name(name, tool.tool):
                lines.append(f"{tool.tool} is offered as {tool.name}: its own name is too long or not unique")
        for other in self._others():
            lines.append(f"the server {other!r} has the same name in toolcrib: tools with equal names get a number")
        hidden = f", {len(view.hidden)} hidden" if view.hidden else ""
        return CheckStep(name="tools", state="ok", detail=f"{len(view.offered)} offered{hidden}", lines=tuple(lines))

    def _others(self) -> list[str]:
        """Servers whose tools would get the same names in toolcrib."""
        own = self._server.name
        return [name for name in self.all_names if name != own and component(name) == component(own)]


def _is_harmless(tool: ToolView) -> bool:
    return tool.reads_only and not tool.asks


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"


def status_is(error: str, *codes: int) -> bool:
    return any(f"HTTP {code}" in error for code in codes)


def _first_step_name(server: Server) -> str:
    return "start" if server.transport == "stdio" else "connect"


async def _about(connection: Any) -> JsonObject:
    """The server's own description, and how many resources and prompts it has."""
    client = connection.client
    info, able = client.server_info, client.server_capabilities
    about: JsonObject = {"name": f"{info.name} {info.version}".strip() if info is not None else "", "resources": None}
    about["prompts"] = None
    listings: dict[str, Callable[[Any], Awaitable[Any]]] = {
        "resources": lambda client: client.list_resources(),
        "prompts": lambda client: client.list_prompts(),
    }
    for kind, listing in listings.items():
        if getattr(able, kind) is not None:
            try:
                about[kind] = len(getattr(await connection.ask(listing, LIST_SECONDS), kind))
            except (ToolcribError, TimeoutError) as error:
                about[kind] = str(error)
    return about


def _greeted(about: JsonObject, status: ServerStatus) -> CheckStep:
    era = "" if status.protocol_version >= MODERN else ", the older one"
    detail = f"{one_line(about['name']) or 'unnamed'}, protocol {status.protocol_version}{era}"
    return CheckStep(name="greet", state="ok", detail=detail)


def _counted(kind: str, found: int | str | None) -> CheckStep:
    if found is None:
        return CheckStep(name=kind, state="skipped", detail="the server has none")
    if isinstance(found, str):
        return CheckStep(name=kind, state="failed", detail=f"listing failed: {one_line(found)}")
    return CheckStep(name=kind, state="ok", detail=str(found))


def _called(tool: ToolView, result: ToolResult, seconds: float) -> CheckStep:
    text = result.content if isinstance(result.content, str) else json.dumps(result.content, ensure_ascii=False)
    state: StepState = "failed" if result.is_error else "ok"
    return CheckStep(
        name="call", tool=tool.tool, state=state, detail=_cut(one_line(text)), seconds=seconds, result=text
    )


@click.command(name="test")
@click.argument("name", metavar="NAME", shell_complete=complete_servers)
@click.option("--call", "tool", metavar="TOOL", help="Call this tool and print its whole result.")
@click.option("--args", "arguments", metavar="JSON", help="With --call: the arguments as a JSON object.")
@click.option("--yes", is_flag=True, help="Also call tools that may change something, without asking.")
@click.option("--no-calls", is_flag=True, help="Connect and list, but call no tools.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def test_server(name: str, tool: str | None, arguments: str | None, yes: bool, no_calls: bool, as_json: bool) -> int:
    """Test an MCP server and show how to fix it.

    Connects to this server only, lists its tools, resources and prompts, and calls the tools that need no arguments.
    Tools that are not marked read-only are called only if you agree, or with --yes. Exit code 1 if something fails.

    --json prints an object with the keys name, ok, protocol_version, tools (how many are offered) and steps (each with
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
        note(f"{name!r} is disabled; testing it anyway.")
        known = replace(known, enabled=True)
    environ = dict(environment())
    load_env_file(settings.home, environ)
    server = read_server(name, known, environ)
    console = console_approver(settings)
    approver = PreapprovingApprover(console)
    alone = replace(settings, mcp_servers={name: known})
    progress = None if as_json or not sys.stderr.isatty() else ProgressLines(note)
    runtime = Runtime(settings=alone, approver=approver, entry_point="interactive", on_progress=progress)
    runtime.provide_service("asker", ConsoleAsker(console))
    try:
        with stdout_reserved():
            runtime.load()
        if not as_json and not server.problem:
            note(f"Testing {name!r} (at most {known.connect_timeout:g} seconds to connect) …")
        on_step = _silent if as_json else _print_step
        check = ServerCheck(runtime, server, approver, agree=_confirmation(console, yes, as_json), on_step=on_step)
        check.all_names = tuple(settings.mcp_servers)
        asyncio.run(_run_check(check, tool, given, no_calls))
    finally:
        runtime.close()
    if as_json:
        print_json(_as_json(name, check))
    else:
        if tool is not None and check.steps[-1].result:
            print_line(check.steps[-1].result)
        _print_verdict(name, server, check, settings)
    return 0 if check.is_ok else 1


def _arguments(tool: str | None, text: str | None) -> JsonObject:
    if text is not None and tool is None:
        raise UsageError("--args needs a tool; name it with `--call TOOL`")
    try:
        given = read_json(text or "{}")
    except InvalidJson as error:
        raise UsageError(
            f"the arguments are not JSON: {error}; put the object after `--args` in single quotes"
        ) from error
    if not isinstance(given, dict):
        raise UsageError('the arguments are not an object; use `--args` as in \'{"path": "."}\'')
    return given


async def _run_check(check: ServerCheck, tool: str | None, arguments: JsonObject, no_calls: bool) -> None:
    if not await check.connect() or no_calls:
        return
    if tool is not None:
        await check.call(check.find(tool), arguments, must=True)
    else:
        await check.call_tools_without_arguments()


def _confirmation(console: ConsoleApprover, yes: bool, as_json: bool) -> ConfirmCall | None:
    """How to decide about a tool that may change something; None if nobody can be asked."""
    if not yes and (as_json or not is_interactive()):
        return None
    skips_rest = False

    async def agree(tool: ToolView) -> bool:
        nonlocal skips_rest
        if yes or skips_rest:
            return yes
        about = f" ({fitted(one_line(tool.description), MAX_ABOUT_COLUMNS)})" if tool.description.strip() else ""
        question = f"{one_line(tool.tool)}{about} may change something. Call it? [y/n, Enter skips the rest] "
        answer = await console.ask_line("\n".join(wrap(question, shutil.get_terminal_size().columns - 4)) + " ")
        skips_rest = answer is None
        return answer is not None and answer.strip().lower() in ("y", "yes")

    return agree


def _silent(step: CheckStep) -> None:
    """With --json, all steps are printed at the end."""


def _print_step(step: CheckStep) -> None:
    took = f"  ({step.seconds:.2f} s)" if step.seconds >= 0.01 else ""
    detail = f"{step.tool}: {step.detail}" if step.tool else step.detail
    line = f"{step.state:<8} {step.name:<10} {one_line(detail)}".rstrip()
    if step.name == "call" and step.state == "ok" and stdout_is_terminal():
        # Cut: `--call` prints the whole result.
        line = fitted(line, shutil.get_terminal_size().columns - len(took))
    print_line(line + took)
    for line in step.lines:
        print_line(f"         | {one_line(line)}")
    if step.advice:
        print_line(f"         fix: {step.advice}")


def _print_verdict(name: str, server: Server, check: ServerCheck, settings: Settings) -> None:
    wrong = [step for step in check.steps if step.state == "failed"]
    if not wrong:
        print_line(f"The MCP server {name!r} works.")
        return
    path = ServerLog(settings.home.log_file.parent / "mcp", name).path
    more = f"; its log is {path}" if server.transport == "stdio" and path.exists() else ""
    steps = ", ".join(dict.fromkeys(FAILURES[step.name] for step in wrong))
    print_line(f"The MCP server {name!r} failed to {steps}{more}.")


def _as_json(name: str, check: ServerCheck) -> JsonObject:
    view = check.view
    return {
        "name": name,
        "ok": check.is_ok,
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
            for step in check.steps
        ],
    }
