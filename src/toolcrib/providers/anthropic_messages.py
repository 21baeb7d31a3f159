"""Claude behind Anthropic's messages API, or any model behind a server that speaks the same protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from toolcrib.core.attempt import attempt
from toolcrib.core.models import Dialect, Emit, ModelProfile, ModelRequest
from toolcrib.core.types import JsonObject
from toolcrib.providers.anthropic_answer import Answer
from toolcrib.providers.anthropic_wire import WireRequests
from toolcrib.providers.failures import is_on_this_machine
from toolcrib.providers.server_events import END_SECONDS, REST_SECONDS, Event, read_json
from toolcrib.providers.streaming import CONNECT_TIMEOUT_SECONDS, END_MARK, NO_KEY, StreamingProvider, taken_ids

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream

BASE_URL = "https://api.anthropic.com"


class AnthropicMessages(StreamingProvider["AsyncAnthropic"]):
    """A server with the messages API; see Provider."""

    api_mode = "anthropic_messages"
    dialect: Dialect = "anthropic"
    package = "anthropic"
    advice = "to which /v1/messages is added"

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
        super().__init__(
            name=name,
            # The path of the API begins with /v1, which many people take for a part of the address.
            base_url=(base_url or BASE_URL).rstrip("/").removesuffix("/v1"),
            api_key=api_key,
            profile=profile,
            default_headers=default_headers,
            key_variable=key_variable,
        )
        self._requests = WireRequests(name)

    def _body(self, request: ModelRequest) -> bytes:
        return self._requests.body(request, self._profile(request.model), self._shaped)

    def _begun(self, request: ModelRequest, emit: Emit) -> Answer:
        return Answer(emit, model=request.model, taken_ids=taken_ids(request))

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

    def _take(self, event: Event, answer: Answer) -> float | None:
        if event.data.startswith(END_MARK):
            return END_SECONDS
        found = read_json(event)
        answer.add(found)
        if isinstance(found, dict) and found.get("type") == "message_stop":
            return END_SECONDS
        return REST_SECONDS if answer.is_over else None

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
            raise self._missing_package() from error
        return anthropic
