"""Finding tools by words, and deciding when a model should search for them instead of seeing them all."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from toolcrib.core.types import JsonObject

DeferMode = Literal["auto", "on", "off"]

CHARS_PER_TOKEN = 4
UNKNOWN_CONTEXT_THRESHOLD_TOKENS = 20_000
MAX_QUERY_CHARS = 4_000

_TERM_SATURATION = 1.5
_LENGTH_WEIGHT = 0.75
# camelCase, HTTPServer and letter-digit borders all separate words; every script counts as letters.
_CAMEL_BORDER = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# How the names of tools of MCP servers are made: `mcp__server__tool`, with nothing but these characters.
_OF_SERVER = "mcp__"
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
_WORD = re.compile(r"[^\W\d_]+|\d+")


class Hit(msgspec.Struct, frozen=True):
    """One tool that answers a query; a higher score answers it better."""

    name: str
    description: str
    score: float


class _Document(msgspec.Struct, frozen=True):
    name: str
    description: str
    folded: str
    """Name, description and parameter names as one text to look for parts of words in."""


class ToolIndex:
    """BM25 over the words of each tool's name, description and top-level parameter names."""

    def __init__(self, definitions: Iterable[JsonObject]) -> None:
        self._documents: list[_Document] = []
        self._positions: dict[str, int] = {}
        self._named_by_servers: dict[str, list[int]] = {}
        self._postings: dict[str, list[tuple[int, float]]] = {}
        counts = [words for definition in definitions if (words := self._add(definition)) is not None]
        self._fill_postings(counts)

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, query: str, limit: int = 5) -> list[Hit]:
        """The tools that answer the query, best first and then by name; none for an empty query."""
        query = query[:MAX_QUERY_CHARS].strip()
        if not query or limit <= 0:
            return []
        scores = self._bm25(query) or self._substring(query)
        self._lift_exact_names(query, scores)
        best = sorted(scores, key=lambda position: (-scores[position], self._documents[position].name))[:limit]
        return [self._hit(position, scores[position]) for position in best]

    def _hit(self, position: int, score: float) -> Hit:
        document = self._documents[position]
        return Hit(document.name, document.description, score)

    def _add(self, definition: JsonObject) -> Counter[str] | None:
        """The word counts of a definition that has a new name; the first owner of a name keeps it."""
        name, description, parameters = _texts(definition)
        if not name or name in self._positions:
            return None
        self._positions[name] = len(self._documents)
        if name.startswith(_OF_SERVER):
            # A server whose own name has such a border in it is found by its words alone.
            own = name.removeprefix(_OF_SERVER).partition("__")[2]
            self._named_by_servers.setdefault(own.lower(), []).append(len(self._documents))
        text = " ".join((name, description, *parameters))
        self._documents.append(_Document(name, description, _fold(text)))
        return Counter(_words(text))

    def _fill_postings(self, counts: list[Counter[str]]) -> None:
        """Each word's weight in each document, ready to be added up at search time."""
        lengths = [words.total() for words in counts]
        average = sum(lengths) / len(lengths) if any(lengths) else 1.0
        holders = Counter(word for words in counts for word in words)
        rarity = {word: math.log(1 + (len(counts) - held + 0.5) / (held + 0.5)) for word, held in holders.items()}
        for position, words in enumerate(counts):
            norm = _TERM_SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * lengths[position] / average)
            for word, count in words.items():
                weight = rarity[word] * count * (_TERM_SATURATION + 1) / (count + norm)
                self._postings.setdefault(word, []).append((position, weight))

    def _bm25(self, query: str) -> dict[int, float]:
        scores: dict[int, float] = {}
        for word in dict.fromkeys(_words(query)):
            for position, weight in self._postings.get(word, ()):
                scores[position] = scores.get(position, 0.0) + weight
        return scores

    def _substring(self, query: str) -> dict[int, float]:
        """How many parts of the query occur somewhere in each tool's text, the whole query counting double."""
        whole = _fold(query)
        parts = Counter(dict.fromkeys(_words(query), 1)) or Counter({whole: 1})
        parts[whole] += 1
        scores: dict[int, float] = {}
        for position, document in enumerate(self._documents):
            found = sum(weight for part, weight in parts.items() if part in document.folded)
            if found:
                scores[position] = float(found)
        return scores

    def _lift_exact_names(self, query: str, scores: dict[int, float]) -> None:
        """Whoever types a tool's name means that tool, be it the name that its server has for it."""
        exact = self._positions.get(query)
        behind = [exact] if exact is not None else self._named_by_servers.get(_FOREIGN.sub("_", query).lower(), ())
        best = max(scores.values(), default=0.0) + 1.0
        for position in behind:
            scores[position] = best


def estimate_tokens(definitions: Sequence[JsonObject]) -> int:
    """About how many tokens the definitions take in a request: a quarter of their compact JSON's characters."""
    text = json.dumps(list(definitions), ensure_ascii=False, separators=(",", ":"), default=str)
    return len(text) // CHARS_PER_TOKEN if definitions else 0


def should_defer(
    deferrable_tokens: int, context_window_tokens: int | None, mode: DeferMode = "auto", threshold_pct: float = 10
) -> bool:
    """Whether the deferrable tools are to be searched for instead of being sent with every request."""
    if mode == "off" or deferrable_tokens <= 0:
        return False
    if mode == "on":
        return True
    if not context_window_tokens or context_window_tokens < 0:
        return deferrable_tokens >= UNKNOWN_CONTEXT_THRESHOLD_TOKENS
    return deferrable_tokens * 100 >= context_window_tokens * threshold_pct


def _texts(definition: JsonObject) -> tuple[str, str, list[str]]:
    function = definition.get("function")
    if not isinstance(function, dict):
        return "", "", []
    name, description, parameters = (function.get(key) for key in ("name", "description", "parameters"))
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    names = [str(key) for key in properties] if isinstance(properties, dict) else []
    return name if isinstance(name, str) else "", description if isinstance(description, str) else "", names


def _fold(text: str) -> str:
    """The text as it is compared: without case, and without the difference between ways to write a letter."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def _words(text: str) -> list[str]:
    return _WORD.findall(_fold(_CAMEL_BORDER.sub(" ", text)))
