"""The protocol of a web provider, and how its answers are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any, Protocol

import msgspec

MAX_TITLE_CHARS = 300
MAX_SNIPPET_CHARS = 1_500
SETUP = "run `toolcrib setup web_search`"


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
