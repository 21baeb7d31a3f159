"""How long a call may take when its server asks something in between."""

from __future__ import annotations

import asyncio

import pytest

from toolcrib.mcp.client.connection import PausableTimeouts

LIMIT = 0.05


async def person(minutes: float) -> str:
    """Somebody who takes that many times the limit to answer."""
    answered = asyncio.Event()
    asyncio.get_running_loop().call_later(minutes * LIMIT, answered.set)
    await answered.wait()
    return "yes"


async def test_the_time_of_a_person_does_not_count() -> None:
    """A call whose server waits for an answer of ours does not run out of time meanwhile."""
    clocks = PausableTimeouts()
    ask = clocks.pausing(person)
    async with clocks.limit(LIMIT):
        assert await ask(4) == "yes"


async def test_a_call_that_begins_during_a_question_rests_too() -> None:
    """Which call a question belongs to is not known, so none of them runs out of time."""
    clocks = PausableTimeouts()
    asking = asyncio.ensure_future(clocks.pausing(person)(4))
    await asyncio.sleep(0)
    async with clocks.limit(LIMIT):
        assert await asking == "yes"


async def test_after_the_answer_the_clock_goes_on() -> None:
    """A server that was answered, and then hangs, is given up as any other."""
    clocks = PausableTimeouts()
    ask = clocks.pausing(person)

    async def hangs_after_two_answers() -> None:
        async with clocks.limit(LIMIT):
            await asyncio.gather(ask(1), ask(2))
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await hangs_after_two_answers()


async def test_a_question_that_fails_starts_the_clock_again() -> None:
    """Whatever became of the answer, the server has it now."""
    clocks = PausableTimeouts()

    async def nobody() -> None:
        raise ValueError("nobody is here")

    async def hangs_after_no_answer() -> None:
        async with clocks.limit(LIMIT):
            with pytest.raises(ValueError, match="nobody"):
                await clocks.pausing(nobody)()
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await hangs_after_no_answer()
