"""Measures calls of MCP servers beside the bare SDK client, and the start with many servers; prints a table.

Exits 1 when a figure is missed. Not called `mcp.py`: every script in this folder would then import it as the SDK.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from run import Row, print_table

HERE = Path(__file__).parent
SERVER = HERE / "probes" / "mcp_server.py"
SERVERS = 50
STARTS = 7
CALL_GOAL = 1.15
START_GOAL = 1.1
"""What is left is reading a longer config file."""
CONFIG = "model: scripted\nproviders: {scripted: {base_url: script.json}}\n"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        rows = [call_row(Path(folder)), chat_row(Path(folder))]
    print_table(rows)
    print(f"\nOther work on the machine makes ratios worse; the load is {os.getloadavg()[0]:.1f} of {os.cpu_count()}.")
    return 1 if any(row.met is False for row in rows) else 0


def call_row(folder: Path) -> Row:
    home = folder / "calls"
    home.mkdir()
    found = answer_of("mcp_calls.py", str(home), str(SERVER))
    ours, bare, ratio = found["ours"], found["bare"], found["ratio"]
    what = "a call of a stdio server (bare SDK client beside it)"
    return Row(
        what, f"{ours * 1e6:.0f} µs", f"{bare * 1e6:.0f} µs", f"{ratio:.2f}", f"≤ {CALL_GOAL}", ratio <= CALL_GOAL
    )


def chat_row(folder: Path) -> Row:
    """Fresh processes in terminals, interleaved; the smallest of several is the one that was disturbed least."""
    homes = {count: folder / f"with-{count}" for count in (0, SERVERS)}
    for count, home in homes.items():
        home.mkdir()
        (home / "script.json").write_text("[]")
        (home / "config.yaml").write_text(CONFIG + servers_in_yaml(count))
    found: dict[int, list[float]] = {count: [] for count in homes}
    for _ in range(STARTS):
        for count, home in homes.items():
            found[count].append(answer_of("mcp_chat.py", str(home))["typed"])
    without, many = (min(found[count]) for count in (0, SERVERS))
    return Row(
        f"start of a chat until it shows what is typed, {SERVERS} servers (none beside it)",
        f"{many * 1000:.0f} ms",
        f"{without * 1000:.0f} ms",
        f"{many / without:.2f}",
        f"≤ {START_GOAL}",
        many / without <= START_GOAL,
    )


def servers_in_yaml(count: int) -> str:
    # Each would take a while to start; nobody waits for that.
    one = f"    command: {sys.executable}\n    args: [{SERVER}]\n"
    return "mcp_servers:\n" + "".join(f"  s{number}:\n{one}" for number in range(count)) if count else ""


def answer_of(probe: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, str(HERE / "probes" / probe), *arguments]
    environment = {"PATH": os.environ["PATH"], "HOME": arguments[0]}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    sys.exit(main())
