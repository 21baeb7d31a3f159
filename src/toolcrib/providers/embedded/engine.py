"""The engine of the embedded model: a llama.cpp server in its own process, on loopback."""

from __future__ import annotations

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
from pathlib import Path
from typing import IO

import msgspec

from toolcrib.config.environment import child_environment, environment
from toolcrib.core.context import CancelToken
from toolcrib.core.models import ModelError
from toolcrib.providers.embedded.weights import Weights

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


CONTEXT_TOKENS = 4096
LOAD_SECONDS = 120.0
LOOK_SECONDS = 0.1
_PROGRAM = Path(__file__).with_name("serve.py")


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
        address = _loaded(process, options, cancel, time.monotonic() + load_seconds)
        on_failure.pop_all()
    return ModelEngine(process, EngineAddress(base_url=f"{address}/v1", api_key=api_key))


def _loaded(process: subprocess.Popen[bytes], options: dict[str, object], cancel: CancelToken, deadline: float) -> str:
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
