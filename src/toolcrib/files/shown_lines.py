"""Lines as the model gets them: numbered, long ones cut, as many as fit."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from toolcrib.files.text_files import in_older_encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowLimits:
    """How much is shown at once."""

    max_line_length: int
    max_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Some lines, made readable."""

    content: str
    lines: int
    """How many of the given ones are in it."""
    cut: bool
    """A line in it is not complete."""


def show(lines: Sequence[str], first: int, limits: ShowLimits, *, last_goes_on: bool = False) -> Shown:
    """As many lines as fit, at least one; `last_goes_on` says that more of the last one exists than is given."""
    shown: list[str] = []
    used, cut = 0, False
    for index, line in enumerate(lines):
        goes_on = last_goes_on and index == len(lines) - 1
        text, was_cut = _one(first + index, line, limits.max_line_length, goes_on)
        if shown and used + 1 + len(text) > limits.max_chars:
            break
        if len(text) > limits.max_chars:
            text, was_cut = _one(first + index, line, max(1, limits.max_chars - 60), goes_on)
        shown.append(text)
        used += len(text) + (len(shown) > 1)
        cut = cut or was_cut
    return Shown(content="\n".join(shown), lines=len(shown), cut=cut)


def _one(number: int, line: str, max_length: int, goes_on: bool) -> tuple[str, bool]:
    missing = max(0, len(line) - max_length)
    if not missing and not goes_on:
        return f"{number:>6}|{line}", False
    more = f"{missing} or more" if goes_on else str(missing)
    return f"{number:>6}|{line[:max_length]} … [{more} characters of this line left out]", True


def part_as_text(data: bytes, *, is_cut: bool) -> tuple[str, str]:
    """The text of some lines of a file, and the encoding that it was taken for."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut), "utf-8"
    except UnicodeDecodeError:
        return in_older_encoding(data)


def split_lines(text: str) -> tuple[list[str], str]:
    """The lines without their ends, and the end that they have: lf, crlf, mixed, cr; lf where there is none.

    A text whose lines end with CR alone has no other line ends: CR inside of lines is part of them otherwise.
    """
    end = "\n" if "\n" in text or "\r" not in text else "\r"
    lines = text.split(end)
    if lines[-1] == "":
        lines.pop()
    if end == "\r":
        return lines, "cr"
    windows = text.count("\r\n")
    if not windows:
        return lines, "lf"
    return [line.removesuffix("\r") for line in lines], "crlf" if windows == text.count("\n") else "mixed"
