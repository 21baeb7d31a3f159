"""What every provider does with a request: send it, read the answer as it is streamed, say what went wrong."""

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
from toolcrib.providers.failures import model_error, parse_json

END_SECONDS = 0.1
"""How long the end of the body is waited for after the last event, so that the connection can be used again."""
REST_SECONDS = 5.0
"""How long the last events are waited for after the answer is whole: they say what was used."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ServerEvent(NamedTuple):
    """One event that has data."""

    name: str
    data: str


Take = Callable[[ServerEvent], float | None]
"""Takes an event; gives for how many seconds anything more is worth waiting for, once there is a limit."""


class BrokenStream(Exception):
    """A server sent an error where an answer should be; `body` is what it says."""

    def __init__(self, body: Any) -> None:
        super().__init__("an error came instead of an answer")
        self.body = body


class EventReader:
    """Puts a body together that comes in pieces, wherever it is cut."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._is_first = True
        self._after_return = False
        self._name = ""
        self._data: list[str] = []
        self._stray: list[str] = []

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that are whole after this piece."""
        if self._after_return:
            piece = piece.removeprefix(b"\n")
        self._after_return = piece.endswith(b"\r")
        *lines, rest = _LINE_END.split(piece)
        for line in lines:
            yield from self._line(b"".join([*self._rest, line]))
            self._rest = []
        self._rest.append(rest)

    def end(self) -> Iterator[ServerEvent]:
        """The last event, where no blank line follows it."""
        yield from self._line(b"".join(self._rest))
        yield from self._dispatch()

    @property
    def stray(self) -> str:
        """The lines that belong to no event: the whole body, from a server that does not stream."""
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
    """Hand on each event as it comes; gives what the body holds beside events."""
    reader = EventReader()
    async with contextlib.aclosing(pieces), asyncio.timeout(None) as patience:
        async for piece in pieces:
            for event in reader.feed(piece):
                seconds = take(event)
                if seconds is not None:
                    patience.reschedule(asyncio.get_running_loop().time() + seconds)
    for event in reader.end():
        take(event)
    return reader.stray


def read_json(event: ServerEvent) -> Any:
    """What an event says; raises BrokenStream where that is an error."""
    if event.name == "error":
        raise BrokenStream(parse_json(event.data) or event.data)
    return checked(json.loads(event.data))


def checked(answer: Any) -> Any:
    """The answer, or a piece of it; raises BrokenStream where a server sends an error in its place."""
    if isinstance(answer, dict) and (answer.get("error") or "error" in (answer.get("type"), answer.get("object"))):
        raise BrokenStream(answer)
    return answer


CLOSE_SECONDS = 1.0
"""How long another loop is waited for, which may be busy."""


class Closable(Protocol):
    """A client that holds connections."""

    async def close(self) -> Any: ...


ClientT = TypeVar("ClientT", bound=Closable)


class LoopClients(Generic[ClientT]):
    """Makes a client when a loop first asks for one, and gives it the same one again."""

    def __init__(self, make: Callable[[], ClientT], package: str) -> None:
        self._make = make
        self._package = package
        self._by_loop: dict[asyncio.AbstractEventLoop, ClientT] = {}

    async def current(self) -> ClientT:
        """The client of the loop that runs here."""
        if self._package not in sys.modules:
            # Half a second or more, in which whoever watches this loop must not stand still.
            await asyncio.to_thread(_load, self._package)
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            for ended in [one for one in list(self._by_loop) if one.is_closed()]:
                self._by_loop.pop(ended, None)
            found = self._by_loop[loop] = self._make()
        return found

    async def close(self) -> None:
        """Close all connections, each on the loop that made it; those of a loop that is over are gone with it."""
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
    """Import an SDK; whoever makes a client with it says what is wrong when it is missing."""
    with contextlib.suppress(ImportError):
        importlib.import_module(package)


CONNECT_TIMEOUT_SECONDS = 10.0
# Servers on this machine ask for no key, but the SDKs insist on one.
NO_KEY = "none"
# How streams of chat completions end, and of servers that learned another protocol beside that one.
END_MARK = "[DONE]"


class StreamedAnswer(Protocol):
    """An answer that grows with each event."""

    has_begun: bool

    @property
    def is_over(self) -> bool:
        """The server said that this was all."""
        ...

    @property
    def is_usable(self) -> bool:
        """What there is can be shown to somebody."""
        ...

    def add(self, event: Any) -> None: ...

    def response(self, provider: str) -> ModelResponse: ...


class StreamingProvider(ABC, Generic[ClientT]):
    """A server that is reached through an SDK; see Provider. Answers are always streamed."""

    package: ClassVar[str]
    """The SDK, as it is imported and installed."""
    advice: ClassVar[str]
    """What is right about an address, in half a sentence."""

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
        """The whole answer; its pieces go to `emit` as they come."""
        body = self._body(request)
        answer = self._begun(request, emit)
        failure = (await attempt_async(self._receive(body, request.timeout_seconds, answer))).error
        # A connection that breaks after the end of an answer takes nothing from it.
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
            raise ModelError(
                f"{self.name} broke its answer off without saying why; try again", kind="server", may_retry=True
            )
        return answer.response(self.name)

    async def close(self) -> None:
        await self._clients.close()

    async def _receive(self, body: bytes, timeout_seconds: float, answer: StreamedAnswer) -> None:
        client = await self._clients.current()
        async with asyncio.timeout(timeout_seconds):
            # Leaving closes the connection, also when whoever waits for the answer is cancelled.
            async with await self._opened(client, body, timeout_seconds) as stream:
                if "text/html" in stream.response.headers.get("content-type", ""):
                    raise self._no_model_server()
                whole = await read_events(stream.response.aiter_bytes(), lambda event: self._take(event, answer))
                if whole and not answer.has_begun:
                    # From a server that does not stream, though it was asked to.
                    answer.add(checked(json.loads(whole)))

    @abstractmethod
    def _body(self, request: ModelRequest) -> bytes:
        """The request as the server takes it."""

    @abstractmethod
    def _begun(self, request: ModelRequest, emit: Emit) -> StreamedAnswer:
        """An answer without anything in it."""

    @abstractmethod
    async def _opened(self, client: ClientT, body: bytes, timeout_seconds: float) -> AbstractAsyncContextManager[Any]:
        """The SDK's stream of the answer, past the headers."""

    @abstractmethod
    def _take(self, event: ServerEvent, answer: Any) -> float | None:
        """Add an event to the answer; how long more is waited for when that was the end of it."""

    @abstractmethod
    def _new_client(self) -> ClientT:
        """A client of the SDK, with all that does not change from request to request."""

    def _missing_package(self) -> ModelError:
        return ModelError(
            f"the package `{self.package}`, which talks to {self.name}, is missing; "
            f"type `pip install 'toolcrib[{self.package}]'`",
            kind="missing_package",
        )

    def _no_model_server(self) -> ModelError:
        return ModelError(
            f"a web page, not a model, answered at {mask_shapes(self.base_url)!r}; check the address of {self.name}, "
            f"{self.advice}",
            kind="bad_request",
        )


def taken_ids(request: ModelRequest) -> set[str]:
    """The ids that calls of this conversation have already."""
    return {call.id for message in request.messages for call in message.tool_calls}
