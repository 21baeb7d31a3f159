"""Measures `search_files` over 100,000 files beside bare `rg` in one run and prints a table.

Exits 1 when a figure is missed. The files are made anew, in memory where the machine has a folder for that.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from run import Row, print_table
from terminal import Figures, figures, floor_row, ratio_row

FILES = 100_000
IN_MEMORY = Path("/dev/shm")
ENDINGS = ("py", "ts", "md", "txt", "json", "c")
IGNORED = "*.o\n*.pyc\nnode_modules/\n/dist\nbuild/\n*.log\n!keep.log\n__pycache__/\n.venv\nsrc/**/gen/*.c\n"
NESTED = "*.tmp\n/local\nfile19.json\n"
NEEDLE = "needle_in_haystack"
WAYS = {
    "rare": "a rare word",
    "letters": "the same in any case",
    "expression": r"\w+ = \d+$",
    "many": "a word in every file",
}


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if shutil.which("rg") is None:
        print("ripgrep is not installed; run scripts/test-services up", file=sys.stderr)
        return 1
    load = f"{os.getloadavg()[0]:.1f}"
    where = IN_MEMORY if IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=where) as folder, tempfile.TemporaryDirectory() as home:
        tree = Path(folder, "tree")
        make_tree(tree)
        try:
            rows = rows_of(figures(Path(home), "search_files.py", str(tree)))
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            rows = [Row("search_files", "failed", "", "", f"({type(error).__name__})", False)]
    print_table(rows)
    print(f"\nOther work on the machine makes ratios worse; the load was {load} of {os.cpu_count()} at the start.")
    return 1 if any(row.met is False for row in rows) else 0


def rows_of(found: Figures) -> list[Row]:
    rows = []
    for name, what in WAYS.items():
        rows += [
            ratio_row(f"search_files, 100,000 files: {what}", found[name]["best"], found[name]["bare"], 1.3),
            ratio_row("  without ripgrep", found[name]["python"], found[name]["bare"], 8),
            floor_row("  bare rg -n", found[name]["bare"]),
        ]
    return rows


def make_tree(root: Path) -> None:
    """Files of 1 to 8 KB, twenty in a folder, with ignore files at the top and further down."""
    chance = random.Random(7)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz_", k=chance.randint(3, 10))) for _ in range(3000)]
    bodies = [text_of(chance, words) for _ in range(400)]
    for number in range(FILES // 20):
        folder = root / f"area{number % 20}" / f"package{number // 20 % 50}" / f"part{number}"
        folder.mkdir(parents=True)
        for at in range(20):
            body = chance.choice(bodies)
            if number % 50 == 0 and at == 0:
                body = f"# größe\n{body}{NEEDLE} = 1\n"
            (folder / f"file{at}.{chance.choice(ENDINGS)}").write_text(body)
    (root / ".gitignore").write_text(IGNORED)
    for area in range(0, 20, 4):
        (root / f"area{area}" / ".gitignore").write_text(NESTED)


def text_of(chance: random.Random, words: list[str]) -> str:
    lines, left = ["common_word"], chance.randint(1000, 8000)
    while left > 0:
        lines.append("    " * chance.randint(0, 3) + " ".join(chance.choices(words, k=chance.randint(2, 9))))
        left -= len(lines[-1]) + 1
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
