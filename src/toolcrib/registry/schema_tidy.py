"""Generated JSON Schemas made short and readable for a model: no references, no titles, choices in written order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from toolcrib.core.types import JsonObject
from toolcrib.registry.docstring import Docs

_PREFIX = "#/$defs/"
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", type(None): "null"}


class TypeFacts(msgspec.Struct):
    """What the author wrote about types that a generated schema does not say."""

    choices: dict[frozenset[tuple[type, Any]], list[Any]] = msgspec.field(default_factory=dict)
    classes: dict[str, tuple[Docs, dict[str, str]]] = msgspec.field(default_factory=dict)

    def add_choices(self, values: Iterable[Any]) -> None:
        ordered = list(dict.fromkeys(value.value if hasattr(value, "value") else value for value in values))
        self.choices.setdefault(_key(ordered), ordered)

    def add_class(self, name: str, docs: Docs, texts: dict[str, str]) -> None:
        self.classes.setdefault(name, (docs, texts))


def tidy(root: JsonObject, definitions: JsonObject, facts: TypeFacts) -> JsonObject:
    """The schema with definitions put in place; only those of recursive types stay in `$defs`."""
    for name, definition in definitions.items():
        _describe_fields(definition, facts.classes.get(name))
    recursive = {name for name in definitions if name in _reachable(definitions[name], definitions)}
    tidied: JsonObject = _tidied(root, definitions, recursive, facts)
    kept = {name: _tidied(definitions[name], definitions, recursive, facts) for name in _used(tidied, definitions)}
    while extra := {name for schema in kept.values() for name in _references(schema)} - kept.keys():
        kept |= {name: _tidied(definitions[name], definitions, recursive, facts) for name in sorted(extra)}
    return tidied | ({"$defs": kept} if kept else {})


def _used(schema: Any, definitions: JsonObject) -> list[str]:
    wanted = set(_references(schema))
    return [name for name in definitions if name in wanted]


def _key(values: Iterable[Any]) -> frozenset[tuple[type, Any]]:
    return frozenset((type(value), value) for value in values)


def _describe_fields(definition: JsonObject, known: tuple[Docs, dict[str, str]] | None) -> None:
    if known is None:
        return
    docs, texts = known
    if "description" in definition:
        definition["description"] = docs.summary
    for name, schema in definition.get("properties", {}).items():
        text = texts.get(name) or docs.parameters.get(name)
        if text:
            schema.setdefault("description", text)


def _tidied(node: Any, definitions: JsonObject, recursive: set[str], facts: TypeFacts) -> Any:
    if isinstance(node, list):
        return [_tidied(item, definitions, recursive, facts) for item in node]
    if not isinstance(node, dict):
        return node
    name = _reference(node)
    if name is not None and name not in recursive:
        node = definitions[name] | {key: value for key, value in node.items() if key != "$ref"}
    result: JsonObject = {}
    for key, value in node.items():
        if key in ("properties", "$defs"):
            result[key] = {name: _tidied(schema, definitions, recursive, facts) for name, schema in value.items()}
        elif key in ("default", "const", "examples"):
            result[key] = value
        elif key == "enum":
            result |= _choices(value, facts)
        elif not (key == "title" or (key == "required" and not value)):
            result[key] = _tidied(value, definitions, recursive, facts)
    return result


def _choices(values: list[Any], facts: TypeFacts) -> JsonObject:
    ordered = facts.choices.get(_key(values), values)
    kinds = {_JSON_TYPES.get(type(value)) for value in ordered}
    only = kinds.pop() if len(kinds) == 1 else None
    return ({"type": only} if only else {}) | {"enum": list(ordered)}


def _reference(node: JsonObject) -> str | None:
    target = node.get("$ref")
    return target.removeprefix(_PREFIX) if isinstance(target, str) and target.startswith(_PREFIX) else None


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [name for item in node for name in _references(item)]
    if not isinstance(node, dict):
        return []
    name = _reference(node)
    inner = [found for value in node.values() for found in _references(value)]
    return inner if name is None else [name, *inner]


def _reachable(node: Any, definitions: JsonObject) -> set[str]:
    """The names of all definitions that this one leads to."""
    found: set[str] = set()
    waiting = _references(node)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(_references(definitions[name]))
    return found
