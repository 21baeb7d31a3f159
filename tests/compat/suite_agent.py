"""`run_agent` and `agent.auxiliary_client` against a model on this machine that says what the script says."""

import asyncio
import json
import threading

import pytest
from agent.auxiliary_client import async_call_llm, call_llm, extract_content_or_reasoning
from run_agent import AIAgent
from tools.registry import registry

from toolcrib.testing import calls, says
from toolcrib.testing.model_server import ErrorResponse, ScriptedModelServer


@pytest.fixture
def server():
    with ScriptedModelServer(otherwise=says("no more steps")) as made:
        yield made


@pytest.fixture
def shout():
    registry.register(
        "shout",
        "voice",
        {
            "description": "Shouts",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        },
        lambda args, **kw: json.dumps({"loud": args["text"].upper()}),
    )
    yield
    registry.deregister("shout")


def agent(server, **options):
    return AIAgent(base_url=server.base_url, api_key="k-secret", model="tiny", quiet_mode=True, **options)


def test_agent_chats_and_remembers(server):
    """Each message goes on with the conversation; the key and the model are those that were given."""
    server.add(says("Hello."), says("You said: hi."))
    one = agent(server, enabled_toolsets=[])

    assert one.chat("hi") == "Hello."
    assert one.chat("what did I say?") == "You said: hi."
    sent = server.requests[1]
    assert [message["role"] for message in sent.body["messages"]] == ["system", "user", "assistant", "user"]
    assert sent.body["model"] == "tiny"
    assert sent.headers["authorization"] == "Bearer k-secret"
    one.close()


def test_agent_calls_tools_and_tells_its_callbacks(server, shout):
    """Tools of the registry run; callbacks hear of the start and of the result, and of the text as it comes."""
    server.add(calls("shout", {"text": "hey"}), says("Done: HEY"))
    told = []
    one = agent(
        server,
        enabled_toolsets=["voice"],
        tool_start_callback=lambda call_id, name, args: told.append(("start", name, args)),
        tool_complete_callback=lambda call_id, name, args, result: told.append(("end", name, json.loads(result))),
        tool_progress_callback=lambda event, name, *rest: told.append((event, name)),
        stream_delta_callback=None,
        skip_memory=True,
        platform="cli",
    )
    pieces = []

    result = one.run_conversation("shout hey", stream_callback=pieces.append)

    assert result["final_response"] == "".join(pieces) == "Done: HEY"
    assert (result["completed"], result["api_calls"], result["error"]) == (True, 2, None)
    assert [message["role"] for message in result["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert told == [
        ("tool.started", "shout"),
        ("start", "shout", {"text": "hey"}),
        ("tool.completed", "shout"),
        ("end", "shout", {"loud": "HEY"}),
    ]
    assert [one["function"]["name"] for one in server.requests[0].body["tools"]] == ["shout"]
    one.close()


def test_history_and_prompts_of_the_caller_are_used(server):
    """The given history replaces the conversation, and the given system message the prompt of this run."""
    server.add(says("first"), says("second"), says("third"))
    one = agent(server, enabled_toolsets=[], ephemeral_system_prompt="Be brief.")
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    first = one.run_conversation("c", system_message="You are a cat.", conversation_history=history)
    second = one.run_conversation("d", conversation_history=first["messages"])
    third = one.run_conversation("e", conversation_history=[])

    said = [[message["content"] for message in request.body["messages"]] for request in server.requests]
    assert said[0] == ["You are a cat.\n\nBe brief.", "a", "b", "c"]
    assert said[1][1:] == ["a", "b", "c", "first", "d"]
    assert said[1][0].endswith("Be brief.")
    assert said[2][1:] == ["e"]
    assert len(second["messages"]) == 6
    assert [message["content"] for message in third["messages"]] == ["e", "third"]
    one.close()


def test_session_goes_on_under_its_id(server):
    """An unknown id makes a session, a known one resumes it."""
    server.add(says("one"), says("two"))
    first = agent(server, enabled_toolsets=[], session_id="my-session")
    first.chat("a")
    first.close()
    second = agent(server, enabled_toolsets=[], session_id="my-session")

    assert second.session_id == first.session_id == "my-session"
    second.chat("b")
    assert [one["content"] for one in server.requests[1].body["messages"]][1:] == ["a", "one", "b"]
    second.close()


def test_budget_and_interrupt_end_a_run(server, shout):
    """`max_iterations` limits the requests; an interrupt from another thread ends the work."""
    server.add(*[calls("shout", {"text": str(number)}) for number in range(5)])
    one = agent(server, enabled_toolsets=["voice"], max_iterations=2)

    result = one.run_conversation("go")

    assert (result["completed"], result["partial"]) == (False, True)
    assert result["final_response"]
    one.close()
    other = agent(server, enabled_toolsets=["voice"])
    other.tool_start_callback = lambda *_: threading.Thread(target=other.interrupt).start()
    registry.register("shout", "voice", {"description": "x"}, _wait_for_interrupt, is_async=True)
    stopped = other.run_conversation("go")
    assert stopped["interrupted"]
    assert other.is_interrupted
    other.close()


async def _wait_for_interrupt(args, **_):
    await asyncio.Event().wait()


def test_failure_is_told(server):
    """A request that the model's server refuses is an error in the result, not an exception."""
    server.add(ErrorResponse(400, "bad request"))
    one = agent(server, enabled_toolsets=[])

    result = one.run_conversation("hi")

    assert (result["failed"], result["completed"]) == (True, False)
    assert result["error"]
    assert result["final_response"] == result["error"]
    one.close()


def test_one_request_to_a_model(server):
    """The response has OpenAI's attributes; system messages, limits and tools are sent."""
    server.add(says("pong"), calls("f", {"a": 1}), says("again"))
    options = {"base_url": server.base_url, "api_key": "k", "model": "tiny"}
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "ping"}]

    response = call_llm("title", messages=messages, temperature=0.5, max_tokens=7, **options)
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    wanted = asyncio.run(async_call_llm(messages=messages, tools=[tool], **options))
    streamed = "".join(one.choices[0].delta.content for one in call_llm(messages=messages, stream=True, **options))

    assert response.choices[0].message.content == extract_content_or_reasoning(response) == "pong"
    assert response.choices[0].finish_reason == "stop"
    body = server.requests[0].body
    assert [message["content"] for message in body["messages"]] == ["S", "ping"]
    assert body["temperature"] == 0.5
    requested = wanted.choices[0].message.tool_calls[0]
    assert (requested.function.name, json.loads(requested.function.arguments)) == ("f", {"a": 1})
    assert server.requests[1].body["tools"][0]["function"]["name"] == "f"
    assert streamed == "again"


def test_answer_without_text_gives_its_reasoning():
    """Else nothing, whatever the response is."""

    class Said:
        def __init__(self, **attributes):
            self.__dict__.update(attributes)

    def response(**message):
        return Said(choices=[Said(message=Said(**message))])

    assert extract_content_or_reasoning(response(content=" a ", reasoning="r")) == "a"
    assert extract_content_or_reasoning(response(content="", reasoning_content="r")) == "r"
    assert extract_content_or_reasoning(response(content=None)) == ""
    assert extract_content_or_reasoning(Said(choices=[])) == ""
    assert extract_content_or_reasoning(None) == ""
