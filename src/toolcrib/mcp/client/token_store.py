"""What is kept of the login at one server: its tokens and our registration there, for the owner's eyes alone.

    mcp_tokens/NAME.json    one file per server, in a folder that nobody else may open

What was kept for another address, or under another client id, is not used: a token belongs to the server that it was
given for. Several processes may use one login; `renewing` lets one of them at a time trade its refresh token for the
next, because most servers take each refresh token once.
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

from toolcrib.config.files import OWNER_FILE, OWNER_FOLDER, make_folder, replace_file, writing
from toolcrib.config.paths import Home
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.errors import ServerFailed
from toolcrib.mcp.client.servers import Server

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

FOLDER = "mcp_tokens"
RENEW_WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02
MAX_NAME_CHARS = 100

# Safe everywhere, also where upper and lower case are one, and where some names are devices.
_PLAIN_NAME = re.compile(r"(?!(?:con|prn|aux|nul|com\d|lpt\d)$)[a-z0-9][a-z0-9_-]{0,99}")

Stamp = tuple[int, int, int]


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a login left; the parts are as the SDK writes them."""

    server: str = ""
    url: str = ""
    tokens: JsonObject | None = None
    renew_at: float | None = None
    """When the access token is to be renewed, in seconds since the epoch; None when nobody knows."""
    client: JsonObject | None = None
    """Our registration."""
    authorization_server: JsonObject | None = None
    """Where tokens come from, as it described itself."""
    resource: JsonObject | None = None
    """What the server said about who protects it."""
    wanted_scope: str = ""
    """What a call lacked permission for; the next login asks for it."""

    def __repr__(self) -> str:
        return f"Kept(server={self.server!r})"

    @property
    def is_usable(self) -> bool:
        """Whether there is something to send, or to renew."""
        tokens = self.tokens or {}
        is_old = self.renew_at is not None and self.renew_at < time.time()
        return bool(tokens.get("refresh_token") or (tokens.get("access_token") and not is_old))


class TokenStore:
    """The file of one server. Every process of ours may have one open."""

    def __init__(self, folder: Path, server: str, url: str, client_id: str = "") -> None:
        self.path = folder / f"{file_stem(server)}.json"
        self._server = server
        self._url = url
        self._client_id = client_id

    def read(self) -> Kept:
        """What is kept for this server at this address; an empty one when nothing is."""
        kept = self.read_any()
        client_id = (kept.client or {}).get("client_id")
        is_ours = kept.url == self._url and (not self._client_id or client_id in (None, self._client_id))
        return kept if is_ours else Kept()

    def read_any(self) -> Kept:
        """What is kept for this server, whatever its address was then."""
        try:
            kept = msgspec.json.decode(self.path.read_bytes(), type=Kept)
        except FileNotFoundError:
            return Kept()
        except (OSError, msgspec.DecodeError) as error:
            # What is wrong is told, what the file holds is not.
            logger.warning("the login kept in %s cannot be read: %s", self.path, type(error).__name__)
            return Kept()
        return kept if kept.server == self._server else Kept()

    def stamp(self) -> Stamp | None:
        """Another one after each change of the file; None when there is no file."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def update(self, change: Callable[[Kept], Kept]) -> Kept:
        """Change what is kept, in one step; gives what is kept now. Raises ConfigError where nothing can be written."""
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
        """Forget everything; says whether there was anything."""
        if not self.path.exists():
            return False
        with writing(self.path) as target:
            target.unlink(missing_ok=True)
        return True

    @contextlib.asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        """Hold the right to renew the tokens; read them again inside, because another process may have."""
        try:
            make_folder(self.path.parent)
            lock = os.open(self.path.with_name(f".{self.path.name}.renewing"), os.O_RDWR | os.O_CREAT, OWNER_FILE)
        except OSError as error:
            raise ServerFailed(f"its login cannot be kept in {str(self.path.parent)!r}: {error.strerror}") from error
        try:
            await _take(lock)
            yield
        finally:
            os.close(lock)


def token_store(server: Server, home: Home) -> TokenStore:
    """Where the login at a server is kept."""
    settings = server.settings
    return TokenStore(home.root / FOLDER, server.name, settings.url, settings.oauth.client_id)


def file_stem(server: str) -> str:
    """A name that is safe as a file name; another one for each server."""
    if _PLAIN_NAME.fullmatch(server):
        return server
    readable = re.sub(r"[^a-z0-9_-]+", "-", server.lower()).strip("-")[:40]
    digest = hashlib.sha256(server.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{readable}-{digest}" if readable else digest


async def _take(lock: int) -> None:
    if sys.platform == "win32":
        return
    deadline = time.monotonic() + RENEW_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ServerFailed("another process has been renewing its login for a minute") from None
            await asyncio.sleep(POLL_SECONDS)
