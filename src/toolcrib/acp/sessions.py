"""The sessions that one editor has open: made, loaded, resumed, forked and closed; all of them are in our store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from acp.schema import ListSessionsResponse, SessionInfo
from msgspec.structs import replace

from toolcrib.acp.approvals import EditorApprover, EditorAsker
from toolcrib.acp.editor import EditorConnection
from toolcrib.acp.servers import with_editor_servers
from toolcrib.acp.session import EditorSession, OpenedHost
from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.api import adopt_runtime
from toolcrib.config.load import load_settings
from toolcrib.core.errors import ToolcribError, UnknownSession, UsageError
from toolcrib.sessions.records import Session
from toolcrib.sessions.store import SessionStore

PLATFORM = "acp"
"""The source of the sessions that editors open."""
LISTED = 50


class SessionHosts(Protocol):
    """Provides the hosts of an editor's sessions, and the sessions that it may see."""

    def open(self, editor: EditorConnection, cwd: str, servers: Sequence[Any]) -> OpenedHost:
        """A host for a session in that folder. May take a while; called in a thread."""
        ...

    async def close(self, host: AgentHost) -> None: ...

    @property
    def store(self) -> SessionStore: ...

    def may_open(self, session: Session) -> bool:
        """Whether the editor may see a stored session."""
        ...

    @property
    def owner(self) -> str:
        """Whose sessions these are; empty for the owner of the home."""
        ...

    @property
    def toolsets(self) -> list[str] | None:
        """The toolsets of the agents; None means those of the config."""
        ...

    async def end(self) -> None:
        """Release everything; the editor is gone."""
        ...


class OwnHosts:
    """One host for each session: its folder is its workspace, and its MCP servers are its own."""

    owner = ""
    toolsets: list[str] | None = None

    def __init__(self) -> None:
        self.settings = load_settings()
        self.store = SessionStore(self.settings.home.sessions_file)
        self._first: AgentHost | None = None

    def open(self, editor: EditorConnection, cwd: str, servers: Sequence[Any]) -> OpenedHost:
        settings = load_settings()
        found = with_editor_servers(servers, settings.mcp_servers, settings.acp.mcp_trust)
        if servers:
            # A reload of the config would drop the editor's servers.
            watching = replace(settings.mcp, auto_reload_on_config_change=False)
            settings = replace(settings, mcp_servers=found.servers, mcp=watching)
        approver = EditorApprover(editor, settings.acp.approval_timeout)
        host = AgentHost(
            settings=settings,
            entry_point="interactive",
            approver=approver,
            asker=EditorAsker(approver, editor, settings.acp.approval_timeout),
            workspace=cwd,
            platform=PLATFORM,
        )
        if self._first is None:
            # Tools that call other tools through the package's functions need a runtime with a gate.
            self._first = host
            adopt_runtime(host.runtime)
        host.runtime.load()
        return OpenedHost(host=host, approver=approver, problems=found.problems)

    async def close(self, host: AgentHost) -> None:
        if host is not self._first:
            await host.close()

    def may_open(self, session: Session) -> bool:
        return session.owner == self.owner

    async def end(self) -> None:
        if self._first is not None:
            await self._first.close()
        self.store.close()


class EditorSessions:
    """The open sessions of one editor, by id."""

    def __init__(self, editor: EditorConnection, hosts: SessionHosts) -> None:
        self._editor = editor
        self._hosts = hosts
        self._open: dict[str, EditorSession] = {}
        self._changing = asyncio.Lock()
        """Held while sessions are opened and closed: an editor may load one twice at once."""
        self._is_ended = False

    def find(self, session_id: str) -> EditorSession:
        """An open session; raises UnknownSession."""
        if session_id not in self._open:
            raise UnknownSession(f"the session {session_id!r} is not open; load or resume it first")
        return self._open[session_id]

    def stored(self, session_id: str) -> Session:
        """A session of the store, by its full id; raises UnknownSession."""
        found = self._hosts.store.get(session_id)
        if found.id != session_id or not self._hosts.may_open(found):
            raise UnknownSession(f"there is no session {session_id!r}")
        return found

    async def new(self, cwd: str, servers: Sequence[Any]) -> EditorSession:
        async with self._changing:
            return await self._opened(cwd, servers, None)

    async def reopen(self, session_id: str, cwd: str, servers: Sequence[Any]) -> EditorSession:
        """A stored session; one that is open here is closed first."""
        async with self._changing:
            stored = self.stored(session_id)
            await self._close(session_id)
            return await self._opened(cwd, servers, stored)

    async def fork(self, session_id: str, cwd: str, servers: Sequence[Any]) -> EditorSession:
        """A new session that continues from a copy of another one."""
        async with self._changing:
            stored = self.stored(session_id)
            copy = await asyncio.to_thread(self._hosts.store.branch, stored.id)
            return await self._opened(cwd, servers, copy)

    async def close(self, session_id: str) -> None:
        async with self._changing:
            self.find(session_id)
            await self._close(session_id)

    async def _close(self, session_id: str) -> None:
        session = self._open.pop(session_id, None)
        if session is not None:
            await session.close()
            await self._hosts.close(session.host)

    def list(self, cwd: str | None, cursor: str | None) -> ListSessionsResponse:
        """The sessions with messages, newest first."""
        at = int(cursor) if cursor and cursor.isdecimal() else 0
        found = self._hosts.store.list(limit=LISTED, offset=at, cwd=cwd, owner=self._hosts.owner)
        infos = [
            SessionInfo(
                session_id=one.id,
                cwd=one.cwd or "/",
                title=one.title or self._hosts.store.first_words(one.id) or one.id,
                updated_at=datetime.fromtimestamp(one.updated_at, UTC).isoformat().replace("+00:00", "Z"),
            )
            for one in found
            if one.message_count and self._hosts.may_open(one)
        ]
        return ListSessionsResponse(sessions=infos, next_cursor=str(at + LISTED) if len(found) == LISTED else None)

    async def end(self) -> None:
        """Close everything, because the editor is gone. What the agents did is in the store."""
        async with self._changing:
            self._is_ended = True
            for session_id in list(self._open):
                await self._close(session_id)
            await self._hosts.end()

    async def _opened(self, cwd: str, servers: Sequence[Any], stored: Session | None) -> EditorSession:
        if self._is_ended:
            raise UsageError("the connection has ended")
        folder = _existing_folder(cwd)
        opened = await asyncio.to_thread(self._hosts.open, self._editor, folder, servers)
        try:
            agent = await asyncio.to_thread(self._agent, opened.host, folder, stored)
        except BaseException:
            await self._hosts.close(opened.host)
            raise
        session = EditorSession(self._editor, agent, opened)
        if opened.approver is not None:
            session.use_editor()
        self._open[agent.session_id] = session
        return session

    def _agent(self, host: AgentHost, folder: str, stored: Session | None) -> Agent:
        hosts = self._hosts
        options: dict[str, Any] = {"host": host, "cwd": folder, "toolsets": hosts.toolsets, "owner": hosts.owner}
        if stored is None:
            return Agent(**options)
        try:
            return Agent(**options, session_id=stored.id, model=stored.model or None, provider=stored.provider)
        except ToolcribError:
            # Its model is no longer configured.
            return Agent(**options, session_id=stored.id)


def _existing_folder(cwd: str) -> str:
    folder = Path(cwd)
    if not folder.is_absolute() or not folder.is_dir():
        raise UsageError(f"the working folder {cwd!r} must be an existing folder, as an absolute path")
    return str(folder)
