"""Sampling: a server asks our model a question; it gets an answer within limits, if the person agrees.

The request belongs to the server: the model sees nothing of the conversation, has none of our tools, and gets only what
the server itself sends. A failure is an error response to the server and never breaks the connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
from mcp.client import ClientRequestContext
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    AudioContent,
    ContentBlock,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    EmbeddedResource,
    ErrorData,
    ImageContent,
    ResourceLink,
    SamplingCapability,
    SamplingContent,
    SamplingMessage,
    SamplingMessageContentBlock,
    SamplingToolsCapability,
    TextContent,
    TextResourceContents,
    Tool,
    ToolResultContent,
    ToolUseContent,
)

from toolcrib.config.mcp_settings import McpSamplingSettings
from toolcrib.config.settings import Settings
from toolcrib.core.attempt import attempt_async
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.core.messages import Audio, Image, Message, Part, RequestedCall, Text
from toolcrib.core.models import Delta, Dialect, ModelError, ModelRequest, ModelResponse, Provider
from toolcrib.core.ports import Gate
from toolcrib.core.types import Effect, JsonObject, Source, ToolEntry
from toolcrib.definitions.dialects import render
from toolcrib.mcp.client.callbacks import Contexts
from toolcrib.mcp.client.questions import (
    CallEnded,
    NoUserAvailable,
    RefusalCounter,
    ask_during_call,
    context_for_question,
)
from toolcrib.mcp.client.servers import Server
from toolcrib.mcp.client.untrusted_text import one_line
from toolcrib.mcp.names import toolset_name
from toolcrib.providers.complete import complete
from toolcrib.providers.create import create_provider

logger = logging.getLogger(__name__)

USER_REJECTED = -1
"""The protocol's code for a request that the person rejected."""
WINDOW_SECONDS = 60.0
MAX_PER_CALL = 100
MAX_AT_ONCE = 4
SHOWN_CHARS = 600
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

Result = CreateMessageResult | CreateMessageResultWithTools


class SamplingRefused(ToolcribError):
    """A refused request: the reason, and the protocol's error code."""

    def __init__(self, message: str, code: int = INVALID_REQUEST) -> None:
        super().__init__(message)
        self.code = code


class SamplingHandler:
    """Handles the sampling requests of all servers of one runtime. Used only on the manager's loop."""

    def __init__(
        self,
        settings: Settings,
        services: Callable[[], Services | None],
        gate: Gate | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.models = SamplingModels(settings, services)
        self.services = services
        self.gate = gate
        self.clock = clock
        self._quotas: dict[str, RequestQuota] = {}

    def callback(self, server: Server, contexts: Contexts) -> SamplingCallback | None:
        """The SDK's `sampling_callback` for a server; None for one that may not sample."""
        if not server.settings.sampling.enabled:
            return None
        # Survives reconnects: a server must not get a fresh quota by dropping its connection.
        quota = self._quotas.setdefault(server.name, RequestQuota(self.clock))
        return SamplingCallback(self, server, contexts, quota)

    def capabilities(self, server: Server, contexts: Contexts) -> SamplingCapability:
        tools = SamplingToolsCapability() if server.settings.sampling.max_tool_rounds else None
        return SamplingCapability(tools=tools)

    async def close(self) -> None:
        """Close the connections to models."""
        await self.models.close()


class RequestQuota:
    """Limits the requests of one server: per minute, per call and at the same time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: deque[float] = deque()
        self._call: ToolContext | None = None
        self._in_call = 0
        self.concurrent = 0

    def count(self, call: ToolContext, max_rpm: int) -> None:
        """Count one request; raises SamplingRefused if it exceeds the quota."""
        now = self._clock()
        while self._times and self._times[0] <= now - WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) >= max_rpm:
            wait = math.ceil(self._times[0] + WINDOW_SECONDS - now)
            raise SamplingRefused(f"at most {max_rpm} requests per minute are allowed; try again in {wait} seconds")
        if self._call is not call:
            self._call, self._in_call = call, 0
        if self._in_call >= MAX_PER_CALL:
            raise SamplingRefused(f"at most {MAX_PER_CALL} requests per call are allowed")
        if self.concurrent >= MAX_AT_ONCE:
            raise SamplingRefused(f"at most {MAX_AT_ONCE} simultaneous requests are allowed")
        self._times.append(now)
        self._in_call += 1


class SamplingCallback:
    """Answers the sampling requests of one server; the SDK's `sampling_callback`."""

    def __init__(self, handler: SamplingHandler, server: Server, contexts: Contexts, quota: RequestQuota) -> None:
        self._handler = handler
        self._server = server
        self._contexts = contexts
        self._quota = quota
        self._consent = asyncio.Lock()
        self._refusals = RefusalCounter(contexts)

    @property
    def _settings(self) -> McpSamplingSettings:
        return self._server.settings.sampling

    async def __call__(self, context: ClientRequestContext, params: CreateMessageRequestParams) -> Result | ErrorData:
        try:
            return await self._answer(params)
        except SamplingRefused as refused:
            return self._refuse(refused.code, f"{refused}")
        except (SamplingRequestError, NoUserAvailable) as error:
            return self._refuse(INVALID_PARAMS, f"{error}")
        except CallEnded as error:
            return self._refuse(USER_REJECTED, f"{error}")
        except ToolcribError as error:
            logger.error("a sampling request from the MCP server %r failed: %s", self._server.name, error)
            # The details, such as URLs and names of keys, are not for the server.
            kind = error.kind if isinstance(error, ModelError) else "settings"
            return self._refuse(INTERNAL_ERROR, f"the model could not answer ({kind})")

    async def _answer(self, params: CreateMessageRequestParams) -> Result:
        ctx = context_for_question(self._contexts, self._handler.services)
        self._quota.count(ctx, self._settings.max_rpm)
        self._quota.concurrent += 1
        try:
            provider, request = self._request(params, ctx)
            response = await ask_during_call(ctx, self._contexts, self._ask_if_approved(ctx, provider, request))
            return to_sampling_result(response, params, request.model)
        finally:
            self._quota.concurrent -= 1

    def _request(self, params: CreateMessageRequestParams, ctx: ToolContext) -> tuple[Provider, ModelRequest]:
        """The request for the model; raises SamplingRequestError if it is invalid, SamplingRefused if not allowed."""
        settings = self._settings
        messages = to_messages(params)
        hints = params.model_preferences.hints if params.model_preferences is not None else None
        wanted = choose_model(settings, [hint.name or "" for hint in hints or ()])
        provider, model = self._handler.models.find(wanted, ctx.session_id)
        profile = provider.profile(model)
        if any(message.images for message in messages) and not profile.sees_images:
            raise SamplingRequestError(f"the model {model!r} does not support images")
        if any(message.recordings for message in messages) and not profile.hears_audio:
            raise SamplingRequestError(f"the model {model!r} does not support audio")
        if params.max_tokens < 1:
            raise SamplingRequestError("maxTokens must be 1 or more")
        temperature = params.temperature
        if temperature is not None and not 0 <= temperature <= 2:
            raise SamplingRequestError("the temperature must be between 0 and 2")
        request = ModelRequest(
            model=model,
            messages=messages,
            system=params.system_prompt or "",
            max_output_tokens=min(params.max_tokens, settings.max_tokens_cap),
            temperature=temperature,
            timeout_seconds=settings.timeout,
        )
        return provider, self._with_tools(request, params, provider)

    def _with_tools(
        self, request: ModelRequest, params: CreateMessageRequestParams, provider: Provider
    ) -> ModelRequest:
        choice = (params.tool_choice.mode if params.tool_choice is not None else None) or "auto"
        if not params.tools:
            return request
        if not self._settings.max_tool_rounds:
            raise SamplingRefused("this server may not offer tools to the model")
        if tool_rounds(request.messages) >= self._settings.max_tool_rounds:
            if choice == "required":
                raise SamplingRefused(f"at most {self._settings.max_tool_rounds} rounds of tool calls are allowed")
            choice = "none"  # The model has to answer with what it has.
        canonical = to_definitions(params.tools)
        rendered = render(canonical, provider.dialect)
        if rendered.set_aside:
            aside = rendered.set_aside[0]
            raise SamplingRequestError(f"the tool {aside.name!r} cannot be offered: {one_line(aside.reason, 200)}")
        return msgspec.structs.replace(request, tools=rendered.tools, definitions=canonical, tool_choice=choice)

    async def _ask_if_approved(self, ctx: ToolContext, provider: Provider, request: ModelRequest) -> ModelResponse:
        await self._require_approval(ctx, request, provider)
        return await self._ask_model(provider, request)

    async def _require_approval(self, ctx: ToolContext, request: ModelRequest, provider: Provider) -> None:
        """Return if the person allows the request; raises SamplingRefused otherwise."""
        if not self._settings.ask:
            return
        if self._handler.gate is None:
            raise SamplingRefused("there is nobody to approve it", USER_REJECTED)
        # One at a time, so that an approval for the session also covers the requests that waited.
        async with self._consent:
            if self._refusals.count(ctx):
                raise SamplingRefused("it was already refused in this call", USER_REJECTED)
            if not await self._is_approved(self._handler.gate, ctx, request, provider):
                self._refusals.add(ctx)
                raise SamplingRefused("it was not approved", USER_REJECTED)

    async def _is_approved(self, gate: Gate, ctx: ToolContext, request: ModelRequest, provider: Provider) -> bool:
        server = one_line(self._server.name, 80)
        # No tool can have this name, so approving this never approves a tool.
        name = f"mcp__{server}__sampling/createMessage"
        source = Source("mcp", server, tool="sampling/createMessage")
        entry = ToolEntry(name=name, toolset=toolset_name(server), schema={}, handler=_never, source=source)
        effects = (
            Effect("spend", f"on an answer from {request.model or provider.name} for the MCP server {server!r}"),
        )
        preview = _preview(request)

        async def judge() -> bool:
            verdict = gate.judge(entry, preview, effects, ctx)
            if verdict.decision != "deny":
                verdict = await gate.resolve(entry, preview, verdict, ctx)
            return verdict.decision == "allow"

        # Approvers are foreign code, and one that fails has not agreed.
        is_allowed, error = await attempt_async(judge())
        if error is not None:
            name = self._server.name
            logger.error("the gate failed on a sampling request from the MCP server %r", name, exc_info=error)
        return bool(is_allowed)

    async def _ask_model(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._settings.timeout):
                response = await complete(provider, request, _ignore_delta)
        except TimeoutError as error:
            limit = f"{self._settings.timeout:g} seconds"
            raise SamplingRefused(f"the model did not answer within {limit}", INTERNAL_ERROR) from error
        self._log(request, response, time.monotonic() - began)
        return response

    def _log(self, request: ModelRequest, response: ModelResponse, seconds: float) -> None:
        logger.log(
            LEVELS[self._settings.log_level],
            "MCP server %r sampled %s: %d messages, %d tokens in, %d out, %.1f s",
            self._server.name,
            response.model or request.model,
            len(request.messages),
            response.usage.input_tokens,
            response.usage.output_tokens,
            seconds,
        )

    def _refuse(self, code: int, reason: str) -> ErrorData:
        level = max(LEVELS[self._settings.log_level], logging.INFO)
        logger.log(level, "refused a sampling request from the MCP server %r: %s", self._server.name, reason)
        return ErrorData(code=code, message=reason)


def _preview(request: ModelRequest) -> JsonObject:
    """What the person sees before approving: the last message, and how much else there is."""
    last = request.messages[-1]
    preview: JsonObject = {"asks": one_line(last.text, SHOWN_CHARS), "max_tokens": request.max_output_tokens}
    if request.system:
        preview["system"] = one_line(request.system, SHOWN_CHARS)
    media = sum(_media_in(message) for message in request.messages)
    more = {"messages_before": len(request.messages) - 1, "media": media, "tools": len(request.tools)}
    return preview | {name: count for name, count in more.items() if count}


def _media_in(message: Message) -> int:
    return len(message.images) + len(message.recordings)


def _ignore_delta(_: Delta) -> None:
    """Streaming is not used here."""


def _never() -> None:
    """A placeholder handler that is never called."""


@runtime_checkable
class SessionModels(Protocol):
    """The service `llm`, which knows the model of each session."""

    def model_of(self, session_id: str) -> tuple[Provider, str]: ...


class SamplingModels:
    """The providers for sampling in one runtime; opened on first use."""

    def __init__(self, settings: Settings, services: Callable[[], Services | None]) -> None:
        self._settings = settings
        self._services = services
        self._opened: dict[str, tuple[Provider, str]] = {}

    def find(self, model: str, session_id: str) -> tuple[Provider, str]:
        """The provider and name of a model; without a name, those of the session's model.

        Raises ModelError if the settings do not allow reaching it.
        """
        sessions = None if model else self._service("llm")
        if isinstance(sessions, SessionModels):
            return sessions.model_of(session_id)
        if model not in self._opened:
            self._opened[model] = create_provider(self._settings, model=model, render=_render)
        return self._opened[model]

    async def close(self) -> None:
        """Close the providers that were opened here."""
        opened, self._opened = self._opened, {}
        for provider, _ in opened.values():
            await provider.close()

    def _service(self, name: str) -> Any:
        services = self._services()
        try:
            return services.get(name) if services is not None else None
        except UsageError:
            return None


def choose_model(settings: McpSamplingSettings, hints: Sequence[str]) -> str:
    """The first allowed model that a hint names, fully or in part; otherwise the configured one, or none."""
    for hint in (text.strip().lower() for text in hints):
        for matches in (str.__eq__, str.__contains__):
            for allowed in settings.allowed_models:
                if hint and matches(allowed.lower(), hint):
                    return allowed
    return settings.model


def _render(tools: Sequence[JsonObject], dialect: Dialect) -> list[JsonObject]:
    return render(tools, dialect).tools


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
