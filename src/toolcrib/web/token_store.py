"""Stores the login at one server: its tokens and our registration there, readable by the owner only.

    mcp_tokens/NAME.json    one file per MCP server, in a private folder
    logins/NAME.json        one file per service of a built-in tool

A login stored for another URL or client id is not used: a token belongs to the server that issued it. Several processes
may share one login; `refresh_lock` lets one of them at a time exchange the refresh token, because most servers accept
each refresh token only once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from toolcrib.config.files import OWNER_FILE, OWNER_FOLDER, lock_attempts, make_folder, replace_file, writing
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject

if sys.platform != "win32":
    pass

logger = logging.getLogger(__name__)

REFRESH_WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02
MAX_NAME_CHARS = 100

# Safe on every system, including those that ignore case or reserve device names.
_PLAIN_NAME = re.compile(r"(?!(?:con|prn|aux|nul|com\d|lpt\d)$)[a-z0-9][a-z0-9_-]{0,99}")

Stamp = tuple[int, int, int]


class LoginFailed(ToolcribError):
    """A login that cannot be made or used; the message says why and what to do."""


class StoredLogin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored login; its parts are in the SDK's format."""

    server: str = ""
    url: str = ""
    tokens: JsonObject | None = None
    renew_at: float | None = None
    """When to refresh the access token, in seconds since the epoch; None if unknown."""
    client: JsonObject | None = None
    """Our client registration."""
    authorization_server: JsonObject | None = None
    """The metadata of the authorization server."""
    resource: JsonObject | None = None
    """The metadata of the protected resource."""
    wanted_scope: str = ""
    """The scope that a call lacked; the next login asks for it."""

    def __repr__(self) -> str:
        return f"StoredLogin(server={self.server!r})"

    @property
    def is_usable(self) -> bool:
        """Whether there is a token to send or refresh."""
        tokens = self.tokens or {}
        is_expired = self.renew_at is not None and self.renew_at < time.time()
        return bool(tokens.get("refresh_token") or (tokens.get("access_token") and not is_expired))


class TokenStore:
    """The login file of one server, shared by all processes."""

    def __init__(self, folder: Path, server: str, url: str, client_id: str = "") -> None:
        self.path = folder / f"{file_stem(server)}.json"
        self._server = server
        self._url = url
        self._client_id = client_id

    def read(self) -> StoredLogin:
        """The login for this server at this URL; an empty one if there is none."""
        login = self.read_any()
        client_id = (login.client or {}).get("client_id")
        is_ours = login.url == self._url and (not self._client_id or client_id in (None, self._client_id))
        return login if is_ours else StoredLogin()

    def read_any(self) -> StoredLogin:
        """The login for this server, whatever its URL was then."""
        try:
            login = msgspec.json.decode(self.path.read_bytes(), type=StoredLogin)
        except FileNotFoundError:
            return StoredLogin()
        except (OSError, msgspec.DecodeError) as error:
            # Log the kind of error, never the contents of the file.
            logger.warning("cannot read the login in %s: %s", self.path, type(error).__name__)
            return StoredLogin()
        return login if login.server == self._server else StoredLogin()

    def stamp(self) -> Stamp | None:
        """Changes with the file; None if there is no file."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def update(self, change: Callable[[StoredLogin], StoredLogin]) -> StoredLogin:
        """Update the login atomically and return it. Raises ConfigError if it cannot be written."""
        with writing(self.path) as target:
            if os.name == "posix" and target.parent.stat().st_mode & 0o777 != OWNER_FOLDER:
                target.parent.chmod(OWNER_FOLDER)
            before = self.read()
            after = msgspec.structs.replace(change(before), server=self._server, url=self._url)
            if after != before:
                text = json.dumps(msgspec.to_builtins(after), ensure_ascii=True, indent=1)
                replace_file(target, text.encode(), mode=OWNER_FILE)
            return after

    def delete(self) -> bool:
        """Delete the login; returns whether there was one."""
        if not self.path.exists():
            return False
        with writing(self.path) as target:
            target.unlink(missing_ok=True)
        return True

    @contextlib.asynccontextmanager
    async def refresh_lock(self) -> AsyncIterator[None]:
        """Lock the refresh of the tokens; re-read them inside, because another process may have refreshed them."""
        try:
            make_folder(self.path.parent)
            lock = os.open(self.path.with_name(f".{self.path.name}.renewing"), os.O_RDWR | os.O_CREAT, OWNER_FILE)
        except OSError as error:
            raise LoginFailed(f"its login cannot be stored in {str(self.path.parent)!r}: {error.strerror}") from error
        try:
            await _acquire(lock)
            yield
        finally:
            os.close(lock)


def file_stem(server: str) -> str:
    """A safe and unique file name for a server."""
    if _PLAIN_NAME.fullmatch(server):
        return server
    readable = re.sub(r"[^a-z0-9_-]+", "-", server.lower()).strip("-")[:40]
    digest = hashlib.sha256(server.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{readable}-{digest}" if readable else digest


async def _acquire(lock: int) -> None:
    try:
        for _ in lock_attempts(lock, REFRESH_WAIT_SECONDS):
            await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise LoginFailed("another process has been refreshing its login for a minute") from None
