"""OpenAI's chat completions: the provider, and the assembly of a streamed answer with its calls and reasoning."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from toolcrib.core.messages import Image, Message, Part, RequestedCall, Text, image_at
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
from toolcrib.providers.openai_request import OpenAIOptions, OpenAIRequests, is_json_object
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
    from openai import AsyncOpenAI, AsyncStream


_TAGS = {"<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>"}

Piece = tuple[Literal["reasoning", "text"], str]


class ThinkingTags:
    """Splits a streamed text at `<think>…</think>`, which counts only at its start; tags may arrive in pieces."""

    def __init__(self) -> None:
        self._state: Literal["start", "thinking", "answer"] = "start"
        self._held = ""
        self._closing = ""
        self._has_thought = False

    def feed(self, text: str) -> Iterator[Piece]:
        """The parts that are certain after this piece of the text."""
        if self._state == "answer":
            yield "text", text
            return
        self._held += text
        before: tuple[str, str] | None = None
        while self._held and before != (self._state, self._held):
            before = (self._state, self._held)
            yield from self._opened() if self._state == "start" else self._thought()

    def end(self) -> Iterator[Piece]:
        """The held-back rest, at the end of the text."""
        held, self._held = self._held, ""
        if held and not (self._state == "start" and self._has_thought and not held.strip()):
            yield ("reasoning" if self._state == "thinking" else "text"), held

    def _opened(self) -> Iterator[Piece]:
        shown = self._held.lstrip()
        for opening, closing in _TAGS.items():
            if shown.startswith(opening):
                self._state, self._closing = "thinking", closing
                self._held = shown[len(opening) :].lstrip("\n")
                self._has_thought = True
                return
        if any(opening.startswith(shown) for opening in _TAGS):
            return
        # The blank lines between reasoning and answer belong to neither.
        answer = shown if self._has_thought else self._held
        self._state, self._held = "answer", ""
        yield "text", answer

    def _thought(self) -> Iterator[Piece]:
        thought, closing, rest = self._held.partition(self._closing)
        if closing:
            self._state, self._held = "start", rest
        else:
            kept = _beginning_at_end(thought, self._closing)
            self._held = thought[len(thought) - kept :] if kept else ""
            thought = thought[: len(thought) - kept]
        if thought:
            yield "reasoning", thought


def _beginning_at_end(text: str, tag: str) -> int:
    """How many characters at the end of the text may be the start of the tag."""
    return next((length for length in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-length:])), 0)


MAX_COUNT = 10**12
"""A larger token count, or a non-number (`Infinity`, `NaN`), is a server bug."""

_THOUGHTS = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
_STOPS: dict[str, StopReason] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "refused",
    "safety": "refused",
    "refusal": "refused",
}


class _Call:
    """A tool call whose pieces are still arriving."""

    __slots__ = ("arguments", "extra_content", "given_id", "id", "name")

    def __init__(self) -> None:
        self.given_id = ""
        self.id = ""
        self.name = ""
        self.arguments = ""
        self.extra_content: Any = None


class OpenAIAnswer:
    """Collects the chunks of one answer, emits each new piece, and returns the complete response."""

    def __init__(self, emit: Emit, *, taken_ids: Collection[str] = ()) -> None:
        self._emit = emit
        self._taken_ids = set(taken_ids)
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._details: list[JsonObject] = []
        self._extra_content: Any = None
        self._images: list[Image] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._tags = ThinkingTags()
        self._refused = False
        self._usage: JsonObject = {}
        self._model = ""
        self.finish_reason = ""
        self.has_begun = False
        self.is_over = False
        """Only the usage may be missing: the server gave a stop reason or the end mark."""

    def add(self, chunk: Any) -> None:
        """Add one event of the stream, or a complete answer from a server that does not stream."""
        if not isinstance(chunk, dict):
            return
        self.has_begun = True
        self._model = _text(chunk, "model") or self._model
        self._note_usage(chunk)
        choice = next(_objects(chunk, "choices"), None)
        if choice is None:
            return
        self._note_usage(choice)
        self._add_delta(_object(choice, "delta") or _object(choice, "message"))
        self.finish_reason = _text(choice, "finish_reason") or self.finish_reason
        self.is_over = self.is_over or bool(self.finish_reason)

    def end(self) -> None:
        self.is_over = True

    @property
    def is_usable(self) -> bool:
        """Whether the server finished its answer. Some give no reason, only the end mark."""
        if not self.is_over or self.finish_reason:
            return self.is_over and self.finish_reason != "error"
        if self._calls:
            return all(call.name and is_json_object(call.arguments) for call in self._calls)
        return bool(self._text or self._images)

    def response(self, provider: str) -> ModelResponse:
        """The complete answer; call once, at the end of the stream."""
        self._say(self._tags.end())
        calls = tuple(self._finished(at, call) for at, call in enumerate(self._calls) if call.name)
        message = Message(
            role="assistant",
            content=self._content(),
            tool_calls=calls,
            reasoning="".join(self._reasoning).strip(),
            provider_data=self._provider_data(provider),
        )
        usage = read_usage(self._usage)
        return ModelResponse(message=message, usage=usage, stop=self._stop(calls), model=self._model, provider=provider)

    def _add_delta(self, delta: JsonObject) -> None:
        self._add_reasoning(delta)
        if content := _text(delta, "content"):
            self._say(self._tags.feed(content))
        if refusal := _text(delta, "refusal"):
            self._refused = True
            self._say([("text", refusal)])
        for part in (*_objects(delta, "content"), *_objects(delta, "images")):
            self._add_part(part)
        for call in _objects(delta, "tool_calls"):
            self._add_call(call)
        if delta.get("extra_content"):
            self._extra_content = delta["extra_content"]

    def _say(self, pieces: Iterable[Piece]) -> None:
        for kind, text in pieces:
            if not text:
                continue
            if kind == "text":
                self._text.append(text)
                self._emit(TextDelta(text))
            else:
                self._reasoning.append(text)
                self._emit(ReasoningDelta(text))

    def _add_reasoning(self, delta: JsonObject) -> None:
        """Add reasoning from whichever field carries it; some servers send the same text in two fields."""
        details = list(_objects(delta, "reasoning_details"))
        for detail in details:
            _merge_detail(self._details, detail)
        whole = next((text for field in _THOUGHTS if (text := _text(delta, field))), "")
        self._say(("reasoning", text) for text in ([whole] if whole else map(_thought, details)))

    def _add_part(self, part: JsonObject) -> None:
        if text := _text(part, "text"):
            self._say(self._tags.feed(text))
        elif part.get("thinking"):
            self._say([("reasoning", _flat(part["thinking"]))])
        elif address := _text(_object(part, "image_url"), "url") or _text(part, "image_url"):
            image = image_at(address)
            # Some servers repeat the images in their last chunk.
            self._images += [image] if image not in self._images else []

    def _add_call(self, delta: JsonObject) -> None:
        function = _object(delta, "function")
        given_id, name = _text(delta, "id"), _text(function, "name")
        arguments = _arguments(function.get("arguments"))
        call = self._call_of(delta.get("index"), given_id, name, arguments)
        new_id, new_name = "", ""
        if given_id and not call.given_id:
            call.given_id = given_id
            call.id = new_id = self._unique(given_id)
        if name and name != call.name and not (call.name and call.arguments):
            call.name += name
            new_name = name
        # Some servers repeat the whole call at the end.
        if arguments == call.arguments and is_json_object(arguments):
            arguments = ""
        call.arguments += arguments
        if delta.get("extra_content"):
            call.extra_content = delta["extra_content"]
        if new_id or new_name or arguments:
            at = self._calls.index(call)
            self._emit(CallDelta(index=at, id=new_id, name=new_name, arguments=arguments))

    def _call_of(self, index: Any, given_id: str, name: str, arguments: str) -> _Call:
        """The call that a piece belongs to: by index, by id if there is no index, otherwise the last one."""
        same = next((call for call in reversed(self._calls) if given_id and call.given_id == given_id), None)
        if isinstance(index, int):
            call = self._by_index.get(index) or (None if name else same)
        elif given_id:
            call = same
        else:
            last = self._calls[-1] if self._calls else None
            call = last if last is not None and (not name or _is_amid(last, name)) else None
        if call is None or _begins_another(call, given_id, name, arguments):
            call = _Call()
            self._calls.append(call)
        if isinstance(index, int):
            self._by_index[index] = call
        return call

    def _unique(self, call_id: str) -> str:
        """An id that no other call of the conversation has: results refer to calls by id."""
        while not call_id or call_id in self._taken_ids:
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        self._taken_ids.add(call_id)
        return call_id

    def _finished(self, at: int, call: _Call) -> RequestedCall:
        if not call.id:
            call.id = self._unique("")
            self._emit(CallDelta(index=at, id=call.id))
        arguments = "{}" if call.arguments.strip() in ("", "null") else call.arguments
        if not call.arguments.strip() and call is self._calls[-1] and self._reached_limit:
            arguments = UNFINISHED
        return RequestedCall(id=call.id, name=call.name, arguments=arguments)

    def _content(self) -> str | tuple[Part, ...]:
        text = "".join(self._text)
        if not self._images:
            return text
        return (Text(text), *self._images) if text else tuple(self._images)

    def _provider_data(self, provider: str) -> JsonObject | None:
        """What this provider needs back with the message."""
        kept: JsonObject = {}
        if self._details:
            kept["reasoning_details"] = self._details
        if self._extra_content:
            kept["extra_content"] = self._extra_content
        signed = {call.id: call.extra_content for call in self._calls if call.extra_content}
        if signed:
            kept["calls"] = signed
        return {provider: kept} if kept else None

    @property
    def _reached_limit(self) -> bool:
        return _STOPS.get(self.finish_reason.lower()) == "length"

    def _stop(self, calls: tuple[RequestedCall, ...]) -> StopReason:
        stop = "refused" if self._refused else _STOPS.get(self.finish_reason.lower(), "end")
        # Many servers report "stop" with tool calls, and "length" even if the last call is complete.
        if calls and stop != "refused" and (stop == "end" or all(is_json_object(call.arguments) for call in calls)):
            return "tool_calls"
        return stop

    def _note_usage(self, holder: JsonObject) -> None:
        self._usage = _object(holder, "usage") or _object(_object(holder, "x_groq"), "usage") or self._usage


def read_usage(usage: JsonObject) -> Usage:
    """The usage that a server reports, under the various names that servers use."""
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    completion = _count(usage, "completion_tokens", "output_tokens")
    total = _count(usage, "total_tokens")
    about_prompt = _object(usage, "prompt_tokens_details")
    about_completion = _object(usage, "completion_tokens_details")
    cached = _count(about_prompt, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens", "cached_tokens")
    cost = usage.get("cost")
    cost = cost.get("total_cost") if isinstance(cost, dict) else cost
    return Usage(
        input_tokens=prompt,
        # Some servers count reasoning only in the total.
        output_tokens=max(completion, total - prompt),
        cached_tokens=cached,
        cache_write_tokens=_count(about_prompt, "cache_write_tokens"),
        reasoning_tokens=_count(about_completion, "reasoning_tokens"),
        cost_usd=float(cost)
        if isinstance(cost, (int, float)) and not isinstance(cost, bool) and 0 <= cost < MAX_COUNT
        else None,
    )


def _count(holder: JsonObject, *names: str) -> int:
    counts = (holder.get(name) for name in names)
    return next((int(count) for count in counts if isinstance(count, (int, float)) and 0 < count < MAX_COUNT), 0)


def _text(holder: JsonObject, field: str) -> str:
    value = holder.get(field)
    return value if isinstance(value, str) else ""


def _object(holder: JsonObject, field: str) -> JsonObject:
    value = holder.get(field)
    return value if isinstance(value, dict) else {}


def _objects(holder: JsonObject, field: str) -> Iterator[JsonObject]:
    values = holder.get(field)
    return (value for value in (values if isinstance(values, list) else ()) if isinstance(value, dict))


def _begins_another(call: _Call, given_id: str, name: str, arguments: str) -> bool:
    """Whether a piece starts the next call, from a server that reuses an index or id."""
    if not name:
        return False
    if given_id and call.given_id and given_id != call.given_id:
        return True
    is_said_again = (name, arguments) == (call.name, call.arguments)
    return bool(arguments) and not is_said_again and is_json_object(call.arguments)


def _is_amid(call: _Call, name: str) -> bool:
    """Whether a call of this name is still open, so that a piece without index and id continues it."""
    return call.name == name and bool(call.arguments) and not is_json_object(call.arguments)


def _arguments(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _merge_detail(details: list[JsonObject], piece: JsonObject) -> None:
    """Add a piece of OpenRouter's reasoning details; pieces of one block are joined so that it can be sent back."""
    last = details[-1] if details else {}
    is_next = last.get("type") == piece.get("type") and last.get("index") == piece.get("index")
    if not is_next or (piece.get("index") is None and not _thought(piece)):
        details.append(dict(piece))
        return
    for key, value in piece.items():
        joined = key in ("text", "summary", "data") and isinstance(value, str) and isinstance(last.get(key), str)
        if joined or value is not None:
            last[key] = last[key] + value if joined else value


def _thought(detail: JsonObject) -> str:
    return _text(detail, "text") or _text(detail, "summary")


def _flat(thinking: Any) -> str:
    if isinstance(thinking, list):
        return "".join(_flat(part) for part in thinking)
    if isinstance(thinking, dict):
        thinking = thinking.get("text")
    return thinking if isinstance(thinking, str) else ""


class OpenAIChat(StreamingProvider["AsyncOpenAI"]):
    """A provider for servers with chat completions; see Provider."""

    api_mode = "chat_completions"
    package = "openai"
    advice = "which for most servers ends in /v1"

    def __init__(
        self,
        *,
        name: str,
        base_url: str,
        api_key: str,
        dialect: Dialect = "openai",
        profile: Callable[[str], ModelProfile],
        default_headers: Mapping[str, str] | None = None,
        options: OpenAIOptions = OpenAIOptions(),  # noqa: B008
        key_variable: str = "",
    ) -> None:
        super().__init__(
            name=name,
            # Some servers document the full address of the one path we use.
            base_url=base_url.strip().rstrip("/").removesuffix("/chat/completions"),
            api_key=api_key,
            profile=profile,
            default_headers=default_headers,
            key_variable=key_variable,
        )
        self.dialect: Dialect = dialect
        self._requests = OpenAIRequests(name, options)

    def _body(self, request: ModelRequest) -> bytes:
        profile = self._profile(request.model)
        return self._requests.body(request, sees_images=profile.sees_images, hears_audio=profile.hears_audio)

    def _begun(self, request: ModelRequest, emit: Emit) -> OpenAIAnswer:
        return OpenAIAnswer(emit, taken_ids=taken_ids(request))

    async def _opened(self, client: AsyncOpenAI, body: bytes, timeout_seconds: float) -> AsyncStream[object]:
        sdk = self._sdk()
        # Not `chat.completions.create`, which copies the whole history through its own types.
        return await client.post(
            "/chat/completions",
            content=body,
            cast_to=object,
            stream=True,
            stream_cls=sdk.AsyncStream[object],
            options={"timeout": sdk.Timeout(timeout_seconds, connect=min(CONNECT_TIMEOUT_SECONDS, timeout_seconds))},
        )

    def _take(self, event: ServerEvent, answer: OpenAIAnswer) -> float | None:
        if event.data.startswith(END_MARK):
            answer.end()
            return END_SECONDS
        answer.add(read_json(event))
        return REST_SECONDS if answer.is_over else None

    def _sdk(self) -> Any:
        try:
            # Importing costs half a second of CPU; only users of such a server pay for it.
            import openai  # noqa: PLC0415
        except ImportError as error:
            raise self._missing_package() from error
        return openai

    def _new_client(self) -> AsyncOpenAI:
        sdk = self._sdk()
        # A proxy for outside traffic would not reach a server on this machine, and loading the
        # system's certificates takes longer than everything else.
        here, encrypted = is_on_this_machine(self.base_url), not self.base_url.lower().startswith("http://")
        plain = None if encrypted and not here else sdk.DefaultAsyncHttpxClient(trust_env=not here, verify=encrypted)
        client: AsyncOpenAI = sdk.AsyncOpenAI(
            api_key=self._api_key or NO_KEY,
            base_url=self.base_url,
            max_retries=0,
            default_headers=self._headers,
            http_client=plain,
        )
        return client


def create_from(request: ProviderRequest) -> OpenAIChat:
    return OpenAIChat(
        name=request.preset.name,
        base_url=request.base_url,
        api_key=request.api_key,
        dialect=request.preset.dialect,
        profile=request.profile,
        default_headers=request.preset.headers,
        options=request.options,
        key_variable=request.key_variable,
    )
