"""Providers with an API of their own: Exa, Parallel, Firecrawl, Tavily, Brave, and a SearXNG server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from toolcrib.web.provider_access import ProviderAccess, ProviderFailed
from toolcrib.web.providers.provider import (
    ProviderPage,
    SearchHit,
    hit,
    hits,
    items,
    joined,
    text_of,
)

MAX_TEXT_CHARS = 2_000_000


class HostedProvider:
    """A provider behind a web API. What an answer looks like is the subclass's business, what can go wrong is not."""

    name = ""
    can_search = True
    can_extract = True

    def __init__(self, access: ProviderAccess) -> None:
        self.access = access

    @property
    def display_name(self) -> str:
        return self.access.display_name

    @property
    def host(self) -> str:
        return self.access.host

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        raise NotImplementedError

    async def extract(self, urls: Sequence[str]) -> Sequence[ProviderPage]:
        raise NotImplementedError

    def read(self, answer: Any, read_hits: Callable[[Any], Sequence[SearchHit | None]], limit: int) -> list[SearchHit]:
        """The results in an answer; raises ProviderFailed if it is not what the provider documents."""
        try:
            return hits(read_hits(answer), limit)
        except (LookupError, TypeError, ValueError):
            raise self.access.malformed() from None

    def read_pages(self, answer: Any, read: Callable[[Any], Sequence[ProviderPage]]) -> list[ProviderPage]:
        """The pages in an answer; raises ProviderFailed if it is not what the provider documents."""
        try:
            return list(read(answer))
        except (LookupError, TypeError, ValueError):
            raise self.access.malformed() from None


def page(found: Mapping[str, Any], content: str) -> ProviderPage:
    url = text_of(found, "url", "id")
    error = "" if content.strip() else "it has no text"
    return ProviderPage(url=url, title=text_of(found, "title"), content=content[:MAX_TEXT_CHARS], error=error)


class Exa(HostedProvider):
    """https://docs.exa.ai/reference/search, https://docs.exa.ai/reference/get-contents"""

    name = "exa"

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        body = {"query": query, "numResults": limit, "contents": {"highlights": True}}
        answer = await self.access.post_json("/search", body, self._headers)
        return self.read(answer, exa_hits, limit)

    async def extract(self, urls: Sequence[str]) -> Sequence[ProviderPage]:
        answer = await self.access.post_json("/contents", {"urls": list(urls), "text": True}, self._headers)
        return self.read_pages(answer, exa_pages)

    @property
    def _headers(self) -> dict[str, str]:
        return {"x-api-key": self.access.key}


def exa_hits(answer: Any) -> list[SearchHit | None]:
    return [
        hit(
            one,
            description=joined(one.get("highlights")) or text_of(one, "summary", "text"),
            date=text_of(one, "publishedDate"),
        )
        for one in items(answer, "results")
    ]


def exa_pages(answer: Any) -> list[ProviderPage]:
    pages = [page(one, text_of(one, "text")) for one in items(answer, "results")]
    failed = [one for one in items({"statuses": [], **answer}, "statuses") if one.get("status") == "error"]
    return pages + [ProviderPage(url=text_of(one, "id"), error="it could not be read") for one in failed]


class Parallel(HostedProvider):
    """https://docs.parallel.ai/api-reference/search-and-extract-api-beta"""

    name = "parallel"

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        body = {"objective": query, "search_queries": [query], "max_results": min(limit, 40)}
        answer = await self.access.post_json("/v1beta/search", body, self._headers)
        return self.read(answer, parallel_hits, limit)

    async def extract(self, urls: Sequence[str]) -> Sequence[ProviderPage]:
        body = {"urls": list(urls), "excerpts": False, "full_content": True}
        answer = await self.access.post_json("/v1beta/extract", body, self._headers)
        return self.read_pages(answer, parallel_pages)

    @property
    def _headers(self) -> dict[str, str]:
        return {"x-api-key": self.access.key, "parallel-beta": "search-extract-2025-10-10"}


def parallel_hits(answer: Any) -> list[SearchHit | None]:
    return [
        hit(one, description=joined(one.get("excerpts")), date=text_of(one, "publish_date"))
        for one in items(answer, "results")
    ]


def parallel_pages(answer: Any) -> list[ProviderPage]:
    pages = [page(one, text_of(one, "full_content") or joined(one.get("excerpts"))) for one in items(answer, "results")]
    failed = items({"errors": [], **answer}, "errors")
    return pages + [ProviderPage(url=text_of(one, "url"), error="it could not be read") for one in failed]


class Firecrawl(HostedProvider):
    """https://docs.firecrawl.dev/api-reference/v2-introduction; hosted, or a server of one's own without a key."""

    name = "firecrawl"

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        answer = await self.access.post_json("/v2/search", {"query": query, "limit": limit}, self._headers)
        self._require_success(answer)
        return self.read(answer, firecrawl_hits, limit)

    async def extract(self, urls: Sequence[str]) -> Sequence[ProviderPage]:
        return [await self._scrape(url) for url in urls]

    async def _scrape(self, url: str) -> ProviderPage:
        answer = await self.access.post_json("/v2/scrape", {"url": url, "formats": ["markdown"]}, self._headers)
        self._require_success(answer)
        data = answer.get("data")
        if not isinstance(data, dict):
            raise self.access.malformed()
        metadata = data.get("metadata")
        about = metadata if isinstance(metadata, dict) else {}
        return page({"url": url, "title": text_of(about, "title")}, text_of(data, "markdown"))

    def _require_success(self, answer: Any) -> None:
        if not isinstance(answer, dict):
            raise self.access.malformed()
        if answer.get("success") is False:
            raise ProviderFailed(f"{self.display_name} could not do it", "request")

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.access.key}"} if self.access.key else {}


def firecrawl_hits(answer: Any) -> list[SearchHit | None]:
    data = answer.get("data", answer) if isinstance(answer, dict) else answer
    # Version 1 answered with a plain list.
    found = items(data, "web") if isinstance(data, dict) else items(data)
    return [hit(one, description=text_of(one, "description", "markdown"), date=text_of(one, "date")) for one in found]


class Tavily(HostedProvider):
    """https://docs.tavily.com/documentation/api-reference/introduction"""

    name = "tavily"

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        body = {"query": query, "max_results": min(limit, 20), "api_key": self.access.key}
        answer = await self.access.post_json("/search", body, self._headers)
        return self.read(answer, tavily_hits, limit)

    async def extract(self, urls: Sequence[str]) -> Sequence[ProviderPage]:
        body = {"urls": list(urls), "format": "markdown", "api_key": self.access.key}
        answer = await self.access.post_json("/extract", body, self._headers)
        return self.read_pages(answer, tavily_pages)

    @property
    def _headers(self) -> dict[str, str]:
        # Older servers want the key in the body, newer ones in the header.
        return {"authorization": f"Bearer {self.access.key}"}


def tavily_hits(answer: Any) -> list[SearchHit | None]:
    return [
        hit(one, description=text_of(one, "content"), date=text_of(one, "published_date"))
        for one in items(answer, "results")
    ]


def tavily_pages(answer: Any) -> list[ProviderPage]:
    pages = [page(one, text_of(one, "raw_content", "content")) for one in items(answer, "results")]
    failed = items({"failed_results": [], **answer}, "failed_results")
    return pages + [ProviderPage(url=text_of(one, "url"), error="it could not be read") for one in failed]


class Brave(HostedProvider):
    """https://api-dashboard.search.brave.com/app/documentation/web-search"""

    name = "brave"
    can_extract = False

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        path = "/res/v1/web/search?" + urlencode({"q": query, "count": min(limit, 20)})
        answer = await self.access.get_json(path, {"x-subscription-token": self.access.key})
        return self.read(answer, brave_hits, limit)


def brave_hits(answer: Any) -> list[SearchHit | None]:
    if isinstance(answer, dict) and answer.get("type") == "search" and "web" not in answer:
        return []  # nothing found
    return [
        hit(one, description=text_of(one, "description"), date=text_of(one, "page_age", "age"))
        for one in items(answer, "web", "results")
    ]


class SearXng(HostedProvider):
    """https://docs.searxng.org/dev/search_api.html"""

    name = "searxng"
    can_extract = False

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        try:
            answer = await self.access.get_json("/search?" + urlencode({"q": query, "format": "json"}), {})
        except ProviderFailed as error:
            if error.kind != "key":
                raise
            advice = "add `json` to `search.formats` in its settings.yml"
            raise ProviderFailed(f"{self.display_name} does not answer in JSON; {advice}", "request") from None
        return self.read(answer, searxng_hits, limit)


def searxng_hits(answer: Any) -> list[SearchHit | None]:
    return [
        hit(one, description=text_of(one, "content"), date=text_of(one, "publishedDate", "pubdate"))
        for one in items(answer, "results")
    ]
