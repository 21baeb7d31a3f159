"""The provider that needs no key: a small model, downloaded once, behind a llama.cpp server in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import mmap
import os
import secrets
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from toolcrib.config.environment import child_environment, environment
from toolcrib.config.paths import Home
from toolcrib.core.cancel import CancelToken
from toolcrib.core.models import Delta, Dialect, Emit, ModelError, ModelProfile, ModelRequest, ModelResponse, Notice
from toolcrib.providers.embedded.catalog import EmbeddedModel, find_model
from toolcrib.providers.embedded.small_model import SmallModel
from toolcrib.providers.embedded.weights import Weights, WeightsStore, open_store
from toolcrib.providers.openai import OpenAIChat

CONTEXT_TOKENS = 4096
LOAD_SECONDS = 120.0
LOOK_SECONDS = 0.1
_PROGRAM = Path(__file__).with_name("serve.py")
MAX_PROMPT_TOKENS = 1500
MAX_TOOLS = 8
DEATH_SECONDS = 0.5
"""A connection may break before we see that the process behind it has ended."""
NOTICE_SECONDS = 5.0
"""The interval between progress notices of a download."""

_KEY = b"tokenizer.chat_template"
_STRING = 8
# A key in the GGUF header: its length, its bytes, the type of its value.
_ENTRY = struct.pack("<Q", len(_KEY)) + _KEY + struct.pack("<I", _STRING)

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_SENTENCE = f"within {_OPENING}{_CLOSING} XML tags"


def read_template(model: Path) -> str:
    """The chat template in a GGUF file; empty if it has none."""
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(_ENTRY)
        if at < 0:
            return ""
        at += len(_ENTRY)
        (length,) = struct.unpack_from("<Q", content, at)
        return bytes(content[at + 8 : at + 8 + length]).decode("utf-8", "replace")


def with_fences(template: str) -> str:
    """The template with json fences instead of `<tool_call>` tags.

    Qwen-Coder models write calls in a fenced block whatever they are told, and the engine recognises them as calls
    only if the template says so.
    """
    fenced = template.replace(_SENTENCE, "in a json code block")
    return fenced.replace(_OPENING, "```json").replace(_CLOSING, "```")


class EngineAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's address and key; it needs a key because other users of this machine can reach the port."""

    base_url: str
    api_key: str


class ModelEngine:
    """One loaded model, created by `start_engine`. It ends with `close`, or with this process."""

    def __init__(self, process: subprocess.Popen[bytes], address: EngineAddress) -> None:
        self._process = process
        self.address = address

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def ends_within(self, seconds: float) -> bool:
        """Whether the engine has ended, or ends within that time. Blocks."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """End the engine, even in the middle of an answer. Blocks briefly; may be called twice."""
        _end(self._process)


def threads_for(cores: int) -> int:
    """One core stays free: with all cores busy, a token takes ten times as long."""
    return max(1, cores - 1)


def start_engine(weights: Weights, cancel: CancelToken, load_seconds: float = LOAD_SECONDS) -> ModelEngine:
    """Start an engine and load the model. Blocks until it is ready; raises ModelError."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ModelError(
            "the package `xllamacpp`, which runs the embedded model, is missing; "
            "run `pip install 'toolcrib[embedded]'`",
            kind="missing_package",
        )
    api_key = secrets.token_hex(16)
    template = read_template(weights.path)
    options = {
        "model": weights.model.name,
        "model_path": str(weights.path),
        "api_key": api_key,
        "context_tokens": CONTEXT_TOKENS,
        "template": with_fences(template) if weights.model.native_calls else template,
        "threads": threads_for(len(os.sched_getaffinity(0))),
    }
    # -P: nothing in the working folder may shadow a library.
    process = subprocess.Popen(
        [sys.executable, "-P", str(_PROGRAM)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        # A Ctrl-C in the terminal is meant for the chat, which may still need the engine.
        env=child_environment(environment()), start_new_session=True,
    )  # fmt: skip
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(_end, process)
        address = _wait_until_loaded(process, options, cancel, time.monotonic() + load_seconds)
        on_failure.pop_all()
    return ModelEngine(process, EngineAddress(base_url=f"{address}/v1", api_key=api_key))


def _wait_until_loaded(
    process: subprocess.Popen[bytes], options: dict[str, object], cancel: CancelToken, deadline: float
) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(options).encode() + b"\n")
        process.stdin.flush()
    line = _first_line(process.stdout, cancel, deadline)
    if not line:
        process.wait(LOAD_SECONDS)
        raise ModelError(f"the engine of the embedded model {_ended(process.returncode)}; {_ADVICE}", kind="server")
    answer = json.loads(line)
    if "error" in answer:
        raise ModelError(
            f"the engine cannot load {options['model_path']!r} ({answer['error']}); {_ADVICE}", kind="weights"
        )
    return str(answer["address"])


_ADVICE = "run `toolcrib setup` to use another model"


def _first_line(stream: IO[bytes], cancel: CancelToken, deadline: float) -> bytes:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not selector.select(LOOK_SECONDS):
            if cancel.cancelled:
                raise ModelError("loading the embedded model was cancelled", kind="server")
            if time.monotonic() > deadline:
                raise ModelError(
                    f"the embedded model did not load in time; stop other busy programs, or {_ADVICE}",
                    kind="timeout",
                )
    # It arrives in one piece, because it is written with one flush.
    return stream.readline()


def _ended(code: int) -> str:
    if code >= 0:
        return f"exited at once (exit code {code})"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}" + (
            ", probably for lack of memory"
            if -code == signal.SIGKILL
            else ", perhaps because this processor is too old"
        )
    return f"was killed by signal {-code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the engine: it has nothing to save, and a polite stop would wait for its readers."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


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
        self._loaded: _LoadedModel | None = None
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

    async def _ready(self, name: str, emit: Emit) -> _LoadedModel:
        wanted = find_model(name or self._default)
        async with self._loading:
            loaded = self._loaded
            if loaded is not None and loaded.asked_for == wanted.name and loaded.engine.runs:
                return loaded
            await self._unload()
            self._loaded = await self._load(wanted, emit)
            return self._loaded

    async def _load(self, wanted: EmbeddedModel, emit: Emit) -> _LoadedModel:
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
        return _LoadedModel(wanted.name, weights, engine, chat)

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


class _LoadedModel(msgspec.Struct, frozen=True):
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
