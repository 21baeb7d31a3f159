"""What a login is made of, in the form that the SDK works with, and its way to the file and back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.utils import is_valid_client_metadata_url
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl

from toolcrib.core.attempt import attempt
from toolcrib.core.errors import ConfigError
from toolcrib.mcp.failures import ServerFailed
from toolcrib.mcp.servers import Server
from toolcrib.mcp.token_store import Kept, TokenStore
from toolcrib.version import __version__

logger = logging.getLogger(__name__)

REDIRECT_URI = "http://127.0.0.1:8976/callback"
RENEW_EARLY_SECONDS = 30.0
LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))


class LoginState(OAuthClientProvider):
    """The login at one server as it is known now; `store` is where it is kept."""

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


def _read(kind: Any, content: Any) -> Any:
    """A part of what is kept; None when there is none, or when it cannot be read."""
    return attempt(kind.model_validate, content).value if content is not None else None


def _written(part: Any) -> Any:
    return part.model_dump(mode="json", exclude_none=True) if part is not None else None
