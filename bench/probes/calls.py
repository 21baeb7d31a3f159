"""Prints, as JSON, the CPU microseconds of one call by each path, for toolcrib or for the peer.

Run as `python calls.py ours|peer`, with the interpreter that has the one or the other installed.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable

OURS = sys.argv[1] == "ours"
if OURS:
    from toolcrib import get_tool_definitions, handle_function_call, registry
else:
    from model_tools import get_tool_definitions, handle_function_call
    from tools.registry import registry

CALLS, ROUNDS = 5_000, 7
SCHEMA = {
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "The first"},
            "b": {"type": "integer", "description": "The second"},
        },
        "required": ["a", "b"],
    },
}
ANSWER = json.dumps({"sum": 3})
ARGUMENTS = {"a": 1, "b": 2}


async def add_async(args: dict, **_: object) -> str:
    return ANSWER


def cpu_microseconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """The median over several rounds of the CPU time of one call."""
    call()
    rounds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(calls):
            call()
        rounds.append((time.process_time() - started) / calls * 1e6)
    return sorted(rounds)[ROUNDS // 2]


def main() -> None:
    registry.register(name="bench_add", toolset="bench", schema=SCHEMA, handler=lambda args, **kw: ANSWER)
    registry.register(name="bench_add_async", toolset="bench", schema=SCHEMA, handler=add_async, is_async=True)
    get_tool_definitions(quiet_mode=True)
    assert handle_function_call("bench_add", ARGUMENTS) == ANSWER
    assert handle_function_call("bench_add_async", ARGUMENTS) == ANSWER
    figures = {
        "sync": cpu_microseconds(lambda: handle_function_call("bench_add", ARGUMENTS)),
        "async_on_loop": cpu_microseconds(lambda: handle_function_call("bench_add_async", ARGUMENTS)),
        "floor": cpu_microseconds(lambda: (lambda args, **kw: ANSWER)(json.loads(json.dumps(ARGUMENTS)))),
    }

    async def inside() -> float:
        return cpu_microseconds(lambda: handle_function_call("bench_add_async", ARGUMENTS), calls=500)

    figures["async_inside_loop"] = asyncio.run(inside())
    for number in range(60):
        registry.register(name=f"bench_{number}", toolset="bench60", schema=SCHEMA, handler=lambda args, **kw: ANSWER)
    figures["definitions_60"] = cpu_microseconds(
        lambda: get_tool_definitions(enabled_toolsets=["bench60"], quiet_mode=True), calls=500
    )
    if OURS:
        figures |= only_ours()
    print(json.dumps(figures))


def only_ours() -> dict[str, float]:
    from toolcrib import Runtime
    from toolcrib.core.types import ToolCall

    async def ten_milliseconds(args: dict, **_: object) -> str:
        await asyncio.sleep(0.01)
        return ANSWER

    registry.register(
        name="bench_wait", toolset="bench", schema=SCHEMA, handler=ten_milliseconds, is_async=True, effects=()
    )

    async def measure() -> dict[str, float]:
        async with Runtime() as runtime:
            rounds = []
            for _ in range(ROUNDS):
                started = time.process_time()
                for _ in range(CALLS):
                    await runtime.call("bench_add_async", ARGUMENTS)
                rounds.append((time.process_time() - started) / CALLS * 1e6)
            calls = [ToolCall(id=str(number), name="bench_wait", arguments=ARGUMENTS) for number in range(1000)]
            started = time.perf_counter()
            results = await runtime.call_many(calls, limit=1000)
            batch = time.perf_counter() - started
            assert len(results) == 1000
            assert not any(result.is_error for result in results)
            return {"runtime_call": sorted(rounds)[ROUNDS // 2], "batch_seconds": batch}

    figures = asyncio.run(measure())
    few = cpu_microseconds(lambda: handle_function_call("bench_add", ARGUMENTS))
    for number in range(10_000):
        registry.register(name=f"many_{number}", toolset=f"many{number % 50}", schema=SCHEMA, handler=print)
    many = cpu_microseconds(lambda: handle_function_call("bench_add", ARGUMENTS))
    return {**figures, "growth": many / few}


main()
