"""The clarify tool, called as a model calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.dispatch.effects import access_set, effects_of
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover
from toolcrib.tools.clarify import clarify  # noqa: F401 - registers the tool

MakeRuntime = Callable[..., Runtime]


class Person:
    """Answers every question with the same words, and keeps the questions."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        self.asked.append((question, choices))
        return self.answer


def make(make_runtime: MakeRuntime, **options: Any) -> Runtime:
    return make_runtime(registry=ToolRegistry(parent=default_registry), **options)


async def test_the_answer_of_the_person_reaches_the_model(make_runtime: MakeRuntime) -> None:
    """The question goes to the front end of the session, and nobody is asked for permission to ask it."""
    person, approver = Person("the second"), ScriptedApprover()
    runtime = make(make_runtime, services={"asker": person}, approver=approver)

    result = await runtime.call("clarify", {"question": "Which one?", "choices": ["a", "b"]})

    assert json.loads(result.text) == {
        "question": "Which one?",
        "choices_offered": ["a", "b"],
        "user_response": "the second",
    }
    assert person.asked == [("Which one?", ("a", "b"))]
    assert approver.asked == []


async def test_a_question_may_be_open(make_runtime: MakeRuntime) -> None:
    """Without choices the person answers freely."""
    person = Person("In Brest")
    runtime = make(make_runtime, services={"asker": person})

    result = await runtime.call("clarify", {"question": "Where?"})

    assert json.loads(result.text)["choices_offered"] == []
    assert person.asked == [("Where?", ())]


async def test_without_a_front_end_the_model_is_told_to_decide(make_runtime: MakeRuntime) -> None:
    """Where nobody can be asked, the call is an error that says how to go on."""
    runtime = make(make_runtime)

    result = await runtime.call("clarify", {"question": "Where?"})

    assert result.is_error
    assert "no user can answer" in result.text
    assert "decide yourself" in result.text


async def test_more_than_four_choices_are_refused(make_runtime: MakeRuntime) -> None:
    """The person sees at most four choices; blank questions are no questions."""
    person = Person("x")
    runtime = make(make_runtime, services={"asker": person})

    many = await runtime.call("clarify", {"question": "Which?", "choices": list("abcde")})
    blank = await runtime.call("clarify", {"question": "  "})

    assert many.is_error
    assert blank.is_error
    assert person.asked == []


async def test_a_question_runs_beside_nothing(make_runtime: MakeRuntime) -> None:
    """A person has one pair of eyes: a question is never part of a parallel group."""
    entry = default_registry.get_entry("clarify")
    assert entry is not None
    runtime = make(make_runtime)

    footprint = effects_of(entry, {"question": "?"}, runtime.context())

    assert access_set(footprint, "").alone
    assert entry.toolset == "clarify"
