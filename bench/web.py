"""Measures `web_extract` beside the extraction library alone, on twenty saved pages: CPU time and text quality.

Prints a table; exits 1 when a figure misses its goal. The pages come from a server on loopback in another process.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import trafilatura

from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime
from toolcrib.tools.web import web_extract  # noqa: F401 - registers the tool
from web_pages import SavedPage, saved_pages

ROUNDS = 7
MAX_RATIO = 1.3
URLS_PER_CALL = 5


def main() -> int:
    pages = saved_pages()
    with tempfile.TemporaryDirectory() as home, _Server(pages) as address:
        config = json.dumps({"security": {"allow_private_urls": True}})
        with isolated_runtime(Path(home) / "home", config, registry=ToolRegistry(parent=default_registry)) as runtime:
            ours, library, our_texts, library_texts = asyncio.run(measure(runtime, pages, address))
    # Of each round, because a busy machine slows both down.
    ratio = statistics.median(one / other for one, other in zip(ours, library, strict=True))
    our_f1, library_f1 = (mean_f1(pages, texts) for texts in (our_texts, library_texts))
    print(f"web_extract, 20 pages, CPU      best {min(ours):.3f} s  median {statistics.median(ours):.3f} s")
    print(f"the library alone, 20 pages     best {min(library):.3f} s  median {statistics.median(library):.3f} s")
    print(f"ratio {ratio:.2f} (goal ≤ {MAX_RATIO}); F1 {our_f1:.3f}, the library's {library_f1:.3f} (goal ≥)")
    return 0 if ratio <= MAX_RATIO and our_f1 >= library_f1 else 1


async def measure(
    runtime: Runtime, pages: list[SavedPage], address: str
) -> tuple[list[float], list[float], list[str], list[str]]:
    """The CPU seconds of each round, ours and the library's in turn, and the texts of both."""
    ours, library = [], []
    our_texts: list[str] = []
    library_texts: list[str] = []
    for _ in range(ROUNDS + 1):
        before = _cpu(runtime)
        our_texts = await read_pages(runtime, pages, address)
        middle = _cpu(runtime)
        library_texts = [library_text(page) for page in pages]
        ours.append(middle - before)
        library.append(_cpu(runtime) - middle)
    # The first round starts the readers.
    return ours[1:], library[1:], our_texts, library_texts


async def read_pages(runtime: Runtime, pages: list[SavedPage], address: str) -> list[str]:
    texts: list[str] = []
    for start in range(0, len(pages), URLS_PER_CALL):
        urls = [f"{address}/{page.name}" for page in pages[start : start + URLS_PER_CALL]]
        result = await runtime.call("web_extract", {"urls": urls, "char_limit": 200_000})
        texts.extend(one["content"] for one in json.loads(result.text)["results"])
    return texts


def library_text(page: SavedPage) -> str:
    found = trafilatura.extract(
        page.html,
        url=f"https://site.example/{page.name}",
        output_format="markdown",
        include_comments=False,
        include_formatting=True,
        include_links=True,
        include_tables=True,
    )
    return found or ""


def _cpu(runtime: Runtime) -> float:
    readers = [worker._process.pid for worker in runtime.services.web._reader._workers._idle]
    spent = sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in readers)
    return time.process_time() + spent / 1e9


def mean_f1(pages: list[SavedPage], texts: list[str]) -> float:
    return statistics.mean(f1(page.text, text) for page, text in zip(pages, texts, strict=True))


def f1(expected: str, found: str) -> float:
    """How well the words of a text are those that were expected."""
    wanted, given = (Counter(_words(text)) for text in (expected, found))
    common = (wanted & given).total()
    return 2 * common / max(1, wanted.total() + given.total())


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"\]\([^)]*\)", "]", text).lower())


class _Server:
    """The pages on a free port of 127.0.0.1, in a process of their own so that their cost is not ours."""

    def __init__(self, pages: list[SavedPage]) -> None:
        self._pages = {f"/{page.name}": page.html.encode() for page in pages}

    def __enter__(self) -> str:
        ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=self._serve, args=(theirs,), daemon=True)
        self._process.start()
        return f"http://127.0.0.1:{ours.recv()}"

    def __exit__(self, *_: Any) -> None:
        self._process.terminate()
        self._process.join()

    def _serve(self, ready: Connection) -> None:
        pages = self._pages

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                body = pages[self.path]
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        ready.send(server.server_port)
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
