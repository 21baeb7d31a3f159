"""What ever happened to the memories: one line of JSON for each change, only ever added to.

A line holds the whole text of what it changed, before and after, so that nothing that was once remembered is lost.
It is on disk before the file that it speaks of is replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct

from toolcrib.config.files import OWNER_FILE

Target = Literal["memory", "user"]
TARGETS: tuple[Target, ...] = get_args(Target)
Who = Literal["agent", "person", "external", "recovery"]
"""`external`: the file was changed by an editor or another program. `recovery`: a change that was cut short."""
Kind = Literal["add", "replace", "remove", "restore"]
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class EntryChange(Struct, frozen=True, kw_only=True):
    """What happened to one entry; `before` is "" for a new one, `after` for one that is gone."""

    kind: Kind
    before: str = ""
    after: str = ""


class LoggedChange(Struct, frozen=True, kw_only=True):
    """One change of one file: all of it happened, or none."""

    at: float
    """Seconds since 1970."""
    who: Who
    target: Target
    session_id: str = ""
    call_id: str = ""
    file_before: str
    """Digest of the file as it was."""
    file_after: str
    """Digest of the file as it was to become."""
    changes: tuple[EntryChange, ...]


class MemoryLog:
    """The log of one folder of memories. Whoever appends holds the lock of the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, change: LoggedChange) -> None:
        """Put a change on record; it is on disk when this returns."""
        line = json.dumps(_as_json(change), separators=(",", ":")).encode("ascii") + b"\n"
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | NO_LINKS, OWNER_FILE)
        try:
            size = os.fstat(descriptor).st_size
            if size and _byte_at(descriptor, size - 1) != b"\n":
                line = b"\n" + line  # A killed writer left half a line.
            written = os.write(descriptor, line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes could be written to {str(self.path)!r}")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, target: Target | None = None) -> list[LoggedChange]:
        """All changes, oldest first; of one file, or of both. What cannot be read is passed over."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        found = [change for line in lines if (change := _change(line)) is not None]
        return [change for change in found if target in (None, change.target)]


def entries_after(changes: Iterable[LoggedChange]) -> list[str]:
    """The entries that a file had after these changes of it."""
    entries: dict[str, None] = {}
    for change in changes:
        for one in change.changes:
            if one.before:
                entries.pop(one.before, None)
            if one.after:
                entries[one.after] = None
    return list(entries)


def difference(before: Sequence[str], after: Sequence[str]) -> tuple[EntryChange, ...]:
    """Which entries vanished and which appeared."""
    gone = [EntryChange(kind="remove", before=entry) for entry in before if entry not in after]
    return (*gone, *(EntryChange(kind="add", after=entry) for entry in after if entry not in before))


def digest(content: str | bytes) -> str:
    """A short name for a text that no other text has."""
    raw = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    return hashlib.sha256(raw).hexdigest()[:16]


def _byte_at(descriptor: int, position: int) -> bytes:
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, 1)


def _as_json(change: LoggedChange) -> dict[str, Any]:
    return {
        "v": 1,
        "at": change.at,
        "who": change.who,
        "target": change.target,
        "session": change.session_id,
        "call": change.call_id,
        "file_before": change.file_before,
        "file_after": change.file_after,
        "changes": [
            {
                "operation": one.kind,
                "hash_before": digest(one.before) if one.before else "",
                "hash_after": digest(one.after) if one.after else "",
                "before": one.before,
                "after": one.after,
            }
            for one in change.changes
        ],
    }


def _change(line: bytes) -> LoggedChange | None:
    try:
        fields = json.loads(line)
        if fields["target"] not in TARGETS or fields["who"] not in get_args(Who):
            return None
        return LoggedChange(
            at=float(fields["at"]),
            who=fields["who"],
            target=fields["target"],
            session_id=str(fields["session"]),
            call_id=str(fields["call"]),
            file_before=str(fields["file_before"]),
            file_after=str(fields["file_after"]),
            changes=tuple(
                EntryChange(kind=one["operation"], before=str(one["before"]), after=str(one["after"]))
                for one in fields["changes"]
            ),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None  # A line that a killed writer left half, or that somebody else wrote.
