"""Questions of servers to the person: forms, addresses, and what they are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mcp.real_servers import EVERY_ERA, answer_to, asking, eventually
from toolcrib.core.context import ToolContext
from toolcrib.mcp.client.elicitation import REASON, FormAnswerError, FormError, FormField, parse_form
from toolcrib.testing import ScriptedAsker

WithServers = Callable[..., Any]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2, "maxLength": 10},
        "email": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "height": {"type": "number"},
        "member": {"type": "boolean"},
        "colour": {"type": "string", "enum": ["red", "green"]},
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]},
        "old": {"type": "string", "enum": ["a", "b"], "enumNames": ["Option A", "Option B"]},
        "days": {"type": "array", "items": {"type": "string", "enum": ["mon", "tue", "wed"]}, "minItems": 1},
        "tags": {"type": "array", "items": {"anyOf": [{"const": "x", "title": "Ex"}, {"const": "y", "title": "Why"}]}},
    },
    "required": ["name", "age"],
}


def form(schema: dict[str, Any], message: str = "Please fill this in") -> dict[str, Any]:
    return {"mode": "form", "message": message, "requestedSchema": schema}


def one_field(**field: Any) -> dict[str, Any]:
    return form({"type": "object", "properties": {"it": field}, "required": ["it"]})


async def told(with_servers: WithServers, era: str, params: dict[str, Any], *answers: Any) -> tuple[Any, ScriptedAsker]:
    asker = ScriptedAsker(*answers)
    runtime = await with_servers({"s": asking(era)}, services={"asker": asker})
    return await answer_to(runtime, "elicitation/create", params), asker


@EVERY_ERA
async def test_a_form_is_asked_field_by_field(with_servers: WithServers, era: str) -> None:
    """Every kind of field is asked for by itself, and the values have the kinds that the schema names."""
    given = ["Ada", "ada@example.com", "36", "1.7", "yes", "green", "Large", "Option B", "mon, 3", "why"]

    answer, asker = await told(with_servers, era, form(PERSON), *given, "Send")

    assert answer["action"] == "accept"
    assert answer["content"] == {
        "name": "Ada",
        "email": "ada@example.com",
        "age": 36,
        "height": 1.7,
        "member": True,
        "colour": "green",
        "size": "l",
        "old": "b",
        "days": ["mon", "wed"],
        "tags": ["y"],
    }
    assert "The MCP server 's' asks: Please fill this in" in asker.asked[0][0]
    assert asker.asked[6][1] == ("Small", "Large")
    assert "Ada" in asker.asked[-1][0]


@EVERY_ERA
async def test_an_answer_that_does_not_fit_is_asked_for_again(with_servers: WithServers, era: str) -> None:
    """The person is told what is wrong, and the server gets only what fits."""
    answer, asker = await told(with_servers, era, one_field(type="integer", minimum=18), "old", "3.5", "7", "18")

    assert answer["content"] == {"it": 18}
    assert "a whole number" in asker.asked[1][0]
    assert "18 or more" in asker.asked[3][0]


@EVERY_ERA
async def test_who_never_answers_with_what_fits_cancels(with_servers: WithServers, era: str) -> None:
    """A question is not put for ever, and what does not fit is never sent."""
    answer, asker = await told(with_servers, era, one_field(type="number"), *["nonsense"] * 50)

    assert answer["action"] == "cancel"
    assert "content" not in answer
    assert len(asker.asked) < 10


@EVERY_ERA
async def test_defaults_are_sent_for_what_is_left_out(with_servers: WithServers, era: str) -> None:
    """Every kind of field has its default sent when the person leaves it out; without one it is not there."""
    properties = {
        "text": {"type": "string", "default": "Bob"},
        "count": {"type": "integer", "default": 3},
        "share": {"type": "number", "default": 0.5},
        "ready": {"type": "boolean", "default": False},
        "one": {"type": "string", "enum": ["a", "b"], "default": "b"},
        "some": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "default": ["a"]},
        "nothing": {"type": "string"},
    }

    answer, asker = await told(
        with_servers,
        era,
        form({"type": "object", "properties": properties, "required": ["text"]}),
        *[":skip"] * 7,
        "Send",
    )

    expected = {"text": "Bob", "count": 3, "share": 0.5, "ready": False, "one": "b", "some": ["a"]}
    assert answer["content"] == expected
    assert "Bob" in asker.asked[0][0]


@EVERY_ERA
async def test_a_needed_field_cannot_be_left_out(with_servers: WithServers, era: str) -> None:
    """A field that the server requires, and names no default for, is asked for until there is an answer."""
    answer, asker = await told(with_servers, era, one_field(type="string"), ":skip", "", "here")

    assert answer["content"] == {"it": "here"}
    assert len(asker.asked) == 3


@EVERY_ERA
@pytest.mark.parametrize(
    ("said", "action"),
    [(":decline", "decline"), (":cancel", "cancel"), ("(the user gave no answer)", "cancel")],
)
async def test_a_person_may_refuse_or_close(with_servers: WithServers, era: str, said: str, action: str) -> None:
    """A refusal is a decline, a closed question a cancel; nothing that was typed before is sent."""
    answer, _ = await told(with_servers, era, form(PERSON), "Ada", said)

    assert answer["action"] == action
    assert "content" not in answer


@EVERY_ERA
async def test_answers_are_shown_before_they_are_sent(with_servers: WithServers, era: str) -> None:
    """Who sees a mistake may begin again; who declines then sends nothing."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}

    answer, _ = await told(with_servers, era, form(schema), "x", "y", "Start over", "1", "2", "Send")
    refused, _ = await told(with_servers, era, form(schema), "x", "y", "Decline")

    assert answer["content"] == {"a": "1", "b": "2"}
    assert refused["action"] == "decline"


@EVERY_ERA
async def test_no_line_of_a_server_looks_like_ours(with_servers: WithServers, era: str) -> None:
    """What a server writes over several lines is marked, so that it cannot pass for what this program says."""
    message = "Hello\nSend this to the MCP server 'bank'?"

    _, asker = await told(with_servers, era, form({"type": "object", "properties": {"a": {"type": "string"}}}, message))

    assert "  | Send this to the MCP server 'bank'?" in asker.asked[0][0].splitlines()


@EVERY_ERA
async def test_where_nobody_is_there_a_question_is_declined(with_servers: WithServers, era: str) -> None:
    """Without anybody to ask, the server is told no, and why."""
    runtime = await with_servers({"s": asking(era)})

    answer = await answer_to(runtime, "elicitation/create", one_field(type="string"))
    after = await answer_to(runtime, "elicitation/create", one_field(type="string"))

    assert answer["action"] == after["action"] == "decline"
    if era == "2025-11-25":
        assert "nobody" in answer["_meta"][REASON]


@EVERY_ERA
async def test_an_asker_that_fails_costs_only_the_question(with_servers: WithServers, era: str) -> None:
    """What goes wrong in a front end is a decline for the server, and the connection stays."""
    asker = ScriptedAsker(RuntimeError("the screen is gone"), "yes")
    runtime = await with_servers({"s": asking(era)}, services={"asker": asker})

    answer = await answer_to(runtime, "elicitation/create", one_field(type="boolean"))
    after = await answer_to(runtime, "elicitation/create", one_field(type="boolean"))

    assert answer["action"] == "decline"
    assert after["content"] == {"it": True}


@pytest.mark.services
@EVERY_ERA
async def test_an_address_is_shown_with_its_host_and_opened_by_nobody(with_servers: WithServers, era: str) -> None:
    """The person sees where an address leads, and says yes or no; the server hears no more than that."""
    params = {
        "mode": "url",
        "message": "Log in \u202eplease",
        "url": "https://accounts.example.com/login?x=1",
        "elicitationId": "e1",
    }

    answer, asker = await told(with_servers, era, params, "I open it")
    refused, _ = await told(with_servers, era, params, "Decline")
    unclear, _ = await told(with_servers, era, params, *["perhaps"] * 20)

    question = asker.asked[0][0]
    assert answer["action"] == "accept"
    assert "content" not in answer
    assert "'s'" in question
    assert "accounts.example.com" in question.splitlines()[0]
    assert "\\u202e" in question
    assert refused["action"] == "decline"
    assert unclear["action"] == "cancel"


@pytest.mark.parametrize(
    ("url", "warning"),
    [
        ("http://example.com/", "not https"),
        ("https://example.com@evil.test/", "evil.test"),
        ("https://xn--80ak6aa92e.com/", "look like others"),
        ("http://localhost:8000/", ""),
    ],
)
async def test_odd_addresses_carry_a_warning(with_servers: WithServers, url: str, warning: str) -> None:
    """What makes an address deceive people is said."""
    params = {"mode": "url", "message": "Open it", "url": url, "elicitationId": "e1"}

    _, asker = await told(with_servers, "2025-11-25", params, "Decline")

    assert ("Careful" in asker.asked[0][0]) == bool(warning)
    assert warning in asker.asked[0][0]


@EVERY_ERA
@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "https://", "https://a\\@b.test/"])
async def test_what_is_no_web_address_is_refused(with_servers: WithServers, era: str, url: str) -> None:
    """Nobody is asked to open what is no page."""
    params = {"mode": "url", "message": "Open it", "url": url, "elicitationId": "e1"}

    answer, asker = await told(with_servers, era, params, "I open it")

    assert "error" in answer
    assert asker.asked == []


@pytest.mark.services
@pytest.mark.parametrize(
    "field",
    [
        {"type": "string", "title": "API key"},
        {"type": "string", "description": "your password"},
    ],
)
async def test_a_form_for_secrets_carries_a_warning(with_servers: WithServers, field: dict[str, Any]) -> None:
    """Who is asked for a password or key is warned before he types it."""
    _, asker = await told(with_servers, "2026-07-28", one_field(**field), ":decline")
    _, harmless = await told(with_servers, "2026-07-28", one_field(type="string", title="City"), ":decline")

    assert "secret" in asker.asked[0][0]
    assert "secret" not in harmless.asked[0][0]


@EVERY_ERA
async def test_a_broken_form_is_an_error_for_the_server(with_servers: WithServers, era: str) -> None:
    """What the protocol does not allow reaches no person, and the connection stays."""
    asker = ScriptedAsker("1")
    runtime = await with_servers({"s": asking(era)}, services={"asker": asker})

    nested = await answer_to(runtime, "elicitation/create", one_field(type="object", properties={}))
    after = await answer_to(runtime, "elicitation/create", one_field(type="integer"))

    assert "error" in nested
    assert after["content"] == {"it": 1}


class Waiting:
    """A person who never answers; says when he was asked, and whether the question was taken back."""

    def __init__(self) -> None:
        self.sessions: list[str] = []
        self.taken_back = False

    async def ask(self, ctx: ToolContext, question: str, choices: tuple[str, ...]) -> str:
        self.sessions.append(ctx.session_id)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.taken_back = True
        return ""


@EVERY_ERA
async def test_a_question_goes_with_its_call(with_servers: WithServers, era: str) -> None:
    """A call that is cancelled takes its open question back, and asks nobody but its own session."""
    person = Waiting()
    runtime = await with_servers({"s": asking(era)}, services={"asker": person})
    ctx = runtime.context(session_id="mine")
    asking_for = asyncio.ensure_future(answer_to(runtime, "elicitation/create", one_field(type="string"), ctx=ctx))
    await eventually(lambda: person.sessions)

    asking_for.cancel()

    await eventually(lambda: person.taken_back)
    assert person.sessions == ["mine"]


async def test_a_question_that_outlives_its_call_is_taken_back(with_servers: WithServers, tmp_path: Path) -> None:
    """A server that answers a call while its question is open gets a cancel, and the person is not kept waiting."""
    person = Waiting()
    runtime = await with_servers({"s": asking("2025-11-25")}, services={"asker": person})
    question = {"method": "elicitation/create", "params": one_field(type="string"), "until": str(tmp_path / "now")}
    leaving = asyncio.ensure_future(runtime.call("mcp__s__ask_and_leave", question))
    await eventually(lambda: person.sessions)

    (tmp_path / "now").touch()

    assert "gone" in (await leaving).text
    await eventually(lambda: person.taken_back)


async def test_nobody_is_asked_for_another_session(with_servers: WithServers) -> None:
    """A server that works for two sessions, and does not say for which one it asks, gets no answer from either."""
    asker = ScriptedAsker("mine")
    server = asking("2025-11-25", supports_parallel_tool_calls=True)
    runtime = await with_servers({"s": server}, services={"asker": asker})
    other = asyncio.ensure_future(runtime.call("mcp__s__stall", {}, ctx=runtime.context(session_id="two")))
    await eventually(lambda: runtime.mcp._supervisors["s"].contexts)

    answer = await answer_to(
        runtime, "elicitation/create", one_field(type="string"), ctx=runtime.context(session_id="one")
    )

    other.cancel()
    assert answer["action"] == "decline"
    assert asker.asked == []


async def test_a_call_that_needs_a_page_first_says_which(with_servers: WithServers) -> None:
    """A server that refuses a call until a page was opened has that page named, with its host."""
    runtime = await with_servers({"s": asking("2025-11-25")})

    result = await runtime.call("mcp__s__log_in", {})

    assert result.is_error
    assert "https://accounts.example.com/ (a page on accounts.example.com)" in result.text


# Fields


FITTING = [
    ({"type": "string", "format": "email"}, "a@b.org", "no at sign"),
    ({"type": "string", "format": "uri"}, "https://a.test/x", "a b"),
    ({"type": "string", "format": "date"}, "2024-02-29", "2023-02-29"),
    ({"type": "string", "format": "date-time"}, "2024-01-01T00:00:00Z", "2024-01-01T00:00:00"),
    ({"type": "string", "minLength": 3}, "abc", "ab"),
    ({"type": "string", "maxLength": 3}, "abc", "abcd"),
    ({"type": "number", "maximum": 2.5}, "2.5", "2.6"),
    ({"type": "number"}, "1e3", "inf"),
    ({"type": "integer"}, "-4", "4.0"),
    ({"type": "boolean"}, "No", "maybe"),
    ({"type": "string", "enum": ["x", "y"]}, "Y", "z"),
    ({"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 1}, "y", "x,y"),
    ({"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1}, "x", "none"),
    ({"type": "array", "items": {"anyOf": [{"const": "a", "title": "One, two"}]}}, "one, two", "One"),
]


@pytest.mark.parametrize(("schema", "good", "bad"), FITTING)
def test_what_fits_a_field(schema: dict[str, Any], good: str, bad: str) -> None:
    """The bounds and formats of the schema decide."""
    [field] = parse_form({"type": "object", "properties": {"it": schema}})

    assert field.check(field.read(good)) == field.read(good)
    with pytest.raises(FormAnswerError):
        field.read(bad)


def test_a_default_that_does_not_fit_counts_for_nothing() -> None:
    """A server cannot have something sent by a default that it would not take as an answer."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 3, "default": 4}}}

    assert parse_form(schema)[0].default is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SCHEMAS = st.dictionaries(
    st.sampled_from(["type", "enum", "oneOf", "anyOf", "items", "default", "minimum", "minLength", "format", "title"]),
    JSON | st.sampled_from(["string", "number", "integer", "boolean", "array", "email", "date"]),
)


@given(st.dictionaries(st.text(max_size=5), SCHEMAS | JSON, max_size=3), st.text(max_size=20))
def test_no_form_and_no_answer_breaks_anything(properties: Any, typed: str) -> None:
    """Whatever a server describes and a person types, there is a value that is JSON, or a reason."""
    try:
        fields: list[FormField] = parse_form({"type": "object", "properties": properties})
    except FormError:
        return
    for field in fields:
        try:
            json.dumps(field.read(typed), allow_nan=False)
        except FormAnswerError as reason:
            assert str(reason)  # noqa: PT017 - either outcome is right
