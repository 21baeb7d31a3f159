"""A response of a model as the events that OpenAI's and Anthropic's servers stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from toolcrib.core.messages import RequestedCall
from toolcrib.core.models import ModelResponse
from toolcrib.core.types import JsonObject

ARGUMENT_PIECE_CHARS = 12
_OPENAI_STOPS = {"end": "stop", "tool_calls": "tool_calls", "length": "length", "refused": "content_filter"}
_ANTHROPIC_STOPS = {"end": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "refused": "refusal"}


def openai_events(response: ModelResponse, number: int) -> Iterator[bytes]:
    """The chunks of a streamed chat completion, the last with what was used, and the end mark."""
    message = response.message
    deltas: list[JsonObject] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in pieces(message.reasoning)]
    deltas += [{"content": piece} for piece in pieces(message.text)]
    for index, call in enumerate(_with_ids(message.tool_calls, number)):
        first = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        deltas.append({"tool_calls": [first]})
        for piece in _cut(call.arguments):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    for delta in deltas:
        yield _data(_chunk(response, number, [{"index": 0, "delta": delta, "finish_reason": None}]))
    yield _data(_chunk(response, number, [{"index": 0, "delta": {}, "finish_reason": _OPENAI_STOPS[response.stop]}]))
    yield _data(_chunk(response, number, []) | {"usage": _openai_usage(response)})
    yield b"data: [DONE]\n\n"


def openai_whole(response: ModelResponse, number: int) -> JsonObject:
    """A chat completion for who did not ask for a stream."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in _with_ids(response.message.tool_calls, number)
    ]
    message: JsonObject = {"role": "assistant", "content": response.message.text or None}
    if calls:
        message["tool_calls"] = calls
    return _chunk(
        response, number, [{"index": 0, "message": message, "finish_reason": _OPENAI_STOPS[response.stop]}]
    ) | {"object": "chat.completion", "usage": _openai_usage(response)}


def anthropic_events(response: ModelResponse, number: int) -> Iterator[bytes]:
    """The events of a streamed message."""
    head = _anthropic_head(response, number) | {"content": [], "stop_reason": None, "stop_sequence": None}
    head["usage"] |= {"output_tokens": 1}
    yield _event({"type": "message_start", "message": head})
    for index, block in enumerate(_blocks(response, number)):
        yield _event({"type": "content_block_start", "index": index, "content_block": _empty(block)})
        for delta in _block_deltas(block):
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    yield _event({
        "type": "message_delta",
        "delta": {"stop_reason": _ANTHROPIC_STOPS[response.stop], "stop_sequence": None},
        "usage": {"output_tokens": response.usage.output_tokens},
    })  # fmt: skip
    yield _event({"type": "message_stop"})


def anthropic_whole(response: ModelResponse, number: int) -> JsonObject:
    """A message for who did not ask for a stream."""
    stop = {"stop_reason": _ANTHROPIC_STOPS[response.stop], "stop_sequence": None}
    return _anthropic_head(response, number) | {"content": list(_blocks(response, number))} | stop


def pieces(text: str) -> list[str]:
    """The text word by word, as a model would say it."""
    return re.findall(r"\S+\s*|\s+", text)


def _with_ids(calls: tuple[RequestedCall, ...], number: int) -> Iterator[RequestedCall]:
    for at, call in enumerate(calls):
        yield RequestedCall(id=call.id or f"call_{number}_{at}", name=call.name, arguments=call.arguments)


def _cut(text: str) -> list[str]:
    return [text[at : at + ARGUMENT_PIECE_CHARS] for at in range(0, len(text), ARGUMENT_PIECE_CHARS)]


def _chunk(response: ModelResponse, number: int, choices: list[JsonObject]) -> JsonObject:
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": response.model or "scripted",
        "choices": choices,
    }


def _openai_usage(response: ModelResponse) -> JsonObject:
    usage = response.usage
    counted: JsonObject = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
    return counted if usage.cost_usd is None else counted | {"cost": usage.cost_usd}


def _anthropic_head(response: ModelResponse, number: int) -> JsonObject:
    usage = response.usage
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": response.model or "scripted",
        "usage": {
            "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
        },
    }


def _blocks(response: ModelResponse, number: int) -> Iterator[JsonObject]:
    message = response.message
    if message.reasoning:
        yield {"type": "thinking", "thinking": message.reasoning, "signature": f"signature-{number}"}
    if message.text:
        yield {"type": "text", "text": message.text}
    for call in _with_ids(message.tool_calls, number):
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}


def _empty(block: JsonObject) -> JsonObject:
    hollow: dict[str, JsonObject] = {
        "text": {"text": ""},
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"input": {}},
    }
    return block | hollow[block["type"]]


def _block_deltas(block: JsonObject) -> Iterator[JsonObject]:
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": piece} for piece in pieces(block["text"]))
    elif block["type"] == "thinking":
        yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"]))
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        arguments = json.dumps(block["input"], ensure_ascii=False)
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in _cut(arguments))


def _data(value: JsonObject) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def _event(value: JsonObject) -> bytes:
    return f"event: {value['type']}\n".encode() + _data(value)
