"""Reads single keys and lines from a terminal inside a running event loop, and always restores the terminal's modes."""

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
except ImportError:  # Windows has no termios.
    termios = None

CHUNK_BYTES = 1024
HANG_UP = ""
"""What `Keys.read` returns when the terminal has hung up."""


class NoTerminal(Exception):
    """Keys cannot be read; the text says why."""


class Keys:
    """The keys typed while a question is open, in the chunks that the terminal delivers."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._arrived: asyncio.Queue[str] = asyncio.Queue()
        self._escapes = EscapeFilter()

    async def read(self, timeout_seconds: float) -> str:
        """The next keys as one text without terminal sequences; TimeoutError if nothing is typed in time."""
        return await asyncio.wait_for(self._arrived.get(), max(0.0, timeout_seconds))

    def discard(self) -> None:
        """Discard what was typed so far: it can't be the answer to a question that wasn't on screen yet."""
        _flush(self._descriptor)
        while not self._arrived.empty():
            self._arrived.get_nowait()

    def take(self) -> None:
        """Read what the terminal has; the loop calls this."""
        try:
            data = os.read(self._descriptor, CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            # Reads never block, so an empty read can also mean that another reader was quicker.
            if _hung_up(self._descriptor):
                asyncio.get_running_loop().remove_reader(self._descriptor)
                self._arrived.put_nowait(HANG_UP)
            return
        text = self._escapes.feed(self._decoder.decode(data))
        if text:
            self._arrived.put_nowait(text)


class EscapeFilter:
    """Replaces each terminal sequence (arrow and function keys, Alt, paste marks) with one ESC, even across chunks.

    The last letter of a sequence must not count as an answer: F4 ends in "S".
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
def open_keys(descriptor: int) -> Iterator[Keys]:
    """Single keys of a terminal, without echo; the terminal's modes are always restored."""
    if termios is None:
        raise NoTerminal("this system cannot read single keys")
    loop = asyncio.get_running_loop()
    # A descriptor of our own, so that another reader of this terminal in the same loop keeps working.
    own = os.dup(descriptor)
    try:
        try:
            before = termios.tcgetattr(own)
        except termios.error as error:
            raise NoTerminal(f"the terminal cannot be used: {error}") from error
        keys = Keys(own)
        try:
            termios.tcsetattr(own, termios.TCSANOW, _raw_modes(before, termios))
            loop.add_reader(own, keys.take)
            yield keys
        finally:
            loop.remove_reader(own)
            _restore(own, before, termios)
    finally:
        os.close(own)


def _raw_modes(before: list[Any], terminal: ModuleType) -> list[Any]:
    """The modes with line editing, echo and signal keys off: Ctrl-C answers the question, not the program."""
    input_modes, output_modes, control, local, speed_in, speed_out, special = before
    local &= ~(terminal.ICANON | terminal.ECHO | terminal.ISIG)
    special = list(special)
    special[terminal.VMIN] = special[terminal.VTIME] = 0
    return [input_modes, output_modes, control, local, speed_in, speed_out, special]


def _flush(descriptor: int) -> None:
    if termios is not None:
        with suppress(termios.error):  # a terminal that has hung up has no input to discard
            termios.tcflush(descriptor, termios.TCIFLUSH)


def _restore(descriptor: int, before: list[Any], terminal: ModuleType) -> None:
    # Anything typed after the answer is not meant for another question.
    _flush(descriptor)
    with suppress(terminal.error):  # a terminal refuses its own modes only after it has hung up
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
    """The text in front of an input line, and the message if nothing is entered."""

    text: str
    """Only keys typed after its last line appears count."""
    timeout_seconds: float
    echo: bool
    nothing: str


async def read_line(keys: Keys, out: TextIO, prompt: LinePrompt, clock: Callable[[], float]) -> str | None:
    """The line typed up to Enter; None if it is empty, cancelled or late."""
    *above, last = map(visible, prompt.text.split("\n"))
    _write(out, "".join(f"{line}\n" for line in above))
    # Anything typed earlier was not meant for this question.
    keys.discard()
    _write(out, last)
    deadline = clock() + prompt.timeout_seconds
    typed = ""
    try:
        while True:
            for key in await keys.read(deadline - clock()) or CTRL_C:  # an empty read means the terminal has hung up
                if key in (CTRL_C, CTRL_D):
                    _write(out, f"\n{prompt.nothing}\n")
                    return None
                if key in ENTERS:
                    _write(out, "\n")
                    return typed or None
                before, typed = typed, _edited(typed, key)
                if prompt.echo:
                    _write(out, _echo(before, typed))
    except TimeoutError:
        _write(out, f"\nno answer in time: {prompt.nothing}\n")
        return None
    except asyncio.CancelledError:
        with suppress(OSError):
            _write(out, "\ncancelled\n")
        raise


def _edited(typed: str, key: str) -> str:
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
