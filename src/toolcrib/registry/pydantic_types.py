"""Parameters of @tool that use pydantic: models, pydantic dataclasses, and `Annotated[..., Field(...)]`.

pydantic is optional and never imported here before a hint uses it: whoever wrote such a hint has imported it.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

from toolcrib.core.types import JsonObject

MAX_SHOWN_ERRORS = 5
HOOK = "__get_pydantic_core_schema__"
"""What classes have that pydantic can convert to."""
_PREFIX = "#/$defs/"


def uses_pydantic(hint: Any) -> bool:
    """Whether a hint, or a field of a class that it reaches, needs pydantic to be understood."""
    if "pydantic" not in sys.modules:
        return False
    waiting, seen = [hint], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if (isinstance(one, type) and hasattr(one, HOOK)) or any(_is_rule(note) for note in _notes(one)):
            return True
        waiting.extend(get_args(one))
        if isinstance(one, type) and (dataclasses.is_dataclass(one) or typing.is_typeddict(one)):
            waiting.extend(_field_hints(one))
    return False


def _is_rule(note: Any) -> bool:
    """Whether a note of `Annotated[...]` is meant for pydantic: a Field, a limit such as `Gt(0)`, a validator."""
    return hasattr(note, HOOK) or type(note).__module__.partition(".")[0] in ("pydantic", "annotated_types")


def is_pydantic_class(hint: Any) -> bool:
    """Whether it is a BaseModel or a pydantic dataclass."""
    return isinstance(hint, type) and hasattr(hint, "__pydantic_validator__")


def is_field(value: Any) -> bool:
    """Whether it is what `pydantic.Field(...)` returns."""
    fields = sys.modules.get("pydantic.fields")
    return fields is not None and isinstance(value, fields.FieldInfo)


def default_in(hint: Any) -> tuple[bool, Any]:
    """Whether `Annotated[..., Field(default=...)]` gives a default, and which; a factory makes a new one each time."""
    for note in _notes(hint):
        if is_field(note) and not note.is_required():
            return True, note.get_default(call_default_factory=True)
    return False, None


class PydanticAdapter:
    """Describes a hint and converts to it, with pydantic's own rules."""

    def __init__(self, hint: Any) -> None:
        import pydantic  # noqa: PLC0415 - optional; the author's file has imported it already

        try:
            self._adapter: Any = pydantic.TypeAdapter(hint)
            # In a list, so that a model at the top is a definition like the others.
            self._schema: JsonObject = pydantic.TypeAdapter(list[hint]).json_schema()
        except (pydantic.errors.PydanticUserError, pydantic.PydanticSchemaGenerationError) as error:
            raise TypeError(error.message.splitlines()[0]) from error
        self._invalid = pydantic.ValidationError

    def components(self) -> tuple[JsonObject, JsonObject]:
        """The schema, and the definitions that it refers to."""
        return self._schema["items"], self._schema.get("$defs", {})

    def convert(self, value: Any) -> Any:
        """The value as the hint says; raises ValueError that names each wrong part."""
        try:
            return self._adapter.validate_python(value)
        except self._invalid as error:
            raise ValueError(_explained(error)) from error


def merge_definitions(schema: JsonObject, added: JsonObject, definitions: JsonObject) -> JsonObject:
    """The schema, with its definitions added to the others; one whose name means another class gets a new name."""
    names = {name: name for name in added}
    for name in added:
        while definitions.get(names[name], added[name]) != added[name]:
            names[name] += "_"
    definitions |= {names[name]: _renamed(one, names) for name, one in added.items()}
    renamed: JsonObject = _renamed(schema, names)
    return renamed


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    if isinstance(node, list):
        return [_renamed(item, names) for item in node]
    if not isinstance(node, dict):
        return node
    inner = {key: _renamed(value, names) for key, value in node.items()}
    name = str(node.get("$ref", "")).removeprefix(_PREFIX)
    return inner | {"$ref": f"{_PREFIX}{names[name]}"} if name in names else inner


def json_form(value: Any) -> Any:
    """The JSON form of a model's instance; raises NotImplementedError for anything else."""
    if is_pydantic_class(type(value)) and hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    raise NotImplementedError(f"objects of type {type(value).__name__} have no JSON form")


def _explained(error: Any) -> str:
    """All complaints on one line, each with where it is."""
    found = error.errors(include_url=False, include_context=False)
    shown = []
    for one in found[:MAX_SHOWN_ERRORS]:
        where = ".".join(str(part) for part in one["loc"])
        message = one["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        shown.append(f"{where}: {message}" if where else message)
    more = len(found) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _notes(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _field_hints(kind: type) -> list[Any]:
    try:
        return list(typing.get_type_hints(kind, include_extras=True).values())
    except (NameError, TypeError):
        return []  # msgspec reports what it cannot resolve
