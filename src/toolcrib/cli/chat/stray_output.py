"""Keeps what tools and libraries print by themselves from running into the input line."""

from __future__ import annotations

import codecs
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TextIO

CHUNK_BYTES = 65536
MAX_LINE_CHARS = 2_000


@contextmanager
def stray_output_to(on_line: Callable[[str], None]) -> Iterator[TextIO]:
    """Gives the terminal as a stream of its own. What anybody else writes to stdout or stderr becomes lines.

    `on_line` is called in a thread, which ends with the context. C libraries and child processes write to the
    descriptors, so these are what is moved.
    """
    if sys.platform == "win32":
        # Pipes cannot be waited for there.
        yield sys.stdout
        return
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as undo:
        terminal = os.fdopen(
            os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, newline=""
        )
        undo.callback(_close, terminal)
        readable, writable = os.pipe()
        stop_heard, stop = os.pipe()
        for descriptor in (readable, stop_heard):
            undo.callback(os.close, descriptor)
        reader = threading.Thread(
            target=_read_lines, args=(readable, stop_heard, on_line), name="chat-stray-output", daemon=True
        )
        reader.start()
        undo.callback(reader.join)
        undo.callback(os.close, stop)
        for stream in (sys.stdout, sys.stderr):
            saved = os.dup(stream.fileno())
            undo.callback(os.close, saved)
            undo.callback(os.dup2, saved, stream.fileno())
            undo.callback(stream.flush)
            os.dup2(writable, stream.fileno())
        os.close(writable)
        yield terminal


def _close(terminal: TextIO) -> None:
    with suppress(OSError):  # a terminal that has gone takes nothing any more
        terminal.close()


def _read_lines(readable: int, stop_heard: int, on_line: Callable[[str], None]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while True:
        ready, _, _ = select.select([readable, stop_heard], [], [])
        if readable not in ready:
            break
        data = os.read(readable, CHUNK_BYTES)
        if not data:
            break
        *lines, rest = (rest + decoder.decode(data)).split("\n")
        for line in lines:
            on_line(line)
        if len(rest) > MAX_LINE_CHARS:
            on_line(rest)
            rest = ""
    if rest.strip():
        on_line(rest)
