"""Tells what a model thinks from what it answers, where it writes both into one text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

_TAGS = {"<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>"}

Piece = tuple[Literal["reasoning", "text"], str]


class ThinkingTags:
    """Splits a streamed text at `<think>…</think>`, which counts only at its start; tags may come in pieces."""

    def __init__(self) -> None:
        self._state: Literal["start", "thinking", "answer"] = "start"
        self._held = ""
        self._closing = ""
        self._has_thought = False

    def feed(self, text: str) -> Iterator[Piece]:
        """What is certain after this piece of the text."""
        if self._state == "answer":
            yield "text", text
            return
        self._held += text
        before: tuple[str, str] | None = None
        while self._held and before != (self._state, self._held):
            before = (self._state, self._held)
            yield from self._opened() if self._state == "start" else self._thought()

    def end(self) -> Iterator[Piece]:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, ""
        if held and not (self._state == "start" and self._has_thought and not held.strip()):
            yield ("reasoning" if self._state == "thinking" else "text"), held

    def _opened(self) -> Iterator[Piece]:
        shown = self._held.lstrip()
        for opening, closing in _TAGS.items():
            if shown.startswith(opening):
                self._state, self._closing = "thinking", closing
                self._held = shown[len(opening) :].lstrip("\n")
                self._has_thought = True
                return
        if any(opening.startswith(shown) for opening in _TAGS):
            return
        # The blank lines between thoughts and answer belong to neither.
        answer = shown if self._has_thought else self._held
        self._state, self._held = "answer", ""
        yield "text", answer

    def _thought(self) -> Iterator[Piece]:
        thought, closing, rest = self._held.partition(self._closing)
        if closing:
            self._state, self._held = "start", rest
        else:
            kept = _beginning_at_end(thought, self._closing)
            self._held = thought[len(thought) - kept :] if kept else ""
            thought = thought[: len(thought) - kept]
        if thought:
            yield "reasoning", thought


def _beginning_at_end(text: str, tag: str) -> int:
    """How many characters at the end of the text may be the beginning of the tag."""
    return next((length for length in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-length:])), 0)
