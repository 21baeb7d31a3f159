"""What exit codes mean, for the programs where that is not a failure or not plain."""

from __future__ import annotations

from collections.abc import Mapping

from toolcrib.approval.build import read_on_first_use

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


def meaning(exit_code: int, command: str) -> str:
    """What the code means when this command line gave it; empty when it is just what it seems."""
    return BY_PROGRAM.get(_last_program(command), {}).get(exit_code) or BY_CODE.get(exit_code, "")


def _last_program(command: str) -> str:
    """The program that a command line ends with, whose exit code is the line's; empty when it cannot be told."""
    calls = read_on_first_use(command, cwd="/", home="/").calls
    return calls[-1].program.rpartition("/")[2] if calls else ""
