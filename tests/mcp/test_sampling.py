"""Requests of servers to the model: what reaches it, what they are told, and what holds them back."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CreateMessageRequestParams
from pydantic import ValidationError

from tests.mcp.real_servers import EVERY_ERA, answer_to, asking, eventually
from toolcrib.agent.host import AgentHost
from toolcrib.config.mcp_settings import McpSamplingSettings
from toolcrib.core.messages import Audio, Image, Text
from toolcrib.core.models import Emit, ModelError, ModelProfile, ModelRequest, ModelResponse, Usage
from toolcrib.mcp.client.sampling import SamplingRequestError, choose_model, cut_at_stop, to_messages
from toolcrib.testing import ScriptedApprover, ScriptedProvider, call, says

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 20).decode()
WEATHER = {"name": "weather", "description": "Tells it", "inputSchema": {"type": "object", "properties": {}}}
USE = {"type": "tool_use", "id": "u1", "name": "weather", "input": {"city": "Rome"}}
RESULT = {"type": "tool_result", "toolUseId": "u1", "content": [{"type": "text", "text": "sunny"}]}

Open = Callable[..., Any]


def said(text: str = "How are you?", role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": {"type": "text", "text": text}}


def request(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(messages) or [said()], "maxTokens": 100, **more}


@pytest.fixture
async def with_model(with_servers: Callable[..., Any]) -> AsyncIterator[Open]:
    """A runtime with a server `s`, and a model that plays these steps; sampling needs no question unless it is told."""
    workshops: list[AgentHost] = []

    async def make(
        era: str, *steps: Any, sampling: dict[str, Any] | None = None, provider: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        settings = {"ask": False, **(sampling or {})}
        runtime = await with_servers({"s": asking(era, sampling=settings)}, **options)
        model = provider or ScriptedProvider(steps)
        workshops.append(AgentHost(runtime=runtime, model=model))
        return runtime, model

    yield make
    for host in workshops:
        await host.close()


@EVERY_ERA
async def test_a_server_gets_an_answer_of_our_model(with_model: Open, era: str) -> None:
    """The model is asked exactly what the server says, within the limits, and nothing of ours goes with it."""
    runtime, model = await with_model(era, "I am fine.", sampling={"max_tokens_cap": 50})
    messages = [said("Hello"), said("Hello you", "assistant"), said()]

    answer = await answer_to(
        runtime, "sampling/createMessage", request(*messages, systemPrompt="Be brief", temperature=0.5)
    )

    [asked] = model.requests
    assert answer["content"] == {"type": "text", "text": "I am fine."}
    assert answer["role"] == "assistant"
    assert answer["stopReason"] == "endTurn"
    assert answer["model"] == "scripted"
    assert [(message.role, message.text) for message in asked.messages] == [
        ("user", "Hello"),
        ("assistant", "Hello you"),
        ("user", "How are you?"),
    ]
    assert (asked.system, asked.temperature, asked.max_output_tokens, asked.tools) == ("Be brief", 0.5, 50, ())


@EVERY_ERA
async def test_a_plain_runtime_asks_the_configured_model(
    with_servers: Callable[..., Any], tmp_path: Path, era: str
) -> None:
    """Without an agent the model of the config answers."""
    (tmp_path / "script.json").write_text(json.dumps([{"say": "From the script."}]))
    config = {
        "model": {"provider": "scripted", "default": "any"},
        "providers": {"scripted": {"base_url": str(tmp_path / "script.json")}},
    }
    runtime = await with_servers({"s": asking(era, sampling={"ask": False})}, config)

    answer = await answer_to(runtime, "sampling/createMessage", request())
    failed = await answer_to(runtime, "sampling/createMessage", request())

    assert answer["content"]["text"] == "From the script."
    assert "could not answer" in str(failed["error"])


@EVERY_ERA
async def test_a_person_is_asked_first(with_model: Open, era: str) -> None:
    """A request costs something: who is there is asked, sees what it is, and his no is told to the server."""
    approver = ScriptedApprover("once", "deny")
    runtime, model = await with_model(
        era, "Yes.", "Never said.", sampling={"ask": True}, approver=approver, entry_point="interactive"
    )

    agreed = await answer_to(runtime, "sampling/createMessage", request(said("What is 2 + 2?")))
    refused = await answer_to(runtime, "sampling/createMessage", request())

    assert agreed["content"]["text"] == "Yes."
    assert "What is 2 + 2?" in approver.asked[0].command
    assert "the MCP server 's'" in approver.asked[0].dangers[0].reason
    assert "error" in refused
    assert len(model.requests) == 1


@EVERY_ERA
async def test_who_agrees_for_the_session_is_asked_once(with_model: Open, era: str) -> None:
    """An answer for the session covers later requests of the server in it, and in no other session."""
    approver = ScriptedApprover("session", "deny")
    runtime, _ = await with_model(
        era, *["Yes."] * 3, sampling={"ask": True}, approver=approver, entry_point="interactive"
    )

    answers = [
        await answer_to(runtime, "sampling/createMessage", request(), ctx=runtime.context(session_id=session))
        for session in ("one", "one", "two")
    ]

    assert ["error" in answer for answer in answers] == [False, False, True]
    assert len(approver.asked) == 2


@EVERY_ERA
async def test_where_nobody_can_be_asked_it_is_refused(with_model: Open, era: str) -> None:
    """Without a person, and without a word in the config, no server spends anybody's money."""
    runtime, model = await with_model(era, "Never said.", sampling={"ask": True})

    answer = await answer_to(runtime, "sampling/createMessage", request())

    assert "not approved" in str(answer["error"])
    assert model.requests == []


async def test_a_server_that_may_not_ask_is_not_told_that_it_could(with_model: Open) -> None:
    """`sampling: false` takes the capability away, and a request is an error."""
    runtime, _ = await with_model("2025-11-25", "Never said.", sampling={"enabled": False})
    able, _ = await with_model("2025-11-25")
    without_tools, _ = await with_model("2025-11-25", sampling={"max_tool_rounds": 0})

    answer = await answer_to(runtime, "sampling/createMessage", request())

    assert "error" in answer
    assert "sampling" not in await client_of(runtime)
    assert (await client_of(able))["sampling"] == {"tools": {}}
    assert (await client_of(without_tools))["sampling"] == {}
    assert set(await client_of(able)) >= {"elicitation", "roots"}


async def client_of(runtime: Any) -> Any:
    result = await runtime.call("mcp__s__client", {})
    return json.loads(json.loads(result.text)["result"])


@EVERY_ERA
async def test_requests_in_a_minute_are_counted(with_model: Open, era: str) -> None:
    """One request more than `max_rpm` is refused, and the server is told when it may ask again."""
    runtime, model = await with_model(era, *["Yes."] * 3, sampling={"max_rpm": 2})

    answers = [await answer_to(runtime, "sampling/createMessage", request()) for _ in range(3)]

    assert ["error" in answer for answer in answers] == [False, False, True]
    assert "2 requests per minute" in str(answers[2]["error"])
    assert len(model.requests) == 2


@EVERY_ERA
async def test_reconnecting_gives_no_new_minute(with_model: Open, era: str) -> None:
    """What a server has asked counts on, whatever happens to its connection."""
    runtime, _ = await with_model(era, *["Yes."] * 3, sampling={"max_rpm": 1})

    first = await answer_to(runtime, "sampling/createMessage", request())
    pid = runtime.mcp.servers()[0].pid
    await asyncio.to_thread(runtime.mcp.reconnect, "s")
    await eventually(lambda: runtime.mcp.servers()[0].pid not in (pid, None))
    second = await answer_to(runtime, "sampling/createMessage", request())

    assert "error" not in first
    assert "error" in second


class Silent(ScriptedProvider):
    """A model that never answers, and says when it was told to stop."""

    ended = False

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        self.requests.append(request)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.ended = True
        raise AssertionError


@EVERY_ERA
async def test_a_model_that_takes_too_long_is_given_up(with_model: Open, era: str) -> None:
    """After `timeout` the server gets an error, the request is ended, and the connection stays."""
    runtime, model = await with_model(era, sampling={"timeout": 0.2}, provider=Silent())

    answer = await answer_to(runtime, "sampling/createMessage", request())

    assert "0.2 seconds" in str(answer["error"])
    assert model.ended
    assert "roots" in await answer_to(runtime, "roots/list")


@EVERY_ERA
async def test_a_call_that_is_cancelled_ends_its_request(with_model: Open, era: str) -> None:
    """Nobody pays for an answer that nobody waits for."""
    runtime, model = await with_model(era, provider=Silent())
    waiting = asyncio.ensure_future(answer_to(runtime, "sampling/createMessage", request()))
    await eventually(lambda: model.requests)

    waiting.cancel()

    await eventually(lambda: model.ended)


@EVERY_ERA
async def test_what_goes_wrong_at_the_model_is_an_error_without_details(with_model: Open, era: str) -> None:
    """A server learns that the model failed, not what addresses and keys we have; the connection stays."""
    failures = [ModelError("OPENAI_API_KEY is not set", kind="key"), RuntimeError("at http://secret.internal")]
    runtime, _ = await with_model(era, *failures, "Yes.")

    answers = [await answer_to(runtime, "sampling/createMessage", request()) for _ in range(3)]

    assert "could not answer (key)" in str(answers[0]["error"])
    assert "OPENAI_API_KEY" not in str(answers[0])
    assert "secret" not in str(answers[1])
    assert answers[2]["content"]["text"] == "Yes."


@EVERY_ERA
async def test_stop_sequences_end_the_answer(with_model: Open, era: str) -> None:
    """The answer ends before the first of them, whatever the provider can do."""
    runtime, _ = await with_model(era, "one END two STOP", "nothing of that")
    wanted = request(stopSequences=["STOP", "END"])

    stopped = await answer_to(runtime, "sampling/createMessage", wanted)
    whole = await answer_to(runtime, "sampling/createMessage", wanted)

    assert (stopped["content"]["text"], stopped["stopReason"]) == ("one ", "stopSequence")
    assert (whole["content"]["text"], whole["stopReason"]) == ("nothing of that", "endTurn")


@EVERY_ERA
async def test_images_and_audio_reach_models_that_take_them(with_model: Open, era: str) -> None:
    """Media are parts of the message for a model that knows them; for another one the server is told so."""
    image = {"role": "user", "content": {"type": "image", "data": PNG, "mimeType": "image/png"}}
    sound = {"role": "user", "content": {"type": "audio", "data": PNG, "mimeType": "audio/wav"}}
    able = ScriptedProvider(["I see and hear."], profile=ModelProfile(hears_audio=True))
    runtime, _ = await with_model(era, provider=able)
    blind, _ = await with_model(era, provider=ScriptedProvider(profile=ModelProfile(sees_images=False)))

    answer = await answer_to(runtime, "sampling/createMessage", request(image, sound))
    unseen = await answer_to(blind, "sampling/createMessage", request(image))
    unheard = await answer_to(blind, "sampling/createMessage", request(sound))

    first, second = able.requests[0].messages
    assert answer["content"]["text"] == "I see and hear."
    assert first.content == (Image(media_type="image/png", data=PNG),)
    assert second.content == (Audio(media_type="audio/wav", data=PNG),)
    assert "does not support images" in str(unseen["error"])
    assert "does not support audio" in str(unheard["error"])


@EVERY_ERA
async def test_a_model_may_use_the_tools_of_the_server(with_model: Open, era: str) -> None:
    """Its tool uses go back to the server, whose results come with the next request."""
    runtime, model = await with_model(era, says("Let me see.", call("weather", {"city": "Rome"}, id="u1")), "Sunny.")
    tools = {"tools": [WEATHER], "toolChoice": {"mode": "required"}}

    first = await answer_to(runtime, "sampling/createMessage", request(**tools))
    assistant = {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, USE]}
    second = await answer_to(
        runtime,
        "sampling/createMessage",
        request(said(), assistant, {"role": "user", "content": [RESULT]}, tools=[WEATHER]),
    )

    assert first["stopReason"] == "toolUse"
    assert first["content"] == [{"type": "text", "text": "Let me see."}, USE]
    assert model.requests[0].tool_choice == "required"
    assert [tool["function"]["name"] for tool in model.requests[0].tools] == ["weather"]
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant", "tool"]
    assert (model.requests[1].messages[2].text, model.requests[1].messages[2].name) == ("sunny", "weather")
    assert [block["text"] for block in second["content"]] == ["Sunny."]


@EVERY_ERA
async def test_rounds_of_tools_have_an_end(with_model: Open, era: str) -> None:
    """After `max_tool_rounds` the model has to answer with what it has."""
    runtime, model = await with_model(era, "At last.", sampling={"max_tool_rounds": 1})
    history = [said(), {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}]

    answer = await answer_to(runtime, "sampling/createMessage", request(*history, tools=[WEATHER]))
    forced = await answer_to(
        runtime, "sampling/createMessage", request(*history, tools=[WEATHER], toolChoice={"mode": "required"})
    )

    assert answer["content"][0]["text"] == "At last."
    assert model.requests[0].tool_choice == "none"
    assert "rounds" in str(forced["error"])


WRONG = {
    "no messages": {"messages": [], "maxTokens": 1},
    "use without result": request(said(), {"role": "assistant", "content": [USE]}),
    "result without use": request({"role": "user", "content": [RESULT]}),
    "result beside text": request(
        said(),
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [RESULT, {"type": "text", "text": "x"}]},
    ),
    "no tokens": request(maxTokens=0),
    "hot": request(temperature=7),
    "tool name": request(tools=[{**WEATHER, "name": "a b"}]),
    "same tools": request(tools=[WEATHER, WEATHER]),
    "image": request({"role": "user", "content": {"type": "image", "data": "?", "mimeType": "image/png"}}),
    "long": request(said("x" * 1_100_000)),
}


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_request_is_an_error_and_reaches_no_model(with_model: Open, wrong: str) -> None:
    """What does not fit the protocol, or is too much, is refused with the reason; the connection stays."""
    runtime, model = await with_model("2025-11-25", "Never said.")

    answer = await answer_to(runtime, "sampling/createMessage", WRONG[wrong])

    assert answer["error"]["code"] == -32602
    assert model.requests == []
    assert "roots" in await answer_to(runtime, "roots/list")


@EVERY_ERA
async def test_requests_are_logged_at_the_level_of_the_settings(
    with_model: Open, era: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Who asked which model, and what it used, is in the log."""
    answer = says("Yes.", usage=Usage(input_tokens=12, output_tokens=3))
    runtime, _ = await with_model(era, answer, sampling={"log_level": "warning"})

    with caplog.at_level(logging.DEBUG, "toolcrib.mcp.client.sampling"):
        await answer_to(runtime, "sampling/createMessage", request())

    [line] = [record for record in caplog.records if record.name == "toolcrib.mcp.client.sampling"]
    assert line.levelno == logging.WARNING
    assert "'s'" in line.getMessage()
    assert "12 tokens in, 3 out" in line.getMessage()


@EVERY_ERA
async def test_the_session_of_the_call_decides_about_the_model(with_model: Open, era: str) -> None:
    """A server gets the model that the session of its call talks to."""
    from toolcrib.agent.agent import Agent

    runtime, other = await with_model(era, "The other one.")
    own = ScriptedProvider(
        [says("", call("mcp__s__ask", {"method": "sampling/createMessage", "params": request()})), "My own.", "Done."]
    )
    host = AgentHost(runtime=runtime, model=other)
    agent = Agent(host=host, model=own, toolsets=["mcp-s"])

    result = await agent.run("Ask it")
    await agent.close()

    assert result.answer == "Done."
    assert any("My own." in message.text for message in agent.messages if message.role == "tool")
    assert other.requests == []


@pytest.mark.parametrize(
    ("allowed", "hints", "model"),
    [
        ([], ["gpt-9"], "small"),
        (["openai/gpt-9", "anthropic/claude"], ["Claude"], "anthropic/claude"),
        (["a/gpt-9-mini", "a/gpt-9"], ["a/gpt-9"], "a/gpt-9"),
        (["a/gpt-9"], ["unknown", "", "gpt"], "a/gpt-9"),
        (["a/gpt-9"], ["claude"], "small"),
    ],
)
def test_hints_count_only_among_allowed_models(allowed: list[str], hints: list[str], model: str) -> None:
    """A server chooses among the models that the user allows, by whole name or by a part; else it gets the set one."""
    assert choose_model(McpSamplingSettings(model="small", allowed_models=allowed), hints) == model


@given(st.text(), st.lists(st.text(max_size=3), max_size=4))
def test_nothing_after_a_stop_sequence_is_told(text: str, stops: list[str]) -> None:
    """The cut text begins the answer, and holds none of the sequences."""
    cut, was_stopped = cut_at_stop(text, stops)

    assert text.startswith(cut)
    assert not any(stop and stop in cut for stop in stops)
    assert was_stopped == (cut != text)


BLOCKS = st.sampled_from([{"type": "text", "text": "x"}, USE, RESULT, {**USE, "id": "u2"}])
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.lists(BLOCKS, max_size=3)}),
    max_size=5,
)


@given(MESSAGES)
def test_every_conversation_is_whole_or_refused(messages: list[dict[str, Any]]) -> None:
    """Each tool use that reaches a model has its result right after it, and each result its use."""
    try:
        made = to_messages(CreateMessageRequestParams.model_validate(request(*messages), by_name=False))
    except (SamplingRequestError, ValidationError):
        return
    waiting: list[str] = []
    for message in made:
        if message.role == "tool":
            assert message.call_id in waiting
            waiting.remove(message.call_id)
        else:
            assert waiting == []
            waiting = [one.id for one in message.tool_calls]
    assert waiting == []
    assert all(
        isinstance(part, Text) for message in made if not isinstance(message.content, str) for part in message.content
    )


class Broken(ScriptedProvider):
    """A provider that fails where nobody expects it."""

    def profile(self, model: str) -> ModelProfile:
        raise RuntimeError("out of order")


@EVERY_ERA
async def test_a_provider_out_of_order_leaves_the_connection(with_model: Open, era: str) -> None:
    """Whatever a provider raises is an error for that request alone."""
    runtime, _ = await with_model(era, provider=Broken())

    answer = await answer_to(runtime, "sampling/createMessage", request())

    assert "error" in answer
    assert "roots" in await answer_to(runtime, "roots/list")
