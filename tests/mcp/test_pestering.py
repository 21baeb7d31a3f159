"""Servers that wear people out: who said no is not asked for ever, and what is nonsense is refused at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from mcp_types import CreateMessageRequestParams, ElicitRequestFormParams, ElicitResult

from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.core.context import ToolContext
from toolcrib.mcp.client.elicitation import MAX_REFUSALS, ElicitationHandler, parse_form
from toolcrib.mcp.client.questions import RefusalCounter
from toolcrib.mcp.client.sampling import SamplingRequestError, to_messages
from toolcrib.mcp.client.servers import read_server
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedAsker

MakeRuntime = Callable[..., Runtime]
SERVER = read_server("s", McpServerSettings(command="s"), {})
FORM = ElicitRequestFormParams(message="Well?", requested_schema={"type": "object", "properties": {}})


async def asked(elicitation: ElicitationHandler, times: int) -> list[str]:
    """What the server is told when it asks the same so often."""
    given = [await elicitation(None, FORM) for _ in range(times)]  # type: ignore[arg-type]
    return [one.action for one in given if isinstance(one, ElicitResult)]


@pytest.mark.parametrize("is_in_call", [True, False])
async def test_who_has_said_no_often_enough_is_left_alone(make_runtime: MakeRuntime, is_in_call: bool) -> None:
    """After a few noes in a call, or outside of all calls, a server that goes on asking hears no from us."""
    person = ScriptedAsker(*["No"] * 20)
    runtime = make_runtime(services={"asker": person})
    at_work = [runtime.context(session_id="mine")] if is_in_call else []
    services = runtime.context().services

    actions = await asked(ElicitationHandler(SERVER, lambda: at_work, lambda: services), 10)

    assert actions == ["decline"] * 10
    assert len(person.asked) == MAX_REFUSALS


async def test_the_next_call_may_ask_again(make_runtime: MakeRuntime) -> None:
    """Noes are those of one call; a yes does not count."""
    person = ScriptedAsker(*["No"] * MAX_REFUSALS, *["Yes"] * 10)
    runtime = make_runtime(services={"asker": person})
    at_work = [runtime.context(session_id="mine")]
    elicitation = ElicitationHandler(SERVER, lambda: at_work, lambda: at_work[0].services)
    await asked(elicitation, MAX_REFUSALS + 1)

    at_work[:] = [runtime.context(session_id="mine")]

    assert await asked(elicitation, 5) == ["accept"] * 5


def test_noes_in_calls_at_the_same_time_are_kept_apart(make_runtime: MakeRuntime) -> None:
    """A server cannot have a no forgotten by asking in another call in between."""
    runtime = make_runtime()
    first, second = runtime.context(), runtime.context()
    at_work: list[ToolContext] = [first, second]
    refusals = RefusalCounter(lambda: at_work)

    refusals.add(first)
    refusals.add(second)
    refusals.add(second)

    assert (refusals.count(first), refusals.count(second), refusals.count(runtime.context())) == (1, 2, 0)


def test_an_image_that_is_no_base64_is_refused_at_once() -> None:
    """However long what a server sends is, a look at it takes no longer than its length says."""
    block = {"type": "image", "mimeType": "image/png", "data": "A" + " " * 1_000_000 + "!"}
    params: Any = {"messages": [{"role": "user", "content": block}], "maxTokens": 1}
    began = time.process_time()

    with pytest.raises(SamplingRequestError, match="base64"):
        to_messages(CreateMessageRequestParams.model_validate(params))

    assert time.process_time() - began < 5


@pytest.mark.parametrize("title", ["", "  ", 3])
def test_a_choice_without_a_title_hides_nothing(title: Any) -> None:
    """What stands for a choice is on one line without control characters, though its value has them."""
    values = ["\x1b[2Jgone", "one\ntwo", " \n "]
    choices = [{"const": value, "title": title} for value in values]

    [field] = parse_form({"type": "object", "properties": {"it": {"type": "string", "oneOf": choices}}})

    assert [option.value for option in field.options] == values
    assert all(option.title.isprintable() and option.title.strip() for option in field.options)
