"""Finds argument names that are likely misspellings of names that the schema knows and the call does not use.

A schema that lists properties and says nothing about others accepts every further name, so a misspelt optional
argument would be ignored without a word. Where a schema does say something (`additionalProperties`,
`patternProperties`), that decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from toolcrib.core.spelling import is_misspelling
from toolcrib.core.types import JsonObject
from toolcrib.dispatch.schema import SchemaDocument

_MAX_DEPTH = 24
_MAX_STEPS = 5_000
_MAX_ITEMS = 200


class MisspelledName(msgspec.Struct, frozen=True):
    """A name in a call, where it stands, and the known names that it may mean."""

    path: tuple[str | int, ...]
    nearest: tuple[str, ...]


class SpellingChecker:
    """Checks the names in the arguments of one tool, also inside nested objects."""

    __slots__ = ("_document", "names", "nested")

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self.names = self._names_to_check([document.root])
        """The known names of the root; None if it accepts others."""
        self.nested = self._nested_names()
        """The arguments whose values have names to check."""

    def find(self, arguments: JsonObject) -> list[MisspelledName]:
        """The names that are likely misspelt."""
        return list(self._visit([self._document.root], arguments, (), [_MAX_STEPS]))

    def _visit(
        self, schemas: list[Any], value: Any, path: tuple[str | int, ...], steps_left: list[int]
    ) -> Iterator[MisspelledName]:
        steps_left[0] -= 1
        if len(path) > _MAX_DEPTH or steps_left[0] < 0:
            return
        if isinstance(value, list):
            for index, item in enumerate(value[:_MAX_ITEMS]):
                if isinstance(item, (dict, list)) and (inner := self._items(schemas, index)):
                    yield from self._visit(inner, item, (*path, index), steps_left)
        if not isinstance(value, dict):
            return
        known = self._names_to_check(schemas)
        for name, item in value.items():
            if known is not None and isinstance(name, str) and name not in known:
                nearest = tuple(sorted(one for one in known if one not in value and is_misspelling(name, one)))
                if nearest:
                    yield MisspelledName((*path, name), nearest)
            if isinstance(item, (dict, list)) and (inner := self._properties(schemas, name)):
                yield from self._visit(inner, item, (*path, name), steps_left)

    def _names_to_check(self, schemas: list[Any]) -> frozenset[str] | None:
        """The known names of an object; None if its schemas accept names that they do not list."""
        names: set[str] = set()
        for schema in schemas:
            found = self._document.known_names(schema)
            if found is None:
                return None
            names |= found
        return frozenset(names)

    def _properties(self, schemas: list[Any], name: str) -> list[Any]:
        found = []
        for part in self._parts(schemas):
            properties, others = part.get("properties"), part.get("additionalProperties")
            if isinstance(properties, dict) and name in properties:
                found.append(properties[name])
            elif isinstance(others, dict):
                found.append(others)
        return _distinct(found)

    def _items(self, schemas: list[Any], index: int) -> list[Any]:
        found = []
        for part in self._parts(schemas):
            first, rest = part.get("prefixItems"), part.get("items")
            if isinstance(rest, list):
                first, rest = rest, part.get("additionalItems")
            if isinstance(first, list) and index < len(first):
                found.append(first[index])
            elif isinstance(rest, dict):
                found.append(rest)
        return _distinct(found)

    def _parts(self, schemas: list[Any]) -> list[JsonObject]:
        # Branches often share subschemas; visiting one twice at each level would double the work with the depth.
        seen: dict[int, JsonObject] = {}
        for schema in schemas:
            seen.update((id(part), part) for part in self._document.parts_of(schema))
        return list(seen.values())

    def _nested_names(self) -> tuple[str, ...]:
        names = self._document.all_names()
        return tuple(
            sorted(name for name in names if any(map(self._has_names, self._properties([self._document.root], name))))
        )

    def _has_names(self, schema: Any) -> bool:
        """Whether some object inside a schema lists its properties."""
        waiting, seen = [schema], set[int]()
        while waiting:
            for part in self._document.parts_of(waiting.pop()):
                if id(part) in seen:
                    continue
                seen.add(id(part))
                if part.get("properties"):
                    return True
                waiting += [part.get("additionalProperties"), part.get("items"), part.get("additionalItems")]
                waiting += part["prefixItems"] if isinstance(part.get("prefixItems"), list) else []
                waiting += part["items"] if isinstance(part.get("items"), list) else []
        return False


def _distinct(schemas: list[Any]) -> list[Any]:
    return list({id(schema): schema for schema in schemas}.values())
