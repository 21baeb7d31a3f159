"""A batch: calls on different files run together, calls on the same file in order; results keep their order."""

import asyncio
from typing import Any

from toolcrib import Effect, Runtime, ToolContext, tool
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.core.types import ToolCall

running: set[str] = set()
seen_together: list[set[str]] = []


def writes_its_path(args: dict[str, Any], ctx: ToolContext) -> tuple[Effect, ...]:
    return (Effect("write", args["path"]),)


@tool(effects=writes_its_path)
async def append_line(path: str, line: str) -> str:
    """Append a line to a file (this example only pretends to).

    Args:
        path: The file.
        line: The line.
    """
    running.add(line)
    await asyncio.sleep(0.5)  # as if writing took a while
    seen_together.append(set(running))
    running.discard(line)
    return f"{path}: {line}"


class YesToEverything:
    """An approver: a tool that writes outside the workspace is asked about, and somebody must answer."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        return ApprovalAnswer(choice="once")


async def main() -> None:
    calls = [
        ToolCall(id="1", name="append_line", arguments={"path": "/srv/a.txt", "line": "first"}),
        ToolCall(id="2", name="append_line", arguments={"path": "/srv/b.txt", "line": "second"}),
        ToolCall(id="3", name="append_line", arguments={"path": "/srv/a.txt", "line": "third"}),
        ToolCall(id="4", name="append_line", arguments={"path": "/srv/c.txt"}),
    ]
    async with Runtime(approver=YesToEverything()) as runtime:
        for result in await runtime.call_many(calls):
            print(result.call_id, result.status, result.text)
    together = max(seen_together, key=len)
    print("together:", sorted(together))

    async with Runtime() as runtime:
        result = await runtime.call("append_line", {"path": "/srv/a.txt", "line": "fourth"})
        print("nobody to ask:", result.error_message)


if __name__ == "__main__":
    asyncio.run(main())
