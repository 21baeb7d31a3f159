"""Starting a few servers at a time: a slow one does not hold up those behind it."""

from __future__ import annotations

import asyncio

from toolcrib.mcp.client.supervisor import StartLimiter

LIMIT_SECONDS = 20.0


async def test_a_start_that_hangs_gives_its_slot_back() -> None:
    """Behind servers that never come up, the next one starts all the same."""
    slots = StartLimiter(at_once=2, seconds=0.01)
    over = asyncio.Event()

    async def hang() -> None:
        async with slots.acquire():
            await over.wait()

    hanging = [asyncio.create_task(hang()) for _ in range(4)]
    async with asyncio.timeout(LIMIT_SECONDS), slots.acquire():
        assert not any(task.done() for task in hanging)
    over.set()
    await asyncio.gather(*hanging)


async def test_no_more_start_at_once_than_there_are_slots() -> None:
    """A slot is given back once, at the end of a start, also of one that was slow or failed."""
    slots = StartLimiter(at_once=2, seconds=LIMIT_SECONDS)
    at_work = most = 0

    async def start(number: int) -> None:
        nonlocal at_work, most
        async with slots.acquire():
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0)
            at_work -= 1
            if number % 2:
                raise OSError("did not start")

    ended = await asyncio.gather(*map(start, range(8)), return_exceptions=True)

    assert most == 2
    assert sum(isinstance(one, OSError) for one in ended) == 4
