"""What it costs to hold a value against a schema of a server: a short one can take longer than anybody lives.

Choices that refer to further choices double with each step, so that forty lines make a trillion comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from toolcrib.core.types import JsonObject

MAX_COMPARISONS = 20_000
MAX_PATTERNS = 50
MAX_PATTERN_CHARS = 1000
MAX_OTHER_REFERENCES = 20
"""References that are no paths in the document are not followed here."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# These look at the same value again; everything else looks at a part of it.
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "extends")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")


def too_costly(schema: JsonObject, *, whole: bool = False) -> str:
    """Why values are not held against this schema, as the end of a sentence; empty when they are.

    `whole`: whoever wrote the schema sends the values too, so that their parts count as well.
    """
    nodes = list(_objects(schema))
    patterns = [pattern for node in nodes for pattern in _patterns(node)]
    if len(patterns) > MAX_PATTERNS or any(len(pattern) > MAX_PATTERN_CHARS for pattern in patterns):
        return f"holds more than {MAX_PATTERNS} patterns, or one of more than {MAX_PATTERN_CHARS} characters"
    references = [node[key] for node in nodes for key in _REFERENCES if isinstance(node.get(key), str)]
    if sum(not text.startswith("#/") and text != "#" for text in references) > MAX_OTHER_REFERENCES:
        return f"holds more than {MAX_OTHER_REFERENCES} references that are no paths inside of it"
    if references and _comparisons(schema, nodes, whole) > MAX_COMPARISONS:
        return "refers to itself in too many ways"
    return ""


def _objects(value: Any) -> Iterator[JsonObject]:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
        if isinstance(one, (dict, list)):
            left += one.values() if isinstance(one, dict) else one


def _patterns(node: JsonObject) -> list[str]:
    found = [node["pattern"]] if isinstance(node.get("pattern"), str) else []
    keyed = node.get("patternProperties")
    return found + (list(keyed) if isinstance(keyed, dict) else [])


def _comparisons(schema: JsonObject, nodes: list[JsonObject], whole: bool) -> float:
    """How many objects of the schema one value meets at most, each as often as there are ways to it."""
    known: dict[int, float] = {}
    for start in [schema] if whole else nodes:
        if id(start) in known:
            continue
        inner = list(_next(schema, start, whole))
        path = {id(start): (inner, iter(inner))}
        while path:
            at, (inner, left) = next(reversed(path.items()))
            further = next((one for one in left if id(one) not in known), None)
            if further is None:
                known[at] = 1 + sum(known[id(one)] for one in inner)
                del path[at]
            elif id(further) in path:
                return math.inf
            else:
                beyond = list(_next(schema, further, whole))
                path[id(further)] = (beyond, iter(beyond))
    return max(known.values(), default=0)


def _next(schema: JsonObject, node: JsonObject, whole: bool) -> Iterator[JsonObject]:
    for key, value in node.items():
        if key in _REFERENCES and isinstance(value, str):
            target = _target(schema, value)
            if target is not None:
                yield target
        elif key in _IN_PLACE_MAPS and isinstance(value, dict):
            yield from _nearest(list(value.values()))
        elif whole or key in _IN_PLACE:
            yield from _nearest(value)


def _nearest(value: Any) -> Iterator[JsonObject]:
    """A value that is an object, or the objects of a list."""
    if isinstance(value, dict):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _nearest(one)


def _target(schema: JsonObject, reference: str) -> JsonObject | None:
    found: Any = schema
    for step in unquote(reference).removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found if isinstance(found, dict) else None
