"""An async tool, called from plain code, from inside a running loop, and awaited."""

import asyncio

from toolcrib import Runtime, ToolContext, handle_function_call, tool


@tool
async def slow_sum(numbers: list[int], ctx: ToolContext) -> int:
    """Add numbers, slowly.

    Args:
        numbers: What to add, for example [1, 2, 3].
    """
    total = 0
    for number in numbers:
        await asyncio.sleep(0)
        total += number
        ctx.progress(f"{total} so far")
    return total


async def main() -> None:
    # Synchronous code deep inside an async program: works too, on a loop of its own.
    print("inside a loop:", handle_function_call("slow_sum", {"numbers": [1, 2, 3]}))
    async with Runtime(on_progress=lambda message: print("progress:", message)) as runtime:
        result = await runtime.call("slow_sum", {"numbers": [1, 2]}, timeout_seconds=5)
        print("awaited:", result.text)


if __name__ == "__main__":
    print("from plain code:", handle_function_call("slow_sum", {"numbers": [1, 2, 3, 4]}))
    asyncio.run(main())
