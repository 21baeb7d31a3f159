"""Renders canonical definitions as the exact `tools` field of each provider's request."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from toolcrib.core.errors import UnknownName
from toolcrib.core.models import Dialect
from toolcrib.core.types import JsonObject
from toolcrib.definitions.dialects.gemini import openapi
from toolcrib.definitions.dialects.keywords import UnrenderableTool, short, with_notes
from toolcrib.definitions.dialects.llama_cpp import loosen
from toolcrib.definitions.dialects.normalize import normalise
from toolcrib.definitions.dialects.strict import strict_root

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_GEMINI_NAME = re.compile(r"[a-zA-Z_].*")
_ANTHROPIC_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


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


_WRITERS: dict[Dialect, Callable[[str, JsonObject], JsonObject]] = {
    "openai": _openai,
    "openai_strict": _openai_strict,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "openai_gemini": _openai_gemini,
    "llama_cpp": _llama_cpp,
}
