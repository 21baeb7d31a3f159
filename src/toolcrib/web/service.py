"""The service behind `web_search` and `web_extract`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import msgspec

from toolcrib.config.edit import put_values
from toolcrib.config.environment import environment
from toolcrib.config.redact import has_secret
from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.errors import ConfigError, ToolcribError, UnknownName, UsageError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry.results import sendable, tool_error, tool_result
from toolcrib.web.addresses import AddressRefused, parse_address
from toolcrib.web.cache import RecentAnswers
from toolcrib.web.extract import (
    DEFAULT_CHARS,
    MAX_CHARS,
    MAX_URLS,
    MIN_CHARS,
    RenderPage,
    WebExtract,
    seconds_left,
)
from toolcrib.web.guard import AddressGuard, AddressRules, Resolver, WebsiteRules, system_resolver
from toolcrib.web.http_client import FetchFailed, FetchLimits, GuardedClient, HttpRequest
from toolcrib.web.page_reader import PageReader
from toolcrib.web.provider_access import ProviderFailed
from toolcrib.web.providers.choose import ProviderChoice
from toolcrib.web.providers.provider import SETUP, SearchHit, WebProvider

logger = logging.getLogger(__name__)

SEARCH_SECONDS = 90.0
PAUSE_SECONDS = 60.0
"""How long a provider whose limit is reached comes last, if it does not say."""
MAX_QUERY_CHARS = 2_000
DEFAULT_LIMIT = 5
ALLOW = "toolcrib config set web.keyless true"
QUESTION = (
    "No search key is set. May web_search send queries to free public services (DuckDuckGo and other search engines, "
    "Exa, Parallel, Firecrawl)? The queries leave this machine."
)
YES, ONCE, NO = "Yes, from now on", "Only until toolcrib exits", "No"


class SearchFailed(ToolcribError):
    """A search without an answer; says why, and what to do."""


class _Answer(msgspec.Struct, frozen=True):
    provider: str
    hits: tuple[SearchHit, ...]
    failures: tuple[str, ...] = ()


class KeylessConsent:
    """Whether queries may go to free public services: the setting, or what the user answered."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.answer: bool | None = settings.web.keyless

    async def ask(self, ctx: ToolContext) -> bool:
        """The user's decision; asks once and remembers it. Raises SearchFailed if nobody can be asked."""
        if self.answer is None:
            try:
                said = await ctx.ask(QUESTION, (YES, ONCE, NO))
            except UsageError:
                raise SearchFailed(
                    f"no search key is set; {SETUP} to enter one, or allow free public services with `{ALLOW}`"
                ) from None
            self.answer = said == ONCE or said.strip().lower().startswith(("yes", "y "))
            if said != ONCE:
                self._remember(self.answer)
        return self.answer

    def _remember(self, answer: bool) -> None:
        try:
            put_values(self._settings.home, {("web", "keyless"): answer})
        except ConfigError as error:
            # The answer still counts for this process.
            logger.warning("cannot save web.keyless: %s", error)


class WebSearch:
    """The searches of one runtime: recent answers, and which providers are at their limit."""

    def __init__(
        self,
        settings: Settings,
        choice: ProviderChoice,
        websites: WebsiteRules,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._choice = choice
        self._websites = websites
        self._clock = clock
        self.consent = KeylessConsent(settings)
        self._recent: RecentAnswers[_Answer] = RecentAnswers(settings.web.cache_minutes * 60)
        self._paused: dict[str, float] = {}

    def hosts(self) -> list[str]:
        """Where the next search may go."""
        return [one.host for one in self._providers()]

    def must_ask(self) -> bool:
        """Whether the user has to be asked before the next search."""
        return self.consent.answer is None and not self._providers()

    async def run(self, args: JsonObject, ctx: ToolContext) -> JsonObject:
        """The result of the tool; raises SearchFailed."""
        query, limit = " ".join(str(args.get("query") or "").split()), int(args.get("limit") or DEFAULT_LIMIT)
        _check_query(query)
        key = (query.casefold(), limit)
        found = self._recent.get(key)
        if found is not None:
            return {**self._result(found), "cached": True}
        try:
            providers = self._providers()
            if not providers:
                await self._require_keyless(ctx)
                providers = self._providers()
        except UnknownName as error:
            raise SearchFailed(str(error)) from error
        found = await self._first_answer(providers, query, limit)
        self._recent.put(key, found)
        return self._result(found)

    def _providers(self) -> list[WebProvider]:
        return self._choice.for_search(keyless=bool(self.consent.answer))

    async def _require_keyless(self, ctx: ToolContext) -> None:
        if not await self.consent.ask(ctx):
            raise SearchFailed(
                f"no search key is set, and free public services are not allowed; {SETUP} to enter a key, or run "
                f"`{ALLOW}`"
            )

    async def _first_answer(self, providers: Sequence[WebProvider], query: str, limit: int) -> _Answer:
        failures: list[str] = []
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                for provider in self._rested_first(providers):
                    try:
                        found = await provider.search(query, limit)
                    except ProviderFailed as error:
                        failures.append(str(error))
                        self._pause(provider, error)
                        continue
                    return _Answer(provider.display_name, tuple(found), tuple(failures))
        except TimeoutError:
            failures.append(f"no provider answered within {SEARCH_SECONDS:g} seconds")
        raise SearchFailed("; ".join(failures) or f"no search provider is configured; {SETUP}")

    def _rested_first(self, providers: Sequence[WebProvider]) -> Iterable[WebProvider]:
        now = self._clock()
        return sorted(providers, key=lambda one: self._paused.get(one.name, 0.0) > now)

    def _pause(self, provider: WebProvider, error: ProviderFailed) -> None:
        if error.kind == "quota":
            self._paused[provider.name] = self._clock() + (error.retry_seconds or PAUSE_SECONDS)

    def _result(self, answer: _Answer) -> JsonObject:
        allowed = [one for one in answer.hits if not self._is_blocked(one)]
        result: JsonObject = {
            "success": True,
            "provider": answer.provider,
            "data": {"web": [_as_json(one, place, answer.provider) for place, one in enumerate(allowed, 1)]},
        }
        if not allowed:
            result["note"] = "nothing was found; try other words"
        if answer.failures:
            result["failed_providers"] = list(answer.failures)
        return result

    def _is_blocked(self, one: SearchHit) -> bool:
        try:
            return self._websites.refusal(parse_address(one.url).host) is not None
        except AddressRefused:
            # Only its reader will refuse it; it is no reason to hide what was found.
            return False


def _check_query(query: str) -> None:
    if not query:
        raise SearchFailed("the query is empty; say in `query` what to search for")
    if len(query) > MAX_QUERY_CHARS:
        raise SearchFailed(f"the query is longer than {MAX_QUERY_CHARS} characters; shorten it")
    if has_secret(query):
        raise SearchFailed("the query contains a key or another secret, which would leave this machine; leave it out")


def _as_json(one: SearchHit, place: int, provider: str) -> JsonObject:
    shown: JsonObject = {"title": one.title, "url": one.url, "description": one.description, "position": place}
    if one.date:
        shown["date"] = one.date
    return {**shown, "provider": provider}


class WebService:
    """The web tools of one runtime. Other services that fetch what a model names use its `guard` and `client`."""

    def __init__(
        self,
        settings: Settings,
        services: Services,
        *,
        resolver: Resolver = system_resolver,
        render: RenderPage | None = None,
        reader: PageReader | None = None,
    ) -> None:
        """`render` runs the scripts of a page that is empty without them; `reader` is closed with the service."""
        self._render = render
        self._settings = settings
        self._services = services
        self._resolver = resolver
        self._reader = reader or PageReader()

    @cached_property
    def guard(self) -> AddressGuard:
        """Decides what may be reached; raises ConfigError for unusable settings."""
        return AddressGuard(AddressRules.from_settings(self._settings), self._resolver)

    @cached_property
    def client(self) -> GuardedClient:
        return GuardedClient.from_settings(self._settings, self.guard)

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
