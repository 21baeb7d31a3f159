"""Runtimes with the web tools, whose names resolve to a server on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.web.sites import Site, serve
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.tools.web import web_search  # noqa: F401 - registers the tools
from toolcrib.web.page_reader import PageReader
from toolcrib.web.service import WebService

KEYS = (
    "EXA_API_KEY", "PARALLEL_API_KEY", "TAVILY_API_KEY", "FIRECRAWL_API_KEY", "FIRECRAWL_API_URL",
    "BRAVE_SEARCH_API_KEY", "SEARXNG_URL",
)  # fmt: skip

OpenWeb = Callable[..., Runtime]


class SharedReader(PageReader):
    """Outlives the services that read with it: starting its workers takes longer than most tests."""

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def shared_reader() -> Iterator[SharedReader]:
    reader = SharedReader()
    yield reader
    PageReader.close(reader)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's real keys are used."""
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as one:
        yield one


@pytest.fixture
def open_web(make_runtime: Callable[..., Runtime], site: Site, shared_reader: SharedReader) -> Iterator[OpenWeb]:
    """Makes runtimes whose web tools reach the site, also as `site.example`."""

    async def resolve(host: str, _port: int) -> Sequence[str]:
        if host.endswith(".example"):
            return ["127.0.0.1"]
        raise OSError("no such host")

    def make(*, web: dict[str, Any] | None = None, security: dict[str, Any] | None = None, **options: Any) -> Runtime:
        config = {
            "web": {"ports": [80, 443, site.port], **(web or {})},
            "security": {"allow_private_urls": True, **(security or {})},
        }
        runtime = make_runtime(json.dumps(config), registry=ToolRegistry(parent=default_registry), **options)
        service = WebService(runtime.settings, runtime.services, resolver=resolve, reader=shared_reader)
        runtime.services.provide("web", service)
        closing.append(service)
        return runtime

    closing: list[WebService] = []
    yield make
    for service in closing:
        service.close()


async def call(runtime: Runtime, tool: str, **arguments: Any) -> Any:
    """The tool's answer as JSON."""
    result = await runtime.call(tool, arguments)
    return json.loads(result.text)
