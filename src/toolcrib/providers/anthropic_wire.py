"""Requests as Anthropic's messages API takes them: alternating turns of content blocks, with marks for its cache."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from toolcrib.core.messages import Audio, Image, Message, Part, RequestedCall, Text
from toolcrib.core.models import ModelProfile, ModelRequest
from toolcrib.core.types import JsonObject
from toolcrib.providers.anthropic_families import family_of, is_thinking, thinking_fields
from toolcrib.providers.anthropic_turns import Turns

MAX_CONVERSATIONS = 8
IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
NO_OUTPUT = "(no output)"
EPHEMERAL = {"type": "ephemeral"}
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")

ShapeSchema = Callable[[JsonObject], JsonObject]
"""Any JSON Schema into the part of it that structured output takes."""
Blocks = tuple[bytes, ...]


class WireRequests:
    """Turns requests into bytes. Messages that were sent before are not converted again."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._sent: dict[tuple[str, str, bool], dict[int, tuple[Message, Blocks]]] = {}

    def body(self, request: ModelRequest, profile: ModelProfile, shape_schema: ShapeSchema) -> bytes:
        """The JSON text of a streaming request: the same bytes for the same request."""
        family = family_of(request.model)
        max_tokens = request.max_output_tokens or min(family.max_tokens, max(1, profile.context_window // 2))
        thinking = thinking_fields(request, family, max_tokens)
        if not family.thinks_adaptively and not self._may_think(request):
            thinking = {}
        body: JsonObject = {"model": request.model, "max_tokens": max_tokens, "stream": True, **thinking}
        if request.response_schema is not None and family.promises_schemas:
            answer = {"type": "json_schema", "schema": shape_schema(request.response_schema)}
            body["output_config"] = {**body.get("output_config", {}), "format": answer}
        if request.temperature is not None and family.takes_temperature and not is_thinking(thinking):
            body["temperature"] = request.temperature
        body |= _tool_fields(request)
        if request.system.strip():
            body["system"] = [{"type": "text", "text": request.system, "cache_control": EPHEMERAL}]
        body["messages"] = self._messages(request, profile.sees_images)
        return encoded(body)

    def _messages(self, request: ModelRequest, sees_images: bool) -> list[JsonObject]:
        """The turns; messages of the last request are known by identity, as they never change."""
        key = (request.cache_key, request.model, sees_images)
        known, now = self._sent.pop(key, {}), {}
        turns = Turns()
        for message in request.messages:
            found = known.get(id(message))
            if found is None:
                found = (message, self._converted(message, request.model, sees_images))
            # The message is held beside its blocks, so that no other can come to have its identity.
            now[id(message)] = found
            self._add(turns, message, found[1], request.model, sees_images)
        self._sent[key] = now
        if len(self._sent) > MAX_CONVERSATIONS:
            del self._sent[next(iter(self._sent))]
        return turns.finished()

    def _add(self, turns: Turns, message: Message, blocks: Blocks, model: str, sees_images: bool) -> None:
        if message.role == "assistant":
            calls = [(call.id, wire_id(call.id)) for call in message.tool_calls]
            fresh = turns.unused([wire for _, wire in calls])
            if fresh is not None:
                # Some servers number the calls of each answer anew; here an id stands for one call only.
                calls = [(given, new) for (given, _), new in zip(calls, fresh, strict=True)]
                blocks = tuple(self._assistant(message, model, fresh))
            turns.add_answer(blocks, calls)
        elif message.role == "tool":
            taken = turns.call_for(message.call_id)
            if taken is None:
                turns.add_said([_text(f"Result of {message.name or 'a tool'}, without its call:"), *_said(message)])
            elif taken != wire_id(message.call_id):
                turns.add_result(_result(message, taken, sees_images))
            else:
                turns.add_result(blocks[0])
        else:
            turns.add_said(blocks)

    def _converted(self, message: Message, model: str, sees_images: bool) -> Blocks:
        if message.role == "assistant":
            return tuple(self._assistant(message, model, [wire_id(call.id) for call in message.tool_calls]))
        if message.role == "tool":
            return (_result(message, wire_id(message.call_id), sees_images),)
        return tuple(_parts(message, sees_images))

    def _assistant(self, message: Message, model: str, ids: list[str]) -> Iterator[bytes]:
        """An answer with its calls; what was thought goes back only to the model that thought it."""
        if not message.tool_calls and not message.text.strip() and not message.images:
            return
        order = self._kept(message, model).get("order") or []
        if not _is_whole(order, message):
            thoughts = [one for one in order if "type" in one]
            order = [*thoughts, {"text": [0, None]}, *({"call": at} for at in range(len(ids)))]
        for one in order:
            if "type" in one:
                yield encoded(one)
            elif "call" in one:
                yield _call(message.tool_calls[one["call"]], ids[one["call"]])
            elif (text := message.text[slice(*one["text"])]).strip():
                yield _text(text)
        if message.images:
            yield _text("[an image]")

    def _kept(self, message: Message, model: str) -> JsonObject:
        kept = (message.provider_data or {}).get(self._provider)
        return kept if isinstance(kept, dict) and kept.get("model") == model else {}

    def _may_think(self, request: ModelRequest) -> bool:
        """With a budget, a turn that has begun with calls but without thoughts must end without them."""
        last = next((message for message in reversed(request.messages) if message.role == "assistant"), None)
        return last is None or not last.tool_calls or bool(self._kept(last, request.model))


def _is_whole(order: Any, message: Message) -> bool:
    """Whether a remembered order of blocks still fits the message: somebody may have changed its text or calls."""
    if not order or not isinstance(message.content, str):
        return False
    calls = [one["call"] for one in order if "call" in one]
    ends = [one["text"][1] for one in order if "text" in one]
    return calls == list(range(len(message.tool_calls))) and (ends[-1] if ends else 0) == len(message.content)


def _tool_fields(request: ModelRequest) -> JsonObject:
    if request.tools:
        *others, last = request.tools
        fields: JsonObject = {"tools": [*others, {**last, "cache_control": EPHEMERAL}]}
        if request.tool_choice != "auto":
            fields["tool_choice"] = {"type": "any" if request.tool_choice == "required" else "none"}
        return fields
    # Calls in the history are refused where no tools are declared.
    names = sorted({wire_name(call.name) for message in request.messages for call in message.tool_calls})
    if not names:
        return {}
    gone = "This tool is not available any more."
    tools = [{"name": name, "description": gone, "input_schema": {"type": "object"}} for name in names]
    return {"tools": tools, "tool_choice": {"type": "none"}}


def wire_id(call_id: str) -> str:
    """The id of a call in characters that the API takes; the same for the same id, always."""
    if _CALL_ID.fullmatch(call_id):
        return call_id
    return f"toolu_{hashlib.sha256(call_id.encode('utf-8', 'replace')).hexdigest()[:24]}"


def wire_name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:64] or "tool"


def _call(call: RequestedCall, call_id: str) -> bytes:
    try:
        is_object = isinstance(msgspec.json.decode(call.arguments), dict)
    except (msgspec.DecodeError, UnicodeEncodeError):
        is_object = False
    # The model's own text, so that the cache hits; the API takes nothing but an object.
    arguments = msgspec.Raw(call.arguments.encode()) if is_object else {}
    return encoded({"type": "tool_use", "id": call_id, "name": wire_name(call.name), "input": arguments})


def _result(message: Message, call_id: str, sees_images: bool) -> bytes:
    given = (Text(message.content),) if isinstance(message.content, str) else message.content
    parts = [_part(part, sees_images) for part in _sayable(given)]
    # The API takes a text alone as it is, and nothing blank of what failed.
    content = message.content if isinstance(message.content, str) and parts else parts or NO_OUTPUT
    block: JsonObject = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    # What failed may hold no images: its text says that it failed.
    if message.status != "ok" and all(part["type"] == "text" for part in parts):
        block["is_error"] = True
    return encoded(block)


def _said(message: Message) -> Iterable[bytes]:
    return [_text(message.text)] if message.text.strip() else []


def _parts(message: Message, sees_images: bool) -> Iterator[bytes]:
    parts = (Text(message.content),) if isinstance(message.content, str) else message.content
    for part in _sayable(parts):
        yield encoded(_part(part, sees_images))


def _sayable(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts without blank texts, which the API refuses."""
    return (part for part in parts if not isinstance(part, Text) or part.text.strip())


def _part(part: Part, sees_images: bool) -> JsonObject:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Audio):
        # The API takes none.
        return {"type": "text", "text": f"[a recording ({part.media_type or 'audio'}), which this model cannot hear]"}
    source = _source(part) if sees_images else None
    if source is None:
        return {"type": "text", "text": f"[an image{' of ' + part.media_type if part.media_type else ''}, not shown]"}
    return {"type": "image", "source": source}


def _source(image: Image) -> JsonObject | None:
    if image.url:
        # The API fetches nothing else.
        return {"type": "url", "url": image.url} if image.url.lower().startswith("https://") else None
    media_type = image.media_type.lower().replace("image/jpg", "image/jpeg") or "image/png"
    if media_type not in IMAGE_TYPES or not image.data:
        return None
    return {"type": "base64", "media_type": media_type, "data": image.data}


def _text(text: str) -> bytes:
    return encoded({"type": "text", "text": text})


def encoded(value: Any) -> bytes:
    """The value as JSON text."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        # Half a surrogate pair, as the output of a program may hold: no JSON text can carry it.
        return json.dumps(value, ensure_ascii=False, default=_raw).encode("utf-8", "replace")


def _raw(value: Any) -> Any:
    return json.loads(bytes(value))
