"""The entries of a memory file: reading and writing them, and what one operation does to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from toolcrib.core.errors import ToolcribError
from toolcrib.sessions.memory_log import EntryChange
from toolcrib.sessions.memory_scan import threat_in

SEPARATOR = "\n§\n"
PREVIEW_CHARS = 80


class MemoryRefused(ToolcribError):
    """A change that cannot be made; nothing was changed. `candidates` are entries that may have been meant."""

    def __init__(self, message: str, *, over_limit: bool = False, candidates: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.over_limit = over_limit
        self.candidates = list(candidates)


class Operation(Struct, frozen=True, kw_only=True):
    """One wish: add an entry, or replace or remove the one entry that contains `old_text`."""

    action: Literal["add", "replace", "remove"]
    content: str = ""
    old_text: str = ""


class Changed(Struct, frozen=True, kw_only=True):
    """What a change came to. No `changes`: everything was so already."""

    entries: tuple[str, ...]
    changes: tuple[EntryChange, ...]


def parse(content: bytes) -> list[str]:
    """The entries of a file, each once; bytes that are no UTF-8 survive the way back."""
    text = content.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n")
    entries: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.strip() == "§":
            entries.append([])
        else:
            entries[-1].append(line)
    return list(dict.fromkeys(entry for lines in entries if (entry := "\n".join(lines).strip())))


def serialise(entries: Sequence[str]) -> bytes:
    """The file that says these entries."""
    return SEPARATOR.join(entries).encode("utf-8", "surrogateescape")


def size_of(entries: Sequence[str]) -> int:
    """How many characters the entries take, with what separates them."""
    return len(SEPARATOR.join(entries))


def preview(entry: str) -> str:
    """The beginning of an entry, on one line."""
    line = " ".join(entry.split())
    return line if len(line) <= PREVIEW_CHARS else line[: PREVIEW_CHARS - 1] + "…"


def apply(entries: list[str], operation: Operation) -> list[EntryChange]:
    """Change the list as the operation says; gives what happened, which is nothing when it was so already."""
    content = operation.content.replace("\r\n", "\n").strip()
    if operation.action != "remove":
        _check_content(content, operation.action)
    if operation.action == "add":
        if content in entries:
            return []
        entries.append(content)
        return [EntryChange(kind="add", after=content)]
    at = _meant(entries, operation)
    before = entries[at]
    if before == content:
        return []
    if operation.action == "remove" or content in entries:
        del entries[at]
        return [EntryChange(kind="remove", before=before)]
    entries[at] = content
    return [EntryChange(kind="replace", before=before, after=content)]


def _check_content(content: str, action: str) -> None:
    if not content:
        raise MemoryRefused(f"`content` is empty; say what to remember, for {action!r}")
    if any(line.strip() == "§" for line in content.split("\n")):
        raise MemoryRefused("`content` has a line with only §, which separates entries; give each entry on its own")
    threat = threat_in(content)
    if threat:
        raise MemoryRefused(f"this cannot be remembered, because {threat}; reword it as a plain fact")


def _meant(entries: list[str], operation: Operation) -> int:
    """The place of the one entry that `old_text` speaks of."""
    wanted = operation.old_text.replace("\r\n", "\n").strip()
    if not wanted:
        raise MemoryRefused(
            f"`old_text` is missing; give words that only the entry to {operation.action} contains", candidates=entries
        )
    found = [at for at, entry in enumerate(entries) if entry == wanted]
    found = found or [at for at, entry in enumerate(entries) if wanted in entry]
    if len(found) == 1:
        return found[0]
    if not found:
        raise MemoryRefused(
            f"no entry contains {preview(wanted)!r}; take `old_text` from an entry as it stands", candidates=entries
        )
    raise MemoryRefused(
        f"{len(found)} entries contain {preview(wanted)!r}; give words that only one of them contains",
        candidates=[entries[at] for at in found],
    )
