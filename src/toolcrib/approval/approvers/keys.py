"""Single keys from a terminal, read inside a running event loop, with the terminal's modes always restored."""

from __future__ import annotations

import asyncio
import codecs
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

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
