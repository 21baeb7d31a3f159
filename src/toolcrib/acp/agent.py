"""The agent as the protocol sees it: one method for each request of an editor.

Only the SDK is loaded to answer `initialize`; everything else follows with the first session.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from acp import PROTOCOL_VERSION, RequestError
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    AuthenticateResponse,
    ClientCapabilities,
    CloseSessionResponse,
    ForkSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionForkCapabilities,
    SessionListCapabilities,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
)

from toolcrib.acp.editor import EditorConnection
from toolcrib.core.errors import ToolcribError, UnknownSession
from toolcrib.version import __version__

if TYPE_CHECKING:
    from toolcrib.acp.session import EditorSession
    from toolcrib.acp.sessions import EditorSessions

P = ParamSpec("P")
R = TypeVar("R")

INVALID_REQUEST, INVALID_PARAMS, NOT_FOUND = -32600, -32602, -32002
CAPABILITIES = AgentCapabilities(
    load_session=True,
    prompt_capabilities=PromptCapabilities(image=True, embedded_context=True),
    mcp_capabilities=McpCapabilities(http=True, sse=True),
    session_capabilities=SessionCapabilities(
        list=SessionListCapabilities(),
        resume=SessionResumeCapabilities(),
        fork=SessionForkCapabilities(),
        close=SessionCloseCapabilities(),
    ),
)


def _reported(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Our errors as those of the protocol, with the same sentence."""

    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await method(*args, **kwargs)
        except UnknownSession as error:
            raise RequestError(NOT_FOUND, str(error)) from error
        except ToolcribError as error:
            raise RequestError(INVALID_PARAMS, str(error)) from error

    return call


class EditorAgent:
    """Answers one editor; see the interface `acp.Agent`."""

    def __init__(self, open_sessions: Callable[[EditorConnection], EditorSessions]) -> None:
        """`open_sessions` may take a while; it is called in a thread, for the first request about a session."""
        self._open_sessions = open_sessions
        self._client: Client | None = None
        self._capabilities: ClientCapabilities | None = None
        self._is_initialized = False
        self._opening = asyncio.Lock()
        self._opened: EditorSessions | None = None

    def on_connect(self, conn: Client) -> None:
        self._client = conn

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **_: Any,
    ) -> InitializeResponse:
        if self._opened is not None:
            raise RequestError(INVALID_REQUEST, "the connection is initialized already, and has sessions")
        self._capabilities, self._is_initialized = client_capabilities, True
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=CAPABILITIES,
            agent_info=Implementation(name="toolcrib", title="toolcrib", version=__version__),
            auth_methods=[],
        )

    async def authenticate(self, method_id: str, **_: Any) -> AuthenticateResponse | None:
        raise RequestError(INVALID_PARAMS, f"there is no login {method_id!r}; run `toolcrib setup` to enter keys")

    @_reported
    async def new_session(
        self,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Any] | None = None,
        **_: Any,
    ) -> NewSessionResponse:
        session = await (await self._sessions()).new(cwd, mcp_servers or [])
        session.announce()
        return NewSessionResponse(
            session_id=session.agent.session_id, modes=session.modes(), config_options=_options(session)
        )

    @_reported
    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: list[Any] | None = None,
        additional_directories: list[str] | None = None,
        **_: Any,
    ) -> LoadSessionResponse | None:
        sessions = await self._sessions()
        try:
            session = await sessions.reopen(session_id, cwd, mcp_servers or [])
        except UnknownSession:
            # Editors remember sessions that are gone, and give up on the agent if that is an error.
            return None
        await session.replay()
        session.announce()
        return LoadSessionResponse(modes=session.modes(), config_options=_options(session))

    @_reported
    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Any] | None = None,
        **_: Any,
    ) -> ResumeSessionResponse:
        session = await (await self._sessions()).reopen(session_id, cwd, mcp_servers or [])
        session.announce()
        return ResumeSessionResponse(modes=session.modes(), config_options=_options(session))

    @_reported
    async def fork_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: list[Any] | None = None,
        **_: Any,
    ) -> ForkSessionResponse:
        session = await (await self._sessions()).fork(session_id, cwd, mcp_servers or [])
        session.announce()
        return ForkSessionResponse(
            session_id=session.agent.session_id, modes=session.modes(), config_options=_options(session)
        )

    @_reported
    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> ListSessionsResponse:
        sessions = await self._sessions()
        return await asyncio.to_thread(sessions.list, cwd, cursor)

    @_reported
    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse | None:
        await (await self._sessions()).close(session_id)
        return CloseSessionResponse()

    @_reported
    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> SetSessionModeResponse | None:
        (await self._session(session_id)).use_mode(mode_id)
        return SetSessionModeResponse()

    @_reported
    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> SetSessionConfigOptionResponse | None:
        session = await self._session(session_id)
        options: list[Any] = list(await session.use_option(config_id, str(value)))
        return SetSessionConfigOptionResponse(config_options=options)

    @_reported
    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> PromptResponse:
        return await (await self._session(session_id)).prompt(prompt)

    async def cancel(self, session_id: str, **_: Any) -> None:
        if self._opened is not None:
            try:
                self._opened.find(session_id).cancel()
            except UnknownSession:
                return  # A notification has no answer, and there is nothing to stop.

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise RequestError.method_not_found(f"_{method}")

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        return None

    async def close(self) -> None:
        """End the sessions, because the editor is gone."""
        if self._opened is not None:
            await self._opened.end()

    async def _session(self, session_id: str) -> EditorSession:
        return (await self._sessions()).find(session_id)

    async def _sessions(self) -> EditorSessions:
        if self._client is None or not self._is_initialized:
            raise RequestError(INVALID_REQUEST, "send `initialize` first")
        async with self._opening:
            if self._opened is None:
                editor = EditorConnection(self._client, self._capabilities)
                self._opened = await asyncio.to_thread(self._open_sessions, editor)
            return self._opened


def _options(session: EditorSession) -> list[Any]:
    return list(session.options())
