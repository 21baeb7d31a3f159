"""Models behind OpenAI's chat completions, or behind any server that speaks the same protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from toolcrib.config.redact import mask_shapes
from toolcrib.core.attempt import attempt_async
from toolcrib.core.models import Dialect, Emit, ModelError, ModelProfile, ModelRequest, ModelResponse
from toolcrib.providers.failures import is_on_this_machine, model_error
from toolcrib.providers.loop_clients import LoopClients
from toolcrib.providers.openai_answer import Answer
from toolcrib.providers.openai_wire import WireOptions, WireRequests
from toolcrib.providers.server_events import END_SECONDS, REST_SECONDS, Event, checked, read_events, read_json

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream

CONNECT_TIMEOUT_SECONDS = 10.0
# Servers on this machine ask for no key, but the SDK insists on one.
NO_KEY = "none"
END_MARK = "[DONE]"


class OpenAIChat:
    """A server with chat completions; see Provider. Answers are always streamed."""

    api_mode = "chat_completions"

    def __init__(
        self,
        *,
        name: str,
        base_url: str,
        api_key: str,
        dialect: Dialect = "openai",
        profile: Callable[[str], ModelProfile],
        default_headers: Mapping[str, str] | None = None,
        options: WireOptions = WireOptions(),  # noqa: B008
        key_variable: str = "",
    ) -> None:
        self.name = name
        # Some servers name the whole address of the one path that we use.
        self.base_url = base_url.strip().rstrip("/").removesuffix("/chat/completions")
        self.dialect: Dialect = dialect
        self._api_key = api_key
        self._profile = profile
        self._headers = dict(default_headers or {})
        self._key_variable = key_variable
        self._requests = WireRequests(name, options)
        self._clients = LoopClients(self._new_client, "openai")

    def profile(self, model: str) -> ModelProfile:
        return self._profile(model)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        body = self._requests.body(request, sees_images=self._profile(request.model).sees_images)
        answer = Answer(emit, taken_ids={call.id for message in request.messages for call in message.tool_calls})
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

    async def _receive(self, body: bytes, timeout_seconds: float, answer: Answer) -> None:
        client = await self._clients.current()
        async with asyncio.timeout(timeout_seconds):
            # Leaving closes the connection, also when whoever waits for the answer is cancelled.
            async with await self._opened(client, body, timeout_seconds) as stream:
                if "text/html" in stream.response.headers.get("content-type", ""):
                    raise self._no_model_server()
                whole = await read_events(stream.response.aiter_bytes(), lambda event: _take(event, answer))
                if whole and not answer.has_begun:
                    # From a server that does not stream, though it was asked to.
                    answer.add(checked(json.loads(whole)))

    async def _opened(self, client: AsyncOpenAI, body: bytes, timeout_seconds: float) -> AsyncStream[object]:
        from openai import AsyncStream, Timeout  # noqa: PLC0415 -- imported with the client; see _new_client

        # Not `chat.completions.create`, which copies every message of the history through its own types.
        return await client.post(
            "/chat/completions",
            content=body,
            cast_to=object,
            stream=True,
            stream_cls=AsyncStream[object],
            options={"timeout": Timeout(timeout_seconds, connect=min(CONNECT_TIMEOUT_SECONDS, timeout_seconds))},
        )

    def _new_client(self) -> AsyncOpenAI:
        try:
            # Half a second of CPU, which only those pay who talk to such a server.
            from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # noqa: PLC0415
        except ImportError as error:
            raise ModelError(
                f"the package `openai`, which talks to {self.name}, is missing; type `pip install 'toolcrib[openai]'`",
                kind="missing_package",
            ) from error
        # A proxy that is set for the world outside would not find a server on this machine, and reading the
        # certificates of the world takes longer than all the rest.
        here, encrypted = is_on_this_machine(self.base_url), not self.base_url.lower().startswith("http://")
        plain = None if encrypted and not here else DefaultAsyncHttpxClient(trust_env=not here, verify=encrypted)
        return AsyncOpenAI(
            api_key=self._api_key or NO_KEY,
            base_url=self.base_url,
            max_retries=0,
            default_headers=self._headers,
            http_client=plain,
        )

    def _no_model_server(self) -> ModelError:
        return ModelError(
            f"a web page, not a model, answered at {mask_shapes(self.base_url)!r}; check the address of {self.name}, "
            "which for most servers ends in /v1",
            kind="bad_request",
        )


def _take(event: Event, answer: Answer) -> float | None:
    if event.data.startswith(END_MARK):
        answer.is_over = True
        return END_SECONDS
    answer.add(read_json(event))
    return REST_SECONDS if answer.is_over else None
