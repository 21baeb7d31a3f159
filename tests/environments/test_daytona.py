"""Daytona's SDK, driven by the engine, against a pretended Daytona on loopback."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.environments.engine_runs import bash, run
from tests.environments.fakes.daytona_service import KEY, DaytonaService, daytona_service
from tests.environments.hosted_rules import HostedEngineRules, eventually
from toolcrib.core.errors import ConfigError, EnvironmentFailed
from toolcrib.environments.backends import daytona as backend
from toolcrib.environments.backends.daytona import DaytonaEngine, DaytonaOptions

pytest.importorskip("daytona", reason="the SDK of Daytona is not installed: pip install 'toolcrib[daytona]'")
pytest.importorskip("aiohttp", reason="aiohttp is not installed")


pytestmark = pytest.mark.services


@pytest.fixture
async def service() -> AsyncIterator[DaytonaService]:
    async with daytona_service() as running:
        yield running
        assert running.unknown == []


@pytest.fixture
def options(service: DaytonaService) -> DaytonaOptions:
    return DaytonaOptions(api_key=KEY, api_url=f"{service.url}/api")


@pytest.fixture
async def engine(options: DaytonaOptions) -> AsyncIterator[DaytonaEngine]:
    opened = DaytonaEngine(options)
    await opened.open()
    yield opened
    await opened.close()


class TestDaytona(HostedEngineRules):
    """The rules of hosted engines, for Daytona."""


async def test_a_sandbox_is_made_as_the_options_say(service: DaytonaService, options: DaytonaOptions) -> None:
    """Limits, network, image, time to live and whose it is reach the service."""
    wanted = replace(
        options,
        image="debian:12",
        cpu=1.5,
        memory_mb=5120,
        disk_mb=10_000,
        network=False,
        lifetime_seconds=3601,
        idle_seconds=60,
    )
    engine = DaytonaEngine(wanted)

    await engine.open()

    (made,) = service.created
    await engine.close()
    assert made["buildInfo"]["dockerfileContent"] == "FROM debian:12\n"
    assert (made["cpu"], made["memory"], made["disk"]) == (2, 5, 10)
    assert made["networkBlockAll"] is True
    assert (made["ttlMinutes"], made["autoStopInterval"], made["autoDeleteInterval"]) == (61, 1, 0)
    assert made["name"].startswith("toolcrib-")
    assert made["labels"]["toolcrib-owner"].startswith(f"{os.getpid()}-")


@pytest.mark.parametrize("name", ["lifetime_seconds", "idle_seconds"])
def test_a_sandbox_without_an_end_is_refused(name: str) -> None:
    """There is always a time to live on the service's side."""
    with pytest.raises(ConfigError, match="positive number"):
        DaytonaOptions(**{name: 0})


async def test_a_log_that_breaks_off_is_taken_up_again(engine: DaytonaEngine, service: DaytonaService) -> None:
    """When the connection is cut in the middle, no output is lost or doubled."""
    service.drop_connections = 3

    code, printed = await run(engine, "seq", "20000")

    assert service.drop_connections == 0
    assert code == 0
    assert printed.split() == [str(number).encode() for number in range(1, 20001)]


async def test_the_sessions_of_ended_programs_are_deleted(engine: DaytonaEngine, service: DaytonaService) -> None:
    """What the service keeps of a program is removed once it has ended, so that a sandbox does not fill up."""
    for _ in range(3):
        await bash(engine, "echo")

    await eventually(lambda: not service.sessions)


async def test_another_engine_takes_a_running_sandbox_over(engine: DaytonaEngine, options: DaytonaOptions) -> None:
    """`attach` finds the same files again; closing that one ends the sandbox."""
    await bash(engine, "echo kept > file")
    other = DaytonaEngine(replace(options, attach=engine.address()["sandbox"]))

    await other.open()

    assert await bash(other, "cat file") == "kept\n"
    assert other.address() == engine.address()
    await other.close()


async def test_an_ended_sandbox_cannot_be_taken_over(engine: DaytonaEngine, options: DaytonaOptions) -> None:
    """The message names the sandbox."""
    address = engine.address()["sandbox"]
    await engine.close()

    with pytest.raises(EnvironmentFailed, match=address):
        await DaytonaEngine(replace(options, attach=address)).open()


async def test_a_snapshot_starts_another_sandbox(engine: DaytonaEngine, options: DaytonaOptions) -> None:
    """What was in the files of the first is in those of the second."""
    await bash(engine, "echo kept > file")
    other = DaytonaEngine(replace(options, snapshot=await engine.snapshot()))

    await other.open()

    assert await bash(other, "cat file") == "kept\n"
    assert other.address() != engine.address()
    await other.close()


@pytest.mark.parametrize("key", ["", "dtn-wrong"])
async def test_a_missing_or_wrong_key_is_told_with_a_remedy(
    service: DaytonaService, options: DaytonaOptions, key: str
) -> None:
    """The message says which variable, and where to get a key."""
    with pytest.raises(EnvironmentFailed, match=r"https://app.daytona.io/dashboard/keys.*DAYTONA_API_KEY"):
        await DaytonaEngine(replace(options, api_key=key)).open()
    assert service.created == []


async def test_the_probe_says_what_is_missing() -> None:
    """A key makes the backend usable; without one there is a remedy."""
    without, with_key = await backend.probe(DaytonaOptions()), await backend.probe(DaytonaOptions(api_key=KEY))

    assert (without.usable, without.detail) == (False, "no DAYTONA_API_KEY")
    assert "DAYTONA_API_KEY" in without.remedy
    assert with_key.usable


async def test_leftovers_are_found_and_removed(
    engine: DaytonaEngine, service: DaytonaService, options: DaytonaOptions
) -> None:
    """A sandbox of this machine is listed with its owner's state, and can be ended from outside."""
    async with asyncio.timeout(20):
        (found,) = await backend.leftovers(options)
        await backend.remove(found, options)

        assert found.name == engine.address()["sandbox"]
        assert found.owner_alive
        assert service.running == []
        assert await backend.leftovers(options) == []
