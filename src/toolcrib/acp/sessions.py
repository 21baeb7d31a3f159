"""The sessions that one editor has open: creates, loads, resumes, forks and closes them. All are stored as usual."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from acp.schema import AcpMcpServer, HttpMcpServer, ListSessionsResponse, McpServerStdio, SessionInfo, SseMcpServer
from msgspec import Struct
from msgspec.structs import replace

from toolcrib.acp.approvals import EditorApprover, EditorAsker
from toolcrib.acp.editor import EditorConnection
from toolcrib.acp.session import EditorSession, OpenedHost
from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.api import adopt_runtime
from toolcrib.config.load import load_settings
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.core.errors import ToolcribError, UnknownSession, UsageError
from toolcrib.sessions.records import Session
from toolcrib.sessions.store import SessionStore

PLATFORM = "acp"
"""The source of the sessions that editors open."""
LISTED = 50
CURSOR_CHARS = 9


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
        if cursor and (not cursor.isdecimal() or len(cursor) > CURSOR_CHARS):
            raise UsageError(f"the cursor {cursor!r} is not one that this list gave")
        at, folder = int(cursor or 0), os.path.normpath(cwd) if cwd else None
        found = self._hosts.store.list(
            limit=LISTED + 1, offset=at, cwd=folder, owner=self._hosts.owner, include_empty=False
        )
        infos = [
            SessionInfo(
                session_id=one.id,
                cwd=one.cwd or "/",
                title=one.title or self._hosts.store.first_words(one.id) or one.id,
                updated_at=datetime.fromtimestamp(one.updated_at, UTC).isoformat().replace("+00:00", "Z"),
            )
            for one in found[:LISTED]
            if self._hosts.may_open(one)
        ]
        return ListSessionsResponse(sessions=infos, next_cursor=str(at + LISTED) if len(found) > LISTED else None)

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
        if stored is not None:
            # The process that had the session may have been killed; its commands must not run on.
            await asyncio.to_thread(opened.host.runtime.terminal.start_recovery)
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
    return os.path.normpath(cwd)


FROM_EDITOR = "-editor"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


class EditorServers(Struct, frozen=True):
    """The servers to connect, and why others are left out."""

    servers: dict[str, McpServerSettings]
    """Those of the config, and the editor's."""
    problems: tuple[str, ...] = ()


def with_editor_servers(
    given: Sequence[Any],
    configured: Mapping[str, McpServerSettings],
    trust: Literal["ask", "read_only", "all"],
) -> EditorServers:
    """The servers of the config and those of the editor.

    A server that the config has already keeps the trust it has there. Another one with the same name gets another
    name: a name alone earns no trust.
    """
    servers, problems = dict(configured), []
    for one in given:
        if isinstance(one, AcpMcpServer):
            problems.append(f"the MCP server {one.name!r} is left out: servers inside the editor are not supported")
            continue
        settings = _settings(one, trust)
        if _has_variable(settings):
            # Our variables hold keys, and the editor's settings may come from a project.
            problems.append(f"the MCP server {one.name!r} is left out: its settings use a variable (`${{…}}`)")
            continue
        name = _NOT_IN_NAMES.sub("-", one.name).strip("-") or "server"
        if name in configured and _is_same(configured[name], settings):
            continue
        while name in servers:
            name += FROM_EDITOR
        servers[name] = settings
    return EditorServers(servers, tuple(problems))


def _settings(
    one: McpServerStdio | HttpMcpServer | SseMcpServer, trust: Literal["ask", "read_only", "all"]
) -> McpServerSettings:
    if isinstance(one, McpServerStdio):
        return McpServerSettings(
            command=one.command, args=list(one.args), env={each.name: each.value for each in one.env}, trust=trust
        )
    headers = {header.name: header.value for header in one.headers}
    transport: Literal["http", "sse"] = "sse" if isinstance(one, SseMcpServer) else "http"
    return McpServerSettings(url=one.url, headers=headers, transport=transport, trust=trust)


def _is_same(configured: McpServerSettings, given: McpServerSettings) -> bool:
    if given.url:
        return configured.url == given.url
    return (configured.command, configured.args) == (given.command, given.args)


def _has_variable(settings: McpServerSettings) -> bool:
    texts = (settings.command, settings.url, *settings.args, *settings.env.values(), *settings.headers.values())
    return any("${" in text for text in texts)
