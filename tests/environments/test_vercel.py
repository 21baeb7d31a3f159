"""Vercel's SDK, driven by the engine, against a pretended Vercel on loopback."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.environments.engine_runs import bash, run
from tests.environments.fakes.vercel_service import PROJECT, TEAM, TOKEN, VercelService, vercel_service
from tests.environments.hosted_rules import HostedEngineRules
from toolcrib.core.errors import ConfigError, EnvironmentFailed
from toolcrib.environments.backends import vercel_sandbox as backend
from toolcrib.environments.backends.vercel_sandbox import VercelEngine, VercelOptions

pytest.importorskip("vercel.sandbox", reason="the SDK of Vercel is not installed: pip install 'toolcrib[vercel]'")
pytest.importorskip("aiohttp", reason="aiohttp is not installed")


pytestmark = pytest.mark.services


@pytest.fixture
async def service() -> AsyncIterator[VercelService]:
    async with vercel_service() as running:
        yield running
        assert running.unknown == []


@pytest.fixture
def options(service: VercelService) -> VercelOptions:
    return VercelOptions(token=TOKEN, team_id=TEAM, project_id=PROJECT, api_url=f"{service.url}/api")


@pytest.fixture
async def engine(options: VercelOptions) -> AsyncIterator[VercelEngine]:
    opened = VercelEngine(options)
    await opened.open()
    yield opened
    await opened.close()


class TestVercel(HostedEngineRules):
    """The rules of hosted engines, for Vercel."""


async def test_a_sandbox_is_made_as_the_options_say(service: VercelService, options: VercelOptions) -> None:
    """Limits, network, image, time to live and whose it is reach the service."""
    wanted = replace(options, image="vcr/mine:1", cpu=1.5, memory_mb=4096, network=False, lifetime_seconds=120)
    engine = VercelEngine(wanted)

    await engine.open()

    (made,) = service.created
    await engine.close()
    assert made["projectId"] == PROJECT
    assert made["image"] == "vcr/mine:1"
    assert made["resources"] == {"vcpus": 2, "memory": 4096}
    assert made["networkPolicy"] == {"mode": "deny-all"}
    assert (made["timeout"], made["persistent"]) == (120_000, False)
    assert made["name"].startswith("toolcrib-")
    assert made["tags"]["toolcrib-owner"].startswith(f"{os.getpid()}-")


def test_a_sandbox_without_an_end_is_refused() -> None:
    """There is always a time to live on the service's side."""
    with pytest.raises(ConfigError, match="positive number"):
        VercelOptions(lifetime_seconds=0)


async def test_a_log_that_breaks_off_is_taken_up_again(engine: VercelEngine, service: VercelService) -> None:
    """When the connection is cut in the middle, no output is lost or doubled."""
    service.drop_connections = 2

    code, printed = await run(engine, "seq", "20000")

    assert service.drop_connections == 0
    assert code == 0
    assert printed.split() == [str(number).encode() for number in range(1, 20001)]


async def test_another_engine_takes_a_running_sandbox_over(engine: VercelEngine, options: VercelOptions) -> None:
    """`attach` finds the same files again; closing that one ends the sandbox."""
    await bash(engine, "echo kept > file")
    other = VercelEngine(replace(options, attach=engine.address()["sandbox"]))

    await other.open()

    assert await bash(other, "cat file") == "kept\n"
    assert other.address() == engine.address()
    await other.close()


async def test_an_ended_sandbox_cannot_be_taken_over(engine: VercelEngine, options: VercelOptions) -> None:
    """The message names the sandbox."""
    address = engine.address()["sandbox"]
    await engine.close()

    with pytest.raises(EnvironmentFailed, match=address):
        await VercelEngine(replace(options, attach=address)).open()


async def test_a_snapshot_starts_another_sandbox(engine: VercelEngine, options: VercelOptions) -> None:
    """What was in the files of the first is in those of the second."""
    await bash(engine, "echo kept > file")
    other = VercelEngine(replace(options, snapshot=await engine.snapshot()))

    await other.open()

    assert await bash(other, "cat file") == "kept\n"
    assert other.address() != engine.address()
    await other.close()


async def test_a_wrong_token_is_told_with_a_remedy(service: VercelService, options: VercelOptions) -> None:
    """The message says which variables, and where to get a token."""
    with pytest.raises(EnvironmentFailed, match=r"https://vercel.com/account/settings/tokens.*VERCEL_TOKEN"):
        await VercelEngine(replace(options, token="vt-wrong")).open()
    assert service.created == []


async def test_a_missing_project_is_told_with_a_remedy(service: VercelService, options: VercelOptions) -> None:
    """What is missing is named before anybody is called."""
    with pytest.raises(EnvironmentFailed, match=r"no VERCEL_PROJECT_ID; .*VERCEL_TEAM_ID"):
        await VercelEngine(replace(options, project_id="")).open()
    assert service.created == []


async def test_the_probe_says_what_is_missing(options: VercelOptions) -> None:
    """Token, team and project make the backend usable; without them there is a remedy."""
    without, with_all = await backend.probe(VercelOptions(token="vt")), await backend.probe(options)

    assert (without.usable, without.detail) == (False, "no VERCEL_TEAM_ID and no VERCEL_PROJECT_ID")
    assert "VERCEL_TEAM_ID" in without.remedy
    assert with_all.usable


async def test_leftovers_are_found_and_removed(
    engine: VercelEngine, service: VercelService, options: VercelOptions
) -> None:
    """A sandbox of this machine is listed with its owner's state, and can be ended from outside."""
    async with asyncio.timeout(20):
        (found,) = await backend.leftovers(options)
        await backend.remove(found, options)

        assert found.name == engine.address()["sandbox"]
        assert found.owner_alive
        assert service.running == []
        assert await backend.leftovers(options) == []
