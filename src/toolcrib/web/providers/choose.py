"""Chooses the providers of a search or a page: what is configured, in which order, and those that need no key."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.config.settings import Settings
from toolcrib.core.errors import UnknownName
from toolcrib.web.http_client import GuardedClient, HttpResponse
from toolcrib.web.plugin_provider import PluginProvider, declared_objects
from toolcrib.web.provider_access import ProviderAccess, ProviderFailed
from toolcrib.web.providers.hosted import (
    Brave,
    Exa,
    Firecrawl,
    HostedProvider,
    Parallel,
    SearXng,
    Tavily,
    firecrawl_hits,
    parallel_hits,
)
from toolcrib.web.providers.provider import (
    ProviderPage,
    SearchHit,
    WebProvider,
    hit,
    hits,
    items,
    text_of,
)

DDGS_SECONDS = 30.0
_DDGS_PROGRAM = Path(__file__).with_name("ddgs_worker.py")
_FIELD = re.compile(
    r"^(title|url|published(?: date)?|author|highlights|text|summary|content):[ \t]*(.*)$", re.IGNORECASE
)


class KeylessEndpoint(HostedProvider):
    """A free search behind an MCP endpoint: one JSON-RPC request, without a session."""

    can_extract = False
    tool = ""

    def __init__(self, access: ProviderAccess, session: str = "") -> None:
        super().__init__(access)
        # Random for each process: it tells the vendor nothing about who searches.
        self.session = session or uuid.uuid4().hex

    def arguments(self, query: str, limit: int) -> dict[str, Any]:
        raise NotImplementedError

    def read_text(self, text: str) -> Sequence[SearchHit | None]:
        raise NotImplementedError

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        call = {"name": self.tool, "arguments": self.arguments(query, limit)}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        response = await self.access.post("", body, {"accept": "application/json, text/event-stream"})
        return self.read(self._texts(response), self._all_hits, limit)

    def _all_hits(self, texts: Sequence[str]) -> Sequence[SearchHit | None]:
        return [one for text in texts for one in self.read_text(text)]

    def _texts(self, response: HttpResponse) -> list[str]:
        answer = next((one for one in _messages(response) if "result" in one or "error" in one), None)
        if answer is None:
            raise self.access.malformed()
        result = answer.get("result")
        if not isinstance(result, dict):
            raise ProviderFailed(f"{self.display_name} refused the search", "request")
        texts = [text_of(one, "text") for one in items({"content": [], **result}, "content")]
        if result.get("isError"):
            is_limit = any(re.search(r"\b429\b|rate.?limit|quota", text, re.IGNORECASE) for text in texts)
            reason = "the request limit of {} is reached; try again later" if is_limit else "{} refused the search"
            raise ProviderFailed(reason.format(self.display_name), "quota" if is_limit else "request")
        return texts


def _messages(response: HttpResponse) -> list[dict[str, Any]]:
    """The JSON-RPC messages of an answer, which may be JSON or a stream of events."""
    text = response.body.decode("utf-8", "replace")
    pieces = [text]
    if response.content_type == "text/event-stream":
        events = re.split(r"\r?\n\r?\n", text)
        pieces = [
            "\n".join(line[5:].lstrip() for line in event.splitlines() if line.startswith("data:")) for event in events
        ]
    found: list[dict[str, Any]] = []
    for piece in pieces:
        try:
            value = json.loads(piece)
        except (ValueError, RecursionError):
            continue
        found.extend(one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict))
    return found


class KeylessExa(KeylessEndpoint):
    name = "exa-free"
    tool = "web_search_exa"

    def arguments(self, query: str, limit: int) -> dict[str, Any]:
        return {"query": query, "numResults": limit}

    def read_text(self, text: str) -> Sequence[SearchHit | None]:
        return exa_text_hits(text)


def exa_text_hits(text: str) -> list[SearchHit | None]:
    """The results in Exa's text: blocks of `Title: …`, `URL: …` and more, between lines of dashes."""
    found: list[SearchHit | None] = []
    for block in re.split(r"\n\s*-{3,}\s*\n|\n\s*\n(?=Title:)", text):
        fields: dict[str, list[str]] = {}
        current = ""
        for line in block.splitlines():
            match = _FIELD.match(line)
            if match:
                current = match[1].lower()
                fields.setdefault(current, []).append(match[2])
            elif current:
                fields[current].append(line)
        values = {name: "\n".join(lines).strip() for name, lines in fields.items()}
        about = text_of(values, "highlights", "summary", "text", "content")
        found.append(hit(values, description=about, date=text_of(values, "published", "published date")))
    return found


class KeylessParallel(KeylessEndpoint):
    name = "parallel-free"
    tool = "web_search"

    def arguments(self, query: str, limit: int) -> dict[str, Any]:
        return {"objective": query, "search_queries": [query], "session_id": self.session}

    def read_text(self, text: str) -> Sequence[SearchHit | None]:
        return parallel_hits(json.loads(text))


class KeylessFirecrawl(KeylessEndpoint):
    name = "firecrawl-free"
    tool = "firecrawl_search"

    def arguments(self, query: str, limit: int) -> dict[str, Any]:
        return {"query": query, "limit": limit}

    def read_text(self, text: str) -> Sequence[SearchHit | None]:
        return firecrawl_hits(json.loads(text))


RING: Mapping[str, tuple[type[KeylessEndpoint], str, str]] = {
    "exa-free": (KeylessExa, "Exa (free)", "https://mcp.exa.ai/mcp"),
    "parallel-free": (KeylessParallel, "Parallel (free)", "https://search.parallel.ai/mcp"),
    "firecrawl-free": (KeylessFirecrawl, "Firecrawl (free)", "https://mcp.firecrawl.dev/v2/mcp"),
}


class Ddgs:
    """Public search engines through the library ddgs, in a process of its own: it may hang, and it reads variables."""

    name = "ddgs"
    display_name = "ddgs"
    host = ""
    can_search = True
    can_extract = False

    def __init__(self, *, proxy: str = "", seconds: float = DDGS_SECONDS, program: Path = _DDGS_PROGRAM) -> None:
        self._proxy = proxy
        self._seconds = seconds
        self._program = program

    @staticmethod
    def is_installed() -> bool:
        return find_spec("ddgs") is not None

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        answer = await asyncio.to_thread(self._run, {"query": query, "limit": limit, "proxy": self._proxy})
        if "results" not in answer:
            is_limit = answer.get("error") == "limit"
            if is_limit:
                raise ProviderFailed(
                    "the request limit of the engines behind ddgs is reached; try again later", "quota"
                )
            raise ProviderFailed("ddgs found no search engine that answers", "unreachable")
        found = [
            hit({"url": one.get("href"), "title": one.get("title")}, description=text_of(one, "body"))
            for one in items(answer, "results")
        ]
        return hits(found, limit)

    async def extract(self, urls: Sequence[str]) -> Sequence[ProviderPage]:
        raise NotImplementedError

    def _run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        command = [sys.executable, "-I", "-X", "utf8", str(self._program)]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(job).encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                timeout=self._seconds,
                check=False,
            )
            answer = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            raise ProviderFailed(f"ddgs did not answer within {self._seconds:g} seconds", "timeout") from None
        except (ValueError, RecursionError):
            raise ProviderFailed("ddgs failed without an answer", "malformed") from None
        return answer if isinstance(answer, dict) else {}


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
