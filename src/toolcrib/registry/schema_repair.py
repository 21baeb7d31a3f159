"""Repairs JSON Schemas that do not compile: reads what is clear, drops the rest part by part, and says what it did.

The result accepts everything that the intact parts accept and refuses everything that they refuse. Dropping a part
must only loosen the whole, so a `not`, an `if` or a `oneOf` that contains a dropped part is loosened, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import msgspec

from toolcrib.core.json_schema import (
    COUNTS,
    FLAGS,
    NUMBERS,
    TYPES,
    at_pointer,
    clean_types,
    element_schema,
    read_flag,
    read_number,
    read_required,
    read_schema,
)
from toolcrib.core.types import JsonObject

SCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas")
DEFINITIONS = ("$defs", "definitions")
SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
SCHEMAS = (
    "items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems",
    "contains", "propertyNames", "not", "if", "then", "else",
)  # fmt: skip
_TEXTS = frozenset({"description", "title", "$comment", "format", "contentEncoding", "contentMediaType"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# References are rewritten to `$defs`, so nothing needs these.
_IDENTIFIERS = frozenset({"$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"})
_SAME_VALUE = ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "$ref")
_MAX_DEPTH = 100
_MAX_NODES = 20_000
_MAX_TEXT_CHARS = 60
_MAX_NOTES = 20


class RepairedSchema(msgspec.Struct, frozen=True):
    """A schema that compiles, and what was changed for it, one sentence for each part."""

    schema: JsonObject
    changes: tuple[str, ...]


Compiles = Callable[[JsonObject], bool]


def repair(schema: JsonObject, compiles: Compiles) -> RepairedSchema:
    """The schema with every part that is usable; `compiles` tells whether the validator accepts a schema."""
    return _Repair(schema, compiles).whole()


class _Repair:
    """One walk over a schema into a copy of it, and a second one over the copy."""

    def __init__(self, schema: JsonObject, compiles: Compiles) -> None:
        self._source = schema
        self._compiles = compiles
        draft = schema.get("$schema")
        self._draft: JsonObject = {"$schema": draft} if isinstance(draft, str) and compiles({"$schema": draft}) else {}
        self._anchors = _anchors(schema)
        self._changes: list[str] = []
        # By identity; the values keep the identities unique.
        self._loosened: dict[int, JsonObject] = {}
        self._names: dict[int, str] = {}
        self._waiting: list[tuple[str, Any]] = []
        self._definitions: JsonObject = {}
        self._nodes = 0

    def whole(self) -> RepairedSchema:
        root = self._node(self._source, "", (self._source,))
        while self._waiting:
            name, target = self._waiting.pop()
            self._definitions[name] = self._node(target, f"$defs/{name}", (self._source,))
        if self._definitions:
            root["$defs"] = self._definitions
        self._loosen_negations(root)
        result = {**self._draft, **root}
        if not self._compiles(result):
            self._note("", "only the names of its arguments could be kept")
            properties = result.get("properties")
            names: JsonObject = {name: {} for name in properties} if isinstance(properties, dict) else {}
            result = {"properties": names, "required": read_required(self._source)}
        more = len(self._changes) - _MAX_NOTES
        shown = self._changes[:_MAX_NOTES] + ([f"and {more} more"] if more > 0 else [])
        return RepairedSchema(result, tuple(shown))

    def _node(self, raw: Any, where: str, parents: tuple[Any, ...]) -> Any:
        """A subschema, repaired; `parents` are the schemas around it, itself included, outermost first."""
        schema = read_schema(raw)
        self._nodes += 1
        if schema is None or len(parents) > _MAX_DEPTH or self._nodes > _MAX_NODES:
            why = f"{_shown(raw)} is not a schema" if schema is None else "it is nested too deeply or too large"
            return self._anything(where, why)
        if isinstance(schema, bool):
            return schema
        if schema is not raw:
            self._note(where, f"{_shown(raw)} is read as a type")
        node: JsonObject = {}
        for keyword, value in schema.items():
            if keyword not in _IDENTIFIERS and keyword not in DEFINITIONS and keyword != "$schema":
                self._add(node, keyword, value, schema, f"{where}/{keyword}".lstrip("/"), parents)
        self._add_required(node, schema, where)
        self._complete(node, schema)
        return node

    def _anything(self, where: str, why: str) -> JsonObject:
        self._note(where, f"dropped, because {why}")
        node: JsonObject = {}
        self._loosen(node)
        return node

    def _loosen(self, node: JsonObject) -> None:
        self._loosened[id(node)] = node

    def _add(
        self, node: JsonObject, keyword: str, value: Any, schema: JsonObject, where: str, parents: tuple[Any, ...]
    ) -> None:
        if keyword in _REFERENCES:
            self._add_reference(node, keyword, value, where, parents)
        elif keyword in SCHEMA_MAPS and isinstance(value, dict):
            node[keyword] = self._map(node, keyword, value, where, parents)
        elif keyword in SCHEMA_LISTS or (keyword == "items" and isinstance(value, list)):
            self._add_list(node, keyword, value, where, parents)
        elif keyword == "additionalItems" and not isinstance(schema.get("items"), list):
            pass  # Without a list of items it says nothing.
        elif keyword in SCHEMAS:
            if read_schema(value) is None:
                self._drop(node, where, value)
            else:
                name = "items" if keyword == "additionalItems" and not self._has_list_items() else keyword
                node[name] = self._node(value, where, (*parents, value))
        elif keyword != "required":
            self._add_plain(node, keyword, value, schema, where)

    def _add_plain(self, node: JsonObject, keyword: str, value: Any, schema: JsonObject, where: str) -> None:
        if _is_plainly_valid(keyword, value) or self._is_usable(keyword, value, schema):
            node[keyword] = value
            return
        read = _read(keyword, value, schema)
        if read is None or not self._is_usable(keyword, read, {}):
            self._drop(node, where, value, is_loosening=keyword not in _TEXTS)
            return
        node[keyword] = read
        if not (isinstance(value, bool) and keyword in NUMBERS):
            self._note(where, f"{_shown(value)} is read as {_shown(read)}")
        else:
            self._note(where, f"true is read as the limit {read}")

    def _is_usable(self, keyword: str, value: Any, schema: JsonObject) -> bool:
        # Draft 4 allows `exclusiveMinimum: true` only next to `minimum`.
        beside: JsonObject = {
            key: schema[key] for key in ("minimum", "maximum") if key in schema and keyword in NUMBERS
        }
        return self._compiles({**self._draft, **beside, keyword: value})

    def _add_required(self, node: JsonObject, schema: JsonObject, where: str) -> None:
        names, given = read_required(schema), schema.get("required")
        if names:
            node["required"] = names
        place = f"{where}/required".lstrip("/")
        if given is True and where:
            # The object around this property requires it.
            return
        if "required" in schema and given is not False and given != names:
            self._note(place, f"{_shown(given)} is read as {_shown(names)}")
            self._loosen(node)
        elif given is None and names:
            self._note(place, f"{_shown(names)}, because they say `required: true` themselves")

    def _complete(self, node: JsonObject, schema: JsonObject) -> None:
        """Loosen what has another meaning without a part that was dropped next to it; add what a type says of items."""
        if "items" not in schema and node.get("type") == "array" and (element := element_schema(schema)) is not None:
            node["items"] = element
        has_lost_names = any(
            keyword in schema and (keyword not in node or len(node[keyword]) < len(schema[keyword]))
            for keyword in ("properties", "patternProperties")
        )
        if has_lost_names and "additionalProperties" in node:
            del node["additionalProperties"]
            self._loosen(node)
        if "prefixItems" in schema and "prefixItems" not in node and "items" in node:
            del node["items"]
            self._loosen(node)
        for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if schema.get(exclusive) is True and exclusive in node and node[exclusive] is not True:
                node.pop(inclusive, None)

    def _map(
        self, node: JsonObject, keyword: str, schemas: JsonObject, where: str, parents: tuple[Any, ...]
    ) -> JsonObject:
        repaired: JsonObject = {}
        for name, value in schemas.items():
            place = f"{where}/{name}"
            if not isinstance(name, str) or (
                keyword == "patternProperties" and not self._compiles({**self._draft, keyword: {name: True}})
            ):
                self._note(place, "dropped, because its name is not a valid pattern")
                self._loosen(node)
                continue
            repaired[name] = self._node(value, place, (*parents, value))
        return repaired

    def _add_list(self, node: JsonObject, keyword: str, value: Any, where: str, parents: tuple[Any, ...]) -> None:
        if isinstance(value, dict) and keyword != "prefixItems":
            self._note(where, "one schema is read as a list of one")
            value = [value]
        if not isinstance(value, (list, tuple)) or not value:
            if not isinstance(value, list):
                self._drop(node, where, value)
            return
        name = "prefixItems" if keyword == "items" and not self._has_list_items() else keyword
        if name != keyword:
            self._note(where, "a list is read as `prefixItems`")
        node[name] = [self._node(one, f"{where}/{index}", (*parents, one)) for index, one in enumerate(value)]

    def _has_list_items(self) -> bool:
        """Whether the draft of this schema has `items` as a list."""
        return self._compiles({**self._draft, "items": [True]}) or self._compiles({**self._draft, "items": [{}]})

    def _add_reference(self, node: JsonObject, keyword: str, value: Any, where: str, parents: tuple[Any, ...]) -> None:
        target = self._target(value, parents) if keyword == "$ref" else None
        if keyword == "$recursiveRef" and value == "#":
            target = self._source
        if target is None:
            self._drop(
                node, where, value, why=f"nothing is found at {_shown(value)}, and toolcrib never fetches references"
            )
        elif isinstance(target, bool):
            node.setdefault("allOf", []).append(target)
        else:
            node["$ref"] = f"#/$defs/{self._name(target)}"

    def _target(self, reference: Any, parents: tuple[Any, ...]) -> Any:
        """The schema that a reference means: in this schema, or in the nearest one around it with such a pointer."""
        if not isinstance(reference, str):
            return None
        base, _, fragment = reference.partition("#")
        if base:
            found = self._anchors.get(base.rstrip("#"))
            return found if not fragment or found is None else _at(found, fragment)
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(f"#{fragment}")
        # Generators embed whole schemas as properties, with references that start at the embedded one.
        for around in (self._source, *reversed(parents)):
            if (found := _at(around, fragment)) is not None:
                return found
        name = unquote(fragment.rsplit("/", 1)[-1])
        for around in reversed((self._source, *parents)):
            for group in DEFINITIONS:
                held = around.get(group) if isinstance(around, dict) else None
                if isinstance(held, dict) and isinstance(held.get(name), dict):
                    return held[name]
        return None

    def _name(self, target: JsonObject) -> str:
        name = self._names.get(id(target))
        if name is None:
            name = self._names[id(target)] = f"part{len(self._names) + 1}"
            self._waiting.append((name, target))
        return name

    def _drop(self, node: JsonObject, where: str, value: Any, why: str = "", is_loosening: bool = True) -> None:
        if is_loosening:
            self._loosen(node)
        self._note(where, f"dropped, because {why or f'{_shown(value)} is not valid there'}")

    def _note(self, where: str, what: str) -> None:
        self._changes.append(f"{where or 'the schema'}: {what}")

    def _loosen_negations(self, root: JsonObject) -> None:
        """Repeat until nothing changes, because a `not` that was dropped may stand inside another."""
        while sum(self._loosen_at(node, root) for node in list(_nodes(root))):
            continue

    def _loosen_at(self, node: JsonObject, root: JsonObject) -> bool:
        def is_loose(part: Any) -> bool:
            return any(id(one) in self._loosened for one in _nodes(part, root))

        changes: list[str] = []
        if "not" in node and is_loose(node["not"]):
            del node["not"]
            changes.append("not")
        if "if" in node and is_loose(node["if"]):
            then, otherwise = node.pop("then", None), node.pop("else", None)
            del node["if"]
            changes.append("if")
            if then is not None and otherwise is not None:
                node["allOf"] = [*node.get("allOf", []), {"anyOf": [then, otherwise]}]
        if "oneOf" in node and any(map(is_loose, node["oneOf"])):
            branches = node.pop("oneOf")
            changes.append("oneOf")
            intact = [branch for branch in branches if not is_loose(branch)]
            # At least one may match, and not two of those that are intact.
            parts: list[Any] = [{"anyOf": branches}]
            if len(intact) > 1:
                parts.append({"anyOf": [{"oneOf": intact}, {"not": {"anyOf": intact}}]})
            node["allOf"] = [*node.get("allOf", []), *parts]
        if "maxContains" in node and is_loose(node.get("contains")):
            del node["maxContains"]
            changes.append("maxContains")
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in node and any(id(part) in self._loosened for part in _same_value(node, root)):
                del node[keyword]
                changes.append(keyword)
        if changes:
            self._loosen(node)
            self._note("", f"{', '.join(changes)} loosened, because a part inside was dropped")
        return bool(changes)


def _read(keyword: str, value: Any, schema: JsonObject) -> Any:
    """What a malformed keyword clearly means; None if that is not clear."""
    if keyword == "type":
        types = clean_types(value)
        return types[0] if len(types) == 1 else types or None
    if keyword in COUNTS or keyword in NUMBERS:
        return read_number(keyword, value, schema)
    if keyword in FLAGS:
        return read_flag(value)
    if keyword == "enum" and isinstance(value, (list, tuple)) and value:
        return _distinct(value)
    if keyword == "dependentRequired" and isinstance(value, dict):
        return {key: read_required({"required": names}) for key, names in value.items() if isinstance(key, str)}
    return None


def _distinct(values: Any) -> list[Any] | None:
    try:
        return list({msgspec.json.encode(value): value for value in values}.values())
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _is_plainly_valid(keyword: str, value: Any) -> bool:
    """Whether a frequent keyword is valid in every draft, so that the validator need not be asked."""
    if keyword == "type":
        return isinstance(value, str) and value in TYPES
    if keyword in ("description", "title"):
        return isinstance(value, str)
    return keyword in COUNTS and type(value) is int and value >= 0


def _anchors(schema: Any) -> dict[str, Any]:
    """Subschemas by their `#anchor` or `$id`."""
    found: dict[str, Any] = {}
    for node in _containers(schema):
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(keyword), str):
                found.setdefault(f"#{node[keyword]}", node)
        for keyword in ("$id", "id"):
            if isinstance(node.get(keyword), str):
                found.setdefault(node[keyword].rstrip("#"), node)
    return found


def _containers(value: Any) -> Iterator[JsonObject]:
    """Every object in a JSON value."""
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < _MAX_NODES:
        one = waiting.pop()
        if not isinstance(one, (dict, list)) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            yield one
        waiting.extend(one.values() if isinstance(one, dict) else one)


def _at(schema: Any, fragment: str) -> Any:
    """The schema at a JSON pointer; None if there is none."""
    found = at_pointer(schema, unquote(fragment))
    return found if isinstance(found, (dict, bool)) else None


def _children(node: JsonObject, root: JsonObject | None) -> Iterator[tuple[str, Any]]:
    """The direct subschemas of a repaired schema with their keywords; with `root`, also what it refers to."""
    for keyword, value in node.items():
        if keyword in SCHEMAS:
            yield keyword, value
        elif (keyword in SCHEMA_MAPS or keyword == "$defs") and isinstance(value, dict):
            yield from ((keyword, one) for one in value.values())
        elif (keyword in SCHEMA_LISTS or keyword == "items") and isinstance(value, list):
            yield from ((keyword, one) for one in value)
        elif keyword == "$ref" and root is not None:
            yield keyword, _at(root, str(value).removeprefix("#"))


def _nodes(start: Any, root: JsonObject | None = None, keywords: tuple[str, ...] | None = None) -> Iterator[JsonObject]:
    """A schema and the schemas inside, optionally only below some keywords."""
    waiting, seen = [start], set[int]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        waiting.extend(one for keyword, one in _children(node, root) if keywords is None or keyword in keywords)


def _same_value(node: JsonObject, root: JsonObject) -> Iterator[JsonObject]:
    """A schema and those inside that describe the same value."""
    return _nodes(node, root, _SAME_VALUE)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= _MAX_TEXT_CHARS else text[:_MAX_TEXT_CHARS] + "…"
