"""Runs a small shell program beside the session of a place, for as long as a search may take."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from toolcrib.core.environments import Environment

MOST_BYTES = 256 * 1024 * 1024
NOT_FOUND = 127

# What follows is run with the folder to work in and arguments of its own. Its errors are kept apart from its output and
# come at the end, with how it ended. When nobody listens any more, standard input ends, and so does the program.
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
class Ran:
    """How a program ended, and what it printed."""

    output: bytes
    said: str = ""
    code: int = 0
    in_time: bool = True
    fits: bool = True
    """False when it printed more than is kept."""
    is_lost: bool = False
    """The place went away."""


class _Output:
    """Keeps what a program prints, up to the token that its end is marked with."""

    def __init__(self, mark: bytes, most_bytes: int) -> None:
        self.data = bytearray()
        self.is_full = asyncio.Event()
        self._mark = mark
        self._most_bytes = most_bytes

    def take(self, data: bytes) -> None:
        if not self.is_full.is_set():
            self.data += data
            if len(self.data) > self._most_bytes:
                self.is_full.set()

    def ran(self, *, in_time: bool) -> Ran:
        at = self.data.rfind(self._mark)
        fits = not self.is_full.is_set()
        if at < 0:
            return Ran(output=bytes(self.data), in_time=in_time, fits=fits, is_lost=in_time and fits)
        code, _, said = bytes(self.data[at + len(self._mark) :]).partition(b"\0")
        return Ran(output=bytes(self.data[:at]), said=said.decode(errors="replace"), code=int(code), in_time=in_time)


async def run_there(
    environment: Environment,
    main: str,
    folder: str,
    arguments: Sequence[str],
    *,
    seconds: float,
    stdin: bytes | None = None,
    most_bytes: int = MOST_BYTES,
) -> Ran:
    """Run the shell function `main`, whose text is given, in a folder of the place; it is ended when the time is up."""
    token = secrets.token_hex(8)
    output = _Output(b"\0" + token.encode() + b"\0", most_bytes)
    script = f"main() {{\n{main}\n}}\n{_AROUND if stdin is None else _FED}"
    argv = ["sh", "-c", script, "toolcrib", token, folder, *arguments]
    process = await environment.spawn(argv, on_output=output.take)
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            if stdin is not None:
                await process.write(stdin)
                await process.close_input()
            await _first(process.wait(), output.is_full.wait())
    except TimeoutError:
        return output.ran(in_time=False)
    except BrokenPipeError:
        pass  # it ended early, and its answer says why
    finally:
        await process.abandon()
    return output.ran(in_time=True)


async def _first(*waits: object) -> None:
    """Returns when the first of these has ended."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
