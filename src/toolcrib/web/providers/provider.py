"""What a provider is, and how all of them are asked: one request, one answer, one sentence about each failure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any, Literal, Protocol

import msgspec

from toolcrib.core.errors import ToolcribError
from toolcrib.web.addresses import AddressRefused, parse_address
from toolcrib.web.guard import HostNotFound
from toolcrib.web.http_client import FetchFailed, FetchLimits, GuardedClient, HttpRequest, HttpResponse

MAX_ANSWER_BYTES = 8_000_000
MAX_TITLE_CHARS = 300
MAX_SNIPPET_CHARS = 1_500
SETUP = "run `toolcrib setup web_search`"

ProviderFailure = Literal["key", "quota", "timeout", "server", "malformed", "too_large", "unreachable", "request"]


class ProviderFailed(ToolcribError):
    """A provider that did not deliver; the message is one sentence without any text of the provider."""

    def __init__(self, message: str, kind: ProviderFailure, retry_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.kind: ProviderFailure = kind
        self.retry_seconds = retry_seconds
        """For `quota`: how long to leave the provider alone, if it says so."""


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a search."""

    title: str
    url: str
    description: str = ""
    date: str = ""


class ProviderPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page that a provider read, or why it could not."""

    url: str
    title: str = ""
    content: str = ""
    error: str = ""


class WebProvider(Protocol):
    """A service that searches or reads the web."""

    @property
    def name(self) -> str: ...

    @property
    def display_name(self) -> str: ...

    @property
    def host(self) -> str:
        """Where queries go; empty if unknown."""
        ...

    @property
    def can_search(self) -> bool: ...

    @property
    def can_extract(self) -> bool: ...

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        """The results, best first; raises ProviderFailed."""
        ...

    async def extract(self, urls: Sequence[str]) -> Sequence[ProviderPage]:
        """The pages, in any order; raises ProviderFailed."""
        ...


class ProviderAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How one provider is reached."""

    client: GuardedClient
    display_name: str
    base_url: str
    key_variable: str = ""
    key: str = ""
    seconds: float = 30.0

    async def get_json(self, path: str, headers: Mapping[str, str]) -> Any:
        return self._parse(await self._send("GET", path, headers, b""))

    async def post_json(self, path: str, body: Any, headers: Mapping[str, str]) -> Any:
        return self._parse(await self.post(path, body, headers))

    async def post(self, path: str, body: Any, headers: Mapping[str, str]) -> HttpResponse:
        """The successful answer to a JSON request; raises ProviderFailed."""
        return await self._send(
            "POST", path, {"content-type": "application/json", **headers}, json.dumps(body).encode()
        )

    async def _send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        request = HttpRequest(
            url=self.base_url + path,
            method=method,
            headers={"accept": "application/json", **headers},
            body=body,
            limits=FetchLimits(max_bytes=MAX_ANSWER_BYTES, seconds=self.seconds, max_redirects=2),
            # The key must not travel with a redirect.
            same_origin=True,
        )
        try:
            response = await self._trusting_client().send(request)
        except (AddressRefused, HostNotFound) as error:
            raise ProviderFailed(f"{self.display_name} cannot be reached: {error}", "unreachable") from error
        except FetchFailed as error:
            raise self._failed(error) from error
        self._require_success(response)
        return response

    def _trusting_client(self) -> GuardedClient:
        """The client with a guard that knows the provider's own host: the user configured it, so it may be private."""
        guard, address = self.client.guard, parse_address(self.base_url)
        trusting = guard.with_rules(guard.rules.with_service(address))
        # A proxy elsewhere cannot reach a server on this network.
        return self.client.with_guard(trusting, use_proxy=not guard.is_private(address))

    def _failed(self, error: FetchFailed) -> ProviderFailed:
        if error.kind == "timeout":
            return ProviderFailed(f"{self.display_name} did not answer within {self.seconds:g} seconds", "timeout")
        if error.kind == "too_large":
            size = MAX_ANSWER_BYTES // 1_000_000
            return ProviderFailed(f"the answer of {self.display_name} is larger than {size} MB", "too_large")
        if error.kind in ("malformed", "redirect"):
            return self.malformed()
        return ProviderFailed(f"{self.display_name} cannot be reached: {error}", "unreachable")

    def _require_success(self, response: HttpResponse) -> None:
        status, name = response.status, self.display_name
        if 200 <= status < 300:
            return
        if status in (401, 403):
            raise self.refused()
        if status == 402:
            raise ProviderFailed(f"the {name} account has no credit left", "quota")
        if status == 429:
            wait = _seconds(response.headers.get("retry-after", ""))
            raise ProviderFailed(f"the request limit of {name} is reached; try again later", "quota", wait)
        if status >= 500:
            raise ProviderFailed(f"{name} has a problem (HTTP {status}); try again later", "server")
        raise ProviderFailed(f"{name} did not accept the request (HTTP {status})", "request")

    def refused(self) -> ProviderFailed:
        if self.key:
            return ProviderFailed(f"{self.display_name} refused the key in {self.key_variable}; {SETUP}", "key")
        return ProviderFailed(f"{self.display_name} refused the request", "key")

    def malformed(self) -> ProviderFailed:
        return ProviderFailed(f"{self.display_name} sent an answer that cannot be understood", "malformed")

    def _parse(self, response: HttpResponse) -> Any:
        try:
            return json.loads(response.body)
        except (ValueError, RecursionError):
            raise self.malformed() from None


def _seconds(text: str) -> float:
    return min(float(text), 3_600.0) if text.strip().isdigit() else 0.0


# Reading answers, which may contain anything


def items(value: Any, *path: str) -> list[dict[str, Any]]:
    """The objects in a list somewhere in an answer; raises LookupError if the list is missing."""
    for key in path:
        if not isinstance(value, dict) or key not in value:
            raise LookupError(key)
        value = value[key]
    if not isinstance(value, list):
        raise LookupError(path)
    return [one for one in value if isinstance(one, dict)]


def hit(found: Mapping[str, Any], *, description: str = "", date: str = "") -> SearchHit | None:
    """A result from an answer's object; None without a web address."""
    url = text_of(found, "url")
    if not url.startswith(("http://", "https://")):
        return None
    return SearchHit(
        title=plain(text_of(found, "title"))[:MAX_TITLE_CHARS] or url,
        url=url[:2_000],
        description=plain(description)[:MAX_SNIPPET_CHARS],
        date=date[:40],
    )


def hits(found: Sequence[SearchHit | None], limit: int) -> list[SearchHit]:
    """The results without gaps and repeated addresses."""
    unique = {one.url.rstrip("/"): one for one in reversed(found) if one is not None}
    return list(reversed(unique.values()))[:limit]


def text_of(found: Mapping[str, Any], *names: str) -> str:
    """The first of these fields with text."""
    return next((value.strip() for name in names if isinstance(value := found.get(name), str) and value.strip()), "")


def joined(value: Any) -> str:
    """Several excerpts as one text."""
    if isinstance(value, list):
        return " … ".join(one.strip() for one in value if isinstance(one, str) and one.strip())
    return value if isinstance(value, str) else ""


def plain(text: str) -> str:
    """A title or snippet in one line, without the tags that mark the words of the query."""
    if "<" in text:
        for tag in ("strong", "b", "em", "i", "mark", "span"):
            text = text.replace(f"<{tag}>", "").replace(f"</{tag}>", "")
    return " ".join(unescape(text).split())
