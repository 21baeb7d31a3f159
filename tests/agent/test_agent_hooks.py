"""Hooks and middleware around a conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.agent.scripted_requests import requests_of
from toolcrib.core.models import ModelError
from toolcrib.hooks.specs import HOOKS
from toolcrib.providers.scripted import calls
from toolcrib.runtime import Runtime

MakeAgent = Callable[..., Any]
OF_A_RUN = [
    "on_session_start",
    "pre_llm_call",
    "pre_api_request",
    "post_api_request",
    "pre_api_request",
    "post_api_request",
    "pre_verify",
    "transform_llm_output",
    "post_llm_call",
    "on_session_end",
]


async def test_every_hook_of_a_run_is_fired_with_the_keywords_of_its_contract(
    make_agent: MakeAgent, runtime: Runtime, add_tool: Callable[..., None]
) -> None:
    """Hooks hear the story in order, each with all that the contract promises."""
    add_tool(runtime, "echo", lambda args, **_: "x")
    heard: list[tuple[str, dict[str, Any]]] = []
    for name in (*dict.fromkeys(OF_A_RUN), "on_session_finalize"):
        runtime.hooks.register(name, lambda _name=name, **keywords: heard.append((_name, keywords)))
    agent = make_agent(calls("echo"), "done")

    await agent.run("go")
    await agent.close()

    assert [name for name, _ in heard] == [*OF_A_RUN, "on_session_finalize"]
    for name, keywords in heard:
        if name != "on_session_finalize":
            assert set(HOOKS[name].keywords) <= {*keywords, "_name"}


async def test_context_of_a_hook_becomes_part_of_the_question(make_agent: MakeAgent, runtime: Runtime) -> None:
    """What pre_llm_call answers, as text or under `context`, is sent with the question and kept."""
    runtime.hooks.register("pre_llm_call", lambda **_: {"context": "It is Sunday."})

    async def second(**_: Any) -> str:
        return "It rains."

    runtime.hooks.register("pre_llm_call", second)
    agent = make_agent("I see.")

    await agent.run("Hello")

    assert agent.messages[0].text == "Hello\n\nIt is Sunday.\n\nIt rains."


async def test_an_answer_can_be_rewritten_and_sent_back(make_agent: MakeAgent, runtime: Runtime) -> None:
    """pre_verify sends the model back to work, transform_llm_output rewrites what it says in the end."""
    runtime.hooks.register(
        "pre_verify",
        lambda attempt, **_: {"action": "continue", "message": "Run the tests."} if attempt == 0 else None,
    )
    runtime.hooks.register("transform_llm_output", lambda response_text, **_: response_text.upper())
    agent = make_agent("done?", "done.")

    result = await agent.run("Do it")

    assert result.answer == "DONE."
    assert [message.text for message in agent.messages if message.role == "user"] == ["Do it", "Run the tests."]


async def test_failing_hooks_change_nothing(make_agent: MakeAgent, runtime: Runtime) -> None:
    """A hook that raises is passed over."""

    def fail(**_: Any) -> None:
        raise RuntimeError("broken hook")

    for name in dict.fromkeys(OF_A_RUN):
        runtime.hooks.register(name, fail)

    assert (await make_agent("fine").run("go")).answer == "fine"


async def test_a_failed_request_is_told(make_agent: MakeAgent, runtime: Runtime) -> None:
    """api_request_error hears the sentence that the person sees."""
    heard: list[str] = []
    runtime.hooks.register("api_request_error", lambda error, **_: heard.append(error))

    await make_agent(ModelError("no credit left")).run("go")

    assert heard == ["no credit left"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_middleware_rewrites_requests_and_wraps_their_execution(
    make_agent: MakeAgent, runtime: Runtime, is_async: bool
) -> None:
    """llm_request changes what is sent; llm_execution runs the rest once and may change what comes back."""
    runtime.hooks.register_middleware("llm_request", lambda request, **_: {"request": {**request, "system": "Short."}})
    if is_async:

        async def wrap(next_call: Any, **_: Any) -> Any:
            response = await next_call()
            return {"message": {"role": "assistant", "content": f"({response.message.text})"}}

    else:

        def wrap(next_call: Any, **_: Any) -> Any:
            response = next_call()
            return {"message": {"role": "assistant", "content": f"({response.message.text})"}}

    runtime.hooks.register_middleware("llm_execution", wrap)
    agent = make_agent("hello")

    result = await agent.run("go")

    assert requests_of(agent)[0].system == "Short."
    assert result.answer == "(hello)"
    assert len(requests_of(agent)) == 1


async def test_middleware_that_fails_is_passed_over(make_agent: MakeAgent, runtime: Runtime) -> None:
    """A layer that raises, before or after the rest, does not cost the answer and does not ask twice."""

    async def before(next_call: Any, **_: Any) -> Any:
        raise RuntimeError("broken")

    async def after(next_call: Any, **_: Any) -> Any:
        await next_call()
        raise RuntimeError("broken")

    runtime.hooks.register_middleware("llm_execution", before)
    runtime.hooks.register_middleware("llm_execution", after)
    agent = make_agent("hello")

    assert (await agent.run("go")).answer == "hello"
    assert len(requests_of(agent)) == 1
