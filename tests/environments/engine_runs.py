"""Running one program in an engine to its end, for the tests of engines."""

from __future__ import annotations

import asyncio

from toolcrib.core.environments import Engine, TerminalSize


async def run(
    engine: Engine, *argv: str, typed: bytes = b"", terminal: TerminalSize | None = None
) -> tuple[int, bytes]:
    """Its exit code, and all that it printed. `typed` is its whole input."""
    printed: list[bytes] = []
    process = await engine.spawn(argv, on_output=printed.append, terminal=terminal)
    async with asyncio.timeout(30):
        if typed:
            await process.write(typed)
        if terminal is None:
            await process.close_input()
        code = await process.wait()
    await process.abandon()
    return code, b"".join(printed)


async def bash(engine: Engine, script: str, *, typed: bytes = b"", terminal: TerminalSize | None = None) -> str:
    """What a script prints; it must succeed."""
    code, printed = await run(engine, "bash", "-c", script, typed=typed, terminal=terminal)
    text = printed.decode()
    assert code == 0, text
    return text
