"""Measures toolcrib beside the reference system and prints a table; exits 1 when a figure misses its goal.

The first run installs the peer from the package index into `bench/.peer`; `--no-peer` leaves it out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PEER = HERE / ".peer"
PEER_PACKAGE = "hermes-agent==0.19.0"
REPEATS = 5


@dataclass(frozen=True)
class Row:
    """One figure: what we reached, what the peer reached in this run, and the goal."""

    what: str
    ours: str
    peer: str
    reached: str
    goal: str
    met: bool | None


@dataclass(frozen=True)
class Cost:
    cpu_seconds: float
    peak_mb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-peer", action="store_true", help="measure toolcrib alone")
    options = parser.parse_args()
    peer = None if options.no_peer else peer_python()
    with tempfile.TemporaryDirectory() as home:
        rows = start_rows(peer, Path(home)) + call_rows(peer, Path(home)) + search_rows(Path(home))
    print_table(rows)
    return 1 if any(row.met is False for row in rows) else 0


def peer_python() -> Path:
    """The interpreter of a scratch environment that has the reference system."""
    python = PEER / "bin" / "python"
    if not (PEER / ".installed").exists():
        print(f"Installing {PEER_PACKAGE} into {PEER.relative_to(HERE.parent)} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEER_PACKAGE], check=True)
        (PEER / ".installed").touch()
    return python


def start_rows(peer: Path | None, home: Path) -> list[Row]:
    """Interleaved fresh processes; the smallest of several is the one that was disturbed least."""
    probe = str(HERE / "probes" / "start.py")
    ours, theirs, version, bare = [], [], [], []
    for _ in range(REPEATS):
        ours.append(cost([sys.executable, probe, "ours"], home))
        version.append(cost([sys.executable, "-m", "toolcrib", "--version"], home))
        bare.append(cost([sys.executable, "-c", "pass"], home))
        if peer is not None:
            theirs.append(cost([str(peer), probe, "peer"], home))
    mine = min(run.cpu_seconds for run in ours)
    memory = min(run.peak_mb for run in ours)
    version_cpu = min(run.cpu_seconds for run in version)
    floor = min(run.cpu_seconds for run in bare)
    rows = [Row("memory of that process", f"{memory:.0f} MB", "", "", "≤ 27 MB", memory <= 27)]
    if theirs:
        other = min(run.cpu_seconds for run in theirs)
        rows[0] = Row(
            "memory of that process",
            f"{memory:.0f} MB",
            f"{min(r.peak_mb for r in theirs):.0f} MB",
            "",
            "≤ 27 MB",
            memory <= 27,
        )
        rows.insert(
            0,
            Row(
                "fresh process to all definitions, CPU",
                f"{mine:.3f} s",
                f"{other:.3f} s",
                f"{mine / other:.2f}",
                "≤ 0.11",
                mine / other <= 0.11,
            ),
        )
    else:
        rows.insert(
            0, Row("fresh process to all definitions, CPU", f"{mine:.3f} s", "not run", "", "≤ 0.11 of the peer", None)
        )
    rows.append(
        Row(
            "toolcrib --version, CPU (bare python beside it)",
            f"{version_cpu:.3f} s",
            f"{floor:.3f} s",
            "",
            "≤ 0.08 s",
            version_cpu <= 0.08,
        )
    )
    return rows


def cost(command: list[str], home: Path) -> Cost:
    """CPU time and peak memory of one process, after a first run has written its byte code."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TOOLCRIB_HOME": str(home / "toolcrib"),
        "HERMES_HOME": str(home / "hermes"),
    }
    process = subprocess.Popen(command, env=environment, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def call_rows(peer: Path | None, home: Path) -> list[Row]:
    ours, theirs = [], []
    for _ in range(3):
        ours.append(figures(Path(sys.executable), "calls.py", home, "ours"))
        if peer is not None:
            theirs.append(figures(peer, "calls.py", home, "peer"))
    mine = {name: min(run[name] for run in ours) for name in ours[0]}
    other = {name: min(run[name] for run in theirs) for name in theirs[0]} if theirs else {}

    def against_limit(what: str, name: str, limit: float, unit: str = "µs") -> Row:
        shown = f"{other[name]:.1f} {unit}" if name in other else ""
        return Row(what, f"{mine[name]:.1f} {unit}", shown, "", f"≤ {limit:g} {unit}", mine[name] <= limit)

    rows = []
    if other:
        ratio = mine["sync"] / other["sync"]
        rows.append(
            Row(
                "validated no-op sync call (the peer does not validate)",
                f"{mine['sync']:.1f} µs",
                f"{other['sync']:.1f} µs",
                f"{ratio:.2f}",
                "≤ 0.25",
                ratio <= 0.25,
            )
        )
    else:
        rows.append(
            Row("validated no-op sync call", f"{mine['sync']:.1f} µs", "not run", "", "≤ 0.25 of the peer", None)
        )
    rows.append(Row("  json in, call, json out: the floor", f"{mine['floor']:.1f} µs", "", "", "", None))
    rows.append(against_limit("validated async call, Runtime.call", "runtime_call", 12))
    rows.append(against_limit("async handler, sync edge, persistent loop", "async_on_loop", 20))
    rows.append(against_limit("async handler, sync edge, inside a running loop", "async_inside_loop", 150))
    rows.append(against_limit("definitions for 60 tools, repeated", "definitions_60", 50))
    rows.append(
        Row(
            "1,000 calls of a 10 ms tool in one batch",
            f"{mine['batch_seconds']:.2f} s",
            "",
            "",
            "≤ 0.5 s",
            mine["batch_seconds"] <= 0.5,
        )
    )
    rows.append(
        Row(
            "one call with 10,000 more tools registered",
            f"{mine['growth']:.2f} times",
            "",
            "",
            "flat (≤ 1.15)",
            mine["growth"] <= 1.15,
        )
    )
    return rows


def search_rows(home: Path) -> list[Row]:
    """Ten thousand tools, in one process after the other; the quickest was disturbed least."""
    runs = [figures(Path(sys.executable), "tool_search.py", home) for _ in range(3)]
    mine = {name: min(run[name] for run in runs) for name in runs[0]}
    rows = []
    for what, name, limit in (
        ("tool_search in 10,000 tools, repeated", "repeated_search", 10),
        ("definitions after one new tool in 10,000", "definitions_after_new_tool", 30),
    ):
        rows.append(Row(what, f"{mine[name]:.1f} ms", "", "", f"≤ {limit} ms", mine[name] <= limit))
    return rows


def figures(python: Path, probe: str, home: Path, *arguments: str) -> dict[str, float]:
    command = [str(python), str(HERE / "probes" / probe), *arguments]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TOOLCRIB_HOME": str(home / "toolcrib"),
        "HERMES_HOME": str(home / "hermes"),
    }
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def print_table(rows: list[Row]) -> None:
    header = ("figure", "toolcrib", "reference", "ratio", "goal", "")
    verdict = {True: "ok", False: "MISSED", None: ""}
    lines = [header, *[(r.what, r.ours, r.peer, r.reached, r.goal, verdict[r.met]) for r in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
