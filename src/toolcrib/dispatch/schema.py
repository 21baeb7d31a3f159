"""A tool's JSON Schema, as a document with types, references and drafts, and compiled by jsonschema-rs.

Validation takes bounded time and never touches the network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from urllib.parse import unquote

from toolcrib.core.lazy import jsonschema_rs
from toolcrib.core.types import JsonObject
from toolcrib.registry.schema_repair import DEFINITIONS, SCHEMA_LISTS, SCHEMA_MAPS, SCHEMAS, repair

ROOT = "#"
MAX_TEXT_CHARS = 60

_SUPPORTED_DRAFTS = (
    "json-schema.org/draft/2020-12/schema",
    "json-schema.org/draft/2019-09/schema",
    "json-schema.org/draft-07/schema",
    "json-schema.org/draft-06/schema",
    "json-schema.org/draft-04/schema",
)
# Root keywords that define which further arguments are allowed.
_OPEN_KEYWORDS = ("additionalProperties", "unevaluatedProperties")
_MAX_HOPS = 32


def normalise(schema: JsonObject) -> JsonObject:
    """The schema to validate with: an unknown `$schema` means 2020-12, `nullable` becomes a null type.

    Does not change the input. Raises RecursionError if it is nested too deeply.
    """
    result = _widen(schema)
    draft = schema.get("$schema")
    if "$schema" in schema and not (isinstance(draft, str) and _bare_uri(draft) in _SUPPORTED_DRAFTS):
        result = {key: value for key, value in result.items() if key != "$schema"}
    return result


def _bare_uri(uri: str) -> str:
    return uri.rstrip("#").removeprefix("http://").removeprefix("https://")


def _widen(schema: JsonObject) -> JsonObject:
    result = _map_subschemas(schema, _widen)
    if schema.get("nullable") is not True:
        return result
    null = {"type": "null"}
    if "$ref" in result and "anyOf" not in result:
        rest = {key: value for key, value in result.items() if key != "$ref"}
        return {**rest, "anyOf": [{"$ref": result["$ref"]}, null]}
    changes: JsonObject = {}
    types = allowed_types(result)
    if types is not None and "null" not in types:
        changes["type"] = [*types, "null"]
    if isinstance(result.get("enum"), list) and None not in result["enum"]:
        changes["enum"] = [*result["enum"], None]
    for keyword in ("anyOf", "oneOf"):
        if isinstance(result.get(keyword), list) and not any(_says_null(branch) for branch in result[keyword]):
            changes[keyword] = [*result[keyword], null]
    return {**result, **changes}


def _says_null(schema: Any) -> bool:
    return isinstance(schema, dict) and "null" in (allowed_types(schema) or ())


def _map_subschemas(schema: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    """The schema with `change` applied to its direct subschemas; the same object if nothing changed."""
    changed: JsonObject = {}
    for keyword, value in schema.items():
        if isinstance(value, dict) and keyword in SCHEMAS:
            new: Any = change(value)
            is_new = new is not value
        elif isinstance(value, dict) and (keyword in SCHEMA_MAPS or keyword in DEFINITIONS):
            new = {name: change(sub) if isinstance(sub, dict) else sub for name, sub in value.items()}
            is_new = any(new[name] is not sub for name, sub in value.items())
        elif isinstance(value, list) and (keyword in SCHEMA_LISTS or keyword == "items"):
            new = [change(sub) if isinstance(sub, dict) else sub for sub in value]
            is_new = any(now is not before for now, before in zip(new, value, strict=True))
        else:
            continue
        if is_new:
            changed[keyword] = new
    return {**schema, **changed} if changed else schema


def allowed_types(schema: JsonObject) -> tuple[str, ...] | None:
    """The names under `type`, in order; None if the schema says nothing usable about it."""
    types = schema.get("type")
    if isinstance(types, str):
        return (types,)
    if isinstance(types, list) and types and all(isinstance(name, str) for name in types):
        return tuple(types)
    return None


def child(pointer: str, *steps: str | int) -> str:
    """The pointer to something inside `pointer`."""
    escaped = (str(step).replace("~", "~0").replace("/", "~1") for step in steps)
    return "/".join((pointer, *escaped))


class SchemaDocument:
    """One root schema with its local references. External references are not resolved."""

    __slots__ = ("root",)

    def __init__(self, root: JsonObject) -> None:
        self.root = root

    def follow(self, reference: Any) -> tuple[Any, str] | None:
        """The subschema that a local `$ref` names, with its pointer."""
        if not isinstance(reference, str) or not (reference == ROOT or reference.startswith("#/")):
            return None
        pointer = unquote(reference)
        steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
        found = self.at(steps)
        return None if found is None else (found, pointer)

    def at(self, steps: list[Any]) -> Any | None:
        """The value at a path of keys and indices, or None."""
        found: Any = self.root
        for step in steps:
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and str(step).isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                return None
        return found

    def resolved(self, schema: Any) -> JsonObject:
        """A schema with its chain of bare references resolved; keywords next to a reference win."""
        for _ in range(_MAX_HOPS):
            if not isinstance(schema, dict):
                return {}
            target = self.follow(schema.get("$ref")) if "$ref" in schema else None
            if target is None or not isinstance(target[0], dict):
                return schema
            schema = {**target[0], **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema if isinstance(schema, dict) else {}

    def is_recursive(self) -> bool:
        """Whether a schema may be recursive; an unresolvable reference counts as yes."""
        open_schemas: set[int] = set()
        done: set[int] = set()

        def leads_back(node: Any) -> bool:
            if not isinstance(node, (dict, list)) or id(node) in done:
                return False
            if id(node) in open_schemas:
                return True
            open_schemas.add(id(node))
            inner = list(node.values()) if isinstance(node, dict) else node
            if isinstance(node, dict) and isinstance(node.get("$ref"), str):
                target = self.follow(node["$ref"])
                if target is None:
                    return True
                inner = [*inner, target[0]]
            if (isinstance(node, dict) and "$dynamicRef" in node) or any(map(leads_back, inner)):
                return True
            open_schemas.discard(id(node))
            done.add(id(node))
            return False

        return leads_back(self.root)

    def known_names(self, schema: Any | None = None) -> frozenset[str] | None:
        """Every name that an object schema (by default the root) lists; None if it allows other names, too."""
        names: set[str] = set()
        for part in self.parts_of(self.root if schema is None else schema):
            if part.get("patternProperties") or any(part.get(key, False) is not False for key in _OPEN_KEYWORDS):
                return None
            if isinstance(part.get("properties"), dict):
                names.update(part["properties"])
        return frozenset(names)

    def parts_of(self, schema: Any) -> Iterator[JsonObject]:
        """A schema and every subschema that describes the same value."""
        waiting: list[Any] = [schema]
        seen: set[int] = set()
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            if "$ref" in schema and (target := self.follow(schema["$ref"])) is not None:
                waiting.append(target[0])
            for keyword in ("allOf", "anyOf", "oneOf"):
                waiting.extend(schema[keyword] if isinstance(schema.get(keyword), list) else ())
            waiting.extend(schema.get(keyword) for keyword in ("if", "then", "else"))
            dependent = schema.get("dependentSchemas")
            waiting.extend(dependent.values() if isinstance(dependent, dict) else ())


def widest_union(schema: Any) -> int:
    """The number of branches of the largest anyOf or oneOf below."""
    if isinstance(schema, dict):
        own = max((len(schema[key]) for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)), default=1)
        return max(own, *map(widest_union, schema.values()), 1)
    return max(map(widest_union, schema), default=1) if isinstance(schema, list) else 1


def mentions_integer(schema: Any) -> bool:
    """Whether some subschema may want an integer; a reference counts as yes."""
    if isinstance(schema, dict):
        if "$ref" in schema or "$dynamicRef" in schema:
            return True
        types = schema.get("type")
        if types == "integer" or (isinstance(types, list) and "integer" in types):
            return True
        return any(mentions_integer(value) for value in schema.values())
    return isinstance(schema, list) and any(mentions_integer(value) for value in schema)


def shorten(value: Any) -> str:
    """A value as shown in messages: short scalars in full, containers by their size."""
    if isinstance(value, str):
        cut = value if len(value) <= MAX_TEXT_CHARS else value[:MAX_TEXT_CHARS] + "…"
        return json.dumps(cut, ensure_ascii=any("\ud800" <= char <= "\udfff" for char in cut))
    if isinstance(value, (bool, int, float)) or value is None:
        try:
            text = json.dumps(value)
        except ValueError:
            return "a huge number"
        return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "…"
    if isinstance(value, (list, tuple)):
        return f"an array of {len(value)} item{'s'[: len(value) != 1]}" if value else "an empty array"
    if isinstance(value, dict):
        names = ", ".join(str(name)[:MAX_TEXT_CHARS] for name in list(value)[:5])
        return f"an object with {names}{', …' if len(value) > 5 else ''}" if value else "an empty object"
    return f"a Python {type(value).__name__}"


# A pattern that needs more steps than this counts as a mismatch; 100,000 steps take about a millisecond.
_BACKTRACK_LIMIT = 100_000
_MASK = "the value"
_MAX_REASON_CHARS = 300

Check = Callable[[Any], bool]


class CompiledSchema:
    """One compiled schema. An invalid one is repaired part by part: `problem` says why, `repairs` what changed."""

    __slots__ = ("_options", "_parts", "_validator", "document", "is_valid", "problem", "repairs")

    def __init__(self, schema: JsonObject) -> None:
        self._parts: jsonschema_rs.ValidatorMap | None = None
        self._options: dict[str, Any] = {
            "retriever": _refuse_to_fetch,
            "pattern_options": jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT),
        }
        self.problem: str | None = None
        self.repairs: tuple[str, ...] = ()
        self.document = SchemaDocument(schema)
        try:
            self.document = SchemaDocument(normalise(schema))
            self._validator = self._compile()
        except RecursionError:
            self.problem = "the schema is nested too deeply"
        except (ValueError, TypeError, jsonschema_rs.ReferencingError) as error:
            self.problem = _reason(error, self.document)
        if self.problem is not None:
            repaired = repair(self.document.root, self._compiles)
            self.document, self.repairs = SchemaDocument(repaired.schema), repaired.changes
            self._validator = self._compile()
        self.is_valid: Check = self._validator.is_valid

    def _compile(self) -> jsonschema_rs.Validator:
        return jsonschema_rs.validator_for(self.document.root, mask=_MASK, **self._options)

    def _compiles(self, schema: JsonObject) -> bool:
        try:
            jsonschema_rs.validator_for(schema, **self._options)
        except (ValueError, TypeError, RecursionError, jsonschema_rs.ReferencingError):
            return False
        return True

    def errors(self, value: Any) -> Iterator[jsonschema_rs.ValidationError]:
        """Every violation; raises ValueError for a value that is not JSON."""
        return self._validator.iter_errors(value)

    def part_accepts(self, pointer: str, value: Any) -> bool | None:
        """Whether the subschema at `pointer` accepts a value; None if unknown."""
        if self._parts is None:
            self._parts = self._compile_parts()
        part = self._parts.get(pointer)
        try:
            return None if part is None else part.is_valid(value)
        except (ValueError, RecursionError):
            return False

    def _compile_parts(self) -> jsonschema_rs.ValidatorMap:
        # Only calls that need coercion come here; two threads at once compile the same map twice, harmlessly.
        try:
            return jsonschema_rs.validator_map_for(self.document.root, **self._options)
        except (ValueError, jsonschema_rs.ReferencingError):
            return jsonschema_rs.validator_map_for(True)


def validate(schema: JsonObject, value: Any) -> bool:
    """Whether `value` is valid under `schema` without coercion; raises ValueError if the schema is not usable."""
    compiled = CompiledSchema(schema)
    if compiled.problem is not None:
        raise ValueError(compiled.problem)
    return compiled.is_valid(value)


def _refuse_to_fetch(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema, and toolcrib never fetches references")


def _reason(error: Exception, document: SchemaDocument) -> str:
    text = str(getattr(error, "message", "") or error)
    path: list[str | int] = getattr(error, "instance_path", [])
    if path and text.startswith(_MASK):
        # The mask keeps a model's values out of messages; here it hides the schema's own text.
        text = shorten(document.at(path)) + text.removeprefix(_MASK)
    place = f" at {'/'.join(str(step) for step in path)!r}" if path else ""
    return f"{text[:_MAX_REASON_CHARS]}{place}"
