"""Starts background processes in the home that it is told, and then dies without a word. Run as a program."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from toolcrib.core.environments import CommandRequest
from toolcrib.environments.backends.local import LocalShellEnvironment
from toolcrib.processes.registry import ProcessRegistry


async def main(folder: Path, commands: list[str]) -> None:
    registry = ProcessRegistry(folder)
    environment = LocalShellEnvironment(dict(os.environ))
    await environment.open()
    registry.ledger.environment_opened(environment.address())
    for command in commands:
        record = await registry.start(
            environment, CommandRequest(command=command), session_key="s", notify_on_complete=True
        )
        print(record.id, flush=True)
        if command.endswith("# finishes"):
            await registry.get(record.id, "s").done.wait()
    print("ready", flush=True)
    # Until the test has seen that everything runs.
    await asyncio.to_thread(sys.stdin.readline)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
