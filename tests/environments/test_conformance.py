"""Every backend keeps every promise of an environment, and the suite notices one that does not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace as replace_fields

import pytest
from msgspec.structs import replace

from tests.environments.factories import FACTORIES, SECRET, Factory, host_environ
from toolcrib.core.environments import CommandRequest, Execution, OnOutput
from toolcrib.core.errors import EnvironmentFailed, UnknownName
from toolcrib.environments.backends.local import LocalShellEnvironment
from toolcrib.environments.conformance import (
    CHECKS,
    BackendUnderTest,
    Capability,
    Check,
    CheckContext,
    run_check,
    run_suite,
)


@pytest.fixture(params=[pytest.param(row, id=row.name, marks=row.marks) for row in FACTORIES])
async def subject(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BackendUnderTest]:
    """One backend; a key is in our own environment, as it is on a user's machine."""
    factory: Factory = request.param
    monkeypatch.setenv(*SECRET)
    async with factory.make(request) as made:
        yield made


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("check", [pytest.param(each, id=each.name) for each in CHECKS])
async def test_the_backend_keeps_the_promise(subject: BackendUnderTest, check: Check) -> None:
    """What a check's rule says holds in an environment of its own."""
    result = await run_check(check, subject)
    if result.state == "failed" and "EnvironmentFailed" in result.detail:
        # The engine itself failed: it gets a second chance, a broken promise does not.
        result = await run_check(check, subject)

    if result.state == "skipped":
        pytest.skip(result.detail)
    assert result.state == "passed", f"{check.rule}\n{result.detail}"


class Forgetful(LocalShellEnvironment):
    """A backend that loses exit codes."""

    async def start(self, request: CommandRequest, on_output: OnOutput) -> Execution:
        return await super().start(replace(request, command=f"{{ {request.command}\n}}; true"), on_output)


class UnopenableEnvironment(LocalShellEnvironment):
    """A backend that cannot be opened."""

    async def open(self) -> None:
        raise EnvironmentFailed("the moon is not full; wait")


def of(kind: type[LocalShellEnvironment], can: frozenset[Capability] = frozenset()) -> BackendUnderTest:
    return BackendUnderTest(name=kind.__name__, make=lambda: kind(host_environ()), can=can)


async def test_a_broken_promise_is_reported_and_the_others_go_on() -> None:
    """A failed check says what was expected and seen; the checks after it run."""
    told: list[str] = []

    report = await run_suite(
        of(Forgetful), only=["exit-codes", "output-order", "terminal"], on_result=lambda r: told.append(r.check.name)
    )

    failed, passed, skipped = report.results
    assert (failed.state, passed.state, skipped.state) == ("failed", "passed", "skipped")
    assert "expected 1, seen 0" in failed.detail
    assert skipped.detail == "needs pty"
    assert not report.passed
    assert told == ["exit-codes", "output-order", "terminal"]


async def test_an_environment_that_does_not_open_fails_its_checks_with_the_reason() -> None:
    """What the backend says when it cannot be opened reaches the report."""
    report = await run_suite(of(UnopenableEnvironment), only=["quotes"])

    assert "the moon is not full" in report.results[0].detail


async def test_a_check_that_hangs_fails() -> None:
    """No backend can hold up the suite."""

    async def hang(ctx: CheckContext) -> None:
        await asyncio.Event().wait()

    result = await run_check(Check(name="hang", rule="", run=hang, seconds=0.1), of(LocalShellEnvironment))

    assert (result.state, result.detail) == ("failed", "it took longer than 0 s")


async def test_anything_that_a_backend_raises_is_its_failure() -> None:
    """An exception of a third party's code is reported with its type."""

    async def burst(ctx: CheckContext) -> None:
        raise ZeroDivisionError("burst")

    result = await run_check(Check(name="burst", rule="", run=burst), of(LocalShellEnvironment))

    assert (result.state, result.detail) == ("failed", "ZeroDivisionError: burst")


@pytest.fixture
def other_holder() -> Iterator[int]:
    """A process that is not ours and has a key in its environment, like the shell above toolcrib."""
    command = ["sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"]
    started = subprocess.run(command, env=host_environ() | dict([SECRET]), stdout=subprocess.PIPE, check=True)
    yield int(started.stdout)
    os.kill(int(started.stdout), signal.SIGKILL)


async def test_a_key_in_another_process_of_the_user_is_told_and_breaks_no_rule(other_holder: int) -> None:
    """On this machine commands run as the user: toolcrib can only keep the keys out of its own processes."""
    subject = replace_fields(of(LocalShellEnvironment, frozenset({"secrets"})), secrets=dict([SECRET]))

    report = await run_suite(subject, only=["secrets"])

    assert report.passed
    assert f"sleep (pid {other_holder})" in report.results[0].detail
    assert "use the sandbox backend or a container" in report.results[0].detail


async def test_a_key_in_a_process_of_toolcrib_fails(other_holder: int) -> None:
    """A child of ours with a key is our leak, whatever else holds it."""
    subject = replace_fields(of(LocalShellEnvironment, frozenset({"secrets"})), secrets=dict([SECRET]))
    child = await asyncio.create_subprocess_exec("sleep", "300", env=host_environ() | dict([SECRET]))
    try:
        report = await run_suite(subject, only=["secrets"])
    finally:
        child.kill()
        await child.wait()

    assert (
        f"processes of toolcrib that show OPENAI_API_KEY: expected [], seen [{child.pid}]" == report.results[0].detail
    )


async def test_an_unknown_check_is_named_with_the_nearest() -> None:
    """A name that no check has is refused before anything runs."""
    with pytest.raises(UnknownName, match="did you mean 'exit-codes'"):
        await run_suite(of(LocalShellEnvironment), only=["exit-code"])


def test_every_check_has_a_name_of_its_own_and_a_rule() -> None:
    """Names are used on the command line, rules in its output."""
    names = [each.name for each in CHECKS]

    assert len(set(names)) == len(names)
    assert all(each.rule.endswith(".") for each in CHECKS)
