"""What a tool of a server answered, as the pipeline wants it: bounded, and with nothing hidden in it."""

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
"""Of all text of one result; the pipeline keeps what is more than the model may read in a file."""
MAX_MEDIA_CHARS = 14_000_000
"""Of one image or recording in base64: about 10 MB."""
MAX_MEDIA = 20
MAX_BLOCKS = 1000
IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
AUDIO = re.compile(r"audio/[\w.+-]{1,40}")
SaveBlob = Callable[[BlobResourceContents], str]
"""Puts bytes that no model reads into a file; gives its path."""
# Never looks back: a text of spaces must not be tried from each of them.
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*+={0,2}\s*+")


def converted(result: CallToolResult) -> str | JsonObject:
    """The text or multimodal object for what a tool answered."""
    if len(result.content) == 1 and isinstance(result.content[0], TextContent) and result.structured_content is None:
        # Nearly every answer is one text.
        return _as_json(_shown(result.content[0].text), result)
    parts = _Parts()
    for block in result.content[:MAX_BLOCKS]:
        parts.add(block)
    if len(result.content) > MAX_BLOCKS:
        parts.say(f"[{len(result.content) - MAX_BLOCKS} more parts were left out]")
    text = _as_json(parts.text, result)
    return text if result.is_error else _with_media(text, parts.media)


def converted_resource(result: ReadResourceResult, save: SaveBlob) -> str | JsonObject:
    """The text or multimodal object for what a server gave to read."""
    parts = _Parts(save=save)
    only = result.contents[0] if len(result.contents) == 1 else None
    if isinstance(only, TextResourceContents):
        parts.quote(only.text)
    else:
        for resource in result.contents[:MAX_BLOCKS]:
            parts.add_resource(resource)
    if len(result.contents) > MAX_BLOCKS:
        parts.say(f"[{len(result.contents) - MAX_BLOCKS} more parts were left out]")
    return _with_media(json.dumps({"result": parts.text}, ensure_ascii=False), parts.media)


def converted_prompt(result: GetPromptResult, save: SaveBlob) -> str | JsonObject:
    """The messages of a prompt, each with its role; images and recordings stand behind them."""
    answer: JsonObject = {"messages": []}
    if result.description:
        answer["description"] = one_line(result.description, 1000)
    media: list[JsonObject] = []
    for message in result.messages[:MAX_BLOCKS]:
        before, parts = len(media), _Parts(media, save)
        parts.add(message.content)
        if len(media) > before:
            parts.say(f"[part {len(media)} of what stands behind the messages]")
        answer["messages"].append({"role": message.role, "content": parts.text})
    if len(result.messages) > MAX_BLOCKS:
        answer["left_out"] = f"{len(result.messages) - MAX_BLOCKS} more messages"
    return _with_media(json.dumps(answer, ensure_ascii=False), media)


def _with_media(text: str, media: list[JsonObject]) -> str | JsonObject:
    return {"_multimodal": True, "content": [{"type": "text", "text": text}, *media]} if media else text


def _as_json(text: str, result: CallToolResult) -> str:
    if result.is_error:
        return json.dumps({"error": text or "the tool failed and did not say why"}, ensure_ascii=False)
    if result.structured_content is None:
        return json.dumps({"result": text}, ensure_ascii=False)
    structured = _clean(result.structured_content)
    if len(json.dumps(structured, ensure_ascii=False)) > MAX_TEXT_CHARS:
        structured = "[left out: too long]"
    return json.dumps({"result": text, "structuredContent": structured}, ensure_ascii=False)


def _clean(value: Any) -> Any:
    """JSON with nothing hidden in its texts."""
    if isinstance(value, str):
        return _shown(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON knows no such number.
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {shown(str(key)): _clean(item) for key, item in value.items()}
    return value


def _shown(text: str) -> str:
    """The text as it really is, and not too much of it: what is longer is not even looked at."""
    return _cut(shown(text[:MAX_TEXT_CHARS]), max(0, len(text) - MAX_TEXT_CHARS))


def _cut(text: str, gone: int = 0) -> str:
    gone += max(0, len(text) - MAX_TEXT_CHARS)
    return f"{text[:MAX_TEXT_CHARS]}\n[{gone} more characters were left out]" if gone else text


class _Parts:
    """The text and the media of one result."""

    def __init__(self, media: list[JsonObject] | None = None, save: SaveBlob | None = None) -> None:
        self.media: list[JsonObject] = [] if media is None else media
        self._save = save
        self._texts: list[str] = []
        self._gone = 0

    @property
    def text(self) -> str:
        return _cut("\n".join(self._texts), self._gone)

    def say(self, text: str) -> None:
        self._texts.append(text)

    def quote(self, text: str, before: str = "") -> None:
        """Say what is the server's; what is longer than all may be is not even looked at."""
        self.say(before + shown(text[:MAX_TEXT_CHARS]))
        self._gone += max(0, len(text) - MAX_TEXT_CHARS)

    def add(self, block: ContentBlock) -> None:
        if isinstance(block, TextContent):
            self.quote(block.text)
        elif isinstance(block, (ImageContent, AudioContent)):
            self._add_media(block.data, block.mime_type.lower())
        elif isinstance(block, ResourceLink):
            about = f": {one_line(block.description, 300)}" if block.description else ""
            self.say(f"[link to {one_line(block.name, 200)}, {one_line(str(block.uri), 1000)}{about}]")
        elif isinstance(block, EmbeddedResource):
            self.add_resource(block.resource)

    def add_resource(self, resource: TextResourceContents | BlobResourceContents) -> None:
        where = one_line(str(resource.uri), 1000)
        kind = (resource.mime_type or "").lower()
        if isinstance(resource, TextResourceContents):
            self.quote(resource.text, f"[content of {where}]\n")
        elif kind in IMAGES or AUDIO.fullmatch(kind):
            self.say(f"[content of {where}]")
            self._add_media(resource.blob, kind)
        else:
            what = f"{_bytes_in(resource.blob)} bytes of {one_line(kind, 80) or 'unknown kind'}"
            self.say(f"[content of {where}: {what}, {self._whereabouts(resource)}]")

    def _whereabouts(self, resource: BlobResourceContents) -> str:
        """What became of bytes that no model reads."""
        if self._save is None:
            return "not shown"
        if len(resource.blob) > MAX_MEDIA_CHARS:
            return "too large to be saved"
        try:
            return f"saved as {self._save(resource)}"
        except (ValueError, OSError) as error:
            return f"not saved: {error}"

    def _add_media(self, data: str, kind: str) -> None:
        """An image or a recording as a part of its own, if it is one that a model could be given."""
        what = one_line(kind, 80)
        if len(data) > MAX_MEDIA_CHARS:
            self.say(f"[{what} was left out: it has about {_bytes_in(data) // 1_000_000} MB]")
        elif len(self.media) >= MAX_MEDIA:
            self.say(f"[{what} was left out: there are more than {MAX_MEDIA}]")
        elif not _BASE64.fullmatch(data):
            self.say(f"[{what} was left out: it is not valid base64]")
        elif kind in IMAGES:
            self.media.append({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}})
        elif AUDIO.fullmatch(kind):
            self.say(f"[audio: {what}]")
            form = kind.removeprefix("audio/")
            self.media.append({"type": "input_audio", "input_audio": {"data": data, "format": form}})
        else:
            self.say(f"[{what} was left out: no model reads this kind]")


def _bytes_in(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")
