"""How a very small model is brought to call the right tool: few candidates, one line each, and a JSON schema.

The candidates are the tools that share words with the question. The schema makes every answer either a call with
arguments of the right form, or the word that no tool is needed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from toolcrib.core.types import JsonObject
from toolcrib.providers.embedded.lean_tools import content_words

NO_TOOL = "answer"
MAX_CANDIDATES = 4
NAME_WEIGHT = 3
STEM_CHARS = 5
_PATH = re.compile(r"(?:^|\s)[\w~.-]*/[\w./~-]+|\b[\w-]+\.[a-z]{1,5}\b")
_PATH_WORDS = ("file", "path")
_WEB_ADDRESS = re.compile(r"https?://|\bwww\.")

_INSTRUCTION = 'Reply with one json object: {"name": <tool>, "arguments": {<parameter>: <value>}}'
_NO_TOOL_LINE = f"- {NO_TOOL}: no tool is needed, for greetings, thanks and questions that you can answer yourself"


def named_tools(question: str, tools: Sequence[JsonObject]) -> list[JsonObject]:
    """The tools that the question asks for by name: "use the weather tool", "with the terminal", "read_file"."""
    text = question.lower()
    return [tool for tool in tools if _is_named(tool["function"]["name"].lower(), text)]


def _is_named(name: str, text: str) -> bool:
    if "_" in name and re.search(rf"\b{re.escape(name)}\b", text):
        return True
    spoken = re.escape(name.replace("_", " "))
    words = [re.escape(word) for word in re.split(r"[_\W]+", name) if len(word) > 2]
    asked = rf"\b(?:use|using|with|via|call|through)\s+(?:the\s+|a\s+|your\s+)?{spoken}\b"
    as_tool = rf"\b(?:{'|'.join([spoken, *words])})[\s-]+tool\b"
    return re.search(f"{asked}|{as_tool}", text) is not None


def candidates(question: str, tools: Sequence[JsonObject]) -> list[JsonObject]:
    """The few tools that share most with the question, best first; rare words count more. Empty when none does."""
    asked = _stems(question)
    if _PATH.search(question) and not _WEB_ADDRESS.search(question):
        asked |= {word[:STEM_CHARS] for word in _PATH_WORDS}
    spoken = [_weights(tool["function"]) for tool in tools]
    spread = Counter(stem for weights in spoken for stem in weights)
    scores = [sum(weights[stem] / spread[stem] for stem in asked if stem in weights) for weights in spoken]
    ranked = sorted(range(len(tools)), key=lambda at: -scores[at])[:MAX_CANDIDATES]
    return [tools[at] for at in ranked if scores[at] > 0]


def instruction(tools: Sequence[JsonObject], *, may_answer: bool) -> str:
    """What to add to the system prompt: the tools, a line for each and each parameter, and the form of the reply."""
    lines = [_line(tool["function"]) for tool in tools]
    return "\n".join(["# Tools", *lines, *([_NO_TOOL_LINE] if may_answer else []), "", _INSTRUCTION])


def reply_schema(tools: Sequence[JsonObject], *, may_answer: bool) -> JsonObject:
    """The schema of a reply: one call, or that no tool is needed."""
    choices = [_choice(tool["function"]["name"], tool["function"]["parameters"]) for tool in tools]
    if may_answer:
        choices.append(_choice(NO_TOOL, None))
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def chosen(reply: str) -> tuple[str, str] | None:
    """The name and the arguments, as JSON text, that a reply holds; None when no tool is needed or it was cut off."""
    try:
        found = json.loads(reply, strict=False)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("name") == NO_TOOL or not isinstance(found.get("arguments"), dict):
        return None
    return str(found["name"]), json.dumps(found["arguments"], ensure_ascii=False)


def _choice(name: str, parameters: JsonObject | None) -> JsonObject:
    properties: JsonObject = {"name": {"const": name}}
    if parameters is not None:
        properties["arguments"] = parameters
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _line(function: JsonObject) -> str:
    parameters: JsonObject = function["parameters"].get("properties") or {}
    head = f"- {function['name']}({', '.join(parameters)}): {function['description']}"
    return "\n".join([head, *(f"    {name}: {_meaning(schema)}" for name, schema in parameters.items())])


def _meaning(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    values = ", ".join(str(value) for value in schema.get("enum") or ())
    return " ".join(
        part for part in (str(schema.get("description") or ""), f"One of {values}" if values else "") if part
    )


def _weights(function: JsonObject) -> dict[str, float]:
    """The word stems of a tool; those of its name count most."""
    parameters: JsonObject = function.get("parameters", {}).get("properties") or {}
    # Not the values that a parameter may have: "list" and "write" are words of many questions.
    described = [str(one.get("description") or "") for one in parameters.values() if isinstance(one, dict)]
    told = " ".join([str(function.get("description") or ""), *parameters, *described])
    weights = dict.fromkeys(_stems(told), 1.0)
    return weights | dict.fromkeys(_stems(function["name"]), float(NAME_WEIGHT))


def _stems(text: str) -> set[str]:
    return {word[:STEM_CHARS] for word in content_words(text.replace("_", " "))}
