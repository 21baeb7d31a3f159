"""What every engine of a hosted service must do, as tests that each of them inherits."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.environments.engine_runs import bash, run
from toolcrib.core.environments import TerminalSize
from toolcrib.core.errors import EnvironmentFailed

ALL_BYTES = bytes(range(256))


async def eventually(holds: Callable[[], bool]) -> None:
    """Returns when it holds. Nobody tells us when a service has done something by itself."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class HostedEngineRules:
    """Tests over the fixture `engine`, an open engine on a pretended service."""

    async def test_output_and_exit_code_of_a_program_arrive(self, engine: Any) -> None:
        """Both streams reach on_output, the exit code is the program's."""
        code, printed = await run(engine, "bash", "-c", "echo out; echo err >&2; exit 3")

        assert code == 3
        assert sorted(printed.split()) == [b"err", b"out"]

    async def test_a_program_ended_by_a_signal_has_128_and_its_number(self, engine: Any) -> None:
        """A signal N is the exit code 128 + N, and nothing is added to the output."""
        assert await run(engine, "bash", "-c", "kill -KILL $$") == (137, b"")

    async def test_bytes_pass_unchanged_in_both_directions(self, engine: Any) -> None:
        """All byte values, in any order, come back from `cat` as they were sent."""
        typed = ALL_BYTES * 3 + b"\0\1\1\1\2\2\2\n\n.\n=3\n" + ALL_BYTES[::-1]

        assert await run(engine, "cat", typed=typed) == (0, typed)

    async def test_arguments_pass_unchanged(self, engine: Any) -> None:
        """Quotes, spaces, newlines and empty arguments reach the program as given."""
        arguments = ["a b", "", "it's", '"', "$HOME", "\n", "\\", "*", "é"]

        code, printed = await run(engine, "printf", r"%s\0", *arguments)

        assert code == 0
        assert printed.decode().split("\0")[:-1] == arguments

    async def test_large_input_and_output_pass(self, engine: Any) -> None:
        """Megabytes go in and come out complete and in order."""
        typed = os.urandom(1_500_000)

        code, printed = await run(engine, "cat", typed=typed)

        assert code == 0
        assert hashlib.sha256(printed).hexdigest() == hashlib.sha256(typed).hexdigest()

    async def test_output_arrives_while_the_program_runs(self, engine: Any) -> None:
        """A prompt without a newline is there before it is answered."""
        arrived = asyncio.Event()
        printed = bytearray()

        def take(data: bytes) -> None:
            printed.extend(data)
            arrived.set()

        process = await engine.spawn(["bash", "-c", "printf 'name? '; read -r n; echo hi $n"], on_output=take)
        async with asyncio.timeout(10):
            await arrived.wait()
            assert bytes(printed) == b"name? "
            await process.write(b"ada\n")
            assert await process.wait() == 0
        await process.abandon()

        assert bytes(printed) == b"name? hi ada\n"

    async def test_the_end_does_not_wait_for_children_that_keep_the_output(self, engine: Any) -> None:
        """wait() returns although a child holds the streams, with what was printed before."""
        printed: list[bytes] = []
        process = await engine.spawn(["bash", "-c", "echo first; sleep 60 & exit 4"], on_output=printed.append)

        async with asyncio.timeout(60):
            code = await process.wait()
        await process.abandon()

        assert (code, b"".join(printed)) == (4, b"first\n")

    async def test_writing_to_a_program_that_ended_is_a_broken_pipe(self, engine: Any) -> None:
        """A write after the end raises BrokenPipeError; ending the input then is harmless."""
        process = await engine.spawn(["true"], on_output=lambda data: None)
        async with asyncio.timeout(10):
            await process.wait()

            with pytest.raises(BrokenPipeError):
                await process.write(b"late")
            await process.close_input()
        await process.abandon()

    async def test_the_end_is_told_to_all_who_ask(self, engine: Any) -> None:
        """wait() may be called often, by many, and cancelled, without losing the exit code."""
        process = await engine.spawn(["bash", "-c", "read -r; exit 7"], on_output=lambda data: None)
        waiting = [asyncio.ensure_future(process.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        async with asyncio.timeout(10):
            await process.close_input()
            assert await asyncio.gather(*waiting[1:]) == [7, 7]
            assert await process.wait() == 7
        await process.abandon()

    async def test_programs_run_beside_each_other(self, engine: Any) -> None:
        """Many programs at once keep their own output."""
        texts = await asyncio.gather(*(bash(engine, f"echo {number}") for number in range(6)))

        assert texts == [f"{number}\n" for number in range(6)]

    async def test_an_abandoned_program_goes_on(self, engine: Any, service: Any) -> None:
        """abandon() returns at once and ends nothing in the sandbox."""
        printed: list[bytes] = []
        process = await engine.spawn(["bash", "-c", "read -r; touch done"], on_output=printed.append)
        await process.write(b"go\n")

        async with asyncio.timeout(60):
            await process.abandon()

        await eventually((service.running[0].folder / "done").exists)
        assert printed == []

    async def test_an_unknown_program_is_said(self, engine: Any) -> None:
        """A program that is not there is exit code 127 or an EnvironmentFailed that names it."""
        try:
            code, printed = await run(engine, "no-such-program")
        except EnvironmentFailed as error:
            code, printed = 127, str(error).encode()

        assert code == 127
        assert b"no-such-program" in printed

    async def test_a_terminal_is_refused_with_a_reason(self, engine: Any) -> None:
        """There are no pseudo-terminals; the message says where there are."""
        with pytest.raises(EnvironmentFailed, match=r"does not support terminals.*docker"):
            await engine.spawn(["true"], on_output=lambda data: None, terminal=TerminalSize())

    async def test_closing_ends_the_sandbox_and_everything_in_it(self, engine: Any, service: Any) -> None:
        """After close() no process of the sandbox is left; closing again is harmless."""
        sandbox = service.running[0]
        process = await engine.spawn(["bash", "-c", "sleep 60 & sleep 60"], on_output=lambda data: None)
        assert sandbox.pids()

        async with asyncio.timeout(20):
            await engine.close()
            await engine.close()
            await process.abandon()

        assert service.running == []
        assert sandbox.pids() == []

    async def test_a_sandbox_that_vanished_is_told(self, engine: Any, service: Any) -> None:
        """When the service ended the sandbox, the next program is an EnvironmentFailed, not a hang."""
        await service.vanish()

        async with asyncio.timeout(30):
            with pytest.raises(EnvironmentFailed, match="could not run 'true'"):
                await engine.spawn(["true"], on_output=lambda data: None)

    async def test_nothing_of_ours_is_left_on_the_loop(self, engine: Any) -> None:
        """A program that ended and was let go of leaves no task of ours behind."""
        before = len(asyncio.all_tasks())
        for _ in range(3):
            await bash(engine, "echo")

        await eventually(lambda: len(asyncio.all_tasks()) <= before)
