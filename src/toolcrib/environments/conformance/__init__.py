"""The contract of an environment as checks that any backend can run, ours or a third party's.

    from toolcrib.environments.conformance import BackendUnderTest, run_suite

    report = await run_suite(BackendUnderTest(name="mine", make=lambda: MyEnvironment(...)))
    assert report.passed, [result for result in report.results if result.state == "failed"]

`toolcrib env check BACKEND` does the same from the command line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from toolcrib.core.environments import Environment
from toolcrib.core.errors import EnvironmentFailed, UnknownName
from toolcrib.environments.conformance.check import (
    BackendUnderTest,
    Capability,
    Check,
    CheckContext,
    ConformanceFailure,
)
from toolcrib.environments.conformance.commands import COMMAND_CHECKS, STREAM_CHECKS
from toolcrib.environments.conformance.files import EDITING_CHECKS, TRANSFER_CHECKS
from toolcrib.environments.conformance.processes import ENDING_CHECKS, OVERLAP_CHECKS
from toolcrib.environments.conformance.sessions import HYGIENE_CHECKS, ODD_SESSION_CHECKS, SESSION_CHECKS

__all__ = [
    "CHECKS",
    "BackendUnderTest",
    "Capability",
    "Check",
    "CheckContext",
    "CheckResult",
    "ConformanceFailure",
    "ConformanceReport",
    "run_check",
    "run_suite",
]

CHECKS: tuple[Check, ...] = (
    *COMMAND_CHECKS,
    *SESSION_CHECKS,
    *ODD_SESSION_CHECKS,
    *STREAM_CHECKS,
    *ENDING_CHECKS,
    *OVERLAP_CHECKS,
    *TRANSFER_CHECKS,
    *EDITING_CHECKS,
    *HYGIENE_CHECKS,
)
CLOSE_SECONDS = 60.0
"""An environment that takes longer to close hangs."""


class UnknownCheck(UnknownName):
    kind = "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check."""

    check: Check
    state: Literal["passed", "failed", "skipped"]
    detail: str = ""
    """Why it failed or was skipped, or what to know although it passed."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceReport:
    """The results of all checks, in order."""

    subject: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        return all(result.state != "failed" for result in self.results)

    def count(self, state: str) -> int:
        return sum(result.state == state for result in self.results)


async def run_suite(
    subject: BackendUnderTest,
    *,
    only: Collection[str] | None = None,
    on_result: Callable[[CheckResult], None] = lambda _result: None,
) -> ConformanceReport:
    """Run all checks, or those named in `only`, one after the other; raises UnknownCheck for an unknown name.

    Checks share an environment if possible; after a failure the next one gets a new one.
    """
    results: list[CheckResult] = []
    shared: Environment | None = None
    try:
        for each in chosen(only):
            if missing := each.needs - subject.can:
                result = CheckResult(check=each, state="skipped", detail=f"needs {', '.join(sorted(missing))}")
            elif each.alone:
                result = await run_check(each, subject)
            else:
                result, shared = await _run_shared(each, subject, shared)
            results.append(result)
            on_result(result)
    finally:
        if shared is not None:
            await close(shared)
    return ConformanceReport(subject=subject.name, results=tuple(results))


async def run_check(each: Check, subject: BackendUnderTest) -> CheckResult:
    """Run one check in its own environment."""
    if missing := each.needs - subject.can:
        return CheckResult(check=each, state="skipped", detail=f"needs {', '.join(sorted(missing))}")
    result, environment = await _run_shared(each, subject, None)
    if environment is None:
        return result
    problem = await close(environment)
    if problem and result.state == "passed":
        return CheckResult(check=each, state="failed", detail=problem, seconds=result.seconds)
    return result


def chosen(only: Collection[str] | None) -> list[Check]:
    """The checks with these names; None means all."""
    if only is None:
        return list(CHECKS)
    known = [each.name for each in CHECKS]
    for name in only:
        if name not in known:
            raise UnknownCheck(name, known, advice="`toolcrib env check --list` shows all of them")
    return [each for each in CHECKS if each.name in only]


async def _run_shared(
    each: Check, subject: BackendUnderTest, environment: Environment | None
) -> tuple[CheckResult, Environment | None]:
    """The result, and the environment for the next check; None after a failure."""
    started = time.monotonic()
    problem, notes = "", list[str]()
    try:
        async with asyncio.timeout(each.seconds):
            if environment is None:
                environment = subject.make()
                await environment.open()
            context = CheckContext(subject, environment)
            await each.run(context)
            notes = context.notes
    except TimeoutError:
        problem = f"it took longer than {each.seconds:.0f} s"
    except ConformanceFailure as error:
        problem = str(error)
    except EnvironmentFailed as error:
        problem = f"the environment could not be used: {error}"
    except asyncio.CancelledError:
        if environment is not None:
            await close(environment)
        raise
    except Exception as error:  # noqa: BLE001 - a backend under test may raise anything
        problem = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - started
    if not problem:
        return CheckResult(check=each, state="passed", detail=" ".join(notes), seconds=seconds), environment
    if environment is not None:
        await close(environment)
    return CheckResult(check=each, state="failed", detail=problem, seconds=seconds), None


async def close(environment: Environment) -> str:
    """Close an environment under test; returns what went wrong, if anything."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await environment.close()
    except TimeoutError:
        return f"closing it took longer than {CLOSE_SECONDS:.0f} s"
    except Exception as error:  # noqa: BLE001 - as above
        return f"closing it raised {type(error).__name__}: {error}"
    return ""
