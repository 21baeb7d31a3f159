"""Measures what undo costs: the scans around a command beside bare walks, and a file that a tool overwrites.

The workspace has 10,000 files of 10 KB. A bare walk lists every folder and asks for the status of every entry; the
scans and the walks take turns, so that other work on the machine meets both. Prints a table, where the bare side stands
in the column of the reference. The median decides; the best round stands beside it. Exits 1 when a figure is missed.
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
from toolcrib.approval.command_reader import read_command
from toolcrib.core.content_digest import digest_of
from toolcrib.core.context import CallMemo, ToolContext
from toolcrib.core.types import Effect, ToolEntry
from toolcrib.runtime import Runtime
from toolcrib.undo.snapshotter import Snapshotter

MEGABYTE = 1_000_000
FOLDERS, FILES_EACH, FILE_BYTES = 200, 50, 10_000
ROUNDS = 25
WRITES = 60
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
    fill(workspace)
    async with Runtime(home=folder / "home", workspace=workspace) as runtime:
        ctx = runtime.context(session_id="bench", cwd=str(workspace), memo=CallMemo())
        snapshotter = Snapshotter(runtime.settings, ctx.services, str(workspace))
        first = await around(snapshotter, ctx)
        rows = [
            Row("first scan of 10,000 files (100 MB)", f"{first:.2f} s", "", "", "≤ 3 s", first <= 3),
            *await scan_rows(snapshotter, ctx, workspace),
            *await write_rows(snapshotter, ctx, workspace),
            *command_rows(snapshotter, ctx),
        ]
        snapshotter.close()
        return rows


def fill(workspace: Path) -> None:
    for number in range(FOLDERS):
        folder = workspace / f"part{number // 20}" / f"folder{number}"
        folder.mkdir(parents=True)
        for file in range(FILES_EACH):
            (folder / f"file{file}.txt").write_bytes(os.urandom(FILE_BYTES))


async def around(snapshotter: Snapshotter, ctx: ToolContext, command: str = "make build") -> float:
    """How long undo takes before and after a command, which does nothing here."""
    started = time.perf_counter()
    await snapshotter.before(tool("terminal"), (Effect("exec", command, ctx.cwd),), ctx)
    await snapshotter.after(ctx)
    return time.perf_counter() - started


def bare_walk(root: str) -> int:
    count, pending = 0, [root]
    while pending:
        with os.scandir(pending.pop()) as listed:
            for entry in listed:
                entry.stat(follow_symlinks=False)
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return count


async def scan_rows(snapshotter: Snapshotter, ctx: ToolContext, workspace: Path) -> list[Row]:
    """Both scans around a command that writes, beside two bare walks."""
    ours, bare = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        bare_walk(str(workspace))
        bare_walk(str(workspace))
        bare.append((time.perf_counter() - started) * 1000)
        ours.append(await around(snapshotter, ctx) * 1000)
    # Of each round by itself: the load of the machine differs more between rounds than within one.
    ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, bare, strict=True))
    shown_ratio = f"{ratio:.2f} (best {min(ours) / min(bare):.2f})"
    what = "both scans around a command, 10,000 files, nothing changed"
    return [Row(what, shown(ours), shown(bare), shown_ratio, "≤ 1.3", ratio <= 1.3)]


async def write_rows(snapshotter: Snapshotter, ctx: ToolContext, workspace: Path) -> list[Row]:
    """What a tool that overwrites 1 MB costs, beside the disk's own durable write of 1 MB."""
    target, entry = workspace / "file", tool("write_file")
    effects = (Effect("write", str(target)),)
    ours, bare = [], []
    for number in range(WRITES):
        # On the disk before the clock starts: whoever waits for the disk next would wait for this too.
        written_ms(target, os.urandom(MEGABYTE))
        content = os.urandom(MEGABYTE)
        started = time.perf_counter()
        await snapshotter.before(entry, effects, ctx)
        kept = time.perf_counter() - started
        target.write_bytes(content)
        # write_file remembers the digest of what it has written, which undo shares.
        digest_of(content, ctx.memo)
        started = time.perf_counter()
        await snapshotter.after(ctx)
        ours.append((kept + time.perf_counter() - started) * 1000)
        bare.append(written_ms(workspace.parent / f"bare{number}", content))
    mine = statistics.median(ours)
    ratio = f"{mine / statistics.median(bare):.1f} (best {min(ours) / min(bare):.1f})"
    return [Row("undo record for a write of 1 MB over 1 MB", shown(ours), shown(bare), ratio, "≤ 3 ms", mine <= 3)]


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


def command_rows(snapshotter: Snapshotter, ctx: ToolContext) -> list[Row]:
    """A command that the gate has read as one that only reads: there must be no scan."""
    command = "cd src && grep -n 'x' \"$HOME\" | head -3 2> /dev/null"
    assert ctx.memo is not None
    ctx.memo.readings[command] = read_command(command, cwd=ctx.cwd, home=str(Path.home()))
    effects = (Effect("exec", command, ctx.cwd),)
    is_scanned = snapshotter.wants(effects, ctx)
    started = time.perf_counter()
    for _ in range(COMMANDS):
        snapshotter.wants(effects, ctx)
    quick = (time.perf_counter() - started) / COMMANDS * 1e6
    return [
        Row("  scans for a command that only reads", "1" if is_scanned else "0", "", "", "0", not is_scanned),
        Row("  finding out that it only reads", f"{quick:.0f} µs", "", "", "≤ 200 µs", quick <= 200),
    ]


def tool(name: str) -> ToolEntry:
    return ToolEntry(name=name, toolset="bench", schema={}, handler=lambda *_: "")


if __name__ == "__main__":
    raise SystemExit(main())
