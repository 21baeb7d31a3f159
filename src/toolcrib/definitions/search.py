"""Finds tools by words, and decides when a model should search for tools instead of seeing them all."""

from __future__ import annotations

import heapq
import json
import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, Self

import msgspec

from toolcrib.core.lazy import lazy_pattern
from toolcrib.core.types import JsonObject

DeferMode = Literal["auto", "on", "off"]

CHARS_PER_TOKEN = 4
UNKNOWN_CONTEXT_THRESHOLD_TOKENS = 20_000
MAX_QUERY_CHARS = 4_000

_TERM_SATURATION = 1.5
_LENGTH_WEIGHT = 0.75
# camelCase, HTTPServer and letter-digit boundaries all separate words; letters of every script count.
_CAMEL_BORDER = lazy_pattern(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# The names of MCP tools: `mcp__server__tool`, with only these characters.
_OF_SERVER = "mcp__"
_FOREIGN = lazy_pattern(r"[^A-Za-z0-9_]")
_WORD = lazy_pattern(r"[^\W\d_]+|\d+")


class ToolMatch(msgspec.Struct, frozen=True):
    """One tool that matches a query; a higher score is a better match."""

    name: str
    description: str
    score: float


class ToolDocument(msgspec.Struct, frozen=True):
    """What an index knows about one tool."""

    name: str
    description: str
    folded: str
    """Name, description and parameter names as one text, for matching parts of words."""
    counts: dict[str, int]
    """How often each word occurs in that text."""
    length: int
    """The number of words."""


class ToolIndex:
    """BM25 over the words of each tool's name, description and top-level parameter names."""

    def __init__(self, definitions: Iterable[JsonObject]) -> None:
        self._fill(read_document(definition) for definition in definitions)

    @classmethod
    def from_documents(cls, documents: Iterable[ToolDocument]) -> Self:
        """An index over preprocessed tools, which is an order of magnitude faster to build."""
        index = cls.__new__(cls)
        index._fill(documents)
        return index

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, query: str, limit: int = 5) -> list[ToolMatch]:
        """The tools that match the query, best first and then by name; none for an empty query."""
        query = query[:MAX_QUERY_CHARS].strip()
        if not query or limit <= 0:
            return []
        scores = self._bm25(query) or self._substring(query)
        self._lift_exact_names(query, scores)
        best = heapq.nsmallest(limit, scores, key=lambda position: (-scores[position], self._documents[position].name))
        return [self._hit(position, scores[position]) for position in best]

    def _hit(self, position: int, score: float) -> ToolMatch:
        document = self._documents[position]
        return ToolMatch(document.name, document.description, score)

    def _fill(self, documents: Iterable[ToolDocument]) -> None:
        self._documents: list[ToolDocument] = []
        self._positions: dict[str, int] = {}
        self._named_by_servers: dict[str, list[int]] = {}
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for document in documents:
            self._add(document)
        self._fill_postings()

    def _add(self, document: ToolDocument) -> None:
        """Add a tool; the first one with a name keeps it."""
        name, position = document.name, len(self._documents)
        if not name or name in self._positions:
            return
        self._positions[name] = position
        if name.startswith(_OF_SERVER):
            # A server with such a separator in its own name is found only by its words.
            own = name.removeprefix(_OF_SERVER).partition("__")[2]
            self._named_by_servers.setdefault(own.lower(), []).append(position)
        self._documents.append(document)

    def _fill_postings(self) -> None:
        """Precompute each word's weight in each document, so a search only adds them up."""
        total = len(self._documents)
        average = sum(document.length for document in self._documents) / total if total else 0.0
        holders = Counter(word for document in self._documents for word in document.counts)
        rarity = {word: math.log(1 + (total - held + 0.5) / (held + 0.5)) for word, held in holders.items()}
        for position, document in enumerate(self._documents):
            relative = document.length / average if average else 0.0
            norm = _TERM_SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * relative)
            for word, count in document.counts.items():
                weight = rarity[word] * count * (_TERM_SATURATION + 1) / (count + norm)
                self._postings.setdefault(word, []).append((position, weight))

    def _bm25(self, query: str) -> dict[int, float]:
        scores: dict[int, float] = {}
        for word in dict.fromkeys(_words(query)):
            for position, weight in self._postings.get(word, ()):
                scores[position] = scores.get(position, 0.0) + weight
        return scores

    def _substring(self, query: str) -> dict[int, float]:
        """How many parts of the query occur somewhere in each tool's text; the whole query counts double."""
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
        """A query that is a tool's name, or its server's name for it, means that tool."""
        exact = self._positions.get(query)
        behind = [exact] if exact is not None else self._named_by_servers.get(_FOREIGN.sub("_", query).lower(), ())
        best = max(scores.values(), default=0.0) + 1.0
        for position in behind:
            scores[position] = best


def estimate_tokens(definitions: Sequence[JsonObject]) -> int:
    """Roughly how many tokens the definitions take in a request: a quarter of the characters of their compact JSON."""
    text = json.dumps(list(definitions), ensure_ascii=False, separators=(",", ":"), default=str)
    return len(text) // CHARS_PER_TOKEN if definitions else 0


def should_defer(
    deferrable_tokens: int, context_window_tokens: int | None, mode: DeferMode = "auto", threshold_pct: float = 10
) -> bool:
    """Whether the model should search for the deferrable tools instead of getting them with every request."""
    if mode == "off" or deferrable_tokens <= 0:
        return False
    if mode == "on":
        return True
    if not context_window_tokens or context_window_tokens < 0:
        return deferrable_tokens >= UNKNOWN_CONTEXT_THRESHOLD_TOKENS
    return deferrable_tokens * 100 >= context_window_tokens * threshold_pct


def read_document(definition: JsonObject) -> ToolDocument:
    """What an index needs to know about a definition; the name is empty if it isn't valid."""
    name, description, parameters = _texts(definition)
    text = " ".join((name, description, *parameters))
    counts = Counter(_words(text))
    return ToolDocument(name, description, _fold(text), counts, counts.total())


def _texts(definition: JsonObject) -> tuple[str, str, list[str]]:
    function = definition.get("function")
    if not isinstance(function, dict):
        return "", "", []
    name, description, parameters = (function.get(key) for key in ("name", "description", "parameters"))
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    names = [str(key) for key in properties] if isinstance(properties, dict) else []
    return name if isinstance(name, str) else "", description if isinstance(description, str) else "", names


def _fold(text: str) -> str:
    """The text as searches compare it: case-folded and Unicode-normalised."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def _words(text: str) -> list[str]:
    return _WORD.findall(_fold(_CAMEL_BORDER.sub(" ", text)))
