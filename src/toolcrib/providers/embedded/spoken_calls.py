"""Tool calls that a model wrote into its text instead of making them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from toolcrib.core.messages import RequestedCall

_FENCED = re.compile(
    r"```(?:json|tool_call)?\s*\n?(\{.*?)(?:```|\Z)|<tool_call>\s*(\{.*?)(?:</tool_call>|\Z)", re.DOTALL
)
_CALL_KEYS = ({"name", "arguments"}, {"name", "parameters"})
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
MOST_MISSING_BRACES = 2


def may_become_a_call(text: str) -> bool:
    """Whether a text that begins like this may turn out to be a call, so that it is not shown yet."""
    start = text.lstrip()
    return not start or any(start.startswith(mark) or mark.startswith(start) for mark in ("{", "```", "<tool_call>"))


def take_calls(text: str) -> tuple[str, list[RequestedCall]]:
    """The text without the calls written in it, and the calls, which have no id yet."""
    calls: list[RequestedCall] = []
    rest = text
    for whole, candidate in _candidates(text):
        call = _call(candidate)
        if call is not None:
            calls.append(call)
            rest = rest.replace(whole, "", 1)
    return (rest.strip(), calls) if calls else (text, [])


def _candidates(text: str) -> Iterator[tuple[str, str]]:
    found = list(_FENCED.finditer(text))
    for match in found:
        yield match.group(0), match.group(1) or match.group(2)
    if not found and text.lstrip().startswith("{"):
        yield text, text


def _call(text: str) -> RequestedCall | None:
    found = _object(text.strip())
    # Exactly these keys: other JSON is what the person asked for.
    if found is None or set(found) not in _CALL_KEYS or not isinstance(found["name"], str):
        return None
    arguments = found.get("arguments", found.get("parameters"))
    if not isinstance(arguments, dict):
        return None
    return RequestedCall(id="", name=found["name"], arguments=json.dumps(arguments, ensure_ascii=False))


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object at the start; a comma too many or closing braces too few are put right, nothing else is."""
    for attempt in (
        text,
        _TRAILING_COMMA.sub(r"\1", text),
        *(text + "}" * n for n in range(1, MOST_MISSING_BRACES + 1)),
    ):
        try:
            # Not strict: small models put line breaks into strings as they are.
            found, _ = json.JSONDecoder(strict=False).raw_decode(attempt)
        except ValueError:
            continue
        return found if isinstance(found, dict) else None
    return None
