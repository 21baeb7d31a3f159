"""Writing to the input of a program without blocking the event loop."""

from __future__ import annotations

import asyncio
import os

import pytest

from toolcrib.environments.host_process import PipeWriter

MORE_THAN_A_PIPE_HOLDS = 1_000_000


async def test_a_large_text_arrives_whole_and_in_order() -> None:
    """Writing goes on whenever the reader has made room, one text after the other."""
    read_end, write_end = os.pipe()
    writer = PipeWriter(write_end)
    texts = [b"a" * MORE_THAN_A_PIPE_HOLDS, b"b" * MORE_THAN_A_PIPE_HOLDS]

    with os.fdopen(read_end, "rb") as reader:
        arriving = asyncio.ensure_future(asyncio.to_thread(reader.read))
        await asyncio.gather(*(writer.write(text) for text in texts))
        writer.close()
        arrived = await arriving

    assert arrived == b"".join(texts)


async def test_closing_the_input_ends_a_write_that_waits() -> None:
    """A reader that takes nothing cannot hold the writer once the input is closed."""
    read_end, write_end = os.pipe()
    writer = PipeWriter(write_end)
    waiting = asyncio.ensure_future(writer.write(b"a" * MORE_THAN_A_PIPE_HOLDS))
    # What the pipe holds is written in the first step of the task; then it waits for room.
    await asyncio.sleep(0)
    assert not waiting.done()

    writer.close()

    with pytest.raises(BrokenPipeError):
        await waiting
    assert not writer.is_open
    os.close(read_end)
