"""Runs our own small scripts in an environment: writes their arguments for bash, reads their answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from toolcrib.core.environments import Engine
from toolcrib.core.errors import EnvironmentFailed

MAX_ANSWER_BYTES = 4 * 1024 * 1024
END_SECONDS = 0.2


END = b"\0\4\0"
"""The last field of every answer: the answer is complete before the program is reported as ended."""


async def run_program(
    engine: Engine, argv: Sequence[str], *, timeout_seconds: float, stdin: bytes | None = None
) -> list[str]:
    """Run a script; returns the NUL-separated fields that it prints between its first NUL byte and the end field.

    Its input stays open until it ends, unless `stdin` is given. Raises EnvironmentFailed if it does not answer.
    """
    output = bytearray()
    answered = asyncio.Event()

    def keep(data: bytes) -> None:
        if len(output) < MAX_ANSWER_BYTES:
            output.extend(data)
        if output.endswith(END):
            answered.set()

    process = await engine.spawn(argv, on_output=keep)
    waiting: list[asyncio.Future[Any]] = []
    try:
        async with asyncio.timeout(timeout_seconds):
            if stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # It ended early; its answer says why.
                    await process.write(stdin)
                await process.close_input()
            waiting = [asyncio.ensure_future(answered.wait()), asyncio.ensure_future(process.wait())]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if answered.is_set():
                # It ends at once, unless something in the environment delays the notification.
                await asyncio.wait(waiting[1:], timeout=END_SECONDS)
            else:
                await waiting[1]
    except TimeoutError:
        raise EnvironmentFailed(
            f"the {engine.kind} environment did not answer within {timeout_seconds:g} seconds"
        ) from None
    finally:
        for one in waiting:
            one.cancel()
        await process.abandon()
    return _fields(bytes(output), engine.kind)


def _fields(output: bytes, kind: str) -> list[str]:
    noise, found, answer = output.partition(b"\0")
    if not found or not output.endswith(END):
        said = noise.decode(errors="replace").strip() or "it printed nothing"
        raise EnvironmentFailed(f"a shell in the {kind} environment failed: {said}")
    return answer[: -len(END)].decode(errors="surrogateescape").split("\0")


VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def assignments(values: Mapping[str, str]) -> str:
    """Shell assignments, one per line."""
    return "\n".join(f"{name}={quote(value)}" for name, value in values.items())


def exports(variables: Mapping[str, str]) -> str:
    """Shell exports, one per line; names that are not valid variables are omitted."""
    return "\n".join(f"export {name}={quote(value)}" for name, value in variables.items() if VARIABLE_NAME.match(name))
