"""The service behind `web_search` and `web_extract`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from toolcrib.config.environment import environment
from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.errors import ConfigError, UnknownName
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry.results import sendable, tool_error, tool_result
from toolcrib.web.addresses import AddressRefused, parse_address
from toolcrib.web.extract import (
    DEFAULT_CHARS,
    MAX_CHARS,
    MAX_URLS,
    MIN_CHARS,
    RenderPage,
    WebExtract,
    seconds_left,
)
from toolcrib.web.guard import AddressGuard, AddressRules, Resolver, system_resolver
from toolcrib.web.http_client import FetchFailed, FetchLimits, GuardedClient, HttpRequest
from toolcrib.web.page_reader import PageReader
from toolcrib.web.providers.choose import ProviderChoice
from toolcrib.web.search import SearchFailed, WebSearch


class WebService:
    """The web tools of one runtime. Other services that fetch what a model names use its `guard` and `client`."""

    def __init__(
        self,
        settings: Settings,
        services: Services,
        *,
        resolver: Resolver = system_resolver,
        render: RenderPage | None = None,
    ) -> None:
        """`render` runs the scripts of a page that is empty without them."""
        self._render = render
        self._settings = settings
        self._services = services
        self._resolver = resolver
        self._reader = PageReader()

    @cached_property
    def guard(self) -> AddressGuard:
        """Decides what may be reached; raises ConfigError for unusable settings."""
        return AddressGuard(AddressRules.from_settings(self._settings), self._resolver)

    @cached_property
    def client(self) -> GuardedClient:
        web = self._settings.web
        return GuardedClient(self.guard, proxy=web.proxy, user_agent=web.user_agent, max_per_host=web.max_per_host)

    @cached_property
    def _choice(self) -> ProviderChoice:
        return ProviderChoice(self._settings, environment, self.client, lambda: self._services.plugins)

    @cached_property
    def _search(self) -> WebSearch:
        return WebSearch(self._settings, self._choice, self.guard.rules.websites)

    @cached_property
    def _extract(self) -> WebExtract:
        return WebExtract(self._settings, self._services, self.client, self._choice, self._reader, self._render)

    # web_search

    async def search(self, args: JsonObject, ctx: ToolContext) -> str:
        try:
            return sendable(tool_result(await self._search.run(args, ctx)))
        except (SearchFailed, ConfigError) as error:
            return tool_error(error, success=False)

    def search_effects(self) -> tuple[Effect, ...]:
        """The hosts that may get the query; also a question to the user, if one is needed first."""
        try:
            network = tuple(Effect("network", host) for host in dict.fromkeys(self._search.hosts()))
            must_ask = self._search.must_ask()
        except (ConfigError, UnknownName, AddressRefused):
            # The tool reports it.
            return (Effect("network"),)
        return (Effect("interactive"), Effect("network")) if must_ask else network or (Effect("network"),)

    # web_extract

    async def extract(self, args: JsonObject, ctx: ToolContext) -> str:
        urls = wanted_urls(args)
        if not urls:
            return tool_error("no address is given; pass one or more in `urls`")
        if len(urls) > MAX_URLS:
            return tool_error(f"{len(urls)} addresses are too many; pass at most {MAX_URLS} at once")
        char_limit = min(MAX_CHARS, max(MIN_CHARS, int(args.get("char_limit") or DEFAULT_CHARS)))
        try:
            return sendable(tool_result(await self._extract.run(urls, char_limit, seconds_left(ctx.deadline))))
        except (ConfigError, UnknownName) as error:
            return tool_error(error)

    def extract_effects(self, args: JsonObject) -> tuple[Effect, ...]:
        """The hosts of the pages."""
        return tuple(Effect("network", host) for host in dict.fromkeys(_hosts(wanted_urls(args))))

    # For other services

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        """What is at an address; raises AddressRefused, HostNotFound or FetchFailed."""
        limits = FetchLimits(
            max_bytes=max_bytes, seconds=self._settings.web.timeout, max_redirects=self._settings.web.max_redirects
        )
        response = await self.client.send(HttpRequest(url=self.guard.check(url), limits=limits))
        if response.status >= 400:
            raise FetchFailed(f"{url!r} answered HTTP {response.status}")
        return response.body

    def close(self) -> None:
        self._reader.close()


def wanted_urls(args: JsonObject) -> list[str]:
    """The addresses of a call, in order; models sometimes pass a single one as text, or as an object from a search."""
    given = args.get("urls") or []
    listed = [given] if isinstance(given, (str, dict)) else list(given)
    texts = [str(one.get("url") or one.get("href") or "") if isinstance(one, dict) else str(one) for one in listed]
    return [text.strip(" ") for text in texts if text.strip(" ")]


def _hosts(urls: Iterable[str]) -> Iterable[str]:
    for url in urls:
        try:
            yield parse_address(url).host
        except AddressRefused:
            # Nothing is sent; the tool says why.
            continue
