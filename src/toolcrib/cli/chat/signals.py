"""Signals that reach the chat are told to it, instead of tearing it down."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from toolcrib.cli.chat.front import Listener

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
