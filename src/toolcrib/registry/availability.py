"""Asks the tools' `check_fn`s, within bounds, and remembers just enough to forgive a flaky one.

Each build of the definitions asks each distinct check once. A clean False excludes at once. A check that raises or
takes too long costs only its own tools, and not even those if it passed within the last minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import msgspec

from toolcrib.config.environment import unset_variables
from toolcrib.core.types import CheckFn, ToolEntry, Unavailable
from toolcrib.registry.check_runs import CheckThread, Raised, Round, Worker, only_reads_environment, run, run_safely

CHECK_TIMEOUT_SECONDS = 1.0
FAILURE_GRACE_SECONDS = 60.0
# Beyond this, what is remembered about checks that are no longer asked is dropped.
MAX_REMEMBERED = 1000
TOO_SLOW = "make the check quick and free of side effects"


class Outcome(msgspec.Struct, frozen=True):
    """What one check said. `reason` and `remedy` are empty when it is available without a doubt."""

    available: bool
    reason: str = ""
    remedy: str = ""
    explained: bool = False
    """The check itself gave the reason."""


AVAILABLE = Outcome(True)
SAID_NO = Outcome(False, "its availability check said no")


class AvailabilityChecker:
    """Runs checks for one registry. Safe from several threads."""

    def __init__(
        self, timeout_seconds: float = CHECK_TIMEOUT_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._clock = clock
        self._passed_at: dict[CheckFn, float] = {}
        self._instant: dict[CheckFn, bool] = {}
        self._hanging: dict[CheckFn, Round] = {}
        self._worker: Worker | None = None
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if self._worker is not None:
            self._worker.stop()

    def ask(self, checks: Iterable[CheckFn]) -> dict[CheckFn, Outcome]:
        """The outcome of every check, each asked once, in at most twice the time-out together."""
        outcomes: dict[CheckFn, Outcome] = {}
        slow: list[CheckFn] = []
        for check in dict.fromkeys(checks):
            if self._is_instant(check):
                outcomes[check] = self._judge(check, run(check))
            elif self._still_hangs(check):
                outcomes[check] = self._forgive(check, "its availability check is still hanging", TOO_SLOW)
            else:
                slow.append(check)
        if slow:
            thread = threading.current_thread()
            inside = thread.round if isinstance(thread, CheckThread) else None
            outcomes.update(self._ask_within_bounds(slow) if inside is None else self._ask_inside(inside, slow))
        self._tidy(len(outcomes))
        return outcomes

    def forget(self) -> None:
        """Drops what is remembered about earlier passes."""
        self._passed_at.clear()

    def _is_instant(self, check: CheckFn) -> bool:
        instant = self._instant.get(check)
        if instant is None:
            instant = self._instant[check] = only_reads_environment(check)
        return instant

    def _still_hangs(self, check: CheckFn) -> bool:
        """Whether it is held by an earlier build; it is not started again and again while that lasts."""
        earlier = self._hanging.get(check)
        if earlier is None:
            return False
        if check not in earlier.answers:
            return True
        self._hanging.pop(check, None)
        return False

    def _ask_within_bounds(self, checks: list[CheckFn]) -> dict[CheckFn, Outcome]:
        asked = Round(checks)
        with self._lock:
            worker, self._worker = self._worker, None
        # A worker does not survive a fork of the process.
        if worker is None or not worker.is_alive():
            worker = Worker()
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

    def _ask_the_rest(self, asked: Round) -> None:
        """One check held up the others: give each that has not begun a thread of its own."""
        deadline = time.monotonic() + self.timeout_seconds
        workers = []
        for check in asked.checks:
            if asked.take(check, self):
                worker = Worker()
                worker.begin(asked, [check], self)
                workers.append(worker)
        for worker in workers:
            worker.wait(max(0.0, deadline - time.monotonic()))
            worker.stop()

    def _ask_inside(self, asked: Round, checks: list[CheckFn]) -> dict[CheckFn, Outcome]:
        """For a check that asks for other tools: it is inside the bounds of its build, and part of it."""
        outcomes = {}
        for check in checks:
            if asked.take(check, object()):
                asked.answers[check] = run_safely(check)
            if check in asked.answers:
                outcomes[check] = self._judge(check, asked.answers[check])
            else:
                outcomes[check] = self._forgive(check, "its availability check is being asked at this moment")
        return outcomes

    def _outcome(self, check: CheckFn, asked: Round) -> Outcome:
        if check in asked.answers:
            return self._judge(check, asked.answers[check])
        reason = f"its availability check took longer than {self.timeout_seconds:g} s"
        return self._forgive(check, reason, TOO_SLOW)

    def _judge(self, check: CheckFn, answer: Any) -> Outcome:
        if isinstance(answer, Raised):
            return self._forgive(check, f"its availability check raised {answer.text}")
        if answer is True:
            self._passed_at[check] = self._clock()
            return AVAILABLE
        self._passed_at.pop(check, None)
        if isinstance(answer, Unavailable) and answer.reason:
            return Outcome(False, str(answer.reason), str(answer.remedy or ""), explained=True)
        return SAID_NO

    def _forgive(self, check: CheckFn, reason: str, remedy: str = "") -> Outcome:
        passed_at = self._passed_at.get(check)
        recently = passed_at is not None and self._clock() - passed_at <= FAILURE_GRACE_SECONDS
        return Outcome(recently, reason, remedy)

    def _tidy(self, asked: int) -> None:
        """Tools come and go; what is remembered about their checks must not grow for ever."""
        if len(self._instant) <= max(MAX_REMEMBERED, 2 * asked):
            return
        self._instant.clear()
        oldest = self._clock() - FAILURE_GRACE_SECONDS
        for check, passed_at in list(self._passed_at.items()):
            if passed_at < oldest:
                self._passed_at.pop(check, None)


def with_remedy(entry: ToolEntry, outcome: Outcome) -> Outcome:
    """The outcome with the best reason and remedy that the declaration of the tool gives."""
    if outcome.available or outcome.remedy:
        return outcome
    missing = unset_variables(entry.requires_env)
    if missing:
        names = ", ".join(missing)
        reason = f"{names} {'is' if len(missing) == 1 else 'are'} not set"
        remedy = f"run `toolcrib setup {entry.name}` to enter {names}"
        return Outcome(False, outcome.reason if outcome.explained else reason, remedy)
    return Outcome(
        False, outcome.reason, f"see `toolcrib tools explain {entry.name}` for who declared it and ask there"
    )
