"""What the agent remembers across sessions: two files of entries that people and other programs may edit too.

    memories/
      MEMORY.md     the agent's own notes, separated by lines with a single §
      USER.md       what it knows of the user
      log.jsonl     every change that ever happened; see memory_log.py

The files say what is remembered now. A change reads the file under a lock, puts what others changed on record, changes
the one entry that is meant, and replaces the file in one step. Nothing that a file says is overwritten unread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from toolcrib.config.files import replace_file, writing
from toolcrib.registry.results import sendable
from toolcrib.sessions.memory_entries import (
    SEPARATOR,
    Changed,
    MemoryRefused,
    Operation,
    apply,
    parse,
    preview,
    serialise,
    size_of,
)
from toolcrib.sessions.memory_log import (
    TARGETS,
    EntryChange,
    LoggedChange,
    MemoryLog,
    Target,
    Who,
    difference,
    digest,
    entries_after,
)
from toolcrib.sessions.memory_scan import threat_in

FILES: dict[Target, str] = {"memory": "MEMORY.md", "user": "USER.md"}
TITLES: dict[Target, str] = {"memory": "Your notes from earlier sessions", "user": "What you know of the user"}
LOG_FILE = "log.jsonl"
MAX_ATTEMPTS = 5


class By(Struct, frozen=True, kw_only=True):
    """Who makes a change, for the record."""

    who: Who = "agent"
    session_id: str = ""
    call_id: str = ""


class LeftOut(Struct, frozen=True, kw_only=True):
    """An entry that the model is not shown, and why."""

    target: Target
    entry: str
    reason: str
    path: Path

    def __str__(self) -> str:
        return f"an entry of {str(self.path)!r} is kept from the model, because {self.reason}: {preview(self.entry)!r}"


class Snapshot(Struct, frozen=True, kw_only=True):
    """What a session is told that it remembers, and what was kept from it."""

    text: str
    left_out: tuple[LeftOut, ...] = ()


class MemoryStore:
    """The memories in one folder. Safe for several threads and processes at once."""

    def __init__(
        self,
        folder: Path,
        memory_char_limit: int = 2200,
        user_char_limit: int = 1375,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.limits: dict[Target, int] = {"memory": memory_char_limit, "user": user_char_limit}
        self._log = MemoryLog(folder / LOG_FILE)
        self._clock = clock

    def path(self, target: Target) -> Path:
        return self.folder / FILES[target]

    def entries(self, target: Target) -> list[str]:
        """What the file says now, each entry once."""
        return parse(self._content(target))

    def usage(self, target: Target, entries: Sequence[str]) -> str:
        """How full the file is, as "12% of 2,200 characters"."""
        limit = self.limits[target]
        return f"{round(100 * size_of(entries) / limit)}% of {limit:,} characters"

    def load(self) -> Snapshot:
        """The memories as a prompt shows them; the same files give the same bytes. Poisoned entries are left out."""
        blocks, left_out = [], []
        for target in TARGETS:
            shown, hidden = self._checked(target, self.entries(target))
            left_out += hidden
            if shown:
                head = f"## {TITLES[target]} ({self.usage(target, shown)})"
                blocks.append(f"{head}\n{SEPARATOR.join(shown)}")
        return Snapshot(text=sendable("\n\n".join(blocks)), left_out=tuple(left_out))

    def snapshot(self) -> str:
        """The memories as a prompt shows them; empty when there are none."""
        return self.load().text

    def shown(self, target: Target, entries: Sequence[str]) -> list[str]:
        """The entries that may be shown to a model."""
        return self._checked(target, entries)[0]

    def plan(self, target: Target, operations: Sequence[Operation]) -> Changed:
        """What a change would come to, without making it; raises MemoryRefused."""
        return self._planned(target, self.entries(target), operations)

    def change(
        self, target: Target, operations: Sequence[Operation], *, by: By | None = None, expected: Changed | None = None
    ) -> Changed:
        """Make all of the changes or none; raises MemoryRefused. On disk when this returns.

        With `expected`, nothing is done unless it comes to the same changes: those that a person agreed to.
        """

        def planned(entries: list[str]) -> Changed:
            changed = self._planned(target, entries, operations)
            if expected is not None and changed.changes != expected.changes:
                raise MemoryRefused(
                    "what is remembered changed in the meantime, so nothing was done; look and ask again"
                )
            return changed

        return self._written(target, planned, by or By())

    def history(self, target: Target | None = None) -> list[LoggedChange]:
        """Everything that happened, oldest first, with the texts of what is gone."""
        return self._log.read(target)

    def restore(self, entry: str, *, by: By | None = None) -> Changed:
        """Bring back an entry that is gone: its text, or the beginning of its hash in the log."""
        found = {
            (change.target, text): None
            for change in self._log.read()
            for one in change.changes
            for text in (one.before, one.after)
            if text and (text == entry or (len(entry) >= 4 and digest(text).startswith(entry)))
        }
        if len(found) != 1:
            known = "no entry" if not found else f"{len(found)} entries"
            raise MemoryRefused(
                f"{known} of the log {str(self._log.path)!r} answers to {preview(entry)!r}; "
                "give the whole text or its hash",
                candidates=[text for _, text in found],
            )
        [(target, text)] = found
        return self._written(target, lambda entries: self._restored(target, entries, text), by or By(who="person"))

    def _restored(self, target: Target, entries: list[str], text: str) -> Changed:
        planned = self._planned(target, entries, [Operation(action="add", content=text)])
        changes = tuple(EntryChange(kind="restore", after=one.after) for one in planned.changes)
        return Changed(entries=planned.entries, changes=changes)

    def _written(self, target: Target, plan: Callable[[list[str]], Changed], by: By) -> Changed:
        with writing(self._log.path):
            path = Path(os.path.realpath(self.path(target)))
            for _ in range(MAX_ATTEMPTS):
                before = self._content(target)
                entries = self._import(target, before)
                changed = plan(entries)
                if not changed.changes:
                    return changed
                after = serialise(changed.entries)
                if self._content(target) != before:
                    continue  # An editor wrote in between, without our lock: look at what it says.
                self._record(target, by, before, after, changed.changes)
                replace_file(path, after)
                return changed
        raise MemoryRefused(f"{str(path)!r} is being changed by another program all the time; try again later")

    def _import(self, target: Target, content: bytes) -> list[str]:
        """The entries of the file; what others changed since our last change of it is put on record."""
        entries = parse(content)
        known = self._log.read(target)
        now = digest(content)
        if known and known[-1].file_after == now:
            return entries
        changes = difference(entries_after(known), entries)
        if changes:
            # The file is as it was before our last change: whoever made that was killed before the file was replaced.
            cut_short = bool(known) and known[-1].who != "recovery" and known[-1].file_before == now
            self._record(target, By(who="recovery" if cut_short else "external"), content, content, changes)
        return entries

    def _record(self, target: Target, by: By, before: bytes, after: bytes, changes: tuple[EntryChange, ...]) -> None:
        self._log.append(
            LoggedChange(
                at=self._clock(),
                who=by.who,
                target=target,
                session_id=by.session_id,
                call_id=by.call_id,
                file_before=digest(before),
                file_after=digest(after),
                changes=changes,
            )
        )

    def _planned(self, target: Target, entries: list[str], operations: Sequence[Operation]) -> Changed:
        result = list(entries)
        changes: list[EntryChange] = []
        for number, operation in enumerate(operations, start=1):
            try:
                changes += apply(result, operation)
            except MemoryRefused as error:
                if len(operations) == 1:
                    raise
                raise MemoryRefused(
                    f"operation {number} of {len(operations)}: {error}; none of them was made",
                    candidates=error.candidates,
                ) from None
        # A file that a person made too long may still be made shorter step by step.
        size, limit = size_of(result), self.limits[target]
        if changes and size > limit and size >= size_of(entries):
            raise MemoryRefused(
                f"that would be {size - limit:,} characters too many: {size:,} of {limit:,}. Nothing was changed. "
                "Make room in the same call: give `operations` that also remove or shorten entries",
                over_limit=True,
            )
        return Changed(entries=tuple(result), changes=tuple(changes))

    def _checked(self, target: Target, entries: Sequence[str]) -> tuple[list[str], list[LeftOut]]:
        shown, left_out = [], []
        for entry in entries:
            reason = threat_in(entry)
            if reason:
                left_out.append(LeftOut(target=target, entry=entry, reason=reason, path=self.path(target)))
            else:
                shown.append(entry)
        return shown, left_out

    def _content(self, target: Target) -> bytes:
        try:
            return self.path(target).read_bytes()
        except FileNotFoundError:
            return b""
