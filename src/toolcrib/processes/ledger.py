"""What is on disk about background processes, shared by all processes of ours that use the home.

    processes/
      proc_0123456789ab/meta.json    the record: from before the start on, so that no crash leaves a process unknown
      proc_0123456789ab/output       what it printed, written at the latest when it ends
      places/<digest>.json           environments that are open, with what is needed to find them again
      events/                        see events.py

Each entry names its owner, a process of ours. An entry whose owner lives is never touched by another; one whose owner
is dead belongs to whoever takes it over first. Every file is replaced in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from toolcrib.config.files import OWNER_FILE, OWNER_FOLDER, make_folder
from toolcrib.process_identity import Identity, is_alive
from toolcrib.processes.events import take_lock
from toolcrib.processes.process import ProcessRecord

META_FILE = "meta.json"
ENVIRONMENTS = "places"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentEntry:
    """An environment that was open, and who had opened it."""

    address: Mapping[str, str]
    owner: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """What dead processes of ours left, now ours."""

    running: tuple[ProcessRecord, ...] = ()
    """Their last state on record was running."""
    finished: tuple[ProcessRecord, ...] = ()
    places: tuple[Mapping[str, str], ...] = ()


class Ledger:
    """The entries of one home, written for one owner."""

    def __init__(self, folder: Path, owner: Identity) -> None:
        self.folder = folder
        self.owner = owner
        self._is_made = False

    def folder_of(self, process_id: str) -> Path:
        return self.folder / process_id

    def save(self, record: ProcessRecord, *, first: bool = False) -> None:
        """Write the record of a process; `first` makes its folder."""
        folder = self.folder / record.id
        content = msgspec.json.encode(record)
        if first:
            self._make()
            folder.mkdir(mode=OWNER_FOLDER)
            # Nothing runs yet, so that half an entry after a crash stands for nothing.
            _write(folder / META_FILE, content)
        else:
            _replace_file(folder / META_FILE, content)

    def remove(self, process_id: str) -> None:
        """Forget a process, its output too."""
        shutil.rmtree(self.folder / process_id, ignore_errors=True)

    def environment_opened(self, address: Mapping[str, str]) -> None:
        """Remember an environment, so that the next start can end what runs in it if we cannot."""
        self._make()
        make_folder(self.folder / ENVIRONMENTS)
        _replace_file(
            self._place_path(address), msgspec.json.encode(EnvironmentEntry(address=dict(address), owner=self.owner))
        )

    def environment_closed(self, address: Mapping[str, str]) -> None:
        self._place_path(address).unlink(missing_ok=True)

    def take_orphans(self) -> Orphans:
        """Make everything ours whose owner is dead. Two processes that do this at once never get the same entry."""
        if not self.folder.is_dir():
            return Orphans()
        with self._alone():
            taken = [replace(record, owner=self.owner) for record in self.records() if self._is_orphan(record.owner)]
            for record in taken:
                self.save(record)
            places = [place for place in self._places() if self._is_orphan(place.owner)]
            for place in places:
                self.environment_opened(place.address)
        return Orphans(
            running=tuple(record for record in taken if record.is_running),
            finished=tuple(record for record in taken if not record.is_running),
            places=tuple(place.address for place in places),
        )

    def _is_orphan(self, owner: Identity) -> bool:
        return owner != self.owner and not is_alive(owner)

    def records(self) -> Iterator[ProcessRecord]:
        """Every entry that can be read, whoever its owner is."""
        for path in sorted(self.folder.glob(f"proc_*/{META_FILE}")):
            # Of a version that wrote something else, or damaged: nobody can tell whose it is.
            with contextlib.suppress(OSError, msgspec.DecodeError):
                yield msgspec.json.decode(path.read_bytes(), type=ProcessRecord)

    def _places(self) -> Iterator[EnvironmentEntry]:
        for path in sorted((self.folder / ENVIRONMENTS).glob("*.json")):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                yield msgspec.json.decode(path.read_bytes(), type=EnvironmentEntry)

    def _place_path(self, address: Mapping[str, str]) -> Path:
        text = json.dumps(dict(address), sort_keys=True)
        return self.folder / ENVIRONMENTS / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"

    def _make(self) -> None:
        if not self._is_made:
            make_folder(self.folder)
            self._is_made = True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, OWNER_FILE)
        try:
            take_lock(lock)
            yield
        finally:
            os.close(lock)


def _replace_file(path: Path, content: bytes) -> None:
    # The owner alone writes an entry, so that this name is not another writer's.
    temporary = path.with_name(f".{path.name}.new")
    _write(temporary, content)
    temporary.replace(path)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_FILE)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
