"""The login that is kept for a server, sent with each request and renewed when it is old.

Nothing is opened here and nobody is kept waiting: a request that no login is kept for is answered in the server's
place, with the sentence that says how to log in (see `http_transport.py`). `login.py` is for when a person is there.
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
from pydantic import AnyUrl

from toolcrib.config.paths import Home
from toolcrib.core.attempt import attempt
from toolcrib.core.errors import ConfigError
from toolcrib.mcp.client.errors import NoLogin, ServerFailed
from toolcrib.mcp.client.http_transport import LOGIN, NOT_SENT, answered_here, http_client
from toolcrib.mcp.client.servers import Server
from toolcrib.mcp.client.token_store import Kept, TokenStore, token_store
from toolcrib.mcp.client.untrusted_text import one_line
from toolcrib.version import __version__

logger = logging.getLogger(__name__)

REDIRECT_URI = "http://127.0.0.1:8976/callback"
RENEW_EARLY_SECONDS = 30.0
LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
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


class KeptLogin(OAuthClientProvider):
    """The login at one server, for the requests of one connection; `store` is where it is kept."""

    may_ask = False
    """Whether somebody can log in while a request waits."""

    def __init__(self, server: Server, store: TokenStore, redirect_uri: str = REDIRECT_URI) -> None:
        oauth = server.settings.oauth
        document = oauth.client_metadata_url or None
        if document is not None and not is_valid_client_metadata_url(document):
            raise ServerFailed(
                f"{document!r} cannot be its client id; mcp_servers.{server.name}.oauth.client_metadata_url has to be "
                "an https address with a path"
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
        """What a call lacked permission for."""
        self.store = store
        self._redirect_uri = redirect_uri
        self._stamp: Any = ()
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

    # What is sent

    @property
    def token(self) -> str:
        tokens = self.context.current_tokens
        return tokens.access_token if tokens is not None else ""

    def authorize(self, request: httpx2.Request) -> str:
        if self.token:
            self._add_auth_header(request)
        return self.token

    def safe(self, request: httpx2.Request) -> httpx2.Request:
        """The request, unless it would carry codes or tokens in the clear through a network."""
        scheme, host = request.url.scheme, request.url.host
        server = urlsplit(self.context.server_url)
        # What is asked for by a server without https can be read along there anyway.
        is_like_the_server = (scheme, host) == (server.scheme, server.hostname)
        is_here = scheme == "http" and host in LOOPBACK
        if scheme != "https" and not is_here and not is_like_the_server:
            raise ServerFailed(f"its login is at {host!r} without https, where others could read it along")
        return request

    def revocation(self, endpoint: str, token: str, kind: str) -> httpx2.Request:
        """The request that makes a token worthless."""
        self._choose_method()
        client = self.context.client_info
        data = {"token": token, "token_type_hint": kind, **({"client_id": client.client_id} if client else {})}
        data, headers = self.context.prepare_token_auth(data, {})
        return self.safe(httpx2.Request("POST", endpoint, data=data, headers=headers))

    async def _refresh_token(self) -> httpx2.Request:
        self._choose_method()
        return await super()._refresh_token()

    async def _exchange_token_authorization_code(self, auth_code: str, code_verifier: str) -> httpx2.Request:
        self._choose_method()
        return await super()._exchange_token_authorization_code(auth_code, code_verifier)

    def _choose_method(self) -> None:
        """How our secret is shown, where the registration does not say."""
        client, found = self.context.client_info, self.context.oauth_metadata
        if client is not None and client.token_endpoint_auth_method is None:
            known = (found.token_endpoint_auth_methods_supported if found is not None else None) or []
            by_post = "client_secret_post" in known and "client_secret_basic" not in known
            with_secret = "client_secret_post" if by_post else "client_secret_basic"
            client.token_endpoint_auth_method = with_secret if client.client_secret else "none"

    # What is kept

    def look(self, *, again: bool = False) -> None:
        """Take over what is kept, if it has changed: by a login in another process, or a renewal there."""
        stamp = self.store.stamp()
        if again or stamp != self._stamp:
            self._stamp = stamp
            self.take(self.store.read())

    def take(self, kept: Kept) -> None:
        """Use this."""
        context = self.context
        context.current_tokens = _read(OAuthToken, kept.tokens)
        context.token_expiry_time = kept.renew_at
        context.client_info = self._client_of(kept)
        context.oauth_metadata = _read(OAuthMetadata, kept.authorization_server)
        context.protected_resource_metadata = found = _read(ProtectedResourceMetadata, kept.resource)
        context.auth_server_url = str(found.authorization_servers[0]) if found is not None else None
        self.wanted_scope = kept.wanted_scope

    def _client_of(self, kept: Kept) -> OAuthClientInformationFull | None:
        oauth = self.server.settings.oauth
        if oauth.client_id:
            return OAuthClientInformationFull(client_id=oauth.client_id, client_secret=oauth.client_secret or None)
        client: OAuthClientInformationFull | None = _read(OAuthClientInformationFull, kept.client)
        if client is None or not self.may_ask:
            return client
        # A login has to come back to an address that was registered, with a secret that still counts.
        is_registered = self._redirect_uri in [str(uri) for uri in client.redirect_uris or []]
        is_over = 0 < (client.client_secret_expires_at or 0) < time.time()
        return client if is_registered and not is_over else None

    def keep(self, change: Callable[[Kept], Kept]) -> Kept | None:
        """Change what is kept; None where that was not possible and nobody is there to tell."""
        try:
            kept = self.store.update(change)
        except ConfigError as error:
            if self.may_ask:
                raise
            # It holds in this process.
            logger.error("the login at MCP server %r could not be kept: %s", self.server.name, error)
            return None
        self._stamp = self.store.stamp()
        return kept

    def keep_tokens(self, tokens: OAuthToken, before: OAuthToken | None = None) -> None:
        """Keep new tokens. After a renewal, only if nobody has logged in anew since."""
        lasts = tokens.expires_in
        renew_at = None if lasts is None else time.time() + lasts - min(RENEW_EARLY_SECONDS, lasts / 10)
        new = msgspec.structs.replace(
            self._described(), tokens=tokens.model_dump(mode="json", exclude_none=True), renew_at=renew_at
        )
        old = before.model_dump(mode="json", exclude_none=True) if before is not None else None

        def change(kept: Kept) -> Kept:
            if old is None:
                return new
            return msgspec.structs.replace(new, wanted_scope=kept.wanted_scope) if kept.tokens == old else kept

        self.take(self.keep(change) or new)

    def _described(self) -> Kept:
        """Everything but the tokens, as it is known now."""
        context, client_id = self.context, self.server.settings.oauth.client_id
        return Kept(
            # What the config holds, a secret perhaps, is not written down once more.
            client={"client_id": client_id} if client_id else _written(context.client_info),
            authorization_server=_written(context.oauth_metadata),
            resource=_written(context.protected_resource_metadata),
        )

    # For the flow of the SDK

    async def _initialize(self) -> None:
        self.look()
        # What is old was renewed, or could not be: here is where somebody logs in.
        self.context.token_expiry_time = None
        self._initialized = True

    async def get_tokens(self) -> OAuthToken | None:
        return self.context.current_tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.keep_tokens(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.context.client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        if not client_info.redirect_uris:
            client_info.redirect_uris = self.context.client_metadata.redirect_uris
        client = self._described().client
        # Tokens of an earlier login belong to the earlier registration, until there are new ones.
        self.keep(lambda kept: kept if kept.tokens is not None else msgspec.structs.replace(kept, client=client))


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


def _read(kind: Any, content: Any) -> Any:
    """A part of what is kept; None when there is none, or when it cannot be read."""
    return attempt(kind.model_validate, content).value if content is not None else None


def _written(part: Any) -> Any:
    return part.model_dump(mode="json", exclude_none=True) if part is not None else None
