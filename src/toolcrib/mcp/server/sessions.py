"""Which client a request comes from: each gets a session of its own, with its own places, grants and processes.

| transport                  | one session is                                                                       |
|----------------------------|--------------------------------------------------------------------------------------|
| stdio                      | the process: it has one client                                                       |
| HTTP, up to 2025-11-25     | the `Mcp-Session-Id` that the client was given when it connected                     |
| HTTP, from 2026-07-28 on   | the cookie that we gave the client; without one, its address, name and version       |

From 2026-07-28 on a request stands for itself: nothing in the protocol says which requests belong together, and one
client may use many connections. A client that keeps cookies is told apart from every other. Clients that keep none
share a session when they run on the same machine and give the same name and version; a client that brings a cookie
for such a session takes it over, so that the next one begins its own.
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
"""Where the request leaves the cookie for the answer: a list in the ASGI scope."""
IDLE_SECONDS = 30 * 60.0
_WELL_FORMED = re.compile(r"[A-Za-z0-9_-]{16,128}")


class ClientSession(msgspec.Struct):
    """What is kept about one client."""

    id: str
    """The session of our runtime."""
    last_used: float
    peer: ServerSession | None = None
    """How a client of the older protocol is told that the tools have changed."""


class ClientSessions:
    """The sessions of all clients of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_key: dict[tuple[str, ...], ClientSession] = {}

    def __iter__(self) -> Iterator[ClientSession]:
        return iter({known.id: known for known in self._by_key.values()}.values())

    def of(self, ctx: ServerRequestContext[Any, Any]) -> ClientSession:
        """The session that a request belongs to; made with its first one."""
        modern = is_modern(ctx)
        request = ctx.request if isinstance(ctx.request, Request) else None
        key = ("process",) if request is None else _key_of_web_request(ctx, request, modern=modern)
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
        """The sessions that nobody has used for a while, of clients that cannot say when they leave."""
        ends = self._clock() - IDLE_SECONDS
        lasting = {known.id for key, known in self._by_key.items() if key[0] in ("process", "header")}
        return [known for known in self if known.last_used < ends and known.id not in lasting]

    def _hand_out_cookie(self, request: Request, session: ClientSession) -> None:
        """Give a client that came without a cookie one for the session that it is in now."""
        known = [key for key, one in self._by_key.items() if one is session and key[0] == "cookie"]
        cookie = known[0][1] if known else new_cookie()
        self._by_key[("cookie", cookie)] = session
        request.scope.setdefault(COOKIE_TO_SET, []).append(cookie)

    def _take_over(self, session: ClientSession) -> None:
        """Its client keeps cookies, so whoever comes without one is somebody else."""
        for key in [key for key, one in self._by_key.items() if one is session and key[0] == "client"]:
            del self._by_key[key]


def is_modern(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether a request stands for itself, so that nothing can be asked while it is open."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def new_cookie() -> str:
    return secrets.token_urlsafe(24)


def cookie_in(header: str) -> str:
    """Our cookie in the header of a request; empty when there is none, or none that we could have given."""
    try:
        found = SimpleCookie(header).get(SESSION_COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None and _WELL_FORMED.fullmatch(found.value) else ""


def _key_of_web_request(ctx: ServerRequestContext[Any, Any], request: Request, *, modern: bool) -> tuple[str, ...]:
    if not modern:
        return ("header", request.headers.get("mcp-session-id", ""))
    cookie = cookie_in(request.headers.get("cookie", ""))
    if cookie:
        return ("cookie", cookie)
    told = ctx.session.client_params
    name, version = (told.client_info.name, told.client_info.version) if told is not None else ("", "")
    return ("client", request.client.host if request.client is not None else "", name, version)
