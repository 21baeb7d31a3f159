"""Models behind OpenAI's chat completions, or behind any server that speaks the same protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from toolcrib.core.models import Dialect, Emit, ModelProfile, ModelRequest
from toolcrib.providers.failures import is_on_this_machine
from toolcrib.providers.openai_answer import Answer
from toolcrib.providers.openai_wire import WireOptions, WireRequests
from toolcrib.providers.server_events import END_SECONDS, REST_SECONDS, Event, read_json
from toolcrib.providers.streaming import CONNECT_TIMEOUT_SECONDS, END_MARK, NO_KEY, StreamingProvider, taken_ids

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream


class OpenAIChat(StreamingProvider["AsyncOpenAI"]):
    """A server with chat completions; see Provider."""

    api_mode = "chat_completions"
    package = "openai"
    advice = "which for most servers ends in /v1"

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
        super().__init__(
            name=name,
            # Some servers name the whole address of the one path that we use.
            base_url=base_url.strip().rstrip("/").removesuffix("/chat/completions"),
            api_key=api_key,
            profile=profile,
            default_headers=default_headers,
            key_variable=key_variable,
        )
        self.dialect: Dialect = dialect
        self._requests = WireRequests(name, options)

    def _body(self, request: ModelRequest) -> bytes:
        profile = self._profile(request.model)
        return self._requests.body(request, sees_images=profile.sees_images, hears_audio=profile.hears_audio)

    def _begun(self, request: ModelRequest, emit: Emit) -> Answer:
        return Answer(emit, taken_ids=taken_ids(request))

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

    def _take(self, event: Event, answer: Answer) -> float | None:
        if event.data.startswith(END_MARK):
            answer.is_over = True
            return END_SECONDS
        answer.add(read_json(event))
        return REST_SECONDS if answer.is_over else None

    def _new_client(self) -> AsyncOpenAI:
        try:
            # Half a second of CPU, which only those pay who talk to such a server.
            from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # noqa: PLC0415
        except ImportError as error:
            raise self._missing_package() from error
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
