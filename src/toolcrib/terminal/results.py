"""The result of a command for the model: readable output, an explained exit code, what still runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from toolcrib.approval.calls import ProgramCall
from toolcrib.core.environments import OrphanedProcess
from toolcrib.core.types import JsonObject
from toolcrib.environments.foreground import ForegroundResult
from toolcrib.processes.output import readable
from toolcrib.processes.process import ProcessRecord
from toolcrib.terminal.call import TerminalCall

Mask = Callable[[str], str]

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
        said = explain_exit_code(exit_code, call.programs)
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
        return "the environment was lost while the command ran, so its end is unknown; look before running it again" + (
            f" ({result.ended.note})" if result.ended.note else ""
        )
    return None


def with_note(answer: JsonObject, note: str) -> JsonObject:
    """The answer with one more note."""
    return {**answer, "note": f"{answer['note']}; {note}" if answer.get("note") else note} if note else answer


def with_orphans(answer: JsonObject, record: ProcessRecord, left: tuple[OrphanedProcess, ...]) -> JsonObject:
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
            f"it is waiting for input and continues in the background as {record.id}: "
            f"process(action='submit', session_id='{record.id}', data='…') types a line, action='write' sends keys as "
            "they are (data='q' ends a pager), action='kill' ends it"
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
    # Leading blanks are part of the output (the indentation of a file's line); only the newlines at its end are not.
    text = readable(text).rstrip("\n")
    return mask(text) if text else ""


def _with_line(output: str, line: str) -> str:
    return f"{output}\n{line}" if output else line


BY_PROGRAM: Mapping[str, Mapping[int, str]] = {
    "grep": {1: "no line matched (not an error)", 2: "grep could not read something"},
    "egrep": {1: "no line matched (not an error)"},
    "fgrep": {1: "no line matched (not an error)"},
    "rg": {1: "nothing matched (not an error)", 2: "rg could not read something"},
    "ag": {1: "nothing matched (not an error)"},
    "ack": {1: "nothing matched (not an error)"},
    "pgrep": {1: "no process matched (not an error)"},
    "pkill": {1: "no process matched"},
    "diff": {1: "the files differ (not an error)", 2: "diff could not compare them"},
    "cmp": {1: "the files differ (not an error)", 2: "cmp could not compare them"},
    "find": {1: "some folders could not be read; what was found is listed"},
    "test": {1: "the condition is false (not an error)"},
    "[": {1: "the condition is false (not an error)"},
    "[[": {1: "the condition is false (not an error)"},
    "expr": {1: "the result is empty or zero (not an error)"},
    "which": {1: "no such program on PATH"},
    "ls": {1: "some entries could not be read", 2: "what was named does not exist or cannot be read"},
    "curl": {
        3: "the address is malformed",
        6: "the host name could not be resolved",
        7: "the host refused the connection",
        22: "the server answered with an error status",
        28: "the transfer timed out",
        35: "the TLS handshake failed",
        60: "the server's certificate could not be verified",
    },
    "wget": {
        4: "the network failed",
        5: "the certificate could not be verified",
        8: "the server answered with an error",
    },
    "git": {1: "git says no: there are differences, or nothing was found", 128: "git refused; the output says why"},
    "timeout": {124: "the time limit of `timeout` was reached"},
    "ssh": {255: "the connection failed"},
    "rsync": {23: "some files were not transferred", 24: "some files vanished before they were transferred"},
    "pytest": {1: "some tests failed", 2: "pytest was interrupted", 4: "pytest was called wrongly", 5: "no tests ran"},
    "make": {2: "a rule failed; the output says which"},
}
BY_CODE: Mapping[int, str] = {
    126: "the program was found but cannot be executed",
    127: "the program was not found",
    129: "ended by a hang-up (SIGHUP)",
    130: "interrupted (SIGINT)",
    131: "ended by SIGQUIT",
    134: "the program aborted (SIGABRT)",
    135: "ended by a bus error (SIGBUS)",
    136: "ended by an arithmetic error (SIGFPE)",
    137: "killed (SIGKILL), often for using too much memory",
    139: "the program crashed (SIGSEGV)",
    141: "the reader of its output closed early (SIGPIPE)",
    143: "ended by SIGTERM",
    152: "used up its processor time (SIGXCPU)",
    153: "wrote a file larger than allowed (SIGXFSZ)",
}


def explain_exit_code(exit_code: int, programs: Sequence[ProgramCall]) -> str:
    """What the code means when these programs, in this order, ended with it; empty when it is what it seems."""
    # The exit code of a command line is that of its last program.
    last = programs[-1].program.rpartition("/")[2] if programs else ""
    return BY_PROGRAM.get(last, {}).get(exit_code) or BY_CODE.get(exit_code, "")
