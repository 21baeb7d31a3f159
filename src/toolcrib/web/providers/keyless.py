"""Providers that need no key: ddgs, and the free MCP endpoints of Exa, Parallel and Firecrawl."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toolcrib.web.http_client import HttpResponse
from toolcrib.web.provider_access import ProviderAccess, ProviderFailed
from toolcrib.web.providers.hosted import HostedProvider, firecrawl_hits, parallel_hits
from toolcrib.web.providers.provider import (
    ProviderPage,
    SearchHit,
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
