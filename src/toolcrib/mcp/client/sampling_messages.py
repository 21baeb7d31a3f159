"""Converts a server's sampling request to our messages, and the model's response back to the protocol.

Everything here comes from the server: it is bounded, and a request that breaks the protocol is refused with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from mcp_types import (
    AudioContent,
    ContentBlock,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    SamplingContent,
    SamplingMessage,
    SamplingMessageContentBlock,
    TextContent,
    TextResourceContents,
    Tool,
    ToolResultContent,
    ToolUseContent,
)

from toolcrib.core.errors import ToolcribError
from toolcrib.core.messages import Audio, Image, Message, Part, RequestedCall, Text
from toolcrib.core.models import ModelResponse
from toolcrib.core.types import JsonObject

MAX_MESSAGES = 500
MAX_TEXT_CHARS = 1_000_000
"""Of all text of one request, including the system prompt and the tools."""
MAX_MEDIA_CHARS = 14_000_000
"""Of all images and recordings of one request in base64: about 10 MB."""
MAX_TOOLS = 64
MAX_STOP_SEQUENCES = 16
IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
STOPS = {"end": "endTurn", "length": "maxTokens", "tool_calls": "toolUse", "refused": "refusal"}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Possessive, so that a mismatch is found in one pass.
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]++={0,2}\s*")


class SamplingRequestError(ToolcribError):
    """An invalid sampling request; the message says what is wrong with it."""


def to_messages(params: CreateMessageRequestParams) -> list[Message]:
    """The messages for the model; raises SamplingRequestError."""
    if not 0 < len(params.messages) <= MAX_MESSAGES:
        raise SamplingRequestError(f"a request must have 1 to {MAX_MESSAGES} messages")
    _check_size(params)
    messages: list[Message] = []
    waiting: dict[str, str] = {}
    for given in params.messages:
        results = [block for block in given.content_as_list if isinstance(block, ToolResultContent)]
        if waiting and (given.role != "user" or {block.tool_use_id for block in results} != set(waiting)):
            raise SamplingRequestError("each tool use must be followed by its result, and by nothing else")
        if given.role == "assistant":
            messages.append(_assistant_message(given, results))
            waiting = {call.id: call.name for call in messages[-1].tool_calls}
        elif results:
            messages += _tool_messages(given, results, waiting)
            waiting = {}
        else:
            messages.append(Message(role="user", content=_content(given.content_as_list)))
    if waiting:
        raise SamplingRequestError("the last message uses a tool without a result")
    return messages


def tool_rounds(messages: Sequence[Message]) -> int:
    """How many rounds of tool calls a conversation has had."""
    return sum(1 for message in messages if message.role == "assistant" and message.tool_calls)


def to_definitions(tools: Sequence[Tool]) -> list[JsonObject]:
    """The server's tools as canonical definitions; raises SamplingRequestError."""
    if len(tools) > MAX_TOOLS:
        raise SamplingRequestError(f"at most {MAX_TOOLS} tools are allowed")
    names = [tool.name for tool in tools]
    wrong = next((name for name in names if not _NAME.fullmatch(name) or names.count(name) > 1), None)
    if wrong is not None:
        raise SamplingRequestError("each tool needs a unique name of 1 to 64 characters from a-z A-Z 0-9 _ -")
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema},
        }
        for tool in tools
    ]


def to_sampling_result(
    response: ModelResponse, params: CreateMessageRequestParams, model: str
) -> CreateMessageResult | CreateMessageResultWithTools:
    """The model's answer, cut at the first stop sequence; raises SamplingRequestError for an invalid tool call."""
    message = response.message
    text, was_stopped = cut_at_stop(message.text, params.stop_sequences or [])
    stop = "stopSequence" if was_stopped else STOPS[response.stop]
    reply: SamplingContent = TextContent(text=text)
    if not text and message.images and message.images[0].data:
        reply = ImageContent(data=message.images[0].data, mime_type=message.images[0].media_type or "image/png")
    model = response.model or model or "unknown"
    if not params.tools:
        return CreateMessageResult(role="assistant", content=reply, model=model, stop_reason=stop)
    # Everything after a stop sequence is dropped, tool calls included.
    uses = [] if was_stopped else [_tool_use(call) for call in message.tool_calls]
    content: list[SamplingMessageContentBlock] = [*([reply] if text or not uses else []), *uses]
    return CreateMessageResultWithTools(role="assistant", content=content, model=model, stop_reason=stop)


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop sequence, and whether there was one: not every provider supports them."""
    found = [at for stop in stops[:MAX_STOP_SEQUENCES] if stop and (at := text.find(stop)) >= 0]
    return (text[: min(found)], True) if found else (text, False)


def _tool_use(call: RequestedCall) -> ToolUseContent:
    try:
        given = msgspec.json.decode(call.arguments or "{}")
    except msgspec.DecodeError as error:
        raise SamplingRequestError(
            f"the model called {call.name!r} with arguments that are not JSON; try again"
        ) from error
    if not isinstance(given, dict):
        raise SamplingRequestError(f"the model called {call.name!r} with arguments that are not an object; try again")
    return ToolUseContent(name=call.name, id=call.id, input=given)


def _assistant_message(given: SamplingMessage, results: list[ToolResultContent]) -> Message:
    if results:
        raise SamplingRequestError("only a user message may contain a tool result")
    blocks = [block for block in given.content_as_list if not isinstance(block, ToolUseContent)]
    calls = tuple(
        RequestedCall(id=block.id, name=block.name, arguments=json.dumps(block.input, ensure_ascii=False))
        for block in given.content_as_list
        if isinstance(block, ToolUseContent)
    )
    if len({call.id for call in calls}) != len(calls):
        raise SamplingRequestError("two tool uses have the same id")
    content = _content(blocks) if blocks else ""
    if calls and not isinstance(content, str):
        raise SamplingRequestError("a message that uses tools may contain text and nothing else")
    return Message(role="assistant", content=content, tool_calls=calls)


def _tool_messages(
    given: SamplingMessage, results: list[ToolResultContent], waiting: dict[str, str]
) -> Iterator[Message]:
    if len(results) != len(given.content_as_list):
        raise SamplingRequestError("a message with tool results may contain nothing else")
    for block in results:
        if block.tool_use_id not in waiting:
            raise SamplingRequestError("a tool result has no matching tool use")
        yield Message(
            role="tool",
            call_id=block.tool_use_id,
            name=waiting[block.tool_use_id],
            status="error" if block.is_error else "ok",
            content=_result_content(block),
        )


def _result_content(block: ToolResultContent) -> str | tuple[Part, ...]:
    parts = [_part(one) for one in block.content]
    if not parts and block.structured_content is not None:
        return json.dumps(block.structured_content, ensure_ascii=False)
    if all(isinstance(part, Text) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, Text))
    return tuple(parts)


def _content(blocks: Sequence[SamplingMessageContentBlock]) -> str | tuple[Part, ...]:
    parts = tuple(_part(block) for block in blocks)
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return parts


def _part(block: SamplingMessageContentBlock | ContentBlock) -> Part:
    if isinstance(block, TextContent):
        return Text(block.text)
    if isinstance(block, ImageContent):
        kind = block.mime_type.lower()
        if kind not in IMAGES or not _BASE64.fullmatch(block.data):
            raise SamplingRequestError("an image must be png, jpeg, gif or webp in base64")
        return Image(media_type=kind, data=block.data)
    if isinstance(block, AudioContent):
        if not block.mime_type.lower().startswith("audio/") or not _BASE64.fullmatch(block.data):
            raise SamplingRequestError("a recording must have an audio type and be in base64")
        return Audio(media_type=block.mime_type.lower(), data=block.data)
    if isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
        return Text(block.resource.text)
    if isinstance(block, (EmbeddedResource, ResourceLink)):
        return Text(f"[{block.resource.uri if isinstance(block, EmbeddedResource) else block.uri}]")
    raise SamplingRequestError("a message contains an unsupported block")


def _check_size(params: CreateMessageRequestParams) -> None:
    stops = params.stop_sequences or []
    if len(stops) > MAX_STOP_SEQUENCES:
        raise SamplingRequestError(f"at most {MAX_STOP_SEQUENCES} stop sequences are allowed")
    media = 0
    for given in params.messages:
        for block in _flatten(given.content_as_list):
            media += len(block.data) if isinstance(block, (ImageContent, AudioContent)) else 0
    if media > MAX_MEDIA_CHARS:
        raise SamplingRequestError("the images and recordings of a request may have about 10 MB in total")
    dumped = params.model_dump_json(by_alias=True, exclude_none=True)
    if len(dumped) - media > MAX_TEXT_CHARS:
        raise SamplingRequestError(f"the text of a request may have at most {MAX_TEXT_CHARS} characters")


def _flatten(blocks: Sequence[Any]) -> Iterator[Any]:
    for block in blocks:
        if isinstance(block, ToolResultContent):
            yield from block.content
        else:
            yield block
