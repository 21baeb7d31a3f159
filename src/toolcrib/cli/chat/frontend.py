"""The frontend protocol of the chat, and the frontend for plain lines: pipes and simple terminals."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Protocol, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from toolcrib.cli.chat.picker import PickerRow
from toolcrib.cli.chat.renderer import THEME, ThemeName
from toolcrib.cli.chat.status import Status

ENDING = ("SIGTERM", "SIGHUP")
CHUNK_BYTES = 65536
PLAIN_COLUMNS = 80


class InputListener(Protocol):
    """Receives what the person does."""

    def submit(self, text: str) -> None:
        """The person entered a line."""
        ...

    @property
    def is_working(self) -> bool: ...

    async def settled(self) -> None:
        """Wait until nothing is running."""
        ...

    async def wants_line(self) -> None:
        """Wait until nothing is running, or a question of the chat itself needs a line."""
        ...

    def interrupt(self) -> None:
        """Ctrl-C."""
        ...

    def stop_work(self) -> None:
        """Esc, when nothing is typed."""
        ...

    def switch_mode(self) -> None:
        """Shift-Tab: the next mode."""
        ...

    def expand(self) -> None:
        """Ctrl-O: show the latest call in full."""
        ...

    def leave(self) -> None:
        """Ctrl-D, or the end of the input."""
        ...

    def end(self, signal_number: int) -> None:
        """A signal asks the process to end."""
        ...


class Frontend(Protocol):
    """Shows the chat to a person and reads the input."""

    is_live: bool
    """Whether it can redraw: if not, only finished things are shown."""

    @property
    def columns(self) -> int: ...

    def show(self, *renderables: RenderableType, gap: bool = False) -> None:
        """Print permanently; `gap` adds an empty line before it."""
        ...

    def show_answer(self, text: str) -> None:
        """Print a block of an answer, which is Markdown."""
        ...

    def refresh(self) -> None:
        """Redraw the status."""
        ...

    def await_person(self, why: str) -> None:
        """The person is needed: call them after a moment, unless they press a key."""
        ...

    def person_came(self) -> None:
        """The person is there, so nobody has to be called."""
        ...

    def use_theme(self, theme: ThemeName) -> None: ...

    @property
    def has_colour(self) -> bool: ...

    def send(self, sequence: str) -> None:
        """Send a control sequence to the terminal; nothing where there is none."""
        ...

    def prefill(self, text: str) -> None:
        """Put text into the input line, if it is empty."""
        ...

    async def pick(self, title: str, rows: Sequence[PickerRow], chosen: int = 0) -> int | None:
        """Let the person choose a row; None if they don't, or if this frontend cannot redraw."""
        ...

    def suspended(self) -> AbstractAsyncContextManager[None]:
        """Hand the terminal to another dialogue; output is held back until it ends."""
        ...

    async def run(self, listener: InputListener) -> None:
        """Read the input until `stop` is called."""
        ...

    def stop(self) -> None: ...


@contextmanager
def forward_signals(listener: InputListener, *, interrupt: bool) -> Iterator[None]:
    """Forward SIGTERM and SIGHUP to the listener, so that the chat ends cleanly; with `interrupt`, Ctrl-C too."""
    if sys.platform == "win32":
        yield
        return
    loop = asyncio.get_running_loop()
    before = {}
    for name in ENDING:
        number = getattr(signal, name)
        # With `nohup`, the process should continue.
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.getsignal(number)
            loop.add_signal_handler(number, listener.end, int(number))
    if interrupt:
        before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
        loop.add_signal_handler(signal.SIGINT, listener.interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


class LineFrontend:
    """Reads and prints plain lines. Answers go to stdout; the rest too on a terminal, else to stderr."""

    is_live = False

    def __init__(self, status: Status) -> None:
        self._status = status
        self._at_terminal = sys.stdin.isatty()
        self._asides = sys.stdout if self._at_terminal and sys.stdout.isatty() else sys.stderr
        self._typed: deque[str] = deque()
        self._notifications = asyncio.Event()
        self._ended = False
        self._stopped = False
        self._asked = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    @property
    def columns(self) -> int:
        try:
            return os.get_terminal_size(self._asides.fileno()).columns or PLAIN_COLUMNS
        except OSError:
            return PLAIN_COLUMNS

    def show(self, *renderables: RenderableType, gap: bool = False) -> None:
        console = Console(
            file=self._asides, width=self.columns, theme=THEME, color_system=None, highlight=False, markup=False
        )
        if gap:
            console.print()
        for renderable in renderables:
            console.print(renderable)
        self._asides.flush()

    def show_answer(self, text: str) -> None:
        _write(sys.stdout, f"{text}\n\n")

    def refresh(self) -> None:
        if self._status.asking and not self._asked:
            _write(self._asides, self._status.prompt())
        self._asked = self._status.asking

    def await_person(self, why: str) -> None:
        """A pipe or a simple terminal is not rung."""

    def person_came(self) -> None:
        """As above."""

    def use_theme(self, theme: ThemeName) -> None:
        """It prints without colours."""

    @property
    def has_colour(self) -> bool:
        return False

    def send(self, sequence: str) -> None:
        if self._asides.isatty():
            _write(self._asides, sequence)

    def prefill(self, text: str) -> None:
        self.show(Text(f"not sent: {text}"))

    async def pick(self, title: str, rows: Sequence[PickerRow], chosen: int = 0) -> int | None:
        return None

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        self._detach()
        try:
            yield
        finally:
            self._attach()

    async def run(self, listener: InputListener) -> None:
        with forward_signals(listener, interrupt=True):
            self._attach()
            try:
                while not self._stopped:
                    await self._hand_on(listener)
            finally:
                self._detach()

    def stop(self) -> None:
        self._stopped = True
        self._notifications.set()

    async def _hand_on(self, listener: InputListener) -> None:
        """Submit the next line. From a pipe, each question waits for the one before."""
        if self._at_terminal:
            await self._prompt_when_idle(listener)
        else:
            await listener.wants_line()
        if not self._typed and not self._ended:
            await self._notifications.wait()
        self._notifications.clear()
        if self._stopped:
            return
        if self._typed:
            listener.submit(self._typed.popleft())
        elif self._ended:
            listener.leave()
            await self._notifications.wait()

    async def _prompt_when_idle(self, listener: InputListener) -> None:
        """Show the prompt when nothing is running, unless input is waiting."""
        waits = [asyncio.ensure_future(self._notifications.wait()), asyncio.ensure_future(listener.settled())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if not self._typed and not self._ended and not self._stopped:
            _write(self._asides, self._status.prompt())

    def _attach(self) -> None:
        if self._ended:
            return
        try:
            if sys.platform != "win32":
                asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)
                return
        except PermissionError:
            # Event loops cannot wait for files and devices such as /dev/null, which are always ready.
            pass
        while not self._ended:
            self._read()

    def _detach(self) -> None:
        if sys.platform != "win32":
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _read(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), CHUNK_BYTES)
        except OSError:
            data = b""
        text = self._rest + self._decoder.decode(data, final=not data)
        *lines, self._rest = text.split("\n")
        if not data:
            self._detach()
            self._ended = True
            lines, self._rest = [*lines, self._rest] if self._rest else lines, ""
        self._typed += lines
        self._notifications.set()


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
