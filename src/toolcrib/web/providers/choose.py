"""Chooses the providers of a search or a page: what is configured, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from toolcrib.config.settings import Settings
from toolcrib.core.errors import UnknownName
from toolcrib.web.http_client import GuardedClient
from toolcrib.web.plugin_provider import PluginProvider, declared_objects
from toolcrib.web.provider_access import ProviderAccess
from toolcrib.web.providers.hosted import Brave, Exa, Firecrawl, HostedProvider, Parallel, SearXng, Tavily
from toolcrib.web.providers.keyless import RING, Ddgs
from toolcrib.web.providers.provider import (
    ProviderPage,
    SearchHit,
    WebProvider,
    hit,
    hits,
    items,
    text_of,
)

PLUGIN_SECONDS = 60.0


class PluginWebProvider(PluginProvider):
    """Adapts the object that a plugin passed to `ctx.register_web_search_provider`."""

    def __init__(self, provider: Any, seconds: float = PLUGIN_SECONDS) -> None:
        super().__init__(provider, seconds)

    @property
    def can_search(self) -> bool:
        return bool(self.ask("supports_search", True))

    @property
    def can_extract(self) -> bool:
        return bool(self.ask("supports_extract", False))

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        answer = await self.call(self.provider.search, query, limit)
        self.require_success(answer)
        try:
            data = answer.get("data", answer) if isinstance(answer, Mapping) else {"web": answer}
            found = [hit(one, description=_snippet(one), date=text_of(one, "date")) for one in items(data, "web")]
        except LookupError:
            raise self.malformed() from None
        return hits(found, limit)

    async def extract(self, urls: Sequence[str]) -> Sequence[ProviderPage]:
        answer = await self.call(self.provider.extract, list(urls))
        self.require_success(answer)
        try:
            found = items(answer, "results") if isinstance(answer, Mapping) else items(answer)
        except LookupError:
            raise self.malformed() from None
        return [
            ProviderPage(
                url=text_of(one, "url"),
                title=text_of(one, "title"),
                content=text_of(one, "content", "raw_content"),
                error=text_of(one, "error")[:300],
            )
            for one in found
        ]


def _snippet(found: Mapping[str, Any]) -> str:
    return text_of(found, "description", "snippet", "content")


OWN = "own"
"""The name of our own fetcher in `web.extract_backend`."""


class HostedSpec(msgspec.Struct, frozen=True):
    """What a hosted provider needs to be configured."""

    provider: type[HostedProvider]
    display_name: str
    base_url: str
    """Empty if every user has another one."""
    key_variable: str = ""
    url_variable: str = ""


HOSTED = {
    "exa": HostedSpec(Exa, "Exa", "https://api.exa.ai", "EXA_API_KEY"),
    "parallel": HostedSpec(Parallel, "Parallel", "https://api.parallel.ai", "PARALLEL_API_KEY"),
    "firecrawl": HostedSpec(
        Firecrawl, "Firecrawl", "https://api.firecrawl.dev", "FIRECRAWL_API_KEY", "FIRECRAWL_API_URL"
    ),
    "tavily": HostedSpec(Tavily, "Tavily", "https://api.tavily.com", "TAVILY_API_KEY"),
    "brave": HostedSpec(Brave, "Brave Search", "https://api.search.brave.com", "BRAVE_SEARCH_API_KEY"),
    "searxng": HostedSpec(SearXng, "SearXNG", "", "", "SEARXNG_URL"),
}
KEYLESS = ("ddgs", *RING)


class UnknownWebProvider(UnknownName):
    kind = "web provider"


class ProviderChoice:
    """The providers that the settings and the environment allow at this moment."""

    def __init__(
        self,
        settings: Settings,
        environ: Callable[[], Mapping[str, str]],
        client: GuardedClient,
        plugins: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._client = client
        self._plugins = plugins
        self._turn = 0

    def for_search(self, *, keyless: bool) -> list[WebProvider]:
        """The providers to try, in order; raises UnknownWebProvider for a name in the settings that is none."""
        web = self._settings.web
        found = [one for one in self._configured() if one.can_search]
        if keyless:
            found += self._keyless()
        if web.search_providers:
            return [one for name in web.search_providers for one in self._named(name, found)]
        return self._preferred_first(web.search_backend or web.backend, found)

    def for_extract(self) -> list[WebProvider]:
        """The providers that can read pages; the preferred one first."""
        web = self._settings.web
        found = [one for one in self._configured() if one.can_extract]
        return self._preferred_first(web.extract_backend or web.backend, found)

    @property
    def preferred_extractor(self) -> str:
        """The provider that reads pages before our own fetcher tries; empty for none."""
        web = self._settings.web
        wanted = web.extract_backend or web.backend
        return wanted if any(one.name == wanted for one in self.for_extract()) else ""

    def _preferred_first(self, name: str, found: list[WebProvider]) -> list[WebProvider]:
        if not name or name == OWN:
            return found
        preferred = self._named(name, found)
        return preferred + [one for one in found if one not in preferred]

    def _named(self, name: str, found: Iterable[WebProvider]) -> list[WebProvider]:
        """The provider of this name, or its free variant; none if it is known but not configured."""
        name = name.strip().lower()
        chosen = [one for one in found if one.name == name] or [one for one in found if one.name == f"{name}-free"]
        known = {*HOSTED, *KEYLESS, OWN, *(one.name for one in self._of_plugins())}
        if not chosen and name not in known:
            raise UnknownWebProvider(name, sorted(known), advice="correct it in the `web` section of the config")
        return chosen

    def _configured(self) -> list[WebProvider]:
        return [*self._of_plugins(), *filter(None, map(self._hosted, HOSTED))]

    def _of_plugins(self) -> list[WebProvider]:
        declared = [PluginWebProvider(one) for one in declared_objects(self._plugins(), "web_search_provider")]
        return [one for one in declared if one.name and one.is_available]

    def _hosted(self, name: str) -> WebProvider | None:
        spec, environ = HOSTED[name], self._environ()
        key = environ.get(spec.key_variable, "").strip() if spec.key_variable else ""
        own_url = self._settings.web.endpoints.get(name, "") or environ.get(spec.url_variable, "").strip()
        # With an address of one's own, a key may not be needed.
        if not key and not (spec.url_variable and own_url):
            return None
        access = self._access(spec.display_name, own_url or spec.base_url, spec.key_variable, key)
        return spec.provider(access)

    def _keyless(self) -> list[WebProvider]:
        web = self._settings.web
        found: list[WebProvider] = []
        if Ddgs.is_installed():
            found.append(Ddgs(proxy=web.proxy, seconds=web.timeout))
        # The vendors take turns, so that none of them gets all queries.
        self._turn += 1
        names = list(RING)
        for index in range(len(names)):
            name = names[(self._turn + index) % len(names)]
            provider, display_name, base_url = RING[name]
            found.append(provider(self._access(display_name, web.endpoints.get(name) or base_url)))
        return found

    def _access(self, display_name: str, base_url: str, key_variable: str = "", key: str = "") -> ProviderAccess:
        return ProviderAccess(
            client=self._client,
            display_name=display_name,
            base_url=base_url.rstrip("/"),
            key_variable=key_variable,
            key=key,
            seconds=self._settings.web.timeout,
        )
