"""Output for people and programs: tables on a terminal, aligned text in a pipe, JSON on request."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import json
import os
import re
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from toolcrib.config.os_errors import reason_of
from toolcrib.config.tool_call_mark import is_in_tool_call

# Text from third parties must not move the cursor or change the colours of the reader's terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Nor may it hide words from the reader that a model would read. Joiners are part of other scripts and of emoji.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\U000e0000-\U000e0fff]|(?:^|(?<=[\x00-\x7f]))[\u200c\u200d]|[\u200c\u200d](?=[\x00-\x7f]|$)"
)
_ZERO_WIDTH = frozenset({"Mn", "Me", "Cf"})
_STYLES = {"yes": "green", "on": "green", "no": "yellow", "error": "red", "warning": "yellow", "broken": "red"}
COLUMN_GAP = "  "
ESCAPE = "toolcrib.escape"
"""The name of our encoding error handler; `prepare_streams` registers it."""

Pairs = Sequence[tuple[str, str | Sequence[str]]]


class ResultStream(io.TextIOWrapper):
    """Standard output, which remembers why it could not be written: the error itself names no file."""

    problem: OSError | None = None

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self.problem = error
            raise

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self.problem = error
            raise


def prepare_streams() -> None:
    """Make stdout remember its failures, and write what the locale cannot encode as JSON escapes.

    So JSON output stays valid JSON. Messages on stderr are escaped in the same way.
    """
    codecs.register_error(ESCAPE, _escaped)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors=ESCAPE)
    plain = sys.stdout
    # Not one that a test or another program put in its place.
    if type(plain) is io.TextIOWrapper:
        encoding, has_lines, is_direct = plain.encoding, plain.line_buffering, plain.write_through
        sys.stdout = ResultStream(plain.detach(), encoding, ESCAPE, line_buffering=has_lines, write_through=is_direct)
        # The same object as before, for whoever bypasses a redirection.
        sys.__stdout__ = sys.stdout  # type: ignore[misc]
    elif isinstance(plain, io.TextIOWrapper):
        plain.reconfigure(errors=ESCAPE)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def stdout_is_terminal() -> bool:
    return sys.stdout.isatty()


def is_interactive() -> bool:
    """Whether a person can be asked: stdin and stderr both belong to a terminal, and no agent types there."""
    at_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    return at_terminal and not is_in_tool_call()


def print_line(text: str = "") -> None:
    """Print one line of the result."""
    sys.stdout.write(clean(text) + "\n")


def print_json(value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    for hidden in (_CONTROL, _INVISIBLE):
        text = hidden.sub(lambda found: json.dumps(found.group())[1:-1], text)
    sys.stdout.write(text + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with a heading; only the heading if there are no rows."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    if stdout_is_terminal():
        styles = [[_STYLES.get(cell, "bold" if at == 0 else "") for at, cell in enumerate(row)] for row in cells]
        _draw(columns, [list(zip(row, style, strict=True)) for row, style in zip(cells, styles, strict=True)])
        return
    widths = [max(map(cell_width, column)) for column in zip(columns, *cells, strict=True)]
    for row in [[name.upper() for name in columns], *cells]:
        padded = [cell + " " * (width - cell_width(cell)) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write(COLUMN_GAP.join(padded).rstrip() + "\n")


def print_pairs(pairs: Pairs) -> None:
    """Print labels, each with its text or its lines of text beside it."""
    lines = [(label, [text] if isinstance(text, str) else list(text)) for label, text in pairs]
    if stdout_is_terminal():
        _draw((), [((label, "bold"), ("\n".join(map(clean, texts)), "")) for label, texts in lines])
        return
    width = max((cell_width(label) for label, _ in lines), default=0)
    for label, texts in lines:
        for at, text in enumerate(texts or [""]):
            head = label if at == 0 else ""
            sys.stdout.write(f"{head}{' ' * (width - cell_width(head))}{COLUMN_GAP}{clean(text)}".rstrip() + "\n")


def _draw(columns: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]]) -> None:
    """Draw rows of cells, each with its style; without columns they are labels and texts, and there is no heading."""
    # Rich is slow to import, and only a terminal needs it.
    from rich import box, console, table, text  # noqa: PLC0415

    drawn = table.Table.grid(padding=(0, 2))
    if columns:
        drawn = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for at, name in enumerate(columns or ("", "")):
        drawn.add_column(name, overflow="fold", no_wrap=at == 0)
    for row in rows:
        drawn.add_row(*(text.Text(cell, style=style) for cell, style in row))
    console.Console(highlight=False).print(drawn)


def error_line(message: str) -> None:
    """Print an error as one line on stderr."""
    _write_stderr(f"toolcrib: {one_line(message)}\n")


def note(message: str = "") -> None:
    """Print a message for the person on stderr, apart from the result."""
    _write_stderr(clean(message) + "\n")


def _write_stderr(text: str) -> None:
    """Write, and stop writing where it is not possible: a lost message must not stop the work that it is about."""
    # Keeps results and messages in order where both go to the same file; a stdout that fails is reported at the end.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard_output(sys.stderr)


def stdout_problem() -> str:
    """Why nothing more can be written to stdout, as a sentence with a remedy; empty if it can be."""
    try:
        sys.stdout.flush()
        problem = sys.stdout.problem if isinstance(sys.stdout, ResultStream) else None
    except OSError as error:
        problem = error
    if problem is None:
        return ""
    if problem.errno == errno.EBADF:
        return "standard output is closed, so the result is lost; run it again without `>&-`"
    return (
        f"cannot write the result to standard output ({reason_of(problem)}); free some space where it goes, "
        "or send it to another file, as with `> FILE`"
    )


def discard_output(stream: TextIO) -> None:
    """Discard what is left in the buffer of a stream, and all that follows: nobody can read it."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def hint(message: str) -> None:
    """Print a tip for a person at a terminal; scripts never see it."""
    if stdout_is_terminal() and sys.stderr.isatty():
        note(message)


def clean(text: str) -> str:
    """The text with control characters and invisible ones replaced, except line breaks and tabs."""
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub("�", _CONTROL.sub("�", text))


def cell_width(text: str) -> int:
    """How many terminal columns the text takes."""
    return sum(
        0 if unicodedata.category(char) in _ZERO_WIDTH else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def as_config_text(value: Any) -> str:
    """A config value as people write it: bare text, everything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


@contextlib.contextmanager
def stdout_reserved() -> Iterator[None]:
    """Send what third-party code prints to stderr: stdout carries only results."""
    sys.stdout.flush()
    with _descriptor_moved(1, 2), contextlib.redirect_stdout(sys.stderr):
        yield
        sys.stderr.flush()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discard all output: during shell completion it would land in the line that is being typed."""
    with (
        open(os.devnull, "w", encoding="utf-8") as null,  # noqa: PTH123 - a device, not a path
        _descriptor_moved(1, null.fileno()),
        _descriptor_moved(2, null.fileno()),
        contextlib.redirect_stdout(null),
        contextlib.redirect_stderr(null),
    ):
        yield


@contextlib.contextmanager
def _descriptor_moved(descriptor: int, target: int) -> Iterator[None]:
    """Redirect a descriptor, because child processes do not write to sys.stdout. A closed descriptor stays closed."""
    with contextlib.ExitStack() as undo:
        with contextlib.suppress(OSError):
            saved = os.dup(descriptor)
            undo.callback(os.close, saved)
            os.dup2(target, descriptor)
            undo.callback(os.dup2, saved, descriptor)
        yield


def one_line(text: str) -> str:
    """The text on one line, without control characters."""
    return clean(" ".join(text.split()))


def short_path(path: str) -> str:
    """The path with ~ for the home folder."""
    try:
        home = str(Path.home())
    except RuntimeError:
        return path
    return f"~{path[len(home) :]}" if path == home or path.startswith(f"{home}/") else path


def local_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"
