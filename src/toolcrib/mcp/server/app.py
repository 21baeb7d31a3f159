"""Our tools for any MCP client: one server for both eras of the protocol, whatever carries it.

The transports are in `serve_stdio` and `serve_http`. Other things that a server may offer (resources, prompts,
completions, logging, tools that talk the protocol themselves) are plugged in with `Extras`.
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

from toolcrib.core.attempt import attempt_async
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.mcp.server.pending_calls import CallBook, OpenCall, Question, Reply, Report
from toolcrib.mcp.server.sessions import ClientSession, ClientSessions, is_modern
from toolcrib.mcp.server.tools import ASKS_THE_PERSON, ToolRuntime, ToolShelf, as_call_result, failure
from toolcrib.version import __version__

logger = logging.getLogger(__name__)

SERVER_NAME = "toolcrib"
LOOK_FOR_CHANGES_SECONDS = 0.25
SWEEP_SECONDS = 60.0
STOP_SECONDS = 6.0
"""How long calls may take to end their commands when the server is stopped."""
KEEP_FINISHED_SECONDS = 120.0
"""How long a result waits for a client that comes back too late with an answer."""
NOTIFY_SECONDS = 5.0
STATE_SECONDS = 3600.0

Context = ServerRequestContext[Any, Any]
ToolAnswer = CallToolResult | InputRequiredResult
EndSession = Callable[[str], Awaitable[None]]


class NativeTool(msgspec.Struct, frozen=True):
    """A tool that speaks the protocol itself; it passes no gate."""

    tool: Tool
    handler: Callable[[Context, CallToolRequestParams], Awaitable[ToolAnswer]]


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """What a server offers besides the tools of its runtime."""

    tools: tuple[NativeTool, ...] = ()
    requests: Mapping[str, tuple[type[BaseModel], Callable[[Context, Any], Awaitable[Any]]]] = msgspec.field(
        default_factory=dict
    )
    """Handlers of further methods (`resources/list`, `prompts/get`, `logging/setLevel` …) with their parameters."""


NO_EXTRAS = Extras()


class ToolServer:
    """Offers the tools of a runtime to clients, each in a session of its own."""

    def __init__(
        self,
        runtime: ToolRuntime,
        *,
        calls: CallBook | None = None,
        toolsets: Sequence[str] | None = None,
        instructions: str = "",
        extras: Extras = NO_EXTRAS,
        end_session: EndSession | None = None,
    ) -> None:
        """`calls` is shared with the approver of the runtime; `end_session` gives back what a session holds."""
        self._runtime = runtime
        self.calls = calls if calls is not None else CallBook()
        self.sessions = ClientSessions()
        self.bus = InMemorySubscriptionBus()
        self._listeners = ListenHandler(self.bus)
        self._shelf = ToolShelf(runtime, toolsets)
        self._looking = asyncio.Lock()
        self._native = {native.tool.name: native for native in extras.tools}
        self._end_session = end_session
        self._group: anyio.abc.TaskGroup | None = None
        self._running = 0
        self._resting = asyncio.Event()
        self.protocol = _Announcing(
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
        for method, (parameters, handler) in extras.requests.items():
            self.protocol.add_request_handler(method, parameters, handler)

    # Offering

    async def _list_tools(self, ctx: Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        if not is_modern(ctx):
            self._keep_in_touch(ctx)
        offered = await self._offered(ctx, fresh=True)
        return ListToolsResult(tools=[*offered.values(), *(native.tool for native in self._native.values())])

    def _schema_of(self, name: str) -> JsonObject | None:
        """The schema that headers of a request are held against, without a look at all tools for every call."""
        native = self._native.get(name)
        tool = native.tool if native is not None else self._shelf.known(name)
        return tool.input_schema if tool is not None else None

    async def _offered(self, ctx: Context, *, fresh: bool = False) -> dict[str, Tool]:
        tools = await self._look(fresh=fresh)
        if can_show_forms(ctx):
            return tools
        return {name: tool for name, tool in tools.items() if name != ASKS_THE_PERSON}

    async def _look(self, *, fresh: bool = False) -> dict[str, Tool]:
        # Checks of tools may block, and one look at a time is enough.
        async with self._looking:
            return await asyncio.to_thread(self._shelf.refreshed if fresh else self._shelf.latest)

    # Calling

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> ToolAnswer:
        native = self._native.get(params.name)
        if native is not None:
            return await native.handler(ctx, params)
        session = self._keep_in_touch(ctx)
        if params.request_state is None:
            offered = await self._offered(ctx)
            if params.name not in offered:
                raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {params.name}")
            if self.calls.is_full_for(session.id):
                return failure("too many calls of this client are open; wait until one has ended", "too_many_calls")
            call = self._begin(session, params.name, params.arguments or {}, frozenset(offered), ctx)
        else:
            resumed = self.calls.get(params.request_state)
            if resumed is None or (resumed.session_id, resumed.name) != (session.id, params.name):
                return failure("this call has ended meanwhile; call the tool again", "call_expired")
            call = resumed
            call.can_be_asked = can_show_forms(ctx)
            for question_id, given in (params.input_responses or {}).items():
                if isinstance(given, ElicitResult):
                    call.answer(question_id, _reply(given))
        return await self._accompany(call, ctx)

    def _begin(
        self, session: ClientSession, name: str, arguments: JsonObject, allowed: frozenset[str], ctx: Context
    ) -> OpenCall:
        assert self._group is not None
        call = OpenCall(session.id, name)
        call.can_be_asked = can_show_forms(ctx)
        self.calls.add(call)
        self._running += 1
        self._resting.clear()
        self._group.start_soon(self._run, call, arguments, allowed)
        return call

    async def _run(self, call: OpenCall, arguments: JsonObject, allowed: frozenset[str]) -> None:
        surroundings = self._runtime.context(
            session_id=call.session_id,
            call_id=call.id,
            tool_name=call.name,
            cancel=call.cancel,
            allowed_tools=allowed,
        )
        ctx = msgspec.structs.replace(surroundings, on_progress=call.report)
        try:
            result, error = await attempt_async(self._runtime.call(call.name, arguments, ctx=ctx))
            if error is not None:
                logger.error("a call of tool %r failed", call.name, exc_info=error)
            call.finish(result or ToolResult(content='{"error": "the call failed"}', status="error", name=call.name))
            # Nobody comes back for what was cancelled.
            seconds = 0.0 if call.cancel.cancelled else KEEP_FINISHED_SECONDS
            asyncio.get_running_loop().call_later(seconds, self.calls.remove, call)
        finally:
            self._running -= 1
            if not self._running:
                self._resting.set()

    async def _accompany(self, call: OpenCall, ctx: Context) -> ToolAnswer:
        """Tell the client how the call goes, until it has ended or the client has to come back with an answer."""
        try:
            while True:
                news = await call.next()
                if isinstance(news, Report):
                    await ctx.session.report_progress(news.number, message=news.message)
                elif isinstance(news, ToolResult):
                    self.calls.remove(call)
                    return as_call_result(news)
                elif is_modern(ctx):
                    return InputRequiredResult(input_requests={news.id: _form(news)}, request_state=call.id)
                else:
                    await _ask_now(news, ctx)
        except asyncio.CancelledError:
            call.cancel.cancel("the client cancelled the call")
            raise

    # Clients that come and go

    def _keep_in_touch(self, ctx: Context) -> ClientSession:
        session = self.sessions.of(ctx)
        # Only the connections of the older protocol last. The SDK means their exit stack for this, but shows none
        # of it to handlers yet.
        connection = None if is_modern(ctx) else getattr(ctx.session, "_connection", None)
        if connection is not None and SERVER_NAME not in connection.state:
            connection.state[SERVER_NAME] = session.id
            connection.exit_stack.push_async_callback(self._part_from, session)
        return session

    async def _part_from(self, session: ClientSession) -> None:
        self.sessions.forget(session)
        self.calls.stop("the client has gone", session.id)
        if self._end_session is not None:
            _, error = await attempt_async(self._end_session(session.id))
            if error is not None:
                logger.error("what session %s held could not be given back", session.id, exc_info=error)

    @asynccontextmanager
    async def _lifespan(self, _: Server[Any]) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._watch)
            try:
                yield
            finally:
                self.stop("the server was stopped")
                with anyio.move_on_after(STOP_SECONDS, shield=True):
                    if self._running:
                        await self._resting.wait()
                group.cancel_scope.cancel()
                self._group = None

    def stop(self, reason: str) -> None:
        """End all calls and listeners; their commands are ended with them."""
        self.calls.stop(reason)
        self._listeners.close()

    async def _watch(self) -> None:
        """Tell clients when the tools have changed, and part from those that have not been heard of for long."""
        told, seen, swept = None, -1, anyio.current_time()
        while True:
            generation = self._runtime.registry.generation
            if generation != seen:
                seen = generation
                tools, error = await attempt_async(self._look())
                if error is not None:
                    logger.error("the tools could not be looked up", exc_info=error)
                elif tools != told:
                    if told is not None:
                        await self._tell_of_change()
                    told = tools
            await anyio.sleep(LOOK_FOR_CHANGES_SECONDS)
            if anyio.current_time() - swept > SWEEP_SECONDS:
                swept = anyio.current_time()
                for session in self.sessions.idle():
                    if not self.calls.of_session(session.id):
                        await self._part_from(session)

    async def _tell_of_change(self) -> None:
        await self.bus.publish(ToolsListChanged())
        for session in list(self.sessions):
            if session.peer is not None:
                # One that does not read what it is told must not keep the others from it.
                with anyio.move_on_after(NOTIFY_SECONDS):
                    await session.peer.send_tool_list_changed()


class _Announcing(Server[Any]):
    """Says to clients of the older protocol that it will tell them when its tools change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


def can_show_forms(ctx: Context) -> bool:
    """Whether the client says that it can put a form to its person."""
    declared = ctx.session.client_capabilities
    elicitation = declared.elicitation if declared is not None else None
    if elicitation is None:
        return False
    # Before there were two modes, saying nothing about them meant forms.
    has_forms = elicitation.form is not None or elicitation.url is None
    return has_forms and (is_modern(ctx) or ctx.session.can_send_request)


async def _ask_now(question: Question, ctx: Context) -> None:
    """Put a question to a client of the older protocol, until it is answered or nobody wants the answer any more."""

    async def ask() -> None:
        try:
            given = await ctx.session.elicit_form(question.message, question.schema, related_request_id=ctx.request_id)
        except (MCPError, ValidationError) as error:
            logger.warning("a client could not ask its user: %s", error)
            question.settle(Reply("failed"))
        else:
            question.settle(_reply(given))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await question.closed()
        group.cancel_scope.cancel()


def _form(question: Question) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=question.message, requested_schema=question.schema))


def _reply(given: ElicitResult) -> Reply:
    return Reply(given.action, dict(given.content or {}))
