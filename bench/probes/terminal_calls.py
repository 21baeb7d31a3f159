"""Prints, as JSON, the seconds of short commands by the `terminal` tool, beside bare bash in the same process.

Run as `python terminal_calls.py ours|peer`, with the interpreter that has the one or the other installed.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

CALLS, ROUNDS, SLEEPS = 20, 25, 5
PEER_CALLS, PEER_ROUNDS = 5, 3
PAUSE_SECONDS = 0.02
"""For what a call leaves to be done after its answer."""
FILL = 'for i in {1..60}; do eval "f$i() { local n=$i; echo \\"number \\$n\\"; }"; export V$i="value number $i"; done'
LOOK = "sleep 1; echo $EPOCHREALTIME"
"""The time is told by the shell itself, right after `sleep` has ended."""

Call = Callable[[], Awaitable[object]]


async def bare() -> None:
    subprocess.run(["bash", "-c", "true"], check=True)  # noqa: ASYNC221


async def seconds_of_each(
    calls: dict[str, Call], count: int, rounds: int, *, pause_seconds: float = PAUSE_SECONDS
) -> dict[str, list[float]]:
    """The mean of one call in each round. Rounds of all are interleaved, so that noise hits them alike."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            await asyncio.sleep(pause_seconds)
            started = time.perf_counter()
            for _ in range(count):
                await call()
            taken[name].append((time.perf_counter() - started) / count)
    return taken


async def after_sleep(run: Callable[[str], Awaitable[str]]) -> dict[str, list[float]]:
    """From the end of `sleep 1` to the answer, and all that a plain `sleep 1` takes above its second."""
    taken: dict[str, list[float]] = {"after_sleep": [], "beyond_sleep": []}
    for _ in range(SLEEPS):
        output = await run(LOOK)
        taken["after_sleep"].append(time.time() - float(output))
        started = time.perf_counter()
        await run("sleep 1")
        taken["beyond_sleep"].append(time.perf_counter() - started - 1)
    return taken


def output_of(content: str) -> str:
    answer = json.loads(content)
    assert answer["exit_code"] == 0, answer
    return str(answer["output"])


async def ours() -> dict[str, list[float]]:
    from toolcrib import Runtime

    async with Runtime() as runtime:

        async def run(command: str, session: str = "") -> str:
            result = await runtime.call("terminal", {"command": command}, ctx=runtime.context(session_id=session))
            return output_of(str(result.content))

        await run(FILL, "full")
        assert await run("f7; echo $V60", "full") == "number 7\nvalue number 60"
        calls: dict[str, Call] = {"bare": bare, "true": lambda: run("true"), "full": lambda: run("true", "full")}
        await seconds_of_each(calls, 3, 1)
        idle = await seconds_of_each({"idle": calls["true"], "bare_idle": bare}, 1, CALLS)
        return await seconds_of_each(calls, CALLS, ROUNDS) | idle | await after_sleep(run)


async def peer() -> dict[str, list[float]]:
    from tools.terminal_tool import terminal_tool

    async def run(command: str) -> str:
        return output_of(terminal_tool(command=command))

    calls: dict[str, Call] = {"bare": bare, "true": lambda: run("true")}
    await run("true")
    return await seconds_of_each(calls, PEER_CALLS, PEER_ROUNDS) | await after_sleep(run)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ours() if sys.argv[1] == "ours" else peer())))
