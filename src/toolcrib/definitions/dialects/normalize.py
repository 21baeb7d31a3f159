"""Normalises any JSON Schema to a root object in a small, well-formed subset of draft 2020-12.

The result has no boolean schema (except `additionalProperties`), no `allOf`, `oneOf`, `not` or conditional, and no
reference except bare ones into its own `$defs`. It accepts every object that the original accepts. It is monotone:
loosening any part of it loosens the whole, so a dialect may omit what its provider rejects.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

from toolcrib.core.json_schema import (
    COUNTS,
    NUMBERS,
    at_pointer,
    clean_types,
    element_schema,
    read_number,
    read_required,
    read_schema,
)
from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects.keywords import (
    ANNOTATIONS,
    MALFORMED,
    OBJECT_KEYWORDS,
    PLAIN_KEYWORDS,
    UnrenderableTool,
    add_notes,
    note,
    one_of,
    set_types,
    short,
    types_of,
)


class References:
    """Looks up the local references of one schema; a pointer is the part after `#`."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._onward: dict[str, set[str]] = {}
        root_id = root.get("$id")
        self._root_id = root_id.rstrip("#") if isinstance(root_id, str) else ""

    def pointer(self, reference: str) -> str | None:
        """The pointer of a reference into this schema; None for a reference elsewhere."""
        if self._root_id and reference.startswith(f"{self._root_id}#"):
            reference = reference[len(self._root_id) :]
        if reference == "#" or reference.startswith("#/"):
            return unquote(reference[1:])
        return None

    def target(self, pointer: str) -> Any:
        """The schema at the pointer; True (accepts anything) if there is none."""
        return at_pointer(self._root, pointer, default=True)

    def is_recursive(self, pointer: str) -> bool:
        """Whether the schema at the pointer refers back to itself, directly or indirectly."""
        seen: set[str] = set()
        waiting = [pointer]
        while waiting:
            for onward in self._pointers_at(waiting.pop()):
                if onward == pointer:
                    return True
                if onward not in seen:
                    seen.add(onward)
                    waiting.append(onward)
        return False

    def _pointers_at(self, pointer: str) -> set[str]:
        if pointer not in self._onward:
            self._onward[pointer] = self._pointers_in(self.target(pointer))
        return self._onward[pointer]

    def _pointers_in(self, schema: Any) -> set[str]:
        found: set[str] = set()
        visited: set[int] = set()
        waiting = [schema]
        while waiting:
            value = waiting.pop()
            if not isinstance(value, (dict, list)) or id(value) in visited:
                continue
            visited.add(id(value))
            if isinstance(value, list):
                waiting.extend(value)
                continue
            waiting.extend(value.values())
            reference = value.get("$ref")
            pointer = self.pointer(reference) if isinstance(reference, str) else None
            if pointer is not None:
                found.add(pointer)
        return found


MAX_DEPTH = 50
MAX_RECURSION = 2
"""How often to expand a recursive reference inside itself before replacing it with a plain object."""
MAX_INLINED_NODES = 1_500
"""The size at which to stop expanding references; otherwise a few shared definitions could multiply without bound."""
MAX_NODES = 20_000

# Keywords that old drafts ignore; keeping them would reject what the author's draft accepts.
_SINCE_2019 = frozenset({"prefixItems", "dependentRequired"})
_SINCE_DRAFT_6 = frozenset({"const", "propertyNames", "exclusiveMinimum", "exclusiveMaximum"})
_NOTED_ONLY = ("not", "contains", "if", "dependentSchemas")


def normalise(parameters: JsonObject, *, keep_references: bool) -> tuple[JsonObject, list[str]]:
    """The schema as a plain root object, and notes about the rest for the tool's description."""
    return _Normaliser(parameters, keep_references).root()


class _Normaliser:
    """Walks one schema and counts the nodes it writes."""

    def __init__(self, schema: JsonObject, keep_references: bool) -> None:
        self._schema = schema
        self._keep_references = keep_references
        self._references = References(schema)
        self._expanding: list[str] = []
        self._names: dict[str, str] = {}
        self._nodes = 0
        self._depth = 0
        self._has_own_base = False
        draft = str(schema.get("$schema", ""))
        self._is_old_draft = "draft-0" in draft
        self._ignored = _SINCE_2019 if self._is_old_draft else frozenset[str]()
        if "draft-03" in draft or "draft-04" in draft:
            self._ignored |= _SINCE_DRAFT_6

    def root(self) -> tuple[JsonObject, list[str]]:
        node = self._node(self._schema, inline=True)
        if node is None:
            raise UnrenderableTool("its schema rejects every argument")
        if types_of(node) and "object" not in types_of(node):
            raise UnrenderableTool(f"its arguments are declared as {types_of(node)[0]!r}; declare an object")
        notes = _root_notes(node)
        flat = flatten(node)
        root: JsonObject = {"type": "object", "properties": flat.pop("properties", {})}
        if required := flat.pop("required", []):
            root["required"] = required
        root |= flat
        if definitions := self._definitions():
            root["$defs"] = definitions
        return root, notes

    def _definitions(self) -> JsonObject:
        """The targets of the remaining references; expanding one may add more."""
        definitions: JsonObject = {}
        while waiting := [pointer for pointer, name in self._names.items() if name not in definitions]:
            for pointer in waiting:
                definitions[self._names[pointer]] = self._node(self._references.target(pointer)) or {}
        return definitions

    def _node(self, schema: Any, *, inline: bool = False) -> JsonObject | None:
        """The cleaned schema; None if nothing is valid. With `inline`, it is not a bare reference."""
        schema = read_schema(schema)
        if schema is False:
            return None
        if not isinstance(schema, dict):
            return {}
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise UnrenderableTool(f"its schema has more than {MAX_NODES} parts")
        if self._depth >= MAX_DEPTH:
            return _stub(schema)
        had_own_base = self._has_own_base
        base = schema.get("$id")
        if isinstance(base, str) and not base.startswith("#") and schema is not self._schema:
            self._has_own_base = True
        self._depth += 1
        node = self._combined(schema, inline)
        self._depth -= 1
        self._has_own_base = had_own_base
        return node

    def _combined(self, schema: JsonObject, inline: bool) -> JsonObject | None:
        """The node's own keywords, intersected with those of its reference and of each `allOf` part."""
        reference = schema.get("$ref")
        is_reference = isinstance(reference, str)
        own = self._own_keywords(schema, inline, annotations_only=is_reference and self._is_old_draft)
        parts = schema.get("allOf")
        parts = parts if isinstance(parts, list) and not (is_reference and self._is_old_draft) else []
        if not own and not is_reference and len(parts) == 1:
            return self._node(parts[0], inline=inline)
        merged = own
        if is_reference:
            target = self._referenced(str(reference), inline=inline or bool(own) or bool(parts))
            if target is None:
                return None
            merged = intersect(merged, target)
        for part in parts:
            cleaned = self._node(part, inline=True)
            if cleaned is None:
                return None
            merged = intersect(merged, cleaned)
        return _completed(merged, schema)

    def _referenced(self, reference: str, *, inline: bool) -> JsonObject | None:
        pointer = None if self._has_own_base else self._references.pointer(reference)
        if pointer is None:
            return {}
        target = self._references.target(pointer)
        if not inline and isinstance(target, dict) and self._is_kept(pointer):
            return {"$ref": f"#/$defs/{self._name(pointer)}"}
        if self._expanding.count(pointer) >= MAX_RECURSION or self._nodes > MAX_INLINED_NODES:
            return _stub(target)
        self._expanding.append(pointer)
        node = self._node(target, inline=True)
        self._expanding.pop()
        return node

    def _is_kept(self, pointer: str) -> bool:
        return self._keep_references and (pointer in self._names or not self._references.is_recursive(pointer))

    def _name(self, pointer: str) -> str:
        if pointer not in self._names:
            plain = re.sub(r"[^A-Za-z0-9_.-]", "_", pointer.rsplit("/", 1)[-1]) or "root"
            taken = set(self._names.values())
            numbered = (f"{plain}_{number}" for number in range(2, len(taken) + 3))
            self._names[pointer] = plain if plain not in taken else next(name for name in numbered if name not in taken)
        return self._names[pointer]

    def _own_keywords(self, schema: JsonObject, inline: bool, annotations_only: bool) -> JsonObject:
        node: JsonObject = {}
        for keyword, value in schema.items():
            if keyword in self._ignored or (annotations_only and keyword not in ANNOTATIONS):
                continue
            if keyword in PLAIN_KEYWORDS:
                cleaned = PLAIN_KEYWORDS[keyword](value)
                if cleaned is MALFORMED and (keyword in COUNTS or keyword in NUMBERS):
                    number = read_number(keyword, value, schema)
                    cleaned = MALFORMED if number is None else number
                if cleaned is not MALFORMED:
                    node[keyword] = cleaned
            elif keyword == "type" and (types := clean_types(value)):
                set_types(node, types)
            elif keyword in ("properties", "patternProperties") and isinstance(value, dict):
                node[keyword] = self._map(value)
            elif keyword in ("additionalProperties", "propertyNames") and isinstance(value, (bool, dict)):
                self._add_property_rule(node, keyword, value)
        if annotations_only:
            return node
        if required := read_required(schema):
            node["required"] = required
        self._add_items(node, schema)
        self._add_alternatives(node, schema, inline)
        add_notes(node, (_noted(schema, keyword) for keyword in _NOTED_ONLY if _is_worth_a_note(schema, keyword)))
        return node

    def _map(self, schemas: JsonObject) -> JsonObject:
        cleaned = ((key, self._node(schema)) for key, schema in schemas.items() if isinstance(key, str))
        return {key: node for key, node in cleaned if node is not None}

    def _add_property_rule(self, node: JsonObject, keyword: str, value: bool | JsonObject) -> None:
        if isinstance(value, dict):
            cleaned = self._node(value)
            node[keyword] = False if cleaned is None else cleaned
        elif keyword == "additionalProperties":
            node[keyword] = value
        if node.get("propertyNames") is False:
            del node["propertyNames"]

    def _add_items(self, node: JsonObject, schema: JsonObject) -> None:
        """Arrays of all drafts in the newest syntax: `prefixItems` first, `items` for the others."""
        first, rest = schema.get("prefixItems"), schema.get("items", element_schema(schema))
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems")
        elif "prefixItems" in self._ignored:
            first = None
        if isinstance(first, list) and first:
            node["prefixItems"] = [self._node(schema) or {} for schema in first]
        cleaned = self._node(rest) if isinstance(rest, (bool, dict)) else None
        if rest is False or (cleaned is None and isinstance(rest, dict)):
            length = len(node.get("prefixItems", []))
            node["maxItems"] = min(length, node.get("maxItems", length))
        elif cleaned is not None:
            node["items"] = cleaned

    def _add_alternatives(self, node: JsonObject, schema: JsonObject, inline: bool) -> None:
        """`anyOf`, or `oneOf` read as one: once its branches are loosened, more than one may match."""
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if not isinstance(branches, list):
                continue
            cleaned = [branch for branch in (self._node(raw, inline=inline) for raw in branches) if branch is not None]
            if not cleaned:
                continue
            if "anyOf" in node:
                add_notes(node, [note("anyOf", cleaned)])
            else:
                node["anyOf"] = cleaned


def _completed(node: JsonObject, schema: JsonObject) -> JsonObject:
    """The node with OpenAPI's `nullable` spelt out, and `items` on every array."""
    types = types_of(node)
    if schema.get("nullable") is True and "null" not in types:
        if types:
            types = [*types, "null"]
            set_types(node, types)
        if "enum" in node and None not in node["enum"]:
            node["enum"] = [*node["enum"], None]
        if "const" in node and node["const"] is not None:
            node["enum"] = [node.pop("const"), None]
        if "anyOf" in node:
            node["anyOf"] = [*node["anyOf"], {"type": "null"}]
        if "$ref" in node:
            node = {"anyOf": [node, {"type": "null"}]}
    if "array" in types and "items" not in node:
        node["items"] = {}
    return node


def _stub(schema: Any) -> JsonObject:
    """The placeholder for a schema that is not expanded: only its type."""
    types = clean_types(schema.get("type")) if isinstance(schema, dict) else []
    if not types or schema.get("nullable") is True:
        return {}
    stub: JsonObject = {}
    set_types(stub, types)
    return _completed(stub, {})


def _is_worth_a_note(schema: JsonObject, keyword: str) -> bool:
    try:
        return keyword in schema and bool(short(schema[keyword]))
    except (TypeError, ValueError, RecursionError):
        # What cannot be written as JSON cannot be sent to the model either.
        return False


def _noted(schema: JsonObject, keyword: str) -> str:
    return (_required_by_value(schema) if keyword == "if" else "") or note(keyword, schema[keyword])


def _required_by_value(schema: JsonObject) -> str:
    """A condition on one argument that makes others required, in words; "" for any other condition."""
    fixed = schema["if"].get("properties") if isinstance(schema["if"], dict) else None
    if not isinstance(fixed, dict) or len(fixed) != 1:
        return ""
    [(name, rule)] = fixed.items()
    needed = [
        ", ".join(branch["required"]) if isinstance(branch, dict) and set(branch) == {"required"} else ""
        for branch in (schema.get("then"), schema.get("else", {"required": []}))
    ]
    if not isinstance(rule, dict) or "const" not in rule or not needed[0]:
        return ""
    words = f"{name} {short(rule['const'])} requires {needed[0]}"
    return f"{words}; otherwise {needed[1]}" if needed[1] else words


def _root_notes(node: JsonObject) -> list[str]:
    """Notes on what a root object loses: providers reject alternatives and fixed values there."""
    notes = [one_of(node["enum"])] if "enum" in node else []
    if "const" in node:
        notes.append(note("const", node["const"]))
    always = node.get("required", [])
    needed = [[name for name in branch.get("required", []) if name not in always] for branch in node.get("anyOf", [])]
    sets = dict.fromkeys(", ".join(names) for names in needed if names)
    if len(sets) > 1:
        notes.append("give one of these sets of arguments: " + "; or ".join(sets))
    return notes


_LARGER_WINS = frozenset({"minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum"})
_SMALLER_WINS = frozenset({"maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum"})
_DISCRIMINATOR_KEYWORDS = frozenset({"const", "enum", "type", "title", "description", "default"})


def intersect(first: JsonObject, second: JsonObject) -> JsonObject:
    """A schema that accepts everything that both accept; where they conflict, `first` wins."""
    merged = dict(first)
    for keyword, value in second.items():
        if keyword in ("items", "prefixItems"):
            continue
        if keyword == "anyOf" and {} in value and first:
            continue
        merged[keyword] = _both(keyword, first[keyword], value) if keyword in first else value
    if types_of(first) and types_of(second):
        set_types(merged, _shared_types(types_of(first), types_of(second)))
    _intersect_items(merged, second)
    return merged


def _both(keyword: str, first: Any, second: Any) -> Any:
    if keyword in ("properties", "patternProperties"):
        return _intersect_maps(first, second)
    if keyword == "required":
        return list(dict.fromkeys([*first, *second]))
    if keyword == "additionalProperties" and second is False:
        return False
    if keyword == "additionalProperties" and first is True:
        return second
    if keyword == "enum":
        return [value for value in first if value in second] or first
    if keyword in _LARGER_WINS:
        return max(first, second)
    if keyword in _SMALLER_WINS:
        return min(first, second)
    return first


def _intersect_maps(first: JsonObject, second: JsonObject) -> JsonObject:
    merged = dict(first)
    for name, schema in second.items():
        merged[name] = intersect(first[name], schema) if name in first else schema
    return merged


def _shared_types(first: list[str], second: list[str]) -> list[str]:
    shared = [name for name in first if name in second or (name == "integer" and "number" in second)]
    if "integer" in second and "number" in first and "integer" not in shared:
        shared.append("integer")
    return shared or first


def _intersect_items(merged: JsonObject, second: JsonObject) -> None:
    """`items` means the items after `prefixItems`, so take both from the same side."""
    if "prefixItems" not in merged and not merged.get("items"):
        for keyword in ("prefixItems", "items"):
            if keyword in second:
                merged[keyword] = second[keyword]
    elif "prefixItems" not in merged and "prefixItems" not in second and "items" in second:
        merged["items"] = intersect(merged["items"], second["items"])


def unite(alternatives: list[JsonObject]) -> JsonObject:
    """One object schema, without `anyOf`, that accepts every object that any of the alternatives accepts."""
    shapes = [flatten(shape) for shape in alternatives if not types_of(shape) or "object" in types_of(shape)]
    if not shapes:
        return {}
    names = dict.fromkeys(name for shape in shapes for name in shape.get("properties", {}))
    united: JsonObject = {"properties": {name: _unite_property(name, shapes) for name in names}}
    first, *others = [shape.get("required", []) for shape in shapes]
    united["required"] = [name for name in first if all(name in required for required in others)]
    if all(_is_closed(shape) for shape in shapes):
        united["additionalProperties"] = False
    return united


def flatten(node: JsonObject) -> JsonObject:
    """The object part of a node, with its alternatives merged in."""
    own = {keyword: value for keyword, value in node.items() if keyword in OBJECT_KEYWORDS or keyword in ANNOTATIONS}
    return intersect(own, unite(node["anyOf"])) if node.get("anyOf") else own


def _is_closed(shape: JsonObject) -> bool:
    return shape.get("additionalProperties") is False and "patternProperties" not in shape


def _unite_property(name: str, shapes: list[JsonObject]) -> JsonObject:
    variants: dict[str, JsonObject] = {}
    for shape in shapes:
        if name in shape.get("properties", {}):
            variant = shape["properties"][name]
        elif _is_closed(shape):
            continue
        else:
            # An open alternative that does not mention the property accepts anything there.
            variant = {}
        variants.setdefault(json.dumps(variant, sort_keys=True), variant)
    options = sorted(variants.values(), key=lambda option: option == {})
    if len(options) == 1:
        return options[0]
    return _discriminator(options) or {"anyOf": options}


def _discriminator(options: list[JsonObject]) -> JsonObject | None:
    """Merges alternatives that each fix the same property to a constant into one enum."""
    if not all(
        ("const" in option or "enum" in option) and option.keys() <= _DISCRIMINATOR_KEYWORDS for option in options
    ):
        return None
    values = [value for option in options for value in option.get("enum", [option.get("const")])]
    merged: JsonObject = {"enum": list({json.dumps(value, sort_keys=True): value for value in values}.values())}
    declared = [types_of(option) for option in options]
    if all(declared):
        set_types(merged, list(dict.fromkeys(name for types in declared for name in types)))
    described = [option["description"] for option in options if option.get("description")]
    if described:
        merged["description"] = " / ".join(dict.fromkeys(described))
    return merged
