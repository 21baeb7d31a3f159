"""The embedded model itself: real weights, the real engine, the real SDK."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.providers.embedded_weights import cached_store, cached_weights
from toolcrib.core.cancel import CancelToken
from toolcrib.core.messages import Message, user_message
from toolcrib.core.models import Delta, ModelError, ModelRequest, Notice, TextDelta
from toolcrib.providers.embedded.provider import EmbeddedProvider, ModelEngine, start_engine

pytestmark = pytest.mark.services

LIMIT_SECONDS = 120
SYSTEM = "You are a helpful assistant on the user's computer."
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get current weather for a location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "City name"},
                "units": {"type": "string", "enum": ["metric", "imperial"]},
            },
            "required": ["location"],
        },
    },
}
TERMINAL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a shell command (bash) and get its output and exit code.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command line, as for bash"}},
            "required": ["command"],
        },
    },
}
LONG = "Write a very long story about a dragon and a knight, in many chapters."


@pytest.fixture(scope="module")
def engine() -> Iterator[ModelEngine]:
    """The engine with the default model."""
    started = start_engine(cached_weights(), CancelToken())
    yield started
    started.close()


@pytest.fixture
async def provider() -> AsyncIterator[EmbeddedProvider]:
    cached_weights()
    made = EmbeddedProvider(store=cached_store())
    yield made
    await made.close()


def request(*messages: Message | str, **options: Any) -> ModelRequest:
    told = [user_message(one) if isinstance(one, str) else one for one in messages]
    return ModelRequest(model="", system=SYSTEM, messages=told, **options)


def nobody(delta: Delta) -> None:
    """Discards the stream."""


def listens(address: str) -> bool:
    place = urlsplit(address)
    try:
        socket.create_connection((place.hostname or "", place.port or 0), timeout=5).close()
    except OSError:
        return False
    return True


def test_the_sdk_streams_a_native_call_with_the_right_arguments(engine: ModelEngine) -> None:
    """With fences in its template the model's own calls arrive as tool-call deltas."""
    with openai.OpenAI(base_url=engine.address.base_url, api_key=engine.address.api_key, max_retries=0) as client:
        chunks = client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[WEATHER],  # type: ignore[list-item]
            temperature=0,
            stream=True,
        )
        deltas = [
            call.function
            for chunk in chunks
            for choice in chunk.choices
            for call in choice.delta.tool_calls or ()
            if call.function is not None
        ]

    assert "".join(delta.name or "" for delta in deltas) == "get_weather"
    assert "Paris" in json.loads("".join(delta.arguments or "" for delta in deltas))["location"]
    assert len(deltas) > 2


def test_others_on_this_machine_are_refused(engine: ModelEngine) -> None:
    """Without this process's key the port serves nothing."""
    with (
        openai.OpenAI(base_url=engine.address.base_url, api_key="guessed", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])


async def test_a_question_becomes_a_call_and_its_result_an_answer(
    provider: EmbeddedProvider, capfd: pytest.CaptureFixture[str]
) -> None:
    """The requested tool is called with the right city, and its result is put into words, without noise."""
    tools = [TERMINAL, WEATHER]
    question = user_message("Use the weather tool for London")
    seen: list[Delta] = []

    called = await provider.complete(request(question, tools=tools), seen.append)
    [call] = called.message.tool_calls
    result = Message(
        role="tool", call_id=call.id, name=call.name, content='{"temperature": 11.2, "conditions": "light rain"}'
    )
    worded = await provider.complete(request(question, called.message, result, tools=tools), seen.append)

    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"location": "London"})
    assert "11.2" in worded.message.text
    assert worded.message.tool_calls == ()
    assert worded.usage.input_tokens > 0
    assert (worded.provider, worded.model) == ("embedded", "qwen2.5-coder-0.5b")
    assert [delta.message for delta in seen if isinstance(delta, Notice)] == [
        "loading Qwen2.5-Coder-0.5B-Instruct (q4)",
        "reading the prompt",
        "choosing a tool",
        "reading the prompt",
    ]
    assert len([delta for delta in seen if isinstance(delta, TextDelta)]) > 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How much disk space is free here? Use the terminal tool.", "df"),
        ('Run the command "uname -a".', "uname"),
        ("Hello", None),
        ("Tell me a joke.", None),
    ],
)
async def test_tools_are_called_when_needed_and_left_alone_otherwise(
    provider: EmbeddedProvider, question: str, expected: str | None
) -> None:
    """A command runs if one is requested; small talk runs nothing."""
    response = await provider.complete(request(question, tools=[TERMINAL, WEATHER]), nobody)

    if expected is None:
        assert response.message.tool_calls == ()
        assert response.message.text
    else:
        [call] = response.message.tool_calls
        assert call.name == "terminal"
        assert expected in json.loads(call.arguments)["command"]


async def test_cancelling_in_the_middle_of_an_answer_frees_the_engine(provider: EmbeddedProvider) -> None:
    """The next question is answered at once, not after the rest of the story."""
    speaking = asyncio.Event()
    await provider.complete(request("Hello"), nobody)

    asking = asyncio.create_task(provider.complete(request(LONG), lambda delta: speaking.set()))
    await asyncio.wait_for(speaking.wait(), LIMIT_SECONDS)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    began = time.monotonic()
    response = await provider.complete(request("Hello", max_output_tokens=3), nobody)
    short = time.monotonic() - began
    began = time.monotonic()
    await provider.complete(request(LONG, max_output_tokens=100), nobody)

    assert response.message.text
    assert short < time.monotonic() - began


async def test_closing_in_the_middle_of_an_answer_does_not_hang(provider: EmbeddedProvider) -> None:
    """The waiting caller gets an error, and the provider can be used again."""
    speaking = asyncio.Event()
    asking = asyncio.create_task(provider.complete(request(LONG), lambda delta: speaking.set()))
    await asyncio.wait_for(speaking.wait(), LIMIT_SECONDS)

    await asyncio.wait_for(provider.close(), 10)

    with pytest.raises((ModelError, asyncio.CancelledError)):
        await asyncio.wait_for(asking, LIMIT_SECONDS)
    assert (await provider.complete(request("Hello"), nobody)).message.text


def test_closing_ends_the_process() -> None:
    """Nothing listens any more, and closing twice does no harm."""
    engine = start_engine(cached_weights("smollm2-135m"), CancelToken())
    assert listens(engine.address.base_url)

    engine.close()
    engine.close()

    assert not engine.runs
    assert not listens(engine.address.base_url)


START_AND_WAIT = """
import sys, time
from tests.providers.embedded_weights import cached_weights
from toolcrib.core.cancel import CancelToken
from toolcrib.providers.embedded.provider import start_engine
engine = start_engine(cached_weights("smollm2-135m"), CancelToken())
print(engine.address.base_url, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, None], ids=["killed", "ended"])
def test_the_engine_ends_with_its_parent(how: signal.Signals | None) -> None:
    """However the parent ends, without closing anything, the engine ends too."""
    cached_weights("smollm2-135m")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    )
    assert parent.stdout is not None
    address = parent.stdout.readline().strip()
    assert listens(address)

    if how is not None:
        parent.send_signal(how)
    parent.communicate(timeout=LIMIT_SECONDS)

    deadline = time.monotonic() + 20
    while listens(address) and time.monotonic() < deadline:
        pass
    assert not listens(address)


def engine_processes() -> set[int]:
    """The engines that this process has started, from any of its threads."""
    children = " ".join(file.read_text() for file in Path("/proc/self/task").glob("*/children")).split()
    return {int(pid) for pid in children if b"serve.py" in Path(f"/proc/{pid}/cmdline").read_bytes()}


async def test_an_engine_that_died_is_started_again() -> None:
    """The next question after a crash is answered."""
    cached_weights("smollm2-135m")
    provider = EmbeddedProvider(model="smollm2-135m", store=cached_store())
    notices: list[Delta] = []
    others = engine_processes()
    try:
        await provider.complete(request("Hello", max_output_tokens=3), notices.append)
        [ours] = engine_processes() - others
        os.kill(ours, signal.SIGKILL)
        response = await provider.complete(request("Hello", max_output_tokens=3), notices.append)
    finally:
        await provider.close()

    assert response.message.text
    assert len([one for one in notices if isinstance(one, Notice) and one.kind == "loading"]) == 2


async def test_the_smallest_model_keeps_to_a_schema() -> None:
    """However little it knows, its answer has the requested form, and it streams."""
    cached_weights("smollm2-135m")
    provider = EmbeddedProvider(model="smollm2-135m", store=cached_store())
    seen: list[Delta] = []
    schema = {
        "type": "object",
        "properties": {"verdict": {"enum": ["safe", "unsafe"]}},
        "required": ["verdict"],
        "additionalProperties": False,
    }
    try:
        judged = await provider.complete(request("Is `ls` safe?", response_schema=schema), nobody)
        called = await provider.complete(request("Use the weather tool for London", tools=[WEATHER]), nobody)
        await provider.complete(request("Tell me a story about a dragon.", max_output_tokens=20), seen.append)
    finally:
        await provider.close()

    assert json.loads(judged.message.text)["verdict"] in ("safe", "unsafe")
    assert [call.name for call in called.message.tool_calls] == ["get_weather"]
    assert "location" in json.loads(called.message.tool_calls[0].arguments)
    assert len([delta for delta in seen if isinstance(delta, TextDelta)]) > 5
