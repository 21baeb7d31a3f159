"""What all SDK-based providers share: send a request, read the streamed answer, report what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from toolcrib.config.redact import mask_shapes
from toolcrib.core.attempt import attempt_async
from toolcrib.core.models import Emit, ModelError, ModelProfile, ModelRequest, ModelResponse
from toolcrib.providers.failures import model_error

END_SECONDS = 0.1
"""How long to wait for the end of the body after the last event, so that the connection can be reused."""
REST_SECONDS = 5.0
"""How long to wait for the last events after the answer is complete: they report the usage."""
MAX_ANSWER_BYTES = 256_000_000
"""More than the longest answers of today's models, with a whole event for each word."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ServerEvent(NamedTuple):
    """One event with data."""

    name: str
    data: str


Take = Callable[[ServerEvent], float | None]
"""Handles an event; returns how many more seconds to wait, once there is a limit."""


class BrokenStream(Exception):
    """A server sent an error instead of an answer; `body` is its content."""

    def __init__(self, body: Any) -> None:
        super().__init__("received an error instead of an answer")
        self.body = body


class AnswerTooLarge(Exception):
    """A server sent more than any model answers."""


class EventReader:
    """Parses server-sent events from a body that arrives in arbitrary pieces."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._is_first = True
        self._after_return = False
        self._name = ""
        self._data: list[str] = []
        self._stray: list[str] = []

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events completed by this piece."""
        if self._after_return:
            piece = piece.removeprefix(b"\n")
        self._after_return = piece.endswith(b"\r")
        *lines, rest = _LINE_END.split(piece)
        for line in lines:
            yield from self._line(b"".join([*self._rest, line]))
            self._rest = []
        self._rest.append(rest)

    def end(self) -> Iterator[ServerEvent]:
        """The last event, if no blank line follows it."""
        yield from self._line(b"".join(self._rest))
        yield from self._dispatch()

    @property
    def stray(self) -> str:
        """The lines outside any event: the whole body, if the server does not stream."""
        return "\n".join(self._stray)

    def _line(self, line: bytes) -> Iterator[ServerEvent]:
        if self._is_first:
            line, self._is_first = line.removeprefix(_BYTE_ORDER_MARK), False
        if not line:
            yield from self._dispatch()
            return
        text = line.decode("utf-8", "replace")
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field not in ("", "id", "retry"):
            self._stray.append(text)

    def _dispatch(self) -> Iterator[ServerEvent]:
        name, data = self._name, "\n".join(self._data)
        self._name, self._data = "", []
        if data.strip():
            yield ServerEvent(name, data)


async def read_events(pieces: AsyncGenerator[bytes, None], take: Take) -> str:
    """Handle each event as it arrives; returns the part of the body outside events. Raises AnswerTooLarge."""
    reader, left = EventReader(), MAX_ANSWER_BYTES
    async with contextlib.aclosing(pieces), asyncio.timeout(None) as timeout:
        async for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise AnswerTooLarge
            for event in reader.feed(piece):
                seconds = take(event)
                if seconds is not None:
                    timeout.reschedule(asyncio.get_running_loop().time() + seconds)
    for event in reader.end():
        take(event)
    return reader.stray


def read_json(event: ServerEvent) -> Any:
    """The content of an event; raises BrokenStream if it is an error."""
    if event.name == "error":
        try:
            body = json.loads(event.data)
        except (ValueError, RecursionError):
            body = None
        raise BrokenStream(body or event.data)
    return checked(json.loads(event.data))


def checked(answer: Any) -> Any:
    """The answer, or a piece of it; raises BrokenStream if the server sent an error instead."""
    if isinstance(answer, dict) and (answer.get("error") or "error" in (answer.get("type"), answer.get("object"))):
        raise BrokenStream(answer)
    return answer


CLOSE_SECONDS = 1.0
"""How long to wait for another loop, which may be busy."""


class Closable(Protocol):
    """A client that holds connections."""

    async def close(self) -> Any: ...


ClientT = TypeVar("ClientT", bound=Closable)


class LoopClients(Generic[ClientT]):
    """Creates one client per event loop, on first use."""

    def __init__(self, make: Callable[[], ClientT], package: str) -> None:
        self._make = make
        self._package = package
        self._by_loop: dict[asyncio.AbstractEventLoop, ClientT] = {}

    async def current(self) -> ClientT:
        """The client of the running loop."""
        if self._package not in sys.modules:
            # The import takes half a second or more and must not block this loop.
            await asyncio.to_thread(_load, self._package)
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            for ended in [one for one in list(self._by_loop) if one.is_closed()]:
                self._by_loop.pop(ended, None)
            found = self._by_loop[loop] = self._make()
        return found

    async def close(self) -> None:
        """Close all connections, each on its own loop; those of a closed loop are already gone."""
        opened, self._by_loop = self._by_loop, {}
        here = asyncio.get_running_loop()
        for loop, client in opened.items():
            if loop is here:
                await client.close()
            elif loop.is_running():
                there = asyncio.run_coroutine_threadsafe(client.close(), loop)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.wrap_future(there), CLOSE_SECONDS)


def _load(package: str) -> None:
    """Import an SDK; a missing one is reported when a client is created."""
    with contextlib.suppress(ImportError):
        importlib.import_module(package)


CONNECT_TIMEOUT_SECONDS = 10.0
# Local servers need no key, but the SDKs insist on one.
NO_KEY = "none"
# Ends a stream of chat completions, and of servers that added a second protocol.
END_MARK = "[DONE]"
UNFINISHED = "{"
"""The arguments of a call that reached the output limit before they began: no object, so nothing runs it."""


class StreamedAnswer(Protocol):
    """An answer that grows with each event."""

    has_begun: bool

    @property
    def is_over(self) -> bool:
        """The server has reported the end: by a reason, by its end mark, or because the body is one whole answer."""
        ...

    @property
    def is_usable(self) -> bool:
        """The answer is over, and it is one: not an error, not a call that breaks off."""
        ...

    def add(self, event: Any) -> None: ...

    def end(self) -> None:
        """Note that nothing more follows, because the server sent its end mark or did not stream."""
        ...

    def response(self, provider: str) -> ModelResponse: ...


class StreamingProvider(ABC, Generic[ClientT]):
    """A provider that reaches its server through an SDK; see Provider. Answers are always streamed."""

    package: ClassVar[str]
    """The SDK's name, for import and for pip."""
    advice: ClassVar[str]
    """How a correct address looks, as a clause."""

    def __init__(
        self,
        *,
        name: str,
        base_url: str,
        api_key: str,
        profile: Callable[[str], ModelProfile],
        default_headers: Mapping[str, str] | None,
        key_variable: str,
    ) -> None:
        self.name = name
        self.base_url = base_url
        self._api_key = api_key
        self._profile = profile
        self._headers = dict(default_headers or {})
        self._key_variable = key_variable
        self._clients: LoopClients[ClientT] = LoopClients(self._new_client, self.package)

    def profile(self, model: str) -> ModelProfile:
        return self._profile(model)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """The complete answer; `emit` receives its pieces as they arrive."""
        body = self._body(request)
        answer = self._begun(request, emit)
        failure = (await attempt_async(self._receive(body, request.timeout_seconds, answer))).error
        # A connection that breaks after the end of an answer does no harm.
        if failure is not None and not answer.is_over:
            raise model_error(
                failure,
                provider=self.name,
                model=request.model,
                base_url=self.base_url,
                key_variable=self._key_variable,
                tools=request.tools,
                secret=self._api_key,
            ) from failure
        if not answer.is_usable:
            # A dropped connection often looks like an orderly end, so only the server's own word counts.
            raise ModelError(f"{self.name} broke off its answer; try again", kind="server", may_retry=True)
        return answer.response(self.name)

    async def close(self) -> None:
        await self._clients.close()

    async def _receive(self, body: bytes, timeout_seconds: float, answer: StreamedAnswer) -> None:
        client = await self._clients.current()
        async with asyncio.timeout(timeout_seconds):
            # Leaving the block closes the connection, even if the caller is cancelled.
            async with await self._opened(client, body, timeout_seconds) as stream:
                if "text/html" in stream.response.headers.get("content-type", ""):
                    raise self._no_model_server()
                try:
                    whole = await read_events(stream.response.aiter_bytes(), lambda event: self._take(event, answer))
                except AnswerTooLarge:
                    raise self._too_large() from None
                if whole and not answer.has_begun:
                    # The server ignored the request to stream.
                    answer.add(checked(json.loads(whole)))
                    answer.end()

    @abstractmethod
    def _body(self, request: ModelRequest) -> bytes:
        """The encoded request."""

    @abstractmethod
    def _begun(self, request: ModelRequest, emit: Emit) -> StreamedAnswer:
        """An empty answer to fill."""

    @abstractmethod
    async def _opened(self, client: ClientT, body: bytes, timeout_seconds: float) -> AbstractAsyncContextManager[Any]:
        """The SDK's stream of the answer, after the headers."""

    @abstractmethod
    def _take(self, event: ServerEvent, answer: Any) -> float | None:
        """Add an event to the answer; returns how many more seconds to wait if it was the last."""

    @abstractmethod
    def _new_client(self) -> ClientT:
        """A client of the SDK, with everything that is the same for all requests."""

    def _missing_package(self) -> ModelError:
        return ModelError(
            f"the package `{self.package}`, which talks to {self.name}, is missing; "
            f"run `pip install 'toolcrib[{self.package}]'`",
            kind="missing_package",
        )

    def _no_model_server(self) -> ModelError:
        return ModelError(
            f"a web page, not a model, answered at {mask_shapes(self.base_url)!r}; check the address of {self.name}, "
            f"{self.advice}",
            kind="bad_request",
        )

    def _too_large(self) -> ModelError:
        size = MAX_ANSWER_BYTES // 1_000_000
        return ModelError(f"the answer of {self.name} is larger than {size} MB; use another model", kind="server")


def taken_ids(request: ModelRequest) -> set[str]:
    """The call ids already used in this conversation."""
    return {call.id for message in request.messages for call in message.tool_calls}
