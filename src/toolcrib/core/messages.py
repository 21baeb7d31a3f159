"""A conversation, as every provider, the session store and the agent see it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from toolcrib.core.types import ResultStatus, ToolResult

Role = Literal["system", "user", "assistant", "tool"]


# Every turn reads and writes hundreds of these, so they are msgspec Structs, like ToolResult.
class Text(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """A text part of a message that also has images."""

    text: str


class Image(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="image", tag_field="type"):
    """An image: base64 data with its media type, or a URL."""

    media_type: str = ""
    data: str = ""
    url: str = ""


class Audio(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="audio", tag_field="type"):
    """An audio recording: base64 data with its media type."""

    media_type: str = ""
    data: str = ""


class Video(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="video", tag_field="type"):
    """A video: base64 data with its media type. Only for requests to a model that is known to take it."""

    media_type: str = ""
    data: str = ""


Part = Text | Image | Audio | Video


class RequestedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call in a message. `arguments` is the model's JSON text, unchanged byte for byte so that caches hit."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation. Immutable; a new version is a new message."""

    role: Role
    content: str | tuple[Part, ...] = ""
    tool_calls: tuple[RequestedCall, ...] = ()
    """For an assistant message: the calls it requests."""
    call_id: str = ""
    """For a tool message: the call that produced this result."""
    name: str = ""
    """For a tool message: the tool's name."""
    status: ResultStatus = "ok"
    """For a tool message: how the call ended."""
    reasoning: str = ""
    """The model's reasoning before its answer: kept separately, shown on request, never sent back as text."""
    provider_data: dict[str, Any] | None = None
    """What the provider needs back unchanged with this message: signed thinking, encrypted reasoning."""
    origin: str | dict[str, str] = ""
    """Where the content comes from: `person` if a person typed it, or the origin of a result; empty if not known."""

    @property
    def text(self) -> str:
        """The content as text, without its images and recordings."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, Text))

    @property
    def images(self) -> tuple[Image, ...]:
        if isinstance(self.content, str):
            return ()
        return tuple(part for part in self.content if isinstance(part, Image))

    @property
    def recordings(self) -> tuple[Audio, ...]:
        if isinstance(self.content, str):
            return ()
        return tuple(part for part in self.content if isinstance(part, Audio))


def user_message(text: str, images: Iterable[Image] = ()) -> Message:
    """A user message, with any images."""
    shown = tuple(images)
    return Message(role="user", content=(Text(text), *shown) if shown else text)


_ATTACHED = re.compile(r'\n\n<attached name="[^"\n]*">\n')
_WHOLE_ATTACHMENT = re.compile(r'\n\n<attached name="([^"\n]*)">\n(.*?)\n</attached>', re.DOTALL)
_ATTACHMENT_MARK = re.compile(r"<(?=/?attached\b)", re.IGNORECASE)


def attachment(name: str, text: str) -> str:
    """A text that goes along with a message, between marks that it cannot close itself."""
    shown = " ".join(name.replace('"', "'").split())
    return f'\n\n<attached name="{shown}">\n{_ATTACHMENT_MARK.sub("&lt;", text.rstrip())}\n</attached>'


def attachments_of(text: str) -> list[tuple[str, str]]:
    """Name and text of each attachment of a message."""
    return _WHOLE_ATTACHMENT.findall(text)


def spoken_text(text: str) -> str:
    """A message without what was attached to it: the words that a person typed."""
    found = _ATTACHED.search(text)
    return text[: found.start()] if found else text


def tool_message(result: ToolResult) -> Message:
    """The result of a call, as a message for the model."""
    given = result.content
    content = given if isinstance(given, str) else tuple(parts_of(given.get("content")))
    origin: str | dict[str, str] = result.origin if isinstance(result.origin, str) else {**result.origin}
    return Message(
        role="tool", call_id=result.call_id, name=result.name, status=result.status, content=content, origin=origin
    )


def parts_of(content: Any) -> Iterable[Part]:
    """The parts of a multimodal result, which handlers write as OpenAI's or Anthropic's content blocks."""
    for block in content if isinstance(content, list) else ():
        part = _part(block) if isinstance(block, dict) else Text(str(block))
        if part is not None:
            yield part


def _part(block: dict[str, Any]) -> Part | None:
    if isinstance(block.get("text"), str):
        return Text(block["text"])
    address = block.get("image_url")
    if isinstance(address, dict):
        address = address.get("url")
    if isinstance(address, str):
        return image_at(address)
    sound = _sound(block)
    if sound is not None:
        return sound
    source = block.get("source")
    if isinstance(source, dict):
        if source.get("type") == "base64":
            return Image(media_type=str(source.get("media_type") or "image/png"), data=str(source.get("data") or ""))
        return Image(url=str(source["url"])) if source.get("url") else None
    if block.get("type") == "image" and isinstance(block.get("data"), str):
        return Image(
            media_type=str(block.get("mimeType") or block.get("media_type") or "image/png"), data=block["data"]
        )
    return None


def _sound(block: dict[str, Any]) -> Audio | None:
    inner = block.get("input_audio")
    if isinstance(inner, dict) and isinstance(inner.get("data"), str):
        return Audio(media_type=f"audio/{inner.get('format') or 'wav'}", data=inner["data"])
    if block.get("type") == "audio" and isinstance(block.get("data"), str):
        return Audio(
            media_type=str(block.get("mimeType") or block.get("media_type") or "audio/wav"), data=block["data"]
        )
    return None


def image_at(address: str) -> Image:
    """The image at a URL; a `data:` URL contains the image."""
    head, comma, data = address.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return Image(media_type=head[len("data:") : -len(";base64")] or "image/png", data=data)
    return Image(url=address)
