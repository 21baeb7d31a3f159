"""Prepares the arguments of a call: parses, coerces without loss, and validates them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from toolcrib.core.types import JsonObject, ToolEntry
from toolcrib.dispatch.argument_errors import ArgumentError, ArgumentErrorReport
from toolcrib.dispatch.coercion import InvalidJson, coerce_with, read_json
from toolcrib.dispatch.misspelled_names import SpellingChecker
from toolcrib.dispatch.schema import Check, CompiledSchema, mentions_integer, shorten

__all__ = ["ArgumentChecker", "ArgumentError"]

logger = logging.getLogger(__name__)

# Values of these types contain no float that must become an integer.
_WITHOUT_FLOATS = frozenset({int, str, bool, type(None)})


class ArgumentChecker:
    """Prepares the arguments of one tool. Compiles the schema at the first call; thread-safe."""

    __slots__ = (
        "_compiled",
        "_complaint",
        "_entry",
        "_integer_names",
        "_is_valid",
        "_known",
        "_lock",
        "_nested",
        "_spelling",
    )

    def __init__(self, entry: ToolEntry) -> None:
        self._entry = entry
        self._lock = threading.Lock()
        self._is_valid: Check | None = None
        # The names that need no further look (None: all), and whether there are names inside arguments.
        self._known: frozenset[str] | None = None
        self._nested = False
        self._spelling: SpellingChecker
        # Where a whole float may replace an integer; None: anywhere.
        self._integer_names: tuple[str, ...] | None = None
        self._compiled: CompiledSchema
        self._complaint: ArgumentErrorReport

    @property
    def schema_problem(self) -> str | None:
        """Why the tool's schema is invalid, and what was repaired or dropped for validation; None if it is valid."""
        if self._is_valid is None:
            self._compile()
        if self._compiled.problem is None:
            return None
        return "; ".join((self._compiled.problem, *self._compiled.repairs))

    def prepare(self, arguments: Mapping[str, Any] | str) -> tuple[JsonObject, ArgumentError | None]:
        """The arguments for the handler, in a new dict; do not use them if there is a problem."""
        is_valid = self._is_valid or self._compile()
        if type(arguments) is not dict:
            try:
                arguments = _read(arguments)
            except InvalidJson as error:
                return {}, self._complaint.about_text(str(error))
        try:
            # Most calls are valid already, and asking the validator first is cheaper than checking ourselves.
            if (
                is_valid(arguments)
                and (self._known is None or arguments.keys() <= self._known or self._are_legal(arguments))
                and not (self._nested and self._spelling.find(arguments))
            ):
                for name in arguments if self._integer_names is None else self._integer_names:
                    value = arguments.get(name)
                    if type(value) not in _WITHOUT_FLOATS and _holds_float(value):
                        return coerce_with(self._compiled, arguments), None
                return arguments.copy(), None
        except (ValueError, RecursionError):
            pass  # not JSON: the error says what
        coerced = coerce_with(self._compiled, arguments)
        return coerced, self._complaint.about(coerced)

    def _are_legal(self, arguments: JsonObject) -> bool:
        """Whether names that the schema does not list may be given."""
        return not self._entry.is_ours and not self._spelling.find(arguments)

    def coerce(self, arguments: JsonObject) -> JsonObject:
        """A new dict with the arguments converted to the schema's types without loss; not validated."""
        if self._is_valid is None:
            self._compile()
        return coerce_with(self._compiled, arguments)

    def _compile(self) -> Check:
        with self._lock:
            if self._is_valid is not None:
                return self._is_valid
            compiled = CompiledSchema(self._entry.parameters)
            if compiled.problem is not None:
                logger.warning(
                    "tool %r has an invalid schema (%s); its arguments are validated with the repaired one: %s",
                    self._entry.name, compiled.problem, "; ".join(compiled.repairs) or "unused parts were dropped",
                )  # fmt: skip
            self._spelling = SpellingChecker(compiled.document)
            self._known, self._nested = self._spelling.names, self._spelling.nested
            self._find_integers(compiled)
            self._compiled = compiled
            self._complaint = ArgumentErrorReport(
                self._entry.name, compiled, self._known if self._entry.is_ours else None, self._spelling
            )
            # Set last: its presence tells other threads that the rest is ready.
            self._is_valid = compiled.is_valid
            return self._is_valid

    def _find_integers(self, compiled: CompiledSchema) -> None:
        root = compiled.document.root
        properties = root.get("properties")
        elsewhere = {key: value for key, value in root.items() if key not in ("properties", "$defs", "definitions")}
        if not isinstance(properties, dict) or mentions_integer(elsewhere):
            return
        self._integer_names = tuple(name for name, schema in properties.items() if mentions_integer(schema))


def _holds_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_float, value.values()))
    return isinstance(value, float) or (isinstance(value, (list, tuple)) and any(map(_holds_float, value)))


def _read(arguments: Any) -> JsonObject:
    """A model's raw arguments, parsed as an object; raises InvalidJson."""
    if arguments is None:
        return {}
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if not isinstance(arguments, str):
        raise InvalidJson(f"expected a JSON object, found a Python {type(arguments).__name__}")
    if not arguments.strip():
        return {}
    value = read_json(arguments)
    if isinstance(value, str):
        # Some models encode the object twice; a second layer has only one meaning.
        inner = read_json(value) if value.lstrip().startswith("{") else value
        value = inner if isinstance(inner, dict) else value
    if not isinstance(value, dict):
        raise InvalidJson(f"expected a JSON object, found {shorten(value)}")
    return value
