"""What a tool declares, held against the checklist for authors: name, texts, JSON Schema, requirements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jsonschema_rs
import msgspec

from toolcrib.core.types import JsonObject

NAME_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Finding(msgspec.Struct, frozen=True):
    """One thing to change. An error keeps the tool from working; a warning will be regretted later."""

    severity: Literal["error", "warning"]
    rule: str
    message: str
    line: int | None = None


def check_name(name: Any, line: int | None) -> Iterator[Finding]:
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        message = f"tool name {name!r} is refused by model providers; use 1 to 64 letters, digits, `_` or `-`"
        yield Finding("error", "name", message, line)


def check_description(name: str, description: Any, line: int | None) -> Iterator[Finding]:
    if not isinstance(description, str) or not description.strip():
        message = f"tool {name!r} has no description; say in one sentence what it does and when to use it"
        yield Finding("error", "description", message, line)


def check_requirements(name: str, requires_env: Sequence[str], has_check: bool, line: int | None) -> Iterator[Finding]:
    if requires_env and not has_check:
        keys = ", ".join(requires_env)
        message = f"tool {name!r} requires {keys} but has no check_fn; add one that returns bool(os.getenv(...))"
        yield Finding("warning", "check-fn", message, line)


def check_parameters(name: str, parameters: Any, line: int | None) -> Iterator[Finding]:
    """The rules for the JSON Schema of a tool's arguments."""
    if not isinstance(parameters, dict):
        message = f"parameters of tool {name!r} are {parameters!r}; write a JSON Schema of type object"
        yield Finding("error", "schema", message, line)
        return
    if parameters.get("type") != "object":
        message = f'parameters of tool {name!r} have type {parameters.get("type")!r}; write "type": "object"'
        yield Finding("error", "schema", message, line)
    problem = _schema_problem(parameters)
    if problem:
        message = f"parameters of tool {name!r} are no valid JSON Schema: {problem}; correct that keyword"
        yield Finding("error", "schema", message, line)
        return
    properties = parameters.get("properties", {})
    for missing in [field for field in parameters.get("required", ()) if field not in properties]:
        message = f"tool {name!r} requires {missing!r}, which is not among its properties; add it or drop it there"
        yield Finding("error", "required", message, line)
    for field, schema in properties.items():
        yield from _check_property(name, field, schema, parameters, line)


def check_parameter_description(name: str, parameter: str, text: Any, line: int | None) -> Iterator[Finding]:
    if not str(text or "").strip():
        message = f"parameter {parameter!r} of tool {name!r} has no description; say what to put there, with an example"
        yield Finding("warning", "parameter-description", message, line)


def _check_property(name: str, field: str, schema: Any, root: JsonObject, line: int | None) -> Iterator[Finding]:
    if not isinstance(schema, dict):
        return
    yield from check_parameter_description(name, field, schema.get("description"), line)
    definitions: JsonObject = {key: root[key] for key in ("$defs", "definitions") if key in root}
    if "default" in schema and not jsonschema_rs.is_valid({**definitions, **schema}, schema["default"]):
        message = (
            f"default {schema['default']!r} of parameter {field!r} of tool {name!r} does not fit its own schema; "
            "change the default or the type"
        )
        yield Finding("error", "default", message, line)


def _schema_problem(schema: JsonObject) -> str:
    try:
        jsonschema_rs.validator_for(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return str(getattr(error, "message", error)).splitlines()[0]
    return ""
