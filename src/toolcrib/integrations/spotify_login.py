"""Logs in to Spotify: OAuth with PKCE, through the user's own app, without a secret.

https://developer.spotify.com/documentation/web-api/tutorials/code-pkce-flow
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec

from toolcrib.config.environment import environment
from toolcrib.config.paths import Home
from toolcrib.core.types import JsonObject
from toolcrib.web.http_client import GuardedClient
from toolcrib.web.provider_access import ProviderAccess, ProviderFailed
from toolcrib.web.token_store import LoginFailed, StoredLogin, TokenStore

ACCOUNTS_URL = "https://accounts.spotify.com"
LOGINS = "logins"
NAME = "spotify"
REDIRECT_PORT = 8976
"""Preferred, so that an app may register its address; Spotify accepts any other port of 127.0.0.1 as well."""
SECONDS = 20.0
RENEW_EARLY_SECONDS = 60.0
SCOPES = (
    "user-read-playback-state",
    "user-modify-playback-state",
    "user-read-currently-playing",
    "user-read-recently-played",
    "playlist-read-private",
    "playlist-read-collaborative",
    "playlist-modify-public",
    "playlist-modify-private",
    "user-library-read",
    "user-library-modify",
)
LOG_IN = "run `toolcrib login spotify`"

AskForRedirect = Callable[[str], Awaitable[str]]
"""Shows a person the address to log in at; returns the address that the browser was redirected to."""


class SpotifyLogin:
    """The login of this home, shared by all processes: one of them renews it, the others read the new one."""

    def __init__(self, home: Home, client: Callable[[], GuardedClient]) -> None:
        self._client = client
        self._url = environment().get("SPOTIFY_ACCOUNTS_URL", "").strip().rstrip("/") or ACCOUNTS_URL
        self.store = TokenStore(home.root / LOGINS, NAME, self._url)

    # Using it

    async def token(self) -> str:
        """A token that should be valid now; raises LoginFailed or ProviderFailed."""
        login = self.store.read()
        if login.renew_at is None or time.time() < login.renew_at:
            return _access_token(login)
        return await self.renewed(_access_token(login))

    async def renewed(self, refused: str) -> str:
        """A token in place of this one; raises LoginFailed if only a person can get one, or ProviderFailed."""
        async with self.store.refresh_lock():
            login = self.store.read()
            if _access_token(login) != refused:
                # Another call or process was faster; each refresh token is accepted only once.
                return _access_token(login)
            tokens = login.tokens or {}
            form = {"grant_type": "refresh_token", "refresh_token": tokens.get("refresh_token", "")}
            try:
                answer = await self._ask({**form, "client_id": (login.client or {}).get("client_id", "")})
            except ProviderFailed as error:
                if not _is_expired(error):
                    raise
                self.store.update(lambda kept: msgspec.structs.replace(kept, tokens=None, renew_at=None))
                raise LoginFailed(f"the Spotify login has expired; {LOG_IN}") from error
            self._save({**tokens, **answer}, login.client)
            return str(answer["access_token"])

    # Logging in and out

    async def log_in(self, client_id: str, ask: AskForRedirect, redirect_uri: str) -> None:
        """Log in with a person present, and store the login; raises LoginFailed or ProviderFailed."""
        verifier, state = secrets.token_urlsafe(64), secrets.token_urlsafe(32)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        question = {
            "client_id": client_id,
            "response_type": "code",
            "redirect_uri": redirect_uri,
            "scope": " ".join(SCOPES),
            "state": state,
            "code_challenge_method": "S256",
            "code_challenge": challenge,
        }
        code = _code(await ask(f"{self._url}/authorize?{urlencode(question)}"), state)
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
        try:
            answer = await self._ask({**form, "client_id": client_id, "code_verifier": verifier})
        except ProviderFailed as error:
            if error.kind != "request":
                raise
            raise LoginFailed(
                "Spotify did not accept the login; check the client id and the redirect address of your app, and try "
                "again with `toolcrib login spotify`"
            ) from error
        self._save(answer, {"client_id": client_id})

    async def _ask(self, form: dict[str, str]) -> JsonObject:
        """The tokens that the form is exchanged for."""
        access = ProviderAccess(client=self._client(), display_name="Spotify", base_url=self._url, seconds=SECONDS)
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = access.parse(await access.send("POST", "/api/token", headers, urlencode(form).encode()))
        try:
            # The rest of the answer is of no use here, and a file of secrets has no room for it.
            tokens: JsonObject = {key: str(answer[key]) for key in ("access_token", "refresh_token") if key in answer}
            lasts = float(answer.get("expires_in") or 3_600)
            return {**tokens, "access_token": tokens["access_token"], "expires_in": lasts}
        except (LookupError, TypeError, ValueError, AttributeError):
            raise access.malformed() from None

    def _save(self, tokens: JsonObject, client: JsonObject | None) -> None:
        lasts = float(tokens["expires_in"])
        renew_at = time.time() + lasts - min(RENEW_EARLY_SECONDS, lasts / 10)
        self.store.update(lambda kept: msgspec.structs.replace(kept, tokens=tokens, renew_at=renew_at, client=client))


def _access_token(login: StoredLogin) -> str:
    token = (login.tokens or {}).get("access_token")
    if not isinstance(token, str) or not token:
        raise LoginFailed(f"you are not logged in to Spotify; {LOG_IN}")
    return token


def _code(address: str, state: str) -> str:
    """The code that a redirect brings; raises LoginFailed."""
    given = parse_qs(urlsplit(address).query)
    if given.get("state") != [state]:
        raise LoginFailed("that redirect belongs to another login; try again with `toolcrib login spotify`")
    if given.get("error"):
        raise LoginFailed("the login was refused at Spotify; try again with `toolcrib login spotify`")
    code = given.get("code", [""])[0]
    if not code:
        raise LoginFailed("Spotify sent no code back; try again with `toolcrib login spotify`")
    return code


def _is_expired(error: ProviderFailed) -> bool:
    """Whether the refresh token is no longer valid, which only a new login cures."""
    try:
        said: Any = json.loads(error.body)["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
    return said in ("invalid_grant", "invalid_client", "unauthorized_client")
