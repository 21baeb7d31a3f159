"""A local server that answers like OpenAI's and Anthropic's APIs, from a script.

    with ScriptedModelServer(["Hello.", ErrorResponse(429, retry_after=1)]) as server:
        client = OpenAI(base_url=server.base_url, api_key="any")
        ...
        assert server.requests[0].body["model"] == "test"

It runs in its own threads, so it serves code with and without an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import re
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolcrib.core.messages import RequestedCall
from toolcrib.core.models import ModelResponse
from toolcrib.core.types import JsonObject
from toolcrib.providers.scripted import says

__all__ = ["ErrorResponse", "RawResponse", "ReceivedRequest", "ScriptedModelServer", "ServerStep", "Stream"]

POLL_SECONDS = 0.02


@dataclass(frozen=True)
class ErrorResponse:
    """An error: a status, and a body in the format of the request's protocol."""

    status: int = 500
    message: str = "scripted failure"
    kind: str = "scripted_error"
    retry_after: float | None = None
    body: str | None = None
    """A different body, sent unchanged."""


@dataclass(frozen=True)
class Stream:
    """A streamed answer, and what goes wrong during it."""

    answer: str | ModelResponse
    stall_after: int | None = None
    """Send nothing more after this many events; the connection stays open."""
    drop_after: int | None = None
    """Cut the connection after this many events; 0 cuts it before the first byte."""
    end_after: int | None = None
    """End the answer after this many events, in order, as a proxy does whose server went away."""
    pause_seconds: float = 0.0
    """The delay between two events."""


@dataclass(frozen=True)
class RawResponse:
    """A body that is sent unchanged: a recorded stream, or garbage."""

    body: bytes
    content_type: str = "text/event-stream"
    status: int = 200


ServerStep = (
    str | ModelResponse | Stream | ErrorResponse | RawResponse | Callable[["ReceivedRequest"], "str | ModelResponse"]
)
"""What happens to one request."""


@dataclass(frozen=True)
class ReceivedRequest:
    """A received request."""

    path: str
    headers: Mapping[str, str]
    """With names in lower case."""
    body: JsonObject
    at: float
    """The time of arrival, on the monotonic clock."""
    connection: int
    """The number of the connection, which shows reuse."""


@dataclass
class _State:
    steps: list[ServerStep]
    otherwise: ServerStep | None
    requests: list[ReceivedRequest] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    closing: threading.Event = field(default_factory=threading.Event)
    hang_ups: int = 0
    connections: set[socket.socket] = field(default_factory=set)
    connection_count: int = 0


class ScriptedModelServer:
    """Answers each request with the next step, and records the requests. Works with `with` and `async with`."""

    def __init__(self, steps: Iterable[ServerStep] = (), *, otherwise: ServerStep | None = None) -> None:
        self._state = _State(list(steps), otherwise)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def requests(self) -> list[ReceivedRequest]:
        """Every request so far, in order."""
        return self._state.requests

    @property
    def hang_ups(self) -> int:
        """How often a client closed the connection before the end of an answer."""
        return self._state.hang_ups

    @property
    def origin(self) -> str:
        """The URL without a path, for Anthropic clients."""
        assert self._server is not None, "start the server first: `with ScriptedModelServer(…) as server:`"
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def base_url(self) -> str:
        """The URL for OpenAI clients."""
        return f"{self.origin}/v1"

    def add(self, *steps: ServerStep) -> None:
        """Append more steps."""
        self._state.steps.extend(steps)

    def wait_for(self, condition: Callable[[ScriptedModelServer], bool], seconds: float = 10.0) -> bool:
        """Wait until a condition on the server is true, such as `lambda server: server.hang_ups == 1`."""
        with self._state.changed:
            return self._state.changed.wait_for(lambda: condition(self), seconds)

    async def until(self, condition: Callable[[ScriptedModelServer], bool], seconds: float = 10.0) -> bool:
        """The same, for code on an event loop."""
        return await asyncio.to_thread(self.wait_for, condition, seconds)

    def __enter__(self) -> ScriptedModelServer:
        self._server = _Server(self._state)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._state.closing.set()
        self._server.shutdown()
        with self._state.changed:
            opened = list(self._state.connections)
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()

    async def __aenter__(self) -> ScriptedModelServer:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, state: _State) -> None:
        self.state = state
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    connection: socket.socket

    def setup(self) -> None:
        super().setup()
        state = self.server.state
        with state.changed:
            state.connections.add(self.connection)
            state.connection_count += 1
            self._number = state.connection_count

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        with self.server.state.changed:
            self.server.state.connections.discard(self.connection)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the requests are recorded anyway."""

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "scripted", "object": "model"}]}
        self._send(200 if self.path.endswith("/models") else 404, json.dumps(models).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        seen = ReceivedRequest(
            path=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            body=json.loads(body or b"{}"),
            at=time.monotonic(),
            connection=self._number,
        )
        step, number = self._next(seen)
        if isinstance(step, RawResponse):
            self._send(step.status, step.body, step.content_type)
        elif isinstance(step, ErrorResponse):
            self._refuse(step)
        else:
            self._play(step if isinstance(step, Stream) else Stream(step), seen, number)

    def _next(self, seen: ReceivedRequest) -> tuple[str | ModelResponse | Stream | ErrorResponse | RawResponse, int]:
        state = self.server.state
        with state.changed:
            state.requests.append(seen)
            state.changed.notify_all()
            number = len(state.requests)
            step = state.steps.pop(0) if state.steps else state.otherwise
        if step is None:
            step = ErrorResponse(500, f"the script is over: request {number} has no step")
        return (step(seen) if callable(step) else step), number

    @property
    def _is_anthropic(self) -> bool:
        return self.path.partition("?")[0].endswith("/messages")

    def _refuse(self, refusal: ErrorResponse) -> None:
        error: JsonObject = {"message": refusal.message, "type": refusal.kind}
        body = {"type": "error", "error": error} if self._is_anthropic else {"error": error}
        headers = {} if refusal.retry_after is None else {"retry-after": f"{refusal.retry_after:g}"}
        text = json.dumps(body) if refusal.body is None else refusal.body
        self._send(refusal.status, text.encode(), headers=headers)

    def _send(
        self, status: int, body: bytes, kind: str = "application/json", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _play(self, step: Stream, seen: ReceivedRequest, number: int) -> None:
        response = says(step.answer) if isinstance(step.answer, str) else step.answer
        if step.drop_after == 0:
            self._cut()
            return
        if not seen.body.get("stream"):
            whole = anthropic_whole if self._is_anthropic else openai_whole
            self._send(200, json.dumps(whole(response, number)).encode())
            return
        events = (anthropic_events if self._is_anthropic else openai_events)(response, number)
        try:
            self._stream(step, events)
        except ConnectionError:
            self._hung_up()

    def _stream(self, step: Stream, events: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for at, event in enumerate(events):
            if at == step.stall_after:
                self._stall()
                return
            if at == step.drop_after:
                self._cut()
                return
            if at == step.end_after:
                break
            if step.pause_seconds:
                self.server.state.closing.wait(step.pause_seconds)
            self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _stall(self) -> None:
        """Send nothing more until the client gives up or the server stops."""
        while not self.server.state.closing.is_set():
            readable, _, _ = select.select([self.connection], [], [], POLL_SECONDS)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError("the client hung up")
        self.close_connection = True

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _hung_up(self) -> None:
        self.close_connection = True
        state = self.server.state
        with state.changed:
            state.hang_ups += 1
            state.changed.notify_all()


ARGUMENT_PIECE_CHARS = 12
_OPENAI_STOPS = {"end": "stop", "tool_calls": "tool_calls", "length": "length", "refused": "content_filter"}
_ANTHROPIC_STOPS = {"end": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "refused": "refusal"}


def openai_events(response: ModelResponse, number: int) -> Iterator[bytes]:
    """The chunks of a streamed chat completion, the last one with the usage, and the end marker."""
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
    """A chat completion for a request without streaming."""
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
    """A message for a request without streaming."""
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
