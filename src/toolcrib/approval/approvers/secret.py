"""A secret at a terminal: read key by key, echoed by nothing, not even its length."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from toolcrib.approval.approvers.escape import visible
from toolcrib.approval.approvers.keys import Keys

CTRL_C, CTRL_D, CTRL_U = "\x03", "\x04", "\x15"
BACKSPACES = ("\x7f", "\x08")
ENTERS = ("\n", "\r")
MAX_CHARS = 1_000


async def read_secret(
    keys: Keys, out: TextIO, prompt: str, clock: Callable[[], float], timeout_seconds: float
) -> str | None:
    """What is typed up to Enter; None when that is nothing, or it is given up, or the time is over."""
    *above, last = map(visible, prompt.split("\n"))
    _write(out, "".join(f"{line}\n" for line in above))
    # From the last line on keys count; what was typed before it was not typed for this question.
    keys.discard()
    _write(out, last)
    deadline = clock() + timeout_seconds
    typed = ""
    try:
        while True:
            for key in await keys.read(deadline - clock()) or CTRL_C:  # nothing at all: it has gone
                if key in (CTRL_C, CTRL_D):
                    _write(out, "\nno password given\n")
                    return None
                if key in ENTERS:
                    _write(out, "\n")
                    return typed or None
                typed = _after(typed, key)
    except TimeoutError:
        _write(out, "\nno answer in time: no password given\n")
        return None
    except asyncio.CancelledError:
        with suppress(OSError):
            _write(out, "\ncancelled\n")
        raise


def _after(typed: str, key: str) -> str:
    if key in BACKSPACES:
        return typed[:-1]
    if key == CTRL_U:
        return ""
    return typed + key if key.isprintable() and len(typed) < MAX_CHARS else typed


def _write(out: TextIO, text: str) -> None:
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()
