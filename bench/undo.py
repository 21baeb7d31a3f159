"""Measures what undo costs: keeping a file of 1 MB around a write, beside the disk's own durable write of 1 MB.

Prints a table, where the bare write stands in the column of the reference. The median decides; the best round stands
beside it. Exits 1 when a figure is missed.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from run import Row, print_table
from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, ToolEntry
from toolcrib.runtime import Runtime
from toolcrib.undo.snapshotter import Snapshotter

MEGABYTE = 1_000_000
REPEATS = 60
GOAL_MS = 3.0
COMMANDS = 300


def main() -> int:
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(Path(folder)))
    print_table(rows)
    sys.stdout.write(f"\nOther work on the machine makes figures worse; the load was {load} of {os.cpu_count()}.\n")
    return 1 if any(row.met is False for row in rows) else 0


async def measure(folder: Path) -> list[Row]:
    workspace = folder / "work"
    workspace.mkdir()
    async with Runtime(home=folder / "home", workspace=workspace) as runtime:
        ctx = runtime.context(session_id="bench", cwd=str(workspace))
        snapshotter = Snapshotter(runtime.settings, ctx.services, str(workspace))
        return [*await write_rows(snapshotter, ctx, workspace), *await command_rows(snapshotter, ctx)]


async def write_rows(snapshotter: Snapshotter, ctx: ToolContext, workspace: Path) -> list[Row]:
    """Ours and the bare write in turns, so that other work on the machine meets both."""
    target, entry = workspace / "file", tool("write_file")
    effects = (Effect("write", str(target)),)
    ours, bare = [], []
    for number in range(REPEATS):
        # On the disk before the clock starts: whoever waits for the disk next would wait for this too.
        written_ms(target, os.urandom(MEGABYTE))
        content = os.urandom(MEGABYTE)
        started = time.perf_counter()
        await snapshotter.before(entry, effects, ctx)
        kept = time.perf_counter() - started
        target.write_bytes(content)
        started = time.perf_counter()
        await snapshotter.after(ctx)
        ours.append((kept + time.perf_counter() - started) * 1000)
        bare.append(written_ms(workspace / f"bare{number}", content))
    mine, disk = statistics.median(ours), statistics.median(bare)
    ratio = f"{mine / disk:.1f} (best {min(ours) / min(bare):.1f})"
    what = "undo record for a write of 1 MB over 1 MB"
    return [Row(what, shown(ours), shown(bare), ratio, f"≤ {GOAL_MS:g} ms", mine <= GOAL_MS)]


def shown(taken: list[float]) -> str:
    return f"{statistics.median(taken):.2f} ms (best {min(taken):.2f})"


def written_ms(path: Path, content: bytes) -> float:
    """How long the disk takes for a new file of that content, until it is there for sure."""
    started = time.perf_counter()
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return (time.perf_counter() - started) * 1000


async def command_rows(snapshotter: Snapshotter, ctx: ToolContext) -> list[Row]:
    """Commands that change nothing."""
    plain, read = Effect("exec", "ls -la src"), Effect("exec", "grep -n 'x' \"$HOME\" | head -3")
    started = time.perf_counter()
    for _ in range(COMMANDS):
        snapshotter.wants((plain,), ctx)
    quick = (time.perf_counter() - started) / COMMANDS * 1e6
    entry = tool("terminal")
    started = time.perf_counter()
    for _ in range(COMMANDS):
        await snapshotter.before(entry, (read,), ctx)
    slow = (time.perf_counter() - started) / COMMANDS * 1000
    return [
        Row("  a plain command that changes no file", f"{quick:.1f} µs", "", "", "≤ 50 µs", quick <= 50),
        Row("  a command that is read and changes no file", f"{slow:.2f} ms", "", "", "≤ 2 ms", slow <= 2),
    ]


def tool(name: str) -> ToolEntry:
    return ToolEntry(name=name, toolset="bench", schema={}, handler=lambda *_: "")


if __name__ == "__main__":
    raise SystemExit(main())
