"""The login of the web page: a one-time code for a person, then a cookie and a key for their browser.

The cookie alone opens nothing. Browsers send cookies to every port of a machine, so another program there could get it;
the key stays in the storage of our own origin, and a page of another site can neither read nor send it.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Callable

import msgspec
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from toolcrib.config.files import OWNER_FILE, replace_file, writing
from toolcrib.config.paths import Home
from toolcrib.config.serve_settings import ServeSettings
from toolcrib.core.errors import UsageError
from toolcrib.serve.tokens import OWNER, ServerTokens, TokenError, TokenIdentity

CODE_SECONDS = 600.0
CODE_BYTES = 7
"""56 bits: more than anyone guesses in ten minutes, few enough to type."""
BROWSER_SECONDS = 30 * 86_400.0
MAX_BROWSERS = 50
KEY_HEADER = "x-toolcrib-key"
SAFE_METHODS = frozenset({"GET", "HEAD"})


class LoginCode(msgspec.Struct, frozen=True, kw_only=True):
    """A code that was handed out; only its hash is stored."""

    sha256: str
    name: str
    """Of the token whose rights the browser gets."""
    expires_at: float


class LoggedInBrowser(msgspec.Struct, frozen=True, kw_only=True):
    """A browser that redeemed a code."""

    cookie: str
    """The hash of its cookie."""
    key: str
    """The hash of its key."""
    name: str
    token: str
    """The hash of the token at the login: who replaces or revokes a token ends its browsers as well."""
    expires_at: float


class StoredLogins(msgspec.Struct, frozen=True, kw_only=True):
    """The file of logins."""

    codes: tuple[LoginCode, ...] = ()
    browsers: tuple[LoggedInBrowser, ...] = ()


class BrowserCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser gets for a code."""

    cookie: str
    key: str
    name: str


class PageLogins:
    """The codes and browsers of one home. The program that creates a code need not be the server."""

    def __init__(self, home: Home, tokens: ServerTokens, clock: Callable[[], float] = time.time) -> None:
        self._file = home.serve_dir / "logins.json"
        self._address_file = home.serve_address_file
        self._tokens = tokens
        self._clock = clock

    def create_code(self, name: str = OWNER) -> str:
        """A new code, which works once and soon expires."""
        if self._tokens.named(name) is None:
            raise TokenError(f"there is no token {name!r}; `toolcrib serve token --list` lists them")
        code = base64.b32encode(secrets.token_bytes(CODE_BYTES)).decode().rstrip("=")
        made = LoginCode(sha256=_digest(code), name=name, expires_at=self._clock() + CODE_SECONDS)
        with writing(self._file) as target:
            now = self._current()
            stored = StoredLogins(codes=(*now.codes, made), browsers=now.browsers)
            replace_file(target, msgspec.json.encode(stored), mode=OWNER_FILE)
        return f"{code[:4]}-{code[4:8]}-{code[8:]}"

    def redeem(self, code: str) -> BrowserCredentials | None:
        """Log a browser in; None if the code is wrong, used or expired."""
        wanted = _digest(code.strip().upper().replace("-", "").replace(" ", ""))
        with writing(self._file) as target:
            now = self._current()
            found = next((one for one in now.codes if secrets.compare_digest(one.sha256, wanted)), None)
            known = None if found is None else self._tokens.named(found.name)
            if found is None or known is None:
                return None
            made = BrowserCredentials(cookie=secrets.token_urlsafe(32), key=secrets.token_urlsafe(32), name=found.name)
            browser = LoggedInBrowser(
                cookie=_digest(made.cookie),
                key=_digest(made.key),
                name=found.name,
                token=known.digest,
                expires_at=self._clock() + BROWSER_SECONDS,
            )
            stored = StoredLogins(
                codes=tuple(one for one in now.codes if one is not found),
                browsers=(*now.browsers, browser)[-MAX_BROWSERS:],
            )
            replace_file(target, msgspec.json.encode(stored), mode=OWNER_FILE)
        return made

    def identify(self, headers: Headers, method: str) -> TokenIdentity | None:
        """Who sends a request of the page: it needs cookie and key, and, to change something, its origin."""
        cookie, key = cookie_of(headers), headers.get(KEY_HEADER, "")
        if not cookie or not key or headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return None
        if method not in SAFE_METHODS and "origin" not in headers:
            return None
        browser = self._browser(cookie)
        if browser is None or not secrets.compare_digest(browser.key, _digest(key)):
            return None
        known = self._tokens.named(browser.name)
        return known if known is not None and secrets.compare_digest(known.digest, browser.token) else None

    def log_out(self, cookie: str) -> None:
        with writing(self._file) as target:
            now, gone = self._current(), _digest(cookie)
            stored = StoredLogins(codes=now.codes, browsers=tuple(one for one in now.browsers if one.cookie != gone))
            replace_file(target, msgspec.json.encode(stored), mode=OWNER_FILE)

    def create_link(self, settings: ServeSettings, name: str = OWNER) -> str:
        """The address that logs a browser in, with a new code. Browsers keep what follows the `#` to themselves: no log
        and no proxy sees it."""
        try:
            url = self._address_file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            raise UsageError("no server is running in this home; start one with `toolcrib serve`") from None
        if settings.proxy_names:
            url = f"https://{settings.proxy_names[0]}"
        return f"{url}/login#{self.create_code(name)}"

    def _browser(self, cookie: str) -> LoggedInBrowser | None:
        wanted = _digest(cookie)
        found = [one for one in self._current().browsers if secrets.compare_digest(one.cookie, wanted)]
        return found[0] if found else None

    def _current(self) -> StoredLogins:
        """What is stored and has not expired."""
        try:
            stored = msgspec.json.decode(self._file.read_bytes(), type=StoredLogins)
        except FileNotFoundError:
            return StoredLogins()
        except msgspec.DecodeError:
            # Everybody has to log in again; that is what deleting the file would do.
            return StoredLogins()
        now = self._clock()
        return StoredLogins(
            codes=tuple(one for one in stored.codes if one.expires_at > now),
            browsers=tuple(one for one in stored.browsers if one.expires_at > now),
        )


def cookie_name(host: str) -> str:
    """The name of our cookie. It contains the port, because browsers share cookies between the ports of a host."""
    port = host.rpartition(":")[2]
    return f"toolcrib_{port}" if port.isascii() and port.isdigit() else "toolcrib"


def cookie_of(headers: Headers) -> str:
    """The cookie that a request sends; empty if it sends none."""
    # Other programs on this machine set cookies as well; an odd one must not hide ours, as with http.cookies.
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(headers.get("host", "")), "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
