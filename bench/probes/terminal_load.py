"""Prints, as JSON, what much output, or many background processes, cost by the `terminal` tool.

Run as `python terminal_load.py output|background`.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from toolcrib import Runtime

GIGABYTE = 1_000_000_000
OUTPUT_ROUNDS = 5
READ_BYTES = 65_536
TEXT = f"yes 'a line of the output of a command that has much to say' | head -c {GIGABYTE}"
ZEROS = f"head -c {GIGABYTE} /dev/zero"
PROCESSES, BACKGROUND_ROUNDS = 500, 3


async def tool(runtime: Runtime, name: str, **arguments: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(str((await runtime.call(name, arguments)).content))
    return answer


def status(field: str) -> int:
    """A number of `/proc/self/status`: megabytes for memory, else a count."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    words = line.split()
    return int(words[1]) // 1024 if words[-1] == "kB" else int(words[1])


# Output


async def output() -> dict[str, Any]:
    async with Runtime() as runtime:
        await tool(runtime, "terminal", command="echo ready")
        before = status("VmRSS")
        figures: dict[str, list[float]] = {"text": [], "bare_text": [], "zeros": [], "bare_zeros": []}
        for _ in range(OUTPUT_ROUNDS):
            for name, command in (("text", TEXT), ("zeros", ZEROS)):
                figures[f"bare_{name}"].append(seconds_to_read(command))
                started = time.perf_counter()
                result = await runtime.call("terminal", {"command": command})
                figures[name].append(time.perf_counter() - started)
                assert not result.is_error, result.content
                assert "truncated" in str(result.content).lower(), "much output is cut"
        grown = status("VmHWM") - before
    return {**figures, "grown_mb": grown}


def seconds_to_read(command: str) -> float:
    """By a program that does nothing but read."""
    started = time.perf_counter()
    with subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        read = 0
        while data := os.read(process.stdout.fileno(), READ_BYTES):
            read += len(data)
    assert read == GIGABYTE
    return time.perf_counter() - started


# Background processes


async def background() -> dict[str, float]:
    rounds = []
    async with Runtime() as runtime:
        await tool(runtime, "terminal", command="true")
        for number in range(BACKGROUND_ROUNDS):
            rounds.append(await spawn_and_kill(runtime, f"1000.{os.getpid()}{number}"))
    return {name: min(one[name] for one in rounds) for name in ("spawn", "kill")} | {
        name: max(one[name] for one in rounds) for name in ("left", "more_threads", "grown_mb")
    }


async def spawn_and_kill(runtime: Runtime, seconds: str) -> dict[str, float]:
    """`seconds` is nobody else's, so that processes can be told by it."""
    threads, memory = status("Threads"), status("VmRSS")
    started = time.perf_counter()
    calls = (tool(runtime, "terminal", command=f"sleep {seconds}", background=True) for _ in range(PROCESSES))
    answers = await asyncio.gather(*calls)
    spawned = time.perf_counter() - started
    await until_all_sleep(seconds)
    more_threads, grown = status("Threads") - threads, status("VmRSS") - memory
    started = time.perf_counter()
    ends = (tool(runtime, "process", action="kill", session_id=answer["session_id"]) for answer in answers)
    killed = await asyncio.gather(*ends)
    taken = time.perf_counter() - started
    assert all(answer["status"] == "killed" for answer in killed), killed[0]
    left = sleeping(seconds) + shells_of(answers)
    return {"spawn": spawned, "kill": taken, "left": left, "more_threads": more_threads, "grown_mb": grown}


async def until_all_sleep(seconds: str) -> None:
    ends = time.monotonic() + 30
    while sleeping(seconds) < PROCESSES:
        assert time.monotonic() < ends, f"only {sleeping(seconds)} of {PROCESSES} run"
        await asyncio.sleep(0.05)


def shells_of(answers: list[dict[str, Any]]) -> int:
    return sum(Path(f"/proc/{answer['pid']}").exists() for answer in answers)


def sleeping(seconds: str) -> int:
    wanted = f"sleep\0{seconds}\0".encode()
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found += (folder / "cmdline").read_bytes() == wanted
        except OSError:
            continue
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(output() if sys.argv[1] == "output" else background())))
