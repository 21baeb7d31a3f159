"""Reads pages in worker processes with limits on time and memory; see `page_worker.py`."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from toolcrib.core.errors import ToolcribError

PAGE_SECONDS = 20
MEMORY_BYTES = 1024 * 1024 * 1024
IDLE_SECONDS = 120
MAX_WORKERS = 2
PAGES_PER_WORKER = 300
_PROGRAM = Path(__file__).with_name("page_worker.py")


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


class _Worker:
    """One worker process; `is_usable` until it dies or has read enough."""

    def __init__(self, seconds: int, memory_bytes: int) -> None:
        command = [sys.executable, "-I", "-X", "utf8", str(_PROGRAM)]
        self._process = subprocess.Popen(
            [*command, str(memory_bytes), str(seconds), str(IDLE_SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            # Ctrl-C is for the program, which closes its workers itself.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._answers = selectors.DefaultSelector()
        self._answers.register(self._process.stdout, selectors.EVENT_READ)
        self._seconds = seconds
        self._pages = 0

    @property
    def is_usable(self) -> bool:
        return self._process.poll() is None and self._pages < PAGES_PER_WORKER

    def read(self, job: dict[str, str | int], data: bytes) -> PageText:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pages += 1
        answer, text = None, b""
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps({**job, "length": len(data)}).encode() + b"\n" + data)
            self._process.stdin.flush()
            # The worker limits its processor time; this is for one that waits.
            if self._answers.select(2 * self._seconds) and (head := self._process.stdout.readline()).endswith(b"\n"):
                answer = json.loads(head)
                text = self._process.stdout.read(answer["length"])
        if answer is None:
            self.close()
            raise PageUnreadable("its reader was stopped: it is damaged, or made to use up time or memory")
        if "error" in answer:
            raise PageUnreadable(answer["error"])
        return PageText(title=answer["title"], text=text.decode(), extractor=answer["extractor"], note=answer["note"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class PageReader:
    """A few worker processes, started on first use. Thread-safe; its calls block."""

    def __init__(
        self, *, seconds: int = PAGE_SECONDS, memory_bytes: int = MEMORY_BYTES, max_workers: int = MAX_WORKERS
    ) -> None:
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._turns = threading.BoundedSemaphore(max_workers)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._process = os.getpid()
        self._is_closed = False

    def read(self, data: bytes, *, content_type: str = "text/html", charset: str = "", url: str = "") -> PageText:
        """The readable text of a page; raises PageUnreadable."""
        job: dict[str, str | int] = {"content_type": content_type, "charset": charset, "url": url}
        with self._worker() as worker:
            return worker.read(job, data)

    def close(self) -> None:
        """Ends the workers; a page that is being read is given up."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        if self._process == os.getpid():
            for worker in idle:
                worker.close()

    @contextlib.contextmanager
    def _worker(self) -> Iterator[_Worker]:
        with self._turns:
            worker = self._take()
            try:
                yield worker
            finally:
                self._give_back(worker)

    def _take(self) -> _Worker:
        with self._lock:
            if self._process != os.getpid():
                # After a fork, the workers belong to the parent.
                self._idle, self._process = [], os.getpid()
            while self._idle:
                worker = self._idle.pop()
                if worker.is_usable:
                    return worker
                worker.close()
        return _Worker(self._seconds, self._memory_bytes)

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            if worker.is_usable and not self._is_closed:
                self._idle.append(worker)
                return
        worker.close()
