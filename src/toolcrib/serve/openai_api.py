"""OpenAI's chat API, answered by the agent: its tools run here, and its questions appear in the answer."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from toolcrib.agent.events import CallFinished, CallStarted, RunEnded, RunResult, TextStreamed, TurnStarted
from toolcrib.agent.host import AgentHost
from toolcrib.core.cancel import finish_in_thread
from toolcrib.core.errors import ToolcribError
from toolcrib.core.models import ModelError, ModelResponse, StopReason, Usage
from toolcrib.serve.guard import identity_of
from toolcrib.serve.openai_requests import MODEL, AgentQuestion, BadRequest, ChatRequest, api_error, question_of_chat
from toolcrib.serve.page_routes import page_url
from toolcrib.serve.pass_through import PassedRequest, calls_shown, is_asked
from toolcrib.serve.questions import (
    OpenQuestion,
    PendingQuestions,
    QuestionAnswered,
    QuestionAsked,
    UnknownQuestion,
    unknown_question,
)
from toolcrib.serve.run_store import RunStoreError
from toolcrib.serve.runs import LoggedRunEvent, Run, RunManager, RunRefused, digest_of
from toolcrib.serve.tokens import TokenIdentity
from toolcrib.sessions.store import SessionStore

SESSION_HEADER = "X-Toolcrib-Session-Id"
PING_SECONDS = 10.0
HOUSEKEEPING_SECONDS = 60.0
CLIENT_LEFT = 499
"""The status in the access log for a client that did not wait for its answer."""
STREAM_HEADERS = {"X-Accel-Buffering": "no"}


class OpenAIApi:
    """`/v1/models` and `/v1/chat/completions`."""

    def __init__(self, host: AgentHost, runs: RunManager, questions: PendingQuestions) -> None:
        self._host = host
        self._runs = runs
        self._questions = questions

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model()]})

    async def model(self, request: Request) -> Response:
        if request.path_params["model"] != MODEL:
            return api_error(404, f"there is no model {request.path_params['model']!r}; use {MODEL!r}", "model")
        return JSONResponse(_model())

    async def chat(self, request: Request) -> Response:
        identity = identity_of(request.scope)
        try:
            body = msgspec.json.decode(await request.body(), type=ChatRequest)
            if is_asked(request.headers):
                return await self._pass_through(request, body)
            asked = question_of_chat(body)
            if body.stream:
                self._runs.require_stream(identity)
            if asked.is_housekeeping:
                return await self._housekeeping(asked, body, identity)
            run, after = await self._run_for(request, asked)
        except (msgspec.MsgspecError, RecursionError, ToolcribError) as error:
            return refused(error)
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        answer = ChatAnswer(run, self._runs, asked, identity.key, page_url(request, self._host.settings))
        headers = {SESSION_HEADER: run.session_id}
        if body.stream:
            pieces = answer.stream(after, include_usage=include_usage)
            return event_stream(self._runs, identity, pieces, headers)
        return await while_connected(request, answer.whole(after, headers))

    async def _run_for(self, request: Request, asked: AgentQuestion) -> tuple[Run, int]:
        """The run that answers a request: a new one, or one that waited for the answer in this message."""
        identity = identity_of(request.scope)
        held = await answered_run(self._runs, self._questions, asked, identity)
        if held is not None:
            return held
        self._runs.require_room(identity)
        wanted, session_id = request.headers.get(SESSION_HEADER), None
        if wanted is not None:
            session_id = (await self._runs.session(wanted, identity)).id
        elif asked.history:
            store = self._host.store
            session_id = await asyncio.to_thread(session_of_history, store, self._runs, asked, identity)
        run = await self._runs.start(session_id, asked.question, identity, instructions=asked.instructions)
        return run, 0

    async def _pass_through(self, request: Request, body: ChatRequest) -> Response:
        """The answer of the model to a client that runs its own tools."""
        identity, completion = identity_of(request.scope), Completion(self._runs.store.clock())
        await asyncio.to_thread(self._runs.require_money, identity.owner)
        passed = PassedRequest(self._host, self._runs, await request.body(), identity)
        if not body.stream:
            (response,) = [one async for one in passed.pieces() if isinstance(one, ModelResponse)]
            return JSONResponse(completion.passed(response))
        self._runs.require_stream(identity)

        async def stream() -> AsyncIterator[str]:
            yield completion.chunk({"role": "assistant", "content": ""})
            try:
                async for one in passed.pieces():
                    if isinstance(one, str):
                        yield completion.chunk({"content": one})
                        continue
                    calls = calls_shown(one.message)
                    if calls:
                        yield completion.chunk({"tool_calls": calls})
                    yield completion.chunk({}, _FINISHED[one.stop])
                    if body.stream_options is not None and body.stream_options.include_usage:
                        yield completion.usage_chunk(one.usage)
                    yield DONE
            except ToolcribError as error:
                problem = {"message": str(error), "type": "server_error", "param": None, "code": None}
                yield f"data: {json.dumps({'error': problem}, ensure_ascii=False)}\n\n"

        return event_stream(self._runs, identity, stream())

    async def _housekeeping(self, asked: AgentQuestion, body: ChatRequest, identity: TokenIdentity) -> Response:
        """A title or tags for a front end: one small request to the model, without an agent or tools."""
        costs: list[float] = []
        with self._runs.room(identity):
            await asyncio.to_thread(self._runs.require_money, identity.owner)
            model = self._host.auxiliary(spent=lambda usage, _: costs.append(usage.cost_usd or 0.0))
            text = await model.complete(asked.question.text, timeout_seconds=HOUSEKEEPING_SECONDS)
        await asyncio.to_thread(self._runs.store.add_cost, sum(costs), identity.owner)
        completion = Completion(self._runs.store.clock())
        if not body.stream:
            return JSONResponse(completion.whole(text, "stop", Usage()))

        async def stream() -> AsyncIterator[str]:
            yield completion.chunk({"role": "assistant", "content": text})
            yield completion.chunk({}, "stop")
            yield DONE

        return event_stream(self._runs, identity, stream())


async def answered_run(
    runs: RunManager, questions: PendingQuestions, asked: AgentQuestion, identity: TokenIdentity
) -> tuple[Run, int] | None:
    """`/approve CODE`, `/deny CODE` or `/answer CODE TEXT` as a message answers a question and goes on with its run,
    after the event that asked it."""
    word, _, rest = asked.question.text.strip().partition(" ")
    if word not in ("/approve", "/deny", "/answer"):
        return None
    code, _, text = rest.strip().partition(" ")
    found = await asyncio.to_thread(questions.find, code, identity.owner)
    is_reachable = await asyncio.to_thread(runs.may_reach, found.session_id, identity)
    if not is_reachable and found.request is None:
        raise unknown_question(code)
    held = [(run, number) for run in runs.working if (number := run.number_of_question(found.asked.id))]
    await asyncio.to_thread(settle, questions, found, word, text.strip(), identity)
    if not held or not is_reachable:
        raise RunRefused("the answer is recorded, but its run cannot be followed here; ask again to continue", 409)
    return held[0]


def settle(questions: PendingQuestions, found: OpenQuestion, word: str, text: str, identity: TokenIdentity) -> None:
    """Answer a question with a command; raises RunRefused without the right to, or if it was answered before."""
    code = found.asked.code
    if found.request is not None:
        if word == "/answer":
            raise RunRefused(f"{code} is an approval; reply `/approve {code}` or `/deny {code}`", 400)
        if not identity.may("approve"):
            raise RunRefused("this token may not answer approvals; it lacks the scope 'approve'", 403)
        if word == "/approve":
            choice = text if text in found.asked.choices else "once"
            require_choice(choice, identity)
            is_first = questions.decide(found, choice)
        else:
            is_first = questions.decide(found, "deny", text)
    else:
        if word != "/answer":
            raise RunRefused(f"{code} is a question, not an approval; reply `/answer {code} …`", 400)
        is_first = questions.answer(found, text)
    if not is_first:
        raise RunRefused("somebody else answered this question already", 409)


def require_choice(choice: str, identity: TokenIdentity) -> None:
    """Raises RunRefused for a permanent approval from a token that may not change the policy."""
    if choice == "always" and not identity.may("admin"):
        raise RunRefused("`always` changes the policy for good, which needs the scope 'admin'; use `session`", 403)


def session_of_history(store: SessionStore, runs: RunManager, asked: AgentQuestion, identity: TokenIdentity) -> str:
    """The session of the conversation that a client remembers; a new one with its messages, if we do not know it."""
    known = runs.store.session_for(digest_of(identity.key, asked.before()))
    session_id = runs.continued(*known) if known is not None else None
    if session_id is not None:
        return session_id
    session = runs.new_session(identity.owner)
    store.append_many(session.id, asked.history)
    return session.id


def remember(runs: RunManager, run: Run, asked: AgentQuestion, answer: str, token_key: str) -> None:
    """Recognise a conversation by what its client saw of it. Before the answer is complete for the client, who may go
    on at once. In a thread."""
    # A client that does not read its stream holds it until after the server has closed its database.
    with suppress(RunStoreError):
        runs.store.remember_transcript(digest_of(token_key, asked.after(answer)), run.session_id, run.id)


def event_stream(
    runs: RunManager, identity: TokenIdentity, events: AsyncIterator[str], headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    """A response that sends these events, and counts as a stream."""
    return CountedStream(runs.stream(identity), events, {**STREAM_HEADERS, **(headers or {})})


class CountedStream(StreamingResponse):
    """Counts from the moment that the route returns it: many requests at once must not pass the limit together."""

    def __init__(
        self, counted: AbstractContextManager[None], events: AsyncIterator[str], headers: Mapping[str, str]
    ) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await super().__call__(scope, receive, send)


async def while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The response that `work` gives; it is cancelled if the client leaves."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        # The whole body has been read: the next message says that the client is gone.
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    finally:
        leaving.cancel()
        working.cancel()
    return Response(status_code=CLIENT_LEFT)


class Completion:
    """One answer of the chat API, in its format."""

    def __init__(self, now: float) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self.created = int(now)

    def chunk(self, delta: dict[str, Any], finish: str | None = None, about: dict[str, Any] | None = None) -> str:
        """A piece of the answer; `about` is for clients that know us, and others ignore it."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return self._event({"choices": [choice], **({"toolcrib": about} if about is not None else {})})

    def usage_chunk(self, usage: Usage) -> str:
        return self._event({"choices": [], "usage": usage_of(usage)})

    def _event(self, body: dict[str, Any]) -> str:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": MODEL}
        return f"data: {json.dumps(head | body, ensure_ascii=False)}\n\n"

    def passed(self, response: ModelResponse) -> dict[str, Any]:
        """A response whose tools run at the client."""
        body = self.whole(response.message.text, _FINISHED[response.stop], response.usage)
        calls = calls_shown(response.message)
        if calls:
            body["choices"][0]["message"] |= {
                "content": response.message.text or None,
                "tool_calls": [{name: value for name, value in one.items() if name != "index"} for one in calls],
            }
        return body

    def whole(self, text: str, finish: str, usage: Usage) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": finish,
        }
        head = {"id": self.id, "object": "chat.completion", "created": self.created, "model": MODEL}
        return {**head, "choices": [choice], "usage": usage_of(usage)}


DONE = "data: [DONE]\n\n"
_FINISHED: dict[StopReason, str] = {
    "end": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "refused": "content_filter",
}
PING = ": waiting\n\n"


class ChatAnswer:
    """The answer to one request: what a run says, as chunks or as a whole."""

    def __init__(self, run: Run, runs: RunManager, asked: AgentQuestion, token_key: str, page: str) -> None:
        self._run = run
        self._runs = runs
        self._asked = asked
        self._token_key = token_key
        self._page = page
        self._said: list[str] = []
        self._completion = Completion(runs.store.clock())

    async def stream(self, after: int, *, include_usage: bool) -> AsyncIterator[str]:
        completion = self._completion
        async with self._remembered():
            yield completion.chunk({"role": "assistant", "content": ""})
            async for one in with_pings(self._run, after):
                if one is None:
                    yield PING
                    continue
                text, about = self._shown(one)
                if text or about:
                    yield completion.chunk({"content": text} if text else {}, about=about)
            result = self._run.result
            assert result is not None
            if result.outcome == "failed" and not self._said:
                yield f"data: {json.dumps({'error': _problem(result)}, ensure_ascii=False)}\n\n"
                return
            if result.problem:
                yield completion.chunk({"content": self._add(f"\n\n{result.problem}")})
            yield completion.chunk({}, _finish(result))
            if include_usage:
                yield completion.usage_chunk(result.usage)
            yield DONE

    async def whole(self, after: int, headers: dict[str, str]) -> Response:
        """The whole answer; if the run has a question, the answer so far with the question, and the run goes on
        waiting."""
        async with self._remembered():
            async for one in self._run.follow(after):
                self._shown(one)
                if self._run.waits_for(one):
                    return self._json("stop", Usage(), headers)
            result = self._run.result
            assert result is not None
            if result.outcome == "failed" and not self._said:
                return JSONResponse({"error": _problem(result)}, status_code=502, headers=headers)
            if result.problem:
                self._add(f"\n\n{result.problem}")
            return self._json(_finish(result), result.usage, headers)

    def _json(self, finish: str, usage: Usage, headers: dict[str, str]) -> Response:
        return JSONResponse(self._completion.whole("".join(self._said), finish, usage), headers=headers)

    @asynccontextmanager
    async def _remembered(self) -> AsyncIterator[None]:
        """While a client waits. Afterwards, the conversation is recognised by what the client saw of it."""
        try:
            with self._run.client():
                yield
        finally:
            seen = "".join(self._said)
            await finish_in_thread(remember, self._runs, self._run, self._asked, seen, self._token_key)

    def _shown(self, one: LoggedRunEvent) -> tuple[str, dict[str, Any] | None]:
        """The text that an event adds to the answer, and what it means for clients that know us."""
        event = one.event
        if isinstance(event, TextStreamed):
            return self._add(event.text), None
        if isinstance(event, TurnStarted) and self._said:
            return self._add("\n\n"), None
        if isinstance(event, (CallStarted, CallFinished, QuestionAnswered)):
            return "", msgspec.to_builtins(event)
        if isinstance(event, QuestionAsked):
            return self._add(f"\n\n{question_text(event, self._page)}\n\n"), msgspec.to_builtins(event)
        return "", None

    def _add(self, text: str) -> str:
        self._said.append(text)
        return text


async def with_pings(run: Run, after: int) -> AsyncIterator[LoggedRunEvent | None]:
    """The events of a run, with None now and then while nothing happens."""
    async for one in run.follow_with_pings(after, PING_SECONDS):
        yield one
        if one is not None and isinstance(one.event, RunEnded):
            return


def question_text(asked: QuestionAsked, page: str) -> str:
    """A question as it appears in an answer, with the address of the page."""
    lines = [f"**{asked.text}**"]
    if asked.command:
        # Longer than any in the command, which could otherwise leave its block and hide what follows.
        fence = "`" * max([3, *(len(one) + 1 for one in re.findall("`+", asked.command))])
        lines += ["", fence, asked.command, fence, *(f"- {reason}" for reason in asked.reasons)]
    if asked.kind == "approval":
        replies = f"`/approve {asked.code}` or `/deny {asked.code}`"
    else:
        lines += [f"- {choice}" for choice in asked.choices]
        replies = f"`/answer {asked.code} …`"
    # Without a full stop, which some programs would take for a part of the address.
    return "\n".join([*lines, "", f"Reply {replies}, or answer at {page}/approvals"])


def usage_of(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _finish(result: RunResult) -> str:
    return "length" if result.outcome == "budget" or result.is_incomplete else "stop"


def _problem(result: RunResult) -> dict[str, Any]:
    return {
        "message": result.problem or "the run failed",
        "type": "server_error",
        "param": None,
        "code": result.outcome,
    }


def _model() -> dict[str, Any]:
    return {"id": MODEL, "object": "model", "created": 0, "owned_by": "toolcrib"}


def refused(error: Exception) -> Response:
    """The response for a request that starts nothing."""
    if isinstance(error, BadRequest):
        return api_error(400, str(error), error.param)
    if isinstance(error, RunRefused):
        return api_error(error.status, str(error))
    if isinstance(error, RecursionError):
        return api_error(400, "the JSON is nested too deeply")
    if isinstance(error, UnknownQuestion):
        return api_error(404, str(error))
    if isinstance(error, ModelError):
        return api_error(502, str(error))
    return api_error(400 if isinstance(error, msgspec.MsgspecError) else 503, str(error))
