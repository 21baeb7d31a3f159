"""A model that plays a script: for tests of agents, of tools, and of programs that use toolcrib."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.core.errors import ConfigError
from toolcrib.core.messages import Message, RequestedCall
from toolcrib.core.models import (
    CallDelta,
    Dialect,
    Emit,
    ModelError,
    ModelErrorKind,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    TextDelta,
    Usage,
)

Step = str | ModelResponse | BaseException | Callable[[ModelRequest], "str | ModelResponse"]
"""One step of the script: a text, a whole response, a failure, or a function of the request."""


def says(text: str, *calls: RequestedCall, reasoning: str = "", usage: Usage = Usage()) -> ModelResponse:  # noqa: B008
    """A response with a text and optional tool calls."""
    message = Message(role="assistant", content=text, tool_calls=calls, reasoning=reasoning)
    return ModelResponse(message=message, usage=usage, stop="tool_calls" if calls else "end")


def calls(name: str, arguments: Mapping[str, Any] | str | None = None, *, id: str = "") -> ModelResponse:
    """A response that calls one tool, without text."""
    return says("", call(name, arguments, id=id))


def call(name: str, arguments: Mapping[str, Any] | str | None = None, *, id: str = "") -> RequestedCall:
    """A tool call; the model assigns an id if there is none."""
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments or {}), ensure_ascii=False)
    return RequestedCall(id=id, name=name, arguments=text)


class ScriptedProvider:
    """Plays its steps in order, one per request, and records the requests. Streams each text word by word.

    After the last step it fails, unless it has an `otherwise` step.
    """

    name = "scripted"
    base_url = "scripted:"
    api_mode = "scripted"

    def __init__(
        self,
        steps: Iterable[Step] = (),
        *,
        otherwise: Step | None = None,
        delay_seconds: float = 0.0,
        profile: ModelProfile = ModelProfile(),  # noqa: B008
        dialect: Dialect = "openai",
    ) -> None:
        self._steps = list(steps)
        self._otherwise = otherwise
        self._delay_seconds = delay_seconds
        self._profile = profile
        self.dialect = dialect
        self.requests: list[ModelRequest] = []

    def profile(self, model: str) -> ModelProfile:
        return self._profile

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        self.requests.append(request)
        number = len(self.requests)
        if self._delay_seconds:
            await asyncio.sleep(self._delay_seconds)
        step = self._steps.pop(0) if self._steps else self._otherwise
        if step is None:
            raise ModelError(f"the script has ended: request {number} has no step; add one, or pass `otherwise`")
        if isinstance(step, BaseException):
            if isinstance(step, ModelError) and step.partial_text:
                emit(TextDelta(step.partial_text))
            raise step
        answer = step(request) if callable(step) else step
        response = says(answer) if isinstance(answer, str) else answer
        response = msgspec.structs.replace(
            response, message=_with_ids(response.message, number), model=response.model or request.model or "scripted"
        )
        _stream(response.message, emit)
        return msgspec.structs.replace(response, provider=self.name)

    async def close(self) -> None:
        return None


def _with_ids(message: Message, number: int) -> Message:
    named = tuple(
        one if one.id else RequestedCall(id=f"call_{number}_{at}", name=one.name, arguments=one.arguments)
        for at, one in enumerate(message.tool_calls)
    )
    return msgspec.structs.replace(message, tool_calls=named)


def _stream(message: Message, emit: Emit) -> None:
    for word in message.text.splitlines(keepends=True):
        emit(TextDelta(word))
    for index, one in enumerate(message.tool_calls):
        emit(CallDelta(index=index, id=one.id, name=one.name, arguments=one.arguments))


class ScriptedCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call of a step."""

    call: str
    arguments: dict[str, Any] | str | None = None
    id: str = ""


class ScriptedStep(msgspec.Struct, forbid_unknown_fields=True):
    """The model's reaction to one request."""

    say: str = ""
    reasoning: str = ""
    call: str = ""
    arguments: dict[str, Any] | str | None = None
    calls: list[ScriptedCall] = []
    fail: str = ""
    """The request fails with this message, after streaming what there is to `say`."""
    kind: ModelErrorKind = "server"
    may_retry: bool = False
    retry_after_seconds: float | None = None
    delay_seconds: float = 0
    usage: Usage = Usage()


def read_script(path: str | Path) -> ScriptedProvider:
    """A model that plays the steps in a file; raises ConfigError if the file is invalid."""
    file = Path(path).expanduser()
    try:
        steps = msgspec.convert(json.loads(file.read_text(encoding="utf-8")), list[ScriptedStep])
    except OSError as error:
        raise ConfigError(f"cannot read the script {str(file)!r} ({error.strerror}); name an existing file") from error
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"{str(file)!r} is not a script: {error}; write a JSON list of steps") from error
    return _Delayed(list(_joined(steps)))


class _Delayed(ScriptedProvider):
    """Plays the steps, each after its own delay."""

    def __init__(self, steps: list[ScriptedStep]) -> None:
        super().__init__([_played(step) for step in steps])
        self._delays = [step.delay_seconds for step in steps]

    async def complete(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        self._delay_seconds = self._delays.pop(0) if self._delays else 0
        return await super().complete(request, emit)


def _joined(steps: list[ScriptedStep]) -> Iterator[ScriptedStep]:
    """The steps, with each delay merged into the step after it."""
    waited = 0.0
    for at, step in enumerate(steps, 1):
        waited += step.delay_seconds
        if at < len(steps) and step == ScriptedStep(delay_seconds=step.delay_seconds) and step.delay_seconds:
            continue
        yield msgspec.structs.replace(step, delay_seconds=waited)
        waited = 0.0


def _played(step: ScriptedStep) -> ModelResponse | ModelError:
    if step.fail:
        return ModelError(
            step.fail,
            kind=step.kind,
            may_retry=step.may_retry,
            retry_after_seconds=step.retry_after_seconds,
            partial_text=step.say,
        )
    wanted = [ScriptedCall(step.call, step.arguments), *step.calls] if step.call else step.calls
    made = (call(one.call, one.arguments, id=one.id) for one in wanted)
    return says(step.say, *made, reasoning=step.reasoning, usage=step.usage)
