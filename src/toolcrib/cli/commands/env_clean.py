"""`toolcrib env clean`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import click

from toolcrib.cli.environments import Here, here
from toolcrib.cli.output import note, print_json, print_line, print_table
from toolcrib.core.environments import Leftover
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.environments.create import leftovers, remove_leftover

IN_USE = "in use"
REMOVED = "removed"
FOUND = "would be removed"


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of something that was found."""

    leftover: Leftover
    state: str


@click.command(name="clean")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def command(dry_run: bool, as_json: bool) -> int:
    """Remove what processes of ours that died left behind.

    Containers, instances, sandboxes in the cloud and folders that toolcrib made are looked for in every backend that
    can be used. What belongs to a process that still runs is listed and left alone. Exit code 1 when a backend could
    not be asked, or something could not be removed.

    The object of --json has the keys leftovers (each with kind, name, detail, owner_alive and state, which is removed,
    would be removed, in use or why it is still there) and problems.
    """
    fates, problems = asyncio.run(_clean(here(), dry_run=dry_run))
    if as_json:
        print_json({"leftovers": [_as_json(fate) for fate in fates], "problems": problems})
    elif not fates:
        print_line("Nothing was left behind.")
    else:
        rows = [[fate.leftover.kind, fate.leftover.name, fate.state, fate.leftover.detail] for fate in fates]
        print_table(["kind", "name", "state", "detail"], rows)
    if not as_json:
        for problem in problems:
            note(f"could not be asked or removed: {problem}")
    return 1 if problems else 0


async def _clean(found: Here, *, dry_run: bool) -> tuple[list[Fate], list[str]]:
    left, problems = await leftovers(found.settings, found.environ)
    fates: list[Fate] = []
    for leftover in left:
        if leftover.owner_alive:
            fates.append(Fate(leftover, IN_USE))
        elif dry_run:
            fates.append(Fate(leftover, FOUND))
        else:
            state = await _removed(found, leftover)
            fates.append(Fate(leftover, state))
            if state != REMOVED:
                problems.append(f"{leftover.kind} {leftover.name}: {state}")
    return fates, problems


async def _removed(found: Here, leftover: Leftover) -> str:
    try:
        await remove_leftover(leftover, found.settings, found.environ)
    except (ToolcribError, TimeoutError, OSError) as error:
        return str(error) or "no answer"
    return REMOVED


def _as_json(fate: Fate) -> JsonObject:
    return {
        "kind": fate.leftover.kind,
        "name": fate.leftover.name,
        "detail": fate.leftover.detail,
        "owner_alive": fate.leftover.owner_alive,
        "state": fate.state,
    }
