"""The provider that needs no key: a small model in a separate process, downloaded once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from toolcrib.config.environment import environment
from toolcrib.config.paths import Home
from toolcrib.core.context import CancelToken
from toolcrib.core.models import Delta, Dialect, Emit, ModelError, ModelProfile, ModelRequest, ModelResponse, Notice
from toolcrib.providers.embedded.catalog import EmbeddedModel, find_model
from toolcrib.providers.embedded.engine import CONTEXT_TOKENS, ModelEngine, start_engine
from toolcrib.providers.embedded.small_model import SmallModel
from toolcrib.providers.embedded.weights import Weights, WeightsStore, open_store
from toolcrib.providers.openai import OpenAIChat

MAX_PROMPT_TOKENS = 1500
MAX_TOOLS = 8
DEATH_SECONDS = 0.5
"""A connection may break before we see that the process behind it has ended."""
NOTICE_SECONDS = 5.0
"""The interval between progress notices of a download."""

PROFILE = ModelProfile(
    context_window=CONTEXT_TOKENS,
    max_prompt_tokens=MAX_PROMPT_TOKENS,
    max_tools=MAX_TOOLS,
    sees_images=False,
    project_files=False,
    small=True,
)


class EmbeddedProvider:
    """See Provider. The first request downloads the weights if necessary and loads the model; notices announce both."""

    name = "embedded"
    dialect: Dialect = "llama_cpp"
    base_url = "embedded:"
    api_mode = "chat_completions"

    def __init__(self, home: Home | None = None, model: str = "", *, store: WeightsStore | None = None) -> None:
        self._default = model
        self._store = store if store is not None else open_store(environment(), home)
        self._loaded: _Loaded | None = None
        self._loading = asyncio.Lock()

    def profile(self, model: str) -> ModelProfile:
        return PROFILE

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """The answer. If the engine ended or dropped the connection, the request is sent once more."""
        probe = _EmitProbe(emit)
        try:
            return await self._ask(request, probe)
        except ModelError as error:
            loaded = self._loaded
            # `None` means closed, so no one needs an answer any more.
            if loaded is None or probe.anything or error.kind not in ("network", "server"):
                raise
            has_ended = await asyncio.to_thread(loaded.engine.ends_within, DEATH_SECONDS)
            if error.kind == "server" and not has_ended:
                raise
        return await self._ask(request, emit)

    async def prepare(self, emit: Emit, model: str = "") -> EmbeddedModel:
        """Download and load before the first request; returns the model that will answer."""
        return (await self._ready(model, emit)).weights.model

    async def close(self) -> None:
        async with self._loading:
            await self._unload()

    async def _ask(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        loaded = await self._ready(request.model, emit)
        actual = loaded.weights.model
        small = SmallModel(loaded.chat)
        response = await small.answer(msgspec.structs.replace(request, model=actual.name), emit)
        return msgspec.structs.replace(response, model=actual.name, provider=self.name)

    async def _ready(self, name: str, emit: Emit) -> _Loaded:
        wanted = find_model(name or self._default)
        async with self._loading:
            loaded = self._loaded
            if loaded is not None and loaded.asked_for == wanted.name and loaded.engine.runs:
                return loaded
            await self._unload()
            self._loaded = await self._load(wanted, emit)
            return self._loaded

    async def _load(self, wanted: EmbeddedModel, emit: Emit) -> _Loaded:
        loop = asyncio.get_running_loop()
        cancel = CancelToken()
        reporter = _ProgressReporter(lambda text: loop.call_soon_threadsafe(emit, Notice(kind="loading", message=text)))
        work = loop.run_in_executor(None, self._start, wanted, reporter, cancel)
        try:
            weights, engine = await asyncio.shield(work)
        except asyncio.CancelledError:
            cancel.cancel()
            await _close_started(work)
            raise
        if weights.notice:
            emit(Notice(kind="fallback", message=weights.notice))
        chat = OpenAIChat(
            name=self.name,
            base_url=engine.address.base_url,
            api_key=engine.address.api_key,
            dialect="llama_cpp",
            profile=self.profile,
        )
        return _Loaded(wanted.name, weights, engine, chat)

    def _start(
        self, wanted: EmbeddedModel, reporter: _ProgressReporter, cancel: CancelToken
    ) -> tuple[Weights, ModelEngine]:
        """Get the weights and start the engine; runs in a thread, because both block."""
        weights = self._store.obtain(wanted, reporter.progress, cancel)
        reporter.say(f"loading {weights.model.title}")
        try:
            return weights, start_engine(weights, cancel)
        except ModelError as error:
            if error.kind == "weights" and self._store.discard_if_broken(weights.model):
                raise ModelError(
                    f"the weights of {weights.model.title} were damaged on this machine and have been removed; "
                    "ask again to download them again",
                    kind="weights",
                ) from error
            raise

    async def _unload(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await loaded.chat.close()
            await asyncio.to_thread(loaded.engine.close)


class _Loaded(msgspec.Struct, frozen=True):
    """A model that is ready for requests."""

    asked_for: str
    weights: Weights
    engine: ModelEngine
    chat: OpenAIChat


class _EmitProbe:
    """An `emit` that records whether it passed on any part of the answer."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.anything = False

    def __call__(self, delta: Delta) -> None:
        self.anything = self.anything or not isinstance(delta, Notice)
        self._emit(delta)


class _ProgressReporter:
    """Reports progress as sentences: each new step, and every few seconds how far it is."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self.say = say
        self._what = ""
        self._at = 0.0

    def progress(self, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        if what == self._what and now - self._at < NOTICE_SECONDS:
            return
        self._what, self._at = what, now
        self.say(f"{what} ({done / 1e6:,.0f} of {total / 1e6:,.0f} MB)")


async def _close_started(work: asyncio.Future[tuple[Weights, ModelEngine]]) -> None:
    """Wait for the cancelled thread, and close the engine if it started anyway."""
    try:
        _, engine = await work
    except ModelError:
        return
    engine.close()
