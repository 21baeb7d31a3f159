"""What a call gave, in the form that clients take it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from mcp_types import AudioContent, CallToolResult, ContentBlock, ImageContent, ResourceLink, TextContent
from pydantic_core import to_json

from toolcrib.core.messages import Image, Text, parts_of
from toolcrib.core.types import JsonObject, ToolResult
from toolcrib.registry.results import sendable

MAX_MEDIA_CHARS = 16_000_000
"""The most characters of images and sound of one result, as base64."""


def as_call_result(result: ToolResult) -> CallToolResult:
    """The result of a call: text and media as content, a JSON object also as structured content."""
    content = result.content
    if isinstance(content, str):
        return CallToolResult(
            content=[TextContent(text=content)],
            structured_content=_json_object(content),
            is_error=result.is_error,
        )
    return CallToolResult(content=list(_blocks(content)), is_error=result.is_error)


def failure(message: str, error_type: str) -> CallToolResult:
    """The result of a call that was not run."""
    told = {"error": message, "error_type": error_type}
    text = json.dumps(told, ensure_ascii=False)
    return CallToolResult(content=[TextContent(text=text)], structured_content=told, is_error=True)


def _json_object(text: str) -> JsonObject | None:
    """The object that a text is, if it is one that can be sent on as such; else it stays a text."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        # Half characters and endless nesting can be read, but not written.
        if not isinstance(value, dict) or not to_json(value):
            return None
    except (ValueError, RecursionError):
        return None
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _blocks(content: JsonObject) -> Iterator[ContentBlock]:
    left = MAX_MEDIA_CHARS
    for part in _list(content.get("content")):
        block = _sound(part) or _visible(part)
        if block is None:
            continue
        size = len(block.data) if isinstance(block, (ImageContent, AudioContent)) else 0
        if size > left:
            yield TextContent(text=f"[{block.type} of {size * 3 // 4:,} bytes left out: it is too large]")
            continue
        left -= size
        yield block


def _list(parts: Any) -> list[Any]:
    return parts if isinstance(parts, list) else []


def _sound(part: Any) -> AudioContent | None:
    if not isinstance(part, dict):
        return None
    inner = part.get("input_audio")
    if isinstance(inner, dict) and isinstance(inner.get("data"), str):
        return AudioContent(data=sendable(inner["data"]), mime_type=sendable(f"audio/{inner.get('format') or 'wav'}"))
    if part.get("type") == "audio" and isinstance(part.get("data"), str):
        return AudioContent(data=sendable(part["data"]), mime_type=sendable(str(part.get("mimeType") or "audio/wav")))
    return None


def _visible(part: Any) -> TextContent | ImageContent | ResourceLink | None:
    for found in parts_of([part]):
        if isinstance(found, Text):
            return TextContent(text=sendable(found.text))
        if isinstance(found, Image):
            if found.data:
                return ImageContent(data=sendable(found.data), mime_type=sendable(found.media_type))
            return ResourceLink(name="image", uri=sendable(found.url))
    return None
