"""The journal of one session's changes of files: a line before each, a line after it, a line when it is taken back."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from toolcrib.config.files import OWNER_FILE
from toolcrib.sessions.file_copies import FileState

INDEX = "index.jsonl"


class Touched(msgspec.Struct, frozen=True, kw_only=True, tag="before", tag_field="event"):
    """A file that a call is about to change, as it was."""

    id: str
    at: float
    turn_id: str
    call_id: str
    path: str
    before: FileState
    new_folders: tuple[str, ...] = ()
    """Folders above it that did not exist either, the nearest first."""


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag="after", tag_field="event"):
    """The same file after the call."""

    id: str
    after: FileState


class TakenBack(msgspec.Struct, frozen=True, kw_only=True, tag="undone", tag_field="event"):
    """Changes that do not count any more."""

    ids: tuple[str, ...]


Event = Touched | Settled | TakenBack


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file and one call; `after` is None for a call whose end nobody saw."""

    touched: Touched
    after: FileState | None

    @property
    def path(self) -> str:
        return self.touched.path

    @property
    def before(self) -> FileState:
        return self.touched.before


def append(folder: Path, event: Event) -> None:
    """Put an event on record; it is on disk when this returns."""
    # With escapes, because a path may hold bytes that are no characters. The line feed in front keeps this line
    # whole after one that a killed process left half.
    line = b"\n" + json.dumps(msgspec.to_builtins(event)).encode("ascii") + b"\n"
    descriptor = os.open(folder / INDEX, os.O_WRONLY | os.O_APPEND | os.O_CREAT, OWNER_FILE)
    try:
        if os.write(descriptor, line) != len(line):
            raise OSError(f"the disk is full: {str(folder)!r} cannot be written")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(folder: Path) -> list[FileChange]:
    """What was done to files and not taken back, oldest first."""
    try:
        lines = (folder / INDEX).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    changes: dict[str, FileChange] = {}
    for line in lines:
        event = _event(line)
        if isinstance(event, Touched):
            changes[event.id] = FileChange(event, None)
        elif isinstance(event, TakenBack):
            for one in event.ids:
                changes.pop(one, None)
        elif event is not None and event.id in changes:
            changes[event.id] = FileChange(changes[event.id].touched, event.after)
    return list(changes.values())


def _event(line: bytes) -> Event | None:
    try:
        found: Event = msgspec.convert(json.loads(line), Event)
    except (ValueError, msgspec.MsgspecError):
        return None  # A line that a killed process left half, or an empty one.
    return found
