"""Builds requests to Anthropic's messages API, with what each Claude generation accepts and where its cache reaches."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from toolcrib.core.messages import Audio, Image, Message, Part, RequestedCall, Text, Video
from toolcrib.core.models import ModelProfile, ModelRequest
from toolcrib.core.types import JsonObject

_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_NEWEST = (99, 0)
_BUDGETS = {"low": 2_048, "medium": 8_192, "high": 24_576}
MIN_BUDGET_TOKENS = 1_024
OTHER_MAX_TOKENS = 8_192

# The first generation in this list that the model has reached applies.
_MAX_TOKENS: tuple[tuple[tuple[int, int], int], ...] = (
    ((4, 6), 64_000),
    ((4, 0), 32_000),
    ((3, 7), 32_000),
    ((3, 5), 8_192),
    ((0, 0), 4_096),
)


class ModelFamily(NamedTuple):
    """What a model's name tells about it."""

    version: tuple[int, int] | None
    """None: another vendor's model behind the same protocol."""
    always_thinks: bool = False

    @property
    def max_tokens(self) -> int:
        if self.version is None:
            return OTHER_MAX_TOKENS
        return next(tokens for first, tokens in _MAX_TOKENS if self.version >= first)

    @property
    def thinks_adaptively(self) -> bool:
        """The model decides how long to think, guided by an effort level; older models get a token budget."""
        return self.version is not None and self.version >= (4, 6)

    @property
    def can_think(self) -> bool:
        return self.version is None or self.version >= (3, 7)

    @property
    def takes_temperature(self) -> bool:
        return self.version is None or self.version < (4, 7)

    @property
    def promises_schemas(self) -> bool:
        return self.version is not None and self.version >= (4, 5)


def family_of(model: str) -> ModelFamily:
    """The family of a model name, including the spellings of cloud services. A name without a number is the newest."""
    name = model.lower()
    found = _VERSION.search(name)
    if found is None:
        return (
            ModelFamily(_NEWEST, always_thinks=_is_always_on(name, _NEWEST)) if "claude" in name else ModelFamily(None)
        )
    version = (int(found[1]), int(found[2] or 0))
    return ModelFamily(version, always_thinks=_is_always_on(name, version))


def _is_always_on(name: str, version: tuple[int, int]) -> bool:
    return "fable" in name or "mythos" in name or ("opus" in name and version >= (5, 5))


def thinking_fields(request: ModelRequest, family: ModelFamily, max_tokens: int) -> JsonObject:
    """The request fields that control thinking; none if the provider decides."""
    effort = request.reasoning_effort
    if not effort or not family.can_think:
        return {}
    if family.thinks_adaptively:
        if effort != "none":
            thinking = {"type": "adaptive", "display": "summarized"}
            return {"thinking": thinking, "output_config": {"effort": effort}}
        return {"output_config": {"effort": "low"}} if family.always_thinks else {"thinking": {"type": "disabled"}}
    if effort == "none":
        return {"thinking": {"type": "disabled"}} if family.version is None else {}
    budget = min(_BUDGETS[effort], max_tokens // 2)
    # A token budget cannot be combined with a forced call.
    if budget < MIN_BUDGET_TOKENS or request.tool_choice == "required":
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def is_thinking(fields: dict[str, Any]) -> bool:
    return fields.get("thinking", {}).get("type") in ("adaptive", "enabled")


CACHED_TURNS = 2
"""The next request reads the cache up to the last turn; this request reads it up to the turn before."""
_CACHE_MARK = b',"cache_control":{"type":"ephemeral"}}'
_BEGINNING = b'{"type":"text","text":"(The conversation begins with your answer.)"}'
_GO_ON = b'{"type":"text","text":"Go on."}'


class _OpenCall:
    """A call without a result yet."""

    __slots__ = ("given_id", "result", "wire_id")

    def __init__(self, given_id: str, wire_id: str) -> None:
        self.given_id = given_id
        self.wire_id = wire_id
        self.result: bytes | None = None


class MessageTurns:
    """Groups encoded blocks, given in conversation order, into turns."""

    def __init__(self) -> None:
        self._turns: list[tuple[str, list[bytes]]] = []
        self._open: list[_OpenCall] = []
        self._user_blocks: list[bytes] = []
        self._used_ids: set[str] = set()
        self._awaited: _OpenCall | None = None

    def unused(self, ids: Sequence[str]) -> list[str] | None:
        """New ids for these calls if one is already taken; None if they can stay."""
        if self._used_ids.isdisjoint(ids) and len(set(ids)) == len(ids):
            return None
        taken = set(self._used_ids)
        fresh: list[str] = []
        for one in ids:
            unique, number = one, 2
            while unique in taken:
                unique, number = f"{one[:56]}_{number}", number + 1
            taken.add(unique)
            fresh.append(unique)
        return fresh

    def add_answer(self, blocks: Sequence[bytes], calls: Iterable[tuple[str, str]]) -> None:
        """Add an answer of the model; `calls` maps the conversation's call ids to the request's."""
        if not blocks:
            return
        self._close_user_turn()
        self._extend("assistant", blocks)
        self._open = [_OpenCall(given, wire) for given, wire in calls]
        self._used_ids.update(call.wire_id for call in self._open)

    def call_for(self, given_id: str) -> str | None:
        """The request's id of the call that a result belongs to; None if no call is open under that id."""
        self._awaited = next((call for call in self._open if call.given_id == given_id and call.result is None), None)
        return self._awaited.wire_id if self._awaited is not None else None

    def add_result(self, block: bytes) -> None:
        """Add the result of the call that `call_for` returned last."""
        if self._awaited is not None:
            self._awaited.result = block

    def add_user(self, blocks: Iterable[bytes]) -> None:
        """Add a person's message; it goes after all results, wherever it arrived."""
        self._user_blocks += blocks

    def finished(self) -> list[JsonObject]:
        """The `messages` of the request, with cache marks."""
        self._close_user_turn()
        if not self._turns or self._turns[-1][0] == "assistant":
            self._extend("user", [_GO_ON])
        if self._turns[0][0] == "assistant":
            self._turns.insert(0, ("user", [_BEGINNING]))
        last_of_user = [blocks for role, blocks in self._turns if role == "user"][-CACHED_TURNS:]
        for blocks in last_of_user:
            blocks[-1] = blocks[-1][:-1] + _CACHE_MARK
        return [{"role": role, "content": [msgspec.Raw(block) for block in blocks]} for role, blocks in self._turns]

    def _close_user_turn(self) -> None:
        results = [call.result or _missing(call.wire_id) for call in self._open]
        self._extend("user", [*results, *self._user_blocks])
        self._open, self._user_blocks = [], []

    def _extend(self, role: str, blocks: Sequence[bytes]) -> None:
        if not blocks:
            return
        if self._turns and self._turns[-1][0] == role:
            self._turns[-1][1].extend(blocks)
        else:
            self._turns.append((role, list(blocks)))


def _missing(call_id: str) -> bytes:
    text = "The result of this call is unknown."
    return msgspec.json.encode({"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": True})


MAX_CONVERSATIONS = 8
IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
NO_OUTPUT = "(no output)"
EPHEMERAL = {"type": "ephemeral"}
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")

ShapeSchema = Callable[[JsonObject], JsonObject]
"""Converts any JSON Schema to the subset that structured output accepts."""
Blocks = tuple[bytes, ...]


class AnthropicRequests:
    """Encodes requests as bytes. Messages sent before are not converted again."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._sent: dict[tuple[str, str, bool], dict[int, tuple[Message, Blocks]]] = {}

    def body(self, request: ModelRequest, profile: ModelProfile, shape_schema: ShapeSchema) -> bytes:
        """The JSON text of a streaming request: the same request always gives the same bytes."""
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
        """The turns; messages of the previous request are recognised by identity, because they never change."""
        key = (request.cache_key, request.model, sees_images)
        known, now = self._sent.pop(key, {}), {}
        turns = MessageTurns()
        for message in request.messages:
            found = known.get(id(message))
            if found is None:
                found = (message, self._converted(message, request.model, sees_images))
            # Hold on to the message so that no other object can get its identity.
            now[id(message)] = found
            self._add(turns, message, found[1], request.model, sees_images)
        self._sent[key] = now
        if len(self._sent) > MAX_CONVERSATIONS:
            del self._sent[next(iter(self._sent))]
        return turns.finished()

    def _add(self, turns: MessageTurns, message: Message, blocks: Blocks, model: str, sees_images: bool) -> None:
        if message.role == "assistant":
            calls = [(call.id, wire_id(call.id)) for call in message.tool_calls]
            fresh = turns.unused([wire for _, wire in calls])
            if fresh is not None:
                # Some servers restart call ids with each answer; here an id must belong to one call.
                calls = [(given, new) for (given, _), new in zip(calls, fresh, strict=True)]
                blocks = tuple(self._assistant(message, model, fresh))
            turns.add_answer(blocks, calls)
        elif message.role == "tool":
            taken = turns.call_for(message.call_id)
            if taken is None:
                turns.add_user(
                    [_text(f"Result of {message.name or 'a tool'}, without its call:"), *_text_blocks(message)]
                )
            elif taken != wire_id(message.call_id):
                turns.add_result(_result(message, taken, sees_images))
            else:
                turns.add_result(blocks[0])
        else:
            turns.add_user(blocks)

    def _converted(self, message: Message, model: str, sees_images: bool) -> Blocks:
        if message.role == "assistant":
            return tuple(self._assistant(message, model, [wire_id(call.id) for call in message.tool_calls]))
        if message.role == "tool":
            return (_result(message, wire_id(message.call_id), sees_images),)
        return tuple(_parts(message, sees_images))

    def _assistant(self, message: Message, model: str, ids: list[str]) -> Iterator[bytes]:
        """An answer with its calls; thinking blocks go back only to the model that produced them."""
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
        """With a token budget, a turn that starts with calls and without thinking must end without thinking."""
        last = next((message for message in reversed(request.messages) if message.role == "assistant"), None)
        return last is None or not last.tool_calls or bool(self._kept(last, request.model))


def _is_whole(order: Any, message: Message) -> bool:
    """Whether a stored order of blocks still matches the message: its text or calls may have been edited."""
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
    # The API refuses calls in the history unless tools are declared.
    names = sorted({wire_name(call.name) for message in request.messages for call in message.tool_calls})
    if not names:
        return {}
    gone = "This tool is no longer available."
    tools = [{"name": name, "description": gone, "input_schema": {"type": "object"}} for name in names]
    return {"tools": tools, "tool_choice": {"type": "none"}}


def wire_id(call_id: str) -> str:
    """A call id in characters that the API accepts; the same id always gives the same result."""
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
    # Send the model's own text so that the cache hits; but the API accepts only an object.
    arguments = msgspec.Raw(call.arguments.encode()) if is_object else {}
    return encoded({"type": "tool_use", "id": call_id, "name": wire_name(call.name), "input": arguments})


def _result(message: Message, call_id: str, sees_images: bool) -> bytes:
    given = (Text(message.content),) if isinstance(message.content, str) else message.content
    parts = [_part(part, sees_images) for part in _sayable(given)]
    # The API accepts a single text as is, but no blank text in an error result.
    content = message.content if isinstance(message.content, str) and parts else parts or NO_OUTPUT
    block: JsonObject = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    # An error result may not contain images; its text says that it failed.
    if message.status != "ok" and all(part["type"] == "text" for part in parts):
        block["is_error"] = True
    return encoded(block)


def _text_blocks(message: Message) -> Iterable[bytes]:
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
        # The API accepts no audio.
        return {"type": "text", "text": f"[a recording ({part.media_type or 'audio'}), which this model cannot hear]"}
    if isinstance(part, Video):
        return {"type": "text", "text": f"[a video ({part.media_type}), which this model cannot watch]"}
    source = _source(part) if sees_images else None
    if source is None:
        return {"type": "text", "text": f"[an image{' of ' + part.media_type if part.media_type else ''}, not shown]"}
    return {"type": "image", "source": source}


def _source(image: Image) -> JsonObject | None:
    if image.url:
        # The API fetches no other addresses.
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
        # A lone surrogate, which program output may contain and JSON cannot carry.
        return json.dumps(value, ensure_ascii=False, default=_raw).encode("utf-8", "replace")


def _raw(value: Any) -> Any:
    return json.loads(bytes(value))
