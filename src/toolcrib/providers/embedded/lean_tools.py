"""Tools as a very small model is shown them: what a call must hold, and what the question speaks of.

Such a model fills in every parameter it sees, sensible or not, and each of them costs time to read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from toolcrib.core.types import JsonObject

MAX_DESCRIPTION_CHARS = 160
MAX_PARAMETER_CHARS = 80
MIN_WORD_CHARS = 3
_WORD = re.compile(r"[^\W_]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")
# Words of questions and of descriptions alike, which say nothing about a parameter.
_ARTICLES = "the and for are was not you can has its all any how who why out get set use one two say tell please your"
_POINTERS = "this that these those there here them they then than when where what which while with from into about"
_VERBS = "will would should could must have been does used using given"
_SCHEMA_WORDS = (
    "optional default defaults example true false tool tools value values string only also each other more most"
)
_EMPTY_WORDS = frozenset(" ".join((_ARTICLES, _POINTERS, _VERBS, _SCHEMA_WORDS, "much many")).split())


def lean(tools: Sequence[JsonObject], question: str) -> list[JsonObject]:
    """The tools with short descriptions, without the optional parameters that the question does not touch."""
    words = content_words(question)
    return [tool | {"function": _lean_function(tool["function"], words)} for tool in tools]


def _lean_function(function: JsonObject, words: set[str]) -> JsonObject:
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    required = set(parameters.get("required") or ())
    properties: JsonObject = parameters.get("properties") or {}
    # "Use the terminal tool" speaks of the tool, not of a parameter that mentions a terminal.
    spoken = words - content_words(f"{function.get('name')} {function.get('description')}".replace("_", " "))
    kept = {
        name: _short(schema)
        for name, schema in properties.items()
        if name in required or not required or spoken & _words_of_parameter(name, schema)
    }
    return function | {
        "description": _first_sentence(str(function.get("description") or ""), MAX_DESCRIPTION_CHARS),
        "parameters": parameters | {"properties": kept},
    }


def _short(schema: Any) -> Any:
    if not isinstance(schema, dict) or not isinstance(schema.get("description"), str):
        return schema
    return schema | {"description": _first_sentence(schema["description"], MAX_PARAMETER_CHARS)}


def _first_sentence(text: str, limit: int) -> str:
    first = _SENTENCE_END.split(text.strip(), maxsplit=1)[0]
    return first if len(first) <= limit else first[: limit - 1].rsplit(" ", 1)[0] + "…"


def _words_of_parameter(name: str, schema: Any) -> set[str]:
    said = [name.replace("_", " ")]
    # A switch or a list is only asked for by its name: its description holds words of all kinds.
    if isinstance(schema, dict) and schema.get("type") in ("string", "integer", "number"):
        said += [str(schema.get("description") or ""), *(str(value) for value in schema.get("enum") or ())]
    return content_words(" ".join(said))


def content_words(text: str) -> set[str]:
    """The words of a text, in lower case, without short ones and those that say nothing."""
    return {word for word in _WORD.findall(text.lower()) if len(word) >= MIN_WORD_CHARS} - _EMPTY_WORDS
