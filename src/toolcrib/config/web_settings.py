"""The settings of the web tools: search providers, page reading, and which addresses may be reached.

Annotations are real objects here, as in `settings.py`.
"""

from typing import Annotated

from msgspec import Meta, field

from toolcrib.config.section import PositiveFloat, PositiveInt, Section

WebPort = Annotated[int, Meta(ge=1, le=65_535)]


class WebSettings(Section, frozen=True, kw_only=True):
    """How `web_search` and `web_extract` work."""

    keyless: bool | None = None
    """Let `web_search` send queries to free public services if no search key is set; unset means ask once."""
    backend: str = ""
    """The provider to try first, for searching and reading: exa, parallel, firecrawl, tavily, brave, searxng, ddgs, or
    one of a plugin."""
    search_backend: str = ""
    """The provider that `web_search` tries first; empty means `backend`."""
    extract_backend: str = ""
    """The provider that `web_extract` tries before it fetches a page itself; empty means `backend`, `own` means
    none."""
    search_providers: list[str] = field(default_factory=list)
    """The only providers that `web_search` may use, in this order; empty means all that are configured."""
    endpoints: dict[str, str] = field(default_factory=dict)
    """The base address of a provider, by its name, for a gateway or your own server."""
    proxy: str = ""
    """The HTTP proxy for web requests, as http://host:port; it then resolves names. Proxy variables are ignored."""
    ports: list[WebPort] = field(default_factory=lambda: [80, 443, 8080, 8443])
    """The ports that the web tools may connect to."""
    timeout: PositiveFloat = 30
    """How many seconds one page or one search may take."""
    max_page_mb: PositiveFloat = 10
    """The largest page or document to fetch, in megabytes after decompression."""
    max_redirects: Annotated[int, Meta(ge=0, le=20)] = 5
    """How many redirects to follow."""
    max_per_host: PositiveInt = 2
    """How many requests to one host may run at the same time."""
    cache_minutes: Annotated[float, Meta(ge=0)] = 10
    """How long to reuse a fetched page or a search; 0 means never."""
    max_cache_mb: PositiveFloat = 200
    """The most space for the full texts of pages in the home, in megabytes; the oldest are deleted first."""
    user_agent: str = ""
    """How requests identify themselves; empty means as toolcrib."""


class WebsiteList(Section, frozen=True, kw_only=True):
    """A list of websites."""

    enabled: bool = False
    """Whether the list applies."""
    domains: list[str] = field(default_factory=list)
    """Domains; each includes its subdomains, and `*.example.com` means only these."""
    shared_files: list[str] = field(default_factory=list)
    """Files with one domain per line; `#` starts a comment. Relative paths are relative to the home."""
