"""Definitions must not speak of tools that the model does not have: it would call them."""

from __future__ import annotations

import re
from collections.abc import Collection

from toolcrib.code_execution import EXECUTE_CODE, script_tools
from toolcrib.core.types import JsonObject

OFTEN_NAMED = ("web_search", "web_extract", "read_file", "write_file", "search_files", "patch", "terminal")
"""The tools that a description of `execute_code` may speak of, besides the list at its end."""
BROWSER_ALTERNATIVES = ("web_search", "web_extract")


def patched(function: JsonObject, offered: Collection[str]) -> JsonObject:
    """The function with its description fitted to the tools that are offered beside it."""
    name = function["name"]
    description = str(function.get("description") or "")
    if name == EXECUTE_CODE:
        missing = [tool for tool in OFTEN_NAMED if tool not in offered]
        listed = ", ".join(script_tools(offered)) or "none"
        return {
            **function,
            "description": f"{without_tools(description, missing)}\n\nTools the script can call: {listed}.",
        }
    if name == "browser_navigate" and not any(tool in offered for tool in BROWSER_ALTERNATIVES):
        return {**function, "description": without_sentences_about(description, BROWSER_ALTERNATIVES)}
    return function


def without_sentences_about(text: str, tools: Collection[str]) -> str:
    """The text without the sentences that name one of the tools."""
    named = _any_of(tools)
    sentences = re.split(r"(?<=[.!?])\s+", text)
    return " ".join(sentence for sentence in sentences if not named.search(sentence)).strip()


def without_tools(text: str, tools: Collection[str]) -> str:
    """The text without the tools: a line that is about one of them goes, a list of several loses its name."""
    if not tools:
        return text
    named = _any_of(tools)
    in_list = re.compile(rf"`?{named.pattern}`?(?:\([^()\n]*\))?,?[ \t]*")
    kept = []
    for line in text.splitlines():
        shorter = in_list.sub("", line) if named.search(line) else line
        if shorter is line or re.search(r"\w{3}", shorter):
            kept.append(shorter.rstrip())
    return "\n".join(kept).strip()


def _any_of(tools: Collection[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, tools))})\b")
