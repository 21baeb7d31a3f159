"""How output in many small pieces is read."""

from __future__ import annotations

import asyncio
import sys

from toolcrib.environments.host_process import spawn_on_host

PIECES = 20_000
WRITES_PIECES = f"import os\nfor number in range({PIECES}): os.write(1, b'%06d\\n' % number)"
ANSWERS = "while True: print(input(), flush=True)"


async def test_small_pieces_written_without_a_pause_are_read_together() -> None:
    """A program that writes one short line after the other is not looked at for each of them, and nothing is lost."""
    chunks: list[bytes] = []
    process = await spawn_on_host([sys.executable, "-c", WRITES_PIECES], on_output=chunks.append, environ={})
    assert await process.wait() == 0
    await process.abandon()
    assert b"".join(chunks) == b"".join(b"%06d\n" % number for number in range(PIECES))
    assert len(chunks) < PIECES / 10


async def test_a_conversation_in_small_pieces_goes_on_for_as_long_as_it_likes() -> None:
    """Each question gets its answer, however many small ones have gone before."""
    answers: asyncio.Queue[bytes] = asyncio.Queue()
    process = await spawn_on_host([sys.executable, "-c", ANSWERS], on_output=answers.put_nowait, environ={})
    for number in range(500):
        await process.write(b"%d\n" % number)
        async with asyncio.timeout(30):
            assert await answers.get() == b"%d\n" % number
    await process.abandon()
    process.signal_session(9)
    await process.wait()
