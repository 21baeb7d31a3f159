"""Converts results from servers to the pipeline's format: bounded, and with hidden characters escaped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.untrusted_text import one_line, shown

MAX_TEXT_CHARS = 4_000_000
"""Of all text of one result; the pipeline saves what exceeds the model's budget to a file."""
MAX_MEDIA_CHARS = 14_000_000
"""Of one image or recording in base64: about 10 MB."""
MAX_MEDIA = 20
MAX_BLOCKS = 1000
IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
AUDIO = re.compile(r"audio/[\w.+-]{1,40}")
SaveBlob = Callable[[BlobResourceContents], str]
"""Saves bytes that no model reads to a file; returns its path."""
# Possessive, so that a long run of spaces does not cause backtracking.
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*+={0,2}\s*+")


def convert_result(result: CallToolResult) -> str | JsonObject:
    """The result of a tool, as text or a multimodal object."""
    if len(result.content) == 1 and isinstance(result.content[0], TextContent) and result.structured_content is None:
        # The common case.
        return _as_json(_shown(result.content[0].text), result)
    parts = _ResultParts()
    for block in result.content[:MAX_BLOCKS]:
        parts.add(block)
    if len(result.content) > MAX_BLOCKS:
        parts.add_text(f"[{len(result.content) - MAX_BLOCKS} more parts omitted]")
    text = _as_json(parts.text, result)
    return text if result.is_error else _with_media(text, parts.media)


def convert_resource(result: ReadResourceResult, save: SaveBlob) -> str | JsonObject:
    """The contents of a resource, as text or a multimodal object."""
    parts = _ResultParts(save=save)
    only = result.contents[0] if len(result.contents) == 1 else None
    if isinstance(only, TextResourceContents):
        parts.add_untrusted(only.text)
    else:
        for resource in result.contents[:MAX_BLOCKS]:
            parts.add_resource(resource)
    if len(result.contents) > MAX_BLOCKS:
        parts.add_text(f"[{len(result.contents) - MAX_BLOCKS} more parts omitted]")
    return _with_media(json.dumps({"result": parts.text}, ensure_ascii=False), parts.media)


def convert_prompt(result: GetPromptResult, save: SaveBlob) -> str | JsonObject:
    """The messages of a prompt with their roles; images and recordings follow them."""
    answer: JsonObject = {"messages": []}
    if result.description:
        answer["description"] = one_line(result.description, 1000)
    media: list[JsonObject] = []
    for message in result.messages[:MAX_BLOCKS]:
        before, parts = len(media), _ResultParts(media, save)
        parts.add(message.content)
        if len(media) > before:
            parts.add_text(f"[attachment {len(media)} after the messages]")
        answer["messages"].append({"role": message.role, "content": parts.text})
    if len(result.messages) > MAX_BLOCKS:
        answer["left_out"] = f"{len(result.messages) - MAX_BLOCKS} more messages"
    return _with_media(json.dumps(answer, ensure_ascii=False), media)


def _with_media(text: str, media: list[JsonObject]) -> str | JsonObject:
    return {"_multimodal": True, "content": [{"type": "text", "text": text}, *media]} if media else text


def _as_json(text: str, result: CallToolResult) -> str:
    if result.is_error:
        return json.dumps({"error": text or "the tool failed without saying why"}, ensure_ascii=False)
    if result.structured_content is None:
        return json.dumps({"result": text}, ensure_ascii=False)
    structured = _clean(result.structured_content)
    if len(json.dumps(structured, ensure_ascii=False)) > MAX_TEXT_CHARS:
        structured = "[omitted: too long]"
    return json.dumps({"result": text, "structuredContent": structured}, ensure_ascii=False)


def _clean(value: Any) -> Any:
    """The JSON value with hidden characters escaped in all its texts."""
    if isinstance(value, str):
        return _shown(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number.
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {shown(str(key)): _clean(item) for key, item in value.items()}
    return value


def _shown(text: str) -> str:
    """The text with hidden characters escaped, cut to the limit before it is scanned."""
    return _cut(shown(text[:MAX_TEXT_CHARS]), max(0, len(text) - MAX_TEXT_CHARS))


def _cut(text: str, gone: int = 0) -> str:
    gone += max(0, len(text) - MAX_TEXT_CHARS)
    return f"{text[:MAX_TEXT_CHARS]}\n[{gone} more characters omitted]" if gone else text


class _ResultParts:
    """Collects the text and media of one result."""

    def __init__(self, media: list[JsonObject] | None = None, save: SaveBlob | None = None) -> None:
        self.media: list[JsonObject] = [] if media is None else media
        self._save = save
        self._texts: list[str] = []
        self._gone = 0

    @property
    def text(self) -> str:
        return _cut("\n".join(self._texts), self._gone)

    def add_text(self, text: str) -> None:
        self._texts.append(text)

    def add_untrusted(self, text: str, before: str = "") -> None:
        """Add text from the server, cut to the limit before it is scanned."""
        self.add_text(before + shown(text[:MAX_TEXT_CHARS]))
        self._gone += max(0, len(text) - MAX_TEXT_CHARS)

    def add(self, block: ContentBlock) -> None:
        if isinstance(block, TextContent):
            self.add_untrusted(block.text)
        elif isinstance(block, (ImageContent, AudioContent)):
            self._add_media(block.data, block.mime_type.lower())
        elif isinstance(block, ResourceLink):
            about = f": {one_line(block.description, 300)}" if block.description else ""
            self.add_text(f"[link to {one_line(block.name, 200)}, {one_line(str(block.uri), 1000)}{about}]")
        elif isinstance(block, EmbeddedResource):
            self.add_resource(block.resource)

    def add_resource(self, resource: TextResourceContents | BlobResourceContents) -> None:
        where = one_line(str(resource.uri), 1000)
        kind = (resource.mime_type or "").lower()
        if isinstance(resource, TextResourceContents):
            self.add_untrusted(resource.text, f"[content of {where}]\n")
        elif kind in IMAGES or AUDIO.fullmatch(kind):
            self.add_text(f"[content of {where}]")
            self._add_media(resource.blob, kind)
        else:
            what = f"{_bytes_in(resource.blob)} bytes of {one_line(kind, 80) or 'unknown type'}"
            self.add_text(f"[content of {where}: {what}, {self._save_note(resource)}]")

    def _save_note(self, resource: BlobResourceContents) -> str:
        """Save bytes that no model reads, and say where."""
        if self._save is None:
            return "not shown"
        if len(resource.blob) > MAX_MEDIA_CHARS:
            return "too large to save"
        try:
            return f"saved as {self._save(resource)}"
        except (ValueError, OSError) as error:
            return f"not saved: {error}"

    def _add_media(self, data: str, kind: str) -> None:
        """Add an image or recording as a separate part, if models support its type."""
        what = one_line(kind, 80)
        if len(data) > MAX_MEDIA_CHARS:
            self.add_text(f"[{what} omitted: it has about {_bytes_in(data) // 1_000_000} MB]")
        elif len(self.media) >= MAX_MEDIA:
            self.add_text(f"[{what} omitted: there are more than {MAX_MEDIA}]")
        elif not _BASE64.fullmatch(data):
            self.add_text(f"[{what} omitted: it is not valid base64]")
        elif kind in IMAGES:
            self.media.append({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}})
        elif AUDIO.fullmatch(kind):
            self.add_text(f"[audio: {what}]")
            form = kind.removeprefix("audio/")
            self.media.append({"type": "input_audio", "input_audio": {"data": data, "format": form}})
        else:
            self.add_text(f"[{what} omitted: no model supports this type]")


def _bytes_in(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")
