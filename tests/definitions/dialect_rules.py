"""What each provider demands of a rendered tool, as checks that raise."""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs

MAPS = ("properties", "patternProperties", "$defs")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLES = ("items", "additionalProperties", "propertyNames", "not", "if", "then", "else", "contains")
ROOT_FORBIDDEN = {"anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref", "$schema", "$id", "if"}
STRICT_KEYWORDS = (
    {
        "type",
        "description",
        "title",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "anyOf",
    }
    | {"$ref", "$defs", "pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum"}
    | {"exclusiveMaximum", "minItems", "maxItems"}
)
GEMINI_FIELDS = (
    {"anyOf", "default", "description", "enum", "example", "format", "items", "maxItems", "minItems", "maxLength"}
    | {"minLength", "maxProperties", "minProperties", "maximum", "minimum", "nullable", "pattern", "properties"}
    | {"propertyOrdering", "required", "title", "type"}
)
ANY_TYPE = ["string", "number", "boolean", "array", "object", "null"]
GEMINI_FORMATS = {"string": {"enum", "date-time"}, "number": {"float", "double"}, "integer": {"int32", "int64"}}


def subschemas(node: Any) -> Iterator[Any]:
    """The node and every schema inside it, by position: a property called `enum` is no keyword."""
    yield node
    if not isinstance(node, dict):
        return
    for keyword in MAPS:
        for inner in node.get(keyword, {}).values():
            yield from subschemas(inner)
    for keyword in LISTS:
        for inner in node.get(keyword, []):
            yield from subschemas(inner)
    for keyword in SINGLES:
        if isinstance(node.get(keyword), dict):
            yield from subschemas(node[keyword])


def types(node: dict[str, Any]) -> list[str]:
    declared = node.get("type", [])
    return [declared] if isinstance(declared, str) else declared


def check_root(root: dict[str, Any]) -> None:
    assert root["type"] == "object"
    assert isinstance(root["properties"], dict)
    assert not ROOT_FORBIDDEN & root.keys()
    assert jsonschema_rs.meta.is_valid(root)
    for node in subschemas(root):
        assert isinstance(node, dict)
        assert not {"$schema", "$id", "allOf", "oneOf", "not", "if", "contains", "nullable"} & node.keys()
        assert types(node) in ([], ANY_TYPE) or "array" not in types(node) or "items" in node
        if "$ref" in node:
            prefix, name = node["$ref"].rsplit("/", 1)
            assert prefix == "#/$defs"
            assert name in root["$defs"]


def check_openai(tool: dict[str, Any]) -> None:
    assert tool.keys() == {"type", "function"}
    assert tool["function"].keys() == {"name", "description", "parameters"}
    check_root(tool["function"]["parameters"])


def check_openai_strict(tool: dict[str, Any]) -> None:
    function = tool["function"]
    assert function.keys() == {"name", "description", "parameters", "strict"}
    check_root(function["parameters"])
    if not function["strict"]:
        return
    for node in subschemas(function["parameters"]):
        assert node.keys() <= STRICT_KEYWORDS
        if "$ref" in node:
            assert node.keys() == {"$ref"}
        elif "anyOf" not in node:
            assert types(node)
        if "object" in types(node):
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])


def check_anthropic(tool: dict[str, Any]) -> None:
    assert tool.keys() == {"name", "description", "input_schema"}
    check_root(tool["input_schema"])
    for key in tool["input_schema"]["properties"]:
        assert "[" not in key
        assert "$" not in key


def check_llama_cpp(tool: dict[str, Any]) -> None:
    check_openai(tool)
    root = tool["function"]["parameters"]
    assert "$defs" not in root
    for node in subschemas(root):
        assert not {"pattern", "format", "$ref", "patternProperties", "propertyNames"} & node.keys()
        assert (
            types(node)
            or {"anyOf", "enum", "const", "properties", "items", "prefixItems", "additionalProperties"} & node.keys()
        )
        assert node.get("maxLength", 0) < 2000
        assert node.get("maxItems", 0) < 2000
        if "anyOf" in node:
            assert not {"properties", "items", "enum", "const"} & node.keys()


def check_gemini(declaration: dict[str, Any]) -> None:
    assert declaration.keys() <= {"name", "description", "parameters"}
    if "parameters" not in declaration:
        return
    assert declaration["parameters"]["type"] == "object"
    for node in subschemas(declaration["parameters"]):
        assert node.keys() <= GEMINI_FIELDS
        if "anyOf" in node:
            assert node.keys() == {"anyOf"}
            continue
        kind = node["type"]
        assert isinstance(kind, str)
        assert ("items" in node) == (kind == "array")
        assert "properties" not in node or (kind == "object" and node["properties"])
        assert set(node.get("required", [])) <= set(node.get("properties", {}))
        assert "format" not in node or node["format"] in GEMINI_FORMATS[kind]
        if "enum" in node:
            assert kind == "string"
            assert all(isinstance(value, str) and value for value in node["enum"])


def check_openai_gemini(tool: dict[str, Any]) -> None:
    assert tool.keys() == {"type", "function"}
    assert tool["type"] == "function"
    check_gemini(tool["function"])


CHECKS = {
    "openai": check_openai,
    "openai_strict": check_openai_strict,
    "anthropic": check_anthropic,
    "gemini": check_gemini,
    "openai_gemini": check_openai_gemini,
    "llama_cpp": check_llama_cpp,
}
