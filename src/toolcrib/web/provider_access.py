"""Sends requests to the services behind tools: one request, one answer, one clear message for each failure.

A sentence names the service and the variable of its key. It never contains the key, nor what the service said: an
answer of a stranger is no text for a message.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.registry.results import sendable, tool_error, tool_result
from toolcrib.web.addresses import AddressRefused, parse_address
from toolcrib.web.guard import HostNotFound
from toolcrib.web.http_client import FetchFailed, FetchLimits, GuardedClient, HttpRequest, HttpResponse

MAX_ANSWER_BYTES = 8_000_000

ProviderFailure = Literal["key", "quota", "timeout", "server", "malformed", "too_large", "unreachable", "request"]


class ProviderFailed(ToolcribError):
    """A provider that did not deliver; the message is one sentence without any text of the provider."""

    def __init__(
        self, message: str, kind: ProviderFailure, retry_seconds: float = 0.0, status: int = 0, body: bytes = b""
    ) -> None:
        super().__init__(message)
        self.kind: ProviderFailure = kind
        self.body = body
        """What a refusal said, for code that knows its words; never part of a message."""
        self.status = status
        """The HTTP status of a refusal, if there was one."""
        self.retry_seconds = retry_seconds
        """For `quota`: how long to leave the provider alone, if it says so."""


class ProviderAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How one service is reached."""

    client: GuardedClient
    display_name: str
    base_url: str
    key_variable: str = ""
    key: str = ""
    seconds: float = 30.0
    max_bytes: int = MAX_ANSWER_BYTES
    tool: str = "web_search"
    """The tool that `toolcrib setup` gets the key for."""

    @property
    def host(self) -> str:
        return self.base_url.partition("://")[2].partition("/")[0]

    @property
    def is_private(self) -> bool:
        """Whether it runs on this machine or this network, by its address alone."""
        return self.client.guard.is_private(parse_address(self.base_url))

    async def get_json(self, path: str, headers: Mapping[str, str]) -> Any:
        return self.parse(await self.send("GET", path, headers))

    async def post_json(self, path: str, body: Any, headers: Mapping[str, str]) -> Any:
        return self.parse(await self.post(path, body, headers))

    async def post(self, path: str, body: Any, headers: Mapping[str, str]) -> HttpResponse:
        """The successful answer to a JSON request; raises ProviderFailed."""
        return await self.send("POST", path, {"content-type": "application/json", **headers}, json.dumps(body).encode())

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> HttpResponse:
        """The successful answer to any request; raises ProviderFailed. `path` may be a whole address of this host."""
        request = HttpRequest(
            url=self._address(path),
            method=method,
            headers={"accept": "application/json", **headers},
            body=body,
            limits=FetchLimits(max_bytes=self.max_bytes, seconds=self.seconds, max_redirects=2),
            # The key must not travel with a redirect.
            same_origin=True,
        )
        return await self._answer(request)

    async def download(self, url: str) -> bytes:
        """A file that an answer names, asked for without the key; raises ProviderFailed."""
        limits = FetchLimits(max_bytes=self.max_bytes, seconds=self.seconds)
        try:
            return (await self._answer(HttpRequest(url=url, limits=limits))).body
        except ProviderFailed as error:
            if error.kind not in ("key", "request"):
                raise
            raise ProviderFailed(f"the file that {self.display_name} made cannot be fetched", "server") from error

    def _address(self, path: str) -> str:
        if not path.startswith(("http://", "https://")):
            return self.base_url + path
        # An answer may name where to ask next, but the key goes to nobody else.
        if parse_address(path).origin != parse_address(self.base_url).origin:
            raise self.malformed()
        return path

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        try:
            response = await self._trusting_client().send(request)
        except (AddressRefused, HostNotFound) as error:
            raise ProviderFailed(f"{self.display_name} cannot be reached: {error}", "unreachable") from error
        except FetchFailed as error:
            raise self._failed(error) from error
        self._require_success(response)
        return response

    def _trusting_client(self) -> GuardedClient:
        """The client with a guard that knows the service's own host: the user configured it, so it may be private."""
        guard, address = self.client.guard, parse_address(self.base_url)
        trusting = guard.with_rules(guard.rules.with_service(address))
        # A proxy elsewhere cannot reach a server on this network.
        return self.client.with_guard(trusting, use_proxy=not guard.is_private(address))

    def _failed(self, error: FetchFailed) -> ProviderFailed:
        if error.kind == "timeout":
            return ProviderFailed(f"{self.display_name} did not answer within {self.seconds:g} seconds", "timeout")
        if error.kind == "too_large":
            size = self.max_bytes // 1_000_000
            return ProviderFailed(f"the answer of {self.display_name} is larger than {size} MB", "too_large")
        if error.kind in ("malformed", "redirect"):
            return self.malformed()
        return ProviderFailed(f"{self.display_name} cannot be reached: {error}", "unreachable")

    def _require_success(self, response: HttpResponse) -> None:
        status, name = response.status, self.display_name
        if 200 <= status < 300:
            return
        if status in (401, 403):
            raise self.refused(status, response.body)
        if status == 402:
            raise ProviderFailed(f"the {name} account has no credit left", "quota")
        if status == 429:
            wait = _seconds(response.headers.get("retry-after", ""))
            when = f"in {wait:g} seconds" if wait else "later"
            raise ProviderFailed(f"the request limit of {name} is reached; try again {when}", "quota", wait)
        if status >= 500:
            raise ProviderFailed(f"{name} has a problem (HTTP {status}); try again later", "server")
        message = f"{name} did not accept the request (HTTP {status})"
        raise ProviderFailed(message, "request", status=status, body=response.body)

    def refused(self, status: int = 401, body: bytes = b"") -> ProviderFailed:
        why = f"{self.display_name} refused the request"
        if self.key:
            why = f"{self.display_name} refused the key in {self.key_variable}; run `toolcrib setup {self.tool}`"
        return ProviderFailed(why, "key", status=status, body=body)

    def malformed(self) -> ProviderFailed:
        return ProviderFailed(f"{self.display_name} sent an answer that cannot be understood", "malformed")

    def parse(self, response: HttpResponse) -> Any:
        try:
            return json.loads(response.body)
        except (ValueError, RecursionError):
            raise self.malformed() from None


def seconds_left(limit: float, ctx: ToolContext) -> float:
    """How long a call may take: the limit, or what is left until the deadline of the call."""
    return limit if ctx.deadline is None else max(0.1, min(limit, ctx.deadline - time.monotonic()))


async def bounded(work: Awaitable[JsonObject], ctx: ToolContext, seconds: float, late: str) -> str:
    """What the tool answers: the result of the work, or one sentence about why there is none.

    `late` says what happened at the limit; its `{:g}` stands for the seconds.
    """
    seconds = seconds_left(seconds, ctx)
    try:
        async with asyncio.timeout(seconds):
            return sendable(tool_result(await work))
    except TimeoutError:
        return tool_error(late.format(seconds), success=False)
    except ToolcribError as error:
        return tool_error(error, success=False)


def multipart(fields: Mapping[str, str], files: Iterable[tuple[str, str, bytes]]) -> tuple[str, bytes]:
    """A form as its content type and body; each file has a field, a name and content."""
    boundary = f"toolcrib-{secrets.token_hex(16)}"
    parts = [(f'form-data; name="{name}"', value.encode()) for name, value in fields.items()]
    parts += [(f'form-data; name="{field}"; filename="{name}"', data) for field, name, data in files]
    pieces = [f"--{boundary}\r\ncontent-disposition: {head}\r\n\r\n".encode() + data + b"\r\n" for head, data in parts]
    return f"multipart/form-data; boundary={boundary}", b"".join(pieces) + f"--{boundary}--\r\n".encode()


def _seconds(text: str) -> float:
    return min(float(text), 3_600.0) if text.strip().isdigit() else 0.0
