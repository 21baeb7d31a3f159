"""Prints, as JSON, the CPU seconds that `write_file` of 1 MB takes: for a new file, and for one that it replaces.

Run as `python files_writing.py FOLDER`. Every write goes through the whole pipeline, snapshots for undo included.
"""

import asyncio
import json
import sys
import time

from toolcrib import Runtime

ROUNDS = 9
LINE = "line %09d of a file of text that is a megabyte\n"
LINES = 1_000_000 // len(LINE % 0)


async def write(runtime: Runtime, path: str, first: int) -> float:
    content = "".join(LINE % number for number in range(first, first + LINES))
    started = time.process_time()
    result = await runtime.call("write_file", {"path": path, "content": content})
    taken = time.process_time() - started
    assert json.loads(str(result.content))["lines"] == LINES, result.content
    return taken


async def measure(folder: str) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {"new": [], "replaced": []}
    async with Runtime(workspace=folder) as runtime:
        # The first call opens the environment and loads what writing needs.
        await runtime.call("write_file", {"path": f"{folder}/first.txt", "content": "first\n"})
        for number in range(ROUNDS):
            path = f"{folder}/{number}.txt"
            taken["new"].append(await write(runtime, path, number))
            taken["replaced"].append(await write(runtime, path, number + LINES))
    return taken


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1]))))
