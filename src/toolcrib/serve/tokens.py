"""Who may use the server: the owner's token, and additional ones with fewer rights."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

import msgspec

from toolcrib.config.files import OWNER_FILE, replace_file, writing
from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.environments.specs import is_self_contained, resolve
from toolcrib.http_server import is_equal_secret

TokenScope = Literal["chat", "approve", "admin", "metrics"]
"""What a token may do: talk to the agent and read its sessions; answer approvals; change settings; read metrics."""
SCOPES: tuple[TokenScope, ...] = get_args(TokenScope)
OWNER = "owner"
MIN_CHARS = 32
MAX_NAME_CHARS = 64
_OWNER = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_PLACEHOLDER = re.compile(r"change.?me|your.?token|placeholder|secret|password|example|(.)\1{7}", re.IGNORECASE)


class TokenError(UsageError):
    """A token that is missing, too weak, or already there."""


class UnsafeStart(UsageError):
    """The server would be open to others; it does not start."""

    exit_code = 2


class TokenIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose token it is, and what it may do."""

    name: str
    scopes: frozenset[TokenScope]
    owner: str = ""
    """Whose sessions it reaches; empty for the owner of the home."""
    digest: str = ""
    """The hash of the token: another one may get the same name."""

    def may(self, scope: TokenScope) -> bool:
        return scope in self.scopes

    @property
    def key(self) -> str:
        """What its conversations are kept under: the name alone may later belong to somebody else's token."""
        return f"{self.owner}/{self.name}"

    @property
    def account(self) -> str:
        """Whose share of the limits it uses: its owner's; of the owner of the home, each token has one of its own."""
        return self.owner or self.key

    @property
    def sees_all_sessions(self) -> bool:
        """Whether it reaches all sessions of its owner, or only those that a server opened and not, for example, those
        of the terminal."""
        return self.may("admin") or bool(self.owner)


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """An additional token; only its hash is stored."""

    sha256: str
    scopes: tuple[TokenScope, ...]
    owner: str = ""


class ServerTokens:
    """The tokens of one home. `given` replaces the owner's stored token for this process."""

    def __init__(self, home: Home, given: str = "", source: str = "TOOLCRIB_SERVE_TOKEN") -> None:
        self._folder = home.serve_dir
        self._file = home.serve_token_file
        self._others_file = self._folder / "tokens.json"
        self._given = require_strong(given, source) if given else ""

    def owner_token(self) -> str:
        """The owner's token, created at the first use."""
        if self._given:
            return self._given
        stored = self._stored()
        if stored:
            return stored
        with writing(self._file) as target:
            # Another process may have been first.
            stored = self._stored()
            if not stored:
                stored = secrets.token_urlsafe(32)
                replace_file(target, stored.encode() + b"\n", mode=OWNER_FILE)
        return stored

    def _stored(self) -> str:
        try:
            stored = self._file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""
        return require_strong(stored, str(self._file)) if stored else ""

    def identify(self, token: str) -> TokenIdentity | None:
        """The identity behind a token; None for an unknown one."""
        if not token:
            return None
        if is_equal_secret(token, self.owner_token()):
            return self._owner_identity()
        digest = _digest(token)
        found = [(name, one) for name, one in self.others().items() if is_equal_secret(digest, one.sha256)]
        return next((_identity(name, one) for name, one in found), None)

    def owners(self) -> set[str]:
        """Everybody who has a token; the owner of the home has an empty name."""
        return {"", *(one.owner for one in self.others().values())}

    def named(self, name: str) -> TokenIdentity | None:
        """The identity of the token with this name; None if there is none."""
        if name == OWNER:
            return self._owner_identity()
        found = self.others().get(name)
        return None if found is None else _identity(name, found)

    def is_current(self, identity: TokenIdentity) -> bool:
        """Whether the token still exists, with the same rights."""
        return self.named(identity.name) == identity

    def _owner_identity(self) -> TokenIdentity:
        return TokenIdentity(name=OWNER, scopes=frozenset(SCOPES), digest=_digest(self.owner_token()))

    def others(self) -> dict[str, StoredToken]:
        """The additional tokens, by name."""
        try:
            return msgspec.json.decode(self._others_file.read_bytes(), type=dict[str, StoredToken])
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            raise TokenError(f"{str(self._others_file)!r} is damaged ({error}); delete it and create new tokens") from (
                error
            )

    def create(self, name: str, scopes: Iterable[TokenScope], owner: str = "") -> str:
        """A new token with these scopes, for the owner of the home or for somebody else; it is shown once."""
        scopes = tuple(scopes)
        if owner and not _OWNER.fullmatch(owner):
            raise TokenError(f"{owner!r} is no name of an owner; use up to 32 lower-case letters, digits, `-` and `_`")
        if owner and "admin" in scopes:
            raise TokenError(f"the scope 'admin' changes the whole server, so {owner!r} cannot have it; leave it out")
        if not name.isprintable() or not name or name != name.strip() or "/" in name or len(name) > MAX_NAME_CHARS:
            raise TokenError(
                f"a token needs a name of up to {MAX_NAME_CHARS} characters without control characters, `/` and spaces "
                "around it; it appears in the access log"
            )
        token = secrets.token_urlsafe(32)
        with writing(self._others_file) as target:
            others = self.others()
            if name == OWNER or name in others:
                raise TokenError(f"there is already a token {name!r}; choose another name, or revoke it first")
            _write(target, others | {name: StoredToken(sha256=_digest(token), scopes=scopes, owner=owner)})
        return token

    def revoke(self, name: str) -> None:
        with writing(self._others_file) as target:
            others = self.others()
            if others.pop(name, None) is None:
                known = ", ".join(others) or "none"
                raise TokenError(f"there is no token {name!r} to revoke; there are: {known}")
            _write(target, others)


def _identity(name: str, stored: StoredToken) -> TokenIdentity:
    return TokenIdentity(name=name, scopes=frozenset(stored.scopes), owner=stored.owner, digest=stored.sha256)


def _write(target: Path, others: dict[str, StoredToken]) -> None:
    replace_file(target, msgspec.json.format(msgspec.json.encode(others)), mode=OWNER_FILE)


def require_strong(token: str, source: str) -> str:
    """The token, unless it is short or a placeholder."""
    if len(token) < MIN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        why = f"must be one word of at least {MIN_CHARS} ASCII characters"
    elif _PLACEHOLDER.search(token):
        why = "looks like a placeholder"
    else:
        return token
    raise TokenError(f"the token from {source} {why}; create one with `openssl rand -hex 32`")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def why_owners_would_meet(settings: Settings) -> str:
    """Why several owners would reach each other's things; empty if each session works in an environment of its own."""
    if settings.memory.provider:
        return f"would share the memories of {settings.memory.provider!r}; remove `memory.provider`"
    spec = resolve(settings, {}, session="owner", workspace=settings.home.root, environ={})
    if is_self_contained(spec, settings.terminal):
        return ""
    return (
        f"could read each other's files on the backend {settings.terminal.backend!r}; set `terminal.backend` to one "
        "with a container for each session, such as docker"
    )


def require_separate_owners(settings: Settings, owners: Iterable[str]) -> None:
    """Raises UnsafeStart if several owners would share one machine: a `cat` would cross from one to the other."""
    others, why = sorted({*owners} - {""}), why_owners_would_meet(settings)
    if others and why:
        raise UnsafeStart(f"tokens belong to several owners ({', '.join(others)}), who {why}, or revoke these tokens")
