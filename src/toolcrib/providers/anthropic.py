"""Anthropic's messages API: the provider, and the assembly of a streamed answer with its signed thinking blocks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from toolcrib.core.messages import Message, RequestedCall
from toolcrib.core.models import (
    CallDelta,
    Dialect,
    Emit,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    ReasoningDelta,
    StopReason,
    TextDelta,
    Usage,
)
from toolcrib.core.types import JsonObject
from toolcrib.providers.anthropic_request import AnthropicRequests
from toolcrib.providers.presets import ProviderRequest, is_on_this_machine
from toolcrib.providers.streaming import (
    CONNECT_TIMEOUT_SECONDS,
    END_MARK,
    END_SECONDS,
    NO_KEY,
    REST_SECONDS,
    UNFINISHED,
    ServerEvent,
    StreamingProvider,
    read_json,
    taken_ids,
)

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream


_STOPS: dict[str, StopReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
    "tool_use": "tool_calls",
}
BETWEEN_TEXTS = "\n\n"


class AnthropicAnswer:
    """Collects the events of one answer, emits each new piece, and returns the complete response."""

    def __init__(self, emit: Emit, *, model: str, taken_ids: Collection[str] = ()) -> None:
        self._emit = emit
        self._asked_model = model
        self._taken_ids = set(taken_ids)
        self._model = ""
        self._text: list[str] = []
        self._chars = 0
        self._thoughts: list[str] = []
        self._calls: list[_Call] = []
        self._blocks: dict[int, JsonObject] = {}
        self._order: list[JsonObject] = []
        self._usage: JsonObject = {}
        self._refusal = ""
        self.stop_reason = ""
        self.has_begun = False

    @property
    def is_over(self) -> bool:
        return bool(self.stop_reason)

    @property
    def is_usable(self) -> bool:
        return bool(self.stop_reason)

    def add(self, event: Any) -> None:
        """Add one event of the stream. Unknown events are ignored, because the API may add new ones."""
        if not isinstance(event, dict):
            return
        self.has_begun = True
        kind = event.get("type")
        if kind == "content_block_delta":
            block = self._blocks.get(_number(event.get("index")))
            if block is not None and isinstance(event.get("delta"), dict):
                self._add_delta(block, event["delta"])
        elif kind == "content_block_start":
            self._begin(_number(event.get("index")), event.get("content_block"))
        elif kind == "message_start":
            self._note(event.get("message"))
        elif kind == "message_delta":
            self._note(event.get("delta"))
            self._note({"usage": event.get("usage")})
        elif kind == "message_stop":
            self.end()
        elif kind == "message":
            self._add_whole(event)

    def end(self) -> None:
        # Some servers give no stop reason.
        self.stop_reason = self.stop_reason or "end_turn"

    def _add_whole(self, message: JsonObject) -> None:
        """Add a complete answer, from a server that ignores the request to stream."""
        self._note(message)
        self.end()
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
            self._begin(index, block)

    def _note(self, about: Any) -> None:
        if not isinstance(about, dict):
            return
        if isinstance(about.get("model"), str):
            self._model = about["model"]
        if isinstance(about.get("stop_reason"), str):
            self.stop_reason = about["stop_reason"]
        details = about.get("stop_details")
        if isinstance(details, dict) and isinstance(details.get("explanation"), str):
            self._refusal = details["explanation"]
        usage = about.get("usage")
        if isinstance(usage, dict):
            # Counts are cumulative; a later event may leave some out.
            self._usage |= {name: count for name, count in usage.items() if count is not None}

    def _begin(self, index: int, start: Any) -> None:
        if not isinstance(start, dict):
            return
        block: JsonObject = {"type": start.get("type")}
        self._blocks[index] = block
        if block["type"] == "text":
            if self._order and "text" not in self._order[-1] and self._chars:
                self._say(BETWEEN_TEXTS)
            self._order.append({"text": [self._chars, self._chars]})
            self._say(start.get("text"))
        elif block["type"] == "thinking":
            block |= {"thinking": "", "signature": start.get("signature") or ""}
            self._order.append(block)
            self._think(block, start.get("thinking"))
        elif block["type"] == "redacted_thinking":
            block["data"] = start.get("data") or ""
            self._order.append(block)
        elif block["type"] == "tool_use":
            self._call(block, start)

    def _call(self, block: JsonObject, start: JsonObject) -> None:
        call = _Call(self._unique(start.get("id")), str(start.get("name") or ""))
        block["call"] = len(self._calls)
        self._order.append({"call": len(self._calls)})
        self._calls.append(call)
        self._emit(CallDelta(index=block["call"], id=call.id, name=call.name))
        # Usually an empty object, because arguments arrive in pieces; some servers send them all here, some do both.
        call.given = start.get("input") or {}

    def _add_delta(self, block: JsonObject, delta: JsonObject) -> None:
        kind = delta.get("type")
        if kind == "text_delta":
            self._say(delta.get("text"))
        elif kind == "thinking_delta" and "thinking" in block:
            self._think(block, delta.get("thinking"))
        elif kind == "signature_delta" and "signature" in block:
            block["signature"] += delta.get("signature") or ""
        elif kind == "input_json_delta" and "call" in block:
            self._argue(block, delta.get("partial_json"))

    def _say(self, text: Any) -> None:
        if isinstance(text, str) and text:
            self._text.append(text)
            self._chars += len(text)
            if self._order and "text" in self._order[-1]:
                self._order[-1]["text"][1] = self._chars
            self._emit(TextDelta(text))

    def _think(self, block: JsonObject, text: Any) -> None:
        if isinstance(text, str) and text:
            if self._thoughts and not block["thinking"]:
                self._thoughts.append(BETWEEN_TEXTS)
            block["thinking"] += text
            self._thoughts.append(text)
            self._emit(ReasoningDelta(text))

    def _argue(self, block: JsonObject, text: Any) -> None:
        if isinstance(text, str) and text:
            self._calls[block["call"]].arguments.append(text)
            self._emit(CallDelta(index=block["call"], arguments=text))

    def _unique(self, call_id: Any) -> str:
        """An id that no other call of the conversation has: results refer to calls by id."""
        unique = call_id if isinstance(call_id, str) else ""
        while not unique or unique in self._taken_ids:
            unique = f"toolu_{uuid.uuid4().hex[:24]}"
        self._taken_ids.add(unique)
        return unique

    def response(self, provider: str) -> ModelResponse:
        """The complete answer; call once, at the end of the stream."""
        if not self._text and self._refusal:
            self._say(self._refusal)
        for at, call in enumerate(self._calls):
            if call.given and not call.arguments:
                self._argue({"call": at}, json.dumps(call.given, ensure_ascii=False))
        message = Message(
            role="assistant",
            content="".join(self._text),
            tool_calls=tuple(self._finished(call) for call in self._calls),
            reasoning="".join(self._thoughts),
            provider_data=self._provider_data(provider),
        )
        stop = _STOPS.get(self.stop_reason, "end")
        if stop == "end" and self._calls:
            stop = "tool_calls"
        model = self._model or self._asked_model
        return ModelResponse(message=message, usage=self._used(), stop=stop, model=model, provider=provider)

    def _finished(self, call: _Call) -> RequestedCall:
        reached_limit = _STOPS.get(self.stop_reason) == "length"
        missing = UNFINISHED if reached_limit and call is self._calls[-1] else "{}"
        return RequestedCall(id=call.id, name=call.name, arguments="".join(call.arguments) or missing)

    def _provider_data(self, provider: str) -> JsonObject | None:
        """The signed thinking blocks and their positions, to send back to the same model."""
        if not any("type" in block for block in self._order):
            return None
        return {provider: {"model": self._asked_model, "order": self._order}}

    def _used(self) -> Usage:
        cached, written = (
            _number(self._usage.get("cache_read_input_tokens")),
            _number(self._usage.get("cache_creation_input_tokens")),
        )
        details = self._usage.get("output_tokens_details")
        return Usage(
            # The API counts only uncached tokens as input.
            input_tokens=_number(self._usage.get("input_tokens")) + cached + written,
            output_tokens=_number(self._usage.get("output_tokens")),
            cached_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=_number(details.get("thinking_tokens")) if isinstance(details, dict) else 0,
        )


class _Call:
    """A tool call whose pieces are still arriving."""

    __slots__ = ("arguments", "given", "id", "name")

    def __init__(self, id: str, name: str) -> None:
        self.id = id
        self.name = name
        self.arguments: list[str] = []
        self.given: Any = None


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


BASE_URL = "https://api.anthropic.com"


class AnthropicMessages(StreamingProvider["AsyncAnthropic"]):
    """A provider for servers with the messages API; see Provider."""

    api_mode = "anthropic_messages"
    dialect: Dialect = "anthropic"
    package = "anthropic"
    advice = "without /v1/messages, which toolcrib appends"

    def __init__(
        self,
        *,
        name: str = "anthropic",
        base_url: str = BASE_URL,
        api_key: str,
        profile: Callable[[str], ModelProfile],
        default_headers: Mapping[str, str] | None = None,
        key_variable: str = "ANTHROPIC_API_KEY",
    ) -> None:
        super().__init__(
            name=name,
            # The API's path starts with /v1, which many people include in the address.
            base_url=(base_url or BASE_URL).rstrip("/").removesuffix("/v1"),
            api_key=api_key,
            profile=profile,
            default_headers=default_headers,
            key_variable=key_variable,
        )
        self._requests = AnthropicRequests(name)

    def _body(self, request: ModelRequest) -> bytes:
        return self._requests.body(request, self._profile(request.model), self._shaped)

    def _begun(self, request: ModelRequest, emit: Emit) -> AnthropicAnswer:
        return AnthropicAnswer(emit, model=request.model, taken_ids=taken_ids(request))

    async def _opened(self, client: AsyncAnthropic, body: bytes, timeout_seconds: float) -> AsyncStream[object]:
        sdk = self._sdk()
        # Not `messages.create`, which copies the whole history through its own types.
        stream: AsyncStream[object] = await client.post(
            "/v1/messages",
            content=body,
            cast_to=object,
            stream=True,
            stream_cls=sdk.AsyncStream[object],
            options={
                "headers": {"content-type": "application/json"},
                "timeout": sdk.Timeout(timeout_seconds, connect=min(CONNECT_TIMEOUT_SECONDS, timeout_seconds)),
            },
        )
        return stream

    def _take(self, event: ServerEvent, answer: AnthropicAnswer) -> float | None:
        if event.data.startswith(END_MARK):
            answer.end()
            return END_SECONDS
        found = read_json(event)
        answer.add(found)
        if isinstance(found, dict) and found.get("type") == "message_stop":
            return END_SECONDS
        return REST_SECONDS if answer.is_over else None

    def _shaped(self, schema: JsonObject) -> JsonObject:
        """The schema in the form that structured output accepts; unchanged if the SDK can't read it."""
        try:
            shaped: JsonObject = self._sdk().transform_schema(schema)
        except (ValueError, TypeError, AttributeError, AssertionError):
            return schema
        return shaped

    def _new_client(self) -> AsyncAnthropic:
        sdk = self._sdk()
        key = self._api_key or NO_KEY
        # Other services with this protocol expect the key in the header it had originally.
        headers = {} if self.base_url == BASE_URL else {"X-Api-Key": key}
        options: dict[str, Any] = {}
        if is_on_this_machine(self.base_url):
            # A proxy for outside traffic would not reach a server on this machine, and loading the
            # system's certificates takes longer than everything else.
            encrypted = not self.base_url.lower().startswith("http://")
            options["http_client"] = sdk.DefaultAsyncHttpxClient(trust_env=False, verify=encrypted)
        client: AsyncAnthropic = sdk.AsyncAnthropic(
            api_key=key, base_url=self.base_url, max_retries=0, default_headers=headers | self._headers, **options
        )
        return client

    def _sdk(self) -> ModuleType:
        try:
            # Importing costs over a second of CPU; only users of such a server pay for it.
            import anthropic  # noqa: PLC0415
        except ImportError as error:
            raise self._missing_package() from error
        return anthropic


def create_from(request: ProviderRequest) -> AnthropicMessages:
    return AnthropicMessages(
        name=request.preset.name,
        base_url=request.base_url,
        api_key=request.api_key,
        profile=request.profile,
        key_variable=request.key_variable,
    )
