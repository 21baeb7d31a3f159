"""The journal of one session's changes of files: a line before each call, one after it, one when it is taken back.

    cache/undo/<session>/index.jsonl    these lines
    cache/undo/<session>/<call>.pack    the contents that one call was about to change, one after the other

A pack, with a copy of the line at its end, is written before the call runs. A call without its second line was cut
short.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from toolcrib.config.files import OWNER_FILE, replace_file, writing
from toolcrib.undo.packs import SUFFIX, bring_to_disk, line_of, pack_names
from toolcrib.undo.states import FileState

INDEX = "index.jsonl"
MAX_BYTES = 32_000_000
UNDO, REDO = "toolcrib undo", "toolcrib redo"
"""Stand as the tool of an entry that is itself the taking back of others; no tool can be called so."""


class Seen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A path, and what was there."""

    path: str
    state: FileState


class Began(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="before", tag_field="event"):
    """A call that is about to run, with what it may touch, as it was."""

    id: str
    at: float
    tool: str
    summary: str = ""
    """The call in one line."""
    call_id: str = ""
    turn_id: str = ""
    workspace: str = ""
    place: dict[str, Any] | None = None
    """The spec of the environment that the files are in; None means this machine."""
    files: tuple[Seen, ...] = ()
    notes: tuple[str, ...] = ()
    """What is not kept, and why."""
    takes_back: tuple[tuple[str, str], ...] = ()
    """Of an undo: which changes, as the entry and the path."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="after", tag_field="event"):
    """The same files after the call; those that it made and nobody knew of before are among them."""

    id: str
    files: tuple[Seen, ...] = ()
    notes: tuple[str, ...] = ()


class RunsOn(msgspec.Struct, frozen=True, kw_only=True, tag="runs on", tag_field="event"):
    """A call whose command goes on in the background: nobody sees its end."""

    id: str


class TakenBack(msgspec.Struct, frozen=True, kw_only=True, tag="undone", tag_field="event"):
    """Changes that do not count any more, as the entry and the path."""

    changes: tuple[tuple[str, str], ...]


class Revived(msgspec.Struct, frozen=True, kw_only=True, tag="redone", tag_field="event"):
    """Changes that count again."""

    changes: tuple[tuple[str, str], ...]


Event = Began | Ended | RunsOn | TakenBack | Revived


@dataclass(slots=True)
class Entry:
    """One call, as the journal tells it."""

    began: Began
    order: int
    before: dict[str, FileState]
    after: dict[str, FileState] | None = None
    """None for a call whose end nobody saw."""
    ended_order: int = -1
    notes: tuple[str, ...] = ()
    runs_on: bool = False
    """Its command went on in the background."""
    undone: set[str] = field(default_factory=set)
    """The paths that were put back."""

    @property
    def id(self) -> str:
        return self.began.id

    @property
    def is_call(self) -> bool:
        return self.began.tool not in (UNDO, REDO)

    def changed_paths(self) -> list[str]:
        """What the call really changed; of one that was cut short, all that it may have."""
        if self.after is None:
            return list(self.before)
        return [path for path, state in self.before.items() if not state.is_same(self.after.get(path, state))]


def line_for(event: Event) -> bytes:
    """An event as a line of the journal."""
    # With escapes, because a path may hold bytes that are no characters.
    return json.dumps(msgspec.to_builtins(event)).encode("ascii")


def append(folder: Path, line: bytes, *, durable: bool, wait: bool = False) -> None:
    """Put a line on record; where durable, it is brought to the disk, and waited for only if told to."""
    # The line feed in front keeps this line whole after one that a killed process left half.
    written = b"\n" + line + b"\n"
    descriptor = os.open(folder / INDEX, os.O_WRONLY | os.O_APPEND | os.O_CREAT, OWNER_FILE)
    try:
        if os.write(descriptor, written) != len(written):
            raise OSError(f"the disk is full: {str(folder)!r} cannot be written")
    except BaseException:
        os.close(descriptor)
        raise
    if durable:
        bring_to_disk(descriptor, wait=wait)
    else:
        os.close(descriptor)


def shorten(folder: Path) -> None:
    """Drop the older half of a journal that has grown too long, with the packs that only it speaks of."""
    index = folder / INDEX
    try:
        if index.stat().st_size <= MAX_BYTES:
            return
    except OSError:
        return
    with writing(index) as target:
        lines = target.read_bytes().split(b"\n")
        kept = lines[len(lines) // 2 :]
        replace_file(target, b"\n".join(kept), mode=OWNER_FILE)
    known = _entries(_events(kept))
    used = {state.pack for entry in known.values() for state in entry.before.values()}
    for pack in pack_names(folder) - used - known.keys():
        (folder / f"{pack}{SUFFIX}").unlink(missing_ok=True)


def read(folder: Path) -> list[Entry]:
    """Every call of the session, oldest first."""
    try:
        events = _events((folder / INDEX).read_bytes().split(b"\n"))
    except (FileNotFoundError, NotADirectoryError):
        events = []
    entries = _entries(events)
    lost = pack_names(folder) - entries.keys()
    if lost:
        # What a power cut or a kill took from the journal stands in the packs.
        for event in _events([line_of(folder, pack) for pack in lost]):
            events.insert(_place_of(event, events), event)
        entries = _entries(events)
    return list(entries.values())


def _place_of(lost: Event, events: Sequence[Event]) -> int:
    """Where an event belongs: before what began later, and before what is said of it."""
    for place, event in enumerate(events):
        if isinstance(event, Began) and isinstance(lost, Began) and event.at > lost.at:
            return place
        if isinstance(event, Ended | RunsOn) and isinstance(lost, Began) and event.id == lost.id:
            return place
    return len(events)


def _entries(events: Sequence[Event]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for order, event in enumerate(events):
        if isinstance(event, Began):
            before = {one.path: one.state for one in event.files}
            entries[event.id] = Entry(event, order, before, notes=event.notes)
        elif isinstance(event, TakenBack | Revived):
            _mark(entries, event)
        elif event.id in entries and isinstance(event, Ended):
            _end(entries[event.id], event, order)
        elif event.id in entries:
            entries[event.id].runs_on = True
    _complete(entries)
    return entries


def _complete(entries: dict[str, Entry]) -> None:
    """Fill in the digests of large files that calls left: the next call that touched one has read it."""
    seen: dict[tuple[str, str, int], str] = {}
    for entry in reversed(entries.values()):
        for path, state in (entry.after or {}).items():
            digest = seen.get((path, state.stamp, state.size)) if state.kind == "file" and not state.digest else None
            if digest and entry.after is not None:
                entry.after[path] = replace(state, digest=digest)
        for path, state in entry.before.items():
            if state.digest and state.stamp:
                seen[path, state.stamp, state.size] = state.digest


def _end(entry: Entry, event: Ended, order: int) -> None:
    entry.after = {one.path: one.state for one in event.files}
    entry.ended_order = order
    entry.notes = (*entry.notes, *event.notes)
    for path in entry.after:
        # What was found only afterwards is what the call made.
        entry.before.setdefault(path, FileState(kind="missing"))


def _mark(entries: dict[str, Entry], event: TakenBack | Revived) -> None:
    for entry_id, path in event.changes:
        entry = entries.get(entry_id)
        if entry is None:
            continue
        if isinstance(event, TakenBack):
            entry.undone.add(path)
        else:
            entry.undone.discard(path)


def _events(lines: Iterable[bytes]) -> list[Event]:
    found: list[Event] = []
    for line in lines:
        # A line may be half: a killed process left it so.
        with contextlib.suppress(ValueError, msgspec.MsgspecError):
            found += [msgspec.convert(json.loads(line), Event)] if line else []
    return found
