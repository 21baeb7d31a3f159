"""Twenty saved pages of the kinds that the web is made of; what a reader wants from each is marked `data-wanted`.

Written for this purpose, so they belong to nobody. The marks mean nothing to any extractor.
"""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

MARK = "data-wanted"
VOID = frozenset({"br", "hr", "img", "input", "meta", "link", "area", "base", "col", "embed", "source", "wbr"})
# Japanese writes no spaces, so each of its characters counts as a word.
_WORDS = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]|\w+")


class SavedPage(NamedTuple):
    name: str
    html: str
    wanted: str
    """The text of the marked elements, in order."""


class _MarkedTextParser(HTMLParser):
    """Collects the text inside marked elements, and takes the marks away."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self._open: list[bool] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self._open.append(any(name == MARK for name, _ in attrs))
        if self._open and self._open[-1] and tag not in VOID:
            self.texts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and self._open:
            self._open.pop()
            self.texts.append(" ")

    def handle_data(self, data: str) -> None:
        if any(self._open):
            self.texts.append(data)


def saved_pages() -> list[SavedPage]:
    """All pages, by name."""
    return [_read(path) for path in sorted(Path(__file__).parent.glob("*.html"))]


def _read(path: Path) -> SavedPage:
    html = path.read_text(encoding="utf-8")
    marked = _MarkedTextParser()
    marked.feed(html)
    return SavedPage(path.stem, html.replace(f" {MARK}", ""), "".join(marked.texts))


def f1(wanted: str, found: str) -> float:
    """How well the words of a text are those that were wanted; Markdown's marks and addresses do not count."""
    plain = re.sub(r"\]\([^)]*\)", "] ", found)
    expected, given = (Counter(_WORDS.findall(text.casefold().replace("_", " "))) for text in (wanted, plain))
    return 2 * (expected & given).total() / max(1, expected.total() + given.total())
