"""Which server processes we started, on disk, so that the next start can end what a crash of ours left running.

    processes/mcp/<command id>.json

An entry names the process of ours that owns it, and is written before the server starts. One whose owner lives is
never touched by another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import msgspec

from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.process_identity import Identity, is_alive, own_identity
from toolcrib.processes.host_tree import end_tree

ORPHAN_GRACE_SECONDS = 2.0


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One server process, and who started it."""

    command_id: str
    server: str
    owner: Identity
    leader: Identity | None = None
    """The process itself; None while it is being started."""


class ProcessLedger:
    """The entries of one home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, command_id: str, server: str, leader: Identity | None = None) -> None:
        make_folder(self._folder)
        entry = Entry(command_id=command_id, server=server, owner=own_identity(), leader=leader)
        temporary = self._folder / f".{command_id}.new"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_FILE)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.json.encode(entry))
        temporary.replace(self._path(command_id))

    def remove(self, command_id: str) -> None:
        self._path(command_id).unlink(missing_ok=True)

    def entries(self) -> list[Entry]:
        """Every entry that can be read."""
        found: list[Entry] = []
        for path in sorted(self._folder.glob("*.json")):
            # Damaged, or of a version that wrote something else: nobody can tell what it stands for.
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found.append(msgspec.json.decode(path.read_bytes(), type=Entry))
        return found

    async def end_orphans(self) -> list[str]:
        """End what dead processes of ours left running; gives the names of the servers that ran."""
        orphans = [entry for entry in self.entries() if not is_alive(entry.owner)]
        # Two that do this at once tell the same processes to end, which does no harm.
        gone = await asyncio.gather(
            *(end_tree(entry.command_id, entry.leader, ORPHAN_GRACE_SECONDS) for entry in orphans)
        )
        ended = [entry for entry, is_gone in zip(orphans, gone, strict=True) if is_gone]
        for entry in ended:
            self.remove(entry.command_id)
        return [entry.server for entry in ended]

    def _path(self, command_id: str) -> Path:
        return self._folder / f"{command_id}.json"
