"""Tries one MCP server from its start to its tools, step by step, and keeps what came of each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from toolcrib.cli.mcp_advice import advice, last_words
from toolcrib.cli.mcp_servers import ServerView, ToolView, look_at, tools_of
from toolcrib.cli.output import one_line, plural
from toolcrib.config.settings import Settings
from toolcrib.core.approvals import Answer, ApprovalRequest
from toolcrib.core.attempt import attempt_async
from toolcrib.core.errors import UnknownName
from toolcrib.core.ports import Approver
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.dispatch.arguments import ArgumentChecker
from toolcrib.mcp.client.servers import Server, ServerStatus
from toolcrib.mcp.names import component, plain_name
from toolcrib.runtime import Runtime

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
