"""`web_search` with every provider, against servers that answer in the providers' published formats."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.web.conftest import OpenWeb, call
from tests.web.sites import Page, Site
from toolcrib.config.load import load_settings
from toolcrib.core.context import ToolContext
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.testing import ScriptedAsker, isolated_runtime
from toolcrib.web import guard
from toolcrib.web.provider_access import ProviderFailed
from toolcrib.web.providers.choose import Ddgs, exa_text_hits
from toolcrib.web.service import NO, ONCE, YES

KEY = "key-0123456789abcdef"


def page(value: Any, status: int = 200, **headers: str) -> Page:
    return status, {"content-type": "application/json", **headers}, json.dumps(value).encode()


HIT = {"title": "The <b>Title</b> &amp; more", "url": "https://found.example/page"}
EXA = {"results": [{**HIT, "publishedDate": "2026-11-02", "highlights": ["A snippet", "and more"], "id": "1"}]}
PARALLEL = {"search_id": "s", "results": [{**HIT, "publish_date": "2026-11-02", "excerpts": ["A snippet", "and more"]}]}
FIRECRAWL = {"success": True, "data": {"web": [{**HIT, "description": "A snippet", "position": 1}]}}
TAVILY = {"query": "q", "results": [{**HIT, "content": "A snippet", "score": 0.9, "published_date": "2026-11-02"}]}
BRAVE = {
    "type": "search",
    "web": {"results": [{**HIT, "description": "A <strong>snippet</strong>", "page_age": "2026-11-02"}]},
}
SEARXNG = {"query": "q", "results": [{**HIT, "content": "A snippet", "publishedDate": "2026-11-02", "engine": "x"}]}
# name, variable, path, answer
PROVIDERS: list[tuple[str, str, str, Any]] = [
    ("exa", "EXA_API_KEY", "/search", EXA),
    ("parallel", "PARALLEL_API_KEY", "/v1beta/search", PARALLEL),
    ("firecrawl", "FIRECRAWL_API_KEY", "/v2/search", FIRECRAWL),
    ("tavily", "TAVILY_API_KEY", "/search", TAVILY),
    ("brave", "BRAVE_SEARCH_API_KEY", "/res/v1/web/search", BRAVE),
    ("searxng", "SEARXNG_URL", "/search", SEARXNG),
]
BY_NAME = pytest.mark.parametrize(("name", "variable", "path", "answer"), PROVIDERS, ids=[one[0] for one in PROVIDERS])


@pytest.fixture
def configure(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], dict[str, Any]]:
    """Sets the key of a provider; returns the `web` section that sends its requests to the site."""

    def set_up(name: str, variable: str) -> dict[str, Any]:
        monkeypatch.setenv(variable, site.address if name == "searxng" else KEY)
        return {"endpoints": {name: site.address}} if name != "searxng" else {}

    return set_up


@BY_NAME
async def test_every_provider_answers_in_its_own_format(
    name: str, variable: str, path: str, answer: Any, open_web: OpenWeb, site: Site, configure: Any
) -> None:
    """A search returns title, address, snippet, date, position and who answered."""
    runtime = open_web(web=configure(name, variable), security={"allow_private_urls": False})
    site.pages[path] = page(answer)

    found = await call(runtime, "web_search", query="what  is this", limit=3)

    assert found["success"] is True
    (first,) = found["data"]["web"]
    assert first["url"] == "https://found.example/page"
    assert first["title"] == "The Title & more"
    assert first["description"].startswith("A snippet")
    assert first["position"] == 1
    assert first["provider"] == found["provider"]
    assert first.get("date", "2026-11-02") == "2026-11-02"
    (asked,) = site.requests
    sent = asked.body.decode() + asked.path.replace("+", " ")
    assert "what is this" in sent
    if name != "searxng":
        assert KEY in asked.body.decode() + "".join(asked.headers.values())


FAILURES: dict[str, tuple[Any, str]] = {
    "wrong key": (page({"error": f"bad key {KEY}"}, 401), "refused|JSON"),
    "forbidden": (page({"error": KEY}, 403), "refused|JSON"),
    "no credit": (page({}, 402), "no credit"),
    "quota": (page({}, 429, **{"retry-after": "7"}), "limit of .* is reached"),
    "server": (page({"error": "x"}, 503), r"has a problem \(HTTP 503\)"),
    "not json": ((200, {"content-type": "text/html"}, b"<html>oops</html>"), "cannot be understood"),
    "a list": (page([1, 2]), "cannot be understood"),
    "no results": (page({"answer": 42}), "cannot be understood"),
    "wrong type": (page({"results": "none", "web": "none", "data": {"web": 3}}), "cannot be understood"),
    "huge": ((200, {"content-length": "99999999999"}, b""), "larger than 8 MB"),
    "elsewhere": ((302, {"location": "https://evil.example/"}, b""), "cannot be understood"),
    "bad request": (page({"error": "x"}, 400), r"did not accept the request \(HTTP 400\)"),
}


@pytest.mark.quick_rows(5)
@pytest.mark.parametrize("failure", FAILURES)
@BY_NAME
async def test_every_failure_is_one_sentence(
    failure: str, name: str, variable: str, path: str, answer: Any, open_web: OpenWeb, site: Site, configure: Any
) -> None:
    """Whatever goes wrong, the error is one clear sentence that names the provider and never the key."""
    runtime = open_web(web=configure(name, variable))
    site.pages[path], expected = FAILURES[failure]

    result = await runtime.call("web_search", {"query": "q"})

    assert result.is_error
    answered = json.loads(result.text)
    assert answered["success"] is False
    assert KEY not in result.text
    assert re.search(expected, answered["error"])
    assert name.lower() in answered["error"].lower()


@BY_NAME
async def test_a_provider_that_does_not_answer_is_left(
    name: str, variable: str, path: str, answer: Any, open_web: OpenWeb, site: Site, configure: Any
) -> None:
    """The time limit of a provider gives its own sentence."""
    runtime = open_web(web={**configure(name, variable), "timeout": 0.3})
    site.pages[path] = lambda _: (site.released.wait(30), page(answer))[1]

    found = await call(runtime, "web_search", query="q")

    assert "did not answer within 0.3 seconds" in found["error"]


async def test_the_next_provider_is_asked_after_a_failure(
    open_web: OpenWeb, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing provider is followed by the next, and both are named; one at its limit comes last for a while."""
    monkeypatch.setenv("EXA_API_KEY", KEY)
    monkeypatch.setenv("TAVILY_API_KEY", KEY)
    runtime = open_web(web={"endpoints": {"exa": f"{site.address}/exa", "tavily": f"{site.address}/tavily"}})
    site.pages["/exa/search"] = page({}, 429)
    site.pages["/tavily/search"] = page(TAVILY)

    first = await call(runtime, "web_search", query="one")
    second = await call(runtime, "web_search", query="two")

    assert first["provider"] == second["provider"] == "Tavily"
    assert "limit of Exa" in first["failed_providers"][0]
    assert "failed_providers" not in second
    assert [asked.path for asked in site.requests] == ["/exa/search", "/tavily/search", "/tavily/search"]


async def test_the_config_sets_the_order(open_web: OpenWeb, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """`search_backend` is tried first; `search_providers` limits the choice."""
    for name in ("EXA_API_KEY", "TAVILY_API_KEY"):
        monkeypatch.setenv(name, KEY)
    endpoints = {"exa": f"{site.address}/exa", "tavily": f"{site.address}/tavily"}
    site.pages["/exa/search"] = page(EXA)
    site.pages["/tavily/search"] = page({}, 500)

    preferred = open_web(web={"endpoints": endpoints, "search_backend": "tavily"})
    only = open_web(web={"endpoints": endpoints, "search_providers": ["tavily"]})

    assert (await call(preferred, "web_search", query="q"))["provider"] == "Exa"
    assert [asked.path for asked in site.requests] == ["/tavily/search", "/exa/search"]
    assert "Tavily has a problem" in (await call(only, "web_search", query="q"))["error"]


async def test_an_unknown_provider_is_named(open_web: OpenWeb) -> None:
    """A name in the config that is no provider gives an error with the nearest one."""
    found = await call(open_web(web={"search_backend": "tavilly"}), "web_search", query="q")

    assert "did you mean 'tavily'" in found["error"]


async def test_a_search_is_remembered(open_web: OpenWeb, site: Site, configure: Any) -> None:
    """The same query within minutes is not sent again."""
    runtime = open_web(web=configure("exa", "EXA_API_KEY"))
    site.pages["/search"] = page(EXA)

    await call(runtime, "web_search", query="Some  Words")
    again = await call(runtime, "web_search", query="some words")

    assert again["cached"] is True
    assert len(site.requests) == 1


async def test_results_on_the_blocklist_are_left_out(open_web: OpenWeb, site: Site, configure: Any) -> None:
    """A website that must not be reached is not offered either."""
    blocklist = {"enabled": True, "domains": ["found.example"]}
    runtime = open_web(web=configure("exa", "EXA_API_KEY"), security={"website_blocklist": blocklist})
    site.pages["/search"] = page(EXA)

    found = await call(runtime, "web_search", query="q")

    assert found["data"]["web"] == []
    assert "nothing was found" in found["note"]


@pytest.mark.parametrize("query", ["", "   ", "x" * 3_000, "why does sk-abcdefghijklmnopqrstuvwx fail"])
async def test_bad_queries_are_not_sent(query: str, open_web: OpenWeb, site: Site, configure: Any) -> None:
    """Empty and endless queries, and those with a key in them, stay here."""
    runtime = open_web(web=configure("exa", "EXA_API_KEY"))

    assert (await runtime.call("web_search", {"query": query})).is_error
    assert site.requests == []


# Without a key


def sse(text: str) -> Page:
    message = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}]}}
    body = f"event: message\ndata: {json.dumps(message)}\n\n"
    return 200, {"content-type": "text/event-stream"}, body.encode()


EXA_TEXT = """Title: The Title
URL: https://found.example/page
Published: 2026-11-02
Author: N/A
Highlights:
A snippet
of two lines

---

Title: Second
URL: https://second.example/
Text: Other words"""


@pytest.fixture
def free(site: Site, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A `web` section whose free services are the site, without ddgs."""
    monkeypatch.setattr(Ddgs, "is_installed", staticmethod(lambda: False))
    names = ("exa-free", "parallel-free", "firecrawl-free")
    site.pages["/exa-free"] = sse(EXA_TEXT)
    site.pages["/parallel-free"] = page(
        {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"text": json.dumps(PARALLEL)}]}}
    )
    site.pages["/firecrawl-free"] = sse(json.dumps(FIRECRAWL["data"]))
    return {"endpoints": {name: f"{site.address}/{name}" for name in names}}


@pytest.mark.parametrize("name", ["exa", "parallel", "firecrawl"])
async def test_free_endpoints_answer(name: str, open_web: OpenWeb, site: Site, free: dict[str, Any]) -> None:
    """Each free endpoint is asked with one JSON-RPC request, and its vendor is named."""
    runtime = open_web(web={**free, "keyless": True, "search_backend": name})

    found = await call(runtime, "web_search", query="q")

    assert found["provider"].lower() == f"{name} (free)"
    assert found["data"]["web"][0]["url"] == "https://found.example/page"
    (asked,) = site.requests
    assert json.loads(asked.body)["method"] == "tools/call"


def test_exa_text_has_all_fields() -> None:
    """Blocks of text become results with title, date and snippet."""
    first, second = exa_text_hits(EXA_TEXT)

    assert first is not None
    assert second is not None
    assert (first.title, first.date, first.description) == ("The Title", "2026-11-02", "A snippet of two lines")
    assert (second.url, second.description) == ("https://second.example/", "Other words")


async def test_the_next_free_service_is_asked_after_a_limit(
    open_web: OpenWeb, site: Site, free: dict[str, Any]
) -> None:
    """Limits in the status or inside the answer lead to the next vendor."""
    limit = {"jsonrpc": "2.0", "id": 1, "result": {"isError": True, "content": [{"text": "429 rate limit"}]}}
    site.pages["/exa-free"] = page({}, 429)
    site.pages["/firecrawl-free"] = page(limit)

    found = await call(open_web(web={**free, "keyless": True, "search_backend": "exa"}), "web_search", query="q")

    assert found["provider"] == "Parallel (free)"


async def test_queries_stay_here_until_someone_allows_it(open_web: OpenWeb, site: Site, free: dict[str, Any]) -> None:
    """Without a key and without anyone to ask, nothing is sent, and the error says what to type."""
    found = await call(open_web(web=free), "web_search", query="q")

    assert "toolcrib config set web.keyless true" in found["error"]
    assert "toolcrib setup web_search" in found["error"]
    assert site.requests == []


@pytest.mark.parametrize(
    ("answer", "is_allowed", "saved"),
    [(YES, True, True), (ONCE, True, None), (NO, False, False), ("rather not", False, False)],
)
async def test_the_user_is_asked_once(
    answer: str, is_allowed: bool, saved: bool | None, open_web: OpenWeb, site: Site, free: dict[str, Any]
) -> None:
    """The first search asks; the answer counts from then on, and is saved unless it was for now only."""
    person = ScriptedAsker(answer)
    runtime = open_web(web=free, services={"asker": person})

    first = await call(runtime, "web_search", query="one")
    second = await call(runtime, "web_search", query="two")

    assert ("error" not in first, "error" not in second) == (is_allowed, is_allowed)
    assert len(person.asked) == 1
    assert "leave this machine" in person.asked[0][0]
    assert load_settings(runtime.settings.home).web.keyless is saved
    assert bool(site.requests) is is_allowed


async def test_effects_say_who_gets_the_query(open_web: OpenWeb, configure: Any, free: dict[str, Any]) -> None:
    """The gate learns the hosts of the providers, and that a question comes first."""

    def effects(runtime: Any) -> list[tuple[str, str]]:
        entry = runtime.registry.get_entry("web_search")
        ctx = ToolContext(services=runtime.services)
        return [(one.kind, one.target) for one in entry.effects({"query": "q"}, ctx)]

    assert effects(open_web(web=free)) == [("interactive", ""), ("network", "")]
    kinds = effects(open_web(web=configure("exa", "EXA_API_KEY")))
    assert [kind for kind, _ in kinds] == ["network"]
    assert kinds[0][1].startswith("127.0.0.1")


DDGS_PROGRAMS = {
    "limit": ('print(\'{"error": "limit"}\')', "limit"),
    "nothing": ("", "without an answer"),
    "crash": ("import os; os.abort()", "without an answer"),
    "offline": ('print(\'{"error": "ConnectError"}\')', "no search engine"),
    "hang": ("import sys; sys.stdin.read(); import threading; threading.Event().wait()", "did not answer within 1 s"),
}


@pytest.mark.parametrize("name", DDGS_PROGRAMS)
async def test_ddgs_failures_have_a_sentence(name: str, tmp_path: Path) -> None:
    """The library runs in its own process; whatever happens there is one sentence here."""
    code, expected = DDGS_PROGRAMS[name]
    program = tmp_path / "program.py"
    program.write_text(code)

    with pytest.raises(ProviderFailed, match=expected):
        await Ddgs(program=program, seconds=1).search("q", 3)


async def test_ddgs_results_are_read(tmp_path: Path) -> None:
    """The library's fields become results."""
    program = tmp_path / "program.py"
    found = {"results": [{"title": "T", "href": "https://found.example/", "body": "B"}, {"title": "no address"}]}
    program.write_text(f"import json, sys\njob = json.load(sys.stdin)\nprint(json.dumps({found!r}))")

    (hit,) = await Ddgs(program=program).search("q", 3)

    assert (hit.title, hit.url, hit.description) == ("T", "https://found.example/", "B")


# Plugins


class PluginSearch:
    """What a plugin passes to `ctx.register_web_search_provider`."""

    name = "mine"
    display_name = "My search"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def is_available(self) -> bool:
        return True

    def supports_search(self) -> bool:
        return True

    def supports_extract(self) -> bool:
        return True

    def search(self, query: str, limit: int = 5) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def extract(self, urls: list[str]) -> Any:
        return [{"url": url, "title": "T", "content": f"read {url}"} for url in urls]


class LoadedProviderPlugin:
    """A loaded plugin with one declaration."""

    def __init__(self, provider: Any) -> None:
        self.declarations = [self]
        self.kind = "web_search_provider"
        self.arguments = (provider,)
        self.options: dict[str, Any] = {}


GOOD = {
    "success": True,
    "data": {"web": [{"title": "T", "url": "https://found.example/", "description": "D", "position": 1}]},
}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (GOOD, "My search"),
        ({"success": False, "error": "out of order"}, "My search failed: out of order"),
        (RuntimeError("boom"), "My search failed (RuntimeError)"),
        ({"data": {}}, "cannot be understood"),
    ],
)
async def test_plugins_can_bring_a_provider(answer: Any, expected: str, open_web: OpenWeb) -> None:
    """A plugin's provider is asked first; its failures are reported like those of any other."""
    runtime = open_web(services={"plugins": [LoadedProviderPlugin(PluginSearch(answer))]})

    found = await call(runtime, "web_search", query="q")

    assert expected in (found.get("provider") or found["error"])


@pytest.mark.usefixtures("all_public")
async def test_plugins_can_read_pages(open_web: OpenWeb, site: Site) -> None:
    """With `extract_backend`, a plugin's provider reads pages instead of our own fetcher."""
    runtime = open_web(
        services={"plugins": [LoadedProviderPlugin(PluginSearch(GOOD))]}, web={"extract_backend": "mine"}
    )

    answer = await call(runtime, "web_extract", urls=[f"http://site.example:{site.port}/x"])

    assert answer["results"][0]["content"] == f"read http://site.example:{site.port}/x"
    assert answer["results"][0]["provider"] == "My search"
    assert site.requests == []


# Reading pages by a provider

EXTRACTS: list[tuple[str, str, str, Any]] = [
    ("exa", "EXA_API_KEY", "/contents", {"results": [{"url": "{url}", "title": "T", "text": "full text"}]}),
    (
        "parallel",
        "PARALLEL_API_KEY",
        "/v1beta/extract",
        {"results": [{"url": "{url}", "title": "T", "full_content": "full text"}], "errors": []},
    ),
    (
        "firecrawl",
        "FIRECRAWL_API_KEY",
        "/v2/scrape",
        {"success": True, "data": {"markdown": "full text", "metadata": {"title": "T"}}},
    ),
    (
        "tavily",
        "TAVILY_API_KEY",
        "/extract",
        {"results": [{"url": "{url}", "raw_content": "full text"}], "failed_results": []},
    ),
]


@pytest.fixture
def all_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server on loopback counts as public."""
    monkeypatch.setattr(guard, "_literal_kind", lambda text: "public" if text[0].isdigit() else None)


@pytest.mark.usefixtures("all_public")
@pytest.mark.parametrize(("name", "variable", "path", "answer"), EXTRACTS, ids=[one[0] for one in EXTRACTS])
async def test_providers_read_what_our_own_fetch_cannot(
    name: str, variable: str, path: str, answer: Any, open_web: OpenWeb, site: Site, configure: Any
) -> None:
    """If a page refuses our own request, a provider with a key reads it, and the result says so."""
    runtime = open_web(web=configure(name, variable))
    site.pages["/page"] = (403, {}, b"no robots")
    site.pages[path] = page(answer)

    found = (await call(runtime, "web_extract", urls=[f"http://site.example:{site.port}/page"]))["results"][0]

    assert found["error"] is None
    assert found["content"] == "full text"
    assert name in found["provider"].lower()
    assert "HTTP 403" in found["note"]


@pytest.mark.parametrize("host", ["127.0.0.1", "site.example"])
@pytest.mark.parametrize("backend", ["", "exa"])
async def test_private_pages_never_go_to_a_provider(
    host: str, backend: str, open_web: OpenWeb, site: Site, configure: Any
) -> None:
    """A private address is not passed on, even if its name looks public and our own fetch fails."""
    runtime = open_web(web={**configure("exa", "EXA_API_KEY"), "extract_backend": backend})
    site.pages["/contents"] = page({"results": [{"url": "x", "text": "full text"}]})

    found = (await call(runtime, "web_extract", urls=[f"http://{host}:{site.port}/missing"]))["results"][0]

    assert "HTTP 404" in found["error"]
    assert [asked.path for asked in site.requests] == ["/missing"]


PLUGIN = """
from agent.web_search_provider import WebSearchProvider

class Finder(WebSearchProvider):
    name = "finder"
    display_name = "Finder"

    def is_available(self):
        return True

    def search(self, query, limit=5):
        hit = {"title": query, "url": "https://found.example/", "description": "", "position": 1}
        return {"success": True, "data": {"web": [hit]}}

def register(ctx):
    ctx.register_web_search_provider(Finder())
"""


async def test_a_plugin_file_registers_a_provider(tmp_path: Path) -> None:
    """What a plugin written for the reference system registers through its context answers the next search."""
    folder = tmp_path / "own" / "plugins" / "finder"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: finder\nversion: 1.0\n")
    (folder / "__init__.py").write_text(PLUGIN)
    with isolated_runtime(
        tmp_path / "own", "plugins: {enabled: [finder]}\n", registry=ToolRegistry(parent=default_registry)
    ) as runtime:
        runtime.load()

        found = await call(runtime, "web_search", query="q")

    assert found["provider"] == "Finder"
    assert found["data"]["web"][0]["title"] == "q"
