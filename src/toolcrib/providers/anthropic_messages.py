"""Claude behind Anthropic's messages API, or any model behind a server that speaks the same protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from toolcrib.config.redact import mask_shapes
from toolcrib.core.attempt import attempt, attempt_async
from toolcrib.core.models import Dialect, Emit, ModelError, ModelProfile, ModelRequest, ModelResponse
from toolcrib.core.types import JsonObject
from toolcrib.providers.anthropic_answer import Answer
from toolcrib.providers.anthropic_wire import WireRequests
from toolcrib.providers.failures import is_on_this_machine, model_error
from toolcrib.providers.loop_clients import LoopClients
from toolcrib.providers.server_events import END_SECONDS, REST_SECONDS, Event, checked, read_events, read_json

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream

BASE_URL = "https://api.anthropic.com"
CONNECT_TIMEOUT_SECONDS = 10.0
# Servers on this machine ask for no key, but the SDK insists on one.
NO_KEY = "none"
# Of servers that have learned the protocol beside OpenAI's.
END_MARK = "[DONE]"


class AnthropicMessages:
    """A server with the messages API; see Provider. Answers are always streamed."""

    api_mode = "anthropic_messages"
    dialect: Dialect = "anthropic"

    def __init__(
        self,
        *,
        name: str = "anthropic",
        base_url: str = BASE_URL,
        api_key: str,
        profile: Callable[[str], ModelProfile],
        default_headers: Mapping[str, str] | None = None,
        key_variable: str = "ANTHROPIC_API_KEY",
    ) -> None:
        self.name = name
        # The path of the API begins with /v1, which many people take for a part of the address.
        self.base_url = (base_url or BASE_URL).rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        self._profile = profile
        self._headers = dict(default_headers or {})
        self._key_variable = key_variable
        self._requests = WireRequests(name)
        self._clients = LoopClients(self._new_client, "anthropic")

    def profile(self, model: str) -> ModelProfile:
        return self._profile(model)

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        body = self._requests.body(request, self._profile(request.model), self._shaped)
        taken_ids = {call.id for message in request.messages for call in message.tool_calls}
        answer = Answer(emit, model=request.model, taken_ids=taken_ids)
        failure = (await attempt_async(self._receive(body, request.timeout_seconds, answer))).error
        # A connection that breaks after the end of an answer takes nothing from it.
        if failure is not None and not answer.stop_reason:
            raise model_error(
                failure,
                provider=self.name,
                model=request.model,
                base_url=self.base_url,
                key_variable=self._key_variable,
                tools=request.tools,
                secret=self._api_key,
            ) from failure
        if not answer.stop_reason:
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

    async def _opened(self, client: AsyncAnthropic, body: bytes, timeout_seconds: float) -> AsyncStream[object]:
        sdk = self._sdk()
        # Not `messages.create`, which copies every message of the history through its own types.
        stream: AsyncStream[object] = await client.post(
            "/v1/messages",
            content=body,
            cast_to=object,
            stream=True,
            stream_cls=sdk.AsyncStream[object],
            options={
                "headers": {"content-type": "application/json"},
                "timeout": sdk.Timeout(timeout_seconds, connect=min(CONNECT_TIMEOUT_SECONDS, timeout_seconds)),
            },
        )
        return stream

    def _shaped(self, schema: JsonObject) -> JsonObject:
        """A schema as structured output takes it; one that the SDK cannot read goes out as it is."""
        return attempt(self._sdk().transform_schema, schema).value or schema

    def _new_client(self) -> AsyncAnthropic:
        sdk = self._sdk()
        key = self._api_key or NO_KEY
        # Others who speak this protocol know the key by the header that it had first.
        headers = {} if self.base_url == BASE_URL else {"X-Api-Key": key}
        options: dict[str, Any] = {}
        if is_on_this_machine(self.base_url):
            # A proxy that is set for the world outside would not find a server on this machine.
            options["http_client"] = sdk.DefaultAsyncHttpxClient(trust_env=False)
        client: AsyncAnthropic = sdk.AsyncAnthropic(
            api_key=key, base_url=self.base_url, max_retries=0, default_headers=headers | self._headers, **options
        )
        return client

    def _sdk(self) -> ModuleType:
        try:
            # More than a second of CPU, which only those pay who talk to such a server.
            import anthropic  # noqa: PLC0415
        except ImportError as error:
            raise ModelError(
                f"the package `anthropic`, which talks to {self.name}, is missing; "
                "type `pip install 'toolcrib[anthropic]'`",
                kind="missing_package",
            ) from error
        return anthropic

    def _no_model_server(self) -> ModelError:
        return ModelError(
            f"a web page, not a model, answered at {mask_shapes(self.base_url)!r}; check the address of {self.name}, "
            "to which /v1/messages is added",
            kind="bad_request",
        )


def _take(event: Event, answer: Answer) -> float | None:
    if event.data.startswith(END_MARK):
        return END_SECONDS
    found = read_json(event)
    answer.add(found)
    if isinstance(found, dict) and found.get("type") == "message_stop":
        return END_SECONDS
    return REST_SECONDS if answer.stop_reason else None
