"""`mixture_of_agents`, called as a model calls it, with model servers on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from toolcrib.core.messages import Message, Text
from toolcrib.core.models import ModelResponse, Usage
from toolcrib.core.types import Unavailable
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing.model_server import ErrorResponse, RawResponse, ScriptedModelServer, Stream
from toolcrib.tools.mixture_of_agents import check_mixture

KEY = "sk-very-secret-0123456789abcdef"
Ask = Callable[..., Any]


class Panel:
    """Two reference models, and a third that joins their answers."""

    def __init__(self, servers: dict[str, ScriptedModelServer], make_runtime: Callable[..., Runtime]) -> None:
        self.servers = servers
        self._make_runtime = make_runtime

    def runtime(self, **more: Any) -> Runtime:
        providers = {
            name: {"base_url": server.base_url, "model": "m", "key_env": "TEST_KEY"}
            for name, server in self.servers.items()
        }
        config = {
            "providers": providers,
            "model": {"default": "join/m", "max_retries": 0, "prices": {"m": {"input": 1_000_000, "output": 0}}},
            "moa": {"reference_models": ["one/m", "two/m"], "timeout": 20, **more},
        }
        return self._make_runtime(json.dumps(config), registry=ToolRegistry(parent=default_registry))

    async def ask(self, prompt: str = "What is 6 times 7?", **more: Any) -> dict[str, Any]:
        result = await self.runtime(**more).call("mixture_of_agents", {"user_prompt": prompt})
        assert KEY not in result.text
        return dict(json.loads(result.text))


@pytest.fixture
def panel(make_runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch) -> Iterator[Panel]:
    monkeypatch.setenv("TEST_KEY", KEY)
    answers = {"one": "It is 42.", "two": "42, I think.", "join": "42."}
    with ExitStack() as opened:
        servers = {
            name: opened.enter_context(ScriptedModelServer(otherwise=answer)) for name, answer in answers.items()
        }
        yield Panel(servers, make_runtime)


async def test_one_model_joins_the_answers_of_the_others(panel: Panel) -> None:
    """Each gets the question alone; the last one gets the question and all answers, without their authors."""
    answer = Message(role="assistant", content=(Text("It is 42."),))
    panel.servers["one"].add(ModelResponse(message=answer, usage=Usage(input_tokens=3)))

    found = await panel.ask()

    assert found["success"] is True
    assert found["response"] == "42."
    assert found["models_used"] == {"reference_models": ["one/m", "two/m"], "aggregator_model": "join/m"}
    assert [one["model"] for one in found["costs"]] == ["one/m", "two/m", "join/m"]
    assert found["cost_usd"] == 3.0
    asked = json.dumps(panel.servers["one"].requests[0].body)
    assert "6 times 7" in asked
    assert "42" not in asked
    material = json.dumps(panel.servers["join"].requests[0].body)
    assert "It is 42." in material
    assert "42, I think." in material
    assert "one/m" not in material


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (ErrorResponse(401, f"bad key {KEY}"), "rejects the key in TEST_KEY"),
        (ErrorResponse(402, "no credit"), "credit or quota of your one account is used up"),
        (ErrorResponse(429, "slow down"), "accepts no more requests"),
        (ErrorResponse(503, "away"), "cannot answer with model"),
        (ErrorResponse(400, "what?"), "rejects the request"),
        (RawResponse(b"data: {not json\n\n"), "sent an unreadable answer"),
        (Stream("never", stall_after=0), "did not answer within 2 seconds"),
    ],
    ids=["wrong key", "no credit", "quota", "server", "request", "malformed", "slow"],
)
async def test_one_answer_suffices_and_the_failure_is_named(panel: Panel, step: Any, reason: str) -> None:
    """The models that failed are in the result with their reasons, never with a key."""
    panel.servers["one"].add(step)

    found = await panel.ask(timeout=2)

    assert found["response"] == "42."
    assert found["models_used"]["reference_models"] == ["two/m"]
    assert list(found["failed_models"]) == ["one/m"]
    assert reason in json.dumps(found["failed_models"])


async def test_a_huge_answer_is_cut_before_it_is_joined(panel: Panel) -> None:
    """One model that does not stop cannot fill the request to the one that joins."""
    panel.servers["one"].add("so" * 500_000)

    found = await panel.ask()

    assert found["response"] == "42."
    material = json.dumps(panel.servers["join"].requests[0].body)
    assert "42, I think." in material
    assert len(material) < 200_000


async def test_without_any_answer_every_reason_is_told(panel: Panel) -> None:
    panel.servers["one"].add(ErrorResponse(401, "bad key"))
    panel.servers["two"].add("")

    found = await panel.ask()

    assert found["success"] is False
    assert "one/m" in found["error"]
    assert "two/m" in found["error"]
    assert not panel.servers["join"].requests


async def test_the_best_answer_stands_if_nobody_can_join_them(panel: Panel) -> None:
    panel.servers["join"].add(ErrorResponse(503, "away"))

    found = await panel.ask()

    assert found["response"] == "It is 42."
    assert "could not join" in found["note"]


async def test_one_model_alone_is_no_mixture(panel: Panel) -> None:
    found = await panel.ask(reference_models=[])

    assert "toolcrib config set moa.reference_models" in found["error"]
    assert "empty" in (await panel.ask(" "))["error"]


def test_without_models_the_remedy_is_named() -> None:
    answer = check_mixture()

    assert isinstance(answer, Unavailable)
    assert "moa.reference_models" in answer.remedy
