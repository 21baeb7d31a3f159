"""Cuts Markdown that is still being written into blocks that are complete and the one that still grows."""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)$")
_LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?: |$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?: |$)")
_INDENTED = re.compile(r"(?: {2,}|\t)\S")


class BlockStream:
    """Takes text as it arrives. A block is a paragraph, a list, a table, a quote, a heading or a piece of code."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        """The complete lines of the block that grows."""
        self._tail: list[str] = []
        """What has arrived of the line that is being written, in pieces: it may become as long as a book."""
        self._fence = ""
        """What closes the piece of code that we are in."""

    @property
    def is_growing(self) -> bool:
        return bool(self._lines or self._tail)

    @property
    def growing(self) -> str:
        """What has arrived of the block that is not complete yet."""
        self._tail = ["".join(self._tail)] if self._tail else []
        return "\n".join([*self._lines, *self._tail]).strip("\n")

    def feed(self, text: str) -> list[str]:
        """Take a piece of text; returns the blocks that it completes."""
        finished: list[str] = []
        if "\n" not in text:
            self._tail += [text] if text else []
            return finished
        *lines, tail = "".join([*self._tail, text]).split("\n")
        self._tail = [tail] if tail else []
        for line in lines:
            self._take(line, finished)
        return finished

    def finish(self) -> list[str]:
        """No more text comes; returns what is left."""
        finished: list[str] = []
        if self._tail:
            self._take("".join(self._tail), finished)
        self._tail = []
        self._end_block(finished)
        return finished

    def discard(self) -> None:
        """Forget the block that grows."""
        self._lines, self._tail, self._fence = [], [], ""

    def _take(self, line: str, finished: list[str]) -> None:
        if self._fence:
            self._lines.append(line)
            if _closes(line, self._fence):
                self._end_block(finished)
            return
        opening = _FENCE.match(line)
        if opening and not (opening[1][0] == "`" and "`" in opening[2]):
            # In a list a piece of code belongs to its item, and the list goes on behind it.
            self._end_block(finished)
            self._lines, self._fence = [line], opening[1]
        elif not line.strip():
            self._take_blank(finished)
        elif self._lines and not self._lines[-1].strip() and not (_LIST_ITEM.match(line) or _INDENTED.match(line)):
            # A list that had a blank line behind it is over.
            self._end_block(finished)
            self._take(line, finished)
        elif _HEADING.match(line):
            self._end_block(finished)
            finished.append(line)
        elif self._lines and _is_row(self._lines[0]) != _is_row(line):
            self._end_block(finished)
            self._lines.append(line)
        else:
            self._lines.append(line)

    def _take_blank(self, finished: list[str]) -> None:
        if self._lines and _LIST_ITEM.match(self._lines[0]):
            # What is indented below, or the next item, still belongs to the list.
            self._lines.append("")
        else:
            self._end_block(finished)

    def _end_block(self, finished: list[str]) -> None:
        block = "\n".join(self._lines).strip("\n")
        if block.strip():
            finished.append(block)
        self._lines, self._fence = [], ""


def _closes(line: str, fence: str) -> bool:
    bare = line.strip()
    return len(bare) >= len(fence) and not bare.strip(fence[0]) and len(line) - len(line.lstrip()) <= 3


def _is_row(line: str) -> bool:
    return line.lstrip().startswith("|")
