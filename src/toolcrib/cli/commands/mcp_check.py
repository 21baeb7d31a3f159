"""What to do about an MCP server that does not work, from what it said and did."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import click
import msgspec

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.cli.chat.symbols import fitted
from toolcrib.cli.commands.mcp import ServerView, ToolView, complete_servers, look_at, require_servers, tools_of
from toolcrib.cli.console import ConsoleAsker, ProgressLines, console_approver
from toolcrib.cli.output import (
    note,
    on_terminal,
    one_line,
    person_present,
    plural,
    print_json,
    print_line,
    stdout_reserved,
)
from toolcrib.config.env_file import load_env_file
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.approvals import Answer, ApprovalRequest
from toolcrib.core.attempt import attempt_async
from toolcrib.core.errors import UnknownName, UsageError
from toolcrib.core.ports import Approver
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.dispatch.json_text import BadJson, read_json
from toolcrib.mcp.names import component, plain_name
from toolcrib.mcp.server_log import ServerLog
from toolcrib.mcp.servers import Server, read_server
from toolcrib.mcp.status import ServerStatus
from toolcrib.runtime import Runtime

LOG_LINES = 6
LOG_BYTES = 8000
ON_STDOUT = "[on stdout, no message]"
"""How the log marks what a server printed where only messages belong."""
INSTALL = {
    "npx": "install Node.js, which brings npx",
    "node": "install Node.js",
    "uvx": "install uv, which brings uvx: `pip install uv`",
    "uv": "install uv: `pip install uv`",
    "docker": "install Docker, or Podman and write podman instead",
    "deno": "install Deno",
    "bunx": "install Bun, which brings bunx",
}
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PAT|URL)\b")
_STATUS = re.compile(r"HTTP (\d{3})")


def last_words(folder: Path, server: str, since: float) -> list[str]:
    """The last lines that the process of a server printed as errors, or where no errors belong, since then."""
    path = ServerLog(folder, server).path
    try:
        if path.stat().st_mtime < since:
            return []
        text = path.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace")
    except OSError:
        return []
    of_this_start = text.rpartition("\n--- ")[2] if "\n--- " in text else text.removeprefix("--- ")
    return [line for line in of_this_start.splitlines()[1:] if line.strip()][-LOG_LINES:]


def advice(server: Server, error: str, words: list[str]) -> str:
    """What to do next, as one sentence."""
    return _about_http(server, error) if server.transport != "stdio" else _about_process(server, error, words)


def _about_process(server: Server, error: str, words: list[str]) -> str:
    name, command = server.name, server.settings.command
    said = "\n".join(words)
    key = f"mcp_servers.{name}"
    if "was not found" in error:
        program = Path(command).name
        return INSTALL.get(
            program, f"install {program!r}, or write its full path: `toolcrib config set {key}.command …`"
        )
    if "could not be started" in error:
        return f"make sure that {command!r} is a program that you may run"
    if "is not installed" in error or "does not exist" in error:
        return ""  # It says itself what to do.
    if ON_STDOUT in said:
        return "it prints on stdout, where only messages belong: start the server itself, with the option for stdio"
    if "did not answer in time" in error:
        return f"if it is only slow, give it more time: `toolcrib config set {key}.connect_timeout 120`"
    variables = list(dict.fromkeys(_VARIABLE.findall(said)))
    if variables:
        first = variables[0]
        return f"it speaks of {', '.join(variables)}: `toolcrib config set {key}.env.{first} …` sets a variable"
    if "E404" in said or "No matching distribution" in said:
        return f"the package was not found; look at the spelling in {key}.args"
    if "exit code 127" in error:
        return "a program that it needs was not found; install it"
    # With the variables that the config names, not with the secrets in them.
    line = server.address
    if any(word in error for word in ("exit code", "ended by", "closed its", "has just gone")):
        return f"type its command yourself to see why it ends: `{line}`"
    return f"is it an MCP server? its command is `{line}`"


def _about_http(server: Server, error: str) -> str:
    url, key = server.address, f"mcp_servers.{server.name}"
    if "`toolcrib mcp login" in error:
        return ""  # It says itself what to do.
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
        return f"nothing there speaks MCP; look at the path in {key}.url, which often ends in /mcp or /sse"
    if status >= 500:
        return "the server has a fault of its own; try again later, or look at its own log"
    if "CERTIFICATE" in error.upper():
        return "its certificate is not trusted here; if it is your own, put its authority's file into SSL_CERT_FILE"
    if "WRONG_VERSION" in error or "record layer" in error.lower():
        return f"it does not speak TLS there; write http:// instead of https:// in {key}.url"
    if "no connection" in error or "Name or service" in error:
        return "nothing answers at that address; is the server running, and is the host right?"
    if "did not answer in time" in error or "in time" in error:
        return f"if it is only slow, give it more time: `toolcrib config set {key}.connect_timeout 120`"
    if "is not installed" in error:
        return ""
    return f"is there an MCP server at {url}?"


CALL_SECONDS = 30.0
LIST_SECONDS = 20.0
OTHER_TRANSPORT_SECONDS = 8.0
END_SECONDS = 5.0
"""How much longer it takes to end a server that did not answer in time."""
CLOCK_SECONDS = 0.1
"""By so much the clock of a file system may be behind."""
MAX_CALLS = 25
MAX_SHOWN_CHARS = 120
MODERN = "2026-07-28"
AGREE = "--yes calls it without a question"

State = Literal["ok", "failed", "skipped"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried."""

    name: str
    """start or connect, greet, tools, resources, prompts, call"""
    state: State
    tool: str = ""
    """Which was called."""
    detail: str = ""
    lines: tuple[str, ...] = ()
    """More about it."""
    advice: str = ""
    seconds: float = 0.0
    result: str = ""
    """All that a tool answered."""


class UnknownTool(UnknownName):
    kind = "tool"


class AgreedApprover:
    """Lets calls pass that somebody agreed to beforehand; whatever else is dangerous is asked about."""

    def __init__(self, otherwise: Approver) -> None:
        self.agreed: set[str] = set()
        self._otherwise = otherwise

    async def ask(self, request: ApprovalRequest) -> Answer:
        if request.tool in self.agreed:
            return Answer(choice="once", decided_by="user")
        return await self._otherwise.ask(request)


class Trial:
    """One server being tried; `steps` has what came of it."""

    def __init__(
        self,
        runtime: Runtime,
        server: Server,
        approver: AgreedApprover,
        *,
        agree: Callable[[ToolView], Awaitable[bool]] | None,
        on_step: Callable[[Step], None],
    ) -> None:
        """`agree` says whether a tool that may change something is called; None where nobody can."""
        self.steps: list[Step] = []
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
        """Start or reach the server, greet it, and look at all that it has."""
        if self._server.problem:
            self._add(Step(name="config", state="failed", detail=self._server.problem))
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
        about, error = await attempt_async(hub.use(name, _about, LIST_SECONDS))
        if about is None:
            self._add(Step(name="greet", state="failed", detail=str(error)))
            return False
        self._add(_greeted(about, status))
        self.view = ServerView(status=status, tools=await tools_of(hub, self._runtime.registry, status))
        self._add(self._listed(self.view))
        for kind in ("resources", "prompts"):
            self._add(_counted(kind, about[kind]))
        return True

    async def call_what_needs_nothing(self) -> None:
        """Call the tools that need no arguments: those that only read, others where somebody agrees."""
        offered = self.view.offered if self.view is not None else []
        able = [tool for tool in offered if self._needs_nothing(tool)]
        left = [tool for tool in able if self._agree is None and not _is_harmless(tool)]
        called = [tool for tool in able if tool not in left]
        for tool in called[:MAX_CALLS]:
            await self.call(tool, {})
        if not able:
            what = (
                "every tool needs arguments; try one with --call TOOL --args JSON" if offered else "there are no tools"
            )
            self._add(Step(name="call", state="skipped", detail=what))
        if left:
            names = ", ".join(tool.tool for tool in left)
            what = f"{plural(len(left), 'tool')} may change something; --yes calls such tools too: {names}"
            self._add(Step(name="call", state="skipped", detail=what))
        if len(called) > MAX_CALLS:
            more = f"{plural(len(called) - MAX_CALLS, 'more tool')} without arguments; --call TOOL calls one"
            self._add(Step(name="call", state="skipped", detail=more))

    async def call(self, tool: ToolView, arguments: JsonObject, *, must: bool = False) -> None:
        """Call one tool; `must` makes it a failure when nobody agrees, and waits as long as a chat would."""
        if not _is_harmless(tool):
            if self._agree is None or not await self._agree(tool):
                state: State = "failed" if must else "skipped"
                self._add(Step(name="call", tool=tool.tool, state=state, detail=f"it may change something; {AGREE}"))
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
        """The tool of that name, of the server or of ours; raises UnknownTool."""
        tools = self.view.tools if self.view is not None else ()
        for tool in tools:
            if name in (tool.tool, tool.name):
                if not tool.name:
                    raise UnknownTool(name, (), advice=f"it is not offered: {tool.why_hidden}")
                return tool
        advice_text = f"`toolcrib mcp tools {self._server.name}` shows all of them"
        raise UnknownTool(name, [tool.tool for tool in tools if tool.name], advice=advice_text)

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self._on_step(step)

    def _needs_nothing(self, tool: ToolView) -> bool:
        entry = self._runtime.registry.get_entry(tool.name)
        return entry is not None and ArgumentChecker(entry).prepare({})[1] is None

    async def _failed(self, status: ServerStatus, seconds: float) -> Step:
        server, settings = self._server, self._runtime.settings
        error = status.last_error or "it did not answer in time"
        folder, since = settings.home.log_file.parent / "mcp", time.time() - seconds - CLOCK_SECONDS
        words = last_words(folder, server.name, since) if server.transport == "stdio" else []
        better = await self._other_transport(settings, error)
        return Step(
            name=_first_step(server),
            state="failed",
            detail=error,
            lines=tuple(words),
            advice=better or advice(server, error, words),
            seconds=seconds,
        )

    async def _other_transport(self, settings: Settings, error: str) -> str:
        """What to do if the server can be reached in the other way over HTTP; empty when it cannot."""
        server = self._server
        if server.transport == "stdio" or status_is(error, 401, 403) or "no connection" in error:
            return ""
        other: Literal["http", "sse"] = "sse" if server.transport == "http" else "http"
        tried = {server.name: replace(settings.mcp_servers[server.name], transport=other)}
        changed = replace(settings, mcp_servers=tried)
        views = await asyncio.to_thread(look_at, changed, tried, OTHER_TRANSPORT_SECONDS)
        if views[0].status.state != "ready":
            return ""
        what = "the older SSE" if other == "sse" else "streamable HTTP"
        return f"it speaks {what}: `toolcrib config set mcp_servers.{server.name}.transport {other}`"

    def _reached(self, status: ServerStatus, seconds: float) -> Step:
        detail = _cut(one_line(status.address)) + (f" (process {status.pid})" if status.pid else "")
        return Step(name=_first_step(self._server), state="ok", detail=detail, seconds=seconds)

    def _listed(self, view: ServerView) -> Step:
        name = self._server.name
        lines = [f"{tool.tool} is not offered: {tool.why_hidden}" for tool in view.hidden]
        for tool in view.offered:
            if tool.name != plain_name(name, tool.tool):
                lines.append(f"{tool.tool} is offered as {tool.name}: its own name is too long, or not the only one")
        for other in self._others():
            lines.append(f"the server {other!r} has the same name in ours: where tools of both agree, digits are added")
        hidden = f", {len(view.hidden)} not" if view.hidden else ""
        return Step(name="tools", state="ok", detail=f"{len(view.offered)} offered{hidden}", lines=tuple(lines))

    def _others(self) -> list[str]:
        """Servers whose tools would get the same names."""
        own = self._server.name
        return [name for name in self.all_names if name != own and component(name) == component(own)]


def _is_harmless(tool: ToolView) -> bool:
    return tool.reads_only and not tool.asks


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"


def status_is(error: str, *codes: int) -> bool:
    return any(f"HTTP {code}" in error for code in codes)


def _first_step(server: Server) -> str:
    return "start" if server.transport == "stdio" else "connect"


async def _about(connection: Any) -> JsonObject:
    """What the server says about itself, and how many resources and prompts it has."""
    client = connection.client
    info, able = client.server_info, client.server_capabilities
    about: JsonObject = {"name": f"{info.name} {info.version}".strip() if info is not None else "", "resources": None}
    about["prompts"] = None
    for kind, listing in (("resources", client.list_resources), ("prompts", client.list_prompts)):
        if getattr(able, kind) is not None:
            page, error = await attempt_async(listing())
            about[kind] = str(error) if page is None else len(getattr(page, kind))
    return about


def _greeted(about: JsonObject, status: ServerStatus) -> Step:
    era = "" if status.protocol_version >= MODERN else ", the older one"
    detail = f"{one_line(about['name']) or 'no name'}, protocol {status.protocol_version}{era}"
    return Step(name="greet", state="ok", detail=detail)


def _counted(kind: str, found: int | str | None) -> Step:
    if found is None:
        return Step(name=kind, state="skipped", detail="the server has none")
    if isinstance(found, str):
        return Step(name=kind, state="failed", detail=f"they could not be listed: {one_line(found)}")
    return Step(name=kind, state="ok", detail=str(found))


def _called(tool: ToolView, result: ToolResult, seconds: float) -> Step:
    text = result.content if isinstance(result.content, str) else json.dumps(result.content, ensure_ascii=False)
    state: State = "failed" if result.is_error else "ok"
    return Step(name="call", tool=tool.tool, state=state, detail=_cut(one_line(text)), seconds=seconds, result=text)


MAX_ABOUT_COLUMNS = 100
Agree = Callable[[ToolView], Awaitable[bool]]


@click.command(name="test")
@click.argument("name", metavar="NAME", shell_complete=complete_servers)
@click.option("--call", "tool", metavar="TOOL", help="Call this tool and print its whole result.")
@click.option("--args", "arguments", metavar="JSON", help="With --call: its arguments, as an object.")
@click.option("--yes", is_flag=True, help="Also call tools that may change something, without a question.")
@click.option("--no-calls", is_flag=True, help="Connect and list, but call nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def test_server(name: str, tool: str | None, arguments: str | None, yes: bool, no_calls: bool, as_json: bool) -> int:
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
