"""Who answers for the dangerous calls of a client: its person by a form, else the policy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ElicitResult, InputRequiredResult, TextContent

from tests.mcp_serve.mcp_serving import ERAS, AddTool, MakeServer, Person, eventually, serving
from toolcrib.core.approvals import ApprovalRequest, Danger
from toolcrib.core.types import Effect
from toolcrib.mcp.server.approvals import approval_form, approval_text, parse_approval
from toolcrib.mcp.server.pending_calls import ClientReply

BOTH = pytest.mark.parametrize("era", ERAS)
PUBLISHES = (Effect("publish", "the street"),)


def _text(result: Any) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def _shouting(make_server: MakeServer, add_tool: AddTool, config: str = "", **options: Any) -> Any:
    server, runtime = make_server(config, **options)
    shouted: list[str] = []

    def shout(args: Any, **_: Any) -> str:
        shouted.append(args.get("text", ""))
        return "loud"

    add_tool(runtime, "shout", shout, effects=PUBLISHES)
    return server, shouted


@BOTH
async def test_the_person_is_told_the_dangers(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """The form names the call and its dangers in words, and lets the person choose once, session or deny."""
    server, shouted = _shouting(make_server, add_tool)
    person = Person({"answer": "once"})

    async with serving(server) as web, web.client(era, elicitation_callback=person) as client:
        result = await client.call_tool("shout", {"text": "fire"})

    assert (_text(result), shouted) == ("loud", ["fire"])
    assert "shout(text='fire')" in person.asked[0].message
    assert "shout publishes something the street" in person.asked[0].message
    assert person.asked[0].requested_schema["properties"]["answer"]["enum"] == ["once", "session", "deny"]


@BOTH
@pytest.mark.parametrize(("answer", "questions"), [("once", 2), ("session", 1)])
async def test_a_session_answer_holds_for_its_client(
    make_server: MakeServer, add_tool: AddTool, era: str, answer: str, questions: int
) -> None:
    """`session` is not asked about again, `once` is; and neither counts for another client."""
    server, shouted = _shouting(make_server, add_tool)
    person = Person({"answer": answer})

    async with (
        serving(server) as web,
        web.client(era, elicitation_callback=person) as client,
        web.client(era) as other,
    ):
        for _ in range(2):
            await client.call_tool("shout", {})
        denied = await other.call_tool("shout", {"text": "me too"})

    assert len(person.asked) == questions
    assert shouted == ["", ""]
    assert denied.is_error


@pytest.mark.quick_rows(3)
@BOTH
@pytest.mark.parametrize(
    ("action", "answer", "said"),
    [
        ("accept", {"answer": "deny", "reason": "it is late"}, "it is late"),
        ("decline", None, "the user denied it"),
        ("cancel", None, "the question was cancelled"),
        ("accept", {"answer": "always"}, "no clear answer"),
        ("accept", None, "no clear answer"),
    ],
)
async def test_only_a_clear_yes_is_one(
    make_server: MakeServer, add_tool: AddTool, era: str, action: str, answer: dict[str, str] | None, said: str
) -> None:
    """Denying, declining, closing the form and answers that were not offered all keep the call from running."""
    server, shouted = _shouting(make_server, add_tool)
    person = Person(answer, action)

    async with serving(server) as web, web.client(era, elicitation_callback=person) as client:
        result = await client.call_tool("shout", {})

    assert result.is_error
    assert said in _text(result)
    assert shouted == []


@BOTH
@pytest.mark.parametrize(("policy", "runs"), [("deny", False), ("allow", True), ("ask", False)])
async def test_without_forms_the_policy_answers(
    make_server: MakeServer, add_tool: AddTool, era: str, policy: str, runs: bool
) -> None:
    """A client that cannot ask gets what the policy says; with nobody at the server, `ask` denies."""
    server, shouted = _shouting(make_server, add_tool, policy=policy)

    async with serving(server) as web, web.client(era) as client:
        result = await client.call_tool("shout", {"text": "x"})

    assert result.is_error is not runs
    assert shouted == (["x"] if runs else [])


@BOTH
async def test_a_question_that_nobody_answers_ends(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """After the time for approvals the call is denied as such, and has not run."""
    server, shouted = _shouting(make_server, add_tool, "approvals:\n  timeout: 0.1\n")
    person = Person(waits=True)

    async with serving(server) as web, web.client(era, elicitation_callback=person) as client:
        if era == "legacy":
            assert "no one answered" in _text(await client.call_tool("shout", {}))
        else:
            first = await client.session.call_tool("shout", {}, allow_input_required=True)
            assert isinstance(first, InputRequiredResult)
            session = next(iter(server.sessions))
            await eventually(
                lambda: all(call.result is not None for call in server.calls.of_session(session.id)),
                "the end of the call",
            )
            late = await client.session.call_tool(
                "shout", {}, input_responses=_yes(first), request_state=first.request_state, allow_input_required=True
            )
            assert "no one answered" in _text(late)

    assert shouted == []


async def test_an_answer_counts_for_its_own_call_alone(make_server: MakeServer, add_tool: AddTool) -> None:
    """Coming back with other arguments, with a made-up state or a second time runs nothing more."""
    server, shouted = _shouting(make_server, add_tool)

    async with serving(server) as web, web.client("auto", elicitation_callback=Person()) as client:
        first = await client.session.call_tool("shout", {"text": "a"}, allow_input_required=True)
        assert isinstance(first, InputRequiredResult)
        more = {"input_responses": _yes(first), "allow_input_required": True}
        for text, state in (("b", first.request_state), ("a", "made-up")):
            with pytest.raises(Exception, match="requestState"):
                await client.session.call_tool("shout", {"text": text}, request_state=state, **more)
        again = await client.session.call_tool(
            "shout", {"text": "a"}, request_state=first.request_state, allow_input_required=True
        )
        done = await client.session.call_tool("shout", {"text": "a"}, request_state=first.request_state, **more)
        twice = await client.session.call_tool("shout", {"text": "a"}, request_state=first.request_state, **more)

    assert isinstance(again, InputRequiredResult)
    assert _text(done) == "loud"
    assert twice.is_error
    assert shouted == ["a"]


async def test_another_client_cannot_answer(make_server: MakeServer, add_tool: AddTool) -> None:
    """The state of a call is of no use to a client of another session."""
    server, shouted = _shouting(make_server, add_tool)

    async with (
        serving(server) as web,
        web.client("auto", elicitation_callback=Person()) as client,
        web.client("auto", elicitation_callback=Person()) as thief,
    ):
        first = await client.session.call_tool("shout", {}, allow_input_required=True)
        assert isinstance(first, InputRequiredResult)
        stolen = await thief.session.call_tool(
            "shout", {}, request_state=first.request_state, input_responses=_yes(first), allow_input_required=True
        )

    assert stolen.is_error
    assert shouted == []


@BOTH
async def test_tools_can_ask_the_person(make_server: MakeServer, era: str) -> None:
    """`clarify` shows a form, and the answer in own words goes before the one that was chosen."""
    server, _ = make_server(builtin=True, toolsets=["clarify"])
    person = Person({"answer": "tea", "own_words": "rather milk"})

    async with serving(server) as web, web.client(era, elicitation_callback=person) as client:
        result = await client.call_tool("clarify", {"question": "What?", "choices": ["tea", "coffee"]})

    assert json.loads(_text(result))["user_response"] == "rather milk"
    assert person.asked[0].message == "What?"


@given(
    st.sampled_from(["accept", "decline", "cancel", "failed", "", "yes"]),
    st.dictionaries(st.sampled_from(["answer", "reason", "x"]), st.none() | st.text() | st.integers() | st.booleans()),
)
def test_whatever_a_form_holds_it_is_an_answer(action: str, content: dict[str, Any]) -> None:
    """No form makes reading it fail, and only one that says once or session allows anything."""
    answer = parse_approval(ClientReply(action, content))

    assert answer.allows is (action == "accept" and content.get("answer") in ("once", "session"))


def test_nothing_in_the_text_can_deceive() -> None:
    """Control characters are spelled out and secrets are masked."""
    danger = Danger(rule="x", description="danger", reason="does\x1b[2J harm", span=(0, 4))
    key = "sk-" + "a1B2" * 12
    request = ApprovalRequest(id="1", tool="terminal", command=f"echo {key}\u202e", dangers=(danger,))

    text = approval_text(request)

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert key not in text
    assert approval_form(request)["required"] == ["answer"]


def _yes(asked: InputRequiredResult) -> dict[str, ElicitResult]:
    return {key: ElicitResult(action="accept", content={"answer": "once"}) for key in asked.input_requests or {}}
