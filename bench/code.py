"""Measures `execute_code` beside a bare interpreter in one run and prints a table. Exits 1 when a figure is missed."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from run import Row, print_table
from terminal import figures, floor_row, limit_row, ratio_row

MOST_TIMES_BARE = 2.5
MOST_SECONDS_A_CALL = 0.001


def main() -> int:
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as home:
        found = figures(Path(home), "code_calls.py")
    rows: list[Row] = [
        ratio_row("execute_code: print(1), in the sandbox", found["print"], found["bare_print"], MOST_TIMES_BARE),
        floor_row("  bare python -I -c", found["bare_print"]),
        ratio_row("  one right after the other", found["hurried"], found["bare_hurried"], None),
        limit_row("one tool call from inside", found["call"], MOST_SECONDS_A_CALL, ""),
    ]
    print_table(rows)
    print(f"\nOther work on the machine makes ratios worse; the load was {load} of {os.cpu_count()} at the start.")
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
