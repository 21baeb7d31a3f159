"""Measures how much an editor waits for `toolcrib acp`: from its start until `initialize` is answered.

Prints a table; exits 1 when a figure misses its goal. CPU time, beside that of importing the SDK alone, in turns.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from run import Row, print_table

ROUNDS = 7
GOAL = 1.2
REQUEST = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": 1, "clientCapabilities": {}},
}
TICK = os.sysconf("SC_CLK_TCK")


def import_seconds() -> float:
    """The CPU time of a process that only imports the SDK."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import acp"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def answer_seconds(home: str) -> float:
    """The CPU time that `toolcrib acp` has used when it has answered `initialize`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "toolcrib", "acp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TOOLCRIB_HOME": home},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(REQUEST).encode() + b"\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    used = _cpu_seconds(process.pid)
    process.stdin.close()
    process.stdout.close()
    process.wait()
    assert answer["result"]["protocolVersion"] == 1
    return used


def _cpu_seconds(pid: int) -> float:
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rfind(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        import_seconds(), answer_seconds(home)  # byte code
        rounds = [(import_seconds(), answer_seconds(home)) for _ in range(ROUNDS)]
    alone, answered = min(one for one, _ in rounds), min(one for _, one in rounds)
    ratio = answered / alone
    print_table(
        [
            Row(
                "start to `initialize` answered, CPU",
                f"{answered * 1000:.0f} ms",
                f"{alone * 1000:.0f} ms (importing the SDK)",
                f"{ratio:.2f}",
                f"<= {GOAL}",
                ratio <= GOAL,
            )
        ]
    )
    return 0 if ratio <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
