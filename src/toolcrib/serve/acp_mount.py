"""Editors over a WebSocket, beside the other routes: the Agent Client Protocol, behind the server's tokens.

Imports the SDK. A session's own client never answers its approvals: they are answered like those of other runs, by a
token with the scope `approve`, on the page, or on the server's machine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from acp.core import AgentSideConnection
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from toolcrib.acp.agent import EditorAgent
from toolcrib.acp.editor import EditorConnection
from toolcrib.acp.session import EditorSession, OpenedHost
from toolcrib.acp.sessions import EditorSessions
from toolcrib.acp.transport import InvalidMessage, complaint, decoded, encoded
from toolcrib.agent.agent import Agent
from toolcrib.agent.events import OnEvent, RunResult
from toolcrib.agent.host import AgentHost
from toolcrib.core.approvals import Mode
from toolcrib.core.cancel import finish_in_thread
from toolcrib.core.errors import UsageError
from toolcrib.core.messages import Message
from toolcrib.serve.guard import IDENTITY
from toolcrib.serve.questions import PendingQuestions, QuestionAnswered, QuestionAsked
from toolcrib.serve.runs import RunManager, RunRefused
from toolcrib.serve.tokens import TokenIdentity
from toolcrib.sessions.records import Session
from toolcrib.sessions.store import SessionStore

PATH = "/acp"
TRY_LATER = 1013
STRICTER: dict[Mode, tuple[Mode, ...]] = {
    "plan": ("plan",),
    "ask": ("ask", "plan"),
    "auto-edit": ("ask", "auto-edit", "plan"),
}
"""The modes that allow no more than another one: switching to them approves nothing."""


class AcpMount:
    """The editors of an agent server."""

    def __init__(self, host: AgentHost, runs: RunManager, questions: PendingQuestions) -> None:
        self._host = host
        self._runs = runs
        self._questions = questions

    def route(self) -> WebSocketRoute:
        """The route; tokens are checked before."""
        return WebSocketRoute(PATH, self._serve)

    async def _serve(self, socket: WebSocket) -> None:
        identity: TokenIdentity = socket.scope[IDENTITY]
        try:
            self._runs.require_stream(identity)
        except RunRefused as refused:
            await socket.close(TRY_LATER, str(refused))
            return
        # Counted at once: many sockets must not pass the limit together.
        with self._runs.stream(identity):
            await socket.accept()
            hosts = ServedHosts(self._host, self._runs, self._questions, identity)
            agent = EditorAgent(lambda editor: EditorSessions(editor, hosts))
            transport = SocketTransport(socket)
            connection = AgentSideConnection(agent, transport, listening=False, use_unstable_protocol=True)
            try:
                await connection.listen()
            finally:
                await agent.close()
                await connection.close()


class SocketTransport:
    """A `Transport` of the SDK over a WebSocket: one message a frame."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def send(self, message: dict[str, Any]) -> None:
        try:
            await self._socket.send_text(encoded(message).decode().rstrip("\n"))
        except (WebSocketDisconnect, RuntimeError) as error:
            # Starlette raises a RuntimeError once the other side has closed.
            raise ConnectionError("the editor has closed the connection") from error

    async def receive(self) -> dict[str, Any] | None:
        while True:
            try:
                return decoded(await self._socket.receive_text())
            except (WebSocketDisconnect, RuntimeError, KeyError):
                return None  # A KeyError: a frame with bytes.
            except InvalidMessage as error:
                await self.send(complaint(error.code, str(error)))

    async def close(self) -> None:
        return None


class ServedHosts:
    """The server's one host, for the sessions that a token reaches."""

    def __init__(self, host: AgentHost, runs: RunManager, questions: PendingQuestions, identity: TokenIdentity) -> None:
        self._host = host
        self._runs = runs
        self._questions = questions
        self._identity = identity

    @property
    def owner(self) -> str:
        return self._identity.owner

    @property
    def toolsets(self) -> list[str] | None:
        return self._host.settings.serve.toolsets

    @property
    def store(self) -> SessionStore:
        return self._host.store

    def open(self, editor: EditorConnection, cwd: str, servers: Sequence[Any]) -> OpenedHost:
        if servers:
            # A server is a program to start, which is for whoever writes the config.
            raise UsageError("MCP servers for a served agent are named in its config; pass none")
        workspace = self._host.runtime.workspace
        if os.path.realpath(cwd) != os.path.realpath(workspace):
            raise UsageError(f"the served agent works in {workspace!r}; open that folder")
        return OpenedHost(
            host=self._host,
            modes=STRICTER[self._host.settings.agent.mode],
            chooses_models=False,
            run=self._run,
            counted=self._counted,
        )

    def may_open(self, session: Session) -> bool:
        return session.owner == self.owner and self._runs.may_reach(session.id, self._identity)

    async def close(self, host: AgentHost) -> None:
        """Do nothing: the host is the server's."""

    async def end(self) -> None:
        """Do nothing, as well."""

    @asynccontextmanager
    async def _counted(self, agent: Agent) -> AsyncIterator[None]:
        """A command that asks the model takes the room of a run, and its cost counts."""
        session_id, owner = agent.session_id, self._identity.owner
        await asyncio.to_thread(self._runs.require_money, owner)
        with self._runs.reserved(session_id), self._runs.room(self._identity):
            before = await asyncio.to_thread(self._cost, session_id)
            try:
                yield
            finally:
                await finish_in_thread(lambda: self._add_cost(self._cost(session_id) - before, owner))

    def _cost(self, session_id: str) -> float:
        return self.store.get(session_id).usage.cost_usd or 0.0

    def _add_cost(self, cost_usd: float, owner: str) -> None:
        if cost_usd > 0:
            self._runs.store.add_cost(cost_usd, owner)

    async def _run(self, session: EditorSession, message: Message, on_event: OnEvent) -> RunResult:
        """A run like every other one: limited, logged, and with approvals that others answer."""
        before = session.agent
        run = await self._runs.start(before.session_id, message, self._identity)
        run.agent.mode, session.agent = before.mode, run.agent
        with run.client():
            async for one in run.follow():
                if isinstance(one.event, QuestionAsked):
                    session.tell(_question(one.event))
                elif not isinstance(one.event, QuestionAnswered):
                    on_event(one.event)
        assert run.result is not None
        return run.result


def _question(asked: QuestionAsked) -> str:
    command = f"\n{asked.command}" if asked.command else ""
    return (
        f"Waiting for an answer to {asked.code}: {asked.text}{command}\n"
        f"Answer it on the server's page, or with `toolcrib approvals answer {asked.code}` on its machine.\n"
    )
