"""Explains errors in a call's arguments so that a model can correct them: what was expected, with an example."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from toolcrib.core.errors import nearest_names
from toolcrib.core.types import JsonObject
from toolcrib.dispatch.misspelled_names import Path, SpellingChecker
from toolcrib.dispatch.schema import (
    MAX_TEXT_CHARS,
    ROOT,
    CompiledSchema,
    SchemaDocument,
    allowed_types,
    child,
    shorten,
    widest_union,
)

if TYPE_CHECKING:
    import jsonschema_rs


WHOLE_CALL = "arguments"
"""The field of a problem that concerns the call as a whole."""

_MAX_TOLD = 5
_MAX_ERRORS_READ = 200
_MAX_SENTENCE_CHARS = 300
_MAX_EXAMPLE_CHARS = 400
_MAX_UNION_DEPTH = 8
# For violations of these keywords, describe the whole subschema; for others, use the validator's message.
_DESCRIBED = frozenset({
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "pattern", "minItems", "maxItems", "format", "anyOf", "oneOf",
})  # fmt: skip
# The validator lists the errors of every branch of every union, so with a recursive schema the list grows
# exponentially with the nesting: 2,000 entries take about 0.2 seconds, 60,000 take 14 seconds and gigabytes.
_MAX_UNION_ERRORS = 2_000
_UNKNOWN_NAME_KEYWORDS = ("additionalProperties", "unevaluatedProperties")


class ArgumentError(msgspec.Struct, frozen=True):
    """Why a call cannot run as requested."""

    message: str
    """For the model: every problem with the call, the most important first, and an example."""
    field: str
    """The argument that the first problem is about: `path`, `items[0].name`, or `arguments` for the whole call."""
    expected: str
    example: Any | None
    """A valid value for that field, if known."""


class _ArgumentFinding(msgspec.Struct, frozen=True):
    rank: int
    path: Path
    sentence: str
    expected: str
    schema: Any = None
    pointer: str = ""
    is_unknown: bool = False


class ArgumentErrorReport:
    """Describes the problems of calls to one tool."""

    __slots__ = ("_compiled", "_expectation", "_known", "_spelling", "_tool_name", "_union_width")

    def __init__(
        self, tool_name: str, compiled: CompiledSchema, known: frozenset[str] | None, spelling: SpellingChecker
    ) -> None:
        """`known`: the only names that the tool takes; None if others are legal."""
        self._tool_name = tool_name
        self._compiled = compiled
        self._known = known
        self._spelling = spelling
        self._expectation = ExpectedValue(compiled.document)
        self._union_width: int | None = None

    def about_text(self, reason: str) -> ArgumentError:
        """The arguments are not an object at all."""
        example = self._example_call({}, ())
        return ArgumentError(
            message=self._message(f"{reason}. Send one whole JSON object{_shown(example)}."),
            field=WHOLE_CALL,
            expected="a JSON object",
            example=example,
        )

    def about(self, arguments: JsonObject) -> ArgumentError | None:
        """What is wrong with these arguments, or None."""
        try:
            if self._is_affordable(arguments):
                errors = list(itertools.islice(self._compiled.errors(arguments), _MAX_ERRORS_READ))
                findings = [finding for error in errors for finding in self._findings(error, 0)]
            else:
                findings = [] if self._compiled.is_valid(arguments) else self._outline(arguments)
        except (ValueError, RecursionError) as error:
            return self._about_non_json(error)
        if self._known is not None:
            unknown = [str(name) for name in arguments if name not in self._known]
            findings += self._unknown((), unknown, self._known)
        told = {finding.path for finding in findings if finding.is_unknown}
        for name in self._spelling.find(arguments):
            if name.path not in told:
                findings += self._unknown(name.path[:-1], [str(name.path[-1])], name.nearest)
        return self._told(findings, arguments) if findings else None

    def _is_affordable(self, arguments: JsonObject) -> bool:
        if self._union_width is None:
            document = self._compiled.document
            self._union_width = widest_union(document.root) if document.is_recursive() else 1
        width = self._union_width
        return width == 1 or width ** _depth(arguments, _MAX_UNION_ERRORS.bit_length()) <= _MAX_UNION_ERRORS

    def _outline(self, arguments: JsonObject) -> list[_ArgumentFinding]:
        """Which arguments are wrong, without the positions inside them."""
        properties = self._compiled.document.resolved(self._compiled.document.root).get("properties")
        found = []
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            pointer = child(ROOT, "properties", name)
            if name in arguments and self._compiled.part_accepts(pointer, arguments[name]) is False:
                expected = self._expectation.describe(schema) or "a value that fits its schema"
                sentence = f"{name!r} must be {expected}, found {shorten(arguments[name])} that does not fit"
                found.append(_ArgumentFinding(2, (name,), sentence, expected, schema, pointer))
        return found or [
            _ArgumentFinding(3, (), "they do not fit the schema of the tool", "arguments that fit the schema")
        ]

    def _about_non_json(self, error: Exception) -> ArgumentError:
        reason = "a text is not valid Unicode" if isinstance(error, UnicodeError) else f"{error}"[:_MAX_SENTENCE_CHARS]
        return self.about_text(f"a value cannot be expressed in JSON ({reason})")

    def _told(self, findings: list[_ArgumentFinding], arguments: JsonObject) -> ArgumentError:
        # Several branches often report the same problem; report it once.
        unique = list({finding.sentence: finding for finding in findings}.values())
        unique.sort(key=lambda finding: finding.rank)
        told = "; ".join(finding.sentence for finding in unique[:_MAX_TOLD])
        more = f"; and {len(unique) - _MAX_TOLD} more" if len(unique) > _MAX_TOLD else ""
        fields = tuple(str(finding.path[0]) for finding in unique if finding.path and not finding.is_unknown)
        shown = _shown(self._example_call(arguments, fields))
        advice = f" Correct it and call again{shown}." if shown else ""
        return ArgumentError(
            message=self._message(f"{told}{more}.{advice}"),
            field=field_name(unique[0].path),
            expected=unique[0].expected,
            example=self._example_value(unique[0]),
        )

    def _message(self, text: str) -> str:
        # A model's text may contain half of a surrogate pair, which providers reject.
        return f"Invalid arguments for {self._tool_name}: {text}".encode(errors="backslashreplace").decode()

    def _findings(self, error: jsonschema_rs.ValidationError, depth: int) -> Iterator[_ArgumentFinding]:
        keyword, path = error.kind.name, tuple(error.instance_path)
        schema = self._compiled.document.at(error.schema_path[:-1])
        pointer = child(ROOT, *error.schema_path[:-1])
        if keyword == "required" and hasattr(error.kind, "property"):
            yield self._missing((*path, error.kind.property), schema, pointer)
        elif keyword in _UNKNOWN_NAME_KEYWORDS and hasattr(error.kind, "unexpected"):
            properties = self._compiled.document.resolved(schema).get("properties")
            yield from self._unknown(path, error.kind.unexpected, properties if isinstance(properties, dict) else ())
        elif keyword in ("anyOf", "oneOf") and (inner := _telling_branch(error)) and depth < _MAX_UNION_DEPTH:
            for inner_error in inner:
                yield from self._findings(inner_error, depth + 1)
        else:
            yield self._wrong(error, schema, pointer)

    def _missing(self, path: Path, schema: Any, pointer: str) -> _ArgumentFinding:
        name = path[-1]
        properties = self._compiled.document.resolved(schema).get("properties")
        wanted = properties.get(name) if isinstance(properties, dict) else None
        if wanted is None and len(path) == 1:
            # A branch of the schema requires it, and the schema itself describes it.
            described = self._compiled.document.resolved(self._compiled.document.root).get("properties")
            wanted = described.get(name) if isinstance(described, dict) else None
        expected = self._expectation.describe(wanted) or "a value"
        sentence = f"{field_name(path)!r} is required and missing ({expected})"
        return _ArgumentFinding(0, path, sentence, expected, wanted, child(pointer, "properties", name))

    def _unknown(self, path: Path, names: Iterable[str], known: Iterable[str]) -> Iterator[_ArgumentFinding]:
        known = list(known)
        for name in names:
            nearest = nearest_names(name, known)
            if nearest:
                hint = f"did you mean {' or '.join(repr(found) for found in nearest)}?"
            elif known:
                hint = f"known: {', '.join(repr(found) for found in known[:20])}"
            else:
                hint = "none are known" if path else "this tool takes none"
            field = field_name((*path, name))
            expected = f"one of the known names: {', '.join(known[:20])}" if known else "no such argument"
            yield _ArgumentFinding(
                1, (*path, name), f"{field[:80]!r} is not a known argument ({hint})", expected, is_unknown=True
            )

    def _wrong(self, error: jsonschema_rs.ValidationError, schema: Any, pointer: str) -> _ArgumentFinding:
        keyword, path = error.kind.name, tuple(error.instance_path)
        expected = self._expectation.describe(schema) if keyword in _DESCRIBED else ""
        if expected:
            sentence = f"{field_name(path)!r} must be {expected}, found {shorten(error.instance)}"
        else:
            expected = f"a value that satisfies {keyword!r}"
            sentence = f"{field_name(path)!r}: {error.message[:_MAX_SENTENCE_CHARS]} (found {shorten(error.instance)})"
        return _ArgumentFinding(2 if keyword == "type" else 3, path, sentence, expected, schema, pointer)

    def _example_value(self, finding: _ArgumentFinding) -> Any | None:
        example = None if finding.schema is None else self._expectation.example(finding.schema)
        return None if self._compiled.part_accepts(finding.pointer, example) is False else example

    def _example_call(self, arguments: JsonObject, fields: tuple[str, ...]) -> JsonObject | None:
        """A valid call: the valid arguments as given, with examples in place of invalid or missing ones."""
        root = self._compiled.document.resolved(self._compiled.document.root)
        generated = self._expectation.example_object(root, extra_names=fields)
        properties = root.get("properties")
        if not generated and isinstance(properties, dict):
            generated = self._expectation.example_object(root, extra_names=tuple(properties)[:1])
        given = {
            name: value
            for name, value in arguments.items()
            if name in generated and name not in fields and isinstance(value, (str, int, float, bool))
        }
        for call in (generated | given, generated):
            try:
                text = json.dumps(call)
                if call and len(text) <= _MAX_EXAMPLE_CHARS and self._compiled.is_valid(call):
                    return call
            except (ValueError, TypeError, RecursionError):
                continue
        return None


def _depth(value: Any, limit: int) -> int:
    """The nesting depth of containers, counted up to a limit."""
    if limit <= 0 or not isinstance(value, (dict, list)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max((_depth(item, limit - 1) for item in inner), default=0)


def field_name(path: Path) -> str:
    """`items[0].name` for ("items", 0, "name"); `arguments` for the whole call."""
    if not path:
        return WHOLE_CALL
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _shown(example: JsonObject | None) -> str:
    return "" if example is None else f", for example {json.dumps(example, ensure_ascii=False)}"


def _telling_branch(error: jsonschema_rs.ValidationError) -> list[jsonschema_rs.ValidationError] | None:
    """The errors of the one branch of a union that the value has the right type for."""
    branches: list[list[jsonschema_rs.ValidationError]] = getattr(error.kind, "context", [])
    here = error.instance_path
    telling = [
        errors
        for errors in branches
        if errors and not any(inner.kind.name in ("type", "const") and inner.instance_path == here for inner in errors)
    ]
    return telling[0] if len(telling) == 1 else None


_MAX_OPTIONS = 12
# If every level is a large union, the work grows as their product, and a deeper description would not help.
_MAX_DEPTH = 4
_MAX_EXAMPLE_LENGTH = 40

_TYPE_PHRASES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "an array",
    "object": "an object",
}
_FORMAT_EXAMPLES = {
    "date": "2025-01-31",
    "date-time": "2025-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com",
    "url": "https://example.com",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
}


class ExpectedValue:
    """Descriptions and examples for the subschemas of one document."""

    __slots__ = ("_document",)

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document

    def describe(self, schema: Any, depth: int = 0) -> str:
        """A phrase that fits after "must be"; empty if the schema does not say."""
        schema = self._document.resolved(schema)
        if "const" in schema:
            return shorten(schema["const"])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return _one_of(schema["enum"])
        types = allowed_types(schema)
        if types is not None:
            return " or ".join(self._describe_type(name, schema, depth) for name in types)
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if isinstance(branches, list) and depth < _MAX_DEPTH:
                phrases = [self.describe(branch, depth + 1) for branch in branches[:_MAX_OPTIONS]]
                return " or ".join(dict.fromkeys(phrase for phrase in phrases if phrase))
        for part in schema["allOf"] if isinstance(schema.get("allOf"), list) and depth < _MAX_DEPTH else ():
            if phrase := self.describe(part, depth + 1):
                return phrase
        return " or ".join(_limits(kind, schema).strip() for kind in ("number", "string") if _limits(kind, schema))

    def _describe_type(self, name: str, schema: JsonObject, depth: int) -> str:
        phrase = _TYPE_PHRASES.get(name, name) + _limits(name, schema)
        if name == "array" and depth < _MAX_DEPTH and (item := self.describe(schema.get("items"), depth + 1)):
            return f"{phrase} (each item {item})"
        if name == "object" and isinstance(schema.get("required"), list) and schema["required"]:
            return f"{phrase} with {', '.join(repr(key) for key in schema['required'][:_MAX_OPTIONS])}"
        return phrase

    def example(self, schema: Any, depth: int = 0) -> Any:
        """A value that the schema most likely accepts; the caller checks it."""
        schema = self._document.resolved(schema)
        for given in (schema.get("examples"), schema.get("enum")):
            if isinstance(given, list) and given:
                return given[0]
        for keyword in ("const", "example", "default"):
            if schema.get(keyword) is not None:
                return schema[keyword]
        types = [name for name in allowed_types(schema) or () if name != "null"]
        if types:
            return self._example_of_type(types[0], schema, depth)
        for keyword in ("anyOf", "oneOf", "allOf"):
            branches = schema.get(keyword)
            if isinstance(branches, list) and depth < _MAX_DEPTH:
                found = (self.example(branch, depth + 1) for branch in branches[:_MAX_OPTIONS])
                return next((value for value in found if value is not None), None)
        return None

    def _example_of_type(self, name: str, schema: JsonObject, depth: int) -> Any:
        if name == "string":
            return _example_string(schema)
        if name in ("integer", "number"):
            return _example_number(schema)
        if name == "boolean":
            return True
        if name == "array":
            least = schema.get("minItems")
            count = least if isinstance(least, int) and least > 0 else 1
            item = self.example(schema.get("items"), depth + 1) if depth < _MAX_DEPTH else None
            return [] if item is None else [item] * min(count, _MAX_EXAMPLE_LENGTH)
        if name == "object":
            return self.example_object(schema, depth)
        return None

    def example_object(self, schema: JsonObject, depth: int = 0, extra_names: tuple[str, ...] = ()) -> JsonObject:
        """An object with the required properties and the other named ones."""
        properties = schema.get("properties")
        required = schema.get("required")
        names = [*(required if isinstance(required, list) else ()), *extra_names]
        if not isinstance(properties, dict) or depth >= _MAX_DEPTH:
            return {}
        found = {name: self.example(properties.get(name), depth + 1) for name in names if isinstance(name, str)}
        return {name: value for name, value in found.items() if value is not None}


def _one_of(options: list[Any]) -> str:
    shown = ", ".join(shorten(option) for option in options[:_MAX_OPTIONS])
    if len(options) == 1:
        return shown
    return f"one of {shown}" + (f" … ({len(options)} in all)" if len(options) > _MAX_OPTIONS else "")


def _limits(name: str, schema: JsonObject) -> str:
    if name == "string":
        text = _range(schema.get("minLength"), schema.get("maxLength"), " characters")
        pattern, form = schema.get("pattern"), schema.get("format")
        text += f" matching {pattern[:MAX_TEXT_CHARS]!r}" if isinstance(pattern, str) else ""
        return text + (f" in the format {form!r}" if isinstance(form, str) else "")
    if name == "array":
        return _range(schema.get("minItems"), schema.get("maxItems"), " items")
    if name in ("integer", "number"):
        text = _range(schema.get("minimum"), schema.get("maximum"), "")
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        text += f" above {above}" if _is_number(above) else ""
        text += f" below {below}" if _is_number(below) else ""
        step = schema.get("multipleOf")
        return text + (f" that is a multiple of {step}" if _is_number(step) else "")
    return ""


def _range(least: Any, most: Any, unit: str) -> str:
    if _is_number(least) and _is_number(most):
        return f" of {least}{unit}" if least == most else f" from {least} to {most}{unit}"
    if _is_number(least):
        return f" of at least {least}{unit.removesuffix('s') if least == 1 else unit}"
    return f" of at most {most}{unit}" if _is_number(most) else ""


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _example_string(schema: JsonObject) -> str:
    form = schema.get("format")
    text = _FORMAT_EXAMPLES.get(form, "text") if isinstance(form, str) else "text"
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) and len(text) < least <= _MAX_EXAMPLE_LENGTH:
        text = text.ljust(least, "x")
    return text[:most] if isinstance(most, int) and most >= 0 else text


def _example_number(schema: JsonObject) -> Any:
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf")
    if _is_number(least):
        return least
    if _is_number(above):
        return above + 1
    if _is_number(step):
        return step
    if _is_number(most):
        return min(1, most)
    return min(1, below - 1) if _is_number(below) else 1
