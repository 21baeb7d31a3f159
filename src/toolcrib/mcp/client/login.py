"""Logging in at a server with a person at hand, and forgetting the login again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import union_scopes
from mcp.shared.auth import AuthorizationCodeResult, OAuthToken

from toolcrib.core.attempt import attempt, attempt_async
from toolcrib.core.errors import ConfigError
from toolcrib.mcp.client.errors import NeedsLogin, ServerFailed
from toolcrib.mcp.client.http_transport import LOGIN, Guard, answered_here, http_client
from toolcrib.mcp.client.oauth import REDIRECT_URI, SHOWN_CHARS, KeptLogin, error_of
from toolcrib.mcp.client.servers import Server
from toolcrib.mcp.client.token_store import TokenStore
from toolcrib.mcp.client.untrusted_text import one_line

Ask = Callable[[str], Awaitable[str]]
"""Shows a person the address to log in at; gives the address that the browser was sent back to."""

ANSWER_SECONDS = 30.0
REVOKE_SECONDS = 10.0
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


class AskedLogin(KeptLogin):
    """Sends the login that is kept; where there is none, or it does not suffice, a person is asked to log in."""

    may_ask = True

    def __init__(
        self, server: Server, store: TokenStore, ask: Ask, redirect_uri: str = REDIRECT_URI, *, anew: bool = False
    ) -> None:
        """With `anew`, the first request is used to log in, whatever is kept and whether or not it is refused."""
        super().__init__(server, store, redirect_uri)
        self.failure: ServerFailed | None = None
        """Why a login did not come about."""
        self.first_status = 0
        """What the server said to the first request, without a login."""
        self.context.redirect_handler = self._note_address
        self.context.callback_handler = self._came_back
        self._ask = ask
        self._anew = anew
        self._address = ""

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        is_first, self._anew = self._anew, False
        if is_first:
            self.look()
            response = yield request
            self.first_status = response.status_code
            flow = self._refused(request, response, self.token, None)
        else:
            flow = super()._auth_flow(request)
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
        # What can be renewed without a person, was.
        self.context.token_expiry_time = None
        flow = super(KeptLogin, self)._auth_flow(request)
        try:
            outgoing, error = await attempt_async(anext(flow))  # Waits until no other request is about to log in.
            if error is None and self.token != sent:
                self.authorize(request)
                yield request
                return
            if error is None:
                outgoing, error = await attempt_async(flow.asend(self._challenge(response, lacks)))
            while outgoing is not None and (error := attempt(self.safe, outgoing).error) is None:
                answer = yield outgoing
                outgoing, error = await attempt_async(flow.asend(answer))
        finally:
            await flow.aclose()
        if error is not None and not isinstance(error, StopAsyncIteration):
            self.failure = error if isinstance(error, ServerFailed) else ServerFailed(_in_words(error))
            yield answered_here(request, LOGIN, str(self.failure))

    def _challenge(self, response: httpx2.Response, lacks: str | None) -> httpx2.Response:
        """What the flow of the SDK sees: a refusal that names the scopes which are to be asked for."""
        if lacks is not None:
            return response
        tokens = self.context.current_tokens
        asked: str | None = " ".join(self.server.settings.oauth.scopes)
        if self.wanted_scope:
            granted = tokens.scope if tokens is not None else None
            asked = union_scopes(union_scopes(asked, granted), self.wanted_scope)
        said = response.headers.get("www-authenticate", "Bearer")
        # Of several scopes the SDK takes the first.
        said = f'Bearer scope="{asked}", {said.removeprefix("Bearer").lstrip()}' if asked else said
        return httpx2.Response(401, headers={"www-authenticate": said}, request=response.request)

    # For the flow of the SDK

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        await response.aread()
        if response.status_code not in (200, 201):
            said = error_of(response)
            if said == "invalid_client":
                self.keep(lambda kept: msgspec.structs.replace(kept, client=None))
            raise ServerFailed(f"the login failed: its code was not accepted ({said or response.status_code})")
        if attempt(OAuthToken.model_validate_json, response.content).error is not None:
            raise ServerFailed("the login failed: the answer to its code holds no token")
        await super()._handle_token_response(response)

    async def _note_address(self, address: str) -> None:
        self.safe(httpx2.Request("GET", address))
        self._address = address

    async def _came_back(self) -> AuthorizationCodeResult:
        given = parse_qs(urlsplit(await self._ask(self._address)).query)
        error, about, code, state, iss = (
            next(iter(given.get(name, [])), None) for name in ("error", "error_description", "code", "state", "iss")
        )
        if error or not code:
            raise NeedsLogin(f"the login was refused: {one_line(about or error or 'no code came back', SHOWN_CHARS)}")
        return AuthorizationCodeResult(code=code, state=state, iss=iss)


async def log_in(server: Server, store: TokenStore, ask: Ask, redirect_uri: str = REDIRECT_URI) -> None:
    """Log in at a server and keep the login. Raises ServerFailed with what went wrong."""
    auth = AskedLogin(server, store, ask, redirect_uri, anew=True)
    client, guard = http_client(server, auth, lambda _: None, takes_events=False)
    client.timeout = httpx2.Timeout(ANSWER_SECONDS)
    async with client:
        status = await _knock(client, server)
    if auth.failure is not None:
        raise _explained(auth, guard, auth.failure)
    if guard.last_failure:
        raise ServerFailed(f"{server.name!r} cannot be reached: {guard.last_failure}")
    if status in (401, 403):
        raise ServerFailed(f"{server.name!r} does not accept the login that it gave (HTTP {status})")


async def log_out(store: TokenStore, server: Server) -> tuple[bool, bool]:
    """Forget a login. Says whether there was one, and whether the server was told to forget it too."""
    told = False
    kept = store.read_any()
    if kept.tokens is not None and kept.url:
        auth = KeptLogin(server, store)
        auth.take(kept)
        told = await _revoke(auth)
    return store.delete(), told


async def _knock(client: httpx2.AsyncClient, server: Server) -> int:
    """The last status of a request that changes nothing; the login happens on the way."""
    request = client.build_request("POST", server.settings.url, json=PING, headers=HEADERS)
    try:
        response = await client.send(request, stream=True, follow_redirects=False)
        await response.aclose()
    except httpx2.StreamError as error:
        raise ServerFailed(f"{server.name!r} gave an answer that broke off or is far too long") from error
    return response.status_code


def _explained(auth: AskedLogin, guard: Guard, failure: ServerFailed) -> ServerFailed:
    """The same failure with what to do about it, as far as that is known."""
    name, context = auth.server.name, auth.context
    if guard.last_failure:
        return ServerFailed(f"{name!r} cannot be reached: {guard.last_failure}")
    is_described = context.oauth_metadata is not None or context.protected_resource_metadata is not None
    if context.client_info is None and not is_described and auth.first_status not in (401, 403):
        return ServerFailed(
            f"{name!r} does not ask for a login and says nothing about one (HTTP {auth.first_status}); "
            f"type `toolcrib config set mcp_servers.{name}.auth none`"
        )
    if context.client_info is None and is_described:
        return ServerFailed(
            f"{failure}; if {name!r} wants its users to register programs themselves, do that there and set "
            f"mcp_servers.{name}.oauth.client_id"
        )
    return failure


async def _revoke(auth: KeptLogin) -> bool:
    """Tell whoever gave the tokens that they are not wanted any more; best effort."""
    found, tokens = auth.context.oauth_metadata, auth.context.current_tokens
    if found is None or found.revocation_endpoint is None or tokens is None:
        return False
    client, guard = http_client(auth.server, None, lambda _: None, takes_events=False)
    try:
        async with client, asyncio.timeout(REVOKE_SECONDS):
            for kind, token in (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token)):
                if token is not None:
                    request = auth.revocation(str(found.revocation_endpoint), token, kind)
                    response = await client.send(request)
                    if guard.last_failure or response.status_code >= 400:
                        return False
    except (httpx2.StreamError, TimeoutError, ServerFailed):
        return False
    return True


def _in_words(error: BaseException) -> str:
    if isinstance(error, OAuthFlowError):
        return f"the login failed: {one_line(str(error), SHOWN_CHARS)}"
    if isinstance(error, ConfigError):
        return str(error)
    # What it says may hold tokens.
    return f"the login failed: the server answered with something that OAuth does not allow ({type(error).__name__})"


class _NoDetails(logging.Filter):
    """Keeps what the SDK says about a failed flow out of every log: there may be tokens in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR


logging.getLogger("mcp.client.auth.oauth2").addFilter(_NoDetails())
