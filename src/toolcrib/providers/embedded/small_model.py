"""One request to a very small model, answered as well as it can: a tool is chosen by schema, words come as text."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from toolcrib.core.messages import Message, RequestedCall
from toolcrib.core.models import (
    CallDelta,
    Delta,
    Emit,
    ModelRequest,
    ModelResponse,
    Notice,
    Provider,
    TextDelta,
)
from toolcrib.core.types import JsonObject
from toolcrib.providers.embedded.choosing import candidates, chosen, instruction, named_tools, reply_schema
from toolcrib.providers.embedded.lean_tools import lean
from toolcrib.providers.embedded.retelling import is_time_to_word, question_of, results_of, retold
from toolcrib.providers.embedded.spoken_calls import may_become_a_call, take_calls

MAX_ANSWER_TOKENS = 700
MAX_CALL_TOKENS = 400
"""A call that holds a text to write may be long; one that never ends is cut here."""


class SmallModel:
    """Asks the engine for one answer, in the steps that a small model manages."""

    def __init__(self, engine: Provider) -> None:
        self._engine = engine

    async def answer(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """The whole answer; its pieces go to `emit`."""
        request = _with_limits(request)
        if request.response_schema is not None:
            return await self._engine.complete(request, emit)
        if not request.tools or request.tool_choice == "none" or is_time_to_word(request.messages):
            return await self._worded(request, emit)
        question = question_of(request.messages)
        asked_for = named_tools(question, request.tools)
        must_call = request.tool_choice == "required" or bool(asked_for)
        fitting = asked_for or candidates(question, request.tools)
        if must_call or fitting:
            return await self._chosen(request, lean(fitting or request.tools, question), emit, may_answer=not must_call)
        return await self._worded(request, emit)

    async def _chosen(
        self, request: ModelRequest, tools: Sequence[JsonObject], emit: Emit, *, may_answer: bool
    ) -> ModelResponse:
        """A call of one of these tools; or words, where the model says that it needs none."""
        decide = msgspec.structs.replace(
            request,
            system=f"{request.system}\n\n{instruction(tools, may_answer=may_answer)}".strip(),
            messages=retold(request.messages),
            tools=(),
            response_schema=reply_schema(tools, may_answer=may_answer),
            max_output_tokens=MAX_CALL_TOKENS,
        )
        reply = await self._engine.complete(decide, _ignore_text(emit))
        found = chosen(reply.message.text)
        if found is None:
            response = await self._worded(request, emit)
            return msgspec.structs.replace(response, usage=response.usage + reply.usage)
        return _calling(reply, "", [RequestedCall(id="", name=found[0], arguments=found[1])], emit)

    async def _worded(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """Words. No tools are shown: offered any, the model repeats its call, or answers a result with nothing."""
        held = _Held(emit)
        plain = msgspec.structs.replace(request, messages=retold(request.messages), tools=(), tool_choice="auto")
        response = await self._engine.complete(plain, held)
        text, calls = take_calls(response.message.text)
        results = results_of(request.messages)
        offered = {tool["function"]["name"] for tool in request.tools}
        if calls and not results and request.tool_choice != "none" and offered:
            held.withdraw()
            return _calling(response, text, calls, emit)
        if results and (calls or not text.strip()):
            held.withdraw()
            # It found no words of its own: what the tool said is the answer.
            said = Message(role="assistant", content=results[-1].text)
            emit(TextDelta(said.text))
            return msgspec.structs.replace(response, message=said, stop="end")
        held.release()
        return response


class _Held:
    """An `emit` that keeps text back as long as it may turn out to be a call."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._kept = ""
        self._is_open = False
        self._has_shown = False

    def __call__(self, delta: Delta) -> None:
        if not isinstance(delta, TextDelta) or self._is_open:
            self._emit(delta)
            return
        self._kept += delta.text
        if not may_become_a_call(self._kept):
            self.release()

    def release(self) -> None:
        """Show what was kept, and hand on everything from now."""
        kept, self._kept, self._is_open = self._kept, "", True
        if kept:
            self._has_shown = True
            self._emit(TextDelta(kept))

    def withdraw(self) -> None:
        """It was a call: take back what was shown of it."""
        self._kept = ""
        if self._has_shown:
            self._emit(Notice(kind="restart", message="the model wrote a tool call into its answer"))


def _ignore_text(emit: Emit) -> Emit:
    return lambda delta: emit(delta) if isinstance(delta, Notice) else None


def _calling(reply: ModelResponse, text: str, calls: Sequence[RequestedCall], emit: Emit) -> ModelResponse:
    named = tuple(msgspec.structs.replace(call, id=f"call_{uuid.uuid4().hex[:12]}") for call in calls)
    if text:
        emit(TextDelta(text))
    for index, call in enumerate(named):
        emit(CallDelta(index=index, id=call.id, name=call.name, arguments=call.arguments))
    message = Message(role="assistant", content=text, tool_calls=named)
    return msgspec.structs.replace(reply, message=message, stop="tool_calls")


def _with_limits(request: ModelRequest) -> ModelRequest:
    """Bounded, and without chance unless it is asked for: a small model that wanders does not come back."""
    return msgspec.structs.replace(
        request,
        max_output_tokens=min(request.max_output_tokens or MAX_ANSWER_TOKENS, MAX_ANSWER_TOKENS),
        temperature=0.0 if request.temperature is None else request.temperature,
    )
