"""Measures `read_file` beside `tail | head`, and the CPU time of large writes; exits 1 when a figure is missed."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from run import Row, print_table
from terminal import figures, floor_row, ratio_row

GIGABYTE = 1_000_000_000
LINE = "line %09d of a very large file"
LINES_AT_ONCE = 100_000
MAX_GROWTH_MB = 30.0
MAX_WRITE_MS = 10.0


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large"
        lines = make_large(path)
        rows = [*reading_rows(Path(folder), path, lines), *writing_rows(Path(folder))]
    print_table(rows)
    print(f"\nOther work on the machine makes ratios worse; the load was {load} of {os.cpu_count()} at the start.")
    return 1 if any(row.met is False for row in rows) else 0


def make_large(path: Path) -> int:
    """Write a file of a gigabyte; gives how many lines it has."""
    lines = 0
    with path.open("w") as file:
        while file.tell() < GIGABYTE:
            file.write("".join(f"{LINE % number}\n" for number in range(lines + 1, lines + LINES_AT_ONCE + 1)))
            lines += LINES_AT_ONCE
    return lines


def reading_rows(home: Path, path: Path, lines: int) -> list[Row]:
    ours = figures(home, "files_reading.py", str(path), str(lines))
    growth = ours["growth_mb"]
    rows = []
    for name, where, limit in (
        ("start", "at the start", None),
        ("middle", "in the middle", 2.0),
        ("end", "at the end", 2.0),
    ):
        rows.append(ratio_row(f"read_file: 2,000 lines {where} of 1 GB", ours[name], ours[f"bare_{name}"], limit))
        rows.append(floor_row("  tail -n +N | head -n 2000", ours[f"bare_{name}"]))
    goal = f"≤ {MAX_GROWTH_MB:g} MB"
    rows.append(Row("  memory that it takes more", f"{growth:.1f} MB", "", "", goal, growth <= MAX_GROWTH_MB))
    return rows


def writing_rows(home: Path) -> list[Row]:
    """CPU time, of which the best run counts: other work on the machine only ever adds to it."""
    workspace = home / "workspace"
    workspace.mkdir()
    ours = figures(home, "files_writing.py", str(workspace))
    rows = []
    for name, what in (("new", "a new file"), ("replaced", "a file that it replaces")):
        best, median = (1000 * number for number in (min(ours[name]), statistics.median(ours[name])))
        goal = f"≤ {MAX_WRITE_MS:g} ms CPU"
        rows.append(
            Row(f"write_file: 1 MB, {what}", f"{best:.1f} ms (median {median:.1f})", "", "", goal, best <= MAX_WRITE_MS)
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
