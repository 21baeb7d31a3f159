"""Whether a tool call started this process: commands carry a mark that they cannot remove.

The mark is a hard limit on file locks, which Linux keeps for every process and has not enforced since 2003. The shell
that runs a command lowers it (`environments/scripts/runner.sh`); everything below inherits it, through forks, new
sessions, other programs and an emptied environment, and only a process with CAP_SYS_RESOURCE can raise it again. For
that case the ancestors are looked at as well. See decision 31.
"""

from __future__ import annotations

import os
import resource
import sys

from toolcrib.core.errors import RefusedInToolCall

LOCKS = 10
"""RLIMIT_LOCKS, which Python does not name."""
LIMIT = "Max file locks"
UNLIMITED = "unlimited"
MAX_ANCESTORS = 64
PARENT_FIELD = 1
"""The index of the parent in /proc/<pid>/stat, counted after the closing bracket of the name."""


def is_in_tool_call() -> bool:
    """Whether a command of a tool call started this process, directly or not. Takes less than a millisecond."""
    # From the kernel, because /proc can be covered by something else.
    if sys.platform == "linux" and resource.getrlimit(LOCKS)[1] != resource.RLIM_INFINITY:
        return True
    process = str(os.getpid())
    for _ in range(MAX_ANCESTORS):
        if _is_marked(process):
            return True
        process = _parent_of(process)
        if process in ("", "0"):
            break
    return False


def refuse_in_tool_call(what: str) -> None:
    """Raise RefusedInToolCall if a tool call started this process: what a person decides is not for an agent."""
    if is_in_tool_call():
        raise RefusedInToolCall(
            f"a tool call of an agent started this toolcrib, so it does not {what}; a person can, in a terminal "
            "that no agent opened"
        )


def _is_marked(process: str) -> bool:
    for line in _read(f"/proc/{process}/limits").splitlines():
        if line.startswith(LIMIT):
            # The soft limit, the hard limit, and the unit.
            return line[len(LIMIT) :].split()[1:2] != [UNLIMITED]
    return False


def _parent_of(process: str) -> str:
    text = _read(f"/proc/{process}/stat")
    # The name is in brackets and may contain anything, including brackets.
    fields = text[text.rfind(")") + 2 :].split()
    return fields[PARENT_FIELD] if len(fields) > PARENT_FIELD else ""


def _read(path: str) -> str:
    """The text of a file in /proc; empty if the process has ended or there is no /proc."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 8192).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
