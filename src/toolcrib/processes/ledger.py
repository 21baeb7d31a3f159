"""The records of background processes on disk, shared by all toolcrib processes that use the home.

    processes/
      proc_0123456789ab/meta.json    the record, written before the start, so that no crash leaves a process unknown
      proc_0123456789ab/output       its output, written at the latest when it ends
      environments/<digest>.json     open environments, with what is needed to find them again
      events/                        see events.py

Each entry names its owner, a toolcrib process. Nobody touches an entry whose owner is alive; one whose owner is dead
belongs to whoever takes it over first. Every file is replaced atomically.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolcrib.config.files import OWNER_FILE, OWNER_FOLDER, make_folder
from toolcrib.config.os_errors import ANOTHER_HOME, explain_os_error
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.process_identity import Identity, is_alive
from toolcrib.processes.events import lock_records
from toolcrib.processes.process import ProcessRecord

META_FILE = "meta.json"
ENVIRONMENTS = "environments"


class EnvironmentEntry(Struct, frozen=True, kw_only=True):
    """An open environment and its owner."""

    address: Mapping[str, str]
    owner: Identity


class Orphans(Struct, frozen=True, kw_only=True):
    """What dead toolcrib processes left and we have taken over."""

    running: tuple[ProcessRecord, ...] = ()
    """Their last recorded state was running."""
    finished: tuple[ProcessRecord, ...] = ()
    environments: tuple[Mapping[str, str], ...] = ()


class Ledger:
    """The entries of one home, written for one owner."""

    def __init__(self, folder: Path, owner: Identity) -> None:
        self.folder = folder
        self.owner = owner
        self._is_made = False

    def folder_of(self, process_id: str) -> Path:
        return self.folder / process_id

    def save(self, record: ProcessRecord, *, first: bool = False) -> None:
        """Write the record of a process; `first` creates its folder."""
        folder = self.folder / record.id
        content = msgspec.json.encode(record)
        with self._explained():
            if first:
                self._make()
                folder.mkdir(mode=OWNER_FOLDER)
                # Nothing runs yet, so a partial entry after a crash is harmless.
                _write(folder / META_FILE, content)
            else:
                _replace_file(folder / META_FILE, content)

    def remove(self, process_id: str) -> None:
        """Delete a process and its output."""
        shutil.rmtree(self.folder / process_id, ignore_errors=True)

    def environment_opened(self, address: Mapping[str, str]) -> None:
        """Record an environment, so that the next start can end what runs in it if we cannot."""
        content = msgspec.json.encode(EnvironmentEntry(address=dict(address), owner=self.owner))
        with self._explained():
            self._make()
            make_folder(self.folder / ENVIRONMENTS)
            _replace_file(self._environment_path(address), content)

    def environment_closed(self, address: Mapping[str, str]) -> None:
        self._environment_path(address).unlink(missing_ok=True)

    def take_orphans(self) -> Orphans:
        """Take over every entry whose owner is dead. Two processes that do this at once never get the same entry."""
        if not self.folder.is_dir():
            return Orphans()
        with self._locked():
            taken = [replace(record, owner=self.owner) for record in self.records() if self._is_orphan(record.owner)]
            for record in taken:
                self.save(record)
            environments = [entry for entry in self._environments() if self._is_orphan(entry.owner)]
            for entry in environments:
                self.environment_opened(entry.address)
        return Orphans(
            running=tuple(record for record in taken if record.is_running),
            finished=tuple(record for record in taken if not record.is_running),
            environments=tuple(entry.address for entry in environments),
        )

    def _is_orphan(self, owner: Identity) -> bool:
        return owner != self.owner and not is_alive(owner)

    def records(self) -> Iterator[ProcessRecord]:
        """Every readable entry, whoever owns it."""
        for path in sorted(self.folder.glob(f"proc_*/{META_FILE}")):
            # Written by another version, or damaged: its owner is unknown.
            with contextlib.suppress(OSError, msgspec.DecodeError):
                yield msgspec.json.decode(path.read_bytes(), type=ProcessRecord)

    def _environments(self) -> Iterator[EnvironmentEntry]:
        for path in sorted((self.folder / ENVIRONMENTS).glob("*.json")):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                yield msgspec.json.decode(path.read_bytes(), type=EnvironmentEntry)

    def _environment_path(self, address: Mapping[str, str]) -> Path:
        text = json.dumps(dict(address), sort_keys=True)
        return self.folder / ENVIRONMENTS / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"

    def _make(self) -> None:
        if not self._is_made:
            make_folder(self.folder)
            self._is_made = True

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = explain_os_error(error, "write to", self.folder, otherwise=ANOTHER_HOME)
            raise EnvironmentFailed(f"toolcrib records what it starts, and that failed: {what}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, OWNER_FILE)
        try:
            lock_records(lock)
            yield
        finally:
            os.close(lock)


def _replace_file(path: Path, content: bytes) -> None:
    # Only the owner writes an entry, so no other writer uses this name.
    temporary = path.with_name(f".{path.name}.new")
    _write(temporary, content)
    temporary.replace(path)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_FILE)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
