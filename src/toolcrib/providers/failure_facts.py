"""What can be read from the exception of an SDK without knowing the SDK: status, words, headers, class names."""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from toolcrib.core.attempt import attempt

MAX_TEXT_CHARS = 8_000
MAX_CAUSES = 8


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One failed request."""

    status: int | None
    said: str
    """The provider's own sentence."""
    text: str
    """All that the provider says about it: the sentence, type, code, parameter, details."""
    words: str
    """The same in lower case."""
    types: str
    """Type, code and status of the error object, in lower case."""
    names: frozenset[str]
    """The class names of the exception and of what caused it, with their bases."""
    has_body: bool
    retry_after_seconds: float | None
    should_retry: bool | None
    """What the server itself advises."""


def facts_of(error: BaseException) -> Facts:
    """What an exception says about the failure; reads only attributes that the known SDKs share."""
    chain = list(_with_causes(error))
    body = getattr(error, "body", None)
    described = _error_object(body)
    said = _said(described) or _own_text(chain)
    types = " ".join(str(described.get(key) or "") for key in ("type", "code", "status", "error_code"))
    text = _text(said, types, described)
    headers = _headers(error)
    return Facts(
        status=_status(error, described),
        said=said,
        text=text,
        words=text.lower(),
        types=types.lower(),
        names=frozenset(base.__name__ for one in chain for base in type(one).__mro__),
        has_body=bool(described),
        retry_after_seconds=_retry_after(headers, text),
        should_retry={"true": True, "false": False}.get(headers.get("x-should-retry", "")),
    )


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    waiting = [error]
    for _ in range(MAX_CAUSES):
        if not waiting:
            return
        one = waiting.pop(0)
        yield one
        waiting.extend(one.exceptions if isinstance(one, BaseExceptionGroup) else ())
        # Transports hide what they translate (`from None`), but it stays the context.
        cause = one.__cause__ or one.__context__
        if cause is not None:
            waiting.append(cause)


def _error_object(body: Any) -> dict[str, Any]:
    """The object that describes the error, however deep a provider wraps it."""
    if isinstance(body, str):
        parsed = attempt(json.loads, body).value
        return _error_object(parsed) if isinstance(parsed, dict | list) else _from_page(body)
    if isinstance(body, list):
        return _error_object(body[0]) if body and isinstance(body[0], dict) else {}
    if not isinstance(body, dict):
        return {}
    inner = body.get("error")
    if isinstance(inner, dict):
        return inner
    if isinstance(inner, str):
        return {**body, "message": inner}
    detail = body.get("detail")
    if detail and not body.get("message"):
        return {"message": detail if isinstance(detail, str) else json.dumps(detail, default=str)}
    return body


def _from_page(text: str) -> dict[str, Any]:
    # A proxy answers with a page: its title says more than its markup.
    title = re.search(r"<title>([^<]{1,200})", text, re.IGNORECASE)
    if title:
        return {"message": title[1].strip()}
    return {} if text.lstrip().startswith("<") else {"message": text.strip()}


def _said(described: dict[str, Any]) -> str:
    message = described.get("message") or described.get("msg") or ""
    metadata = described.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if raw:
        # A router says only that somebody refused; the words of that somebody are in its metadata.
        inner = _error_object(raw)
        message = _said(inner) or str(raw) or message
    if not isinstance(message, str):
        return json.dumps(message, default=str)
    nested = attempt(json.loads, message).value if message.lstrip().startswith("{") else None
    return _said(_error_object(nested)) or message if isinstance(nested, dict) else message


def _own_text(chain: list[BaseException]) -> str:
    """The words of the first cause: what stands before it only says that something failed."""
    status = getattr(chain[0], "status_code", None)
    if isinstance(status, int):
        # It has no words but those of the HTTP library.
        return f"status {status}"
    texts = [text for one in chain if (text := str(one).strip())]
    return texts[-1] if texts else type(chain[0]).__name__


def _text(said: str, types: str, described: dict[str, Any]) -> str:
    message = described.get("message")
    parts = [said, types, str(described.get("param") or ""), message if isinstance(message, str) else ""]
    parts += [json.dumps(described[key], default=str) for key in ("details", "metadata") if described.get(key)]
    return "\n".join(parts)[:MAX_TEXT_CHARS]


def _status(error: BaseException, described: dict[str, Any]) -> int | None:
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        return status
    code = described.get("code")
    if isinstance(code, str) and code.isdigit():
        code = int(code)
    if isinstance(code, int) and 400 <= code < 600:
        return code
    return status if isinstance(status, int) else None


def _headers(error: BaseException) -> dict[str, str]:
    headers = getattr(getattr(error, "response", None), "headers", None)
    if not isinstance(headers, Mapping):
        return {}
    return {str(name).lower(): str(value) for name, value in headers.items()}


_IN_WORDS = re.compile(
    r"(?:retry|try again|retrying) (?:in|after) (?:(\d{1,4}) ?h(?:ours?)?)? ?(?:(\d{1,6}) ?m(?:in(?:ute)?s?)?(?!s))? ?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?) ?(s|ms|sec))?"
    r"|\"retrydelay\": ?\"(\d+(?:\.\d+)?)s",
    re.IGNORECASE,
)


def _retry_after(headers: dict[str, str], text: str) -> float | None:
    """How long the server wants to be left alone, in seconds."""
    milliseconds = attempt(float, headers.get("retry-after-ms", "")).value
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    told = headers.get("retry-after", "")
    seconds = attempt(float, told).value
    if seconds is not None:
        return max(0.0, seconds)
    until = _moment(told)
    if until is not None:
        # By the server's own clock, where it says what that is: ours may be wrong.
        return max(0.0, until - (_moment(headers.get("date", "")) or time.time()))
    return _retry_in_words(text)


def _moment(date: str) -> float | None:
    parsed = email.utils.parsedate_tz(date) if date else None
    return email.utils.mktime_tz(parsed) if parsed else None


def _retry_in_words(text: str) -> float | None:
    for found in _IN_WORDS.finditer(text):
        hours, minutes, number, unit, delay = found.groups()
        if delay:
            return float(delay)
        if hours or minutes or number:
            seconds = float(number or 0) / (1000 if unit and unit.lower() == "ms" else 1)
            return int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds
    return None
