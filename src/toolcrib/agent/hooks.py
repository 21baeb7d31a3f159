"""Calls the hooks and middleware around a run and applies their answers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from toolcrib.agent.conversation import Conversation
from toolcrib.agent.events import RunResult
from toolcrib.core.messages import Message, user_message
from toolcrib.core.models import ModelRequest, ModelResponse
from toolcrib.core.types import JsonObject
from toolcrib.hooks.manager import ChainLayer, HookManager, HookRegistration, call_logged_async
from toolcrib.hooks.specs import MIDDLEWARE_SCHEMA_VERSION, TELEMETRY_SCHEMA_VERSION

MAX_VERIFY_ROUNDS = 3


class RunHooks(msgspec.Struct, kw_only=True):
    """The hooks around one run."""

    hooks: HookManager
    conversation: Conversation
    model: str
    platform: str
    turn_id: str
    changed_paths: Callable[[], list[str]]
    _question: str = ""
    _verified: int = 0

    async def opened(self, question: Message, *, is_first: bool) -> Message:
        """The question with what `pre_llm_call` adds to it."""
        self._question = question.text
        if is_first:
            await self._tell("on_session_start", model=self.model)
        if not self.hooks.has("pre_llm_call"):
            return question
        answers = await self._tell("pre_llm_call", **self._exchange(), is_first_turn=is_first, sender_id="")
        context = added_context(answers)
        return user_message(f"{question.text}\n\n{context}", question.images) if context else question

    async def verified(self, text: str) -> str:
        """What a `pre_verify` hook wants done before it accepts this answer; empty if it accepts it."""
        if not self.hooks.has("pre_verify") or self._verified >= MAX_VERIFY_ROUNDS:
            return ""
        paths = self.changed_paths()
        answers = await self._tell(
            "pre_verify",
            model=self.model,
            coding=bool(paths),
            attempt=self._verified,
            final_response=text,
            changed_paths=paths,
        )
        for answer in answers:
            if isinstance(answer, dict) and answer.get("action") == "continue" and answer.get("message"):
                self._verified += 1
                return str(answer["message"])
        return ""

    async def transformed(self, text: str) -> str:
        """The answer after `transform_llm_output`."""
        changed = first_text(await self._tell("transform_llm_output", response_text=text, model=self.model))
        return text if changed is None else changed

    async def closed(self, result: RunResult, api_request_id: str) -> None:
        """Runs when the run ends, with or without an answer."""
        if self.hooks.has("post_llm_call"):
            await self._tell("post_llm_call", **self._exchange(), assistant_response=result.answer)
        await self._tell(
            "on_session_end",
            task_id=self.conversation.session_id,
            turn_id=self.turn_id,
            completed=result.outcome == "answered",
            interrupted=result.outcome == "interrupted",
            model=self.model,
            reason=result.outcome,
            api_request_id=api_request_id,
        )

    async def _tell(self, name: str, **keywords: object) -> list[object]:
        return await fire(self.hooks, name, session_id=self.conversation.session_id, platform=self.platform, **keywords)

    def _exchange(self) -> dict[str, object]:
        return {
            "task_id": self.conversation.session_id,
            "turn_id": self.turn_id,
            "user_message": self._question,
            "conversation_history": self.conversation.as_json(),
            "model": self.model,
        }


logger = logging.getLogger(__name__)

Send = Callable[[ModelRequest], Awaitable[ModelResponse]]


async def fire(hooks: HookManager, name: str, **keywords: Any) -> list[Any]:
    """The answers of a hook's callbacks, without None; one that fails is logged and skipped."""
    if hooks.is_empty or not hooks.has(name):
        return []
    keywords["telemetry_schema_version"] = TELEMETRY_SCHEMA_VERSION
    answers = [await call_logged_async(name, registered, keywords) for registered in hooks.hooks(name)]
    return [answer for answer in answers if answer is not None]


def first_text(answers: list[Any]) -> str | None:
    return next((answer for answer in answers if isinstance(answer, str)), None)


def added_context(answers: list[Any]) -> str:
    """What `pre_llm_call` adds to a question: the texts, and those under the key `context`."""
    texts = [answer.get("context") if isinstance(answer, dict) else answer for answer in answers]
    return "\n\n".join(text for text in texts if isinstance(text, str) and text)


async def send_through_middleware(
    hooks: HookManager, request: ModelRequest, ids: JsonObject, send: Send
) -> ModelResponse:
    """The response to a request, after all `llm_request` middleware and inside all `llm_execution` middleware."""
    if hooks.is_empty:
        return await send(request)
    original = request
    for registered in hooks.middleware("llm_request"):
        keywords = _middleware_keywords(request, original, ids)
        answer = await call_logged_async("llm_request", registered, keywords)
        changed = answer.get("request") if isinstance(answer, dict) else None
        if isinstance(changed, dict):
            request = _changed(request, changed, registered)
    return await _Chain(hooks.middleware("llm_execution"), original, ids, send).enter(0, request)


class _Chain:
    """The `llm_execution` layers around a request, outermost first; each may run the rest once."""

    def __init__(
        self, layers: tuple[HookRegistration, ...], original: ModelRequest, ids: JsonObject, send: Send
    ) -> None:
        self._layers = layers
        self._original = original
        self._ids = ids
        self._send = send

    async def enter(self, index: int, request: ModelRequest) -> ModelResponse:
        if index == len(self._layers):
            return await self._send(request)
        registered = self._layers[index]
        layer = ChainLayer("llm_execution", registered)

        async def run_rest(changed: JsonObject | None = None) -> ModelResponse:
            inner = request if changed is None else _changed(request, changed, registered)
            response: ModelResponse = await layer.run_rest(lambda: self.enter(index + 1, inner))
            return response

        keywords = _middleware_keywords(request, self._original, self._ids)
        answer, error = await layer.call(_run_layer(registered, keywords, run_rest))
        if layer.error is not None:
            raise layer.error
        response = _response(answer) if error is None else None
        if response is not None:
            return response
        given: ModelResponse | None = layer.result
        return given if given is not None else await self.enter(index + 1, request)


async def _run_layer(
    registered: HookRegistration, keywords: JsonObject, run_rest: Callable[..., Awaitable[Any]]
) -> Any:
    if registered.is_async:
        return await registered(keywords | {"next_call": lambda request=None: run_rest(request)})
    loop = asyncio.get_running_loop()
    rest: list[Future[Any]] = []
    stopped = threading.Event()

    def next_call(request: JsonObject | None = None) -> Any:
        async def run() -> Any:
            return await run_rest(request)

        rest.append(asyncio.run_coroutine_threadsafe(run(), loop))
        if stopped.is_set():
            rest[-1].cancel()
        return rest[-1].result()

    # A plain function blocks until the rest is done, so it must not run on the loop that the rest needs.
    try:
        return await asyncio.to_thread(registered, keywords | {"next_call": next_call})
    finally:
        # No caller waits for a request that is still running; this has no effect on a finished one.
        stopped.set()
        for future in rest:
            future.cancel()


def _middleware_keywords(request: ModelRequest, original: ModelRequest, ids: JsonObject) -> JsonObject:
    return {
        **ids,
        "request": as_json(request),
        "original_request": as_json(original),
        "middleware_schema_version": MIDDLEWARE_SCHEMA_VERSION,
    }


def as_json(value: Any) -> Any:
    """A request or response as hooks see it: plain dicts and lists that they may change without harm."""
    return msgspec.to_builtins(value)


def _changed(request: ModelRequest, changed: JsonObject, registered: HookRegistration) -> ModelRequest:
    try:
        return msgspec.convert(as_json(request) | changed, ModelRequest)
    except msgspec.ValidationError as error:
        logger.error("cannot send a request as changed by %s: %s", registered.source, error)
        return request


def _response(answer: Any) -> ModelResponse | None:
    if isinstance(answer, ModelResponse):
        return answer
    if not isinstance(answer, dict):
        return None
    try:
        return msgspec.convert(answer, ModelResponse)
    except msgspec.ValidationError as error:
        logger.error("cannot read the response that a middleware returned: %s", error)
        return None
