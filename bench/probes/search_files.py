"""Times searches of one tree: bare rg, the tool with ripgrep, and the tool without it. Prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from toolcrib.files.search import search_files
from toolcrib.testing import isolated_runtime

ROUNDS = 5
PATTERNS = {
    "rare": "needle_in_haystack",
    "letters": "(?i)NEEDLE_in_haystack",
    "expression": r"\w+ = \d+$",
    "many": "common_word",
}


def main() -> None:
    folder = sys.argv[1]
    found = {}
    with (
        tempfile.TemporaryDirectory() as home,
        isolated_runtime(Path(home), "terminal: {login_shell: false}\n") as made,
    ):
        ctx = made.context(session_id="bench", cwd=folder)
        asyncio.run(search_files({"pattern": "warm"}, ctx))
        for name, pattern in PATTERNS.items():

            def bare(pattern: str = pattern) -> None:
                subprocess.run(["rg", "-n", pattern], cwd=folder, stdout=subprocess.PIPE, check=False)

            def best(pattern: str = pattern) -> None:
                check(asyncio.run(search_files({"pattern": pattern}, ctx)), "ripgrep")

            def python(pattern: str = pattern) -> None:
                check(asyncio.run(search_files({"pattern": pattern}, ctx, engine="python")), "python")

            taken: dict[str, list[float]] = {"bare": [], "best": [], "python": []}
            for _ in range(ROUNDS):
                for one in (bare, best, python):
                    taken[one.__name__].append(timed(one))
            found[name] = taken
    print(json.dumps(found))


def check(answer: str, engine: str) -> None:
    """A search that found nothing, or went another way, would be no measure."""
    said = json.loads(answer)
    if not said.get("total") or said["searched_with"] != engine:
        sys.exit(f"not what was to be measured: {answer[:300]}")


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
