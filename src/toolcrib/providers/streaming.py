"""What every provider does with a request: send it, read the answer as it is streamed, say what went wrong."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Generic, Protocol

from toolcrib.config.redact import mask_shapes
from toolcrib.core.attempt import attempt_async
from toolcrib.core.models import Emit, ModelError, ModelProfile, ModelRequest, ModelResponse
from toolcrib.providers.failures import model_error
from toolcrib.providers.loop_clients import ClientT, LoopClients
from toolcrib.providers.server_events import Event, checked, read_events

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
    def _take(self, event: Event, answer: Any) -> float | None:
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
