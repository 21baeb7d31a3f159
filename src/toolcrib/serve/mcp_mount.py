"""MCP over HTTP, beside the other routes: the server's tools for programs that bring their own agent.

Imports the SDK, which takes a second. Calls go through the same gate; a client that can ask its user asks there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.routing import Route

from toolcrib.agent.host import AgentHost
from toolcrib.core.context import ToolContext
from toolcrib.http_server import OwnAddresses
from toolcrib.mcp.server.app import ToolServer
from toolcrib.mcp.server.approvals import ClientApprover, ClientAsker
from toolcrib.mcp.server.http import PATH, GuardMiddleware, RequestGuard, protocol_app
from toolcrib.mcp.server.pending_calls import PendingCalls
from toolcrib.serve.questions import PendingQuestions


class McpMount:
    """The MCP server of an agent server. Its approver and asker also serve everybody else."""

    def __init__(self, questions: PendingQuestions) -> None:
        self._calls = PendingCalls()
        self._questions = questions
        self._server: ToolServer | None = None
        self.approver = ClientApprover(self._calls, "ask", questions)

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        """As the asker: ask the user of the client that made a call, or the one of a run."""
        if self._calls.find(ctx.call_id, ctx.session_id) is not None:
            return await ClientAsker(self._calls).ask(ctx, question, choices)
        return await self._questions.asker().ask(ctx, question, choices)

    def route(self, host: AgentHost, addresses: OwnAddresses) -> Route:
        """The route; tokens are checked before."""
        runtime = host.runtime
        self._server = ToolServer(
            runtime,
            calls=self._calls,
            toolsets=host.settings.serve.toolsets,
            instructions=f"These tools work on the machine where toolcrib runs, in the folder {runtime.workspace}.",
            end_session=runtime.end_session,
        )
        self._app = protocol_app(self._server)
        guard = RequestGuard(token="", host=addresses.host, names=addresses.names)
        return Route(PATH, GuardMiddleware(self._app, guard))

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """While clients are served."""
        async with self._app.router.lifespan_context(self._app):
            yield

    def stop(self) -> None:
        """End the calls of all clients."""
        if self._server is not None:
            self._server.stop("the server was stopped")
