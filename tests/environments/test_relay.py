"""The script that makes text of a program's bytes, and the reading of that text."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.hosted import TextRelayProcess, input_lines, relayed


def run_script(*argv: str, path: str | None = None, typed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    bash = shutil.which("bash")
    assert bash is not None
    environ = None if path is None else {"PATH": path}
    command = relayed(bash, argv, takes_input="plain")
    return subprocess.run(command, input=typed, capture_output=True, env=environ, timeout=20, check=False)


class RelayWithoutService(TextRelayProcess):
    """A process that knows only the output of the script; there is no service to ask about it."""

    def __init__(self) -> None:
        self.printed = bytearray()
        super().__init__(self.printed.extend)
        self.reader = self._start(self._never())
        self._start(self._follow(self.reader))

    async def _never(self) -> None:
        await asyncio.Event().wait()

    async def _ask_how_it_ended(self) -> None:
        self._fail("nobody knows")


def test_the_exit_code_follows_the_last_line() -> None:
    """The script encodes the output, ends it with a dot, and reports the exit code on stderr."""
    done = run_script("bash", "-c", r"printf '\0\377'; exit 3")

    assert done.stdout == base64.b64encode(b"\0\xff") + b"\n.\n"
    assert (done.stderr, done.returncode) == (b"=3\n", 3)


def test_output_that_is_left_open_is_reported(tmp_path: Path) -> None:
    """A child that keeps the output open does not delay the end; the report marks it."""
    bash, gate = str(shutil.which("bash")), tmp_path / "gate"
    code = f"while [ ! -e '{gate}' ]; do sleep 0.05; done & exit 4"
    command = relayed(bash, ("bash", "-c", code), takes_input="plain")

    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            end = process.stderr.readline()
        finally:
            gate.touch()
        process.communicate(timeout=20)

    assert (end, process.returncode) == (b"=4+\n", 4)


def test_a_program_missing_in_the_image_is_reported() -> None:
    """The message names the missing program, so that people can install it."""
    done = run_script("true", path="/nonexistent")

    assert done.stderr == b"!the image has no base64\n"


def test_the_program_can_be_interrupted() -> None:
    """It does not inherit ignored signals from the script."""
    done = run_script("bash", "-c", "trap 'echo caught; exit 5' INT; kill -INT $$; sleep 5")

    assert base64.b64decode(done.stdout.split(b"\n")[0]) == b"caught\n"
    assert done.returncode == 5


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 500), max_size=20), again=st.integers(0, 500))
def test_output_is_the_same_however_it_is_cut(data: bytes, cuts: list[int], again: int) -> None:
    """Pieces of any size, and a log that starts again in the middle, give every byte once, in order."""
    lines = "".join(input_lines(data[start : start + 7])[0] for start in range(0, len(data), 7)) + ".\n"

    async def read() -> tuple[int, bytes]:
        process = RelayWithoutService()
        process.on_stdout(lines[:again])
        process.start_over()
        places = sorted({0, len(lines), *(cut for cut in cuts if cut < len(lines))})
        for start, end in itertools.pairwise(places):
            process.on_stdout(lines[start:end])
        process.on_stderr("bash: line 1: noise\n=")
        process.on_stderr("12\n")
        code = await asyncio.wait_for(process.wait(), 60)
        await process.abandon()
        return code, bytes(process.printed)

    assert asyncio.run(read()) == (12, data)


async def test_a_reason_not_to_run_is_an_error() -> None:
    """What the script cannot do is told by wait()."""
    process = RelayWithoutService()

    process.on_stderr("!the image has no base64\n")

    with pytest.raises(EnvironmentFailed, match="the image has no base64"):
        await process.wait()
    await process.abandon()


async def test_text_that_is_not_the_scripts_is_an_error() -> None:
    """A service that changes what passes through it is noticed."""
    process = RelayWithoutService()

    process.on_stdout("\x1b[31mhello\n")

    with pytest.raises(EnvironmentFailed, match="altered the output"):
        await process.wait()
    await process.abandon()
