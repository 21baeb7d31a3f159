"""Measures the shell analyser on the labelled command lines, beside the reference system, and prints tables.

`--peer PYTHON` names an interpreter that has the reference system; without it `bench/.peer` is used.
No command line is ever run; each is only judged as text. Exits 1 when a figure is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from run import peer_python

HERE = Path(__file__).parent
DATA = HERE.parent / "tests" / "approval" / "data"
CONTRACT_CLASSES = frozenset(
    (
        "recursive delete",
        "disk",
        "format",
        "sql",
        "database cli",
        "system config",
        "service",
        "remote code",
        "fork bomb",
        "kill",
        "system power",
        "permissions",
        "git history",
    )
)
SHAPES = {
    "100 KB of pipes": "a|" * 50_000,
    "96 KB of tee a/b lines": "tee a/b\n" * 12_000,
    "<<A 20,000 times": "<<A " * 20_000,
    "1 MB of NUL": "\0" * 1_000_000,
    "$( 300,000 deep": "$(" * 300_000,
    "1 MB in one word": "a" * 1_000_000,
    "1 MB of quotes": "''" * 500_000,
    "1 MB of ;": ";" * 1_000_000,
    "1 MB heredoc": "cat <<'E'\n" + "rm -rf /\n" * 110_000 + "E\n",
    "1 MB heredoc into bash": "bash <<'E'\n" + "echo a b\n" * 110_000 + "E\n",
    "16 KB of $(echo a)": "$(echo a) " * 1_600,
    "2,000 rm -rf a": "rm -rf a;" * 2_000,
    "10,000 arguments": "rm " + "a " * 10_000,
    "300 KB of sed script": "sed '" + "s/a/" * 75_000 + "'",
    "env 10,000 times": "env " * 10_000 + "ls",
}
Judged = list[tuple[str, float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help="an interpreter that has the reference system")
    parser.add_argument("--no-peer", action="store_true", help="measure toolcrib alone")
    parser.add_argument("--misses", action="store_true", help="print the command lines that were judged wrongly")
    options = parser.parse_args()
    peer = None if options.no_peer else options.peer or peer_python()
    rows = [json.loads(line) for path in sorted(DATA.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    commands = [row["command"] for row in rows]
    ours = judged(Path(sys.executable), "ours", commands)
    theirs = judged(peer, "peer", commands) if peer else None
    shapes = judged(Path(sys.executable), "ours", list(SHAPES.values()))
    their_shapes = judged(peer, "peer", list(SHAPES.values())) if peer else None
    met = print_figures(rows, ours, theirs)
    met &= print_shapes(shapes, their_shapes)
    if options.misses:
        print_misses(rows, ours)
    return 0 if met else 1


def judged(python: Path, side: str, commands: Sequence[str]) -> Judged:
    """Verdict and seconds of each command line, judged in a process of its own."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home, "HERMES_HOME": home, "TOOLCRIB_HOME": home}
        done = subprocess.run(
            [str(python), str(HERE / "probes" / "approval.py"), side],
            input=json.dumps(commands),
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            check=True,
            timeout=900,
        )
    result: Judged = [(verdict, seconds) for verdict, seconds in json.loads(done.stdout.splitlines()[-1])]
    return result


def figures(rows: list[dict[str, str]], results: Judged) -> dict[str, float]:
    verdicts = [verdict for verdict, _ in results]
    pairs = list(zip(rows, verdicts, strict=True))
    seconds = sorted(seconds for _, seconds in results)

    def share(chosen: list[bool]) -> float:
        return 100 * sum(chosen) / max(1, len(chosen))

    return {
        "found in the classes of the contract, %": share(
            [v != "safe" for row, v in pairs if row["label"] != "safe" and row["class"] in CONTRACT_CLASSES]
        ),
        "found of all dangerous, %": share([v != "safe" for row, v in pairs if row["label"] != "safe"]),
        "harmless asked about or blocked, %": share([v != "safe" for row, v in pairs if row["label"] == "safe"]),
        "harmless blocked": sum(v == "block" for row, v in pairs if row["label"] == "safe"),
        "catastrophic blocked, %": share([v == "block" for row, v in pairs if row["label"] == "catastrophic"]),
        "median time, µs": 1e6 * seconds[len(seconds) // 2],
        "99th percentile, µs": 1e6 * seconds[int(len(seconds) * 0.99)],
    }


GOALS = {
    "found in the classes of the contract, %": (97, "at least"),
    "found of all dangerous, %": (92, "at least"),
    "harmless asked about or blocked, %": (4, "at most"),
    "harmless blocked": (0, "at most"),
    "catastrophic blocked, %": (95, "at least"),
    "median time, µs": (200, "at most"),
}


def print_figures(rows: list[dict[str, str]], ours: Judged, theirs: Judged | None) -> bool:
    mine = figures(rows, ours)
    other = figures(rows, theirs) if theirs else {}
    met = True
    print(f"{len(rows)} labelled command lines\n\n| figure | toolcrib | reference | goal |\n|---|---|---|---|")
    for name, value in mine.items():
        limit, direction = GOALS.get(name, (0, ""))
        good = not direction or (value >= limit if direction == "at least" else value <= limit)
        met &= good
        goal = f"{direction} {limit}{'' if good else ' (missed)'}" if direction else ""
        print(f"| {name} | {value:.1f} | {f'{other[name]:.1f}' if other else 'not run'} | {goal} |")
    return met


def print_shapes(ours: Judged, theirs: Judged | None) -> bool:
    print("\n| hostile input | toolcrib, ms | reference, ms |\n|---|---|---|")
    for number, name in enumerate(SHAPES):
        verdict, seconds = ours[number]
        other = "not run"
        if theirs:
            other = "over 5,000" if theirs[number][0] == "timeout" else f"{1000 * theirs[number][1]:.0f}"
        print(f"| {name} ({verdict}) | {1000 * seconds:.0f} | {other} |")
    return max(seconds for _, seconds in ours) <= 0.25


def print_misses(rows: list[dict[str, str]], ours: Judged) -> None:
    right = {"safe": ("safe",), "dangerous": ("ask",), "catastrophic": ("block",)}
    print("\nJudged otherwise than labelled:")
    for row, (verdict, _) in zip(rows, ours, strict=True):
        if verdict not in right[row["label"]]:
            print(f"- {row['label']} → {verdict}: {row['command'][:120]!r}")


if __name__ == "__main__":
    sys.exit(main())
