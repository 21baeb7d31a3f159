"""Retries, fallbacks and rejected tools, with scripted providers inside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.core.errors import ConfigError
from toolcrib.core.messages import user_message
from toolcrib.core.models import (
    Delta,
    Dialect,
    Emit,
    ModelError,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    Notice,
    Provider,
    TextDelta,
)
from toolcrib.core.types import JsonObject
from toolcrib.providers.failures import tool_name
from toolcrib.providers.retrying import MAX_TRIES, FallbackProvider, RetryingProvider, ToolRejectionFilter
from toolcrib.providers.scripted import ScriptedProvider

BUSY = ModelError("busy", kind="server", may_retry=True)


class SleepRecorder:
    """Records waits instead of waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


class Breaking(ScriptedProvider):
    """Streams a piece before each of its failures."""

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        if self._steps and isinstance(self._steps[0], ModelError):
            emit(TextDelta("half an ans"))
        return await super().complete(request, emit)


def asking(**fields: Any) -> ModelRequest:
    return ModelRequest(**{"model": "m-1", "messages": (user_message("Hi"),), **fields})


def resilient(inner: Provider, waits: SleepRecorder, max_retries: int = 5, chance: float = 1.0) -> RetryingProvider:
    return RetryingProvider(inner, max_retries=max_retries, sleep=waits.sleep, random=lambda: chance)


async def test_a_failure_that_may_pass_is_tried_again_with_growing_waits() -> None:
    """Waits double, and each retry is announced with the reason."""
    waits, seen = SleepRecorder(), list[Delta]()
    provider = resilient(ScriptedProvider([BUSY, BUSY, BUSY, "fine"]), waits)

    response = await provider.complete(asking(), seen.append)

    assert response.message.text == "fine"
    assert waits.seconds == [0.5, 1.0, 2.0]
    notices = [one for one in seen if isinstance(one, Notice)]
    assert [one.kind for one in notices] == ["retry"] * 3
    assert "busy" in notices[0].message
    assert "1 of 5" in notices[0].message


async def test_a_retry_names_the_status_first_and_gives_no_advice() -> None:
    """What to do is for the failure that stays, and a narrow terminal cuts the end."""
    failed = ModelError("attic is down (boom); try again in a minute", kind="server", may_retry=True, status=500)
    seen = list[Delta]()

    await resilient(ScriptedProvider([failed, "fine"]), SleepRecorder()).complete(asking(), seen.append)

    [notice] = [one for one in seen if isinstance(one, Notice)]
    assert notice.message == "retrying in 0.5 s (1 of 5): HTTP 500: attic is down (boom)"


async def test_waits_stay_below_their_limit_and_are_spread() -> None:
    """No wait is longer than half a minute, and randomness removes up to half of it."""
    waits = SleepRecorder()
    provider = resilient(ScriptedProvider([*[BUSY] * 12, "fine"]), waits, max_retries=12, chance=0.0)

    await provider.complete(asking(), lambda _: None)

    assert waits.seconds[0] == 0.25
    assert max(waits.seconds) == 15.0


async def test_after_the_last_retry_the_failure_is_told() -> None:
    """One attempt and the configured number of retries, then the error."""
    waits, inner = SleepRecorder(), ScriptedProvider([], otherwise=BUSY)

    with pytest.raises(ModelError, match="busy"):
        await resilient(inner, waits, max_retries=2).complete(asking(), lambda _: None)

    assert len(inner.requests) == 3


@pytest.mark.parametrize("kind", ["key", "quota", "too_long", "bad_request", "filtered"])
async def test_a_failure_that_stays_is_not_tried_again(kind: Any) -> None:
    """A failure that waiting cannot fix is reported at once."""
    inner = ScriptedProvider([ModelError("no", kind=kind)])

    with pytest.raises(ModelError):
        await resilient(inner, SleepRecorder()).complete(asking(), lambda _: None)

    assert len(inner.requests) == 1


async def test_a_request_that_timed_out_is_sent_once_more_only() -> None:
    """Each further attempt could take just as long."""
    inner = ScriptedProvider([], otherwise=ModelError("late", kind="timeout", may_retry=True))

    with pytest.raises(ModelError, match="late"):
        await resilient(inner, SleepRecorder()).complete(asking(), lambda _: None)

    assert len(inner.requests) == 2


@pytest.mark.parametrize(("asked", "waited"), [(7.0, [7.0]), (0.1, [0.5]), (120.0, [120.0]), (121.0, [])])
async def test_the_servers_own_time_is_honoured(asked: float, waited: list[float]) -> None:
    """Retry-After is a minimum; beyond two minutes the person decides."""
    waits = SleepRecorder()
    limited = ModelError("slow down", kind="rate_limit", may_retry=True, retry_after_seconds=asked)
    provider = resilient(ScriptedProvider([limited, "fine"]), waits)

    if waited:
        await provider.complete(asking(), lambda _: None)
    else:
        with pytest.raises(ModelError, match="slow down"):
            await provider.complete(asking(), lambda _: None)

    assert waits.seconds == waited


async def test_what_was_streamed_before_a_failure_is_declared_void() -> None:
    """A restart notice comes between the partial answer and the complete one."""
    seen = list[Delta]()

    await resilient(Breaking([BUSY, "whole"]), SleepRecorder()).complete(asking(), seen.append)

    kinds = [one.kind if isinstance(one, Notice) else one.text for one in seen if isinstance(one, Notice | TextDelta)]
    assert kinds == ["half an ans", "restart", "retry", "whole"]


async def test_cancelling_ends_a_wait() -> None:
    """A cancelled request is not retried."""
    waiting, inner = asyncio.Event(), ScriptedProvider([BUSY, "fine"])

    async def sleep(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(RetryingProvider(inner, max_retries=5, sleep=sleep).complete(asking(), lambda _: None))
    await waiting.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(inner.requests) == 1


# --- fallbacks


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class NamedModel(ScriptedProvider):
    def __init__(self, name: str, *steps: Any, window: int = 1000, **options: Any) -> None:
        super().__init__(steps, profile=ModelProfile(context_window=window), **options)
        self.name = name
        self.closed = False

    async def close(self) -> None:
        self.closed = True


def render(definitions: Any, dialect: Dialect) -> list[JsonObject]:
    return [{"rendered": tool_name(one), "as": dialect} for one in definitions]


def with_fallbacks(first: Provider, *others: tuple[Provider, str], clock: Clock | None = None) -> FallbackProvider:
    opened = [lambda pair=pair: pair for pair in others]
    return FallbackProvider(first, opened, render=render, cool_down_seconds=60, clock=clock or Clock())


@pytest.mark.parametrize(
    "kind", ["key", "quota", "unknown_model", "server", "network", "timeout", "rate_limit", "missing_package"]
)
async def test_the_next_model_answers_when_the_first_cannot(kind: Any) -> None:
    """The notice gives the reason and the next model, and the response names who answered."""
    seen = list[Delta]()
    provider = with_fallbacks(NamedModel("one", ModelError("no luck", kind=kind)), (NamedModel("two", "hello"), "m-2"))

    response = await provider.complete(asking(), seen.append)

    assert (response.message.text, response.provider, response.model) == ("hello", "two", "m-2")
    notice = next(one for one in seen if isinstance(one, Notice))
    assert (notice.kind, notice.message) == ("fallback", "no luck; continuing with two/m-2")
    assert (provider.name, provider.dialect) == ("two", "openai")


@pytest.mark.parametrize("kind", ["filtered", "bad_request", "too_long", "refused_tool"])
async def test_what_another_model_would_refuse_as_well_is_told(kind: Any) -> None:
    """A filter, a bad request, or a conversation that is too long for the other model too: no fallback is tried."""
    other = NamedModel("two", "hello")
    provider = with_fallbacks(NamedModel("one", ModelError("no", kind=kind)), (other, "m-2"))

    with pytest.raises(ModelError) as caught:
        await provider.complete(asking(), lambda _: None)

    assert caught.value.kind == kind
    assert other.requests == []


async def test_a_long_conversation_goes_to_a_model_that_takes_more() -> None:
    """Only a larger window helps."""
    same, larger = NamedModel("two", "no"), NamedModel("three", "yes", window=5000)
    provider = with_fallbacks(NamedModel("one", ModelError("long", kind="too_long")), (same, "m-2"), (larger, "m-3"))

    response = await provider.complete(asking(), lambda _: None)

    assert response.provider == "three"
    assert same.requests == []


async def test_the_one_that_worked_is_kept_until_the_first_had_time_to_recover() -> None:
    """During the cool-down the fallback answers at once; after it the first is tried again."""
    clock = Clock()
    first, second = NamedModel("one", BUSY, "back"), NamedModel("two", otherwise="hello", window=77)
    provider = with_fallbacks(first, (second, "m-2"), clock=clock)

    await provider.complete(asking(), lambda _: None)
    clock.now = 50.0
    during = await provider.complete(asking(), lambda _: None)
    window = provider.profile("m-1").context_window
    clock.now = 61.0
    after = await provider.complete(asking(), lambda _: None)

    assert (during.provider, window, after.provider) == ("two", 77, "one")
    assert len(first.requests) == 2
    assert provider.profile("m-1").context_window == 1000


async def test_a_fallback_that_fails_later_gives_way_to_the_others() -> None:
    """The first model is tried again if the one in use fails."""
    first, second = NamedModel("one", BUSY, "back"), NamedModel("two", "hello", BUSY)
    provider = with_fallbacks(first, (second, "m-2"))

    await provider.complete(asking(), lambda _: None)
    response = await provider.complete(asking(), lambda _: None)

    assert response.provider == "one"


async def test_a_fallback_that_cannot_be_opened_is_passed_over() -> None:
    """A missing key of the second does not keep the third from answering."""

    def unopened() -> tuple[Provider, str]:
        raise ConfigError("no key")

    third = NamedModel("three", "hello")
    provider = FallbackProvider(NamedModel("one", BUSY), [unopened, lambda: (third, "m-3")], render=render)

    response = await provider.complete(asking(), lambda _: None)

    assert response.provider == "three"


async def test_when_all_fail_the_first_reason_leads() -> None:
    """The person learns why the chosen model failed, and that the others did too."""
    provider = with_fallbacks(
        NamedModel("one", ModelError("wrong key", kind="key")),
        (NamedModel("two", ModelError("offline", kind="network")), "m-2"),
    )

    with pytest.raises(ModelError) as caught:
        await provider.complete(asking(), lambda _: None)

    assert caught.value.kind == "key"
    assert str(caught.value).startswith("wrong key")
    assert "offline" in str(caught.value)


async def test_tools_are_rendered_anew_for_another_dialect() -> None:
    """The fallback gets the tools in its own form, and its own model name; the same dialect keeps the bytes."""
    foreign, alike = NamedModel("two", BUSY, dialect="anthropic"), NamedModel("three", "hello")
    provider = with_fallbacks(NamedModel("one", BUSY), (foreign, "m-2"), (alike, "m-3"))
    tools = [{"type": "function", "function": {"name": "alpha"}}]

    await provider.complete(asking(tools=tools, definitions=tools), lambda _: None)

    assert foreign.requests[0].tools == [{"rendered": "alpha", "as": "anthropic"}]
    assert foreign.requests[0].model == "m-2"
    assert alike.requests[0].tools is tools


async def test_a_request_without_definitions_keeps_its_tools() -> None:
    """Tools rendered for Anthropic are converted back before they are rendered again."""
    other = NamedModel("two", "hello")
    provider = with_fallbacks(NamedModel("one", BUSY, dialect="anthropic"), (other, "m-2"))

    await provider.complete(asking(tools=[{"name": "alpha", "input_schema": {}}]), lambda _: None)

    assert other.requests[0].tools == [{"rendered": "alpha", "as": "openai"}]


async def test_half_an_answer_of_the_first_is_declared_void() -> None:
    """The front end discards the partial answer before the fallback starts."""
    seen = list[Delta]()
    provider = with_fallbacks(Breaking([BUSY]), (NamedModel("two", "whole"), "m-2"))

    await provider.complete(asking(), seen.append)

    assert [one.kind for one in seen if isinstance(one, Notice)] == ["restart", "fallback"]


async def test_what_is_void_already_is_not_declared_void_again() -> None:
    """Only pieces since the last restart count."""
    seen = list[Delta]()
    inner = resilient(Breaking([BUSY], otherwise=ModelError("wrong key", kind="key")), SleepRecorder())

    await with_fallbacks(inner, (NamedModel("two", "whole"), "m-2")).complete(asking(), seen.append)

    assert [one.kind for one in seen if isinstance(one, Notice)] == ["restart", "retry", "fallback"]


async def test_closing_closes_every_provider_that_was_opened() -> None:
    """A fallback that was never needed is never opened."""
    first, second = NamedModel("one", BUSY), NamedModel("two", "hello")
    opened = list[str]()

    def third() -> tuple[Provider, str]:
        opened.append("three")
        return NamedModel("three"), "m-3"

    provider = FallbackProvider(first, [lambda: (second, "m-2"), third], render=render)
    await provider.complete(asking(), lambda _: None)
    await provider.close()

    assert first.closed
    assert second.closed
    assert opened == []


# --- tools that are set aside


def tool(name: str, description: str = "") -> JsonObject:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {}}}


def strict(bad: Callable[[ModelRequest], tuple[str, ...] | None]) -> ScriptedProvider:
    """A provider that rejects a request when `bad` says so, naming what it returns."""

    def step(request: ModelRequest) -> str:
        named = bad(request)
        if named is not None:
            raise ModelError("bad schema", kind="refused_tool", refused_tools=named, status=400)
        return "answer"

    return ScriptedProvider([], otherwise=step)


def names(request: ModelRequest) -> set[str]:
    return {tool_name(one) for one in request.tools}


def silent_about(*culprits: str) -> Callable[[ModelRequest], tuple[str, ...] | None]:
    return lambda request: () if names(request) & set(culprits) else None


def noticed(seen: list[Delta]) -> list[Notice]:
    return [one for one in seen if isinstance(one, Notice)]


async def test_a_named_tool_is_left_out_and_remembered() -> None:
    """One more request with the others; later requests leave it out at once."""
    inner = strict(lambda request: ("beta",) if "beta" in names(request) else None)
    provider, seen = ToolRejectionFilter(inner), list[Delta]()
    tools = [tool("alpha"), tool("beta"), tool("gamma")]

    await provider.complete(asking(tools=tools), seen.append)
    await provider.complete(asking(tools=tools), seen.append)

    assert [names(request) for request in inner.requests] == [
        {"alpha", "beta", "gamma"},
        {"alpha", "gamma"},
        {"alpha", "gamma"},
    ]
    assert [(one.kind, one.tool) for one in noticed(seen)] == [("tool_set_aside", "beta")]
    assert "bad schema" in noticed(seen)[0].message


async def test_a_tool_comes_back_when_its_schema_was_mended() -> None:
    """A rejected tool is remembered by name and schema together."""
    inner = strict(lambda request: ("beta",) if tool("beta") in request.tools else None)
    provider = ToolRejectionFilter(inner)

    await provider.complete(asking(tools=[tool("beta")]), lambda _: None)
    await provider.complete(asking(tools=[tool("beta", "mended")]), lambda _: None)

    assert names(inner.requests[-1]) == {"beta"}


@pytest.mark.parametrize("culprit", [0, 1, 29, 30, 58, 59])
async def test_a_culprit_that_nobody_names_is_found_by_halving(culprit: int) -> None:
    """The answer is given with every other tool, after a few small trials."""
    tools = [tool(f"t{at:02}") for at in range(60)]
    inner, seen = strict(silent_about(f"t{culprit:02}")), list[Delta]()

    response = await ToolRejectionFilter(inner).complete(asking(tools=tools, system="long"), seen.append)

    assert response.message.text == "answer"
    assert len(inner.requests[-1].tools) == 59
    assert len(inner.requests) <= MAX_TRIES + 2
    assert [one.tool for one in noticed(seen)] == [f"t{culprit:02}"]
    assert all(request.system == "" and request.max_output_tokens for request in inner.requests[1:-1])
    assert [one.text for one in seen if isinstance(one, TextDelta)] == ["answer"]


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 60), st.sets(st.integers(0, 59), min_size=1, max_size=60), st.booleans())
def test_any_culprits_end_with_an_answer(count: int, culprits: set[int], named: bool) -> None:
    """However many tools are wrong, named one by one or not at all, an answer comes within a few attempts."""
    wrong = {f"t{at:02}" for at in culprits}

    def bad(request: ModelRequest) -> tuple[str, ...] | None:
        found = sorted(names(request) & wrong)
        return (tuple(found[:1]) if named else ()) if found else None

    inner = strict(bad)
    tools = [tool(f"t{at:02}") for at in range(count)]
    seen = list[Delta]()

    response = asyncio.run(ToolRejectionFilter(inner).complete(asking(tools=tools), seen.append))

    assert response.message.text == "answer"
    assert not names(inner.requests[-1]) & wrong
    assert len(inner.requests) <= 2 * MAX_TRIES + 4


@pytest.mark.parametrize("count", [1, 2, 7, 60, 600])
async def test_trials_that_mislead_still_end_with_an_answer(count: int) -> None:
    """If trials pass but the request itself never does, it is finally sent without tools."""
    inner = strict(lambda request: () if request.system and request.tools else None)

    response = await ToolRejectionFilter(inner).complete(
        asking(system="S", tools=[tool(f"t{at:03}") for at in range(count)]), lambda _: None
    )

    assert response.message.text == "answer"
    assert len(inner.requests) <= 2 * MAX_TRIES + 4


async def test_too_many_tools_leave_the_largest_group_that_passed() -> None:
    """If each tool is fine but all together are not, the largest accepted group stays."""
    inner = strict(lambda request: () if len(request.tools) > 128 else None)
    tools = [tool(f"t{at:03}") for at in range(200)]

    await ToolRejectionFilter(inner).complete(asking(tools=tools), lambda _: None)

    assert len(inner.requests[-1].tools) == 100


async def test_a_provider_without_tools_answers_without_them() -> None:
    """All are named at once: one notice, no forced choice, one more request."""
    inner = strict(lambda request: tuple(sorted(names(request))) if request.tools else None)
    seen = list[Delta]()

    await ToolRejectionFilter(inner).complete(
        asking(tools=[tool(f"t{at}") for at in range(9)], tool_choice="required"), seen.append
    )

    assert len(inner.requests) == 2
    assert inner.requests[1].tool_choice == "auto"
    assert len(noticed(seen)) == 1
    assert "9 tools" in noticed(seen)[0].message


async def test_other_failures_pass_through() -> None:
    """Only a rejected tool is handled here, even while the culprit is being searched."""
    tools = [tool("alpha"), tool("beta")]
    steps = [ModelError("bad schema", kind="refused_tool"), ModelError("offline", kind="network")]

    with pytest.raises(ModelError, match="offline"):
        await ToolRejectionFilter(ScriptedProvider(steps)).complete(asking(tools=tools), lambda _: None)


async def test_a_refusal_without_any_tool_is_told() -> None:
    """There is nothing left to leave out."""
    inner = ScriptedProvider([], otherwise=ModelError("bad schema", kind="refused_tool"))

    with pytest.raises(ModelError, match="bad schema"):
        await ToolRejectionFilter(inner).complete(asking(), lambda _: None)

    assert len(inner.requests) == 1


async def test_the_same_request_goes_through_untouched() -> None:
    """Without a rejection nothing is copied or changed."""
    inner, request = ScriptedProvider(["fine"]), asking(tools=[tool("alpha")])

    await ToolRejectionFilter(RetryingProvider(inner, max_retries=1)).complete(request, lambda _: None)

    assert inner.requests[0] is request
    assert msgspec.structs.asdict(request)["definitions"] == ()
