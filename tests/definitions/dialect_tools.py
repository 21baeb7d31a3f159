"""Tools as third parties really write them, each odd in its own way."""

from typing import Any


def tool(name: str, description: Any, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


GNARLY: list[Any] = [
    tool(
        "plain",
        "Read a file.",
        {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Where it is."},
                "limit": {"type": "integer", "minimum": 1, "maximum": 2000, "default": 500},
            },
            "required": ["path"],
        },
    ),
    tool("no_arguments", "Tell the time.", {}),
    tool(
        "constraints",
        "Every kind of constraint.",
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "https://example.com/constraints",
            "type": "object",
            "properties": {
                "date": {"type": "string", "pattern": r"^\d{4}-\d\d$", "format": "date", "maxLength": 100_000},
                "mail": {"type": "string", "format": "email", "minLength": 3, "examples": ["a@example.com"]},
                "level": {"enum": [1, 2, 3], "description": "How much."},
                "kind": {"const": "fixed"},
                "ratio": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5},
                "tags": {"type": "array", "uniqueItems": True, "items": {"type": "string"}, "maxItems": 5000},
                "anything": True,
                "never": False,
                "list": {"type": "array"},
                "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
                "maybe": {"type": ["string", "null"]},
                "open_api": {"type": "string", "nullable": True, "enum": ["x", "y"]},
                "either": {"type": ["string", "integer"], "minLength": 2, "minimum": 5},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "not_empty": {"type": "string", "not": {"const": ""}},
                "huge": {"type": "string", "enum": [f"value-{number}" for number in range(600)]},
            },
            "required": ["date", "kind"],
            "additionalProperties": False,
        },
    ),
    tool(
        "keyword_names",
        "Properties that are called like keywords.",
        {
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "pattern": {"type": "string"},
                "$ref": {"type": "string"},
                "properties": {"type": "object", "properties": {"enum": {"type": "string"}}},
                "filter[id]": {"type": "string"},
            },
            "required": ["type", "filter[id]"],
            "additionalProperties": False,
        },
    ),
    tool(
        "references",
        "Shared and recursive definitions.",
        {
            "type": "object",
            "properties": {
                "home": {"$ref": "#/$defs/Address"},
                "work": {"allOf": [{"$ref": "#/$defs/Address"}], "description": "The office."},
                "tree": {"$ref": "#/$defs/Node"},
                "elsewhere": {"$ref": "https://example.com/other.json"},
            },
            "required": ["home"],
            "$defs": {
                "Address": {
                    "type": "object",
                    "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
                    "required": ["street"],
                },
                "Node": {
                    "type": "object",
                    "properties": {
                        "label": {"type": "string"},
                        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                    },
                    "required": ["label"],
                },
            },
        },
    ),
    tool(
        "root_union",
        "One of two shapes.",
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": "file"}, "path": {"type": "string"}},
                    "required": ["kind", "path"],
                    "additionalProperties": False,
                },
                {
                    "type": "object",
                    "properties": {"kind": {"const": "url"}, "url": {"type": "string", "format": "uri"}},
                    "required": ["kind", "url"],
                    "additionalProperties": False,
                },
            ]
        },
    ),
    tool(
        "root_any_required",
        "By id or by name.",
        {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
            "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
        },
    ),
    tool(
        "old_draft",
        "Written for draft 7.",
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "definitions": {"Size": {"type": "integer"}},
            "properties": {
                "size": {"$ref": "#/definitions/Size", "maximum": 3},
                "pair": {"type": "array", "items": [{"type": "number"}, {"type": "number"}], "additionalItems": False},
            },
        },
    ),
    tool(
        "broken_by_hand",
        None,
        {
            "type": "object",
            "properties": {
                "count": {"type": "int", "required": True},
                "name": "string",
                "extra": {"type": "any", "description": 5, "enum": "abc"},
            },
            "required": "count",
        },
    ),
    tool("bad name!", "Cannot be sent.", {}),
    tool("not_an_object", "Arguments that are no object.", {"type": "string"}),
    "not a definition",
]
