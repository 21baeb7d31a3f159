"""Builds requests for OpenAI's chat completions, with the differences between compatible servers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from toolcrib.core.lazy import lazy_pattern
from toolcrib.core.messages import Audio, Image, Message, Part, RequestedCall, Text, Video
from toolcrib.core.models import ModelRequest
from toolcrib.core.types import JsonObject

MAX_CONVERSATIONS = 8
UNSEEN_IMAGE = "[an image, which this model cannot see]"
AUDIO_FORMATS = {"wav": "wav", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "mp3": "mp3", "mpeg": "mp3"}
"""The image formats that the API accepts, by media type; any other makes it refuse the conversation."""
# From Google's documentation: replaces the signature of a call that another model made.
FOREIGN_SIGNATURE = {"google": {"thought_signature": "skip_thought_signature_validator"}}
# On this endpoint OpenAI refuses tools together with reasoning for these models, even without an effort.
_NO_TOOLS_WHILE_REASONING = lazy_pattern(r"gpt-(5\.([2-9]|\d\d)|[6-9])(?!.*-chat)")
# Mistral's models accept a user message only after an answer, on every server.
_ANSWERS_RESULTS = re.compile(r"(?:mi[sx]tral|ministral|magistral|codestral|devstral|pixtral)")
_BETWEEN_RESULT_AND_USER = {"role": "assistant", "content": "OK."}
_NINE_CHARACTERS = re.compile(r"[a-zA-Z0-9]{9}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
MAX_NAME_CHARS = 64
MAX_ID_CHARS = 40
"""OpenAI's limit; other servers use longer ids."""


class OpenAIOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a server differs from the rest."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    stream_usage: bool = True
    """It accepts `stream_options` and then reports the usage."""
    reasoning: Literal["effort", "openrouter", "thinking", "thinking_effort"] = "effort"
    """How a request sets the reasoning effort."""
    no_tools_while_reasoning: bool = False
    """Its newer models accept tools only with reasoning turned off (OpenAI itself)."""
    returns_reasoning: bool = False
    """It needs the reasoning before a tool call back, as `reasoning_content`."""
    signs_calls: bool = False
    """It refuses tool calls without the signature it gave them (Gemini)."""
    nine_character_ids: bool = False
    """It accepts only call ids of nine letters and digits (Mistral)."""
    json_schema: bool = True
    """It can guarantee JSON of a given schema; otherwise the request only asks for JSON."""
    cache_key: bool = False
    """It accepts `prompt_cache_key`."""
    extra_body: JsonObject = {}
    """Extra fields for every request."""


class Modalities(NamedTuple):
    """The input a model accepts besides text."""

    images: bool = True
    audio: bool = False


class OpenAIRequests:
    """Encodes requests as bytes. Messages sent before are not converted again."""

    def __init__(self, provider: str, options: OpenAIOptions) -> None:
        self._provider = provider
        self._options = options
        self._sent: dict[str, _Sent] = {}

    def body(self, request: ModelRequest, *, sees_images: bool, hears_audio: bool = False) -> bytes:
        """The JSON text of a streaming request: the same request always gives the same bytes."""
        options = self._options
        body: dict[str, Any] = {
            "model": request.model,
            "messages": self._messages(request, Modalities(sees_images, hears_audio)),
            "stream": True,
        }
        if options.stream_usage:
            body["stream_options"] = {"include_usage": True}
        if request.tools:
            body["tools"] = _encoded(list(request.tools))
            body["tool_choice"] = request.tool_choice
        if request.response_schema is not None:
            body["response_format"] = _response_format(request.response_schema, options)
        if request.max_output_tokens:
            body[options.max_tokens_field] = request.max_output_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if options.cache_key and request.cache_key:
            body["prompt_cache_key"] = request.cache_key
        body |= _reasoning(request, options) | options.extra_body
        return msgspec.json.encode(body)

    def _messages(self, request: ModelRequest, senses: Modalities) -> list[msgspec.Raw]:
        """Every message as sent; those of the previous request are recognised by identity, as they never change."""
        known = self._sent.pop(request.cache_key, {})
        now: _Sent = {}
        wire = _Wire(answers_results=_ANSWERS_RESULTS.search(request.model.lower()) is not None)
        if request.system:
            wire.add("system", [_encoded({"role": "system", "content": request.system})])
        media: list[Message] = []
        for message in request.messages:
            if media and message.role != "tool":
                wire.add("user", [_encoded(_shown(media, senses))])
                media = []
            key = (id(message), senses)
            found = known.get(key)
            if found is None:
                found = (message, tuple(_encoded(one) for one in self._converted(message, senses)))
            now[key] = found
            wire.add(message.role, found[1])
            # Only a user message may contain media, and nothing may come between the results of one turn.
            if message.role in ("tool", "assistant") and not message.tool_calls and _media(message, senses):
                media.append(message)
        if media:
            wire.add("user", [_encoded(_shown(media, senses))])
        self._sent[request.cache_key] = now
        if len(self._sent) > MAX_CONVERSATIONS:
            del self._sent[next(iter(self._sent))]
        return wire.messages

    def _converted(self, message: Message, senses: Modalities) -> Iterator[JsonObject]:
        """The encoded message; nothing for an empty answer, which many servers refuse."""
        if message.role == "tool":
            yield {
                "role": "tool",
                "tool_call_id": self._call_id(message.call_id),
                "content": _tool_text(message, senses),
            }
        elif message.role == "assistant":
            if message.text or message.tool_calls or message.images:
                yield self._assistant(message)
        elif isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
        else:
            parts = [part for part in message.content if not isinstance(part, Text) or part.text.strip()]
            yield {"role": message.role, "content": [_part(part, senses) for part in parts] or ""}

    def _assistant(self, message: Message) -> JsonObject:
        wire: JsonObject = {"role": "assistant", "content": message.text or None}
        if self._options.signs_calls and not message.text:
            # Gemini stalls on null.
            del wire["content"]
        own = (message.provider_data or {}).get(self._provider) or {}
        wire |= {key: own[key] for key in ("reasoning_details", "extra_content") if key in own}
        if not message.tool_calls:
            wire["content"] = message.text or "(an image)"
            return wire
        if self._options.returns_reasoning:
            wire["reasoning_content"] = message.reasoning
        signatures = own.get("calls") or {}
        if self._options.signs_calls and not signatures:
            signatures = {message.tool_calls[0].id: FOREIGN_SIGNATURE}
        wire["tool_calls"] = [self._call(call, signatures.get(call.id)) for call in message.tool_calls]
        return wire

    def _call(self, call: RequestedCall, extra_content: Any) -> JsonObject:
        # A model may call a name that no tool can have; servers would then refuse every later request.
        name = _NOT_IN_NAMES.sub("_", call.name)[:MAX_NAME_CHARS] or "tool"
        function = {"name": name, "arguments": _valid_arguments(call.arguments)}
        wire: JsonObject = {"id": self._call_id(call.id), "type": "function", "function": function}
        if extra_content:
            wire["extra_content"] = extra_content
        return wire

    def _call_id(self, call_id: str) -> str:
        if self._options.nine_character_ids:
            return call_id if _NINE_CHARACTERS.fullmatch(call_id) else _digest(call_id)[:9]
        return call_id if len(call_id) <= MAX_ID_CHARS else f"call_{_digest(call_id)[:24]}"


class _Wire:
    """The encoded messages of a request, in order."""

    def __init__(self, *, answers_results: bool) -> None:
        self.messages: list[msgspec.Raw] = []
        self._answers_results = answers_results
        self._last = ""

    def add(self, role: str, pieces: Sequence[msgspec.Raw]) -> None:
        if not pieces:
            return
        if self._answers_results and role == "user" and self._last == "tool":
            self.messages.append(_encoded(_BETWEEN_RESULT_AND_USER))
        self.messages += pieces
        self._last = role


_Sent = dict[tuple[int, Modalities], tuple[Message, tuple[msgspec.Raw, ...]]]
"""Keyed by the message's identity, which stays unique because the message is held here, and by the media sent."""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def is_json_object(text: str) -> bool:
    """Whether the text is one complete JSON object, as a call's arguments must be."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False


def _valid_arguments(arguments: str) -> str:
    """The arguments as the model wrote them, unless they are invalid: servers would refuse every later request."""
    return arguments if is_json_object(arguments) else "{}"


def _tool_text(message: Message, senses: Modalities) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(_in_text(part, senses) for part in message.content)


def _in_text(part: Part, senses: Modalities) -> str:
    """A part of a result as text; images and audio go after the results."""
    if isinstance(part, Text):
        return part.text
    if isinstance(part, Image):
        return "[an image]"
    if isinstance(part, Video):
        return "[a video]"
    return "[a recording]" if _is_heard(part, senses) else _unheard(part)


def _part(part: Part, senses: Modalities) -> JsonObject:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Audio):
        if not _is_heard(part, senses):
            return {"type": "text", "text": _unheard(part)}
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": AUDIO_FORMATS[_kind(part)]}}
    if isinstance(part, Video):
        return {"type": "video_url", "video_url": {"url": f"data:{part.media_type};base64,{part.data}"}}
    if not senses.images:
        return {"type": "text", "text": UNSEEN_IMAGE}
    return {"type": "image_url", "image_url": {"url": _address(part)}}


def _media(message: Message, senses: Modalities) -> list[Image | Audio]:
    """The media of a message that the model accepts."""
    images = message.images if senses.images else ()
    return [*images, *(sound for sound in message.recordings if _is_heard(sound, senses))]


def _is_heard(sound: Audio, senses: Modalities) -> bool:
    return senses.audio and _kind(sound) in AUDIO_FORMATS and bool(sound.data)


def _unheard(sound: Audio) -> str:
    return f"[a recording ({sound.media_type or 'audio'}), which this model cannot hear]"


def _kind(sound: Audio) -> str:
    return sound.media_type.lower().removeprefix("audio/").partition(";")[0].strip()


def _address(image: Image) -> str:
    return image.url or f"data:{image.media_type or 'image/png'};base64,{image.data}"


def _shown(messages: Sequence[Message], senses: Modalities) -> JsonObject:
    """One user message with the media of tool results and answers, each labelled with its source."""
    parts: list[JsonObject] = []
    for message in messages:
        source = f"of {message.name} (call {message.call_id})" if message.role == "tool" else "of your answer"
        media = _media(message, senses)
        images = sum(1 for one in media if isinstance(one, Image))
        named = [_counted(images, "image"), _counted(len(media) - images, "recording")]
        parts.append({"type": "text", "text": f"The {' and '.join(filter(None, named))} {source}:"})
        parts += [_part(one, senses) for one in media]
    return {"role": "user", "content": parts}


def _counted(count: int, what: str) -> str:
    return "" if not count else what if count == 1 else f"{count} {what}s"


def _response_format(schema: JsonObject, options: OpenAIOptions) -> JsonObject:
    if not options.json_schema:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": _is_closed(schema)}}


def _is_closed(schema: Any) -> bool:
    """Whether OpenAI's strict mode accepts the schema: every object is closed and requires all its properties."""
    if isinstance(schema, list):
        return all(_is_closed(item) for item in schema)
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties", {})
    if "properties" in schema or schema.get("type") == "object":
        is_whole = set(schema.get("required", ())) == set(properties)
        if schema.get("additionalProperties") is not False or not is_whole:
            return False
    inner = [
        value for key, value in schema.items() if key not in ("properties", "required", "enum", "const", "default")
    ]
    return _is_closed([*properties.values(), *inner])


def _reasoning(request: ModelRequest, options: OpenAIOptions) -> JsonObject:
    effort = request.reasoning_effort
    if options.no_tools_while_reasoning and request.tools and _NO_TOOLS_WHILE_REASONING.match(request.model):
        return {"reasoning_effort": "none"}
    if not effort:
        return {}
    if options.reasoning == "effort":
        return {"reasoning_effort": effort}
    if options.reasoning == "openrouter":
        return {"reasoning": {"enabled": False} if effort == "none" else {"effort": effort}}
    thinking: JsonObject = {"thinking": {"type": "disabled" if effort == "none" else "enabled"}}
    if options.reasoning == "thinking_effort" and effort != "none":
        thinking["reasoning_effort"] = effort
    return thinking


def _encoded(value: Any) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:
        # A lone surrogate, which program output may contain and JSON cannot carry.
        return msgspec.Raw(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
