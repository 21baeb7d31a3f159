"""Finds argument names that are likely misspellings of names that the schema knows and the call does not use.

A schema that lists properties and says nothing about others accepts every further name, so a misspelt optional
argument would be ignored without a word. Where a schema does say something (`additionalProperties`,
`patternProperties`), that decides.
"""

from __future__ import annotations

from typing import Any

import msgspec

from toolcrib.core.spelling import is_misspelling
from toolcrib.core.types import JsonObject
from toolcrib.dispatch.schema import SchemaDocument

Path = tuple[str | int, ...]

_MAX_DEPTH = 24
_MAX_NODES = 2_000


class MisspelledName(msgspec.Struct, frozen=True):
    """A name in a call, where it stands, and the known names that it may mean."""

    path: Path
    nearest: tuple[str, ...]


class _NameNode(msgspec.Struct):
    """The names at one place of the arguments, merged from all schemas that describe it."""

    names: frozenset[str] | None = None
    """The known names; None if others are legal, or if there are none to compare with."""
    inside: dict[str, _NameNode] = msgspec.field(default_factory=dict)
    """Where names are known below, by the name of the property."""
    others: _NameNode | None = None
    first: tuple[_NameNode | None, ...] = ()
    items: _NameNode | None = None
    is_complete: bool = False
    """A schema that refers to itself meets its own node before that is complete."""

    @property
    def is_empty(self) -> bool:
        return self.names is None and not (self.inside or self.others or any(self.first) or self.items)


class SpellingChecker:
    """Checks the names in the arguments of one tool, also inside nested objects."""

    __slots__ = ("_document", "_nodes", "_root", "names", "nested")

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._nodes: dict[frozenset[int], _NameNode] = {}
        self._root = self._node([document.root], 0)
        self.names = document.known_names()
        """The known names of the root; None if it accepts others."""
        self.nested = bool(self._root.inside or self._root.others)
        """Whether names inside arguments have to be checked."""

    def find(self, arguments: JsonObject) -> list[MisspelledName]:
        """The names that are likely misspelt."""
        found: list[MisspelledName] = []
        _visit(self._root, arguments, (), found)
        return found

    def _node(self, schemas: list[Any], depth: int) -> _NameNode:
        parts = self._parts(schemas)
        key = frozenset(map(id, parts))
        if key in self._nodes:
            return self._nodes[key]
        node = _NameNode(is_complete=True)
        if depth > _MAX_DEPTH or len(self._nodes) >= _MAX_NODES:
            return node
        node.is_complete = False
        self._nodes[key] = node
        known = [self._document.known_names(schema) for schema in schemas]
        if any(known) and not any(names is None for names in known):
            node.names = frozenset(name for names in known if names for name in names)
        listed = dict.fromkeys(name for part in parts for name in _dict(part, "properties"))
        below = ((name, self._child([_dict(part, "properties").get(name) for part in parts], depth)) for name in listed)
        node.inside = {name: child for name, child in below if child is not None}
        node.others = self._child([part.get("additionalProperties") for part in parts], depth)
        first = [_list(part, "prefixItems") or _list(part, "items") for part in parts]
        longest = max(map(len, first), default=0)
        node.first = tuple(
            self._child([one[index] for one in first if index < len(one)], depth) for index in range(longest)
        )
        rest = [part.get("additionalItems" if _list(part, "items") else "items") for part in parts]
        node.items = self._child(rest, depth)
        node.is_complete = True
        return node

    def _child(self, schemas: list[Any], depth: int) -> _NameNode | None:
        """The node for what these schemas describe; None if no names are known there."""
        given = [schema for schema in schemas if isinstance(schema, dict)]
        if not given:
            return None
        node = self._node(given, depth + 1)
        return None if node.is_complete and node.is_empty else node

    def _parts(self, schemas: list[Any]) -> list[JsonObject]:
        seen: dict[int, JsonObject] = {}
        for schema in schemas:
            seen.update((id(part), part) for part in self._document.parts_of(schema))
        return list(seen.values())


def _visit(node: _NameNode, value: Any, path: Path, found: list[MisspelledName]) -> None:
    if isinstance(value, dict):
        if node.names is not None and not value.keys() <= node.names:
            _compare(node.names, value, path, found)
        for name in value if node.others is not None else node.inside:
            item = value.get(name)
            child = node.inside.get(name, node.others)
            if child is not None and isinstance(item, (dict, list)):
                _visit(child, item, (*path, name), found)
    elif isinstance(value, list) and (node.items is not None or node.first):
        for index, item in enumerate(value):
            child = node.first[index] if index < len(node.first) else node.items
            if child is not None and isinstance(item, (dict, list)):
                _visit(child, item, (*path, index), found)


def _compare(
    known: frozenset[str], value: JsonObject, path: tuple[str | int, ...], found: list[MisspelledName]
) -> None:
    absent = [name for name in known if name not in value]
    for name in value:
        if isinstance(name, str) and name not in known:
            nearest = tuple(sorted(one for one in absent if is_misspelling(name, one)))
            if nearest:
                found.append(MisspelledName((*path, name), nearest))


def _dict(schema: JsonObject, keyword: str) -> JsonObject:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _list(schema: JsonObject, keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
