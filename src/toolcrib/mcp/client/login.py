"""Logs in to a server with a person present, and logs out again."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import union_scopes
from mcp.shared.auth import AuthorizationCodeResult, OAuthToken
from pydantic import ValidationError

from toolcrib.core.errors import ConfigError
from toolcrib.mcp.client.errors import LoginRequired, ServerFailed
from toolcrib.mcp.client.http_transport import LOGIN, GuardedTransport, answer_locally, http_client
from toolcrib.mcp.client.oauth import REDIRECT_URI, SHOWN_CHARS, LoginProvider, oauth_error
from toolcrib.mcp.client.servers import Server
from toolcrib.mcp.client.untrusted_text import one_line
from toolcrib.web.token_store import LoginFailed, TokenStore

AskForRedirect = Callable[[str], Awaitable[str]]
"""Shows a person the URL to log in at; returns the URL that the browser was redirected to."""

ANSWER_SECONDS = 30.0
REVOKE_SECONDS = 10.0
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
RESOURCE_METADATA = re.compile(r"""resource_metadata=(?:"([^"]+)"|([^\s,]+))""")
"""As the SDK finds it, wherever it stands in the challenge."""
HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


class InteractiveLoginProvider(LoginProvider):
    """Sends the stored login; if there is none, or it is not sufficient, a person is asked to log in."""

    is_interactive = True

    def __init__(
        self,
        server: Server,
        store: TokenStore,
        ask: AskForRedirect,
        redirect_uri: str = REDIRECT_URI,
        *,
        always: bool = False,
    ) -> None:
        """With `always`, the first request triggers a login even if one is stored or the request is not refused."""
        super().__init__(server, store, redirect_uri)
        self.failure: ServerFailed | None = None
        """Why the login failed."""
        self.first_status = 0
        """The status of the first request, sent without a login."""
        self.context.redirect_handler = self._note_login_url
        self.context.callback_handler = self._wait_for_redirect
        self._ask = ask
        self._always = always
        self._login_url = ""

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        is_first, self._always = self._always, False
        if is_first:
            self.reload()
            response = yield request
            self.first_status = response.status_code
            flow = self._handle_refusal(request, response, self.token, None)
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

    async def _handle_refusal(
        self, request: httpx2.Request, response: httpx2.Response, sent: str, missing_scope: str | None
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        # A refresh without a person has already been tried.
        self.context.token_expiry_time = None
        flow = super(LoginProvider, self)._auth_flow(request)
        try:
            outgoing = await anext(flow)  # Waits until no other request is logging in.
            if self.token != sent:
                self.authorize(request)
                yield request
                return
            outgoing = await flow.asend(self._challenge(response, missing_scope))
            while True:
                outgoing = await flow.asend((yield self.require_secure(outgoing)))
        except StopAsyncIteration:
            return
        except Exception as error:  # noqa: BLE001 - the SDK's flow raises whatever a hostile response provokes
            self.failure = error if isinstance(error, ServerFailed) else ServerFailed(_describe(error))
        finally:
            await flow.aclose()
        yield answer_locally(request, LOGIN, str(self.failure))

    def _challenge(self, response: httpx2.Response, missing_scope: str | None) -> httpx2.Response:
        """The refusal that the SDK's flow sees: it names the scopes to ask for."""
        said = self._own_description(response.headers.get("www-authenticate", "Bearer"))
        if missing_scope is not None:
            return httpx2.Response(response.status_code, headers={"www-authenticate": said}, request=response.request)
        tokens = self.context.current_tokens
        asked: str | None = " ".join(self.server.settings.oauth.scopes)
        if self.wanted_scope:
            granted = tokens.scope if tokens is not None else None
            asked = union_scopes(union_scopes(asked, granted), self.wanted_scope)
        # The SDK uses the first scope parameter.
        said = f'Bearer scope="{asked}", {said.removeprefix("Bearer").lstrip()}' if asked else said
        return httpx2.Response(401, headers={"www-authenticate": said}, request=response.request)

    def _own_description(self, challenge: str) -> str:
        """The challenge without addresses of other servers: whoever answers must not choose what we fetch."""

        def keep(match: re.Match[str]) -> str:
            origin = _origin(match.group(1) or match.group(2))
            # What is no web address is refused when it is about to be asked.
            is_elsewhere = origin is not None and origin != _origin(self.context.server_url)
            return "" if is_elsewhere else match.group()

        return RESOURCE_METADATA.sub(keep, challenge)

    # Overrides of the SDK's flow

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        await response.aread()
        if response.status_code not in (200, 201):
            said = oauth_error(response)
            if said == "invalid_client":
                self.update(lambda kept: msgspec.structs.replace(kept, client=None))
            raise ServerFailed(f"the login failed: the code was not accepted ({said or response.status_code})")
        try:
            OAuthToken.model_validate_json(response.content)
        except ValidationError as error:
            raise ServerFailed("the login failed: the response to the code contains no token") from error
        await super()._handle_token_response(response)

    async def _note_login_url(self, address: str) -> None:
        self.require_secure(httpx2.Request("GET", address))
        self._login_url = address

    async def _wait_for_redirect(self) -> AuthorizationCodeResult:
        given = parse_qs(urlsplit(await self._ask(self._login_url)).query)
        error, about, code, state, iss = (
            next(iter(given.get(name, [])), None) for name in ("error", "error_description", "code", "state", "iss")
        )
        if error or not code:
            raise LoginRequired(
                f"the login was refused: {one_line(about or error or 'no code came back', SHOWN_CHARS)}"
            )
        return AuthorizationCodeResult(code=code, state=state, iss=iss)


def _origin(address: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of a web address; None if it is not one."""
    try:
        parts = urlsplit(address)
        usual = {"http": 80, "https": 443}.get(parts.scheme)
        return None if usual is None else (parts.scheme, parts.hostname or "", parts.port or usual)
    except ValueError:
        return None


async def log_in(server: Server, store: TokenStore, ask: AskForRedirect, redirect_uri: str = REDIRECT_URI) -> None:
    """Log in at a server and store the login. Raises ServerFailed with what went wrong."""
    auth = InteractiveLoginProvider(server, store, ask, redirect_uri, always=True)
    client, guard = http_client(server, auth, lambda _: None, takes_events=False)
    client.timeout = httpx2.Timeout(ANSWER_SECONDS)
    async with client:
        status = await _send_ping(client, server)
    if auth.failure is not None:
        raise _with_advice(auth, guard, auth.failure)
    if guard.last_failure:
        raise ServerFailed(f"{server.name!r} cannot be reached: {guard.last_failure}")
    if status in (401, 403):
        raise ServerFailed(f"{server.name!r} rejects the login it has just issued (HTTP {status})")


async def log_out(store: TokenStore, server: Server) -> tuple[bool, bool]:
    """Delete a login. Returns whether there was one, and whether the server revoked it as well."""
    was_revoked = False
    kept = store.read_any()
    if kept.tokens is not None and kept.url:
        auth = LoginProvider(server, store)
        auth.use(kept)
        was_revoked = await _revoke(auth)
    return store.delete(), was_revoked


async def _send_ping(client: httpx2.AsyncClient, server: Server) -> int:
    """The final status of a ping; the login happens on the way."""
    request = client.build_request("POST", server.settings.url, json=PING, headers=HEADERS)
    try:
        response = await client.send(request, stream=True, follow_redirects=False)
        await response.aclose()
    except httpx2.StreamError as error:
        raise ServerFailed(f"{server.name!r} sent a response that broke off or is far too long") from error
    return response.status_code


def _with_advice(auth: InteractiveLoginProvider, guard: GuardedTransport, failure: ServerFailed) -> ServerFailed:
    """The same failure with advice on what to do, if known."""
    name, context = auth.server.name, auth.context
    if guard.last_failure:
        return ServerFailed(f"{name!r} cannot be reached: {guard.last_failure}")
    is_described = context.oauth_metadata is not None or context.protected_resource_metadata is not None
    if context.client_info is None and not is_described and auth.first_status not in (401, 403):
        return ServerFailed(
            f"{name!r} does not ask for a login and publishes no OAuth metadata (HTTP {auth.first_status}); "
            f"run `toolcrib config set mcp_servers.{name}.auth none`"
        )
    if context.client_info is None and is_described:
        return ServerFailed(
            f"{failure}; if {name!r} requires you to register clients yourself, do so there and set "
            f"mcp_servers.{name}.oauth.client_id"
        )
    return failure


async def _revoke(auth: LoginProvider) -> bool:
    """Revoke the tokens at the authorization server; best effort."""
    found, tokens = auth.context.oauth_metadata, auth.context.current_tokens
    if found is None or found.revocation_endpoint is None or tokens is None:
        return False
    client, guard = http_client(auth.server, None, lambda _: None, takes_events=False)
    try:
        async with client, asyncio.timeout(REVOKE_SECONDS):
            for kind, token in (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token)):
                if token is not None:
                    request = auth.revocation_request(str(found.revocation_endpoint), token, kind)
                    response = await client.send(request)
                    if guard.last_failure or response.status_code >= 400:
                        return False
    except (httpx2.StreamError, TimeoutError, ServerFailed):
        return False
    return True


def _describe(error: BaseException) -> str:
    if isinstance(error, OAuthFlowError):
        return f"the login failed: {one_line(str(error), SHOWN_CHARS)}"
    if isinstance(error, ConfigError | LoginFailed):
        return str(error)
    # Its message may contain tokens.
    return f"the login failed: the server sent a response that OAuth does not allow ({type(error).__name__})"


class _NoErrorDetails(logging.Filter):
    """Keeps the SDK's error details about a failed flow out of all logs: they may contain tokens."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR


logging.getLogger("mcp.client.auth.oauth2").addFilter(_NoErrorDetails())
