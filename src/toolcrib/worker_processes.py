"""Worker processes for data that may attack its parser: limited memory and time, replaced when they fail.

A worker is a module whose `main` calls `serve_jobs`. Each job and each answer is one line of JSON with `length`, then
that many bytes. Loading the libraries of a worker takes longer than most jobs, so one process does many.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.core.errors import ToolcribError

IDLE_SECONDS = 120
JOBS_PER_WORKER = 300
_SOURCES = str(Path(__file__).resolve().parents[1])

WorkerAnswer = tuple[dict[str, Any], bytes]


class WorkerStopped(ToolcribError):
    """A worker died or took too long."""


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    seconds: int
    """Of the processor, for one job; it may take twice as long on the clock."""
    memory_bytes: int
    max_workers: int = 2


class _Worker:
    """One worker process; `is_usable` until it dies or has done enough."""

    def __init__(self, module: str, limits: WorkerLimits) -> None:
        # `-I` leaves out PYTHONPATH, but toolcrib may be running from there.
        code = f"import sys; sys.path.append({_SOURCES!r}); from {module} import main; sys.exit(main())"
        numbers = (limits.memory_bytes, limits.seconds, IDLE_SECONDS)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-X", "utf8", "-c", code, *map(str, numbers)],
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
        self._seconds = limits.seconds
        self._jobs = 0

    @property
    def is_usable(self) -> bool:
        return self._process.poll() is None and self._jobs < JOBS_PER_WORKER

    def run(self, job: Mapping[str, Any], data: bytes) -> WorkerAnswer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs += 1
        answer, found = None, b""
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps({**job, "length": len(data)}).encode() + b"\n" + data)
            self._process.stdin.flush()
            # The worker limits its processor time; this is for one that waits.
            if self._answers.select(2 * self._seconds) and (head := self._process.stdout.readline()).endswith(b"\n"):
                answer = json.loads(head)
                found = self._process.stdout.read(answer["length"])
        if answer is None or len(found) < answer["length"]:
            self.close()
            raise WorkerStopped("its reader was stopped: it is damaged, or made to use up time or memory")
        return answer, found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class WorkerPool:
    """A few processes of one module, started on first use. Thread-safe; its calls block."""

    def __init__(self, module: str, limits: WorkerLimits) -> None:
        self._module = module
        self._limits = limits
        self._turns = threading.BoundedSemaphore(limits.max_workers)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._process = os.getpid()
        self._is_closed = False

    def run(self, job: Mapping[str, Any], data: bytes) -> WorkerAnswer:
        """The worker's answer; raises WorkerStopped."""
        with self._worker() as worker:
            return worker.run(job, data)

    def close(self) -> None:
        """End the workers; a job that is being done is given up."""
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
        return _Worker(self._module, self._limits)

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            if worker.is_usable and not self._is_closed:
                self._idle.append(worker)
                return
        worker.close()


# In the worker


def serve_jobs(do: Callable[[dict[str, Any], bytes], WorkerAnswer]) -> int:
    """Answer jobs until the input ends or nothing came for a while; what `do` raises becomes an `error`.

    The program's arguments are the most bytes of memory, seconds of the processor per job, and seconds of idling.
    """
    memory, seconds, idle = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(3_000)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    # A library may print or log; nothing but answers may reach the parent.
    sys.stdout = sys.stderr
    while select.select([source], [], [], idle)[0]:
        line = source.readline()
        if not line:
            return 0
        job = json.loads(line)
        _limit_time(seconds)
        answer, data = _safely(do, job, source.read(job["length"]))
        sink.write(json.dumps({**answer, "length": len(data)}).encode() + b"\n" + data)
        sink.flush()
    return 0


def _limit_time(seconds: int) -> None:
    """Let the next job use this much time of the processor, on top of what was used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))


def _safely(do: Callable[[dict[str, Any], bytes], WorkerAnswer], job: dict[str, Any], data: bytes) -> WorkerAnswer:
    try:
        return do(job, data)
    except MemoryError:
        return {"error": "it needs too much memory"}, b""
    except Exception as error:  # noqa: BLE001 - a reader of hostile data may raise anything
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}, b""
