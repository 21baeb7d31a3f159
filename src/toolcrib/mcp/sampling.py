"""What a server is told when it wants to ask a model: the answer of ours, within limits, if the person agrees.

What the model says in answer is the server's: it sees nothing of the conversation, has no tools of ours, and only
what the server itself sends. Whatever goes wrong is an error for the server, never for the connection.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from mcp.client import ClientRequestContext
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ErrorData,
    SamplingCapability,
    SamplingToolsCapability,
)

from toolcrib.config.mcp_settings import McpSamplingSettings
from toolcrib.config.settings import Settings
from toolcrib.core.attempt import attempt, attempt_async
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.messages import Message
from toolcrib.core.models import Delta, ModelError, ModelRequest, ModelResponse, Provider
from toolcrib.core.ports import Gate
from toolcrib.core.types import Effect, JsonObject, Source, ToolEntry
from toolcrib.definitions.dialects import render
from toolcrib.mcp.asking import CallOver, NobodyToAsk, Refusals, asked_for, while_wanted
from toolcrib.mcp.names import toolset_name
from toolcrib.mcp.sampling_messages import BadRequest, conversation, definitions, result_of, tool_rounds
from toolcrib.mcp.sampling_models import Models, chosen_model
from toolcrib.mcp.seams import Contexts
from toolcrib.mcp.servers import Server
from toolcrib.mcp.untrusted_text import one_line

if TYPE_CHECKING:
    from toolcrib.core.services import Services

logger = logging.getLogger(__name__)

USER_REJECTED = -1
"""From the protocol: the person does not want it."""
WINDOW_SECONDS = 60.0
MAX_PER_CALL = 100
MAX_AT_ONCE = 4
SHOWN_CHARS = 600
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

Result = CreateMessageResult | CreateMessageResultWithTools


class Refused(ToolcribError):
    """A request that is not carried out; says why, and with which code of the protocol."""

    def __init__(self, message: str, code: int = INVALID_REQUEST) -> None:
        super().__init__(message)
        self.code = code


class SamplingDesk:
    """The requests of all servers of one runtime. Used on the loop of the hub alone."""

    def __init__(
        self,
        settings: Settings,
        services: Callable[[], Services | None],
        gate: Gate | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.models = Models(settings, services)
        self.services = services
        self.gate = gate
        self.clock = clock
        self._meters: dict[str, Meter] = {}

    def callback(self, server: Server, contexts: Contexts) -> Sampling | None:
        """The SDK's `sampling_callback` for a server; None for one that may not ask."""
        if not server.settings.sampling.enabled:
            return None
        # Kept over reconnects: a server must not get a new minute by ending its connection.
        meter = self._meters.setdefault(server.name, Meter(self.clock))
        return Sampling(self, server, contexts, meter)

    def capabilities(self, server: Server, contexts: Contexts) -> SamplingCapability:
        tools = SamplingToolsCapability() if server.settings.sampling.max_tool_rounds else None
        return SamplingCapability(tools=tools)

    async def close(self) -> None:
        """Close the connections to models."""
        await self.models.close()


class Meter:
    """Counts the requests of one server: in the last minute, in one call, and now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: deque[float] = deque()
        self._call: ToolContext | None = None
        self._in_call = 0
        self.at_once = 0

    def count(self, call: ToolContext, max_rpm: int) -> None:
        """Count one request; raises Refused for one too many."""
        now = self._clock()
        while self._times and self._times[0] <= now - WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) >= max_rpm:
            wait = math.ceil(self._times[0] + WINDOW_SECONDS - now)
            raise Refused(f"at most {max_rpm} requests a minute are allowed; the next one in {wait} seconds")
        if self._call is not call:
            self._call, self._in_call = call, 0
        if self._in_call >= MAX_PER_CALL:
            raise Refused(f"at most {MAX_PER_CALL} requests are allowed in one call")
        if self.at_once >= MAX_AT_ONCE:
            raise Refused(f"at most {MAX_AT_ONCE} requests are allowed at once")
        self._times.append(now)
        self._in_call += 1


class Sampling:
    """Answers the requests of one server; the SDK's `sampling_callback`."""

    def __init__(self, desk: SamplingDesk, server: Server, contexts: Contexts, meter: Meter) -> None:
        self._desk = desk
        self._server = server
        self._contexts = contexts
        self._meter = meter
        self._consent = asyncio.Lock()
        self._refusals = Refusals(contexts)

    @property
    def _settings(self) -> McpSamplingSettings:
        return self._server.settings.sampling

    async def __call__(self, context: ClientRequestContext, params: CreateMessageRequestParams) -> Result | ErrorData:
        try:
            return await self._answer(params)
        except Refused as refused:
            return self._no(refused.code, f"{refused}")
        except (BadRequest, NobodyToAsk) as error:
            return self._no(INVALID_PARAMS, f"{error}")
        except CallOver as error:
            return self._no(USER_REJECTED, f"{error}")
        except ToolcribError as error:
            logger.error("a request of the MCP server %r failed: %s", self._server.name, error)
            # The rest of it, such as addresses and names of keys, is nothing for the server.
            kind = error.kind if isinstance(error, ModelError) else "settings"
            return self._no(INTERNAL_ERROR, f"the model could not answer ({kind})")

    async def _answer(self, params: CreateMessageRequestParams) -> Result:
        ctx = asked_for(self._contexts, self._desk.services)
        self._meter.count(ctx, self._settings.max_rpm)
        self._meter.at_once += 1
        try:
            provider, request = self._request(params, ctx)
            response = await while_wanted(ctx, self._contexts, self._asked_if_agreed(ctx, provider, request))
            return result_of(response, params, request.model)
        finally:
            self._meter.at_once -= 1

    def _request(self, params: CreateMessageRequestParams, ctx: ToolContext) -> tuple[Provider, ModelRequest]:
        """What the model will be asked; raises BadRequest or Refused for what it cannot or may not be."""
        settings = self._settings
        messages = conversation(params)
        hints = params.model_preferences.hints if params.model_preferences is not None else None
        wanted = chosen_model(settings, [hint.name or "" for hint in hints or ()])
        provider, model = self._desk.models.find(wanted, ctx.session_id)
        profile = provider.profile(model)
        if any(message.images for message in messages) and not profile.sees_images:
            raise BadRequest(f"the model {model!r} cannot see images")
        if any(message.recordings for message in messages) and not profile.hears_audio:
            raise BadRequest(f"the model {model!r} cannot hear audio")
        if params.max_tokens < 1:
            raise BadRequest("maxTokens must be 1 or more")
        heat = params.temperature
        if heat is not None and not 0 <= heat <= 2:
            raise BadRequest("the temperature must be from 0 to 2")
        request = ModelRequest(
            model=model,
            messages=messages,
            system=params.system_prompt or "",
            max_output_tokens=min(params.max_tokens, settings.max_tokens_cap),
            temperature=heat,
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
            raise Refused("this server may not offer tools to the model")
        if tool_rounds(request.messages) >= self._settings.max_tool_rounds:
            if choice == "required":
                raise Refused(f"at most {self._settings.max_tool_rounds} rounds of tool calls are allowed")
            choice = "none"  # It has to answer with what it has.
        canonical = definitions(params.tools)
        rendered = render(canonical, provider.dialect)
        if rendered.set_aside:
            aside = rendered.set_aside[0]
            raise BadRequest(f"the tool {aside.name!r} cannot be offered: {one_line(aside.reason, 200)}")
        return msgspec.structs.replace(request, tools=rendered.tools, definitions=canonical, tool_choice=choice)

    async def _asked_if_agreed(self, ctx: ToolContext, provider: Provider, request: ModelRequest) -> ModelResponse:
        await self._agreed(ctx, request, provider)
        return await self._asked(provider, request)

    async def _agreed(self, ctx: ToolContext, request: ModelRequest, provider: Provider) -> None:
        """Returns when the person lets the model be asked; raises Refused otherwise."""
        if not self._settings.ask:
            return
        if self._desk.gate is None:
            raise Refused("nobody is here to agree to it", USER_REJECTED)
        # One at a time: who has agreed for the session is not asked again by those who waited.
        async with self._consent:
            if self._refusals.count(ctx):
                raise Refused("it was refused before in this call", USER_REJECTED)
            if not await self._put(self._desk.gate, ctx, request, provider):
                self._refusals.add(ctx)
                raise Refused("nobody agreed to it", USER_REJECTED)

    async def _put(self, gate: Gate, ctx: ToolContext, request: ModelRequest, provider: Provider) -> bool:
        server = one_line(self._server.name, 80)
        # No tool can have this name, so that nobody agrees to a tool by agreeing to this.
        name = f"mcp__{server}__sampling/createMessage"
        source = Source("mcp", server, tool="sampling/createMessage")
        entry = ToolEntry(name=name, toolset=toolset_name(server), schema={}, handler=_never, source=source)
        effects = (Effect("spend", f"on an answer of {request.model or provider.name} for the MCP server {server!r}"),)
        shown = _shown(request)
        verdict, error = attempt(gate.judge, entry, shown, effects, ctx)
        if verdict is not None and verdict.decision != "deny":
            verdict, error = await attempt_async(gate.settle(entry, shown, verdict, ctx))
        if error is not None:
            logger.error("a question about the MCP server %r could not be put", self._server.name, exc_info=error)
        return verdict is not None and verdict.decision == "allow"

    async def _asked(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._settings.timeout):
                response, error = await attempt_async(provider.complete(request, _unheard))
        except TimeoutError:
            response, error = None, TimeoutError("it took too long")
        if isinstance(error, TimeoutError):
            raise Refused(f"the model did not answer within {self._settings.timeout:g} seconds", INTERNAL_ERROR)
        if response is None:
            raise error if isinstance(error, ModelError) else ModelError(f"the provider failed: {error!r}") from error
        self._log(request, response, time.monotonic() - began)
        return response

    def _log(self, request: ModelRequest, response: ModelResponse, seconds: float) -> None:
        logger.log(
            LEVELS[self._settings.log_level],
            "MCP server %r asked %s: %d messages, %d tokens in, %d out, %.1f s",
            self._server.name,
            response.model or request.model,
            len(request.messages),
            response.usage.input_tokens,
            response.usage.output_tokens,
            seconds,
        )

    def _no(self, code: int, reason: str) -> ErrorData:
        level = max(LEVELS[self._settings.log_level], logging.INFO)
        logger.log(level, "a request of the MCP server %r for the model was refused: %s", self._server.name, reason)
        return ErrorData(code=code, message=reason)


def _shown(request: ModelRequest) -> JsonObject:
    """What the person reads before he agrees: the last message, and how much there is besides."""
    last = request.messages[-1]
    shown: JsonObject = {"asks": one_line(last.text, SHOWN_CHARS), "max_tokens": request.max_output_tokens}
    if request.system:
        shown["system"] = one_line(request.system, SHOWN_CHARS)
    media = sum(_media_in(message) for message in request.messages)
    more = {"messages_before": len(request.messages) - 1, "media": media, "tools": len(request.tools)}
    return shown | {name: count for name, count in more.items() if count}


def _media_in(message: Message) -> int:
    return len(message.images) + len(message.recordings)


def _unheard(_: Delta) -> None:
    """Nobody watches these answers come."""


def _never() -> None:
    """Stands where an entry needs a handler; nobody calls it."""
