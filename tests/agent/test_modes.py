"""How much an agent does on its own, whatever the front end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import MakeAgent
from toolcrib.agent.agent import Agent
from toolcrib.agent.events import AnyEvent, CallFinished, SteeringDropped
from toolcrib.agent.host import AgentHost
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.core.types import Effect
from toolcrib.providers.prices import prices_of
from toolcrib.providers.scripted import ScriptedProvider, calls


class Recorder:
    """Says yes, and remembers what was asked."""

    def __init__(self) -> None:
        self.requests: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        self.requests.append(request)
        return ApprovalAnswer(choice="once", decided_by="user")


async def test_plan_mode_offers_and_runs_only_what_reads_until_it_ends(
    make_agent: MakeAgent, runtime: Any, add_tool: Any
) -> None:
    """The mode is a policy of the runtime: it holds for undeclared tools, and a switch holds from the next call on."""
    ran: list[str] = []
    for name, effects in (("looks", (Effect("read", "x"),)), ("silent", None), ("writes", (Effect("write", "x"),))):
        add_tool(runtime, name, lambda args, name=name, **kwargs: ran.append(name) or "ok", effects=effects)
    model = ScriptedProvider([calls("silent"), calls("writes"), calls("looks"), "1. Do it.", calls("silent"), "Done."])
    agent = make_agent(model=model, mode="plan")
    results: list[CallFinished] = []

    def hear(event: AnyEvent) -> None:
        if isinstance(event, CallFinished):
            results.append(event)

    planned = await agent.run("plan it", on_event=hear)
    agent.mode = "auto-edit"
    done = await agent.run("carry it out", on_event=hear)

    assert (planned.outcome, done.outcome) == ("answered", "answered")
    assert [one.error_type for one in results] == ["plan_mode", "plan_mode", "", ""]
    assert ran == ["looks", "silent"]
    first, last = model.requests[0], model.requests[-1]
    assert "Plan mode is on" in first.system
    assert "Plan mode is on" not in last.system
    offered = [{tool["function"]["name"] for tool in one.definitions} for one in (first, last)]
    assert offered == [{"looks"}, {"looks", "silent", "writes"}]


@pytest.mark.parametrize("name", ["write_file", "patch"])
async def test_the_question_about_an_edit_has_its_diff(tmp_path: Path, name: str) -> None:
    """Any approver gets it, not only the one at a terminal; nothing is written before the answer."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("one\ntwo\n")
    arguments = {
        "write_file": {"path": "a.txt", "content": "one\n2\n"},
        "patch": {"mode": "replace", "path": "a.txt", "old_string": "two", "new_string": "2"},
    }[name]
    person = Recorder()
    model = ScriptedProvider([calls(name, arguments), "Done."])
    host = AgentHost(home=tmp_path / "home", approver=person, workspace=work, model=model, entry_point="interactive")
    async with host:
        agent = Agent(host=host, model=model, toolsets=["file"], cwd=work, mode="ask")
        await agent.run("go")

    (request,) = person.requests
    assert "-two\n+2" in request.diff
    assert not request.may_be_permanent
    assert (work / "a.txt").read_text() == "one\n2\n"


async def test_what_is_steered_after_the_last_answer_is_reported_and_dropped(make_agent: MakeAgent) -> None:
    """The next question is about something else."""
    model = ScriptedProvider(["First.", "Second."])
    agent = make_agent(model=model)
    heard: list[AnyEvent] = []

    def hear(event: AnyEvent) -> None:
        heard.append(event)
        if type(event).__name__ == "RunStarted":
            agent.interrupt()
            agent.steer("too late")

    await agent.run("one", on_event=hear)
    await agent.run("two")

    assert [event.text for event in heard if isinstance(event, SteeringDropped)] == ["too late"]
    assert "too late" not in str(model.requests[-1].messages)


@pytest.mark.parametrize(
    ("provider", "model", "price"),
    [
        ("anthropic", "claude-sonnet-4-5-20250929", 3),
        ("anthropic", "claude-opus-4-1", 15),
        ("openai", "gpt-4o-2024-08-06", 2.5),
        ("openai", "gpt-4o-audio-preview", None),
        ("custom", "gpt-4o", None),
        ("embedded", "anything", 0),
    ],
)
def test_only_known_models_have_a_price(provider: str, model: str, price: float | None) -> None:
    """A dated version costs what its model does; a model of the same name elsewhere may cost something else."""
    found = prices_of(provider, model, {})

    assert (None if found is None else found.input) == price
