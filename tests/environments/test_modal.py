"""Modal's SDK, driven by the engine, against a pretended Modal on loopback."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from tests.environments.engine_runs import bash
from tests.environments.hosted_rules import HostedEngineRules
from toolcrib.core.errors import ConfigError, EnvironmentFailed
from toolcrib.environments.backends import modal as backend
from toolcrib.environments.backends.modal import ModalEngine, ModalOptions

pytest.importorskip("modal", reason="the SDK of Modal is not installed: pip install 'toolcrib[modal]'")

from modal_proto import api_pb2

from tests.environments.fakes.modal_service import TOKEN, ModalService, modal_service

pytestmark = pytest.mark.services

OPTIONS = ModalOptions(token_id=TOKEN[0], token_secret=TOKEN[1])


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModalService]:
    async with modal_service() as running:
        monkeypatch.setenv("MODAL_SERVER_URL", running.url)
        yield running
        assert running.unknown == []


@pytest.fixture
async def engine(service: ModalService) -> AsyncIterator[ModalEngine]:
    opened = ModalEngine(OPTIONS)
    await opened.open()
    yield opened
    await opened.close()


class TestModal(HostedEngineRules):
    """The rules of hosted engines, for Modal."""


async def test_a_sandbox_is_made_as_the_options_say(service: ModalService) -> None:
    """Limits, network, image, time to live and whose it is reach the service."""
    options = ModalOptions(
        token_id=TOKEN[0],
        token_secret=TOKEN[1],
        app="mine",
        image="debian:12",
        cpu=2,
        memory_mb=1024,
        network=False,
        lifetime_seconds=120,
        idle_seconds=60,
    )
    engine = ModalEngine(options)

    await engine.open()

    made = service.created[0]
    await engine.close()
    assert made.app_id == "ap-mine"
    assert made.definition.timeout_secs == 120
    assert made.definition.idle_timeout_secs == 60
    assert made.definition.resources.milli_cpu == 2000
    assert made.definition.resources.memory_mb == 1024
    assert made.definition.network_access.network_access_type == api_pb2.NetworkAccess.NetworkAccessType.BLOCKED
    assert made.definition.name.startswith("toolcrib-")
    assert {tag.tag_name: tag.tag_value for tag in made.tags}["toolcrib-owner"].startswith(f"{os.getpid()}-")
    assert "FROM debian:12" in service.images


def test_a_sandbox_without_an_end_is_refused() -> None:
    """There is always a time to live on the service's side."""
    with pytest.raises(ConfigError, match="lifetime"):
        ModalOptions(lifetime_seconds=0)


async def test_another_engine_takes_a_running_sandbox_over(engine: ModalEngine) -> None:
    """`attach` finds the same files again; closing that one ends the sandbox."""
    await bash(engine, "echo kept > file")
    other = ModalEngine(ModalOptions(token_id=TOKEN[0], token_secret=TOKEN[1], attach=engine.address()["sandbox"]))

    await other.open()

    assert await bash(other, "cat file") == "kept\n"
    assert other.address() == engine.address()
    await other.close()


async def test_an_ended_sandbox_cannot_be_taken_over(engine: ModalEngine) -> None:
    """The message names the sandbox."""
    address = engine.address()["sandbox"]
    await engine.close()

    with pytest.raises(EnvironmentFailed, match=address):
        await ModalEngine(ModalOptions(token_id=TOKEN[0], token_secret=TOKEN[1], attach=address)).open()


async def test_a_snapshot_starts_another_sandbox(engine: ModalEngine) -> None:
    """What was in the files of the first is in those of the second."""
    await bash(engine, "echo kept > file")
    other = ModalEngine(ModalOptions(token_id=TOKEN[0], token_secret=TOKEN[1], snapshot=await engine.snapshot()))

    await other.open()

    assert await bash(other, "cat file") == "kept\n"
    assert other.address() != engine.address()
    await other.close()


async def test_a_wrong_token_is_told_with_a_remedy(service: ModalService) -> None:
    """The message says which variables, and where to get a token."""
    with pytest.raises(EnvironmentFailed, match=r"MODAL_TOKEN_ID.*MODAL_TOKEN_SECRET"):
        await ModalEngine(ModalOptions(token_id="ak-wrong", token_secret="as-wrong")).open()
    assert service.created == []


async def test_a_missing_token_is_told_with_a_remedy(service: ModalService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token anywhere the message is the same."""
    monkeypatch.delenv("MODAL_TOKEN_ID", raising=False)

    with pytest.raises(EnvironmentFailed, match=r"https://modal.com/settings/tokens.*MODAL_TOKEN_ID"):
        await ModalEngine(ModalOptions()).open()


async def test_the_probe_says_what_is_missing() -> None:
    """A token makes the backend usable; without one there is a remedy."""
    without, with_token = await backend.probe(ModalOptions()), await backend.probe(OPTIONS)

    assert (without.usable, without.detail) == (False, "no token")
    assert "MODAL_TOKEN_ID" in without.remedy
    assert with_token.usable


async def test_leftovers_are_found_and_removed(engine: ModalEngine, service: ModalService) -> None:
    """A sandbox of this machine is listed with its owner's state, and can be ended from outside."""
    async with asyncio.timeout(20):
        (found,) = await backend.leftovers(OPTIONS)
        await backend.remove(found, OPTIONS)

        assert found.name == engine.address()["sandbox"]
        assert found.owner_alive
        assert service.running == []
        assert await backend.leftovers(OPTIONS) == []
