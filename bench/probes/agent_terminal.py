"""Prints the CPU milliseconds that an agent itself spends on one `terminal` call with a command that was approved.

It uses only names that every version has, so it runs in any checkout: `PYTHONPATH=<checkout>/src python …`. The time
of the command's own processes does not count.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from toolcrib import Agent
from toolcrib.providers.scripted import ScriptedProvider, calls
from toolcrib.testing import ScriptedApprover

WARM_UP = 20
CALLS = 150
COMMAND = "chmod 777 notes.txt && ls -l notes.txt | head -n 3"
"""Needs approval, because anybody can write to the file then; harmless in a folder of its own."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, workspace = Path(folder, "home"), Path(folder, "work")
        home.mkdir()
        workspace.mkdir()
        (workspace / "notes.txt").write_text("notes\n")
        os.chdir(workspace)
        print(measure(home, workspace))


def measure(home: Path, workspace: Path) -> float:
    approver = ScriptedApprover("session")
    left = [0]

    def step(_: object) -> object:
        left[0] -= 1
        return calls("terminal", {"command": COMMAND, "timeout": 60 + left[0] % 7}) if left[0] >= 0 else "done"

    provider = ScriptedProvider(otherwise=step)
    options = {"max_turns": CALLS * 2, "max_calls": CALLS * 2}
    with Agent(model=provider, home=home, cwd=workspace, toolsets=["terminal"], approver=approver, **options) as agent:
        spent = 0.0
        for count in (WARM_UP, CALLS):
            left[0] = count
            started = time.process_time()
            result = agent.run_sync("Work")
            spent = time.process_time() - started
            if result.calls != count or result.outcome != "answered":
                raise SystemExit(f"the agent made {result.calls} calls: {result.outcome} {result.problem}")
        if len(approver.asked) != 1:
            raise SystemExit(f"asked {len(approver.asked)} times instead of once")
    return spent / CALLS * 1000


if __name__ == "__main__":
    main()
