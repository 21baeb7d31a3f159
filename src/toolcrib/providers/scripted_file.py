"""A scripted model from a JSON file, so that a command line can be tested without any model.

The file holds a list of steps, one for each request:

    [
      {"call": "terminal", "arguments": {"command": "ls"}},
      {"calls": [{"call": "read_file", "arguments": {"path": "a"}}, {"call": "todo"}], "say": "Let me see."},
      {"fail": "no more quota", "kind": "quota"},
      {"delay_seconds": 0.1},
      {"say": "Done.", "reasoning": "…"}
    ]

A step that is only a delay belongs to the next one, which may also have a delay of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from toolcrib.core.errors import ConfigError
from toolcrib.core.models import Emit, ModelError, ModelRequest, ModelResponse, Usage
from toolcrib.providers.scripted import ScriptedProvider, call, says

FailureKind = Literal[
    "key", "unknown_model", "rate_limit", "quota", "too_long", "bad_request", "refused_tool", "server",
    "network", "timeout", "missing_package", "weights", "filtered",
]  # fmt: skip


class ScriptedCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call of a step."""

    call: str
    arguments: dict[str, Any] | str | None = None
    id: str = ""


class ScriptedStep(msgspec.Struct, forbid_unknown_fields=True):
    """What the model does when it is asked once."""

    say: str = ""
    reasoning: str = ""
    call: str = ""
    arguments: dict[str, Any] | str | None = None
    calls: list[ScriptedCall] = []
    fail: str = ""
    kind: FailureKind = "server"
    may_retry: bool = False
    retry_after_seconds: float | None = None
    delay_seconds: float = 0
    usage: Usage = Usage()


def read_script(path: str | Path) -> ScriptedProvider:
    """A model that plays the steps of the file; raises ConfigError that says what is wrong with it."""
    file = Path(path).expanduser()
    try:
        steps = msgspec.convert(json.loads(file.read_text(encoding="utf-8")), list[ScriptedStep])
    except OSError as error:
        raise ConfigError(f"cannot read the script {str(file)!r} ({error.strerror}); name an existing file") from error
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"{str(file)!r} is no script: {error}; write a JSON list of steps") from error
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
    """The steps, where one that is only a delay belongs to the next."""
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
            step.fail, kind=step.kind, may_retry=step.may_retry, retry_after_seconds=step.retry_after_seconds
        )
    wanted = [ScriptedCall(step.call, step.arguments), *step.calls] if step.call else step.calls
    made = (call(one.call, one.arguments, id=one.id) for one in wanted)
    return says(step.say, *made, reasoning=step.reasoning, usage=step.usage)
