"""The engine over objects that run one bash command at a time: programs with open input, whatever the handle is."""

from __future__ import annotations

import asyncio
import io
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolcrib.core.environments import TerminalSize
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.bash_runner import BashRunnerEngine

LIMIT_SECONDS = 30


class Pipes:
    """Gives `Popen` objects."""

    def __init__(self) -> None:
        self.cleanups = 0
        self.started: list[subprocess.Popen[str]] = []

    def _run_bash(self, cmd_string: str, *, login: bool, timeout: int, stdin_data: str | None) -> Any:
        process = subprocess.Popen(
            ["bash", "-c", cmd_string],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin"},
            text=True,
        )
        self.started.append(process)
        assert process.stdin is not None
        process.stdin.write(stdin_data or "")
        process.stdin.close()
        return process

    def cleanup(self) -> None:
        self.cleanups += 1


class CompletedHandle:
    """A handle of a service that answers when all is over: its output is text in memory."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.stdout = io.StringIO(done.stdout)
        self.returncode = done.returncode

    def poll(self) -> int:
        return self.returncode

    def kill(self) -> None:
        return None


class BlockingRunner(Pipes):
    """Runs a command to its end before it gives a handle."""

    def _run_bash(self, cmd_string: str, *, login: bool, timeout: int, stdin_data: str | None) -> Any:
        process = super()._run_bash(cmd_string, login=login, timeout=timeout, stdin_data=stdin_data)
        output, _ = process.stdout.read(), process.wait()
        process.stdout.close()
        return CompletedHandle(subprocess.CompletedProcess([], process.returncode, output))


class FailingRunner(Pipes):
    def _run_bash(self, cmd_string: str, *, login: bool, timeout: int, stdin_data: str | None) -> Any:
        raise ConnectionError("the service is down")


@pytest.fixture
async def engine() -> AsyncIterator[BashRunnerEngine]:
    runner = Pipes()
    engine = BashRunnerEngine(runner, "mine")
    async with asyncio.timeout(LIMIT_SECONDS):
        await engine.open()
        yield engine
        await engine.close()
    assert runner.cleanups == 1
    for process in runner.started:
        assert process.wait(LIMIT_SECONDS) is not None


async def test_input_arrives_piece_by_piece(engine):
    """What is written is read at once, bytes as they are, and ends when it is closed."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    process = await engine.spawn(["cat"], on_output=heard.put_nowait)

    for piece in (b"one\n", b"\xff\xfe\x00two"):
        await process.write(piece)
        assert await heard.get() == piece
    await process.close_input()

    assert await process.wait() == 0
    with pytest.raises(BrokenPipeError):
        await process.write(b"late")


async def test_exit_codes_and_all_output_arrive(engine):
    """A megabyte before the end is complete when the end is told."""
    size = 0

    def count(data: bytes) -> None:
        nonlocal size
        size += len(data)

    process = await engine.spawn(["bash", "-c", "head -c 1000000 /dev/zero; exit 5"], on_output=count)

    assert (await process.wait(), size) == (5, 1_000_000)


async def test_a_child_that_holds_the_output_is_not_waited_for(engine):
    """The end of the program counts."""
    pids: list[bytes] = []
    process = await engine.spawn(["bash", "-c", "sleep 600 & echo $!"], on_output=pids.append)

    assert await process.wait() == 0

    ending = await engine.spawn(["kill", b"".join(pids).decode().strip()], on_output=lambda _: None)
    assert await ending.wait() == 0


async def test_one_that_has_ended_takes_no_input(engine):
    """Writing to it fails; closing its input is harmless."""
    process = await engine.spawn(["true"], on_output=lambda _: None)
    await process.wait()

    await process.close_input()
    with pytest.raises(BrokenPipeError):
        await process.write(b"x")


async def test_closing_ends_what_still_runs(engine):
    """A program that waits for input is gone with the engine; the fixture looks at every process."""
    process = await engine.spawn(["cat"], on_output=lambda _: None)
    await process.write(b"x")

    await process.abandon()


async def test_there_are_no_terminals(engine):
    """That is said, instead of running the program without one."""
    with pytest.raises(EnvironmentFailed, match="does not support terminals"):
        await engine.spawn(["true"], on_output=lambda _: None, terminal=TerminalSize())


async def test_a_backend_that_fails_is_named():
    """Whatever it raises is told as a failure of the environment."""
    with pytest.raises(EnvironmentFailed, match="ConnectionError: the service is down"):
        await BashRunnerEngine(FailingRunner(), "mine").open()


async def test_a_handle_may_hold_text_in_memory():
    """Services that answer when all is over can be opened and closed, and run what needs no input."""
    engine = BashRunnerEngine(BlockingRunner(), "mine")
    heard: list[bytes] = []
    async with asyncio.timeout(LIMIT_SECONDS):
        await engine.open()
        process = await engine.spawn(["echo", "grüße"], on_output=heard.append)
        code = await process.wait()
        await engine.close()

    assert (code, b"".join(heard).decode()) == (0, "grüße\n")
