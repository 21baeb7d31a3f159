"""The login that is kept for a server, sent with each request and renewed when it is old.

Nothing is opened here and nobody is kept waiting: a request that no login is kept for is answered in the server's
place, with the sentence that says how to log in (see `http_transport.py`). `login.py` is for when a person is there.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
from collections.abc import AsyncGenerator

import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth
from mcp.shared.auth import OAuthToken

from toolcrib.config.paths import Home
from toolcrib.core.attempt import attempt
from toolcrib.mcp.failures import NoLogin, ServerFailed
from toolcrib.mcp.http_transport import LOGIN, NOT_SENT, answered_here, http_client
from toolcrib.mcp.login_state import REDIRECT_URI, LoginState
from toolcrib.mcp.servers import Server
from toolcrib.mcp.token_store import Kept, TokenStore, token_store
from toolcrib.mcp.untrusted_text import one_line

logger = logging.getLogger(__name__)

RENEW_SECONDS = 30.0
SHOWN_CHARS = 300
TEMPORARY = frozenset(("server_error", "temporarily_unavailable", "slow_down"))
MAX_SCOPE_CHARS = 1000
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # What RFC 6749 allows.


def kept_login(server: Server, home: Home) -> KeptLogin:
    """What sends the login that is kept for a server; raises NoLogin where there is none. Never asks anybody."""
    store = token_store(server, home)
    if not store.read().is_usable:
        raise NoLogin(f"nobody has logged in; {login_hint(server.name)}")
    return KeptLogin(server, store)


def login_hint(server: str) -> str:
    return f"log in with `toolcrib mcp login {shlex.quote(server)}`"


class KeptLogin(LoginState):
    """The login at one server, for the requests of one connection."""

    def __init__(self, server: Server, store: TokenStore, redirect_uri: str = REDIRECT_URI) -> None:
        super().__init__(server, store, redirect_uri)
        self._renewal: asyncio.Task[None] | None = None

    # One request

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        # Not that of the SDK, which lets each request wait for the answer to the one before.
        if trouble := await self._trouble():
            yield answered_here(request, *trouble)
            return
        sent = self.authorize(request)
        response = yield request
        if response.status_code == 401 and sent:
            try:
                is_new = await self._renewed(sent)
            except ServerFailed as error:
                yield answered_here(request, NOT_SENT, str(error))
                return
            if is_new:
                sent = self.authorize(request)
                response = yield request
        lacks = _lacked_scope(response)
        if response.status_code != 401 and lacks is None:
            return
        flow = self._refused(request, response, sent, lacks)
        try:
            outgoing = await anext(flow)
            while True:
                outgoing = await flow.asend((yield outgoing))
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    async def _refused(
        self, request: httpx2.Request, response: httpx2.Response, sent: str, lacks: str | None
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """What follows when the server refused a request with the token `sent`, for want of the scope `lacks`."""
        del response, sent
        if lacks is None:
            reason = f"the server does not accept the login any more; {login_hint(self.server.name)}"
        else:
            self.keep(lambda kept: msgspec.structs.replace(kept, wanted_scope=lacks))
            what = f" ({one_line(lacks, SHOWN_CHARS)})" if lacks else ""
            reason = f"the server wants more permission for this{what}; {login_hint(self.server.name)}"
        yield answered_here(request, LOGIN, reason)

    async def _trouble(self) -> tuple[str, str] | None:
        """Why nothing can be sent now; None when a token is at hand, or when a person may be asked for one."""
        self.look()
        if not self.context.is_token_valid() and self.context.can_refresh_token():
            try:
                await self._renewed(self.token)
            except ServerFailed as error:
                return NOT_SENT, str(error)
        if not self.may_ask and not self.context.is_token_valid():
            return LOGIN, f"the login has ended; {login_hint(self.server.name)}"
        return None

    # Renewing

    async def _renewed(self, refused: str) -> bool:
        """Have another token than this one, if it can be had without a person.

        Raises ServerFailed when whoever gives them cannot be reached. One exchange serves all who wait, and goes on
        when they are cancelled: a refresh token that was sent and whose successor nobody heard of is lost.
        """
        if self.token == refused:
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.get_running_loop().create_task(self._renew(refused))
                self._renewal.add_done_callback(_heard)
            await asyncio.shield(self._renewal)
        return bool(self.token) and self.token != refused

    async def _renew(self, refused: str) -> None:
        async with self.store.renewing():
            self.look(again=True)
            tokens = self.context.current_tokens
            is_new = self.token != refused and self.context.is_token_valid()
            if is_new or tokens is None or not self.context.can_refresh_token():
                return
            response = await self._exchange()
            if response.status_code == 200:
                self._take_renewed(response, tokens)
            elif self._is_final(response):
                logger.info("the login at MCP server %r has ended: HTTP %d", self.server.name, response.status_code)
                is_unknown = error_of(response) == "invalid_client"
                self.keep(lambda kept: _without_tokens(kept, tokens, and_client=is_unknown))
                self.look(again=True)
            else:
                raise ServerFailed(f"its login could not be renewed: HTTP {response.status_code}")

    async def _exchange(self) -> httpx2.Response:
        try:
            request = self.safe(await self._refresh_token())
        except OAuthFlowError as error:
            raise ServerFailed(f"its login could not be renewed: {one_line(str(error), SHOWN_CHARS)}") from error
        client, guard = http_client(self.server, None, lambda _: None, takes_events=False)
        try:
            async with client, asyncio.timeout(RENEW_SECONDS):
                response = await client.send(request)
        except (httpx2.StreamError, TimeoutError) as error:
            raise ServerFailed("its login could not be renewed: no answer in time") from error
        if guard.last_failure:
            raise ServerFailed(f"its login could not be renewed: {guard.last_failure}")
        return response

    def _take_renewed(self, response: httpx2.Response, before: OAuthToken) -> None:
        tokens, _ = attempt(OAuthToken.model_validate_json, response.content)
        if tokens is None:
            raise ServerFailed("its login could not be renewed: the answer makes no sense")
        # What is left out is as it was.
        tokens.scope = tokens.scope or before.scope
        tokens.refresh_token = tokens.refresh_token or before.refresh_token
        self.keep_tokens(tokens, before)

    def _is_final(self, response: httpx2.Response) -> bool:
        """Whether an answer says that the refresh token is of no use any more."""
        return (
            400 <= response.status_code < 500
            and response.status_code not in (408, 425, 429)
            and (error_of(response) not in TEMPORARY)
        )


def _heard(renewal: asyncio.Task[None]) -> None:
    """Whoever waited for it may have been cancelled; what went wrong is then of no interest."""
    if not renewal.cancelled():
        renewal.exception()


def _lacked_scope(response: httpx2.Response) -> str | None:
    """The scope that a refusal says is lacking; None for anything else."""
    if response.status_code != 403 or extract_field_from_www_auth(response, "error") != "insufficient_scope":
        return None
    return " ".join(_SCOPE.findall(extract_scope_from_www_auth(response) or ""))[:MAX_SCOPE_CHARS]


def _without_tokens(kept: Kept, dead: OAuthToken, *, and_client: bool) -> Kept:
    """Without tokens that are of no use, or a registration that is not known; a login in the meantime stays."""
    if (kept.tokens or {}).get("refresh_token") != dead.refresh_token:
        return kept
    return msgspec.structs.replace(kept, tokens=None, renew_at=None, client=None if and_client else kept.client)


def error_of(response: httpx2.Response) -> str:
    """The name of an OAuth error; empty when the answer has none."""
    body, _ = attempt(msgspec.json.decode, response.content)
    name = body.get("error") if isinstance(body, dict) else None
    return one_line(name, 60) if isinstance(name, str) else ""
