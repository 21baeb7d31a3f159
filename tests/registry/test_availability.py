"""Availability checks: asked once a build, within bounds, forgiven for a minute, never stale."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.registry.declaring import declare
from toolcrib.core.types import Unavailable
from toolcrib.registry.availability import AvailabilityChecker, only_reads_environment, runs_in_place
from toolcrib.registry.registry import ToolRegistry

BOUND_SECONDS = 1.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Probe:
    """A check that counts how often it is asked and does what it is told."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Hanging:
    """A check that answers only when it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.entered = threading.Event()
        self.release = threading.Event()
        self.left = threading.Event()

    def __call__(self) -> bool:
        self.asked += 1
        self.entered.set()
        self.release.wait(30)
        self.left.set()
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def checker(clock: Clock) -> AvailabilityChecker:
    return AvailabilityChecker(timeout_seconds=BOUND_SECONDS, clock=clock)


@pytest.fixture
def hanging() -> Iterator[Callable[[], Hanging]]:
    made: list[Hanging] = []

    def make() -> Hanging:
        made.append(Hanging())
        return made[-1]

    yield make
    for check in made:
        check.release.set()


def check_threads() -> int:
    return sum(thread.name == "toolcrib-check" for thread in threading.enumerate())


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    deadline = time.monotonic() + 10
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        tick.wait(0.001)


# Answers


class Refuses:
    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")


@pytest.mark.parametrize(
    ("answer", "available"),
    [(True, True), (1, True), ("yes", True), ([0], True), (object(), True),
     (False, False), (None, False), (0, False), ("", False), ([], False),
     (Unavailable("because"), False), (Refuses(), False), (NotImplementedError(), False)],
)  # fmt: skip
def test_truth_decides(checker: AvailabilityChecker, answer: Any, available: bool) -> None:
    """Any object may be returned; one that cannot say whether it is true counts as a failure."""
    check = Probe(answer)

    assert checker.ask([check])[check].available is available


def test_a_reason_and_a_remedy_are_passed_on(checker: AvailabilityChecker) -> None:
    """What the check returns instead of False is what people read."""
    check = Probe(Unavailable("no key", "enter one"))

    outcome = checker.ask([check])[check]

    assert (outcome.available, outcome.reason, outcome.remedy) == (False, "no key", "enter one")


async def asynchronous() -> bool:
    return True


def test_an_async_check_is_a_failure_with_a_reason(checker: AvailabilityChecker) -> None:
    """A coroutine is always true, which says nothing."""
    outcome = checker.ask([asynchronous])[asynchronous]

    assert not outcome.available
    assert "async def" in outcome.reason


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error", [KeyError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Unspeakable(), RecursionError()]
)
def test_whatever_a_check_raises_costs_only_its_own_tool(checker: AvailabilityChecker, error: BaseException) -> None:
    """Even an exit or an interrupt ends neither the process nor the build, and is answered at once."""
    bad, good = Probe(error), Probe(True)

    outcomes = checker.ask([bad, good])

    assert not outcomes[bad].available
    assert type(error).__name__ in outcomes[bad].reason
    assert outcomes[good].available
    assert good.asked == 1


# Once a build, never stale


def test_a_check_that_tools_share_is_asked_once_for_each_build() -> None:
    """And anew in the next build."""
    registry, shared = ToolRegistry(), Probe(True)
    for number in range(5):
        declare(registry, f"tool_{number}", f"set_{number}", check_fn=shared)

    assert len(registry.get_definitions(registry.get_all_tool_names())) == 5
    assert shared.asked == 1
    registry.check_tool_availability()
    assert shared.asked == 2
    registry.get_available_toolsets()
    assert shared.asked == 3


class Service:
    def __init__(self) -> None:
        self.asked = 0

    def ready(self) -> bool:
        self.asked += 1
        return True


def test_a_method_is_the_same_check_however_often_it_is_taken(checker: AvailabilityChecker) -> None:
    """`service.ready` makes a new object each time; it is one check."""
    service = Service()

    checker.ask([service.ready, service.ready])

    assert service.asked == 1


@dataclass
class Unhashable:
    asked: int = 0

    def __call__(self) -> bool:
        self.asked += 1
        return True


def test_a_check_that_cannot_be_hashed_works_and_is_shared() -> None:
    """Comparing by value makes an object unhashable, not useless."""
    registry, check = ToolRegistry(), Unhashable()
    declare(registry, "a", check_fn=check)
    declare(registry, "b", check_fn=check)

    assert len(registry.get_definitions({"a", "b"})) == 2
    assert check.asked == 1


def test_a_clean_no_counts_at_once(checker: AvailabilityChecker) -> None:
    """And a yes counts again at once."""
    check = Probe(True, False, True, Unavailable("gone"), True)

    assert [checker.ask([check])[check].available for _ in range(5)] == [True, False, True, False, True]


# Grace


@pytest.mark.parametrize("seconds", [0, 30, 60])
def test_a_failure_within_a_minute_of_a_pass_is_forgiven(
    checker: AvailabilityChecker, clock: Clock, seconds: float
) -> None:
    """The tool stays, with a reason why there is doubt."""
    check = Probe(True, OSError("blip"))
    checker.ask([check])
    clock.now += seconds

    outcome = checker.ask([check])[check]

    assert outcome.available
    assert "OSError: blip" in outcome.reason


def test_a_failure_is_not_forgiven_for_ever(checker: AvailabilityChecker, clock: Clock) -> None:
    """The minute counts from the last pass, not from the last failure."""
    check = Probe(True, OSError("blip"))
    checker.ask([check])
    clock.now += 59
    assert checker.ask([check])[check].available
    clock.now += 2

    assert not checker.ask([check])[check].available


def test_a_no_ends_the_grace(checker: AvailabilityChecker) -> None:
    """A failure after a clean no is not forgiven for an older pass."""
    check = Probe(True, False, OSError("blip"))

    assert [checker.ask([check])[check].available for _ in range(3)] == [True, False, False]


def test_earlier_passes_can_be_forgotten(checker: AvailabilityChecker) -> None:
    """Then a failure counts at once."""
    check = Probe(True, OSError("blip"))
    checker.ask([check])
    checker.forget()

    assert not checker.ask([check])[check].available


def test_a_hanging_check_is_forgiven_like_a_raising_one(
    checker: AvailabilityChecker, clock: Clock, hanging: Callable[[], Hanging]
) -> None:
    """A time-out within a minute of a pass keeps the tool; later it does not."""
    stuck = hanging()
    stuck.release.set()
    assert checker.ask([stuck])[stuck].available
    stuck.release.clear()

    assert checker.ask([stuck])[stuck].available
    clock.now += 61
    assert not checker.ask([stuck])[stuck].available


# Bounds


def test_many_hanging_checks_cost_about_two_time_outs_together(
    checker: AvailabilityChecker, hanging: Callable[[], Hanging]
) -> None:
    """However many hang, each other check is asked exactly once and answers, whatever their order."""
    stuck = [hanging() for _ in range(20)]
    good = [Probe(True) for _ in range(20)]
    mixed = [check for pair in zip(stuck, good, strict=True) for check in pair]

    started = time.monotonic()
    outcomes = checker.ask(mixed)
    elapsed = time.monotonic() - started

    assert all(outcomes[check].available for check in good)
    assert not any(outcomes[check].available for check in stuck)
    assert all("longer than 1 s" in outcomes[check].reason for check in stuck)
    assert [check.asked for check in good] == [1] * 20
    # One after the other they would take 20 s at least; the rest is room for a busy machine.
    assert elapsed < 20 * BOUND_SECONDS


def test_overviews_of_all_toolsets_are_bounded_too(hanging: Callable[[], Hanging]) -> None:
    """One build for all toolsets, not one for each."""
    registry = ToolRegistry()
    registry.availability.timeout_seconds = BOUND_SECONDS
    for number in range(20):
        declare(registry, f"tool_{number}", f"set_{number}", check_fn=hanging())

    started = time.monotonic()
    available, unavailable = registry.check_tool_availability(quiet=True)

    assert (available, len(unavailable)) == ([], 20)
    assert time.monotonic() - started < 20 * BOUND_SECONDS


def test_a_hanging_check_is_not_started_again_while_it_hangs(
    checker: AvailabilityChecker, hanging: Callable[[], Hanging]
) -> None:
    """A hundred builds leave no more threads than one, and do not wait for it again."""
    stuck, good = hanging(), Probe(True)
    checker.ask([stuck, good])
    threads = check_threads()

    started = time.monotonic()
    outcomes = [checker.ask([stuck, good]) for _ in range(100)]

    assert stuck.asked == 1
    assert good.asked == 101
    assert check_threads() <= threads + 1
    assert time.monotonic() - started < 100 * BOUND_SECONDS
    assert all("still hangs" in outcome[stuck].reason for outcome in outcomes)


def test_a_check_that_came_back_is_asked_again(checker: AvailabilityChecker, hanging: Callable[[], Hanging]) -> None:
    """Its late answer does not count, the next one does."""
    stuck = hanging()
    assert not checker.ask([stuck])[stuck].available
    stuck.release.set()
    assert stuck.left.wait(10)
    wait_until(lambda: checker.ask([stuck])[stuck].available)

    assert stuck.asked >= 2


def test_a_frozen_clock_does_not_lengthen_the_wait(clock: Clock, hanging: Callable[[], Hanging]) -> None:
    """The clock decides about the grace; waiting is done in real time."""
    checker = AvailabilityChecker(timeout_seconds=BOUND_SECONDS, clock=clock)
    stuck = [hanging() for _ in range(20)]

    started = time.monotonic()
    checker.ask(stuck)

    assert time.monotonic() - started < 20 * BOUND_SECONDS


@pytest.mark.services
def test_a_registry_that_goes_takes_its_thread_along() -> None:
    """Its idle worker keeps neither itself nor the registry alive."""

    def use_one() -> tuple[weakref.ref[ToolRegistry], threading.Thread]:
        registry = ToolRegistry()
        declare(registry, "a", check_fn=lambda: registry.get_entry("a") is not None)
        assert len(registry.get_definitions({"a"})) == 1
        return weakref.ref(registry), registry.availability._worker._thread  # type: ignore[union-attr]

    gone, thread = use_one()
    wait_until(lambda: gc.collect() >= 0 and gone() is None)

    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.services
def test_what_is_remembered_does_not_grow_for_ever(checker: AvailabilityChecker, clock: Clock) -> None:
    """Checks of tools that were replaced a thousand times are forgotten after their minute."""
    for _ in range(3000):
        check = Probe(True)
        checker.ask([check])
        clock.now += 1

    assert len(checker._passed_at) < 1200
    assert len(checker._instant) < 1200


# Where a check runs


request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="nobody")


def test_a_check_sees_the_context_of_the_build(checker: AvailabilityChecker, hanging: Callable[[], Hanging]) -> None:
    """Also one that is moved to a thread of its own because another one hangs."""
    seen: list[str] = []

    def look() -> bool:
        seen.append(request.get())
        request.set("changed by the check")
        return True

    token = request.set("somebody")
    try:
        checker.ask([look])
        checker.ask([hanging(), look])
        assert request.get() == "somebody"
    finally:
        request.reset(token)

    assert seen == ["somebody", "somebody"]


def test_a_check_may_ask_the_registry(hanging: Callable[[], Hanging]) -> None:
    """A tool that depends on other tools asks for them; inside a build each check still runs once."""
    registry, base = ToolRegistry(), Probe(True)
    declare(registry, "base", "ground", check_fn=base)
    declare(registry, "above", check_fn=lambda: registry.is_toolset_available("ground"))
    declare(registry, "beside", check_fn=lambda: bool(registry.get_definitions({"base"})))

    assert len(registry.get_definitions({"above", "base", "beside"})) == 3
    assert base.asked == 1


def test_checks_that_ask_for_each_other_come_to_an_end() -> None:
    """Whoever asks for what is being asked already is told that it is not known yet."""
    registry = ToolRegistry()
    asked: list[int] = []

    def circular(number: int) -> Callable[[], bool]:
        def check() -> bool:
            asked.append(number)
            registry.get_definitions(registry.get_all_tool_names())
            return True

        return check

    for number in range(12):
        declare(registry, f"tool_{number}", check_fn=circular(number))

    assert len(registry.get_definitions(registry.get_all_tool_names())) == 12
    assert sorted(asked) == list(range(12))


def test_threads_may_build_at_once_while_checks_flip() -> None:
    """Each build sees each check as it is then, and none raises."""
    registry = ToolRegistry()
    state = {"on": True}
    declare(registry, "flips", check_fn=lambda: state["on"])
    declare(registry, "stays", check_fn=lambda: True)
    errors: list[BaseException] = []

    def build() -> None:
        try:
            for step in range(100):
                state["on"] = step % 2 == 0
                names = [tool["function"]["name"] for tool in registry.get_definitions({"flips", "stays"})]
                assert names in (["flips", "stays"], ["stays"])
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    state["on"] = False
    assert len(registry.get_definitions({"flips", "stays"})) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_asks_with_a_thread_of_its_own(checker: AvailabilityChecker) -> None:
    """The worker of the parent does not exist in the child."""
    check = Probe(True)
    checker.ask([check])
    checker.timeout_seconds = 30

    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(10)
        with contextlib.suppress(BaseException):
            code = 0 if checker.ask([check])[check].available else 2
        os._exit(code)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Checks that need no thread


def one_variable() -> bool:
    return bool(os.getenv("SOME_KEY"))


def two_variables() -> bool:
    key = os.environ.get("SOME_KEY")
    return bool(key and os.environ.get("OTHER_KEY"))


def calls_its_default(probe: Any = Probe(True)) -> bool:  # noqa: B008
    return bool(probe.get() or os.getenv("X"))


def calls_its_keyword(*, get: Any = print) -> Any:
    return get(os.getenv("X"))


def loops() -> bool:
    while not os.getenv("SOME_KEY"):
        pass
    return True


def calls_another() -> bool:
    return one_variable() and bool(os.getenv("X"))


def uses_a_global() -> bool:
    return bool(environ_of_the_moon) and bool(os.getenv("X"))  # type: ignore[name-defined]  # noqa: F821


def comprehends() -> bool:
    return bool([os.getenv(name) for name in ("A", "B")])


def says_yes() -> bool:
    return True


@pytest.mark.parametrize(
    ("check", "instant"),
    [
        (one_variable, True),
        (two_variables, True),
        (lambda: os.getenv("X"), True),
        (calls_its_default, False),
        (calls_its_keyword, False),
        (loops, False),
        (calls_another, False),
        (uses_a_global, False),
        (comprehends, False),
        (says_yes, False),
        (Probe(True), False),
        (os.getcwd, False),
    ],
)
def test_only_what_cannot_hang_is_asked_without_a_thread(check: Callable[[], Any], instant: bool) -> None:
    """A straight look at variables, and nothing that could call anything else."""
    assert only_reads_environment(check) is instant


def test_a_global_that_is_called_like_a_function_of_os_is_not_trusted() -> None:
    """`getenv` in a module may be anything."""
    code = "import os\ndef getenv(name):\n    pass\ndef check():\n    return getenv('X')\n"
    module: dict[str, Any] = {}
    exec(code, module)

    assert not only_reads_environment(module["check"])


def test_a_look_at_a_variable_is_never_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment says now decides."""
    checker = AvailabilityChecker()
    monkeypatch.setenv("SOME_KEY", "x")
    assert checker.ask([one_variable])[one_variable].available
    monkeypatch.delenv("SOME_KEY")

    assert not checker.ask([one_variable])[one_variable].available


def test_a_check_that_is_marked_runs_on_the_thread_that_asks() -> None:
    """A built-in tool's check that returns at once needs no thread of its own."""
    asked_on: list[threading.Thread] = []

    @runs_in_place
    def check() -> bool:
        asked_on.append(threading.current_thread())
        return True

    outcomes = AvailabilityChecker().ask([check])

    assert outcomes[check].available
    assert asked_on == [threading.current_thread()]
