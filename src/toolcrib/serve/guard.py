"""ASGI middleware in front of every route: addresses, tokens and their scopes, limits, and the access log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.config.serve_settings import ServeLimits
from toolcrib.http_server import OwnAddresses, bearer_token, error_response, host_name, unauthorised
from toolcrib.serve.login import KEY_HEADER, PageLogins
from toolcrib.serve.metrics import ServerMetrics
from toolcrib.serve.openai_requests import refusal_for
from toolcrib.serve.tokens import ServerTokens, TokenError, TokenIdentity, TokenScope

logger = logging.getLogger(__name__)
access_log = logging.getLogger("toolcrib.serve.access")

IDENTITY = "toolcrib.identity"
LOGIN_PATH = "/login"
SAFE_METHODS = frozenset({"GET", "HEAD"})
MEGABYTE = 1024 * 1024
WINDOW_SECONDS = 60.0
FAILURES_PER_WINDOW = 30
"""How many wrong tokens get a 401 in a minute; further ones get a 429. A right token always works: otherwise any web
page could lock the owner out by sending wrong ones."""
SIGNED = " webhooks"
"""Who makes signed requests, for the count of requests; no token has such a name."""
BODY_SECONDS = 30.0
"""How long a request may take to send its body."""
REVOKED_SECONDS = 1.0
"""How soon what a revoked token began is ended."""
LEFT: Message = {"type": "http.disconnect"}


class BodyTooLarge(Exception):
    """More was sent than the limit allows."""


class BodyTooSlow(Exception):
    """The body did not arrive in time."""


class ServeGuard(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must satisfy."""

    addresses: OwnAddresses
    tokens: ServerTokens
    logins: PageLogins
    limits: Callable[[], ServeLimits]
    """Those in force now."""
    body_seconds: float = BODY_SECONDS
    has_separate_owners: bool = False
    """Whether tokens of other owners are let in: one may be created while the server runs."""
    signed_prefix: str = ""
    """Paths that begin with it need no token: each request there is signed, and is counted before it is looked at."""
    scope_of: Callable[[str, str], TokenScope]
    """The scope that a method and a path need."""
    is_open: Callable[[str], bool]
    """Whether everybody may read a path: it contains nothing of anybody's."""
    socket_paths: frozenset[str] = frozenset()
    """Where WebSockets are taken."""


class SlidingWindow:
    """Counts events in the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moments: deque[float] = deque()

    def is_full(self, limit: int) -> bool:
        horizon = self._clock() - WINDOW_SECONDS
        while self._moments and self._moments[0] <= horizon:
            self._moments.popleft()
        return len(self._moments) >= limit

    def add(self) -> None:
        self._moments.append(self._clock())


class OpenRequest:
    """A request in progress, which ends when its token is revoked."""

    def __init__(self, headers: Headers, method: str, identity: TokenIdentity | None) -> None:
        self.headers = headers
        self.method = method
        self.identity = identity
        self._is_revoked = False
        self._waiting: asyncio.Timeout | None = None

    async def message(self, receive: Receive, deadline: float | None, left: Message) -> Message:
        """The client's next message; `left` if the token is revoked meanwhile. Raises TimeoutError at the deadline."""
        if self.is_revoked():
            return left
        try:
            # No task for the wait: there is one for each stream.
            async with asyncio.timeout_at(deadline) as self._waiting:
                return await receive()
        except TimeoutError:
            if self.is_revoked():
                return left
            raise
        finally:
            self._waiting = None

    def is_revoked(self) -> bool:
        return self._is_revoked

    def revoke(self) -> None:
        """Tell the route that its client has left."""
        self._is_revoked = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())


class AccessMiddleware:
    """Applies the guard, and logs each request without its secrets. `watch_tokens` ends what a revoked one began."""

    def __init__(self, app: ASGIApp, guard: ServeGuard, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._guard = guard
        self._open: set[OpenRequest] = set()
        self._requests: dict[str, SlidingWindow] = {}
        self._failures = SlidingWindow()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._socket(scope, receive, send)
            return
        started, status, identity, is_sent = time.monotonic(), 500, None, False

        async def send_and_remember(message: Message) -> None:
            nonlocal status, is_sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": _with_security_headers(message.get("headers", []))}
            else:
                is_sent = not message.get("more_body", False)
            await send(message)

        headers = Headers(scope=scope)
        try:
            refusal, identity = self._check(scope, headers)
            if refusal is not None:
                await refusal_for(scope["path"], refusal)(scope, receive, send_and_remember)
                return
            with self._opened(headers, scope["method"], identity) as request:
                limited = self._limited(receive, request)
                await self._app({**scope, IDENTITY: identity}, limited, send_and_remember)
                if request.is_revoked() and not is_sent:
                    await send({"type": "http.response.body"})
        finally:
            who = identity.name if identity is not None else "-"
            took_ms = (time.monotonic() - started) * 1000
            self._metrics.request_ended(_known_method(scope["method"]), status, took_ms / 1000)
            # The path only: a query may hold what somebody searched for. Encoded: a line break would forge an entry.
            path = scope["raw_path"].partition(b"?")[0].decode("ascii", "backslashreplace")
            access_log.info("%s %s %s %d %.0f ms", who, scope["method"], path, status, took_ms)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket needs the token in its header: a cookie would let in any page that knows the address."""
        headers, path = Headers(scope=scope), scope["path"]
        identity = None
        if path in self._guard.socket_paths and "authorization" in headers and self._is_same_origin(headers):
            refusal, identity = self._check({**scope, "method": "GET"}, headers)
            identity = identity if refusal is None else None
        access_log.info(
            "%s WEBSOCKET %s", identity.name if identity is not None else "-", path.encode("unicode_escape")
        )
        if identity is None:
            await send({"type": "websocket.close", "code": 1008})
            return
        with self._opened(headers, "GET", identity) as request:
            left = {"type": "websocket.disconnect", "code": 1008}
            await self._app({**scope, IDENTITY: identity}, lambda: request.message(receive, None, left), send)
            if request.is_revoked():
                with suppress(OSError):  # The client may have left in the same moment.
                    await send({"type": "websocket.close", "code": 1008})

    @contextmanager
    def _opened(self, headers: Headers, method: str, identity: TokenIdentity | None) -> Iterator[OpenRequest]:
        request = OpenRequest(headers, method, identity)
        self._open.add(request)
        try:
            yield request
        finally:
            self._open.discard(request)

    async def watch_tokens(self) -> None:
        """End requests whose token was revoked or changed: another program may do that at any time."""
        while True:
            await asyncio.sleep(REVOKED_SECONDS)
            watched = [one for one in self._open if one.identity is not None]
            if not watched:
                continue
            try:
                gone = await asyncio.to_thread(self._gone, watched)
            except (TokenError, OSError):
                logger.exception("cannot read the tokens")
                continue
            for one in gone:
                one.revoke()

    def _gone(self, requests: Iterable[OpenRequest]) -> list[OpenRequest]:
        """Those whose sender would not be the same now."""
        known: dict[tuple[str, ...], TokenIdentity | None] = {}
        gone = []
        for one in requests:
            # Many streams of one browser or token are looked up once.
            secrets = tuple(one.headers.get(name, "") for name in ("authorization", "cookie", KEY_HEADER))
            if secrets not in known:
                known[secrets] = self._identify(one.headers, one.method)
            if known[secrets] != one.identity:
                gone.append(one)
        return gone

    def _check(self, scope: Scope, headers: Headers) -> tuple[Response | None, TokenIdentity | None]:
        guard, method, path = self._guard, scope["method"], scope["path"]
        refusal = guard.addresses.refusal(headers)
        if refusal is None and guard.is_open(path) and method in SAFE_METHODS:
            return None, None
        refusal = refusal or self._refused_sender(headers, method)
        if refusal is not None or path == LOGIN_PATH:
            return refusal, None
        if guard.signed_prefix and path.startswith(guard.signed_prefix):
            return self._beyond_limits(SIGNED, headers), None
        try:
            identity = self._identify(headers, method)
        except (TokenError, OSError):
            logger.exception("cannot read the tokens")
            return error_response(503, "the server cannot read its tokens; its log says why"), None
        if identity is None:
            if self._failures.is_full(FAILURES_PER_WINDOW):
                return error_response(
                    429, "too many requests with a wrong token; wait a minute", {"Retry-After": "60"}
                ), None
            self._failures.add()
            message = "this server needs its token in the header `Authorization: Bearer TOKEN`; "
            return unauthorised(headers, message + "`toolcrib serve token` prints it on the server's machine"), None
        if identity.owner and not guard.has_separate_owners:
            return error_response(403, "this server serves only its owner; its backend does not isolate owners"), None
        needed = guard.scope_of(method, path)
        if not identity.may(needed):
            return error_response(403, f"the token {identity.name!r} lacks the scope {needed!r}"), identity
        return self._beyond_limits(identity.name, headers), identity

    def _beyond_limits(self, who: str, headers: Headers) -> Response | None:
        limits = self._guard.limits()
        window = self._requests.setdefault(who, SlidingWindow())
        if window.is_full(limits.requests_per_minute):
            return error_response(429, "too many requests; wait a minute", {"Retry-After": "60"})
        window.add()
        length = headers.get("content-length", "0")
        max_bytes = int(limits.max_body_mb * MEGABYTE)
        if not length.isdigit() or int(length) > max_bytes:
            return error_response(413, f"a request may have at most {max_bytes:,} bytes")
        return None

    def _identify(self, headers: Headers, method: str) -> TokenIdentity | None:
        if "authorization" in headers:
            return self._guard.tokens.identify(bearer_token(headers))
        return self._guard.logins.identify(headers, method)

    def _refused_sender(self, headers: Headers, method: str) -> Response | None:
        """Objections to a request that changes something: from another site, or in a format that forms can send."""
        if method in SAFE_METHODS:
            return None
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or not self._is_same_origin(headers):
            return error_response(403, "pages of other sites may not use this server")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if has_body and kind != "application/json":
            return error_response(415, "send JSON, with the header `Content-Type: application/json`")
        return None

    def _is_same_origin(self, headers: Headers) -> bool:
        """Whether a page that sends a request is ours: another port of this machine is another site."""
        origin = headers.get("origin")
        if origin is None:
            return True
        location = origin.partition("://")[2].lower()
        return location == headers.get("host", "").lower() or host_name(location) in self._guard.addresses.names

    def _limited(self, receive: Receive, request: OpenRequest) -> Receive:
        """Stops a body at the limits on its size and its time."""
        taken, is_complete, max_bytes = 0, False, int(self._guard.limits().max_body_mb * MEGABYTE)
        deadline = asyncio.get_running_loop().time() + self._guard.body_seconds

        async def receive_within_limit() -> Message:
            nonlocal taken, is_complete
            try:
                message = await request.message(receive, None if is_complete else deadline, LEFT)
            except TimeoutError:
                raise BodyTooSlow from None
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                is_complete = not message.get("more_body", False)
                if taken > max_bytes:
                    raise BodyTooLarge
            return message

        return receive_within_limit


def _known_method(method: str) -> str:
    """A client chooses the word; the metrics must not grow with it."""
    return method if method in KNOWN_METHODS else "other"


KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECURITY_HEADERS: list[tuple[bytes, bytes]] = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]


def _with_security_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers, with ours where the route set none of that name."""
    given = list(headers)
    names = {name.lower() for name, _ in given}
    return [*given, *(one for one in SECURITY_HEADERS if one[0] not in names)]


def identity_of(scope: Any) -> TokenIdentity:
    """Who makes a request that the guard let in."""
    identity: TokenIdentity = scope[IDENTITY]
    return identity
