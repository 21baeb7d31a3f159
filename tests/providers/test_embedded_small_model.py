"""How a very small model is led to a tool and to words, with a scripted model in its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.core.messages import Message, RequestedCall, user_message
from toolcrib.core.models import CallDelta, Delta, ModelRequest, ModelResponse, Notice, TextDelta
from toolcrib.providers.embedded.everyday_tools import (
    ANSWER,
    EVERYDAY_TOOLS,
    is_small_talk,
    named_tools,
    nearest_examples,
)
from toolcrib.providers.embedded.small_model import (
    SmallModel,
    candidates,
    instruction,
    lean,
    may_become_a_call,
    parse_choice,
    reply_schema,
    take_calls,
)
from toolcrib.providers.scripted import ScriptedProvider, Step


def tool(name: str, description: str, required: tuple[str, ...] = (), **parameters: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TERMINAL = tool(
    "terminal",
    "Run a shell command and get its output. Long text that follows is left out.",
    ("command",),
    command={"type": "string", "description": "The command line"},
    background={"type": "boolean", "description": "Let it go on while the terminal is used"},
    timeout={"type": "integer", "description": "The most seconds it may take"},
)
WEATHER = tool(
    "get_weather",
    "Get current weather for a location",
    ("location",),
    location={"type": "string"},
    units={"type": "string", "enum": ["metric", "imperial"]},
)
READ = tool("read_file", "Read a text file", ("path",), path={"type": "string", "description": "Path of the file"})
TOOLS = [TERMINAL, WEATHER, READ]


def names(tools: list[dict[str, Any]]) -> list[str]:
    return [one["function"]["name"] for one in tools]


async def ask(*messages: Message | str, steps: list[Step], **options: Any) -> tuple[ModelResponse, Any, list[Delta]]:
    """The answer, the requests that the model got, and the stream."""
    engine = ScriptedProvider(steps)
    seen: list[Delta] = []
    told = [user_message(one) if isinstance(one, str) else one for one in messages]
    request = ModelRequest(model="m", messages=told, system="Be kind.", **{"tools": TOOLS, **options})
    return await SmallModel(engine).answer(request, seen.append), engine.requests, seen


def called(result: str, status: Any = "ok") -> list[Message]:
    call = RequestedCall(id="c1", name="terminal", arguments='{"command": "df"}')
    return [
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", call_id="c1", name="terminal", content=result, status=status),
    ]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Use the weather tool for London", ["get_weather"]),
        ("How much disk space is free here? Use the terminal tool.", ["terminal"]),
        ("List the files with the terminal", ["terminal"]),
        ("call read_file on a.txt", ["read_file"]),
        ("What is a terminal?", []),
        ("How is the weather?", []),
        ("", []),
    ],
)
def test_a_tool_that_is_asked_for_by_name_is_known(question: str, expected: list[str]) -> None:
    """Asking for a tool counts; mentioning its word does not."""
    assert names(named_tools(question, TOOLS)) == expected


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("What is the weather in Paris?", "get_weather"),
        ("Run the command uname -a", "terminal"),
        ("What does /etc/hostname say?", "read_file"),
        ("Show setup.py", "read_file"),
    ],
)
def test_tools_that_share_words_with_the_question_are_candidates(question: str, first: str) -> None:
    """The words of names and descriptions decide, and a path points at files."""
    assert names(candidates(question, TOOLS))[0] == first


@pytest.mark.parametrize("question", ["Hello", "Tell me a joke.", "What is 2 + 2?", "Thank you", "Who are you?", ""])
def test_small_talk_has_no_candidates(question: str) -> None:
    """A question that shares no word with any tool points at none."""
    assert candidates(question, TOOLS) == []


def test_optional_parameters_are_shown_only_when_the_question_speaks_of_them() -> None:
    """Required parameters stay; "use the terminal" is no reason to show one that mentions a terminal."""
    plain = lean(TOOLS, "Use the terminal tool and the weather tool")
    with_units = lean(TOOLS, "How warm is it, in imperial units?")
    with_timeout = lean(TOOLS, "Run it with a timeout of 5")

    assert [list(one["function"]["parameters"]["properties"]) for one in plain] == [["command"], ["location"], ["path"]]
    assert "units" in with_units[1]["function"]["parameters"]["properties"]
    assert "timeout" in with_timeout[0]["function"]["parameters"]["properties"]
    assert plain[0]["function"]["description"] == "Run a shell command and get its output."


def test_the_schema_leaves_the_choice_between_the_tools_and_an_answer() -> None:
    """Each alternative fixes the name and contains the tool's own parameters; a single one needs no choice."""
    schema = reply_schema(TOOLS[:2], may_answer=True)

    assert [one["properties"]["name"]["const"] for one in schema["anyOf"]] == ["terminal", "get_weather", "answer"]
    assert reply_schema([WEATHER], may_answer=False)["properties"]["name"] == {"const": "get_weather"}
    assert "- answer:" in instruction(TOOLS, may_answer=True)
    assert "- answer:" not in instruction(TOOLS, may_answer=False)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"name": "a", "arguments": {"x": 1}}', ("a", '{"x": 1}')),
        ('{"name": "answer"}', None),
        ('{"name": "a", "arguments": {"x": ', None),
        ("[]", None),
    ],
)
def test_a_reply_is_read(reply: str, expected: tuple[str, str] | None) -> None:
    """A call, or nothing if no tool is needed or the reply was cut off."""
    assert parse_choice(reply) == expected


@pytest.mark.parametrize(
    ("text", "expected", "rest"),
    [
        ('```json\n{"name": "t", "arguments": {"a": 1}}\n```', [("t", {"a": 1})], ""),
        ('Sure.\n```json\n{"name": "t", "arguments": {}}\n```', [("t", {})], "Sure."),
        ('{"name": "t", "arguments": {"a": "b"}}', [("t", {"a": "b"})], ""),
        ('<tool_call>\n{"name": "t", "arguments": {}}\n</tool_call>', [("t", {})], ""),
        ('```json\n{"name": "t", "arguments": {"a": [1, 2,],}}\n```', [("t", {"a": [1, 2]})], ""),
        ('{"name": "t", "arguments": {"a": 1}', [("t", {"a": 1})], ""),
        ('{"name": "t", "arguments": {"a": "two\nlines"}}', [("t", {"a": "two\nlines"})], ""),
        ('{"name": "t", "arguments": {"a": "cut of', [], '{"name": "t", "arguments": {"a": "cut of'),
        ('{"name": "Ann", "age": 3}', [], '{"name": "Ann", "age": 3}'),
        ('```python\nprint("hi")\n```', [], '```python\nprint("hi")\n```'),
        ("Hello", [], "Hello"),
    ],
)
def test_calls_written_as_text_are_found(text: str, expected: list[Any], rest: str) -> None:
    """Only a pure call counts; slips are repaired if they leave no doubt."""
    left, calls = take_calls(text)

    assert [(call.name, json.loads(call.arguments)) for call in calls] == expected
    assert left == rest


@given(st.text())
def test_any_text_can_be_searched_for_calls(text: str) -> None:
    """Whatever a model writes, nothing is lost if no call is found."""
    left, calls = take_calls(text)

    assert calls or left == text


@given(st.sampled_from(['{"name": 1}', "```json\n{}\n```", "<tool_call>{}"]), st.integers(0, 14))
def test_the_beginning_of_a_call_is_held_back(text: str, length: int) -> None:
    """Every beginning of a call may become one."""
    assert may_become_a_call(text[:length])


async def test_a_named_tool_must_be_called() -> None:
    """The schema forces a call of only that tool; the model's text is not shown."""
    reply = '{"name": "get_weather", "arguments": {"location": "London"}}'

    response, [request], seen = await ask("Use the weather tool for London", steps=[reply])

    assert [(call.name, call.arguments) for call in response.message.tool_calls] == [
        ("get_weather", '{"location": "London"}')
    ]
    assert response.stop == "tool_calls"
    assert response.message.tool_calls[0].id
    assert request.response_schema["properties"]["name"] == {"const": "get_weather"}
    assert request.tools == ()
    assert [delta.message if isinstance(delta, Notice) else type(delta) for delta in seen] == [
        "reading the prompt",
        "choosing a tool",
        CallDelta,
    ]


async def test_small_talk_is_answered_without_tools() -> None:
    """Nothing about tools is sent, so it is quick and calls nothing."""
    response, [request], seen = await ask("Hello", steps=["Hi there."])

    assert response.message.text == "Hi there."
    assert (request.tools, request.response_schema, request.system) == ((), None, "Be kind.")
    assert seen == [Notice(kind="working", message="reading the prompt"), TextDelta("Hi there.")]


async def test_the_model_may_say_that_it_needs_no_tool() -> None:
    """Then the model is asked for words; both requests count as usage."""
    response, requests, _ = await ask("What is weather?", steps=['{"name": "answer"}', "Air that moves."])

    assert response.message.text == "Air that moves."
    assert len(requests) == 2
    assert requests[1].response_schema is None


async def test_a_result_is_put_into_words_without_tools() -> None:
    """After a result the model reads what was called in words, and only has to answer."""
    result = json.dumps({"output": "a 1\nb 2", "exit_code": 0, "error": None})

    response, [request], _ = await ask("Use the terminal tool", *called(result), steps=["There are two."])

    assert response.message.text == "There are two."
    assert request.tools == ()
    assert [message.role for message in request.messages] == ["user", "assistant", "user"]
    assert request.messages[1].text == 'I called terminal with {"command": "df"}.'
    assert request.messages[2].text.startswith("It returned:\na 1\nb 2\n\nWhat is the answer?")


async def test_a_long_result_is_cut_in_the_middle() -> None:
    """The model reads the beginning and the end, so that its first word does not take minutes."""
    _, [request], _ = await ask("Use the terminal tool", *called("a" * 9_000 + "z"), steps=["Fine."])

    told = request.messages[2].text
    assert len(told) < 3_000
    assert "aaa\n…\naaa" in told
    assert "az\n" in told


async def test_several_long_results_share_the_room_of_one() -> None:
    """However many tools were called, the model has no more to read."""
    _, [request], _ = await ask("Use the terminal tool", *called("a" * 9_000), *called("b" * 9_000), steps=["Fine."])

    assert sum(len(message.text) for message in request.messages) < 3_000
    assert all(f"{letter}\n…\n{letter}" in "".join(one.text for one in request.messages) for letter in "ab")


@pytest.mark.parametrize("reply", ["", '```json\n{"name": "terminal", "arguments": {"command": "df"}}\n```'])
async def test_a_model_without_words_lets_the_result_speak(reply: str) -> None:
    """Silence, or the same call once more, is replaced by the tool's output."""
    response, _, seen = await ask("Use the terminal tool", *called("77G free"), steps=[reply])

    assert response.message.text == "77G free"
    assert response.message.tool_calls == ()
    assert [delta for delta in seen if not isinstance(delta, Notice)] == [TextDelta("77G free")]


async def test_a_failed_call_is_tried_again_and_not_for_ever() -> None:
    """The first failure leads to another call, the second to words about it."""
    again = '{"name": "terminal", "arguments": {"command": "df -h"}}'
    failed = called("no such command", "error")

    first, [retry], _ = await ask("Use the terminal tool", *failed, steps=[again])
    second, [wording], _ = await ask("Use the terminal tool", *failed, *failed, steps=["It failed."])

    assert first.message.tool_calls[0].arguments == '{"command": "df -h"}'
    assert "It failed:\nno such command" in retry.messages[-1].text
    assert second.message.text == "It failed."
    assert "What went wrong?" in wording.messages[-1].text


async def test_a_call_that_comes_as_text_becomes_a_call() -> None:
    """A call is not shown as text, not even its beginning."""
    response, _, seen = await ask("Hello", steps=['```json\n{"name": "made_up", "arguments": {}}\n```'])

    assert [call.name for call in response.message.tool_calls] == ["made_up"]
    assert [type(delta) for delta in seen] == [Notice, CallDelta]


async def test_words_before_such_a_call_are_taken_back() -> None:
    """Text shown before the call was recognised is discarded."""
    text = 'Sure, I do.\n```json\n{"name": "terminal", "arguments": {}}\n```\n'

    response, _, seen = await ask("Hello", steps=[text])

    assert response.message.text == "Sure, I do."
    restart = next(at for at, delta in enumerate(seen) if isinstance(delta, Notice) and delta.kind == "restart")
    assert [type(delta) for delta in seen[restart + 1 :]] == [TextDelta, CallDelta]


@pytest.mark.parametrize("options", [{"tool_choice": "none"}, {"tools": ()}])
async def test_without_tools_the_model_only_speaks(options: dict[str, Any]) -> None:
    """A call that is not allowed stays text."""
    text = '{"name": "terminal", "arguments": {}}'

    response, _, _ = await ask("Use the terminal tool", steps=[text], **options)

    assert (response.message.text, response.message.tool_calls) == (text, ())


async def test_a_required_call_is_chosen_among_all_tools() -> None:
    """If no word points at a tool, all of them are in the schema, with no way around them."""
    _, [request], _ = await ask("Hello", steps=['{"name": "terminal", "arguments": {}}'], tool_choice="required")

    names_offered = [one["properties"]["name"]["const"] for one in request.response_schema["anyOf"]]
    assert names_offered == ["terminal", "get_weather", "read_file"]


async def test_a_schema_of_the_caller_goes_through() -> None:
    """A request for JSON, such as a verdict on a command, is not changed."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}

    response, [request], _ = await ask("Is it safe?", steps=['{"ok": true}'], response_schema=schema)

    assert (response.message.text, request.response_schema) == ('{"ok": true}', schema)


async def test_answers_are_bounded_and_without_chance() -> None:
    """A small model that digresses is cut off; a requested temperature is kept."""
    _, [plain], _ = await ask("Hello", steps=["Hi"])
    _, [wild], _ = await ask("Hello", steps=["Hi"], temperature=0.7, max_output_tokens=5)

    assert (plain.temperature, plain.max_output_tokens) == (0.0, 700)
    assert (wild.temperature, wild.max_output_tokens) == (0.7, 5)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Hello!", True),
        ("Who are you?", True),
        ("thank you very much", True),
        ("Tell me a joke about cats", True),
        ("Run the command `echo hello`", False),
        ("Write 'thanks for all the fish' to note.txt", False),
        ("run ls", False),
        ("Which file is the largest here?", False),
        ("How much free space is on the disk?", False),
        ("zebra", False),
    ],
)
def test_small_talk_is_recognised_and_quotations_do_not_count(question: str, expected: bool) -> None:
    """Only a question that is most like small talk skips the everyday tools."""
    assert is_small_talk(question) is expected


@pytest.mark.parametrize(
    ("question", "tool", "words"),
    [
        ("run uptime", "terminal", "whoami"),
        ("what's the biggest file in this directory?", "terminal", "sort -rn"),
        ("Replace the word blue with green in paint.txt", "patch", "old_string"),
        ("What does todo.md say?", "read_file", "letter.txt"),
        ("Save 'water the roses' in garden.txt", "write_file", "content"),
        ("Which files contain the word apple?", "search_files", "banana"),
    ],
)
def test_the_most_similar_example_comes_last(question: str, tool: str, words: str) -> None:
    """A small model imitates what it read last."""
    _, reply = nearest_examples(question, {*EVERYDAY_TOOLS, ANSWER}, 6)[-1]

    assert json.loads(reply)["name"] == tool
    assert words in reply or words in nearest_examples(question, {*EVERYDAY_TOOLS, ANSWER}, 6)[-1][0]


async def test_everyday_tools_are_offered_in_short_words() -> None:
    """One required parameter instead of seven, and similar questions with their calls before the real one."""
    reply = '{"name": "terminal", "arguments": {"command": "uptime"}}'

    response, [request], _ = await ask("run uptime", steps=[reply])

    assert response.message.tool_calls[0].name == "terminal"
    assert "- terminal(command): Run a shell command:" in request.system
    assert [one["properties"]["name"]["const"] for one in request.response_schema["anyOf"]] == [
        "terminal",
        "read_file",
        "answer",
    ]
    assert [one.role for one in request.messages] == ["user", "assistant"] * 6 + ["user"]
