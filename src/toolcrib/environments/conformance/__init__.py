"""The contract of an environment as checks that any backend can run, ours or a third party's.

    from toolcrib.environments.conformance import BackendUnderTest, run_suite

    report = await run_suite(BackendUnderTest(name="mine", make=lambda: MyEnvironment(...)))
    assert report.passed, [result for result in report.results if result.state == "failed"]

`toolcrib env check BACKEND` does the same from the command line.
"""

from toolcrib.environments.conformance.check import (
    BackendUnderTest,
    Capability,
    Check,
    CheckContext,
    ConformanceFailure,
)
from toolcrib.environments.conformance.suite import CHECKS, CheckResult, ConformanceReport, run_check, run_suite

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
