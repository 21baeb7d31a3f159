"""Derives a tool's JSON Schema from a function: its type hints, its docstring and its defaults.

Docstrings may be in Google, NumPy or Sphinx style. The schemas are short and readable for a model: no references, no
titles, choices in the order in which they are written.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import RegistrationError
from toolcrib.core.types import JsonObject
from toolcrib.registry.pydantic_types import (
    PydanticAdapter,
    default_in,
    is_field,
    is_pydantic_class,
    json_form,
    merge_definitions,
    uses_pydantic,
)

if sys.version_info >= (3, 14):
    import annotationlib

_PARAMETER_SECTIONS = frozenset(
    {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters", "attributes"}
)
_OTHER_SECTIONS = frozenset(
    {
        *("return", "returns", "yield", "yields", "raise", "raises", "warns", "warning", "warnings", "note", "notes"),
        *("example", "examples", "see also", "references", "todo", "receives", "methods"),
    }
)
_FIELD = re.compile(r"^[:@](\w+)([^:]*):\s*(.*)$")
_PARAMETER_FIELDS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword", "ivar", "var"})
_GOOGLE_ENTRY = re.compile(r"^(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?:\(.*?\))?\s*:(?:\s+(.*)|)$")
_NUMPY_ENTRY = re.compile(r"^(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")


class ParsedDocstring(msgspec.Struct, frozen=True):
    """The text of a docstring before its sections, and a description of each parameter it names."""

    summary: str = ""
    """The first paragraph, on one line."""
    description: str = ""
    """The first paragraph on one line, and the paragraphs after it as they were written."""
    parameters: dict[str, str] = msgspec.field(default_factory=dict)


def parse_docstring(docstring: str | None) -> ParsedDocstring:
    """The summary and the parameter descriptions of a docstring; styles may be mixed."""
    lines = _dedented(docstring or "")
    parameters: dict[str, str] = {}
    for names, words in _entries(lines):
        text = " ".join(" ".join(words).split())
        for name in names:
            if text and name not in parameters:
                parameters[name] = text
    summary = _summary(lines)
    return ParsedDocstring(summary, f"{summary}\n\n{_further(lines)}".strip(), parameters)


def _dedented(docstring: str) -> list[str]:
    first, _, rest = docstring.expandtabs().strip("\n").partition("\n")
    return [first.strip(), *textwrap.dedent(rest).split("\n")]


def _summary(lines: list[str]) -> str:
    words: list[str] = []
    for index, line in enumerate(lines):
        text = line.strip()
        if words and not text:
            break
        if _section(lines, index) is not None or _is_field(text):
            break
        words.append(text)
    return " ".join(" ".join(words).split())


def _further(lines: list[str]) -> str:
    """The text between the first paragraph and the first section."""
    blank = next((index for index, line in enumerate(lines) if index and not line.strip()), len(lines))
    kept: list[str] = []
    for index in range(blank, len(lines)):
        if _section(lines, index) is not None or _is_field(lines[index].strip()):
            break
        kept.append(lines[index].rstrip())
    return "\n".join(kept).strip()


def _is_field(text: str) -> bool:
    found = _FIELD.match(text)
    return found is not None and found[1] in {
        *_PARAMETER_FIELDS,
        "type",
        "return",
        "returns",
        "rtype",
        "raise",
        "raises",
    }


def _section(lines: list[str], index: int) -> str | None:
    """The lower-case name of the section that starts on this line, if any."""
    text = lines[index].strip()
    underlined = index + 1 < len(lines) and re.fullmatch(r"-{3,}|={3,}", lines[index + 1].strip()) is not None
    if not (underlined or text.endswith(":")):
        return None
    name = text.rstrip(":").strip().lower()
    return name if name in _PARAMETER_SECTIONS or name in _OTHER_SECTIONS else None


def _entries(lines: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    index = 0
    while index < len(lines):
        text = lines[index].strip()
        if _is_field(text):
            yield from _field_entry(lines, index)
        elif _section(lines, index) in _PARAMETER_SECTIONS:
            underlined = not text.endswith(":")
            body = _body(lines, index + (2 if underlined else 1), _indent(lines[index]), underlined=underlined)
            yield from _section_entries(body, _NUMPY_ENTRY if underlined else _GOOGLE_ENTRY)
        index += 1


def _field_entry(lines: list[str], index: int) -> Iterator[tuple[list[str], list[str]]]:
    """One Sphinx or Epytext field, with the deeper lines that continue it."""
    found = _FIELD.match(lines[index].strip())
    if not found or found[1] not in _PARAMETER_FIELDS or not found[2].split():
        return
    words = [found[3]]
    for line in lines[index + 1 :]:
        if not line.strip() or _indent(line) <= _indent(lines[index]):
            break
        words.append(line.strip())
    yield [found[2].split()[-1].lstrip("*")], words


def _body(lines: list[str], start: int, indent: int, *, underlined: bool) -> list[str]:
    """The lines that belong to a section: the indented ones, or for NumPy all up to the next heading."""
    body: list[str] = []
    for index in range(start, len(lines)):
        line = lines[index]
        ends = _section(lines, index) is not None and _indent(line) <= indent
        if ends or (line.strip() and not underlined and _indent(line) <= indent):
            break
        body.append(line)
    return body


def _section_entries(body: list[str], pattern: re.Pattern[str]) -> Iterator[tuple[list[str], list[str]]]:
    filled = [line for line in body if line.strip()]
    if not filled:
        return
    margin = _indent(filled[0])
    names: list[str] = []
    words: list[str] = []
    for line in filled:
        found = pattern.match(line.strip()) if _indent(line) <= margin else None
        if not found:
            words.append(line.strip())
            continue
        yield names, words
        names = [name.strip().lstrip("*") for name in found[1].split(",")]
        words = [found[2] or ""] if pattern is _GOOGLE_ENTRY else []
    yield names, words


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_PREFIX = "#/$defs/"
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", type(None): "null"}


class TypeDetails(msgspec.Struct):
    """What the author wrote about types that a generated schema omits."""

    choices: dict[frozenset[tuple[type, Any]], list[Any]] = msgspec.field(default_factory=dict)
    classes: dict[str, tuple[ParsedDocstring, dict[str, str]]] = msgspec.field(default_factory=dict)

    def add_choices(self, values: Iterable[Any]) -> None:
        ordered = list(dict.fromkeys(value.value if hasattr(value, "value") else value for value in values))
        self.choices.setdefault(_key(ordered), ordered)

    def add_class(self, name: str, docs: ParsedDocstring, texts: dict[str, str]) -> None:
        self.classes.setdefault(name, (docs, texts))


def tidy(root: JsonObject, definitions: JsonObject, facts: TypeDetails) -> JsonObject:
    """The schema with definitions inlined; only those of recursive types stay in `$defs`."""
    for name, definition in definitions.items():
        _describe_fields(definition, facts.classes.get(name))
    recursive = {name for name in definitions if name in _reachable(definitions[name], definitions)}
    tidied: JsonObject = _tidied(root, definitions, recursive, facts)
    kept = {name: _tidied(definitions[name], definitions, recursive, facts) for name in _used(tidied, definitions)}
    while extra := {name for schema in kept.values() for name in _references(schema)} - kept.keys():
        kept |= {name: _tidied(definitions[name], definitions, recursive, facts) for name in sorted(extra)}
    return tidied | ({"$defs": kept} if kept else {})


def _used(schema: Any, definitions: JsonObject) -> list[str]:
    wanted = set(_references(schema))
    return [name for name in definitions if name in wanted]


def _key(values: Iterable[Any]) -> frozenset[tuple[type, Any]]:
    return frozenset((type(value), value) for value in values)


def _describe_fields(definition: JsonObject, known: tuple[ParsedDocstring, dict[str, str]] | None) -> None:
    if known is None:
        return
    docs, texts = known
    if "description" in definition:
        definition["description"] = docs.summary
    for name, schema in definition.get("properties", {}).items():
        text = texts.get(name) or docs.parameters.get(name)
        if text:
            schema.setdefault("description", text)


def _tidied(node: Any, definitions: JsonObject, recursive: set[str], facts: TypeDetails) -> Any:
    if isinstance(node, list):
        return [_tidied(item, definitions, recursive, facts) for item in node]
    if not isinstance(node, dict):
        return node
    name = _reference(node)
    if name is not None and name not in recursive:
        node = definitions[name] | {key: value for key, value in node.items() if key != "$ref"}
    result: JsonObject = {}
    for key, value in node.items():
        if key in ("properties", "$defs"):
            result[key] = {name: _tidied(schema, definitions, recursive, facts) for name, schema in value.items()}
        elif key in ("default", "const", "examples"):
            result[key] = value
        elif key == "enum":
            result |= _choices(value, facts)
        elif key == "discriminator" and isinstance(value, dict):
            continue  # pydantic's hint for OpenAPI; it names definitions that are inlined here
        elif not (key == "title" or (key == "required" and not value)):
            result[key] = _tidied(value, definitions, recursive, facts)
    return result


def _choices(values: list[Any], facts: TypeDetails) -> JsonObject:
    ordered = facts.choices.get(_key(values), values)
    kinds = {_JSON_TYPES.get(type(value)) for value in ordered}
    only = kinds.pop() if len(kinds) == 1 else None
    return ({"type": only} if only else {}) | {"enum": list(ordered)}


def _reference(node: JsonObject) -> str | None:
    target = node.get("$ref")
    return target.removeprefix(_PREFIX) if isinstance(target, str) and target.startswith(_PREFIX) else None


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [name for item in node for name in _references(item)]
    if not isinstance(node, dict):
        return []
    name = _reference(node)
    inner = [found for value in node.values() for found in _references(value)]
    return inner if name is None else [name, *inner]


def _reachable(node: Any, definitions: JsonObject) -> set[str]:
    """The names of all definitions that this one refers to."""
    found: set[str] = set()
    waiting = _references(node)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(_references(definitions[name]))
    return found


CONTEXT_PARAMETER = "ctx"
_WHAT_IS_SUPPORTED = (
    "use str, int, float, bool, None, Any, Literal, Enum, list, set, tuple, dict[str, ...], a dataclass, "
    "TypedDict, NamedTuple, pydantic.BaseModel or msgspec.Struct, date, datetime, UUID, Decimal, Path or bytes, or "
    "unions of them (inside a list or dict: only of types that JSON can distinguish)"
)
_ITERABLES = (collections.abc.Iterable, collections.abc.Iterator, collections.abc.Collection)
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One argument that a model may give."""

    name: str
    hint: Any
    """Resolved, and rewritten to a type that msgspec can convert to."""
    alternatives: tuple[Any, ...] = ()
    """The members of a union that msgspec cannot distinguish, in the order in which to try them."""
    adapter: PydanticAdapter | None = None
    """Describes and converts a hint that uses pydantic."""
    default: Any = inspect.Parameter.empty
    fills_default: bool = False
    """The default stands in the hint, so the function does not know it."""
    description: str = ""

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """What the runtime needs to offer and call a function."""

    description: str
    parameters: tuple[Parameter, ...]
    schema: JsonObject
    """The JSON Schema of the arguments."""
    context: inspect.Parameter | None = None


def read_signature(function: Callable[..., Any], local_names: Mapping[str, Any]) -> Signature:
    """The signature of `function`; raises a RegistrationError that names the parameter if it cannot be offered.

    `local_names` are those of the scope that defines the function, for string hints.
    """
    docs = parse_docstring(function.__doc__)
    parameters: list[Parameter] = []
    context = None
    takes_extra = False
    for parameter in _raw_parameters(function):
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise _refused(function, parameter.name, "arguments are passed by keyword; remove the `/` or the `*args`")
        if parameter.name == CONTEXT_PARAMETER:
            context = parameter
        elif parameter.kind is parameter.VAR_KEYWORD:
            takes_extra = True
        else:
            parameters.append(_read_parameter(function, parameter, docs, local_names))
    schema = _object_schema(parameters, takes_extra=takes_extra)
    return Signature(description=docs.description, parameters=tuple(parameters), schema=schema, context=context)


def _raw_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    # From 3.14 on, hints are evaluated on access; one that exists only for type checkers must not raise here.
    options: dict[str, Any] = {}
    if sys.version_info >= (3, 14):
        options["annotation_format"] = annotationlib.Format.FORWARDREF
    parameters = list(inspect.signature(function, **options).parameters.values())
    is_method = "." in function.__qualname__.rpartition("<locals>.")[2]
    if is_method and parameters and parameters[0].name in ("self", "cls"):
        raise _refused(function, parameters[0].name, "@tool decorates functions, not methods; move it out of its class")
    return parameters


def _read_parameter(
    function: Callable[..., Any], parameter: inspect.Parameter, docs: ParsedDocstring, local_names: Mapping[str, Any]
) -> Parameter:
    hint = _resolved(function, parameter, local_names)
    if hint is ToolContext:
        raise _refused(function, parameter.name, "the parameter that receives the ToolContext must be named `ctx`")
    if is_field(parameter.default):
        advice = "put Field(...) into the hint, as in `x: Annotated[int, Field(ge=1)] = 1`"
        raise _refused(function, parameter.name, advice)
    if parameter.default is None and hint is not Any and type(None) not in _members(hint):
        hint = Union[hint, None]  # noqa: UP007 - built from a value, not written as a hint
    description = _description(hint) or docs.parameters.get(parameter.name, "")
    rewritten, alternatives, adapter = hint, (), None
    try:
        if uses_pydantic(hint):
            adapter = _adapter(hint)
        if adapter is None:
            rewritten = _rewritten(hint)
            alternatives = _alternatives(rewritten)
            _components([*(alternatives or [rewritten])])
    except (TypeError, NameError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[-1]
        advice = f"of type {_shown(hint)} cannot be described as JSON ({reason}); {_WHAT_IS_SUPPORTED}"
        raise _refused(function, parameter.name, advice) from error
    default = parameter.default
    fills, inner = default_in(hint) if default is parameter.empty else (False, None)
    return Parameter(
        name=parameter.name,
        hint=rewritten,
        alternatives=alternatives,
        adapter=adapter,
        default=inner if fills else default,
        fills_default=fills,
        description=description,
    )


def _adapter(hint: Any) -> PydanticAdapter | None:
    """How pydantic reads the hint; None if it cannot but msgspec may: a `typing.TypedDict` on old Pythons."""
    try:
        return PydanticAdapter(hint)
    except TypeError:
        _components([_rewritten(hint)])
        return None


def _resolved(function: Callable[..., Any], parameter: inspect.Parameter, local_names: Mapping[str, Any]) -> Any:
    """The hint as a type. Each is resolved alone, so `ctx` or the result may use names that only type checkers see."""
    if parameter.annotation is parameter.empty:
        return Any
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        hints = typing.get_type_hints(holder, names, dict(local_names), include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        advice = (
            f"has the type hint {parameter.annotation!r}, which cannot be resolved ({error}); "
            "import or define that name at the top of the module, not under TYPE_CHECKING"
        )
        raise _refused(function, parameter.name, advice) from error
    return hints[parameter.name]


def _refused(function: Callable[..., Any], parameter: str, advice: str) -> RegistrationError:
    return RegistrationError(f"@tool function {function.__qualname__!r}: parameter {parameter!r}: {advice}")


def _shown(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _description(hint: Any) -> str:
    """The text in `Annotated[X, "text"]`, including one level inside a union."""
    for note in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        text = (
            note if isinstance(note, str) else getattr(note, "description", None) or getattr(note, "documentation", "")
        )
        if isinstance(text, str) and text:
            return text
    inner = _members(hint) if len(_members(hint)) > 1 else ()
    return next((text for member in inner if (text := _description(member))), "")


def _members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the hint alone; ignores annotations on the union as a whole."""
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return get_args(bare) if get_origin(bare) in (Union, types.UnionType) else (hint,)


def _rewritten(hint: Any) -> Any:
    """The hint in types that msgspec supports, with formats that it omits."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is object:
        return Any
    if hint in _ITERABLES:
        return list
    if origin is not None and not args and not isinstance(hint, types.GenericAlias):
        return _rewritten(origin)  # a bare `List` or `Tuple`, which msgspec treats as always empty
    if hint is datetime:
        return Annotated[datetime, msgspec.Meta(extra_json_schema={"format": "date-time"})]
    if origin is Annotated:
        return _annotated(hint, args[0], [note for note in args[1:] if isinstance(note, msgspec.Meta)])
    if origin in (Union, types.UnionType):
        return Union[tuple(_rewritten(arg) for arg in args)]  # noqa: UP007 - built from values
    if origin in _ITERABLES:
        return list[_rewritten(args[0])]  # type: ignore[misc]
    if origin in (list, set, frozenset, tuple, dict, collections.abc.Sequence, collections.abc.Mapping):
        return origin[tuple(arg if arg is Ellipsis else _rewritten(arg) for arg in args)]
    return hint


def _annotated(hint: Any, bare: Any, notes: list[msgspec.Meta]) -> Any:
    members = _members(hint)
    if len(members) > 1 and any(getattr(note, name) is not None for note in notes for name in _CONSTRAINTS):
        # A constraint on `X | None` is meant for X; msgspec expects it there.
        applied = [m if m is type(None) else Annotated[(_rewritten(m), *notes)] for m in members]
        return Union[tuple(applied)]  # noqa: UP007 - built from values
    rewritten = _rewritten(bare)
    return Annotated[(rewritten, *notes)] if notes else rewritten


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union that msgspec rejects because they look alike in JSON; plain `str` takes the rest."""
    members = _members(hint)
    if len(members) < 2:
        return ()
    try:
        _components([hint])
    except TypeError:
        return tuple(sorted(members, key=lambda member: member is str))
    return ()


def _components(hints: list[Any]) -> tuple[tuple[JsonObject, ...], JsonObject]:
    schemas, definitions = msgspec.json.schema_components(hints, schema_hook=_custom_schema)
    return schemas, definitions


def _custom_schema(kind: type) -> JsonObject:
    if issubclass(kind, PurePath):
        return {"type": "string", "format": "path"}
    if is_pydantic_class(kind):
        schema, definitions = PydanticAdapter(kind).components()
        return tidy(schema, definitions, _facts_of([kind]))
    raise NotImplementedError


def _object_schema(parameters: list[Parameter], *, takes_extra: bool) -> JsonObject:
    plain = [parameter for parameter in parameters if parameter.adapter is None]
    hints = [hint for parameter in plain for hint in (parameter.alternatives or (parameter.hint,))]
    schemas, definitions = _components(hints)
    remaining = iter(schemas)
    properties = {parameter.name: _property(parameter, remaining, definitions) for parameter in parameters}
    root: JsonObject = {"type": "object", "properties": properties}
    required = [parameter.name for parameter in parameters if parameter.is_required]
    if required:
        root["required"] = required
    if not takes_extra:
        root["additionalProperties"] = False
    tidied = tidy(root, definitions, _facts_of([*hints, *(one.hint for one in parameters if one.adapter)]))
    for parameter in parameters:
        _describe(tidied["properties"][parameter.name], parameter)
    return tidied


def _property(parameter: Parameter, schemas: Iterator[JsonObject], definitions: JsonObject) -> JsonObject:
    if parameter.adapter is not None:
        return merge_definitions(*parameter.adapter.components(), definitions)
    if not parameter.alternatives:
        return next(schemas)
    return {"anyOf": [next(schemas) for _ in parameter.alternatives]}


def _describe(schema: JsonObject, parameter: Parameter) -> None:
    """Add what belongs to the parameter, not to its type: description and default."""
    if parameter.description:
        schema["description"] = parameter.description
    if parameter.is_required:
        return
    try:
        default = msgspec.to_builtins(parameter.default, str_keys=True, enc_hook=encode_custom, order="deterministic")
        json.dumps(default, allow_nan=False)
    except (TypeError, ValueError, RecursionError, NotImplementedError):
        return  # A default without a JSON form is left to the function.
    schema["default"] = default


def encode_custom(value: Any) -> Any:
    """The JSON form of a value that msgspec does not support."""
    return str(value) if isinstance(value, PurePath) else json_form(value)


def _facts_of(hints: list[Any]) -> TypeDetails:
    """What msgspec's schemas omit about all types that the hints reach: order of choices, texts of fields."""
    facts = TypeDetails()
    waiting, seen = list(hints), set()
    while waiting:
        hint = waiting.pop()
        if get_origin(hint) is Literal:
            facts.add_choices(get_args(hint))
        elif isinstance(hint, type) and issubclass(hint, enum.Enum):
            facts.add_choices([member.value for member in hint])
        elif get_origin(hint) is not None:
            waiting.extend(get_args(hint))
            waiting.append(get_origin(hint))
        elif isinstance(hint, type) and hasattr(hint, "model_fields") and hint not in seen:
            # pydantic describes the fields itself.
            seen.add(hint)
            waiting.extend(field.annotation for field in hint.model_fields.values())
            facts.add_class(hint.__name__, parse_docstring(hint.__doc__), {})
        elif isinstance(hint, type) and hint not in seen and _has_fields(hint):
            seen.add(hint)
            hints_of_fields = typing.get_type_hints(hint, include_extras=True)
            waiting.extend(hints_of_fields.values())
            texts = {name: text for name, field in hints_of_fields.items() if (text := _description(field))}
            facts.add_class(hint.__name__, parse_docstring(hint.__doc__), texts)
    return facts


def _has_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "__annotations__")
