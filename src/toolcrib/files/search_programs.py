"""Runs a small shell program next to an environment's session, for as long as a search may take."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from toolcrib.core.environments import Environment

MAX_BYTES = 256 * 1024 * 1024

# Runs `main` in a folder, with arguments. Its errors are separate from its output and come at the end, with its exit
# code. When the reader goes away, standard input ends, and that ends the program.
_AROUND = r"""
unset IFS; LC_ALL=C; export LC_ALL; set -f
token=$1 folder=$2; shift 2
cd -- "$folder" 2>/dev/null || { printf '\0%s\0%s\0%s' "$token" 126 'cannot enter the folder'; exit 0; }
exec 3>&1 4<&0
said=$(
    main "$@" 2>&1 >&3 </dev/null 4<&- &
    program=$!
    { read -r _ <&4; kill "$program"; } >/dev/null 2>&1 3>&- &
    watcher=$!
    wait "$program"; code=$?
    kill "$watcher" 2>/dev/null
    exit "$code"
)
printf '\0%s\0%s\0%s' "$token" "$?" "$said"
"""
_FED = r"""
unset IFS; LC_ALL=C; export LC_ALL; set -f
token=$1 folder=$2; shift 2
cd -- "$folder" 2>/dev/null || { printf '\0%s\0%s\0%s' "$token" 126 'cannot enter the folder'; exit 0; }
exec 3>&1
said=$(main "$@" 2>&1 >&3)
printf '\0%s\0%s\0%s' "$token" "$?" "$said"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How a program ended and what it printed."""

    output: bytes
    stderr: str = ""
    code: int = 0
    in_time: bool = True
    fits: bool = True
    """False when it printed more than `max_bytes`."""
    is_lost: bool = False
    """The environment went away."""


class _Output:
    """Collects what a program prints, up to the token that marks its end."""

    def __init__(self, mark: bytes, max_bytes: int) -> None:
        self.data = bytearray()
        self.is_full = asyncio.Event()
        self._mark = mark
        self._max_bytes = max_bytes

    def take(self, data: bytes) -> None:
        if not self.is_full.is_set():
            self.data += data
            if len(self.data) > self._max_bytes:
                self.is_full.set()

    def result(self, *, in_time: bool) -> ProgramResult:
        at = self.data.rfind(self._mark)
        fits = not self.is_full.is_set()
        if at < 0:
            return ProgramResult(output=bytes(self.data), in_time=in_time, fits=fits, is_lost=in_time and fits)
        code, _, stderr = bytes(self.data[at + len(self._mark) :]).partition(b"\0")
        return ProgramResult(
            output=bytes(self.data[:at]), stderr=stderr.decode(errors="replace"), code=int(code), in_time=in_time
        )


async def run_program(
    environment: Environment,
    main: str,
    folder: str,
    arguments: Sequence[str],
    *,
    seconds: float,
    stdin: bytes | None = None,
    max_bytes: int = MAX_BYTES,
) -> ProgramResult:
    """Run a shell function, whose body is `main`, in a folder of the environment; kill it when the time is up."""
    token = secrets.token_hex(8)
    output = _Output(b"\0" + token.encode() + b"\0", max_bytes)
    script = f"main() {{\n{main}\n}}\n{_AROUND if stdin is None else _FED}"
    argv = ["sh", "-c", script, "toolcrib", token, folder, *arguments]
    process = await environment.spawn(argv, on_output=output.take)
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            if stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # it ended early, and its result says why
                    await process.write(stdin)
                await process.close_input()
            await _first(process.wait(), output.is_full.wait())
    except TimeoutError:
        return output.result(in_time=False)
    finally:
        await process.abandon()
    return output.result(in_time=True)


async def _first(*waits: object) -> None:
    """Return when the first of these has ended."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
