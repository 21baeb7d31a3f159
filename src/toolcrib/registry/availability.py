"""Finds out whether tools are available: runs their check functions, caches the answers, and never hangs on a check.

A check that cannot block runs in place; any other runs on its own thread, with a time limit.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from opcode import opmap
from types import CodeType, CoroutineType, FunctionType
from typing import Any

import msgspec

from toolcrib.config.environment import unset_variables
from toolcrib.core.attempt import attempt, attempt_everything
from toolcrib.core.types import CheckFn, ToolEntry, Unavailable
from toolcrib.registry.install_guard import refusing_installs
from toolcrib.registry.results import message_of

MAX_REASON_CHARS = 300


class CheckFailure(msgspec.Struct, frozen=True):
    text: str


class CheckRound:
    """The checks of one build: which thread claimed each of them, and their answers."""

    def __init__(self, checks: list[CheckFn]) -> None:
        self.checks = checks
        self.context = contextvars.copy_context()
        self.answers: dict[CheckFn, Any] = {}
        self._takers: dict[CheckFn, object] = {}

    def take(self, check: CheckFn, taker: object) -> bool:
        """True for the one caller that may run the check; `setdefault` decides between threads."""
        return self._takers.setdefault(check, taker) is taker


def run(check: CheckFn) -> Any:
    """True, False, an Unavailable or a CheckFailure."""
    answer, error = attempt(_answer, check)
    return answer if error is None else CheckFailure(_describe(error))


def run_safely(check: CheckFn) -> Any:
    """Like `run`, but on the check's own thread, where only the check itself can cause an exit or interrupt."""
    with refusing_installs() as installs:
        answer, error = attempt_everything(_answer, check)
    if installs.attempts and answer is not True and not isinstance(answer, Unavailable):
        refused = installs.attempts[-1]
        return Unavailable(f"its availability check tried to {refused.what}, which it must not do", refused.remedy)
    return answer if error is None else CheckFailure(_describe(error))


def _answer(check: CheckFn) -> Any:
    answer = check()
    if isinstance(answer, CoroutineType):
        answer.close()
        raise TypeError("it is an `async def`; write it as a plain function")
    # Evaluate truth here, where the time limit still covers a `__bool__` that raises or hangs.
    return answer if isinstance(answer, Unavailable) else bool(answer)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {message_of(error, '')}".removesuffix(": ")[:MAX_REASON_CHARS]


class CheckThread(threading.Thread):
    """Marks the threads that run checks, to recognise a check that runs other checks."""

    round: CheckRound | None = None


class CheckWorker:
    """A daemon thread that runs checks; two plain locks hand over the work, which is the cheapest way."""

    def __init__(self) -> None:
        self._job: tuple[CheckRound, list[CheckFn], object] | None = None
        self._stopped = False
        self._work = threading.Lock()
        self._done = threading.Lock()
        self._work.acquire()
        self._done.acquire()
        self._thread = CheckThread(target=self._serve, name="toolcrib-check", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def begin(self, asked: CheckRound, checks: list[CheckFn], taker: object) -> None:
        """Run the checks that `taker` may run, one after the other."""
        self._job = (asked, checks, taker)
        self._work.release()

    def wait(self, timeout_seconds: float) -> bool:
        """False if the time ran out before the last check ended."""
        return self._done.acquire(timeout=timeout_seconds)

    def stop(self) -> None:
        """Lets the thread end once it is idle."""
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

    def _run_all(self, asked: CheckRound, checks: list[CheckFn], taker: object) -> None:
        self._thread.round = asked
        for check in checks:
            if asked.take(check, taker):
                asked.answers[check] = run_safely(check)
        self._thread.round = None


_INSTANT_NAMES = frozenset({"os", "getenv", "environ", "get", "bool"})
# As globals, these names would not mean the attributes of `os` and the built-in.
_NO_GLOBALS = _INSTANT_NAMES - {"os"}
_LOOP_OPCODES = frozenset(number for name, number in opmap.items() if "BACKWARD" in name)


_IN_PLACE = "toolcrib_runs_in_place"
_SERVICE = "toolcrib_needs_service"


def only_reads_environment(check: CheckFn) -> bool:
    """Whether the function only calls `os.getenv` and `os.environ.get`: it cannot hang, so it needs no thread."""
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


def runs_in_place(check: CheckFn) -> CheckFn:
    """Declare that a check returns at once, so it needs no thread; for checks of built-in tools."""
    setattr(check, _IN_PLACE, True)
    return check


def needs_service(name: str) -> Callable[[CheckFn], CheckFn]:
    """Declare that a tool needs a service that only some runtimes have: where it is missing, the check says why."""

    def declare(check: CheckFn) -> CheckFn:
        setattr(check, _SERVICE, name)
        return runs_in_place(check)

    return declare


CHECK_TIMEOUT_SECONDS = 1.0
FAILURE_GRACE_SECONDS = 60.0
# Above this size, drop the cached answers of checks that are no longer used.
MAX_REMEMBERED = 1000
TOO_SLOW = "make the check quick and free of side effects"


class Availability(msgspec.Struct, frozen=True):
    """The answer of one check. `reason` and `remedy` are empty if it passed."""

    available: bool
    reason: str = ""
    remedy: str = ""
    explained: bool = False
    """Whether the check itself gave the reason."""


AVAILABLE = Availability(True)
SAID_NO = Availability(False, "its availability check failed")


class AvailabilityChecker:
    """Runs the checks of one registry. Thread-safe."""

    def __init__(
        self, timeout_seconds: float = CHECK_TIMEOUT_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self.services: set[str] = set()
        """The services that front ends and programs gave to the runtime of this registry."""
        self._clock = clock
        self._passed_at: dict[CheckFn, float] = {}
        self._instant: dict[CheckFn, bool] = {}
        self._hanging: dict[CheckFn, CheckRound] = {}
        self._worker: CheckWorker | None = None
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if self._worker is not None:
            self._worker.stop()

    def ask(self, checks: Iterable[CheckFn]) -> dict[CheckFn, Availability]:
        """The outcome of every check. Each runs once, and all together take at most twice the timeout."""
        outcomes: dict[CheckFn, Availability] = {}
        slow: list[CheckFn] = []
        for check in dict.fromkeys(checks):
            if getattr(check, _SERVICE, None) in self.services:
                outcomes[check] = AVAILABLE
            elif self._is_instant(check):
                outcomes[check] = self._judge(check, run(check))
            elif self._still_hangs(check):
                outcomes[check] = self._forgive(check, "its availability check still hangs", TOO_SLOW)
            else:
                slow.append(check)
        if slow:
            thread = threading.current_thread()
            inside = thread.round if isinstance(thread, CheckThread) else None
            outcomes.update(self._ask_within_bounds(slow) if inside is None else self._ask_inside(inside, slow))
        self._tidy(len(outcomes))
        return outcomes

    def forget(self) -> None:
        """Drops cached answers."""
        self._passed_at.clear()

    def _is_instant(self, check: CheckFn) -> bool:
        instant = self._instant.get(check)
        if instant is None:
            instant = self._instant[check] = getattr(check, _IN_PLACE, False) is True or only_reads_environment(check)
        return instant

    def _still_hangs(self, check: CheckFn) -> bool:
        """Whether an earlier build is still running it; if so, do not start it again."""
        earlier = self._hanging.get(check)
        if earlier is None:
            return False
        if check not in earlier.answers:
            return True
        self._hanging.pop(check, None)
        return False

    def _ask_within_bounds(self, checks: list[CheckFn]) -> dict[CheckFn, Availability]:
        asked = CheckRound(checks)
        with self._lock:
            worker, self._worker = self._worker, None
        # A worker does not survive a fork.
        if worker is None or not worker.is_alive():
            worker = CheckWorker()
        worker.begin(asked, checks, asked)
        with ExitStack() as on_interrupt:
            on_interrupt.callback(worker.stop)
            in_time = worker.wait(self.timeout_seconds)
            on_interrupt.pop_all()
        if in_time:
            with self._lock:
                self._worker, spare = worker, self._worker
            if spare is not None:
                spare.stop()
        else:
            worker.stop()
            self._ask_the_rest(asked)
        for check in checks:
            if check not in asked.answers:
                self._hanging[check] = asked
        return {check: self._outcome(check, asked) for check in checks}

    def _ask_the_rest(self, asked: CheckRound) -> None:
        """One check blocks the others: give each check that has not started its own thread."""
        deadline = time.monotonic() + self.timeout_seconds
        workers = []
        for check in asked.checks:
            if asked.take(check, self):
                worker = CheckWorker()
                worker.begin(asked, [check], self)
                workers.append(worker)
        for worker in workers:
            worker.wait(max(0.0, deadline - time.monotonic()))
            worker.stop()

    def _ask_inside(self, asked: CheckRound, checks: list[CheckFn]) -> dict[CheckFn, Availability]:
        """For a check that asks about other tools: it runs within the time limit of its build."""
        outcomes = {}
        for check in checks:
            if asked.take(check, object()):
                asked.answers[check] = run_safely(check)
            if check in asked.answers:
                outcomes[check] = self._judge(check, asked.answers[check])
            else:
                outcomes[check] = self._forgive(check, "its availability check is already running")
        return outcomes

    def _outcome(self, check: CheckFn, asked: CheckRound) -> Availability:
        if check in asked.answers:
            return self._judge(check, asked.answers[check])
        reason = f"its availability check took longer than {self.timeout_seconds:g} s"
        return self._forgive(check, reason, TOO_SLOW)

    def _judge(self, check: CheckFn, answer: Any) -> Availability:
        if isinstance(answer, CheckFailure):
            return self._forgive(check, f"its availability check raised {answer.text}")
        if answer is True:
            self._passed_at[check] = self._clock()
            return AVAILABLE
        self._passed_at.pop(check, None)
        if isinstance(answer, Unavailable) and answer.reason:
            return Availability(False, str(answer.reason), str(answer.remedy or ""), explained=True)
        return SAID_NO

    def _forgive(self, check: CheckFn, reason: str, remedy: str = "") -> Availability:
        passed_at = self._passed_at.get(check)
        recently = passed_at is not None and self._clock() - passed_at <= FAILURE_GRACE_SECONDS
        return Availability(recently, reason, remedy)

    def _tidy(self, asked: int) -> None:
        """Keeps the cache from growing forever as tools come and go."""
        if len(self._instant) <= max(MAX_REMEMBERED, 2 * asked):
            return
        self._instant.clear()
        oldest = self._clock() - FAILURE_GRACE_SECONDS
        for check, passed_at in list(self._passed_at.items()):
            if passed_at < oldest:
                self._passed_at.pop(check, None)


def with_remedy(entry: ToolEntry, outcome: Availability) -> Availability:
    """The outcome with the best reason and remedy that the tool's declaration gives."""
    if outcome.available or outcome.remedy:
        return outcome
    missing = unset_variables(entry.requires_env)
    if missing:
        names = ", ".join(missing)
        reason = f"{names} {'is' if len(missing) == 1 else 'are'} not set"
        remedy = f"run `toolcrib setup {entry.name}` to enter {names}"
        return Availability(False, outcome.reason if outcome.explained else reason, remedy)
    return Availability(
        False, outcome.reason, f"run `toolcrib tools explain {entry.name}` to see who declared it, and ask them"
    )
