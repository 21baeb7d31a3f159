"""Patches in the V4A format: `*** Begin Patch`, files by name, hunks found by their context.

*** Begin Patch
*** Update File: src/app.py
*** Move to: src/main.py
@@ class App:
@@     def run(self):
         start()
-        work()
+        work(twice=True)
*** End of File
*** Add File: notes.txt
+first line
*** Delete File: old.txt
*** End Patch
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from toolcrib.files.patch_format import FileChange, Hunk, HunkLine, PatchError, PatchLines, Sign, heading_of

BEGIN, END, END_OF_FILE, MOVE = "*** Begin Patch", "*** End Patch", "*** End of File", "*** Move to: "
MAX_HEADINGS = 10
_FILE = re.compile(r"\*\*\* (Add|Update|Delete) File: *(.*)")
_NUMBERS = re.compile(r"@@ -(\d{1,9})(?:,\d+)? \+\d+(?:,\d+)? @@")


def looks_like_v4a(lines: list[str]) -> bool:
    """Whether a line of this format stands in it; in a diff such lines would have a sign before them."""
    return any(_begins(line) for line in lines)


def _begins(line: str) -> bool:
    return line.rstrip() == BEGIN or _FILE.match(line) is not None


def parse(lines: list[str]) -> tuple[FileChange, ...]:
    """The changes of a patch; raises PatchError."""
    reader = PatchLines(list(_inside(lines)))
    changes = []
    while True:
        _skip_blank(reader)
        if not reader.more:
            break
        changes.append(_change(reader))
    if not changes:
        raise PatchError("the patch changes no file; begin with '*** Update File: PATH' or '*** Add File: PATH'")
    return tuple(changes)


def _inside(lines: list[str]) -> Iterator[str]:
    """The lines from the first to the last that count: what models put around a patch, or between two, becomes blank.

    Blank, not gone: messages name lines by their number.
    """
    first = next(at for at, line in enumerate(lines) if _begins(line))
    last = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].rstrip() == END), -1)
    if last < first or any(_begins(line) for line in lines[last + 1 :]):
        raise PatchError(f"the patch does not end with {END!r}, so it may have been cut off; send all of it")
    for at, line in enumerate(lines[:last]):
        yield "" if at < first or line.rstrip() in (BEGIN, END) else line


def _skip_blank(reader: PatchLines) -> None:
    while reader.more and not reader.look().strip():
        reader.take()


def _change(reader: PatchLines) -> FileChange:
    heading = _FILE.match(reader.take())
    if heading is None:
        raise reader.error("expected '*** Add File: ', '*** Update File: ' or '*** Delete File: '", back=1)
    kind, path = heading[1], heading[2].strip()
    if not path:
        raise reader.error("the path is missing", back=1)
    if kind == "Delete":
        return FileChange(kind="delete", path=path)
    if kind == "Add":
        return FileChange(kind="add", path=path, content=_content(reader))
    move_to = ""
    if reader.look().startswith(MOVE.rstrip()):
        move_to = reader.take()[len(MOVE) - 1 :].strip()
        if not move_to:
            raise reader.error("the path is missing", back=1)
    return FileChange(kind="update", path=path, move_to=move_to, hunks=_hunks(reader))


def _content(reader: PatchLines) -> str:
    """The added lines, each with a line end."""
    lines = []
    while reader.more and not _FILE.match(reader.look()):
        line = reader.take()
        if line.rstrip() == END_OF_FILE:
            continue
        if line.startswith("+"):
            lines.append(line[1:] + "\n")
        elif line.strip():
            raise reader.error("each line of an added file begins with '+'", back=1)
        elif reader.next_text().startswith("+"):
            raise reader.error("an empty line of an added file is '+'", back=1)
    return "".join(lines)


def _hunks(reader: PatchLines) -> tuple[Hunk, ...]:
    hunks: list[Hunk] = []
    while reader.more and not _FILE.match(reader.look()):
        if reader.look() == "" and not _more_of_hunk(reader):
            reader.take()
            continue
        hunks.append(_hunk(reader, len(hunks) + 1))
    return tuple(hunks)


def _more_of_hunk(reader: PatchLines) -> bool:
    """Whether empty lines here belong to a hunk: something of it follows them."""
    return reader.next_text().startswith((" ", "-", "+", "\t"))


def _hunk(reader: PatchLines, number: int) -> Hunk:
    headings: list[str] = []
    old_line = None
    while reader.look().startswith("@@"):
        line = reader.take()
        numbers = _NUMBERS.match(line)
        if numbers is not None:
            old_line = int(numbers[1])
            continue
        headings += heading_of(line)
        if len(headings) > MAX_HEADINGS:
            raise reader.error(f"a hunk has at most {MAX_HEADINGS} headings", back=1)
    lines: list[HunkLine] = []
    while reader.more and not reader.look().startswith(("@@", "*** ")):
        if reader.look() == "" and not _more_of_hunk(reader):
            break
        lines.append(_line(reader))
    at_end = reader.look().rstrip() == END_OF_FILE
    if at_end:
        reader.take()
    elif reader.look().startswith("*** ") and not _FILE.match(reader.look()):
        raise reader.error("expected a hunk, the next file or the end of the patch")
    if all(line.sign == " " for line in lines):
        raise reader.error(f"hunk {number} changes nothing; mark lines with '-' and '+'")
    return Hunk(number=number, lines=tuple(lines), headings=tuple(headings), at_end=at_end, old_line=old_line)


def _line(reader: PatchLines) -> HunkLine:
    line = reader.take()
    if not line:
        # Editors and models drop the one space of an empty context line.
        return HunkLine(" ", "")
    if line[0] not in " -+":
        raise reader.error("each line of a hunk begins with ' ', '-' or '+'", back=1)
    return HunkLine(cast("Sign", line[0]), line[1:])
