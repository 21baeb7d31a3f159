"""Takes the secrets out of what other processes can see of this one. Linux only; elsewhere it does nothing.

`/proc/<pid>/environ` shows the bytes that the kernel put into the process when it was started, whatever was set or
unset since. They are wiped where they lie, after the C library was given copies: `os.environ`, `os.getenv` and
`getenv` answer as before, and no second start of the interpreter is needed, so exit codes, signals, the terminal and
the way in which the program was launched stay what they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from toolcrib.config.child_environment import child_environment

_PROCESS = Path("/proc/self")
# Fields of /proc/PID/stat after the name of the program, which may hold blanks; see proc_pid_stat(5), fields 50 and 51.
_ENV_START, _ENV_END = 47, 48
_PR_SET_DUMPABLE = 4


def hide_secrets() -> bool:
    """Wipe the visible copy of the environment and lock debuggers out; True if nothing secret can be seen any more.

    For the program alone, never for a library: it changes the process. It must run before threads are started.
    """
    if sys.platform != "linux":
        return False
    try:
        wiped = _wipe_environment()
    except OSError:
        # No /proc, or one that may not be written: nothing can be hidden, and nothing was changed.
        wiped = False
    return _lock_debuggers_out() and wiped


def _wipe_environment() -> bool:
    block = (_PROCESS / "environ").read_bytes()
    stat = (_PROCESS / "stat").read_bytes()
    fields = stat[stat.rindex(b")") + 2 :].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    kept = {os.fsencode(name): os.fsencode(value) for name, value in child_environment(os.environ).items()}
    secrets = [(at, entry) for at, entry in _entries(block) if not _is_kept(entry, kept)]
    memory = os.open(_PROCESS / "mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.pread(memory, end - start, start) != block:
            return False
        for name in {entry.partition(b"=")[0] for _, entry in secrets} & os.environb.keys():
            # Setting alone would leave the second of two entries with the same name where it is.
            os.unsetenv(name)
            os.putenv(name, os.environb[name])
        for at, entry in secrets:
            os.pwrite(memory, bytes(len(entry)), start + at)
    finally:
        os.close(memory)
    return True


def _entries(block: bytes) -> Iterator[tuple[int, bytes]]:
    """The `NAME=VALUE` entries of an environment block, each with where it starts."""
    at = 0
    for entry in block.split(b"\0"):
        if entry:
            yield at, entry
        at += len(entry) + 1


def _is_kept(entry: bytes, kept: dict[bytes, bytes]) -> bool:
    name, _, value = entry.partition(b"=")
    return kept.get(name) == value


def _lock_debuggers_out() -> bool:
    """No core dumps, and no look into the memory of this process for others of the same user.

    Children that run another program are debuggable again. Root still sees everything.
    """
    try:
        # Costs 2 ms, and only this function needs it; some builds of Python are without it.
        import ctypes  # noqa: PLC0415

        failed: int = ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return False
    return not failed
