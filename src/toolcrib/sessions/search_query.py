"""What somebody typed into a search, as expressions that SQLite understands. No text is refused."""

from __future__ import annotations

import re
import unicodedata

from msgspec import Struct

from toolcrib.sessions.records import has_spaceless_script

MAX_WORDS = 32
MAX_TRIGRAMS = 64
TRIGRAM = 3
SHORTEST_PREFIX = 3
FOLDED_CHARS = 5_000
"""How far a snippet is looked for without regard to accents, which is slow."""

_PIECES = re.compile(r'"([^"]*)"|(\S+)')


class Query(Struct, frozen=True):
    """Groups of words, of which one must occur in full, and words that must not occur."""

    groups: tuple[tuple[str, ...], ...]
    unwanted: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(word for group in self.groups for word in group)

    @property
    def is_spaceless(self) -> bool:
        """Whether a word is in a script that is written without spaces, so that it may stand inside a longer run."""
        return any(has_spaceless_script(word) for word in self.words)

    def all_words(self, *, prefix: bool = False) -> str:
        """Matches what has every word of a group; with `prefix`, a word that begins as the last one does will do."""
        return self._without_unwanted(" OR ".join(f"({' AND '.join(_quoted(group, prefix))})" for group in self.groups))

    def any_word(self) -> str:
        """Matches what has one of the words, those of phrases too."""
        single = tuple(word for words in self.words for word in words.split() if _has_letters(word))
        return self._without_unwanted(" OR ".join(_quoted(single[:MAX_WORDS], prefix=True)))

    def any_trigram(self) -> str:
        """Matches three characters of a word, wherever they stand; empty when all words are shorter."""
        found = {word[at : at + TRIGRAM]: None for word in self.words for at in range(len(word) - TRIGRAM + 1)}
        return " OR ".join(_quoted(tuple(found)[:MAX_TRIGRAMS], prefix=False))

    def _without_unwanted(self, expression: str) -> str:
        if not self.unwanted:
            return expression
        return f"({expression}) NOT ({' OR '.join(_quoted(self.unwanted, prefix=False))})"


def parse(typed: str) -> Query:
    """Words and "quoted phrases"; OR parts alternatives, NOT goes before what is unwanted, all else is just text."""
    clean = typed.replace("\x00", " ").encode("utf-8", "replace").decode()
    groups: list[list[str]] = [[]]
    unwanted: list[str] = []
    negated = False
    for phrase, word in _PIECES.findall(clean)[:MAX_WORDS]:
        if word == "OR":
            groups.append([])
        elif word == "NOT":
            negated = True
        elif word != "AND":
            # What is left of an unbalanced quotation is no part of the word.
            text = phrase.strip() or word.strip('"')
            if _has_letters(text):
                (unwanted if negated else groups[-1]).append(text)
            negated = False
    kept = tuple(tuple(group) for group in groups if group)
    # Without anything that is wanted, NOT was meant as a word.
    return Query(kept, tuple(unwanted)) if kept else Query((tuple(unwanted),) if unwanted else ())


def like_pattern(word: str) -> str:
    """A LIKE pattern (with `\\` as escape) for texts that contain the word."""
    return "%" + re.sub(r"([\\%_])", r"\\\1", word) + "%"


def snippet(text: str, words: tuple[str, ...], chars: int) -> str:
    """The part of a text around the first of the words that occurs in it."""
    if len(text) <= chars:
        return text
    at = min((place for place in (_find(text, word) for word in words) if place >= 0), default=0)
    start = max(0, min(at - chars // 3, len(text) - chars))
    if start:
        # Not in the middle of a word, where one begins near by.
        gap = text.find(" ", start, start + 20)
        start = gap + 1 if gap >= 0 else start
    end = start + chars
    return ("…" if start else "") + text[start:end].strip() + ("…" if end < len(text) else "")


def _find(text: str, word: str) -> int:
    at = text.find(word)
    if at < 0:
        at = text.lower().find(word.lower())
    if at < 0 and not text.isascii():
        at = _folded(text[:FOLDED_CHARS]).find(_folded(word))
    return at


def _folded(text: str) -> str:
    """Without case and accents, one character for each, so that places stay the same."""
    return "".join(unicodedata.normalize("NFD", char)[0].lower()[:1] or char for char in text)


def _quoted(words: tuple[str, ...], prefix: bool) -> list[str]:
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    if prefix and quoted and len(words[-1]) >= SHORTEST_PREFIX:
        quoted[-1] += "*"
    return quoted


def _has_letters(text: str) -> bool:
    return any(unicodedata.category(char)[0] in "LN" or unicodedata.category(char) == "Co" for char in text)
