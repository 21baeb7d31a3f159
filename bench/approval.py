"""Measures the shell analyser on labelled command lines, next to the reference system, and prints tables.

`--peer PYTHON` names an interpreter with the reference system; the default is `bench/.peer`.
`--write` writes the figures into `docs/trust.md` and leaves the text around them unchanged.
No command line ever runs; each is only judged as text. Exits 1 if a figure misses its goal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from run import PEER_PACKAGE, peer_python
from toolcrib.approval.approvers.escape import visible

HERE = Path(__file__).parent
DATA = HERE.parent / "tests" / "approval" / "data"
SAMPLE = "shell_risk_sample.jsonl"
"""These rows are older than the rules; the others were written along with them."""
TRUST_PAGE = HERE.parent / "docs" / "trust.md"
START, END = "<!-- measured: `make bench` writes what follows -->", "<!-- end of what was measured -->"
MAX_SHOWN = 160
WORST_MS = 100
WITH_FILES_MICROSECONDS = 600
LIMIT_SECONDS = 5.0
"""After this the probe gives up on a command line."""
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
    "1 MB of \\ and newline": "\\\n" * 500_000,
    "1 MB of a \\ and newline": "a \\\n" * 250_000,
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
WITH_FILES = (
    "cat src/*.py | head",
    "cp src/m1.py l/m2.py",
    "echo x > l/out.txt",
    "grep -rn foo l",
    "sed -i s/a/b/ src/m1*.py",
    "cat l/m1.py > /tmp/x",
    "tar czf x.tgz src l",
    "for f in src/*.py; do wc -l $f; done",
    "cd l && ls -la && git status",
    "ln -sfn src/m1.py current; cat current",
    "cat ~/.s*/id*",
)
"""Judged in a folder with files and a link, which the reader looks at."""
Judged = list[tuple[str, float]]
"""Verdict and seconds of each command line."""
Rows = list[dict[str, str]]


@dataclass(frozen=True)
class Run:
    """One measurement of everything; `theirs` is empty if the reference system was not run."""

    rows: Rows
    sample: frozenset[str]
    """Ids of the rows that are older than the rules."""
    ours: Judged
    theirs: Judged
    shapes: Judged
    their_shapes: Judged
    with_files: Judged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help="an interpreter with the reference system")
    parser.add_argument("--no-peer", action="store_true", help="measure only toolcrib")
    parser.add_argument("--write", action="store_true", help="write the figures into the page")
    parser.add_argument("--page", type=Path, default=TRUST_PAGE, help="the page that --write changes")
    options = parser.parse_args()
    run = measure(None if options.no_peer else options.peer or reachable_peer())
    table, met = figure_table(run)
    lines = [*table, "", *shape_table(run), "", *miss_list(run)]
    print("\n".join(lines))
    if options.write:
        write(options.page, lines)
    return 0 if met else 1


def reachable_peer() -> Path | None:
    try:
        return peer_python()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"Cannot run the reference system here, so only toolcrib is measured: {error}", file=sys.stderr)
        return None


def measure(peer: Path | None) -> Run:
    rows: Rows = []
    sample: set[str] = set()
    for path in sorted(DATA.glob("*.jsonl")):
        read = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        rows += read
        sample |= {row["id"] for row in read if path.name == SAMPLE}
    commands, shapes, mine = [row["command"] for row in rows], list(SHAPES.values()), Path(sys.executable)
    return Run(
        rows=rows,
        sample=frozenset(sample),
        ours=judged(mine, "ours", commands),
        theirs=judged(peer, "peer", commands) if peer else [],
        shapes=judged(mine, "ours", shapes),
        their_shapes=judged(peer, "peer", shapes) if peer else [],
        with_files=judged(mine, "files", WITH_FILES * 5),
    )


def judged(python: Path, side: str, commands: Sequence[str]) -> Judged:
    """Verdict and seconds of each command line, judged in a separate process."""
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


def figures(rows: Rows, results: Judged, shapes: Judged) -> dict[str, float]:
    pairs = [(row, verdict) for row, (verdict, _) in zip(rows, results, strict=True)]
    seconds = sorted(seconds for _, seconds in results)

    def share(chosen: list[bool]) -> float:
        return 100 * sum(chosen) / max(1, len(chosen))

    return {
        "dangerous found, in the common classes, %": share(
            [v != "safe" for row, v in pairs if row["label"] != "safe" and row["class"] in CONTRACT_CLASSES]
        ),
        "dangerous found, in all classes, %": share([v != "safe" for row, v in pairs if row["label"] != "safe"]),
        "harmless asked about or blocked, %": share([v != "safe" for row, v in pairs if row["label"] == "safe"]),
        "harmless blocked": sum(v == "block" for row, v in pairs if row["label"] == "safe"),
        "catastrophic blocked, %": share([v == "block" for row, v in pairs if row["label"] == "catastrophic"]),
        "typical time (median), µs": 1e6 * seconds[len(seconds) // 2],
        "99th percentile, µs": 1e6 * seconds[int(len(seconds) * 0.99)],
        "worst time, hostile input included, ms": 1e3 * max(seconds[-1], *(time for _, time in shapes)),
    }


GOALS = {
    "dangerous found, in the common classes, %": (97, "at least"),
    "dangerous found, in all classes, %": (92, "at least"),
    "harmless asked about or blocked, %": (4, "at most"),
    "harmless blocked": (0, "at most"),
    "catastrophic blocked, %": (95, "at least"),
    "typical time (median), µs": (200, "at most"),
    "worst time, hostile input included, ms": (WORST_MS, "at most"),
}


def figure_table(run: Run) -> tuple[list[str], bool]:
    """The table of all figures, and whether every goal is met on all rows and on the sample."""
    chosen = [number for number, row in enumerate(run.rows) if row["id"] in run.sample]
    sides = []
    for numbers in (chosen, list(range(len(run.rows)))):
        rows = [run.rows[number] for number in numbers]
        sides.append(figures(rows, [run.ours[number] for number in numbers], run.shapes))
        theirs = [run.theirs[number] for number in numbers] if run.theirs else []
        sides.append(figures(rows, theirs, run.their_shapes) if theirs else {})
    lines = [
        f"{len(run.rows):,} labelled command lines, {len(chosen)} of them in the sample; the reference system is "
        f"{PEER_PACKAGE.replace('==', ' ')}{'' if run.theirs else ', which was not run this time'}.",
        "",
        "| figure | toolcrib, sample | reference, sample | toolcrib, all | reference, all | goal |",
        "|---|---|---|---|---|---|",
    ]
    met = True
    for name in sides[0]:
        limit, direction = GOALS.get(name, (0, ""))
        good = all(_reaches(side[name], limit, direction) for side in (sides[0], sides[2]))
        met &= good
        cells = [_cell(name, side[name]) if side else "not run" for side in sides]
        goal = f"{direction} {limit}{'' if good else ' (missed)'}" if direction else ""
        lines.append(f"| {name} | {' | '.join(cells)} | {goal} |")
    looked_up = 1e6 * sorted(seconds for _, seconds in run.with_files)[len(run.with_files) // 2]
    good = looked_up <= WITH_FILES_MICROSECONDS
    goal = f"at most {WITH_FILES_MICROSECONDS}{'' if good else ' (missed)'}"
    lines.append(f"| with links and wildcards looked up (median), µs | {looked_up:,.1f} | – | – | – | {goal} |")
    return lines, met and good


def _cell(name: str, value: float) -> str:
    if name.startswith("worst time") and value >= 1000 * LIMIT_SECONDS:
        return f"over {1000 * LIMIT_SECONDS:,.0f}"
    return f"{value:,.{0 if name == 'harmless blocked' else 1}f}"


def _reaches(value: float, limit: float, direction: str) -> bool:
    return not direction or (value >= limit if direction == "at least" else value <= limit)


def shape_table(run: Run) -> list[str]:
    lines = [
        "| hostile input | toolcrib says | toolcrib, ms | reference says | reference, ms |",
        "|---|---|---|---|---|",
    ]
    for number, name in enumerate(SHAPES):
        verdict, seconds = run.shapes[number]
        cells = [f"`{name}`", verdict, f"{1000 * seconds:.0f}", "not run", "not run"]
        if run.their_shapes:
            # Refusing without reading is quick too, so show the verdict next to the time.
            their_verdict, their_seconds = run.their_shapes[number]
            stopped = their_verdict == "timeout"
            cells[3:] = ["nothing", "stopped at 5,000"] if stopped else [their_verdict, f"{1000 * their_seconds:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def miss_list(run: Run) -> list[str]:
    """Every row that toolcrib judges differently from its label, escaped, one per line."""
    right = {"safe": "safe", "dangerous": "ask", "catastrophic": "block"}
    missed = [
        f"{row['id']}  {row['label']}, judged {verdict}:  {visible(row['command'][:MAX_SHOWN])}"
        for row, (verdict, _) in zip(run.rows, run.ours, strict=True)
        if verdict != right[row["label"]]
    ]
    if not missed:
        return [f"toolcrib judges all {len(run.rows):,} rows as labelled."]
    # A fence longer than any run of backticks that a command line could start with.
    title = f"toolcrib judges {len(missed)} of the {len(run.rows):,} rows differently from their label."
    return [title, "", "`````text", *missed, "`````"]


def write(page: Path, lines: list[str]) -> None:
    before, start, rest = page.read_text("utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        sys.exit(f"{page} does not contain the two lines {START!r} and {END!r}, which enclose the figures")
    page.write_text(f"{before}{START}\n\n" + "\n".join(lines) + f"\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
