"""Converts an editor's prompts to messages: text, images, mentioned files and attached files."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from acp.schema import (
    AudioContentBlock,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)

from toolcrib.core.errors import UsageError
from toolcrib.core.messages import Audio, Image, Message, Part, Text, attachment

MAX_ATTACHED_CHARS = 100_000
"""All files that come along with a message together."""
MAX_IMAGE_BYTES = 20_000_000


def prompt_message(blocks: Sequence[Any]) -> Message:
    """The blocks of a prompt as one message. What comes along is marked as data, and only the words are a person's.

    Raises UsageError for a prompt that a model cannot read.
    """
    words: list[str] = []
    attached: list[str] = []
    media: list[Part] = []
    room = MAX_ATTACHED_CHARS
    for block in blocks:
        match block:
            case TextContentBlock():
                words.append(block.text)
            case ImageContentBlock():
                media.append(_image(block.data, block.mime_type, block.uri or ""))
            case AudioContentBlock():
                media.append(Audio(media_type=block.mime_type, data=block.data))
            case ResourceContentBlock():
                words.append(_mention(block.uri))
            case EmbeddedResourceContentBlock():
                name = path_of(block.resource.uri)
                words.append(_mention(block.resource.uri))
                whole = _attached(block.resource, media)
                text = whole[:room] + ("\n[cut here]" if len(whole) > room else "")
                room -= min(room, len(whole))
                attached.append(attachment(name, text) if text else "")
    spoken = _joined(words)
    if not spoken.strip() and not media:
        raise UsageError("the prompt is empty; write what you want")
    text = spoken + "".join(attached)
    return Message(role="user", content=(Text(text), *media) if media else text)


def spoken_words(blocks: Sequence[Any]) -> str:
    """The text of a prompt, if it has nothing but text and mentions: a slash command, perhaps."""
    if any(not isinstance(block, TextContentBlock | ResourceContentBlock) for block in blocks):
        return ""
    return _joined(block.text if isinstance(block, TextContentBlock) else path_of(block.uri) for block in blocks)


def path_of(uri: str) -> str:
    """A file's path, with the lines that the editor names; any other address as it is."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    if parts.scheme != "file":
        return uri
    return unquote(parts.path) + (f"#{parts.fragment}" if parts.fragment else "")


def _mention(uri: str) -> str:
    """A file as a word of the prompt, on one line: whoever named it must not put words into the person's mouth."""
    return f"@{' '.join(path_of(uri).split())}"


def _joined(words: Iterable[str]) -> str:
    """The pieces of a text; a mention in the middle of it does not stick to the words around it."""
    text, after_mention = "", False
    for piece in filter(None, words):
        is_mention = piece.startswith("@")
        if text and (is_mention or after_mention) and not text[-1].isspace() and not piece[0].isspace():
            text += " "
        text, after_mention = text + piece, is_mention
    return text


def _attached(resource: TextResourceContents | BlobResourceContents, media: list[Part]) -> str:
    if isinstance(resource, TextResourceContents):
        return resource.text
    kind = resource.mime_type or ""
    if kind.startswith("image/"):
        media.append(_image(resource.blob, kind, ""))
        return ""
    try:
        return base64.b64decode(resource.blob, validate=True).decode()
    except ValueError:
        return "(this file is not text; read it with a tool)"


def _image(data: str, media_type: str, uri: str) -> Image:
    if not data and uri.startswith(("http://", "https://")):
        return Image(url=uri)
    try:
        size = len(base64.b64decode(data, validate=True))
    except ValueError as error:
        raise UsageError(f"the image in the prompt is not valid base64: {error}") from error
    if not size or size > MAX_IMAGE_BYTES:
        raise UsageError(f"the image in the prompt has {size:,} bytes; send one of at most {MAX_IMAGE_BYTES:,}")
    return Image(media_type=media_type, data=data)
