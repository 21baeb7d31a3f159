"""The stored login of a server: sent with each request and refreshed when it expires.

Nothing here opens a browser or waits for a person: a request without a stored login gets a local error response that
says how to log in (see `http_transport.py`). `login.py` is for when a person is present.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth, is_valid_client_metadata_url
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, ValidationError

from toolcrib.config.paths import Home
from toolcrib.core.errors import ConfigError
from toolcrib.mcp.client.errors import NotLoggedIn, ServerFailed
from toolcrib.mcp.client.http_transport import LOGIN, NOT_SENT, answer_locally, http_client
from toolcrib.mcp.client.servers import Server, token_store
from toolcrib.mcp.client.untrusted_text import one_line
from toolcrib.version import __version__
from toolcrib.web.token_store import LoginFailed, StoredLogin, TokenStore

logger = logging.getLogger(__name__)

REDIRECT_URI = "http://127.0.0.1:8976/callback"
REFRESH_EARLY_SECONDS = 30.0
LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
REFRESH_SECONDS = 30.0
SHOWN_CHARS = 300
TEMPORARY_ERRORS = frozenset(("server_error", "temporarily_unavailable", "slow_down"))
MAX_SCOPE_CHARS = 1000
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # What RFC 6749 allows.


def stored_login(server: Server, home: Home) -> LoginProvider:
    """The auth that sends the stored login of a server; raises NotLoggedIn if there is none. Never asks anybody."""
    store = token_store(server, home)
    if not store.read().is_usable:
        raise NotLoggedIn(f"you are not logged in; {login_hint(server.name)}")
    return LoginProvider(server, store)


def login_hint(server: str) -> str:
    return f"log in with `toolcrib mcp login {shlex.quote(server)}`"


class LoginProvider(OAuthClientProvider):
    """The login at one server for the requests of one connection; `store` is where it is stored on disk."""

    is_interactive = False
    """Whether a person can log in while a request waits."""

    def __init__(self, server: Server, store: TokenStore, redirect_uri: str = REDIRECT_URI) -> None:
        oauth = server.settings.oauth
        document = oauth.client_metadata_url or None
        if document is not None and not is_valid_client_metadata_url(document):
            raise ServerFailed(
                f"{document!r} cannot be its client id; mcp_servers.{server.name}.oauth.client_metadata_url must be "
                "an https URL with a path"
            )
        metadata = OAuthClientMetadata(
            client_name="toolcrib",
            redirect_uris=[AnyUrl(redirect_uri)],
            grant_types=["authorization_code", "refresh_token"],
            scope=" ".join(oauth.scopes) or None,
            software_version=__version__,
        )
        super().__init__(server.settings.url, metadata, self, client_metadata_url=document)
        self.server = server
        self.wanted_scope = ""
        """The scope that a call lacked."""
        self.store = store
        self._redirect_uri = redirect_uri
        self._stamp: Any = ()
        self._refresh_task: asyncio.Task[None] | None = None

    # One request

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        # Replaces the SDK's flow, in which each request waits for the response to the one before.
        if trouble := await self._send_problem():
            yield answer_locally(request, *trouble)
            return
        sent = self.authorize(request)
        response = yield request
        if response.status_code == 401 and sent:
            try:
                is_new = await self._refresh_if_stale(sent)
            except ServerFailed as error:
                yield answer_locally(request, NOT_SENT, str(error))
                return
            if is_new:
                sent = self.authorize(request)
                response = yield request
        missing_scope = _missing_scope(response)
        if response.status_code != 401 and missing_scope is None:
            return
        flow = self._handle_refusal(request, response, sent, missing_scope)
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
        """Handle a request that the server refused with the token `sent`, or because of a missing scope."""
        del response, sent
        if missing_scope is None:
            reason = f"the server no longer accepts the login; {login_hint(self.server.name)}"
        else:
            self.update(lambda kept: msgspec.structs.replace(kept, wanted_scope=missing_scope))
            what = f" ({one_line(missing_scope, SHOWN_CHARS)})" if missing_scope else ""
            reason = f"the server requires more permissions for this{what}; {login_hint(self.server.name)}"
        yield answer_locally(request, LOGIN, reason)

    async def _send_problem(self) -> tuple[str, str] | None:
        """Why nothing can be sent now; None if there is a token or a person can log in."""
        self.reload()
        if not self.context.is_token_valid() and self.context.can_refresh_token():
            try:
                await self._refresh_if_stale(self.token)
            except ServerFailed as error:
                return NOT_SENT, str(error)
        if not self.is_interactive and not self.context.is_token_valid():
            return LOGIN, f"the login has expired; {login_hint(self.server.name)}"
        return None

    # Refreshing

    async def _refresh_if_stale(self, refused: str) -> bool:
        """Get a new token in place of this one without a person; returns whether there is one.

        Raises ServerFailed if the authorization server cannot be reached. All waiting requests share one exchange, and
        it continues if they are cancelled: a refresh token whose successor was not received is lost.
        """
        if self.token == refused:
            if self._refresh_task is None or self._refresh_task.done():
                self._refresh_task = asyncio.get_running_loop().create_task(self._refresh(refused))
                self._refresh_task.add_done_callback(_ignore_error)
            await asyncio.shield(self._refresh_task)
        return bool(self.token) and self.token != refused

    async def _refresh(self, refused: str) -> None:
        try:
            async with self.store.refresh_lock():
                await self._refresh_locked(refused)
        except LoginFailed as error:
            raise ServerFailed(str(error)) from error

    async def _refresh_locked(self, refused: str) -> None:
        self.reload(again=True)
        tokens = self.context.current_tokens
        is_new = self.token != refused and self.context.is_token_valid()
        if is_new or tokens is None or not self.context.can_refresh_token():
            return
        response = await self._request_refresh()
        if response.status_code == 200:
            self._save_refreshed(response, tokens)
        elif self._is_permanent(response):
            logger.info("the login at MCP server %r has expired: HTTP %d", self.server.name, response.status_code)
            is_unknown = oauth_error(response) == "invalid_client"
            self.update(lambda kept: _drop_tokens(kept, tokens, and_client=is_unknown))
            self.reload(again=True)
        else:
            raise ServerFailed(f"its login could not be refreshed: HTTP {response.status_code}")

    async def _request_refresh(self) -> httpx2.Response:
        try:
            request = self.require_secure(await self._refresh_token())
        except OAuthFlowError as error:
            raise ServerFailed(f"its login could not be refreshed: {one_line(str(error), SHOWN_CHARS)}") from error
        client, guard = http_client(self.server, None, lambda _: None, takes_events=False)
        try:
            async with client, asyncio.timeout(REFRESH_SECONDS):
                response = await client.send(request)
        except (httpx2.StreamError, TimeoutError) as error:
            raise ServerFailed("its login could not be refreshed: no response in time") from error
        if guard.last_failure:
            raise ServerFailed(f"its login could not be refreshed: {guard.last_failure}")
        return response

    def _save_refreshed(self, response: httpx2.Response, before: OAuthToken) -> None:
        try:
            tokens = OAuthToken.model_validate_json(response.content)
        except ValidationError as error:
            raise ServerFailed("its login could not be refreshed: the response is not valid") from error
        # Omitted fields keep their old values.
        tokens.scope = tokens.scope or before.scope
        tokens.refresh_token = tokens.refresh_token or before.refresh_token
        self.save_tokens(tokens, before)

    def _is_permanent(self, response: httpx2.Response) -> bool:
        """Whether a response means that the refresh token is no longer valid."""
        return (
            400 <= response.status_code < 500
            and response.status_code not in (408, 425, 429)
            and (oauth_error(response) not in TEMPORARY_ERRORS)
        )

    # Requests

    @property
    def token(self) -> str:
        tokens = self.context.current_tokens
        return tokens.access_token if tokens is not None else ""

    def authorize(self, request: httpx2.Request) -> str:
        if self.token:
            self._add_auth_header(request)
        return self.token

    def require_secure(self, request: httpx2.Request) -> httpx2.Request:
        """The request, unless it would send codes or tokens unencrypted over a network."""
        scheme, host = request.url.scheme, request.url.host
        server = urlsplit(self.context.server_url)
        # A server without https exposes the login anyway.
        is_like_the_server = (scheme, host) == (server.scheme, server.hostname)
        is_here = scheme == "http" and host in LOOPBACK
        if scheme != "https" and not is_here and not is_like_the_server:
            raise ServerFailed(f"its login page is at {host!r} without https, so others could read the login")
        return request

    def revocation_request(self, endpoint: str, token: str, kind: str) -> httpx2.Request:
        """The request that revokes a token."""
        self._set_auth_method()
        client = self.context.client_info
        data = {"token": token, "token_type_hint": kind, **({"client_id": client.client_id} if client else {})}
        data, headers = self.context.prepare_token_auth(data, {})
        return self.require_secure(httpx2.Request("POST", endpoint, data=data, headers=headers))

    async def _refresh_token(self) -> httpx2.Request:
        self._set_auth_method()
        return await super()._refresh_token()

    async def _exchange_token_authorization_code(self, auth_code: str, code_verifier: str) -> httpx2.Request:
        self._set_auth_method()
        return await super()._exchange_token_authorization_code(auth_code, code_verifier)

    def _set_auth_method(self) -> None:
        """Choose how to send our client secret if the registration does not say."""
        client, found = self.context.client_info, self.context.oauth_metadata
        if client is not None and client.token_endpoint_auth_method is None:
            known = (found.token_endpoint_auth_methods_supported if found is not None else None) or []
            by_post = "client_secret_post" in known and "client_secret_basic" not in known
            with_secret = "client_secret_post" if by_post else "client_secret_basic"
            client.token_endpoint_auth_method = with_secret if client.client_secret else "none"

    # The stored login

    def reload(self, *, again: bool = False) -> None:
        """Load the stored login if another process changed it, by a login or a refresh."""
        stamp = self.store.stamp()
        if again or stamp != self._stamp:
            self._stamp = stamp
            self.use(self.store.read())

    def use(self, kept: StoredLogin) -> None:
        """Use this login for requests."""
        context = self.context
        context.current_tokens = _parse(OAuthToken, kept.tokens)
        context.token_expiry_time = kept.renew_at
        context.client_info = self._registration(kept)
        context.oauth_metadata = _parse(OAuthMetadata, kept.authorization_server)
        context.protected_resource_metadata = found = _parse(ProtectedResourceMetadata, kept.resource)
        context.auth_server_url = str(found.authorization_servers[0]) if found is not None else None
        self.wanted_scope = kept.wanted_scope

    def _registration(self, kept: StoredLogin) -> OAuthClientInformationFull | None:
        oauth = self.server.settings.oauth
        if oauth.client_id:
            return OAuthClientInformationFull(client_id=oauth.client_id, client_secret=oauth.client_secret or None)
        client: OAuthClientInformationFull | None = _parse(OAuthClientInformationFull, kept.client)
        if client is None or not self.is_interactive:
            return client
        # A login needs a registered redirect URI and a client secret that has not expired.
        is_registered = self._redirect_uri in [str(uri) for uri in client.redirect_uris or []]
        is_over = 0 < (client.client_secret_expires_at or 0) < time.time()
        return client if is_registered and not is_over else None

    def update(self, change: Callable[[StoredLogin], StoredLogin]) -> StoredLogin | None:
        """Update the stored login; None if that failed and there is nobody to tell."""
        try:
            kept = self.store.update(change)
        except ConfigError as error:
            if self.is_interactive:
                raise
            # It still holds in this process.
            logger.error("the login at MCP server %r could not be stored: %s", self.server.name, error)
            return None
        self._stamp = self.store.stamp()
        return kept

    def save_tokens(self, tokens: OAuthToken, before: OAuthToken | None = None) -> None:
        """Store new tokens; after a refresh, only if nobody logged in again in the meantime."""
        lasts = tokens.expires_in
        renew_at = None if lasts is None else time.time() + lasts - min(REFRESH_EARLY_SECONDS, lasts / 10)
        new = msgspec.structs.replace(
            self._current_login(), tokens=tokens.model_dump(mode="json", exclude_none=True), renew_at=renew_at
        )
        old = before.model_dump(mode="json", exclude_none=True) if before is not None else None

        def change(kept: StoredLogin) -> StoredLogin:
            if old is None:
                return new
            return msgspec.structs.replace(new, wanted_scope=kept.wanted_scope) if kept.tokens == old else kept

        self.use(self.update(change) or new)

    def _current_login(self) -> StoredLogin:
        """Everything but the tokens, as known now."""
        context, client_id = self.context, self.server.settings.oauth.client_id
        return StoredLogin(
            # The config may hold a secret, which must not be written to a second place.
            client={"client_id": client_id} if client_id else _dump(context.client_info),
            authorization_server=_dump(context.oauth_metadata),
            resource=_dump(context.protected_resource_metadata),
        )

    # Overrides of the SDK's flow

    async def _initialize(self) -> None:
        self.reload()
        # An expired token was refreshed or cannot be, so from here on somebody logs in.
        self.context.token_expiry_time = None
        self._initialized = True

    async def get_tokens(self) -> OAuthToken | None:
        return self.context.current_tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.save_tokens(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.context.client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        if not client_info.redirect_uris:
            client_info.redirect_uris = self.context.client_metadata.redirect_uris
        client = self._current_login().client
        # Tokens of an earlier login belong to the earlier registration until there are new ones.
        self.update(lambda kept: kept if kept.tokens is not None else msgspec.structs.replace(kept, client=client))


def _ignore_error(renewal: asyncio.Task[None]) -> None:
    """Mark the error as retrieved: whoever waited for it may have been cancelled."""
    if not renewal.cancelled():
        renewal.exception()


def _missing_scope(response: httpx2.Response) -> str | None:
    """The scope that a refusal asks for; None for any other response."""
    if response.status_code != 403 or extract_field_from_www_auth(response, "error") != "insufficient_scope":
        return None
    return " ".join(_SCOPE.findall(extract_scope_from_www_auth(response) or ""))[:MAX_SCOPE_CHARS]


def _drop_tokens(kept: StoredLogin, dead: OAuthToken, *, and_client: bool) -> StoredLogin:
    """Drop expired tokens, and an unknown registration; a login made in the meantime stays."""
    if (kept.tokens or {}).get("refresh_token") != dead.refresh_token:
        return kept
    return msgspec.structs.replace(kept, tokens=None, renew_at=None, client=None if and_client else kept.client)


def oauth_error(response: httpx2.Response) -> str:
    """The OAuth error code of a response; empty if it has none."""
    try:
        body = msgspec.json.decode(response.content)
    except (ValueError, RecursionError):
        return ""
    name = body.get("error") if isinstance(body, dict) else None
    return one_line(name, 60) if isinstance(name, str) else ""


def _parse(kind: Any, content: Any) -> Any:
    """A part of the stored login; None if it is missing or not valid."""
    try:
        return kind.model_validate(content) if content is not None else None
    except ValidationError:
        return None


def _dump(part: Any) -> Any:
    return part.model_dump(mode="json", exclude_none=True) if part is not None else None
