"""Prints how much more memory a chat takes, and how long a typed key takes to appear, while a command prints lines."""

import json
import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

LINES = 100_000
COMMAND = (
    "python3 -c 'import sys, time\n"
    f"for block in range({LINES // 1000}):\n"
    '    sys.stdout.write("".join(f"line {block * 1000 + n} of a long output\\n" for n in range(1000)))\n'
    "    sys.stdout.flush(); time.sleep(0.03)'"
)
LIMIT_SECONDS = 120.0
KEYS = "ZQXKWJYBGHVU"
"""Letters that neither the output nor the rows around it contain."""


def main(home: str) -> None:
    folder = Path(home)
    steps = [{"call": "terminal", "arguments": {"command": COMMAND}}, {"say": "All done."}]
    (folder / "script.json").write_text(json.dumps(steps))
    (folder / "config.yaml").write_text("model: scripted\nproviders: {scripted: {base_url: script.json}}\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home)
        os.environ.update({"TERM": "xterm", "TOOLCRIB_HOME": home, "LANG": "C.UTF-8"})
        os.execv(sys.executable, [sys.executable, "-m", "toolcrib", "chat"])
    try:
        wait_for(terminal, "❯".encode())
        before = memory_mb(pid, "VmRSS")
        os.write(terminal, b"go\r")
        wait_for(terminal, b"lines above")
        slowest = max(delays(terminal))
        wait_for(terminal, b"All done.")
        print(json.dumps({"more_mb": memory_mb(pid, "VmHWM") - before, "slowest_key": slowest}))
    finally:
        os.kill(pid, signal.SIGTERM)
        os.close(terminal)
        os.waitpid(pid, 0)


def delays(terminal: int) -> list[float]:
    """How long each key takes until it is drawn, while the command prints."""
    found = []
    for key in KEYS:
        began = time.perf_counter()
        os.write(terminal, key.encode())
        # The input line is drawn again as a whole, or only its new letter.
        wait_for(terminal, key.encode())
        found.append(time.perf_counter() - began)
        time.sleep(0.05)
    return found


def memory_mb(pid: int, field: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1024


def wait_for(terminal: int, wanted: bytes) -> None:
    seen = b""
    end = time.monotonic() + LIMIT_SECONDS
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            sys.exit(f"no {wanted!r} in {LIMIT_SECONDS:.0f} s: {seen[-2000:]!r}")
        seen += os.read(terminal, 65536)


main(sys.argv[1])
