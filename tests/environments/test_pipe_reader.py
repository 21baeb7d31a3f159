"""How the input and output of programs are transferred."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from toolcrib.core.environments import EngineProcess, OnOutput, TerminalSize
from toolcrib.environments.backends.local import LocalEngine
from toolcrib.environments.host_process import spawn_on_host
from toolcrib.environments.programs import run_program
from toolcrib.environments.shell import ShellEnvironment
from toolcrib.files.search_programs import run_program as run_search_program

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


async def test_standard_error_can_be_kept_apart() -> None:
    """With a callback of its own it is not mixed into the output."""
    output, errors = bytearray(), bytearray()
    argv = ["/bin/sh", "-c", "echo out; echo err >&2; echo out"]
    process = await spawn_on_host(argv, on_output=output.extend, on_error=errors.extend, environ={})
    assert await process.wait() == 0
    await process.abandon()
    assert (bytes(output), bytes(errors)) == (b"out\nout\n", b"err\n")


async def test_closing_this_machine_ends_programs_that_linger_after_their_answer() -> None:
    """A loop may close right afterwards: nobody would collect their exit then."""
    engine = LocalEngine({"PATH": "/usr/bin:/bin"})
    argv = ["/bin/sh", "-c", r"printf '\0%s\0\4\0' $$; exec sleep 600"]
    (pid,) = await run_program(engine, argv, timeout_seconds=30)
    assert is_there(pid)

    await engine.close()

    assert not is_there(pid)


def is_there(pid: str) -> bool:
    """Whether the process exists, if only because nobody has collected its exit."""
    return Path("/proc", pid).exists()


class SlowProcess:
    """A program that has ended before its input was written, and whose output arrives late."""

    pid = None

    def __init__(self, on_output: OnOutput, output: bytes) -> None:
        self._on_output = on_output
        self._output = output

    async def write(self, data: bytes) -> None:
        raise BrokenPipeError("it has ended")

    async def close_input(self) -> None:
        return

    async def resize(self, size: TerminalSize) -> None:
        return

    async def wait(self) -> int:
        await asyncio.sleep(0)
        self._on_output(self._output)
        return 0

    async def abandon(self) -> None:
        return


class SlowEngine(LocalEngine):
    async def spawn(  # type: ignore[override]
        self, argv: Sequence[str], *, on_output: OnOutput, terminal: TerminalSize | None = None
    ) -> EngineProcess:
        token = argv[4] if len(argv) > 4 else ""
        return SlowProcess(on_output, b"found\0%b\0001\0said" % token.encode() if token else b"\0no\0\4\0")


async def test_the_answer_of_a_script_that_reads_no_input_is_awaited() -> None:
    """An input that nobody reads is no lost environment: what the program printed still arrives."""
    answer = await run_program(SlowEngine({}), ["bash"], timeout_seconds=30, stdin=b"unread")

    assert answer == ["no"]


async def test_the_result_of_a_search_that_reads_no_input_is_awaited() -> None:
    """The same for the programs that search files."""
    environment = ShellEnvironment(SlowEngine({}))

    result = await run_search_program(environment, "true", "/", [], seconds=30, stdin=b"unread")

    assert not result.is_lost
    assert (result.output, result.stderr) == (b"found", "said")
