"""Runs availability checks: in place if they cannot hang, else on threads of their own.

One round of checks belongs to one build of the definitions, and each check of it runs at most once.
"""

from __future__ import annotations

import contextvars
import os
import threading
from opcode import opmap
from types import CodeType, CoroutineType, FunctionType
from typing import Any

import msgspec

from toolcrib.core.attempt import attempt, attempt_everything
from toolcrib.core.types import CheckFn, Unavailable

MAX_REASON_CHARS = 300


class Raised(msgspec.Struct, frozen=True):
    text: str


class Round:
    """The checks of one build: who took each of them, and what they answered."""

    def __init__(self, checks: list[CheckFn]) -> None:
        self.checks = checks
        self.context = contextvars.copy_context()
        self.answers: dict[CheckFn, Any] = {}
        self._takers: dict[CheckFn, object] = {}

    def take(self, check: CheckFn, taker: object) -> bool:
        """True for the one who may run the check; `setdefault` decides between threads."""
        return self._takers.setdefault(check, taker) is taker


def run(check: CheckFn) -> Any:
    """True, False, an Unavailable or a Raised."""
    answer, error = attempt(_answer, check)
    return answer if error is None else Raised(_describe(error))


def run_safely(check: CheckFn) -> Any:
    """As `run`, on a check's own thread, where an exit or interrupt is the check's doing and no one else's."""
    answer, error = attempt_everything(_answer, check)
    return answer if error is None else Raised(_describe(error))


def _answer(check: CheckFn) -> Any:
    answer = check()
    if isinstance(answer, CoroutineType):
        answer.close()
        raise TypeError("it is an `async def`; write it as a plain function")
    # Truth is taken here, where a `__bool__` that raises or hangs is still inside the bounds.
    return answer if isinstance(answer, Unavailable) else bool(answer)


def _describe(error: BaseException) -> str:
    text = attempt(str, error).value or ""
    return f"{type(error).__name__}: {text}".removesuffix(": ")[:MAX_REASON_CHARS]


class CheckThread(threading.Thread):
    """Marks the threads on which checks run, so that a check that asks for other checks is recognised."""

    round: Round | None = None


class Worker:
    """A daemon thread that runs checks; two plain locks hand the work over, which is the cheapest way there is."""

    def __init__(self) -> None:
        self._job: tuple[Round, list[CheckFn], object] | None = None
        self._stopped = False
        self._work = threading.Lock()
        self._done = threading.Lock()
        self._work.acquire()
        self._done.acquire()
        self._thread = CheckThread(target=self._serve, name="toolcrib-check", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def begin(self, asked: Round, checks: list[CheckFn], taker: object) -> None:
        """Run those of the checks that `taker` may run, one after the other."""
        self._job = (asked, checks, taker)
        self._work.release()

    def wait(self, timeout_seconds: float) -> bool:
        """False when the time ran out before the last check ended."""
        return self._done.acquire(timeout=timeout_seconds)

    def stop(self) -> None:
        """Lets the thread end once it has nothing to do."""
        self._stopped = True
        if self._work.locked():
            self._work.release()

    def _serve(self) -> None:
        while True:
            self._work.acquire()
            if self._job is not None:
                asked, checks, taker = self._job
                # A copy for each thread: a context can be entered only once at a time.
                asked.context.copy().run(self._run_all, asked, checks, taker)
                # An idle worker must not keep the checks, and through them their registry, alive.
                self._job = asked = checks = taker = None  # type: ignore[assignment]
                self._done.release()
            if self._stopped:
                return

    def _run_all(self, asked: Round, checks: list[CheckFn], taker: object) -> None:
        self._thread.round = asked
        for check in checks:
            if asked.take(check, taker):
                asked.answers[check] = run_safely(check)
        self._thread.round = None


_INSTANT_NAMES = frozenset({"os", "getenv", "environ", "get", "bool"})
# As global names these would be something else than the attributes of `os` and the built-in.
_NO_GLOBALS = _INSTANT_NAMES - {"os"}
_LOOP_OPCODES = frozenset(number for name, number in opmap.items() if "BACKWARD" in name)


def only_reads_environment(check: CheckFn) -> bool:
    """A straight function of `os.getenv` and `os.environ.get` alone: it cannot hang, so it needs no thread."""
    if type(check) is not FunctionType:
        return False
    code = check.__code__
    return (
        code.co_names != ()
        and _INSTANT_NAMES.issuperset(code.co_names)
        and not code.co_freevars
        and not code.co_argcount
        and not code.co_kwonlyargcount
        and check.__globals__.get("os") is os
        and _NO_GLOBALS.isdisjoint(check.__globals__)
        and not any(isinstance(constant, CodeType) for constant in code.co_consts)
        and _LOOP_OPCODES.isdisjoint(code.co_code[::2])
    )
