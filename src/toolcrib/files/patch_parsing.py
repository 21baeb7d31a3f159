"""Parses patches into the changes that they describe: the V4A format and unified diffs.

V4A names files and finds hunks by their context:

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

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, cast

from toolcrib.core.errors import ToolcribError
from toolcrib.files.text_files import as_lf

Sign = Literal[" ", "-", "+"]
_NO_HEADING = re.compile(r"[\s\d,.…+-]*")


class PatchError(ToolcribError):
    """The text is not a patch; the message names the line and what was expected."""


@dataclass(frozen=True, slots=True)
class HunkLine:
    """One line of a hunk, without its sign and its end."""

    sign: Sign
    text: str


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """Lines of a file as they are, and as they should become."""

    number: int
    """Counted from 1 in its file."""
    lines: tuple[HunkLine, ...]
    headings: tuple[str, ...] = ()
    """Lines somewhere above it, the outer one first."""
    at_end: bool = False
    """Whether its last old line is the last one of the file."""
    old_line: int | None = None
    """Where its first old line was in the file that the patch was made for; for a hunk without old lines, the line
    that it follows."""
    new_is_open: bool | None = None
    """Whether its last new line has no line end; None if the patch does not say."""

    @property
    def old(self) -> tuple[str, ...]:
        return tuple(line.text for line in self.lines if line.sign != "+")

    @property
    def new(self) -> tuple[str, ...]:
        return tuple(line.text for line in self.lines if line.sign != "-")


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """What a patch does to one file."""

    kind: Literal["add", "update", "delete"]
    path: str
    hunks: tuple[Hunk, ...] = ()
    content: str = ""
    """For an added file."""
    move_to: str = ""
    mode: int | None = None
    """The permission bits that the file gets, if the patch says so."""

    def touched(self) -> Iterator[tuple[Literal["write", "delete"], str]]:
        """The paths that this writes and deletes, in a fixed order."""
        if self.kind == "delete":
            yield "delete", self.path
        elif self.move_to:
            yield "write", self.move_to
            yield "delete", self.path
        else:
            yield "write", self.path


def heading_of(line: str) -> tuple[str, ...]:
    """The line of the file that a line with `@@` names; none if it has only numbers or dots."""
    heading = line[2:].removeprefix(" ").rstrip().removesuffix("@@").rstrip()
    return () if _NO_HEADING.fullmatch(heading) else (heading,)


class PatchLines:
    """The lines of a patch, one after the other."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self._next_text = _next_text(lines)

    @property
    def more(self) -> bool:
        return self.at < len(self.lines)

    def look(self, ahead: int = 0) -> str:
        """The next line, or one further ahead; empty after the end."""
        return self.lines[self.at + ahead] if self.at + ahead < len(self.lines) else ""

    def take(self) -> str:
        self.at += 1
        return self.lines[self.at - 1]

    def next_text(self) -> str:
        """The next line that is not blank, or ""."""
        at = self._next_text[self.at] if self.more else len(self.lines)
        return self.lines[at] if at < len(self.lines) else ""

    def error(self, expected: str, *, back: int = 0) -> PatchError:
        """The error for the next line, or for the one `back` lines before it."""
        at = self.at - back
        line = self.lines[at] if 0 <= at < len(self.lines) else ""
        shown = line if len(line) <= 80 else line[:80] + "…"
        return PatchError(f"line {at + 1} of the patch ({shown!r}): {expected}")


def _next_text(lines: list[str]) -> list[int]:
    """For each line, the number of the first non-blank one from there on."""
    found = [len(lines)] * len(lines)
    following = len(lines)
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].strip():
            following = at
        found[at] = following
    return found


# The V4A format


BEGIN, END, END_OF_FILE, MOVE = "*** Begin Patch", "*** End Patch", "*** End of File", "*** Move to: "
MAX_HEADINGS = 10
_FILE = re.compile(r"\*\*\* (Add|Update|Delete) File: *(.*)")
_NUMBERS = re.compile(r"@@ -(\d{1,9})(?:,\d+)? \+\d+(?:,\d+)? @@")


def _looks_like_v4a(lines: list[str]) -> bool:
    """Whether there is a line of this format; in a diff such lines would have a sign."""
    return any(_begins_v4a(line) for line in lines)


def _begins_v4a(line: str) -> bool:
    return line.rstrip() == BEGIN or _FILE.match(line) is not None


def _parse_v4a(lines: list[str]) -> tuple[FileChange, ...]:
    """The changes of a patch; raises PatchError."""
    reader = PatchLines(list(_inside_v4a(lines)))
    changes = []
    while True:
        _skip_blank(reader)
        if not reader.more:
            break
        changes.append(_v4a_change(reader))
    if not changes:
        raise PatchError("the patch changes no file; begin with '*** Update File: PATH' or '*** Add File: PATH'")
    return tuple(changes)


def _inside_v4a(lines: list[str]) -> Iterator[str]:
    """The lines of the patch: what models put around a patch, or between two, becomes blank.

    Blank, not gone: messages name lines by their number.
    """
    first = next(at for at, line in enumerate(lines) if _begins_v4a(line))
    last = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].rstrip() == END), -1)
    if last < first or any(_begins_v4a(line) for line in lines[last + 1 :]):
        raise PatchError(f"the patch does not end with {END!r}, so it may have been cut off; send all of it")
    for at, line in enumerate(lines[:last]):
        yield "" if at < first or line.rstrip() in (BEGIN, END) else line


def _skip_blank(reader: PatchLines) -> None:
    while reader.more and not reader.look().strip():
        reader.take()


def _v4a_change(reader: PatchLines) -> FileChange:
    heading = _FILE.match(reader.take())
    if heading is None:
        raise reader.error("expected '*** Add File: ', '*** Update File: ' or '*** Delete File: '", back=1)
    kind, path = heading[1], heading[2].strip()
    if not path:
        raise reader.error("the path is missing", back=1)
    if kind == "Delete":
        return FileChange(kind="delete", path=path)
    if kind == "Add":
        return FileChange(kind="add", path=path, content=_v4a_content(reader))
    move_to = ""
    if reader.look().startswith(MOVE.rstrip()):
        move_to = reader.take()[len(MOVE) - 1 :].strip()
        if not move_to:
            raise reader.error("the path is missing", back=1)
    return FileChange(kind="update", path=path, move_to=move_to, hunks=_v4a_hunks(reader))


def _v4a_content(reader: PatchLines) -> str:
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


def _v4a_hunks(reader: PatchLines) -> tuple[Hunk, ...]:
    hunks: list[Hunk] = []
    while reader.more and not _FILE.match(reader.look()):
        if reader.look() == "" and not _more_of_hunk(reader):
            reader.take()
            continue
        hunks.append(_v4a_hunk(reader, len(hunks) + 1))
    return tuple(hunks)


def _more_of_hunk(reader: PatchLines) -> bool:
    """Whether empty lines here belong to a hunk, because more of it follows."""
    return reader.next_text().startswith((" ", "-", "+", "\t"))


def _v4a_hunk(reader: PatchLines, number: int) -> Hunk:
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
        lines.append(_v4a_line(reader))
    at_end = reader.look().rstrip() == END_OF_FILE
    if at_end:
        reader.take()
    elif reader.look().startswith("*** ") and not _FILE.match(reader.look()):
        raise reader.error("expected a hunk, the next file or the end of the patch")
    if all(line.sign == " " for line in lines):
        raise reader.error(f"hunk {number} changes nothing; mark lines with '-' and '+'")
    return Hunk(number=number, lines=tuple(lines), headings=tuple(headings), at_end=at_end, old_line=old_line)


def _v4a_line(reader: PatchLines) -> HunkLine:
    line = reader.take()
    if not line:
        # Editors and models drop the one space of an empty context line.
        return HunkLine(" ", "")
    if line[0] not in " -+":
        raise reader.error("each line of a hunk begins with ' ', '-' or '+'", back=1)
    return HunkLine(cast("Sign", line[0]), line[1:])


# Unified diffs


NO_FILE = "/dev/null"
NO_LINE_END = "\\ No newline at end of file"
_RANGES = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_GIT = re.compile(r"diff --git ")
_ESCAPE = re.compile(r'\\([0-7]{3}|[abtnvfr"\\])')
_LETTERS = dict(zip("abtnvfr", b"\a\b\t\n\v\f\r", strict=True))
_PLAIN_MODE = re.compile(r"100(\d{3})$")


def _looks_like_unified(lines: list[str]) -> bool:
    """Whether a line starts with a header of this format."""
    return any(_GIT.match(line) for line in lines) or any(
        line.startswith("--- ") and following.startswith("+++ ") for line, following in itertools.pairwise(lines)
    )


def _parse_unified(lines: list[str]) -> tuple[FileChange, ...]:
    """The changes of a diff; raises PatchError."""
    reader = PatchLines(lines)
    changes = []
    while reader.more:
        if _at_header(reader):
            changes.append(_unified_change(reader))
            continue
        line = reader.take()
        if line.startswith("@@"):
            raise reader.error("a hunk comes before the '--- ' and '+++ ' lines that name its file", back=1)
        if changes and line.startswith(("+", "-", " ")) and line.strip() not in ("-", "--"):
            # After a hunk; the signature of a mailed patch is `-- ` and a version.
            raise reader.error("expected a hunk or the next file", back=1)
    if not changes:
        raise PatchError("the diff changes no file; begin with '--- a/PATH' and '+++ b/PATH'")
    return tuple(changes)


@dataclass
class _Header:
    """The header of one file."""

    old: str = ""
    new: str = ""
    is_git: bool = False
    moved_from: str = ""
    moved_to: str = ""
    mode: str = ""
    marks: set[str] = field(default_factory=set)


def _at_header(reader: PatchLines) -> bool:
    if _GIT.match(reader.look()):
        return True
    return (
        reader.look().startswith("--- ")
        and reader.look(1).startswith("+++ ")
        and (reader.look(2).startswith("@@") or not reader.look(2).strip())
    )


def _unified_change(reader: PatchLines) -> FileChange:
    at = reader.at
    header = _header(reader)
    hunks = _unified_hunks(reader)
    back = reader.at - at
    mode = _mode(header, reader, back)
    old, new = _names(header)
    if header.moved_to:
        if not header.moved_from:
            raise reader.error("'rename to' needs 'rename from' before it", back=back)
        return FileChange(kind="update", path=header.moved_from, move_to=header.moved_to, hunks=hunks, mode=mode)
    if old == NO_FILE or "new" in header.marks:
        if any(line.sign != "+" for hunk in hunks for line in hunk.lines):
            raise reader.error("a file that is added has only lines with '+'", back=back)
        return FileChange(kind="add", path=_path(new, reader, back), content=_added(hunks), mode=mode)
    if new == NO_FILE or "deleted" in header.marks:
        if any(line.sign != "-" for hunk in hunks for line in hunk.lines):
            raise reader.error("a file that is deleted has only lines with '-'", back=back)
        return FileChange(kind="delete", path=_path(old, reader, back), hunks=hunks)
    if not hunks and mode is None:
        raise reader.error("no hunk follows; each begins with '@@ -LINE,COUNT +LINE,COUNT @@'", back=back)
    return FileChange(kind="update", path=_path(new, reader, back), hunks=hunks, mode=mode)


def _header(reader: PatchLines) -> _Header:
    header = _Header()
    if _GIT.match(reader.look()):
        header.is_git = True
        header.old, header.new = _git_names(reader.take())
        while reader.more and not _GIT.match(reader.look()) and not reader.look().startswith(("--- ", "@@ ")):
            if not _extended(reader.look(), header):
                break
            reader.take()
        if "binary" in header.marks or "copy" in header.marks:
            what = "a binary change" if "binary" in header.marks else "a copy"
            raise reader.error(f"{what} cannot be applied; use the terminal for it", back=1)
    if reader.look().startswith("--- ") and reader.look(1).startswith("+++ "):
        header.old, header.new = _name(reader.take()[4:]), _name(reader.take()[4:])
    return header


def _extended(line: str, header: _Header) -> bool:
    """Read one line of a git header; False when the header is over."""
    word, _, rest = line.partition(" ")
    if line.startswith(("index ", "similarity index ", "dissimilarity index ", "old mode ")):
        return True
    if line.startswith(("new file mode ", "deleted file mode ", "new mode ")):
        header.mode = line.split()[-1]
        if word != "new" or rest.startswith("file"):
            header.marks.add(word)
    elif line.startswith("rename from "):
        header.moved_from = _unquoted(line[len("rename from ") :])
    elif line.startswith("rename to "):
        header.moved_to = _unquoted(line[len("rename to ") :])
    elif line.startswith(("copy from ", "copy to ")):
        header.marks.add("copy")
    elif line.startswith(("GIT binary patch", "Binary files ")):
        header.marks.add("binary")
    else:
        return False
    return True


def _mode(header: _Header, reader: PatchLines, back: int) -> int | None:
    if not header.mode:
        return None
    plain = _PLAIN_MODE.match(header.mode)
    if plain is None:
        raise reader.error("links and submodules cannot be patched; use the terminal for them", back=back)
    # git has two file modes.
    return None if "deleted" in header.marks else 0o755 if int(plain[1], 8) & 0o100 else 0o644


def _names(header: _Header) -> tuple[str, str]:
    """The two names without the prefixes of git."""
    old, new = header.old, header.new
    has_prefixes = (old in (NO_FILE, "") or old.startswith("a/")) and (new in (NO_FILE, "") or new.startswith("b/"))
    return (old.removeprefix("a/"), new.removeprefix("b/")) if has_prefixes else (old, new)


def _path(name: str, reader: PatchLines, back: int) -> str:
    if not name or name == NO_FILE:
        raise reader.error("the path of the file is missing", back=back)
    return name


def _git_names(line: str) -> tuple[str, str]:
    """Both names of a `diff --git` line; they differ only in the prefix, otherwise other lines name them."""
    rest = line[len("diff --git ") :].rstrip()
    quoted = re.fullmatch(r'("(?:[^"\\]|\\.)*"|\S+) ("(?:[^"\\]|\\.)*"|\S+)', rest)
    if quoted is not None:
        return _unquoted(quoted[1]), _unquoted(quoted[2])
    half = len(rest) // 2
    old, new = rest[:half], rest[half + 1 :]
    return (old, new) if old[2:] == new[2:] else ("", "")


def _name(rest: str) -> str:
    """The name after `--- `; a tab and a time may follow it."""
    return _unquoted(rest.rstrip() if rest.startswith('"') else rest.partition("\t")[0].strip())


def _unquoted(name: str) -> str:
    if len(name) < 2 or not (name.startswith('"') and name.endswith('"')):
        return name.strip()

    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code, 8) & 0xFF if len(code) == 3 else _LETTERS.get(code, ord(code)))

    # Each escape is a UTF-8 byte; other characters are encoded as usual.
    octets = name[1:-1].encode("utf-8", "surrogatepass").decode("latin-1")
    return _ESCAPE.sub(character, octets).encode("latin-1").decode("utf-8", "replace")


def _added(hunks: tuple[Hunk, ...]) -> str:
    lines = [text for hunk in hunks for text in hunk.new]
    open_end = bool(hunks) and hunks[-1].new_is_open
    return "\n".join(lines) + ("" if open_end or not lines else "\n")


def _unified_hunks(reader: PatchLines) -> tuple[Hunk, ...]:
    hunks: list[Hunk] = []
    while reader.more:
        if reader.look().startswith("@@"):
            hunks.append(_unified_hunk(reader, len(hunks) + 1))
        elif not reader.look().strip():
            reader.take()
        else:
            break
    return tuple(hunks)


def _unified_hunk(reader: PatchLines, number: int) -> Hunk:
    heading = reader.take()
    ranges = _RANGES.match(heading)
    left = _RemainingLines(ranges)
    lines: list[HunkLine] = []
    open_ends: dict[str, bool] = {}
    blank = 0
    while reader.more and not reader.look().startswith(("@@", "diff --git ")) and not _at_header(reader):
        line = reader.look()
        if line.startswith("\\"):
            reader.take()
            if lines:
                open_ends.update(dict.fromkeys("-+" if lines[-1].sign == " " else lines[-1].sign, True))
            continue
        if line == "" and not left.wants_context and not reader.next_text().startswith((" ", "-", "+")):
            break
        if line[:1] not in ("", " ", "-", "+") or (left.is_over and line.rstrip() == "--"):
            break
        reader.take()
        blank = 0 if line else blank + 1
        lines.append(HunkLine(cast("Sign", line[:1] or " "), line[1:]))
        left.count(lines[-1].sign)
    if all(one.sign == " " for one in lines):
        raise reader.error(f"hunk {number} changes nothing; mark lines with '-' and '+'", back=len(lines) + 1)
    # If the numbers are wrong, empty lines after the hunk may not belong to it.
    while blank and not left.is_over:
        left.uncount(lines.pop().sign)
        blank -= 1
    return Hunk(
        number=number,
        lines=tuple(lines),
        # Some write a line of the file here, as in V4A; git only puts one after the numbers.
        headings=heading_of(heading) if ranges is None else (),
        old_line=int(ranges[1]) if ranges is not None else None,
        # Only the last line of a file can lack a line end.
        at_end=bool(open_ends),
        new_is_open=open_ends.get("+", False) if open_ends else None,
    )


class _RemainingLines:
    """How many lines of a hunk are still to come, according to its heading, which may be wrong."""

    def __init__(self, ranges: re.Match[str] | None) -> None:
        self._old, self._new = (int(ranges[2] or 1), int(ranges[4] or 1)) if ranges is not None else (-1, -1)

    def count(self, sign: Sign) -> None:
        self._old -= sign != "+"
        self._new -= sign != "-"

    def uncount(self, sign: Sign) -> None:
        self._old += sign != "+"
        self._new += sign != "-"

    @property
    def wants_context(self) -> bool:
        return self._old > 0 and self._new > 0

    @property
    def is_over(self) -> bool:
        """Also true for the line `-- ` of a mailed patch, which is not part of the hunk."""
        return self._old == self._new == 0


# Both formats


MAX_PATCH_CHARS = 10_000_000


def parse_patch(text: str) -> tuple[FileChange, ...]:
    """The changes of a V4A patch or a unified diff; raises PatchError."""
    if len(text) > MAX_PATCH_CHARS:
        raise PatchError(f"the patch is longer than {MAX_PATCH_CHARS} characters; send it in parts")
    lines = as_lf(text).removesuffix("\n").split("\n")
    if _looks_like_v4a(lines):
        return _parse_v4a(lines)
    if _looks_like_unified(lines):
        return _parse_unified(lines)
    raise PatchError(
        "the text is not a patch; begin with '*** Begin Patch' and '*** Update File: PATH', or send a unified diff"
    )
