"""JSON text as a model writes it, read strictly: what has two meanings is an error, never a guess."""

from __future__ import annotations

import json
import math
from typing import Any

_NEARBY_CHARS = 20


class BadJson(ValueError):
    """The text is not JSON that we accept; the message says what is wrong and where."""


def read_json(text: str) -> Any:
    """The value that `text` stands for; raises BadJson and nothing else."""
    try:
        return _DECODER.decode(text)
    except BadJson:
        raise
    except json.JSONDecodeError as error:
        raise BadJson(_where(text, error)) from None
    except RecursionError:
        raise BadJson("the JSON is nested too deeply") from None
    except ValueError as error:
        # int() refuses a number of more than 4,300 digits.
        raise BadJson(f"a number in the JSON cannot be read: {error}") from None


def _where(text: str, error: json.JSONDecodeError) -> str:
    place = f"line {error.lineno}, column {error.colno}"
    if not text[error.pos :].strip():
        return f"the text ends at {place} before the JSON is complete ({error.msg})"
    nearby = text[max(0, error.pos - _NEARBY_CHARS) : error.pos + _NEARBY_CHARS]
    return f"{error.msg} at {place}, near {nearby!r}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise BadJson(f"the key {repeated[:80]!r} is given more than once in one object")
    return result


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise BadJson(f"the number {digits[:40]} is too large")
    return value


def _constant(name: str) -> float:
    raise BadJson(f"{name} is not a JSON value")


# Not strict about line breaks and tabs inside strings: models write them, and they have only one meaning.
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant, strict=False)
