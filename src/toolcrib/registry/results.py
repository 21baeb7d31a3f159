"""The JSON texts that tools return: results, errors, and exceptions as errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from toolcrib.config.redact import redact
from toolcrib.core.attempt import attempt
from toolcrib.core.errors import nearest_names
from toolcrib.core.lazy import lazy_pattern

MAX_ERROR_CHARS = 2000
# More than enough to fill an error after cleaning; ignore the rest of a huge message.
MAX_CLEANED_CHARS = 8000
MAX_REDACTED_CHARS = 1_000_000

# Text that a model could mistake for conversation framing instead of an error message.
_FRAMING = lazy_pattern(
    r"<!\[CDATA\[[\s\S]{0,2000}?\]\]>|<!\[CDATA\[|\]\]>"
    r"|</?\s{0,20}(?:tool_call|function_call|result|response|output|input|system|assistant|user)(?:\s[^>]{0,200})?/?>"
    r"|<\|[^|>\s]{1,40}\|>|\[/?INST\]"
    r"|^[ \t]*(?:```|~~~)[^\n]*$|```",
    re.IGNORECASE | re.MULTILINE,
)
MAX_PASSES = 5
_NO_FRAMING_CHARS = str.maketrans("", "", "<>[]`~")


def tool_result(data: Any = None, **kwargs: Any) -> str:
    """The JSON text of a result: `data` unchanged, or an object of the keyword arguments."""
    return json.dumps(kwargs if data is None else data, ensure_ascii=False)


def tool_error(message: Any, **extra: Any) -> str:
    """The JSON text of an error, with any further keys."""
    return json.dumps({"error": str(message), **extra}, ensure_ascii=False)


def unknown_tool(name: str, known: Iterable[str]) -> str:
    """The answer for an unknown tool, with the nearest names."""
    nearest = nearest_names(name, known)
    return tool_error(f"Unknown tool: {name}", **({"did_you_mean": nearest} if nearest else {}))


def agent_loop_error(name: str) -> str:
    return tool_error(f"{name} must be handled by the agent loop")


def handler_failed(error: BaseException) -> str:
    """The first error layer: what the handler raised."""
    return tool_error(safe_error_text(f"Tool execution failed: {type(error).__name__}: {message_of(error)}"))


def call_failed(name: str, error: BaseException) -> str:
    """The second error layer: what went wrong around the handler."""
    return tool_error(safe_error_text(f"Error executing {name}: {message_of(error)}"))


def message_of(error: BaseException, unreadable: str = "it has no readable message") -> str:
    """The exception's message; `unreadable` if reading it raises another exception."""
    text, failure = attempt(str, error)
    return unreadable if failure is not None else str(text)


def unsupported_result(name: str, value: Any) -> str:
    kind = type(value).__name__
    return tool_error(
        f"Tool handler returned unsupported result type: {kind}",
        error_type="tool_result_contract",
        tool=name,
        result_type=kind,
    )


def safe_error_text(text: str) -> str:
    """The text without framing tokens and secrets, capped."""
    return _capped(sanitise(text))


def sanitise(text: str) -> str:
    """The text without framing tokens, code fences, CDATA sections and secrets."""
    # Redact secrets first, because the cut could split one; and again, because a token may have been inside one.
    shortened = redact(text[:MAX_REDACTED_CHARS])[:MAX_CLEANED_CHARS]
    return redact(_without_framing(shortened)).strip()


def _without_framing(text: str) -> str:
    for _ in range(MAX_PASSES):
        cleaned = _FRAMING.sub("", text)
        if cleaned == text:
            return text
        text = cleaned
    # Nested tokens, where removing one leaves another.
    return text.translate(_NO_FRAMING_CHARS)


def is_multimodal(value: Any) -> bool:
    return isinstance(value, dict) and value.get("_multimodal") is True and isinstance(value.get("content"), list)


def untrusted(text: str, source: str) -> str:
    """The text between markers that tell the model it is external data; the text cannot close them itself."""
    return f'<untrusted_tool_result source="{source}">\n{without_marks(text)}\n</untrusted_tool_result>'


def without_marks(text: str) -> str:
    """The text without the markers of `untrusted`, so it cannot close them itself."""
    return re.sub(r"<(?=/?untrusted_tool_result\b)", "&lt;", text, flags=re.IGNORECASE)


ERROR_WITHIN_CHARS = 400


def error_in(text: str) -> str:
    """The message of a `{"error": …}` text, or "" if the text is not an error."""
    # Check only the start, because this runs for every result.
    if text[:1] != "{" or text.find('"error"', 0, ERROR_WITHIN_CHARS) < 0:
        return ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    error = value.get("error") if isinstance(value, dict) else None
    return str(error) if error else ""


def _capped(text: str) -> str:
    return sendable(text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 3] + "...")


def sendable(text: str) -> str:
    """The text with lone surrogates (as in odd file names) replaced, because they cannot be sent to a model."""
    return text.encode("utf-8", "replace").decode()
