"""What the chat needs of the place where it happens: a terminal with a live input line, or plain lines."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from rich.console import RenderableType


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
