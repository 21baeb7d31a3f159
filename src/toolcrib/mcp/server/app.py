"""The MCP server: offers the tools of a runtime to clients, in both eras of the protocol, over any transport.

The transports are in `stdio.py` and `http.py`. `ServerExtensions` adds what else a server may offer: resources,
prompts, completions, logging, and tools that speak the protocol themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from pydantic import BaseModel, ValidationError

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.mcp.server.pending_calls import ClientQuestion, ClientReply, PendingCall, PendingCalls, ProgressReport
from toolcrib.mcp.server.sessions import ClientSession, ClientSessions, is_modern
from toolcrib.mcp.server.tools import CLARIFY_TOOL, ServerToolCatalog, ToolRuntime, error_result, to_call_result
from toolcrib.version import __version__

logger = logging.getLogger(__name__)

SERVER_NAME = "toolcrib"
CHANGE_POLL_SECONDS = 0.25
SWEEP_SECONDS = 60.0
STOP_SECONDS = 6.0
"""How long calls may take to end their commands when the server stops."""
KEEP_FINISHED_SECONDS = 120.0
"""How long a result waits for a client that returns late with an answer."""
NOTIFY_SECONDS = 5.0
STATE_SECONDS = 3600.0

Context = ServerRequestContext[Any, Any]
ToolResponse = CallToolResult | InputRequiredResult
EndSession = Callable[[str], Awaitable[None]]


class ProtocolTool(msgspec.Struct, frozen=True):
    """A tool that speaks the protocol itself and bypasses the gate."""

    tool: Tool
    handler: Callable[[Context, CallToolRequestParams], Awaitable[ToolResponse]]


class ServerExtensions(msgspec.Struct, frozen=True, kw_only=True):
    """What a server offers besides the tools of its runtime."""

    tools: tuple[ProtocolTool, ...] = ()
    requests: Mapping[str, tuple[type[BaseModel], Callable[[Context, Any], Awaitable[Any]]]] = msgspec.field(
        default_factory=dict
    )
    """Handlers of further methods (`resources/list`, `prompts/get`, `logging/setLevel` …) and their parameter types."""


NO_EXTENSIONS = ServerExtensions()


class ToolServer:
    """Offers the tools of a runtime to clients, each in its own session."""

    def __init__(
        self,
        runtime: ToolRuntime,
        *,
        calls: PendingCalls | None = None,
        toolsets: Sequence[str] | None = None,
        instructions: str = "",
        extensions: ServerExtensions = NO_EXTENSIONS,
        end_session: EndSession | None = None,
    ) -> None:
        """`calls` is shared with the runtime's approver; `end_session` releases what a session holds."""
        self._runtime = runtime
        self.calls = calls if calls is not None else PendingCalls()
        self.sessions = ClientSessions()
        self.bus = InMemorySubscriptionBus()
        self._listeners = ListenHandler(self.bus)
        self._catalog = ServerToolCatalog(runtime, toolsets)
        self._refresh_lock = asyncio.Lock()
        self._protocol_tools = {protocol_tool.tool.name: protocol_tool for protocol_tool in extensions.tools}
        self._end_session = end_session
        self._tasks: anyio.abc.TaskGroup | None = None
        self._running = 0
        self._idle = asyncio.Event()
        self.protocol = _NotifyingServer(
            SERVER_NAME,
            version=__version__,
            title="Toolcrib",
            instructions=instructions or None,
            lifespan=self._lifespan,
            get_tool_input_schema=self._schema_of,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listeners,
        )
        self.protocol.middleware.append(
            RequestStateBoundary(RequestStateSecurity.ephemeral(ttl=STATE_SECONDS), default_audience=SERVER_NAME)
        )
        for method, (parameters, handler) in extensions.requests.items():
            self.protocol.add_request_handler(method, parameters, handler)

    # Listing tools

    async def _list_tools(self, ctx: Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        if not is_modern(ctx):
            self._session_for(ctx)
        visible = await self._visible_tools(ctx, fresh=True)
        return ListToolsResult(
            tools=[*visible.values(), *(protocol_tool.tool for protocol_tool in self._protocol_tools.values())]
        )

    def _schema_of(self, name: str) -> JsonObject | None:
        """The schema for checking the headers of a request, without listing all tools for every call."""
        protocol_tool = self._protocol_tools.get(name)
        tool = protocol_tool.tool if protocol_tool is not None else self._catalog.known(name)
        return tool.input_schema if tool is not None else None

    async def _visible_tools(self, ctx: Context, *, fresh: bool = False) -> dict[str, Tool]:
        tools = await self._tools(fresh=fresh)
        if can_show_forms(ctx):
            return tools
        return {name: tool for name, tool in tools.items() if name != CLARIFY_TOOL}

    async def _tools(self, *, fresh: bool = False) -> dict[str, Tool]:
        # Availability checks may block, and one refresh at a time is enough.
        async with self._refresh_lock:
            return await asyncio.to_thread(self._catalog.refresh if fresh else self._catalog.latest)

    # Calling tools

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> ToolResponse:
        protocol_tool = self._protocol_tools.get(params.name)
        if protocol_tool is not None:
            return await protocol_tool.handler(ctx, params)
        session = self._session_for(ctx)
        if params.request_state is None:
            visible = await self._visible_tools(ctx)
            if params.name not in visible:
                raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {params.name}")
            if self.calls.has_too_many(session.id):
                return error_result(
                    "this client has too many open calls; wait until one has finished", "too_many_calls"
                )
            call = self._start_call(session, params.name, params.arguments or {}, frozenset(visible), ctx)
        else:
            resumed = self.calls.get(params.request_state)
            if resumed is None or (resumed.session_id, resumed.name) != (session.id, params.name):
                return error_result("this call has ended in the meantime; call the tool again", "call_expired")
            call = resumed
            call.can_be_asked = can_show_forms(ctx)
            for question_id, response in (params.input_responses or {}).items():
                if isinstance(response, ElicitResult):
                    call.answer(question_id, _to_reply(response))
        return await self._follow(call, ctx)

    def _start_call(
        self, session: ClientSession, name: str, arguments: JsonObject, allowed: frozenset[str], ctx: Context
    ) -> PendingCall:
        assert self._tasks is not None
        call = PendingCall(session.id, name)
        call.can_be_asked = can_show_forms(ctx)
        self.calls.add(call)
        self._running += 1
        self._idle.clear()
        self._tasks.start_soon(self._run_call, call, arguments, allowed)
        return call

    async def _run_call(self, call: PendingCall, arguments: JsonObject, allowed: frozenset[str]) -> None:
        base = self._runtime.context(
            session_id=call.session_id,
            call_id=call.id,
            tool_name=call.name,
            cancel=call.cancel,
            allowed_tools=allowed,
        )
        ctx = msgspec.structs.replace(base, on_progress=call.report)
        try:
            call.finish(await self._result(call.name, arguments, ctx))
            # Nobody comes back for a cancelled call.
            seconds = 0.0 if call.cancel.cancelled else KEEP_FINISHED_SECONDS
            asyncio.get_running_loop().call_later(seconds, self.calls.remove, call)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _result(self, name: str, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        try:
            return await self._runtime.call(name, arguments, ctx=ctx)
        except ToolcribError as error:
            logger.error("a call of the tool %r failed", name, exc_info=error)
            return ToolResult(content='{"error": "the call failed"}', status="error", name=name)

    async def _follow(self, call: PendingCall, ctx: Context) -> ToolResponse:
        """Report a call to the client until it ends or the client has to return with an answer."""
        try:
            while True:
                event = await call.next_event()
                if isinstance(event, ProgressReport):
                    await ctx.session.report_progress(event.number, message=event.message)
                elif isinstance(event, ToolResult):
                    self.calls.remove(call)
                    return to_call_result(event)
                elif is_modern(ctx):
                    return InputRequiredResult(input_requests={event.id: _form(event)}, request_state=call.id)
                else:
                    await _ask_client(event, ctx)
        except asyncio.CancelledError:
            call.cancel.cancel("the client cancelled the call")
            raise

    # Client sessions

    def _session_for(self, ctx: Context) -> ClientSession:
        session = self.sessions.for_request(ctx)
        # Only connections of the older protocol persist. The SDK intends their exit stack for this, but does not expose
        # it to handlers yet.
        connection = None if is_modern(ctx) else getattr(ctx.session, "_connection", None)
        if connection is not None and SERVER_NAME not in connection.state:
            connection.state[SERVER_NAME] = session.id
            connection.exit_stack.push_async_callback(self._end_client_session, session)
        return session

    async def _end_client_session(self, session: ClientSession) -> None:
        self.sessions.forget(session)
        self.calls.stop("the client disconnected", session.id)
        if self._end_session is not None:
            try:
                await self._end_session(session.id)
            except (ToolcribError, OSError):
                logger.exception("could not release the resources of session %s", session.id)

    @asynccontextmanager
    async def _lifespan(self, _: Server[Any]) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            self._tasks = group
            group.start_soon(self._watch)
            try:
                yield
            finally:
                self.stop("the server was stopped")
                with anyio.move_on_after(STOP_SECONDS, shield=True):
                    if self._running:
                        await self._idle.wait()
                group.cancel_scope.cancel()
                self._tasks = None

    def stop(self, reason: str) -> None:
        """Cancel all calls, with their commands, and close all listeners."""
        self.calls.stop(reason)
        self._listeners.close()

    async def _watch(self) -> None:
        """Notify clients when the tools change, and end sessions that have been idle for long."""
        notified: dict[str, Tool] | None = None
        seen, swept = -1, anyio.current_time()
        while True:
            generation = self._runtime.registry.generation
            if generation != seen:
                seen = generation
                notified = await self._notify_if_changed(notified)
            await anyio.sleep(CHANGE_POLL_SECONDS)
            if anyio.current_time() - swept > SWEEP_SECONDS:
                swept = anyio.current_time()
                for session in self.sessions.idle():
                    if not self.calls.of_session(session.id):
                        await self._end_client_session(session)

    async def _notify_if_changed(self, before: dict[str, Tool] | None) -> dict[str, Tool] | None:
        """The current tools; `before`, of which clients know, if they cannot be listed."""
        try:
            tools = await self._tools()
        except (ToolcribError, ValidationError) as error:
            logger.error("could not list the tools", exc_info=error)
            return before
        if before is not None and tools != before:
            await self._notify_change()
        return tools

    async def _notify_change(self) -> None:
        await self.bus.publish(ToolsListChanged())
        for session in list(self.sessions):
            if session.peer is not None:
                # A client that does not read must not hold up the others.
                with anyio.move_on_after(NOTIFY_SECONDS):
                    await session.peer.send_tool_list_changed()


class _NotifyingServer(Server[Any]):
    """Announces to clients of the older protocol that it sends notifications when its tools change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


def can_show_forms(ctx: Context) -> bool:
    """Whether the client declares that it can show forms to its user."""
    declared = ctx.session.client_capabilities
    elicitation = declared.elicitation if declared is not None else None
    if elicitation is None:
        return False
    # Before there were two modes, an empty declaration meant forms.
    has_forms = elicitation.form is not None or elicitation.url is None
    return has_forms and (is_modern(ctx) or ctx.session.can_send_request)


async def _ask_client(question: ClientQuestion, ctx: Context) -> None:
    """Ask a client of the older protocol, until it answers or the question is withdrawn."""

    async def ask() -> None:
        try:
            response = await ctx.session.elicit_form(
                question.message, question.schema, related_request_id=ctx.request_id
            )
        except (MCPError, ValidationError) as error:
            logger.warning("a client could not ask its user: %s", error)
            question.settle(ClientReply("failed"))
        else:
            question.settle(_to_reply(response))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await question.closed()
        group.cancel_scope.cancel()


def _form(question: ClientQuestion) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=question.message, requested_schema=question.schema))


def _to_reply(response: ElicitResult) -> ClientReply:
    return ClientReply(response.action, dict(response.content or {}))
