"""A JSON Schema compiled by jsonschema-rs: bounded in time, and without ever touching the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from toolcrib.core.types import JsonObject
from toolcrib.dispatch.expectation import shorten
from toolcrib.dispatch.schema_document import SchemaDocument, normalised

if TYPE_CHECKING:
    import jsonschema_rs

# A pattern that needs more steps than this on one value is told as a mismatch; 100,000 take about a millisecond.
_BACKTRACK_LIMIT = 100_000
_MASK = "the value"
_MAX_REASON_CHARS = 300

Check = Callable[[Any], bool]


class CompiledSchema:
    """One schema, ready to judge values; `problem` says why it cannot, where it is itself invalid."""

    __slots__ = ("_options", "_parts", "_validator", "document", "is_valid", "problem")

    def __init__(self, schema: JsonObject) -> None:
        # Importing jsonschema-rs takes 30 ms, and many processes never call a tool.
        import jsonschema_rs  # noqa: PLC0415

        self._parts: jsonschema_rs.ValidatorMap | None = None
        self._validator: jsonschema_rs.Validator | None = None
        self._options: dict[str, Any] = {
            "retriever": _refuse_to_fetch,
            "pattern_options": jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT),
        }
        self.problem: str | None = None
        self.document = SchemaDocument(schema)
        self.is_valid: Check = _nothing_is_valid
        try:
            self.document = SchemaDocument(normalised(schema))
            self._validator = jsonschema_rs.validator_for(self.document.root, mask=_MASK, **self._options)
        except RecursionError:
            self.problem = "the schema is nested too deeply"
        except (ValueError, TypeError, jsonschema_rs.ReferencingError) as error:
            self.problem = _reason(error, self.document)
        else:
            self.is_valid = self._validator.is_valid

    def errors(self, value: Any) -> Iterator[jsonschema_rs.ValidationError]:
        """Every violation; raises ValueError for a value that is not JSON."""
        return iter(()) if self._validator is None else self._validator.iter_errors(value)

    def part_accepts(self, pointer: str, value: Any) -> bool | None:
        """Whether the subschema at `pointer` accepts a value; None where that cannot be known."""
        if self._validator is None:
            return None
        if self._parts is None:
            self._parts = self._compile_parts()
        part = self._parts.get(pointer)
        try:
            return None if part is None else part.is_valid(value)
        except (ValueError, RecursionError):
            return False

    def _compile_parts(self) -> jsonschema_rs.ValidatorMap:
        # Only calls that need coercion come here; two threads at once compile the same map twice, harmlessly.
        import jsonschema_rs  # noqa: PLC0415

        try:
            return jsonschema_rs.validator_map_for(self.document.root, **self._options)
        except (ValueError, jsonschema_rs.ReferencingError):
            return jsonschema_rs.validator_map_for(True)


def validate(schema: JsonObject, value: Any) -> bool:
    """Whether `value` is valid under `schema`, as it stands; raises ValueError where the schema is not usable."""
    compiled = CompiledSchema(schema)
    if compiled.problem is not None:
        raise ValueError(compiled.problem)
    return compiled.is_valid(value)


def _nothing_is_valid(_value: Any) -> bool:
    return False


def _refuse_to_fetch(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside of the schema, and references are never fetched")


def _reason(error: Exception, document: SchemaDocument) -> str:
    text = str(getattr(error, "message", "") or error)
    path: list[str | int] = getattr(error, "instance_path", [])
    if path and text.startswith(_MASK):
        # The mask keeps a model's values out of messages; here it hides the schema's own words.
        text = shorten(document.at(path)) + text.removeprefix(_MASK)
    place = f" at {'/'.join(str(step) for step in path)!r}" if path else ""
    return f"{text[:_MAX_REASON_CHARS]}{place}"
