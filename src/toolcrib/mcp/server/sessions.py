"""Which client a request comes from: each client gets its own session, with its own environments, grants and processes.

| transport                  | a session is identified by                                                           |
|----------------------------|--------------------------------------------------------------------------------------|
| stdio                      | the process: it has one client                                                       |
| HTTP, up to 2025-11-25     | the `Mcp-Session-Id` that the client got when it connected                           |
| HTTP, since 2026-07-28     | the cookie that we gave the client; without one, its address, name and version       |

Since 2026-07-28 a request stands alone: nothing in the protocol says which requests belong together, and one client may
use many connections. A client that keeps cookies is told apart from all others. Clients that keep none share a session
if they run on the same machine with the same name and version; a client that returns a cookie for such a session takes
it over, so the next client starts its own.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from http.cookies import CookieError, SimpleCookie
from typing import Any

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

SESSION_COOKIE = "toolcrib-session"
COOKIE_TO_SET = "toolcrib.cookie_to_set"
"""Where the request leaves the cookie for the response: a list in the ASGI scope."""
IDLE_SECONDS = 30 * 60.0
_WELL_FORMED = re.compile(r"[A-Za-z0-9_-]{16,128}")


class ClientSession(msgspec.Struct):
    """The session of one client."""

    id: str
    """The session id in our runtime."""
    last_used: float
    peer: ServerSession | None = None
    """Notifies a client of the older protocol that the tools have changed."""


class ClientSessions:
    """The sessions of all clients of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_key: dict[tuple[str, ...], ClientSession] = {}

    def __iter__(self) -> Iterator[ClientSession]:
        return iter({known.id: known for known in self._by_key.values()}.values())

    def for_request(self, ctx: ServerRequestContext[Any, Any]) -> ClientSession:
        """The session that a request belongs to; created on the first request."""
        modern = is_modern(ctx)
        request = ctx.request if isinstance(ctx.request, Request) else None
        key = ("process",) if request is None else _http_key(ctx, request, modern=modern)
        session = self._by_key.get(key)
        if session is None:
            session = self._by_key[key] = ClientSession(f"mcp-{secrets.token_hex(12)}", self._clock())
        session.last_used = self._clock()
        if not modern:
            session.peer = ctx.session
        elif key[0] == "client" and request is not None:
            self._hand_out_cookie(request, session)
        elif key[0] == "cookie":
            self._take_over(session)
        return session

    def forget(self, session: ClientSession) -> None:
        self._by_key = {key: known for key, known in self._by_key.items() if known is not session}

    def idle(self) -> list[ClientSession]:
        """Sessions unused for a while, of clients that cannot announce when they leave."""
        ends = self._clock() - IDLE_SECONDS
        lasting = {known.id for key, known in self._by_key.items() if key[0] in ("process", "header")}
        return [known for known in self if known.last_used < ends and known.id not in lasting]

    def _hand_out_cookie(self, request: Request, session: ClientSession) -> None:
        """Give a client without a cookie one for its current session."""
        known = [key for key, one in self._by_key.items() if one is session and key[0] == "cookie"]
        cookie = known[0][1] if known else new_cookie()
        self._by_key[("cookie", cookie)] = session
        request.scope.setdefault(COOKIE_TO_SET, []).append(cookie)

    def _take_over(self, session: ClientSession) -> None:
        """The client keeps cookies, so a request without one comes from somebody else."""
        for key in [key for key, one in self._by_key.items() if one is session and key[0] == "client"]:
            del self._by_key[key]


def is_modern(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether a request stands alone, so that nothing can be asked while it is open."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def new_cookie() -> str:
    return secrets.token_urlsafe(24)


def cookie_in(header: str) -> str:
    """Our cookie in a request header; empty if there is none, or none that we could have issued."""
    try:
        found = SimpleCookie(header).get(SESSION_COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None and _WELL_FORMED.fullmatch(found.value) else ""


def _http_key(ctx: ServerRequestContext[Any, Any], request: Request, *, modern: bool) -> tuple[str, ...]:
    if not modern:
        return ("header", request.headers.get("mcp-session-id", ""))
    cookie = cookie_in(request.headers.get("cookie", ""))
    if cookie:
        return ("cookie", cookie)
    client = ctx.session.client_params
    name, version = (client.client_info.name, client.client_info.version) if client is not None else ("", "")
    return ("client", request.client.host if request.client is not None else "", name, version)
