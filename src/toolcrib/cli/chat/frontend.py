"""What the chat needs of the place where it happens: a terminal with a live input line, or plain lines."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Protocol, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from toolcrib.cli.chat.renderer import THEME
from toolcrib.cli.chat.status import Status


class Listener(Protocol):
    """Who is told what the person does."""

    def submit(self, text: str) -> None:
        """A line was entered."""
        ...

    @property
    def is_working(self) -> bool: ...

    async def settled(self) -> None:
        """Returns when nothing is being worked on."""
        ...

    def interrupt(self) -> None:
        """Ctrl-C."""
        ...

    def leave(self) -> None:
        """Ctrl-D, or nobody types any more."""
        ...

    def end(self, signal_number: int) -> None:
        """The process is asked to end."""
        ...


class Front(Protocol):
    """One way to talk to a person."""

    is_live: bool
    """Whether something can move: without that, the end of each thing is all that is shown."""

    @property
    def columns(self) -> int: ...

    def show(self, *renderables: RenderableType, gap: bool = False) -> None:
        """Print for good; `gap` puts an empty line in front."""
        ...

    def show_answer(self, text: str) -> None:
        """Print a block of an answer, in Markdown."""
        ...

    def refresh(self) -> None:
        """What moves has changed."""
        ...

    def prefill(self, text: str) -> None:
        """Give the person a text back to work on, where he has not begun to type something else."""
        ...

    def suspended(self) -> AbstractAsyncContextManager[None]:
        """Leaves the terminal to a dialogue of somebody else; what is printed meanwhile comes afterwards."""
        ...

    async def run(self, listener: Listener) -> None:
        """Take what the person types until `stop` is called."""
        ...

    def stop(self) -> None: ...


ENDING = ("SIGTERM", "SIGHUP")


@contextmanager
def signals_to(listener: Listener, *, interrupt: bool) -> Iterator[None]:
    """While this lasts, a closed window or a polite `kill` ends the chat in order; `interrupt`: Ctrl-C is told too."""
    if sys.platform == "win32":
        yield
        return
    loop = asyncio.get_running_loop()
    before = {}
    for name in ENDING:
        number = getattr(signal, name)
        # Whoever started us with `nohup` wants us to go on.
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


CHUNK_BYTES = 65536
PLAIN_COLUMNS = 80


class LineFront:
    """Reads lines and prints lines. Answers go to stdout; so does the rest where a person sees both, else to stderr."""

    is_live = False

    def __init__(self, status: Status) -> None:
        self._status = status
        self._at_terminal = sys.stdin.isatty()
        self._asides = sys.stdout if self._at_terminal and sys.stdout.isatty() else sys.stderr
        self._typed: deque[str] = deque()
        self._news = asyncio.Event()
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

    def prefill(self, text: str) -> None:
        self.show(Text(f"not asked: {text}"))

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        self._detach()
        try:
            yield
        finally:
            self._attach()

    async def run(self, listener: Listener) -> None:
        with signals_to(listener, interrupt=True):
            self._attach()
            try:
                while not self._stopped:
                    await self._hand_on(listener)
            finally:
                self._detach()

    def stop(self) -> None:
        self._stopped = True
        self._news.set()

    async def _hand_on(self, listener: Listener) -> None:
        """Give the listener the next line. From a pipe, a question follows when the last one is done with."""
        if self._at_terminal:
            await self._prompt_when_idle(listener)
        else:
            await listener.settled()
        if not self._typed and not self._ended:
            await self._news.wait()
        self._news.clear()
        if self._stopped:
            return
        if self._typed:
            listener.submit(self._typed.popleft())
        elif self._ended:
            listener.leave()
            await self._news.wait()

    async def _prompt_when_idle(self, listener: Listener) -> None:
        """Shows the prompt as soon as nothing is worked on, unless something was typed before."""
        waits = [asyncio.ensure_future(self._news.wait()), asyncio.ensure_future(listener.settled())]
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
            # A file, or a device such as /dev/null, is always ready, which event loops do not understand.
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
        self._news.set()


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
