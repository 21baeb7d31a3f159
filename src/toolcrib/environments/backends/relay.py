"""Programs on services that carry text only: a script in the sandbox turns their bytes into lines of base64."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any, Literal

from toolcrib.core.environments import OnOutput
from toolcrib.environments.backends.hosted import HostedProcess
from toolcrib.environments.scripts import script

CHUNK_BYTES = 48 * 1024
LAST_LINE = "."
END_OF_INPUT = ".\n"
END = re.compile(r"=(?P<code>\d+)(?P<left_open>\+?)")
LEFT_OPEN_SECONDS = 0.2
COMPLETE_SECONDS = 30.0


def relayed(shell: str, argv: Sequence[str], *, takes_input: Literal["plain", "coded"]) -> list[str]:
    """The command line that runs `argv` under the script."""
    return [shell, "--norc", "--noprofile", "-c", script("relay"), "toolcrib", takes_input, *argv]


def input_lines(data: bytes) -> list[str]:
    """Bytes for a program whose input is coded, in portions that a request can carry."""
    portions = (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))
    return [base64.b64encode(portion).decode() + "\n" for portion in portions]


class _Lines:
    """Puts text that arrives in any pieces together to lines."""

    def __init__(self) -> None:
        self._begun: list[str] = []

    def add(self, text: str) -> list[str]:
        *finished, rest = text.split("\n")
        if finished:
            finished[0] = "".join([*self._begun, finished[0]])
            self._begun.clear()
        if rest:
            self._begun.append(rest)
        return [line.strip("\r") for line in finished]


class RelayedProcess(HostedProcess):
    """A program under the script; the service's part hands over what that says on its two streams."""

    def __init__(self, on_output: OnOutput) -> None:
        super().__init__(on_output)
        self._printed = _Lines()
        self._said = _Lines()
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """How it ended, according to the script."""
        self._taken = self._again = 0
        """How many lines have been handed over, and how many of them are still to come a second time."""
        self._is_complete = asyncio.Event()
        """Nothing that it printed before its end is still on its way."""

    def start_over(self) -> None:
        """The service sends everything from the beginning again."""
        self._printed, self._said = _Lines(), _Lines()
        self._again = self._taken

    def on_stdout(self, text: str) -> None:
        for line in filter(None, self._printed.add(text)):
            if self._again:
                self._again -= 1
                continue
            self._taken += 1
            if line == LAST_LINE:
                self._is_complete.set()
                continue
            try:
                self._arrived(base64.b64decode(line, validate=True))
            except binascii.Error:
                self._fail(f"the service changed what the program printed: {line[:80]!r}")

    def on_stderr(self, text: str) -> None:
        for line in self._said.add(text):
            if line.startswith("!"):
                self._fail(line[1:])
            elif (end := END.fullmatch(line)) and not self._code.done():
                self._code.set_result(int(end["code"]))
                if end["left_open"]:
                    # The script has waited already; this is for what the service still carries.
                    asyncio.get_running_loop().call_later(LEFT_OPEN_SECONDS, self._is_complete.set)

    async def _follow(self, reader: asyncio.Task[None]) -> None:
        """Learn how it ended, from the script or, when that is gone, from the service."""
        complete = asyncio.ensure_future(self._is_complete.wait())
        told: list[asyncio.Future[Any]] = [reader, self._code]
        try:
            await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
            if self._code.done():
                await asyncio.wait((reader, complete), timeout=COMPLETE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            complete.cancel()
        if self._code.done():
            self._end(self._code.result())
        else:
            await self._ask_how_it_ended()

    async def _ask_how_it_ended(self) -> None:
        """Settle the end by what the service knows."""
        raise NotImplementedError
