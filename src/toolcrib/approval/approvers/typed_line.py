"""A line that is typed at a terminal, read key by key. Of a secret nothing is echoed, not even its length."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from msgspec import Struct

from toolcrib.approval.approvers.escape import visible, width
from toolcrib.approval.approvers.keys import Keys

CTRL_C, CTRL_D, CTRL_U = "\x03", "\x04", "\x15"
BACKSPACES = ("\x7f", "\x08")
ENTERS = ("\n", "\r")
MAX_CHARS = 1_000


class LinePrompt(Struct, frozen=True, kw_only=True):
    """What stands in front of the line, and what is said when there is none."""

    text: str
    """Keys count from its last line on."""
    timeout_seconds: float
    echo: bool
    nothing: str


async def read_line(keys: Keys, out: TextIO, prompt: LinePrompt, clock: Callable[[], float]) -> str | None:
    """What is typed up to Enter; None when that is nothing, or it is given up, or the time is over."""
    *above, last = map(visible, prompt.text.split("\n"))
    _write(out, "".join(f"{line}\n" for line in above))
    # What was typed before was not typed for this question.
    keys.discard()
    _write(out, last)
    deadline = clock() + prompt.timeout_seconds
    typed = ""
    try:
        while True:
            for key in await keys.read(deadline - clock()) or CTRL_C:  # nothing at all: it has gone
                if key in (CTRL_C, CTRL_D):
                    _write(out, f"\n{prompt.nothing}\n")
                    return None
                if key in ENTERS:
                    _write(out, "\n")
                    return typed or None
                before, typed = typed, _after(typed, key)
                if prompt.echo:
                    _write(out, _echo(before, typed))
    except TimeoutError:
        _write(out, f"\nno answer in time: {prompt.nothing}\n")
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


def _echo(before: str, after: str) -> str:
    if after.startswith(before):
        return visible(after[len(before) :])
    return "\b \b" * width(visible(before[len(after) :]))


def _write(out: TextIO, text: str) -> None:
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()
