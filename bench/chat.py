"""Measures the chat in a terminal: its start beside an older commit, and a long output; prints a table.

Exits 1 when a figure is missed.
"""

from __future__ import annotations

import compileall
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from run import Row, print_table

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"
OLDER = "df716fc"
STARTS = 9
START_GOAL = 0.8
MEMORY_GOAL_MB = 60
KEY_GOAL_SECONDS = 0.1
"""A person notices a longer delay."""
CONFIG = "model: scripted\nproviders: {scripted: {base_url: script.json}}\n"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        rows = [start_row(Path(folder)), *output_rows(Path(folder))]
    print_table(rows)
    print(f"\nOther work on the machine makes ratios worse; the load is {os.getloadavg()[0]:.1f} of {os.cpu_count()}.")
    return 1 if any(row.met is False for row in rows) else 0


def start_row(folder: Path) -> Row:
    """Fresh processes in terminals, interleaved; the smallest of several is the one that was disturbed least."""
    what = f"chat until it accepts input, CPU (commit {OLDER} beside it)"
    archive = subprocess.run(["git", "archive", OLDER, "src"], cwd=HERE.parent, capture_output=True, check=False)
    if archive.returncode:
        return Row(what, "not run", "", "", f"≤ {START_GOAL} (needs commit {OLDER})", None)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as older:
        older.extractall(folder / "older", filter="data")
    sources = {"older": folder / "older" / "src", "ours": SOURCE}
    found: dict[str, list[float]] = {name: [] for name in sources}
    for name, source in sources.items():
        compileall.compile_dir(source, quiet=2)
        home = folder / name / "home"
        home.mkdir(parents=True)
        (home / "script.json").write_text("[]")
        (home / "config.yaml").write_text(CONFIG)
    for _ in range(STARTS):
        for name, source in sources.items():
            found[name].append(answer_of("chat_start.py", str(source), str(folder / name / "home"))["cpu"])
    ours, older_cpu = min(found["ours"]), min(found["older"])
    ratio = ours / older_cpu
    return Row(
        what,
        f"{ours * 1000:.0f} ms",
        f"{older_cpu * 1000:.0f} ms",
        f"{ratio:.2f}",
        f"≤ {START_GOAL}",
        ratio <= START_GOAL,
    )


def output_rows(folder: Path) -> list[Row]:
    home = folder / "output"
    home.mkdir()
    found = answer_of("chat_output.py", str(home))
    more, slowest = found["more_mb"], found["slowest_key"]
    return [
        Row(
            "memory of the chat while a command prints 100,000 lines",
            f"{more:.0f} MB more",
            "",
            f"{more:.0f} MB",
            f"≤ {MEMORY_GOAL_MB} MB",
            more <= MEMORY_GOAL_MB,
        ),
        Row(
            "a typed key until it is drawn meanwhile, the slowest of several",
            f"{slowest * 1000:.0f} ms",
            "",
            f"{slowest * 1000:.0f} ms",
            f"≤ {KEY_GOAL_SECONDS * 1000:.0f} ms",
            slowest <= KEY_GOAL_SECONDS,
        ),
    ]


def answer_of(probe: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, str(HERE / "probes" / probe), *arguments]
    environment = {"PATH": os.environ["PATH"], "HOME": arguments[-1]}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    sys.exit(main())
