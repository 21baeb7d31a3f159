"""Prints, as JSON, what 2,000 lines of a file of 1 GB cost by `read_file` and by `tail … | head`.

Run as `python files_reading.py FILE LINES`, with the number of lines that the file has.
"""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from toolcrib import Runtime

ROUNDS = 7
WANTED = 2_000


def memory_mb(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def bare(path: str, first: int) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        ["bash", "-c", 'tail -n "+$1" "$2" | head -n 2000', "bash", str(first), path],
        stdout=subprocess.PIPE,
        check=True,
    )
    taken = time.perf_counter() - started
    assert done.stdout.count(b"\n") == WANTED
    return taken


async def measure(path: str, lines: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    async with Runtime() as runtime:
        # The first call opens the environment and loads what reading needs.
        await runtime.call("read_file", {"path": __file__})
        before = memory_mb("VmRSS")
        for name, first in (("start", 1), ("middle", lines // 2), ("end", lines - WANTED + 1)):
            taken: list[float] = []
            floor: list[float] = []
            for number in range(ROUNDS):
                floor.append(bare(path, first - number if first > ROUNDS else first + number))
                # Another first line each time: a repeat would be answered briefly.
                offset = first - number if first > ROUNDS else first + number
                started = time.perf_counter()
                result = await runtime.call("read_file", {"path": path, "offset": offset, "limit": WANTED})
                taken.append(time.perf_counter() - started)
                answer = json.loads(str(result.content))
                assert (answer["first_line"], answer["lines"]) == (offset, WANTED)
            figures[name], figures[f"bare_{name}"] = taken, floor
        figures["growth_mb"] = memory_mb("VmHWM") - before
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2])))))
