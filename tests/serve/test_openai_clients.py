"""The official client of OpenAI against our server."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.serve.agent_serving import CONFIG, RunningServer, serving
from toolcrib.agent.events import CallStarted
from toolcrib.core.models import ModelError, Usage
from toolcrib.providers.scripted import call, calls, says
from toolcrib.serve.openai_requests import ChatRequest, InputMessage, question_of_chat
from toolcrib.serve.runs import Run

QUESTION = [{"role": "user", "content": "hello"}]


async def first_run(served: RunningServer) -> Run:
    """The run, as soon as it has started."""
    while not served.server.runs.working:  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0)
    return served.server.runs.working[0]


async def test_a_chat_is_answered(home: Path) -> None:
    """The answer, its usage and the model's name are what the client expects."""
    async with serving(home, [says("Good day.", usage=Usage(input_tokens=7, output_tokens=3))]) as served:
        models = await served.openai.models.list()
        answer = await served.openai.chat.completions.create(model="gpt-5", messages=QUESTION)

    assert [one.id for one in models.data] == ["toolcrib"]
    assert answer.choices[0].message.content == "Good day."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 3)


async def test_a_chat_streams_its_answer_and_reports_its_tools(home: Path) -> None:
    """Tools run on the server; clients that don't know us see only the text."""
    steps = [says("I'll look. ", call("echo", {"text": "42"})), says("It is 42.")]
    async with serving(home, steps) as served:
        stream = await served.openai.chat.completions.create(
            model="toolcrib", messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "I'll look. \n\nIt is 42."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    reported = [chunk.model_extra["toolcrib"]["event"] for chunk in chunks if chunk.model_extra]
    assert reported == ["call_started", "call_finished"]


async def test_a_history_continues_its_session(home: Path) -> None:
    """A client that sends the whole conversation goes on in the session that answered it."""
    async with serving(home, ["first", "second", "other"]) as served:
        client = served.openai
        first = await client.chat.completions.with_raw_response.create(model="m", messages=QUESTION)
        said = first.parse().choices[0].message.content
        more = [*QUESTION, {"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
        second = await client.chat.completions.with_raw_response.create(model="m", messages=more)
        foreign = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *QUESTION]
        third = await client.chat.completions.with_raw_response.create(model="m", messages=foreign)

    ids = [one.headers["x-toolcrib-session-id"] for one in (first, second, third)]
    assert ids[0] == ids[1] != ids[2]
    assert [message.text for message in served.model.requests[1].messages] == ["hello", "first", "and?"]
    assert [message.text for message in served.model.requests[2].messages] == ["a", "b", "hello"]


async def test_a_history_of_responses_continues_its_session(home: Path) -> None:
    """A client of the Responses API that sends the output items back, or the text alone, goes on in the session."""
    steps = [says("I'll look. ", call("echo", {"text": "42"})), "It is 42.", "second", "third"]
    async with serving(home, steps) as served:
        client, question = served.openai, {"role": "user", "content": "hello"}
        create = client.responses.with_raw_response.create
        first = await create(model="m", input="hello")
        items = [item.to_dict() for item in first.parse().output]
        second = await create(model="m", input=[question, *items, {"role": "user", "content": "and?"}])
        text = {"role": "assistant", "content": first.parse().output_text}
        third = await create(model="m", input=[question, text, {"role": "user", "content": "or?"}])

    ids = [one.headers["x-toolcrib-session-id"] for one in (first, second, third)]
    assert ids[0] == ids[1] != ids[2]
    for request in served.model.requests[2:]:
        assert "42" in [message.text for message in request.messages]


async def test_an_edited_message_goes_on_from_before_it(home: Path) -> None:
    """A client that takes its last question back gets a branch: the model does not see what was taken back."""
    async with serving(home, ["first", "second", "third"]) as served:
        client = served.openai
        await client.chat.completions.create(model="m", messages=QUESTION)
        for text in ("and?", "or?"):
            more = [*QUESTION, {"role": "assistant", "content": "first"}, {"role": "user", "content": text}]
            await client.chat.completions.create(model="m", messages=more)

    assert [message.text for message in served.model.requests[2].messages] == ["hello", "first", "or?"]


async def test_a_history_is_recognised_for_its_own_token_only(home: Path) -> None:
    """Who guesses a conversation of another token does not get into its session."""
    more = [*QUESTION, {"role": "assistant", "content": "first"}, {"role": "user", "content": "and?"}]
    async with serving(home, ["first", "second"]) as served:
        mine = await served.openai.chat.completions.with_raw_response.create(model="m", messages=QUESTION)
        async with served.http(served.server.tokens.create("phone", ["chat"])) as phone:
            theirs = await phone.post("/v1/chat/completions", json={"messages": more})

    assert theirs.status_code == 200
    assert theirs.headers["x-toolcrib-session-id"] != mine.headers["x-toolcrib-session-id"]


async def test_a_conversation_outlives_its_deleted_session(home: Path) -> None:
    """The client still has the history, so a new session takes it up; a stored response is gone with its session."""
    more = [*QUESTION, {"role": "assistant", "content": "first"}, {"role": "user", "content": "and?"}]
    async with serving(home, ["first", "second", "third"]) as served, served.http() as http:
        first = await http.post("/v1/chat/completions", json={"messages": QUESTION})
        await http.delete(f"/api/sessions/{first.headers['x-toolcrib-session-id']}")
        again = await http.post("/v1/chat/completions", json={"messages": more})
        response = await http.post("/v1/responses", json={"input": "hello"})
        await http.delete(f"/api/sessions/{response.headers['x-toolcrib-session-id']}")
        gone = await http.post("/v1/responses", json={"input": "x", "previous_response_id": response.json()["id"]})

    assert again.json()["choices"][0]["message"]["content"] == "second"
    assert gone.status_code == 400
    assert gone.json()["error"]["param"] == "previous_response_id"


async def test_the_clients_system_prompt_is_added_and_its_tools_are_ignored(home: Path) -> None:
    """Client tools never mix with ours."""
    tool = {"type": "function", "function": {"name": "echo", "parameters": {"type": "object"}}}
    messages = [{"role": "system", "content": "Answer in rhymes."}, *QUESTION]
    async with serving(home, ["ok"]) as served:
        await served.openai.chat.completions.create(model="m", messages=messages, tools=[tool])

    request = served.model.requests[0]
    assert "Answer in rhymes." in request.system
    assert sorted(one["function"]["name"] for one in request.definitions) == ["echo", "remove", "run", "wait"]
    assert "Echoes." in str(request.definitions)


async def test_a_prompt_for_a_title_starts_no_agent(home: Path) -> None:
    """Front ends ask for titles on their own; that makes no session and offers no tools."""
    prompt = "### Task:\nGenerate a concise title.\n<chat_history>\nUSER: hi\n</chat_history>"
    async with serving(home, ["A title"]) as served:
        answer = await served.openai.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}])
        sessions = served.server.host.store.list()

    assert answer.choices[0].message.content == "A title"
    assert served.model.requests[0].tools == ()
    assert sessions == []


async def test_a_title_counts_for_the_cost_of_a_day(home: Path) -> None:
    """Otherwise a prompt that looks like one of a front end would use the model without a limit."""
    prompt = "### Task:\nGenerate a concise title.\n<chat_history>\nUSER: hi\n</chat_history>"
    config = CONFIG + "  limits: {cost_per_day_usd: 1}\n"
    body = {"messages": [{"role": "user", "content": prompt}]}
    steps = [says("A title", usage=Usage(cost_usd=2.0)), "more"]
    async with serving(home, steps, config) as served, served.http() as http:
        codes = [(await http.post("/v1/chat/completions", json=body)).status_code for _ in range(2)]

    assert codes == [200, 429]


@pytest.mark.services
async def test_a_held_run_goes_on_after_the_next_message(home: Path) -> None:
    """Without a stream, the question comes back as the answer; `/approve CODE` goes on with the run."""
    async with serving(home, [calls("remove", {"path": "build"}), "Removed."]) as served:
        client = served.openai
        first = await client.chat.completions.create(model="m", messages=QUESTION)
        said = first.choices[0].message.content or ""
        code = said.partition("`/approve ")[2].partition("`")[0]
        assert "rm -rf build" in said
        assert served.removed == []
        more = [*QUESTION, {"role": "assistant", "content": said}, {"role": "user", "content": f"/approve {code}"}]
        second = await client.chat.completions.create(model="m", messages=more)

    assert second.choices[0].message.content == "Removed."
    assert served.removed == ["build"]


async def test_a_chat_token_cannot_approve_by_message(home: Path) -> None:
    """The code alone is no right to approve, and a word for the other kind of question decides nothing."""
    async with serving(home, [calls("remove", {"path": "build"}), "ok"]) as served, served.http() as http:
        first = await served.openai.chat.completions.create(model="m", messages=QUESTION)
        code = (first.choices[0].message.content or "").partition("`/approve ")[2].partition("`")[0]
        async with served.http(served.server.tokens.create("phone", ["chat"])) as phone:
            tried = [
                await phone.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": said}]})
                for said in (f"/approve {code}", f"/deny {code}", f"/answer {code} yes")
            ]
            tried.append(await phone.post("/v1/responses", json={"input": f"/approve {code}"}))
        waiting = (await http.get("/api/approvals")).json()["approvals"]

    assert [one.status_code for one in tried] == [403, 403, 400, 403]
    assert [one["code"] for one in waiting] == [code]
    assert served.removed == []


async def test_a_held_response_goes_on_after_the_next_input(home: Path) -> None:
    """The Responses API shows the question too, and takes its answer."""
    async with serving(home, [calls("remove", {"path": "build"}), "Removed.", "Yes."]) as served:
        client = served.openai
        first = await client.responses.create(model="m", input="hello")
        code = first.output_text.partition("`/approve ")[2].partition("`")[0]
        second = await client.responses.create(model="m", input=f"/approve {code}", previous_response_id=first.id)
        third = await client.responses.create(model="m", input="sure?", previous_response_id=second.id)

    assert served.removed == ["build"]
    assert (second.output_text, third.output_text) == ("Removed.", "Yes.")


async def test_a_whole_response_tells_its_usage_and_its_failure(home: Path) -> None:
    """Without a stream, the response is the one that a stream ends with."""
    steps = [says("ok", usage=Usage(input_tokens=7, output_tokens=3)), ModelError("the model is gone")]
    async with serving(home, steps) as served:
        good = await served.openai.responses.create(model="m", input="hello")
        bad = await served.openai.responses.create(model="m", input="hello")

    assert good.usage is not None
    assert (good.usage.input_tokens, good.usage.output_tokens) == (7, 3)
    assert bad.status == "failed"
    assert bad.error is not None
    assert "the model is gone" in bad.error.message


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("### Task:\nSuggest tags.\n<chat_history>\nUSER: hi\n</chat_history>", True),
        ("Provide a concise, 5-word-or-less title for the conversation.\n||>User:\nhi\n||>AI:\nhello", True),
        ("Write a short title for this conversation about cats", False),
        ("Write a short title for the conversation between Romeo and Juliet, then explain it", False),
        ("### Task: fix the parser of <chat_history> tags", False),
    ],
)
def test_only_prompts_with_a_transcript_are_those_of_front_ends(prompt: str, expected: bool) -> None:
    asked = question_of_chat(ChatRequest(messages=[InputMessage(role="user", content=prompt)]))

    assert asked.is_housekeeping is expected


async def test_a_failing_title_is_an_error_of_the_model(home: Path) -> None:
    """A front end that asks for a title sees what is wrong."""
    prompt = "### Task:\nGenerate a concise title.\n<chat_history>\nUSER: hi\n</chat_history>"
    async with serving(home, [ModelError("the model is gone")]) as served, served.http() as http:
        answer = await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": prompt}]})

    assert answer.status_code == 502
    assert "the model is gone" in answer.json()["error"]["message"]


async def test_a_wrong_key_is_told_how_to_get_the_right_one(home: Path) -> None:
    """In OpenAI's format: its clients show no other message."""
    async with serving(home) as served:
        client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError, match="toolcrib serve token"):
            await client.models.list()
        with pytest.raises(openai.NotFoundError, match="/v1/files"):
            await served.openai.get("/files", cast_to=object)
        await client.close()


async def test_a_stream_waits_for_the_approval(home: Path) -> None:
    """The stream says what is asked and links to the page; the answer over the API lets it go on."""
    async with serving(home, [calls("remove", {"path": "build"}), "Removed."]) as served, served.http() as http:
        stream = await served.openai.chat.completions.create(model="m", messages=QUESTION, stream=True)
        said = ""
        async for chunk in stream:
            said += chunk.choices[0].delta.content or ""
            about = (chunk.model_extra or {}).get("toolcrib", {})
            if about.get("event") == "question_asked":
                assert served.removed == []
                answer = await http.post(f"/api/approvals/{about['code']}", json={"choice": "once"})
                assert answer.status_code == 200

    assert f"or answer at {served.url}/approvals\n" in said
    assert said.endswith("Removed.")
    assert served.removed == ["build"]


async def test_behind_a_proxy_the_link_has_its_name(home: Path) -> None:
    """The client may be on another machine, which knows the server by that name only."""
    config = f"{CONFIG}  proxy_names: [agents.example]\n"
    steps = [calls("remove", {"path": "build"}), "Removed."]
    async with serving(home, steps, config) as served, served.http(Host="agents.example") as http:
        held = await http.post("/v1/responses", json={"input": "clean up"})

    assert "or answer at https://agents.example/approvals" in held.text


async def test_a_command_stays_in_its_block(home: Path) -> None:
    """What a front end renders as Markdown shows all of a command, also one that would end its block and hide more."""
    command = "rm -rf build # \n```\n<!--\nrm -rf src\n-->"
    async with serving(home, [calls("run", {"command": command}), "ok"]) as served:
        held = await served.openai.chat.completions.create(model="toolcrib", messages=QUESTION)

    assert f"\n````\n{command}\n````\n" in (held.choices[0].message.content or "")


async def test_a_failing_model_is_an_error(home: Path) -> None:
    """A client sees an error, streaming or not."""
    failure = ModelError("the model is gone; choose another one")
    async with serving(home, [failure, failure]) as served:
        with pytest.raises(openai.APIError, match="the model is gone"):
            await served.openai.chat.completions.create(model="m", messages=QUESTION)
        with pytest.raises(openai.APIError, match="the model is gone"):
            async for _ in await served.openai.chat.completions.create(model="m", messages=QUESTION, stream=True):
                pass


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "input_file"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}]},
        {"messages": "hello"},
    ],
)
async def test_a_bad_request_is_refused(home: Path, body: dict[str, object]) -> None:
    """Bad input gets a clear error in OpenAI's format, and starts nothing."""
    async with serving(home) as served, served.http() as http:
        response = await http.post("/v1/chat/completions", json=body)

    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_who_leaves_stops_the_run(home: Path) -> None:
    """Closing the stream is how chat clients stop an answer."""
    async with serving(home, [says("I'll wait.", call("wait")), "never"]) as served:
        stream = await served.openai.chat.completions.create(model="m", messages=QUESTION, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        (run,) = served.server.runs.working
        await stream.close()
        async with asyncio.timeout(30):
            async for _ in run.follow():
                pass

    assert run.result is not None
    assert run.result.outcome == "interrupted"


@pytest.mark.services
async def test_a_client_that_does_not_read_holds_nothing_up(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Others are served beside it, and the server stops without a fault."""
    body = json.dumps({"messages": QUESTION, "stream": True}).encode()
    async with serving(home, [says("x" * 8_000_000, call("wait")), "never"]) as served, served.http() as http:
        _, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]), limit=1024)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {served.token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        async with asyncio.timeout(30):
            run = await first_run(served)
            async for one in run.follow():
                if isinstance(one.event, CallStarted):
                    break
        health = await http.get("/health")
    gc.collect()
    await asyncio.sleep(0)
    writer.close()

    assert health.status_code == 200
    assert run.result is not None
    assert run.result.outcome == "interrupted"
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR" and one.name == "asyncio"] == []


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", {"messages": QUESTION}), ("/v1/responses", {"input": "hello"})]
)
async def test_who_leaves_without_a_stream_stops_the_run(home: Path, path: str, body: dict[str, object]) -> None:
    """A client that closes its connection does not want the answer any more."""
    async with serving(home, [calls("wait"), "never"]) as served, served.http() as http:
        asking = asyncio.ensure_future(http.post(path, json=body))
        async with asyncio.timeout(30):
            run = await first_run(served)
            async for one in run.follow():
                if isinstance(one.event, CallStarted):
                    asking.cancel()

    assert run.result is not None
    assert run.result.outcome == "interrupted"


@pytest.mark.services
async def test_a_run_goes_on_for_the_client_that_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream that asked may be closed once another message has answered; the run works for that one."""
    async with serving(home, [calls("remove", {"path": "build"}), calls("wait"), "never"]) as served:
        client = served.openai
        asking = await client.chat.completions.create(model="m", messages=QUESTION, stream=True)
        async for chunk in asking:
            if (chunk.model_extra or {}).get("toolcrib", {}).get("event") == "question_asked":
                break
        (run,) = served.server.runs.working
        stops, interrupt = [], run.agent.interrupt
        monkeypatch.setattr(run.agent, "interrupt", lambda reason: (stops.append(reason), interrupt(reason)))
        code = chunk.model_extra["toolcrib"]["code"]  # type: ignore[index]
        said = [{"role": "user", "content": f"/approve {code}"}]
        answering = await client.chat.completions.create(model="m", messages=said, stream=True)
        async for chunk in answering:
            if "wait" in str(chunk.model_extra):
                break
        await asking.close()
        async with asyncio.timeout(30):
            while run.clients > 1:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0)
        before = list(stops)
        await answering.close()
        async with asyncio.timeout(30):
            async for _ in run.follow():
                pass

    assert before == []
    assert stops == ["the client left"]
    assert run.result is not None
    assert run.result.outcome == "interrupted"


async def test_responses_are_stored_and_continued(home: Path) -> None:
    """`previous_response_id` goes on from that answer; a second continuation of the same answer is a branch."""
    steps = [says("", call("echo", {"text": "42"})), "first", "second", "third"]
    async with serving(home, steps) as served:
        client = served.openai
        first = await client.responses.create(model="m", input="hello")
        second = await client.responses.create(model="m", input="more", previous_response_id=first.id)
        third = await client.responses.create(model="m", input="else", previous_response_id=first.id)
        stored = await client.responses.retrieve(second.id)
        await client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(second.id)

    assert [item.type for item in first.output] == ["function_call", "function_call_output", "message"]
    assert first.output_text == "first"
    assert stored.output_text == second.output_text == "second"
    assert third.output_text == "third"
    assert "more" not in [message.text for message in served.model.requests[-1].messages]


async def test_responses_stream_in_order(home: Path) -> None:
    """The events come in the order that the official client requires, numbered without gaps."""
    async with (
        serving(home, ["a b c"]) as served,
        served.openai.responses.stream(model="m", input="hello") as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_response()

    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == "a b c"


async def test_tools_of_the_client_are_passed_through_when_asked(home: Path) -> None:
    """The model sees the client's tools alone, even one with the name of ours; the client runs them."""
    tools: Any = [{"type": "function", "function": {"name": "echo", "description": "Mine.", "parameters": {}}}]
    header = {"X-Toolcrib-Client-Tools": "pass-through"}
    steps = [calls("echo", {"text": "x"}, id="c1"), "It said x.", calls("echo", {"text": "y"}, id="c2")]
    async with serving(home, steps) as served:
        chat = served.openai.chat.completions
        first = await chat.create(
            model="any", messages=[{"role": "user", "content": "echo x"}], tools=tools, extra_headers=header
        )
        asked: Any = first.choices[0].message
        second = await chat.create(
            model="any",
            messages=[
                {"role": "user", "content": "echo x"},
                asked.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "x"},
            ],
            tools=tools,
            extra_headers=header,
        )
        stream = await chat.create(
            model="any",
            messages=[{"role": "user", "content": "echo y"}],
            tools=tools,
            stream=True,
            extra_headers=header,
        )
        streamed = [chunk.choices[0] async for chunk in stream]
        sessions = served.server.host.store.list()

    assert (first.choices[0].finish_reason, asked.tool_calls[0].function.name) == ("tool_calls", "echo")
    assert second.choices[0].message.content == "It said x."
    assert served.model.requests[1].messages[-1].call_id == "c1"
    assert [len(one.tools) for one in served.model.requests] == [1, 1, 1]
    assert [one.delta.tool_calls[0].id for one in streamed if one.delta.tool_calls] == ["c2"]
    assert streamed[-1].finish_reason == "tool_calls"
    assert sessions == []
