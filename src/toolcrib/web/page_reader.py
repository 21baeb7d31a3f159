"""Reads pages in worker processes with limits on time and memory; see `page_worker.py`."""

from __future__ import annotations

import msgspec

from toolcrib.core.errors import ToolcribError
from toolcrib.worker_processes import WorkerLimits, WorkerPool, WorkerStopped

PAGE_SECONDS = 20
MEMORY_BYTES = 1024 * 1024 * 1024
MAX_WORKERS = 2
_WORKER = "toolcrib.web.page_worker"


class PageUnreadable(ToolcribError):
    """The text of a page cannot be extracted; the message says why, as the end of a sentence."""


class PageText(msgspec.Struct, frozen=True, kw_only=True):
    """The readable text of a page."""

    title: str = ""
    text: str = ""
    extractor: str = ""
    """How it was found: trafilatura, html (our own reader), feed, json, text, or the kind of a document."""
    note: str = ""
    """A remark for the model."""


class PageReader:
    """Reads pages, in a few worker processes that start on first use. Thread-safe; its calls block."""

    def __init__(
        self, *, seconds: int = PAGE_SECONDS, memory_bytes: int = MEMORY_BYTES, max_workers: int = MAX_WORKERS
    ) -> None:
        limits = WorkerLimits(seconds=seconds, memory_bytes=memory_bytes, max_workers=max_workers)
        self._workers = WorkerPool(_WORKER, limits)

    def read(self, data: bytes, *, content_type: str = "text/html", charset: str = "", url: str = "") -> PageText:
        """The readable text of a page; raises PageUnreadable."""
        try:
            answer, text = self._workers.run({"content_type": content_type, "charset": charset, "url": url}, data)
        except WorkerStopped as error:
            raise PageUnreadable(str(error)) from error
        if "error" in answer:
            raise PageUnreadable(answer["error"])
        return PageText(title=answer["title"], text=text.decode(), extractor=answer["extractor"], note=answer["note"])

    def close(self) -> None:
        """Ends the workers; a page that is being read is given up."""
        self._workers.close()
