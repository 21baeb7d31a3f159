"""Renders canonical definitions as the exact `tools` field of each provider's request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from toolcrib.core.errors import UnknownName
from toolcrib.core.models import Dialect
from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects.keywords import (
    ANY_TYPE,
    UnrenderableTool,
    add_notes,
    infer_types,
    keywords_for,
    note,
    set_types,
    short,
    types_of,
    with_notes,
)
from toolcrib.definitions.dialects.normalize import intersect, normalise

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_GEMINI_NAME = re.compile(r"[a-zA-Z_].*")
_ANTHROPIC_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_STRICT_KEYWORDS = frozenset(
    {"type", "description", "title", "enum", "const", "properties", "items", "minItems", "maxItems", "$defs"}
    | {"pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)
_STRICT_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_STRICT_UNNOTED = frozenset({"required", "additionalProperties"})
_STRICT_ANNOTATIONS = frozenset({"description", "title", "default", "examples", "deprecated", "readOnly", "writeOnly"})
MAX_REPETITIONS = 1_000
"""The parser rejects grammars with longer counted repetitions."""
MAX_EXACT_INTEGER = 2**53
MAX_ENUM_VALUES = 500

_LOOSE_STRIPPED = frozenset(
    {"pattern", "format", "contentEncoding", "contentMediaType", "propertyNames", "patternProperties"}
    # A server built with llguidance rejects these two outright.
    | {"uniqueItems", "dependentRequired"}
)
_LOOSE_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")
_LOOSE_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# With one of these, the grammar builder would follow only `anyOf` and ignore the rest of the node.
_LOOSE_STRUCTURE = frozenset({"properties", "additionalProperties", "items", "prefixItems", "enum", "const"})

MAX_INT64 = 2**63 - 1

_GEMINI_FIELDS = frozenset(
    {"title", "description", "default", "enum", "format", "pattern", "properties", "required", "items"}
    | {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minimum", "maximum"}
)
_GEMINI_FORMATS = {
    "string": frozenset({"enum", "date-time"}),
    "number": frozenset({"float", "double"}),
    "integer": frozenset({"int32", "int64"}),
}
_GEMINI_UNTYPED_FIELDS = frozenset({"title", "description", "default", "enum"})
_GEMINI_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_GEMINI_UNNOTED = frozenset({"required", "type", "const", "items"})


class UnknownDialect(UnknownName):
    kind = "dialect"


class SkippedTool(msgspec.Struct, frozen=True):
    """A tool that the request omits, and why."""

    name: str
    reason: str


class Rendered(msgspec.Struct, frozen=True):
    """The `tools` field of one request, and the tools that it omits."""

    tools: list[JsonObject]
    set_aside: list[SkippedTool]


def render(definitions: Sequence[JsonObject], dialect: Dialect) -> Rendered:
    """The definitions in the provider's format, sorted by name; shares nothing with the input."""
    if dialect not in _WRITERS:
        raise UnknownDialect(dialect, _WRITERS)
    rendered: dict[str, JsonObject] = {}
    set_aside: list[SkippedTool] = []
    for position, definition in enumerate(definitions):
        name = _name_of(definition)
        try:
            _check_name(name, dialect)
            if name in rendered:
                raise UnrenderableTool("another tool has the same name; rename one of them")
            rendered[name] = _WRITERS[dialect](name, definition["function"])
        except UnrenderableTool as error:
            set_aside.append(SkippedTool(name or f"#{position}", str(error)))
        except RecursionError:
            set_aside.append(SkippedTool(name, "its schema is nested too deeply"))
    tools = [rendered[name] for name in sorted(rendered)]
    if dialect == "gemini" and tools:
        tools = [{"functionDeclarations": tools}]
    return Rendered(tools, sorted(set_aside, key=lambda tool: (tool.name, tool.reason)))


def _name_of(definition: Any) -> str:
    function = definition.get("function") if isinstance(definition, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _check_name(name: str, dialect: Dialect) -> None:
    if not name:
        raise UnrenderableTool("it has no name; a definition is {'type': 'function', 'function': {'name': …}}")
    if not _NAME.fullmatch(name):
        raise UnrenderableTool(f"the name {name!r:.100} cannot be sent; use 1 to 64 of the characters a-z A-Z 0-9 _ -")
    if dialect in ("gemini", "openai_gemini") and not _GEMINI_NAME.fullmatch(name):
        raise UnrenderableTool(f"Gemini rejects the name {name!r}; start it with a letter or an underscore")


def _normalised(function: JsonObject, *, keep_references: bool) -> tuple[str, JsonObject]:
    """The description and the root schema that every dialect starts from."""
    parameters = function.get("parameters")
    if parameters is None or parameters is True:
        parameters = {}
    if not isinstance(parameters, dict):
        raise UnrenderableTool(f"its parameters are {parameters!r:.80}, not a JSON Schema object")
    root, notes = normalise(parameters, keep_references=keep_references)
    description = function.get("description")
    text = description if isinstance(description, str) and description.strip() else function["name"]
    return with_notes(text, notes), root


def _openai(name: str, function: JsonObject) -> JsonObject:
    description, root = _normalised(function, keep_references=True)
    return _function(name, description, root)


def _openai_strict(name: str, function: JsonObject) -> JsonObject:
    description, root = _normalised(function, keep_references=True)
    try:
        tool = _function(name, description, strict_root(root))
        tool["function"]["strict"] = True
    except UnrenderableTool:
        tool = _function(name, description, root)
        tool["function"]["strict"] = False
    return tool


def _llama_cpp(name: str, function: JsonObject) -> JsonObject:
    description, root = _normalised(function, keep_references=False)
    return _function(name, description, {"type": "object", "properties": {}} | loosen(root))


def _function(name: str, description: str, parameters: JsonObject) -> JsonObject:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _anthropic(name: str, function: JsonObject) -> JsonObject:
    description, root = _normalised(function, keep_references=True)
    # One property name with a forbidden character makes the API reject the whole request.
    refused = {key: schema for key, schema in root["properties"].items() if not _ANTHROPIC_KEY.fullmatch(key)}
    if refused:
        required = root.pop("required", [])
        words = (f"also {'needs' if key in required else 'takes'} {key!r}: {short(refused[key])}" for key in refused)
        description = with_notes(description, words)
        # Otherwise these two would forbid a rejected property, or check it against another property's schema.
        open_root = {key: root[key] for key in root if key not in ("additionalProperties", "patternProperties")}
        root = open_root | {
            "properties": {key: root["properties"][key] for key in root["properties"] if key not in refused}
        }
        if kept := [key for key in required if key not in refused]:
            root["required"] = kept
    return {"name": name, "description": description, "input_schema": root}


def _gemini(name: str, function: JsonObject) -> JsonObject:
    description, root = _normalised(function, keep_references=False)
    declaration: JsonObject = {"name": name, "description": description}
    parameters = openapi(root)
    # Gemini rejects an object without properties here; a tool without arguments has no `parameters`.
    if parameters.get("properties"):
        declaration["parameters"] = parameters
    return declaration


def _openai_gemini(name: str, function: JsonObject) -> JsonObject:
    """Gemini behind OpenAI's protocol: the envelope is OpenAI's, and the schema must suit Gemini."""
    return {"type": "function", "function": _gemini(name, function)}


# OpenAI's strict mode: closed objects in which every property is required, optional ones nullable


def strict_root(root: JsonObject) -> JsonObject:
    """The normalised root for `strict: true`; raises UnrenderableTool if strict mode cannot express it."""
    if not root["properties"] and "additionalProperties" not in root:
        # A tool without arguments, rather than one with arguments of any name.
        root = root | {"additionalProperties": False}
    return _strict_node(root)


def _strict_node(node: JsonObject) -> JsonObject:
    if "$ref" in node:
        if len(node) > 1:
            raise UnrenderableTool("a reference has sibling keywords")
        return dict(node)
    if "anyOf" in node:
        return _strict_alternatives(node)
    types = infer_types(node)
    if not types:
        raise UnrenderableTool("a value of any type is allowed")
    strict: JsonObject = {}
    set_types(strict, types)
    strict |= {
        key: _strict_part(key, value)
        for key, value in node.items()
        if key in _STRICT_KEYWORDS and _is_strict(key, value)
    }
    if "object" in types:
        _close(strict, node)
    if "prefixItems" in node:
        raise UnrenderableTool("an array has its own schema for each position")
    if "array" in types and "items" not in strict:
        raise UnrenderableTool("an array does not say what it holds")
    left_out = (key for key in node if key not in strict and key not in _STRICT_UNNOTED)
    add_notes(strict, (note(key, node[key]) for key in left_out if node[key] is not None))
    return strict


def _is_strict(keyword: str, value: Any) -> bool:
    if keyword == "format":
        return value in _STRICT_FORMATS
    # Look-around and similar extensions make the whole request fail.
    return keyword != "pattern" or "(?" not in value


def _strict_part(keyword: str, value: Any) -> Any:
    if keyword in ("properties", "$defs"):
        return {name: _strict_node(schema) for name, schema in value.items()}
    return _strict_node(value) if keyword == "items" else value


def _close(strict: JsonObject, node: JsonObject) -> None:
    properties = strict.setdefault("properties", {})
    required = node.get("required", [])
    others = node.get("additionalProperties", bool(not properties))
    if others is not False or "patternProperties" in node:
        raise UnrenderableTool("an object accepts keys that its schema does not name")
    if any(name not in properties for name in required):
        raise UnrenderableTool("a required property has no schema")
    strict["properties"] = {
        name: schema if name in required else _nullable(schema) for name, schema in properties.items()
    }
    strict["required"] = list(properties)
    strict["additionalProperties"] = False


def _strict_alternatives(node: JsonObject) -> JsonObject:
    shared = {key: value for key, value in node.items() if key not in _STRICT_ANNOTATIONS and key != "anyOf"}
    if "properties" in shared or "items" in shared:
        raise UnrenderableTool("alternatives are combined with properties or items")
    # Normalising writes "or unspecified" as a branch that accepts anything; strict mode has no equivalent.
    branches = [branch for branch in node["anyOf"] if branch]
    if not branches:
        raise UnrenderableTool("a value of any type is allowed")
    strict: JsonObject = {key: node[key] for key in ("description", "title") if key in node}
    strict["anyOf"] = [_strict_node(intersect(branch, shared) if shared else branch) for branch in branches]
    add_notes(strict, (note(key, node[key]) for key in ("default", "examples") if node.get(key) is not None))
    return strict


def _nullable(node: JsonObject) -> JsonObject:
    """The node, or null, which means that an optional property is omitted."""
    if "$ref" in node:
        return {"anyOf": [node, {"type": "null"}]}
    if "anyOf" in node:
        has_null = any("null" in types_of(branch) for branch in node["anyOf"])
        return node if has_null else node | {"anyOf": [*node["anyOf"], {"type": "null"}]}
    nullable = dict(node)
    if "null" not in types_of(node):
        set_types(nullable, [*types_of(node), "null"])
    if "const" in node and node["const"] is not None:
        nullable["enum"] = [nullable.pop("const")]
    if "enum" in nullable and None not in nullable["enum"]:
        nullable["enum"] = [*nullable["enum"], None]
    return nullable


# llama.cpp: schemas that its grammar builder can turn into a grammar; one that it cannot fails the whole request


def loosen(node: JsonObject) -> JsonObject:
    """The normalised node in a form that the grammar builder supports; accepts everything that the node accepts."""
    if "anyOf" in node and _LOOSE_STRUCTURE.isdisjoint(node):
        return _loose_alternatives(node)
    loose = {keyword: _loose_part(keyword, value) for keyword, value in node.items() if _is_loose(keyword, value)}
    add_notes(loose, (note(keyword, value) for keyword, value in node.items() if keyword not in loose))
    if "patternProperties" in node:
        loose["additionalProperties"] = True
    if loose.get("properties") == {} and loose.get("additionalProperties") is not False:
        # The grammar builder reads an object without properties and additional ones as one that must stay empty.
        del loose["properties"]
    if "type" not in loose and not any(loose.get(keyword) is not True for keyword in _LOOSE_STRUCTURE & loose.keys()):
        loose["type"] = list(ANY_TYPE)
    return loose


def _loose_alternatives(node: JsonObject) -> JsonObject:
    """Each branch merged with its parent's keywords, because the grammar builder looks only at the branches."""
    shared = {key: value for key, value in node.items() if key not in ("anyOf", "description", "title", "default")}
    loose: JsonObject = {key: node[key] for key in ("description", "title", "default") if key in node}
    loose["anyOf"] = [loosen(intersect(branch, shared)) for branch in node["anyOf"]]
    return loose


def _is_loose(keyword: str, value: Any) -> bool:
    if keyword in _LOOSE_STRIPPED or keyword == "anyOf":
        return False
    if keyword in _LOOSE_COUNTS:
        return bool(0 < value <= MAX_REPETITIONS)
    if keyword in _LOOSE_BOUNDS:
        return bool(abs(value) <= MAX_EXACT_INTEGER)
    return keyword != "enum" or len(value) <= MAX_ENUM_VALUES


def _loose_part(keyword: str, value: Any) -> Any:
    if keyword == "properties":
        return {name: loosen(schema) for name, schema in value.items()}
    if keyword == "prefixItems":
        return [loosen(schema) for schema in value]
    if keyword == "additionalProperties" and value == {}:
        return True
    if keyword in ("items", "additionalProperties") and isinstance(value, dict):
        return loosen(value)
    return value


# Gemini: the subset of OpenAPI that its `parameters` accepts


def openapi(node: JsonObject) -> JsonObject:
    """The normalised node in the fields that Gemini supports, with a type on every part."""
    if "anyOf" in node:
        return _gemini_alternatives(node)
    if "const" in node:
        node = node | {"enum": [node["const"]]}
    types = infer_types(node)
    plain = [name for name in types if name != "null"]
    if not plain:
        return _described(node, {"type": "null"} if types else _anything())
    if len(plain) > 1:
        shared = {key: value for key, value in node.items() if key != "type"}
        return _gemini_alternatives(
            {"anyOf": [{"type": name, **_about(name, shared)} for name in types]} | _annotations(node)
        )
    typed = _typed(plain[0], node)
    if "null" in types:
        typed["nullable"] = True
    return typed


def _typed(type_name: str, node: JsonObject) -> JsonObject:
    usable = _GEMINI_UNTYPED_FIELDS | keywords_for([type_name])
    found: JsonObject = {"type": type_name}
    for key, value in node.items():
        if key in _GEMINI_FIELDS and key in usable and _is_gemini(type_name, key, value):
            found[key] = _gemini_part(key, value)
    if type_name == "array":
        found["items"] = _items(node)
    if "enum" in found:
        found["enum"] = list(dict.fromkeys(value for value in found["enum"] if value is not None))
    if not found.get("properties", True):
        del found["properties"]
    required = [name for name in node.get("required", []) if name in found.get("properties", {})]
    found.pop("required", None)
    if required:
        found["required"] = required
    left_out = (
        key for key in node if key not in found and key not in _GEMINI_UNNOTED and key in usable | {"prefixItems"}
    )
    add_notes(found, (note(key, node[key]) for key in left_out))
    return found


def _is_gemini(type_name: str, keyword: str, value: Any) -> bool:
    if keyword == "enum":
        is_text = all(value is None or (isinstance(value, str) and value) for value in value)
        return type_name == "string" and is_text and len(value) <= MAX_ENUM_VALUES
    if keyword == "format":
        return value in _GEMINI_FORMATS.get(type_name, ())
    if keyword == "pattern":
        return "(?" not in value
    return bool(value <= MAX_INT64) if keyword in _GEMINI_COUNTS else True


def _gemini_part(keyword: str, value: Any) -> Any:
    return {name: openapi(schema) for name, schema in value.items()} if keyword == "properties" else value


def _items(node: JsonObject) -> JsonObject:
    """One schema for all positions of an array: tuples become a choice between their members."""
    positions = node.get("prefixItems", [])
    if not positions:
        return openapi(node.get("items", {}))
    rest = node.get("items")
    members = [*positions, rest] if rest else positions
    distinct = {json.dumps(member, sort_keys=True): member for member in members}
    return openapi({"anyOf": list(distinct.values())})


def _gemini_alternatives(node: JsonObject) -> JsonObject:
    """Only the choice, or its one branch: no other field may accompany `anyOf`, not even a description."""
    shared = {key: value for key, value in node.items() if key != "anyOf" and key not in _annotations(node)}
    rendered = [openapi(intersect(branch, shared) if shared else branch) for branch in node["anyOf"] if branch]
    flat = [option for branch in rendered for option in branch.get("anyOf", [branch])]
    distinct = list({json.dumps(branch, sort_keys=True): branch for branch in flat}.values())
    options: list[JsonObject] = [option for option in distinct if option["type"] != "null"]
    if not options:
        return _described(node, {"type": "null"} if distinct else _anything())
    if len(options) < len(distinct):
        options = [option | {"nullable": True} for option in options]
    if len(options) == 1:
        return options[0] | _annotations(node)
    return _described(node, {"anyOf": options})


def _about(type_name: str, node: JsonObject) -> JsonObject:
    """What the node says about values of one type; for an enum, the values of that type."""
    about = {key: value for key, value in node.items() if key in keywords_for([type_name])}
    if "enum" in node:
        about["enum"] = [value for value in node["enum"] if infer_types({"const": value}) == [type_name]]
        if not about["enum"]:
            del about["enum"]
    return about


def _annotations(node: JsonObject) -> JsonObject:
    return {key: node[key] for key in ("description", "title", "default") if key in node}


def _described(node: JsonObject, found: JsonObject) -> JsonObject:
    """Put the node's description where Gemini reads it: in each branch of a choice."""
    description = node.get("description")
    if not description:
        return found
    if "anyOf" not in found:
        return found | {"description": description}
    return {"anyOf": [{"description": description} | option for option in found["anyOf"]]}


def _anything() -> JsonObject:
    """Offers every type, because Gemini has no untyped values."""
    plain: list[JsonObject] = [{"type": name} for name in ("string", "number", "boolean", "object")]
    return {"anyOf": [*plain, {"type": "array", "items": {"type": "string"}}]}


_WRITERS: dict[Dialect, Callable[[str, JsonObject], JsonObject]] = {
    "openai": _openai,
    "openai_strict": _openai_strict,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "openai_gemini": _openai_gemini,
    "llama_cpp": _llama_cpp,
}
