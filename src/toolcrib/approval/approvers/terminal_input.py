"""Single keys from a terminal, read inside a running event loop, with the terminal's modes always restored."""

from __future__ import annotations

import asyncio
import codecs
import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, TextIO

from msgspec import Struct

from toolcrib.approval.approvers.escape import visible, width

termios: ModuleType | None
try:
    import termios
except ImportError:  # no such thing on Windows
    termios = None

CHUNK_BYTES = 1024
HANG_UP = ""
"""What `Keys.read` returns when the terminal has gone."""


class NoTerminal(Exception):
    """There is nobody to read keys from; the text says why."""


class Keys:
    """What is typed while a question is open, in the pieces in which the terminal delivers it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._arrived: asyncio.Queue[str] = asyncio.Queue()
        self._escapes = EscapeFilter()

    async def read(self, timeout_seconds: float) -> str:
        """The next keys, as one text without terminal sequences; TimeoutError when nothing is typed in time."""
        return await asyncio.wait_for(self._arrived.get(), max(0.0, timeout_seconds))

    def discard(self) -> None:
        """Forget what was typed so far: nobody answers a question that he has not seen."""
        _flush(self._descriptor)
        while not self._arrived.empty():
            self._arrived.get_nowait()

    def take(self) -> None:
        """Called by the loop when the terminal has something to read."""
        try:
            data = os.read(self._descriptor, CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            # The terminal never blocks us, so nothing to read can also mean that another reader was quicker.
            if _hung_up(self._descriptor):
                asyncio.get_running_loop().remove_reader(self._descriptor)
                self._arrived.put_nowait(HANG_UP)
            return
        text = self._escapes.feed(self._decoder.decode(data))
        if text:
            self._arrived.put_nowait(text)


class EscapeFilter:
    """Replaces terminal sequences (arrow and function keys, Alt, paste marks) by one ESC each, across pieces.

    The last letter of such a sequence must not be taken for an answer: F4 ends in "S".
    """

    def __init__(self) -> None:
        self._inside = ""

    def feed(self, text: str) -> str:
        kept: list[str] = []
        for character in text:
            if character == "\x1b":
                self._inside = "\x1b"
            elif not self._inside:
                kept.append(character)
            elif self._inside == "\x1b" and character in "[O":
                self._inside = character
            elif self._inside == "[" and not "@" <= character <= "~":
                continue
            else:
                self._inside = ""
                kept.append("\x1b")
        return "".join(kept)


@contextmanager
def keys_of(descriptor: int) -> Iterator[Keys]:
    """Keys of a terminal, one by one and unechoed; on every way out the terminal is as it was."""
    if termios is None:
        raise NoTerminal("keys cannot be read one by one on this system")
    loop = asyncio.get_running_loop()
    # A descriptor of our own: another reader of the same terminal in this loop keeps its place.
    own = os.dup(descriptor)
    try:
        try:
            before = termios.tcgetattr(own)
        except termios.error as error:
            raise NoTerminal(f"the terminal cannot be used: {error}") from error
        keys = Keys(own)
        try:
            termios.tcsetattr(own, termios.TCSANOW, _one_by_one(before, termios))
            loop.add_reader(own, keys.take)
            yield keys
        finally:
            loop.remove_reader(own)
            _restore(own, before, termios)
    finally:
        os.close(own)


def _one_by_one(before: list[Any], terminal: ModuleType) -> list[Any]:
    """The modes with line editing, echo and signal keys off: Ctrl-C answers the question, it ends no program."""
    input_modes, output_modes, control, local, speed_in, speed_out, special = before
    local &= ~(terminal.ICANON | terminal.ECHO | terminal.ISIG)
    special = list(special)
    special[terminal.VMIN] = special[terminal.VTIME] = 0
    return [input_modes, output_modes, control, local, speed_in, speed_out, special]


def _flush(descriptor: int) -> None:
    if termios is not None:
        with suppress(termios.error):  # a terminal that has gone has nothing left to throw away
            termios.tcflush(descriptor, termios.TCIFLUSH)


def _restore(descriptor: int, before: list[Any], terminal: ModuleType) -> None:
    # What was typed behind the answer belongs to no other question.
    _flush(descriptor)
    with suppress(terminal.error):  # only a terminal that has gone refuses its own modes
        terminal.tcsetattr(descriptor, terminal.TCSANOW, before)


def _hung_up(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poller.poll(0))


CTRL_C, CTRL_D, CTRL_U = "\x03", "\x04", "\x15"
BACKSPACES = ("\x7f", "\x08")
ENTERS = ("\n", "\r")
MAX_CHARS = 1_000


class LinePrompt(Struct, frozen=True, kw_only=True):
    """What stands in front of the line, and what is said when there is none."""

    text: str
    """Keys count from its last line on."""
    timeout_seconds: float
    echo: bool
    nothing: str


async def read_line(keys: Keys, out: TextIO, prompt: LinePrompt, clock: Callable[[], float]) -> str | None:
    """What is typed up to Enter; None when that is nothing, or it is given up, or the time is over."""
    *above, last = map(visible, prompt.text.split("\n"))
    _write(out, "".join(f"{line}\n" for line in above))
    # What was typed before was not typed for this question.
    keys.discard()
    _write(out, last)
    deadline = clock() + prompt.timeout_seconds
    typed = ""
    try:
        while True:
            for key in await keys.read(deadline - clock()) or CTRL_C:  # nothing at all: it has gone
                if key in (CTRL_C, CTRL_D):
                    _write(out, f"\n{prompt.nothing}\n")
                    return None
                if key in ENTERS:
                    _write(out, "\n")
                    return typed or None
                before, typed = typed, _after(typed, key)
                if prompt.echo:
                    _write(out, _echo(before, typed))
    except TimeoutError:
        _write(out, f"\nno answer in time: {prompt.nothing}\n")
        return None
    except asyncio.CancelledError:
        with suppress(OSError):
            _write(out, "\ncancelled\n")
        raise


def _after(typed: str, key: str) -> str:
    if key in BACKSPACES:
        return typed[:-1]
    if key == CTRL_U:
        return ""
    return typed + key if key.isprintable() and len(typed) < MAX_CHARS else typed


def _echo(before: str, after: str) -> str:
    if after.startswith(before):
        return visible(after[len(before) :])
    return "\b \b" * width(visible(before[len(after) :]))


def _write(out: TextIO, text: str) -> None:
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()
