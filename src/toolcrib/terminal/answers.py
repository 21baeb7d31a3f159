"""What the model is told about a command: its output made readable, its exit code explained, what goes on."""

from __future__ import annotations

import re
from collections.abc import Callable

from toolcrib.core.environments import OrphanedProcess
from toolcrib.core.types import JsonObject
from toolcrib.environments.foreground import ForegroundResult
from toolcrib.processes.output import strip_escapes
from toolcrib.processes.process import ProcessRecord
from toolcrib.terminal.call import TerminalCall
from toolcrib.terminal.exit_codes import meaning

Mask = Callable[[str], str]
# Nobody can read them, and each would take six characters of the answer.
CONTROL_CHARACTERS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "�")

WANTS_INPUT = re.compile(
    r"EOFError: EOF when reading|end of file on standard input|a terminal is required|no tty present"
    r"|must be run from a terminal|not a tty|not a terminal|inappropriate ioctl for device|stdin is not a",
    re.IGNORECASE,
)
INPUT_HINT = (
    "the command wanted input, and there is none here: pass what it asks for on its command line, or run it with "
    "pty=true (or background=true) and answer with process(action='submit')"
)


def ended(call: TerminalCall, result: ForegroundResult, mask: Mask) -> JsonObject:
    """A command that ended, was stopped, or ran out of time."""
    output = _readable(result.text, mask)
    exit_code = result.exit_code
    if result.timed_out:
        output = _with_line(output, f"[Command timed out after {round(call.timeout_seconds, 1):g}s]")
    elif result.interrupted:
        output = _with_line(output, "[Command interrupted]")
    answer: JsonObject = {"output": output, "exit_code": exit_code, "error": _error(call, result)}
    if result.output.saved is not None:
        answer["full_output"] = str(result.output.saved)
        if result.output.saved_bytes < result.output.total_bytes:
            answer["full_output_note"] = f"the file holds the first {result.output.saved_bytes} bytes"
    if exit_code and not (result.timed_out or result.interrupted):
        said = meaning(exit_code, call.command)
        if said:
            answer["exit_code_meaning"] = said
        if WANTS_INPUT.search(output[-4000:]):
            answer["hint"] = INPUT_HINT
    if result.timed_out and result.waits_for_input:
        answer["hint"] = "it was waiting for input when its time ran out; " + INPUT_HINT
    if result.ended is not None and result.ended.note:
        answer["note"] = result.ended.note
    return answer


def _error(call: TerminalCall, result: ForegroundResult) -> str | None:
    if result.ended is not None and result.ended.reason == "no_folder":
        return f"the folder {call.workdir!r} does not exist where commands run; nothing was run"
    if result.ended is not None and result.ended.reason == "lost":
        return "the place where the command ran went away, so its end is not known; look before running it again" + (
            f" ({result.ended.note})" if result.ended.note else ""
        )
    return None


def with_left_behind(answer: JsonObject, record: ProcessRecord, left: tuple[OrphanedProcess, ...]) -> JsonObject:
    """The answer of a command that ended and left processes running."""
    return answer | {
        "session_id": record.id,
        "left_running": [{"pid": one.pid, "command": one.command} for one in left],
        "hint": (
            f"it left {len(left)} process{'es' if len(left) > 1 else ''} running, now in the background as "
            f"{record.id}: process(action='poll'|'log'|'kill', session_id='{record.id}')"
        ),
    }


def waiting(result: ForegroundResult, record: ProcessRecord, mask: Mask) -> JsonObject:
    """A command on a terminal that waits for somebody to type."""
    return {
        "output": _readable(result.text, mask),
        "exit_code": None,
        "error": None,
        "status": "waiting_for_input",
        "session_id": record.id,
        "hint": (
            f"it waits for input and goes on in the background as {record.id}: "
            f"process(action='submit', session_id='{record.id}', data='…') answers it, action='kill' ends it"
        ),
    }


def started(call: TerminalCall, record: ProcessRecord) -> JsonObject:
    """A command that runs in the background."""
    answer: JsonObject = {
        "output": "Background process started",
        "session_id": record.id,
        "pid": record.pid,
        "exit_code": 0,
        "error": None,
        "hint": f"process(action='poll'|'log'|'wait'|'submit'|'kill', session_id='{record.id}') works with it",
    }
    if call.notify_on_complete:
        answer["notify_on_complete"] = True
    if call.watch_patterns:
        answer["watch_patterns"] = list(call.watch_patterns)
    return answer


def failed(message: str) -> JsonObject:
    """A command that was not run."""
    return {"output": "", "exit_code": -1, "error": message}


def _readable(text: str, mask: Mask) -> str:
    text = strip_escapes(text).replace("\r\n", "\n").translate(CONTROL_CHARACTERS).strip()
    return mask(text) if text else ""


def _with_line(output: str, line: str) -> str:
    return f"{output}\n{line}" if output else line
