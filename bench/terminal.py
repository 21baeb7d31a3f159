"""Measures the `terminal` tool beside bare programs and the reference system in one run and prints a table.

Exits 1 when a figure is missed. Containers and ssh are measured where `scripts/test-services up` has started them.
`--no-peer` leaves the reference system out; names of parts measure those alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from approval import reachable_peer
from run import Row, print_table

HERE = Path(__file__).parent
SERVICES = HERE.parent / ".services" / "env"
PARTS = ("calls", "output", "background", "docker", "podman", "ssh", "sandbox")
BARE = {
    "docker": "docker exec",
    "podman": "podman exec",
    "ssh": "asyncssh, run() on an open connection",
    "sandbox": "bwrap with the same arguments",
}
LIMIT_SECONDS = 300

Figures = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-peer", action="store_true", help="measure toolcrib alone")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure: {', '.join(PARTS)}")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    parts = options.parts or PARTS
    peer = None if options.no_peer or "calls" not in parts else reachable_peer()
    load = f"{os.getloadavg()[0]:.1f}"
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            try:
                rows += rows_of(part, Path(folder), peer)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                # Its own words stand above the table, on standard error.
                rows.append(Row(part, "failed", "", "", f"({type(error).__name__})", False))
    print_table(rows)
    print(f"\nOther work on the machine makes ratios worse; the load was {load} of {os.cpu_count()} at the start.")
    return 1 if any(row.met is False for row in rows) else 0


def rows_of(part: str, home: Path, peer: Path | None) -> list[Row]:
    if part == "calls":
        return call_rows(home, peer)
    if part == "output":
        return output_rows(figures(home, "terminal_load.py", "output"))
    if part == "background":
        return background_rows(figures(home, "terminal_load.py", "background"))
    return engine_rows(part, figures(home, "terminal_engines.py", part, variables=services()))


def services() -> dict[str, str]:
    """How the engines are reached that were started for tests."""
    if not SERVICES.exists():
        return {}
    lines = (shlex.split(line)[0].partition("=") for line in SERVICES.read_text().splitlines() if line)
    return {name: value for name, _, value in lines}


def figures(home: Path, probe: str, *arguments: str, variables: Mapping[str, str] | None = None) -> Figures:
    return run_probe(Path(sys.executable), home, probe, *arguments, variables=variables)


def run_probe(
    python: Path, home: Path, probe: str, *arguments: str, variables: Mapping[str, str] | None = None
) -> Figures:
    """What a probe prints, run in a fresh process that knows nothing of this user."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TOOLCRIB_HOME": str(home / "toolcrib"),
        "HERMES_HOME": str(home / "hermes"),
        **(variables or {}),
    }
    command = [str(python), str(HERE / "probes" / probe), *arguments]
    done = subprocess.run(
        command, env=environment, cwd=home, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_SECONDS
    )
    result: Figures = json.loads(done.stdout.splitlines()[-1])
    return result


def call_rows(home: Path, peer: Path | None) -> list[Row]:
    ours = figures(home, "terminal_calls.py", "ours")
    theirs = {} if peer is None else run_probe(peer, home, "terminal_calls.py", "peer")

    def of_peer(name: str) -> str:
        return milliseconds(min(theirs[name])) if name in theirs else ""

    peer_ratio = f" ({min(theirs['true']) / min(theirs['bare']):.0f} times bare)" if theirs else ""
    return [
        ratio_row("terminal: true", ours["true"], ours["bare"], 1.5, reference=of_peer("true") + peer_ratio),
        ratio_row("  with 60 functions and 60 variables in the session", ours["full"], ours["bare"], None),
        floor_row("  bare bash -c true", ours["bare"]),
        ratio_row("  one call after a pause", ours["idle"], ours["bare_idle"], None),
        floor_row("  bare bash after a pause", ours["bare_idle"]),
        limit_row("from the end of sleep 1 to the answer", ours["after_sleep"], 0.005, of_peer("after_sleep")),
        Row(
            "  all that sleep 1 takes above its second",
            milliseconds(min(ours["beyond_sleep"])),
            of_peer("beyond_sleep"),
            "",
            "",
            None,
        ),
    ]


def output_rows(found: Figures) -> list[Row]:
    grown = found["grown_mb"]
    return [
        Row("1 GB of output: memory grows by", f"{grown:.0f} MB", "", "", "≤ 20 MB", grown <= 20),
        speed_row("  speed, text from yes | head", found["text"], found["bare_text"], judged=True),
        speed_row("  speed, zeros from head", found["zeros"], found["bare_zeros"], judged=False),
    ]


def speed_row(what: str, taken: list[float], bare: list[float], *, judged: bool) -> Row:
    """The middle of all rounds: on which processors the kernel puts writer and reader decides single ones."""
    ours = statistics.median(taken)
    share = round(statistics.median(bare) / ours, 2)
    return Row(
        what,
        f"{1 / ours:.2f} GB/s",
        "",
        f"{share:.2f} (best {min(bare) / min(taken):.2f})",
        "≥ 0.70 of a bare reader" if judged else "",
        share >= 0.7 if judged else None,
    )


def background_rows(found: Figures) -> list[Row]:
    def at_most(what: str, name: str, limit: float, show: Callable[[float], str]) -> Row:
        return Row(what, show(found[name]), "", "", f"≤ {show(limit)}" if limit else "none", found[name] <= limit)

    return [
        at_most("500 background processes: spawn all", "spawn", 3, seconds),
        at_most("  kill all", "kill", 2.5, seconds),
        at_most("  left running afterwards", "left", 0, str),
        at_most("  more threads in our process meanwhile", "more_threads", 0, str),
        Row("  more memory in our process meanwhile", f"{found['grown_mb']:.0f} MB", "", "", "", None),
    ]


def engine_rows(engine: str, found: Figures) -> list[Row]:
    if "skipped" in found:
        return [Row(f"{engine}: true", "skipped", "", "", f"({found['skipped']})", None)]
    return [
        ratio_row(f"{engine}: true", found["true"], found["bare"], 1.3),
        floor_row(f"  {BARE[engine]}", found["bare"]),
        ratio_row("  one call after a pause", found["idle"], found["bare_idle"], None),
        floor_row(f"  {BARE[engine]} after a pause", found["bare_idle"]),
    ]


def ratio_row(what: str, ours: list[float], bare: list[float], limit: float | None, reference: str = "") -> Row:
    """The rounds that were disturbed least decide; the middle of all rounds stands beside it."""
    reached = round(min(ours) / min(bare), 2)
    middle = statistics.median(ours) / statistics.median(bare)
    return Row(
        what,
        milliseconds(min(ours)),
        reference,
        f"{reached:.2f} (median {middle:.2f})",
        f"≤ {limit:g} times bare" if limit else "",
        reached <= limit if limit else None,
    )


def floor_row(what: str, bare: list[float]) -> Row:
    return Row(what, milliseconds(min(bare)), "", "", "", None)


def limit_row(what: str, taken: list[float], limit: float, reference: str) -> Row:
    shown = f"{milliseconds(min(taken))} (median {statistics.median(taken) * 1000:.1f})"
    return Row(what, shown, reference, "", f"≤ {milliseconds(limit)}", min(taken) <= limit)


def milliseconds(taken: float) -> str:
    return f"{taken * 1000:.1f} ms"


def seconds(taken: float) -> str:
    return f"{taken:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
