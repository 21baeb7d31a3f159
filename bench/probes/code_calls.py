"""Prints, as JSON, the seconds of short scripts by `execute_code`, beside a bare interpreter in the same process."""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from terminal_calls import seconds_of_each

from toolcrib import Runtime
from toolcrib.config.load import load_settings
from toolcrib.config.settings import CodeExecutionSettings

ROUNDS, CALLS_FROM_INSIDE = 15, 300
AT_ONCE = {"print": 1, "hurried": 4}
"""How many calls follow each other without a pause; a model takes longer than ours between them."""
PAUSE_SECONDS = 0.15
FROM_INSIDE = f"""import time
nothing()
taken = []
for _ in range(5):
    started = time.perf_counter()
    for _ in range({CALLS_FROM_INSIDE}):
        nothing()
    taken.append((time.perf_counter() - started) / {CALLS_FROM_INSIDE})
print(taken)"""
PYTHON = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")
SCHEMA = {"description": "Does nothing", "parameters": {"type": "object", "properties": {}}}


async def nothing(_: Any, **__: Any) -> str:
    return "{}"


async def bare() -> None:
    subprocess.run([PYTHON, "-I", "-c", "print(1)"], stdout=subprocess.PIPE, check=True)  # noqa: ASYNC221


async def measured(workspace: str) -> dict[str, Any]:
    code = CodeExecutionSettings(python=PYTHON, sandbox="on", max_tool_calls=10 * CALLS_FROM_INSIDE)
    async with Runtime(settings=replace(load_settings(), code_execution=code), workspace=workspace) as runtime:
        runtime.registry.register(
            name="nothing", toolset="bench", schema=SCHEMA, handler=nothing, is_async=True, effects=()
        )

        async def output(script: str) -> str:
            result = await runtime.call("execute_code", {"code": script})
            answer = json.loads(str(result.content))
            assert answer["status"] == "success", answer
            return str(answer["output"])

        async def ours() -> None:
            await output("print(1)")

        await ours()
        found: dict[str, Any] = {}
        for name, count in AT_ONCE.items():
            calls = {name: ours, f"bare_{name}": bare}
            taken = await seconds_of_each(calls, count, ROUNDS, pause_seconds=PAUSE_SECONDS)
            found.update(taken)
        found["call"] = json.loads(await output(FROM_INSIDE))
        return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measured(folder))))
