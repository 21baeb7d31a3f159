"""A server on this machine that answers as OpenAI's and Anthropic's do, from a script.

    with ScriptedModelServer(["Hello.", Refusal(429, retry_after=1)]) as server:
        client = OpenAI(base_url=server.base_url, api_key="any")
        ...
        assert server.requests[0].body["model"] == "test"

It runs in threads of its own, so that it serves code with and without an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolcrib.core.models import ModelResponse
from toolcrib.core.types import JsonObject
from toolcrib.providers.scripted import says
from toolcrib.testing.model_server_wire import anthropic_events, anthropic_whole, openai_events, openai_whole

__all__ = ["Recorded", "Refusal", "ScriptedModelServer", "SeenRequest", "ServerStep", "Stream"]

POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Refusal:
    """An error: a status, and a body in the form of the protocol that the request speaks."""

    status: int = 500
    message: str = "scripted failure"
    kind: str = "scripted_error"
    retry_after: float | None = None
    body: str | None = None
    """Another body, as it is."""


@dataclass(frozen=True)
class Stream:
    """An answer that is streamed, and what goes wrong on the way."""

    answer: str | ModelResponse
    stall_after: int | None = None
    """After this many events nothing more comes; the connection stays open."""
    drop_after: int | None = None
    """After this many events the connection is cut; 0 cuts it before any byte of an answer."""
    pause_seconds: float = 0.0
    """Between two events."""


@dataclass(frozen=True)
class Recorded:
    """A body that is sent as it is: a recorded stream, or garbage."""

    body: bytes
    content_type: str = "text/event-stream"
    status: int = 200


ServerStep = str | ModelResponse | Stream | Refusal | Recorded | Callable[["SeenRequest"], "str | ModelResponse"]
"""What happens to one request."""


@dataclass(frozen=True)
class SeenRequest:
    """A request that came in."""

    path: str
    headers: Mapping[str, str]
    """With names in lower case."""
    body: JsonObject
    at: float
    """When, by the monotonic clock."""
    connection: int
    """A number for each connection, so that reuse can be seen."""


@dataclass
class _State:
    steps: list[ServerStep]
    otherwise: ServerStep | None
    requests: list[SeenRequest] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    closing: threading.Event = field(default_factory=threading.Event)
    hang_ups: int = 0
    connections: set[socket.socket] = field(default_factory=set)
    connection_count: int = 0


class ScriptedModelServer:
    """Answers each request with the next step, and keeps the requests. For `with` and for `async with`."""

    def __init__(self, steps: Iterable[ServerStep] = (), *, otherwise: ServerStep | None = None) -> None:
        self._state = _State(list(steps), otherwise)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def requests(self) -> list[SeenRequest]:
        """Every request so far, in order."""
        return self._state.requests

    @property
    def hang_ups(self) -> int:
        """How many answers were not heard to the end, because the client closed the connection."""
        return self._state.hang_ups

    @property
    def origin(self) -> str:
        """The address without a path, which is what clients of Anthropic want."""
        assert self._server is not None, "start the server first: `with ScriptedModelServer(…) as server:`"
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def base_url(self) -> str:
        """The address that clients of OpenAI want."""
        return f"{self.origin}/v1"

    def add(self, *steps: ServerStep) -> None:
        """More steps, for after those that are left."""
        self._state.steps.extend(steps)

    def wait_for(self, condition: Callable[[ScriptedModelServer], bool], seconds: float = 10.0) -> bool:
        """Wait until something is true of the server, such as `lambda server: server.hang_ups == 1`."""
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
        """Say nothing: the requests are kept."""

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "scripted", "object": "model"}]}
        self._send(200 if self.path.endswith("/models") else 404, json.dumps(models).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        seen = SeenRequest(
            path=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            body=json.loads(body or b"{}"),
            at=time.monotonic(),
            connection=self._number,
        )
        step, number = self._next(seen)
        if isinstance(step, Recorded):
            self._send(step.status, step.body, step.content_type)
        elif isinstance(step, Refusal):
            self._refuse(step)
        else:
            self._play(step if isinstance(step, Stream) else Stream(step), seen, number)

    def _next(self, seen: SeenRequest) -> tuple[str | ModelResponse | Stream | Refusal | Recorded, int]:
        state = self.server.state
        with state.changed:
            state.requests.append(seen)
            state.changed.notify_all()
            number = len(state.requests)
            step = state.steps.pop(0) if state.steps else state.otherwise
        if step is None:
            step = Refusal(500, f"the script is over: request {number} has no step")
        return (step(seen) if callable(step) else step), number

    @property
    def _is_anthropic(self) -> bool:
        return self.path.partition("?")[0].endswith("/messages")

    def _refuse(self, refusal: Refusal) -> None:
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

    def _play(self, step: Stream, seen: SeenRequest, number: int) -> None:
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
            if step.pause_seconds:
                self.server.state.closing.wait(step.pause_seconds)
            self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _stall(self) -> None:
        """Say nothing more until the client gives up, or the server ends."""
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
