"""A client of a running `toolcrib serve`. Uses only the standard library, so that commands start fast."""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from toolcrib.config.environment import environment
from toolcrib.config.paths import Home
from toolcrib.config.tool_call_mark import refuse_in_tool_call
from toolcrib.core.errors import ToolcribError, UsageError

T = TypeVar("T")
TOKEN_VARIABLE = "TOOLCRIB_SERVE_TOKEN"
REQUEST_SECONDS = 60.0
STREAM_SECONDS = 60.0
"""How long a stream may be silent; the server sends a comment every few seconds."""
RECONNECT_SECONDS = 60.0
"""How long a stream is tried again: as long as a server takes to start anew."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""The longest answer, and the longest event, that is read: the server may be anybody's."""
NO_SERVER = "no server is running in this home; start one with `toolcrib serve`, or name one with `--connect URL`"


class ServerRefused(ToolcribError):
    """The server answered with an error. `status` is that of the HTTP response."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServerUnreachable(UsageError):
    """No server answers at the address."""


class NotOurServer(UsageError):
    """What answers at the address does not speak our API."""


class ServerClient:
    """Requests to one server."""

    def __init__(self, url: str, home: Home) -> None:
        """Raises UsageError for an address that the token must not go to."""
        # With the token, an agent could answer its own approvals.
        refuse_in_tool_call("use the server with its owner's token")
        self._address = _address(url)
        self._token = _token(self._address, home)

    @classmethod
    def of_home(cls, home: Home, url: str = "") -> ServerClient:
        """The server at this URL; without one, the one that works in this home."""
        if not url:
            try:
                url = home.serve_address_file.read_text(encoding="utf-8").strip()
            except FileNotFoundError:
                raise UsageError(NO_SERVER) from None
        return cls(url, home)

    def get(self, path: str) -> dict[str, Any]:
        return self._json("GET", path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._json("POST", path, body)

    def events(
        self, run_id: str, after: int = 0, on_lost: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The events of a run with their numbers, as they happen. A dropped connection goes on after the last one seen;
        `on_lost` is told of one that does not come back at once."""
        lost_at, failures = 0.0, 0
        while True:
            try:
                for number, event in self._stream(run_id, after):
                    after, failures = number, 0
                    yield number, event
                    if event["event"] == "run_ended":
                        return
                # The server closed the stream in the middle: it is stopping.
                failed: Exception = ConnectionError("the stream ended")
            except (OSError, http.client.HTTPException) as error:
                failed = error
            failures += 1
            if failures == 1:
                lost_at = time.monotonic()
            elif failures == 2:
                on_lost()
            if time.monotonic() - lost_at > RECONNECT_SECONDS:
                raise self._unreachable(failed)
            time.sleep(min(2.0, 0.05 * 2**failures))

    def _stream(self, run_id: str, after: int) -> Iterator[tuple[int, dict[str, Any]]]:
        connection = self._connection(STREAM_SECONDS)
        try:
            connection.request("GET", self._path(f"/api/runs/{run_id}/events"), headers=self._headers(after))
            response = connection.getresponse()
            if response.status == http.client.NO_CONTENT:
                raise ServerRefused("the run has ended, and the server has no more events of it", response.status)
            if response.status != http.client.OK:
                raise _refused(response)
            number = after
            while line := self._bounded(response.readline(MAX_ANSWER_BYTES + 1)):
                if line.startswith(b"id: "):
                    number = self._parsed(line[4:], int)
                elif line.startswith(b"data: "):
                    event = self._parsed(line[6:], dict)
                    if not isinstance(event.get("event"), str):
                        raise self.not_ours()
                    yield number, event
        finally:
            connection.close()

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = self._connection(REQUEST_SECONDS)
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers() | ({"Content-Type": "application/json"} if content is not None else {})
        try:
            connection.request(method, self._path(path), content, headers)
            response = connection.getresponse()
            if response.status >= http.client.MULTIPLE_CHOICES:
                raise _refused(response)
            return self._parsed(self._bounded(response.read(MAX_ANSWER_BYTES + 1)), dict)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, port, timeout=seconds)

    def _headers(self, after: int = 0) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", **({"Last-Event-ID": str(after)} if after else {})}

    def _path(self, path: str) -> str:
        return self._address.path.rstrip("/") + path

    def _bounded(self, content: bytes) -> bytes:
        if len(content) > MAX_ANSWER_BYTES:
            raise self.not_ours()
        return content

    def _parsed(self, content: bytes, kind: type[T]) -> T:
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self.not_ours() from error
        if not isinstance(found, kind):
            raise self.not_ours()
        return found

    def not_ours(self) -> NotOurServer:
        """The error for an answer that makes no sense."""
        url = self._address.geturl()
        return NotOurServer(f"what answers at {url} is no toolcrib server, or one of another version; check the URL")

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        url = self._address.geturl()
        return ServerUnreachable(f"cannot reach the server at {url} ({error}); check that `toolcrib serve` runs there")


def _address(url: str) -> SplitResult:
    try:
        address = urlsplit(url if "//" in url else f"http://{url}")
        _ = address.port
    except ValueError as error:
        raise UsageError(f"{url!r} is no URL of a server ({error}); give one such as http://127.0.0.1:8642") from error
    if address.scheme not in ("http", "https") or not address.hostname:
        raise UsageError(f"{url!r} is no URL of a server; give one such as http://127.0.0.1:8642")
    if address.scheme == "http" and not _is_loopback(address.hostname):
        raise UsageError(f"the token would cross the network unencrypted to {address.hostname!r}; use https")
    return address


def _token(address: SplitResult, home: Home) -> str:
    given = environment().get(TOKEN_VARIABLE, "").strip()
    if given:
        return given
    if not _is_loopback(address.hostname or ""):
        # The token of this home is not for other machines.
        raise UsageError(f"put the token of {address.hostname!r} into {TOKEN_VARIABLE}")
    try:
        return home.serve_token_file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise UsageError(f"there is no token in this home; put the server's into {TOKEN_VARIABLE}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(response: http.client.HTTPResponse) -> ServerRefused:
    text = response.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
    try:
        said = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = text[:200] or response.reason
    return ServerRefused(f"the server refuses: {said}", response.status)
