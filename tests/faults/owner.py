"""A process of ours, run as a program: `owner.py run HOME COMMANDS` until it is killed, `owner.py recover HOME` after.

Both speak JSON, one value in a line. `run` starts the commands of a JSON list and says `{name: process id}` when all
in the background are started. `recover` says `"ready"`, waits for a line, recovers, says what it found, and then
answers each line, a call `[session, tool, arguments]`, until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import msgspec

from toolcrib.runtime import Runtime


def say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def run(runtime: Runtime, commands: list[dict[str, Any]]) -> None:
    ids = {}
    for one in commands:
        if not one["background"]:
            continue
        answer = await call(runtime, one["session"], "terminal", {"command": one["command"], "background": True})
        assert "session_id" in answer, answer
        ids[one["name"]] = answer["session_id"]
        if one["ends"] == "before":
            await call(runtime, one["session"], "process", {"action": "wait", "session_id": answer["session_id"]})
    say(ids)
    in_front = [one for one in commands if not one["background"]]
    answers = await asyncio.gather(
        *(call(runtime, one["session"], "terminal", {"command": one["command"], "timeout": 600}) for one in in_front)
    )
    # Reached only if a command of the test fails, which it should know.
    say({one["name"]: answer for one, answer in zip(in_front, answers, strict=True)})


async def recover(runtime: Runtime) -> None:
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    say(msgspec.to_builtins(await asyncio.to_thread(runtime.terminal.recover)))
    while line := await asyncio.to_thread(sys.stdin.readline):
        say(await call(runtime, *json.loads(line)))


async def call(runtime: Runtime, session: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await runtime.call(tool, arguments, ctx=runtime.context(session_id=session))
    answer: dict[str, Any] = json.loads(str(result.content))
    return answer


async def main(what: str, home: str, *rest: str) -> None:
    async with Runtime(home=home, yolo=True) as runtime:
        await (run(runtime, json.loads(rest[0])) if what == "run" else recover(runtime))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
