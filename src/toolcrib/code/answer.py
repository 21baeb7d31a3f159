"""What the model is told about a script that has run."""

from __future__ import annotations

import signal
from collections.abc import Callable

from toolcrib.code.channel import ExceptionFrame
from toolcrib.code.place import NO_PYTHON, OLD_PYTHON
from toolcrib.code.run import ScriptOutcome
from toolcrib.core.types import JsonObject

Mask = Callable[[str], str]
STATUS = {"ended": "error", "timeout": "timeout", "interrupt": "interrupted", "broken": "error", "flood": "error"}
LONGEST_NOISE = 500
VERY_OLD_PYTHON = "Unknown option: -I"


def answer(outcome: ScriptOutcome, *, calls: int, seconds: float, memory_mb: int, note: str, mask: Mask) -> JsonObject:
    """The result of the tool; a script that failed has an `error`."""
    error = _error(outcome, memory_mb)
    told: JsonObject = {"status": STATUS[outcome.stopped] if error else "success"}
    if error:
        told["error"] = mask(error)
    told["output"] = mask(outcome.output.text())
    if outcome.errors.total_bytes:
        told["error_output"] = mask(outcome.errors.text())
    if outcome.exception is not None and outcome.exception.traceback:
        told["traceback"] = mask(outcome.exception.traceback)
    if outcome.done is not None:
        code = outcome.done.code
        told["exit_code"] = code if code >= 0 else 128 - code
    told["tool_calls_made"] = calls
    told["duration_seconds"] = round(seconds, 2)
    if outcome.output.is_cut and outcome.output.saved is not None:
        told["full_output"] = str(outcome.output.saved)
    if notes := _notes(outcome, note):
        told["note"] = notes
    return told


def _error(outcome: ScriptOutcome, memory_mb: int) -> str:
    """Why the script did not do its work; empty when it did."""
    if outcome.stopped == "timeout":
        return f"the script was ended because it took longer than {outcome.allowed_seconds:.3g} seconds"
    if outcome.stopped == "interrupt":
        return "the script was interrupted and ended"
    if outcome.stopped == "flood":
        return "the script was ended because it went on calling tools that it may not call"
    if outcome.stopped == "broken":
        return "the script broke the channel to its tools, and was ended"
    if outcome.done is None:
        return _never_finished(outcome)
    if outcome.done.too_much == "processes":
        return "the script was ended because it started too many processes"
    if outcome.done.too_much == "memory":
        return f"the script was ended because it and what it started used more than {memory_mb} MB of memory"
    if outcome.exception is not None:
        return _of_exception(outcome.exception, memory_mb)
    return _of_code(outcome.done.code)


def _of_exception(exception: ExceptionFrame, memory_mb: int) -> str:
    said = f"{exception.type}: {exception.message}".removesuffix(": ")
    if exception.type == "MemoryError" and memory_mb:
        return f"{said}; a script may use {memory_mb} MB of memory"
    return said


def _of_code(code: int) -> str:
    if code >= 0:
        return f"the script exited with code {code}" if code else ""
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the script was ended by {name}"


def _never_finished(outcome: ScriptOutcome) -> str:
    noise, ended = outcome.noise, outcome.ended
    if NO_PYTHON in noise:
        return "no Python was found where scripts run; install python3 there, or set code_execution.python"
    if OLD_PYTHON in noise or VERY_OLD_PYTHON in noise:
        version = noise.partition(OLD_PYTHON)[2].split() or ["2"]
        return (
            f"Python {version[0]} is too old to run scripts; install 3.7 or later there, or set code_execution.python"
        )
    if ended is not None and ended.reason == "no_folder":
        return f"{ended.note}; go to a folder that exists with the terminal tool"
    if ended is not None and ended.reason == "lost":
        return "the place where the script ran went away before it ended"
    if noise:
        return f"the interpreter could not run the script; it said: {noise[-LONGEST_NOISE:]}"
    return "the script ended together with its interpreter, so that nothing more is known about its end"


def _notes(outcome: ScriptOutcome, note: str) -> str:
    notes = [note] if note else []
    left = (outcome.done.left if outcome.done is not None else 0) or len(outcome.left)
    if left:
        notes.append(f"what the script left running was ended ({left}); use the terminal tool for such work")
    return "; ".join(notes)
