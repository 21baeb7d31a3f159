"""Unified diffs, as diff and git write them and models imitate them: their line numbers and counts are only hints."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import cast

from toolcrib.files.patch_format import FileChange, Hunk, HunkLine, PatchError, PatchLines, Sign, heading_of

NO_FILE = "/dev/null"
NO_LINE_END = "\\ No newline at end of file"
_RANGES = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_GIT = re.compile(r"diff --git ")
_ESCAPE = re.compile(r'\\([0-7]{3}|[abtnvfr"\\])')
_LETTERS = dict(zip("abtnvfr", b"\a\b\t\n\v\f\r", strict=True))
_PLAIN_MODE = re.compile(r"100(\d{3})$")


def looks_like_unified(lines: list[str]) -> bool:
    """Whether there is a header of this format at the beginning of a line."""
    return any(_GIT.match(line) for line in lines) or any(
        line.startswith("--- ") and following.startswith("+++ ") for line, following in itertools.pairwise(lines)
    )


def parse(lines: list[str]) -> tuple[FileChange, ...]:
    """The changes of a diff; raises PatchError."""
    reader = PatchLines(lines)
    changes = []
    while reader.more:
        if _at_header(reader):
            changes.append(_change(reader))
            continue
        line = reader.take()
        if line.startswith("@@"):
            raise reader.error("a hunk stands before the '--- ' and '+++ ' lines that name its file", back=1)
        if changes and line.startswith(("+", "-", " ")) and line.strip() not in ("-", "--"):
            # Behind a hunk that has ended; the signature of a mailed patch is `-- ` and a version.
            raise reader.error("expected a hunk or the next file", back=1)
    if not changes:
        raise PatchError("the diff changes no file; begin with '--- a/PATH' and '+++ b/PATH'")
    return tuple(changes)


@dataclass
class _Header:
    """What the lines above the hunks of one file say."""

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


def _change(reader: PatchLines) -> FileChange:
    at = reader.at
    header = _header(reader)
    hunks = _hunks(reader)
    back = reader.at - at
    mode = _mode(header, reader, back)
    old, new = _names(header)
    if header.moved_to:
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
    """Take down one line of a git header; False where the header is over."""
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
    # git knows two modes of files.
    return None if "deleted" in header.marks else 0o755 if int(plain[1], 8) & 0o100 else 0o644


def _names(header: _Header) -> tuple[str, str]:
    """The two names without the prefixes that git puts before them."""
    old, new = header.old, header.new
    has_prefixes = (old in (NO_FILE, "") or old.startswith("a/")) and (new in (NO_FILE, "") or new.startswith("b/"))
    return (old.removeprefix("a/"), new.removeprefix("b/")) if has_prefixes else (old, new)


def _path(name: str, reader: PatchLines, back: int) -> str:
    if not name or name == NO_FILE:
        raise reader.error("the path of the file is missing", back=back)
    return name


def _git_names(line: str) -> tuple[str, str]:
    """Both names of a `diff --git` line; they are the same but for the prefix, else other lines name them."""
    rest = line[len("diff --git ") :].rstrip()
    quoted = re.fullmatch(r'("(?:[^"\\]|\\.)*"|\S+) ("(?:[^"\\]|\\.)*"|\S+)', rest)
    if quoted is not None:
        return _unquoted(quoted[1]), _unquoted(quoted[2])
    half = len(rest) // 2
    old, new = rest[:half], rest[half + 1 :]
    return (old, new) if old[2:] == new[2:] else ("", "")


def _name(rest: str) -> str:
    """A name behind `--- `; a tab and a time may follow it."""
    return _unquoted(rest.rstrip() if rest.startswith('"') else rest.partition("\t")[0].strip())


def _unquoted(name: str) -> str:
    if len(name) < 2 or not (name.startswith('"') and name.endswith('"')):
        return name.strip()

    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code, 8) & 0xFF if len(code) == 3 else _LETTERS.get(code, ord(code)))

    # Each escape is a byte of UTF-8; what stands as it is, is taken as its bytes, too.
    octets = name[1:-1].encode("utf-8", "surrogatepass").decode("latin-1")
    return _ESCAPE.sub(character, octets).encode("latin-1").decode("utf-8", "replace")


def _added(hunks: tuple[Hunk, ...]) -> str:
    lines = [text for hunk in hunks for text in hunk.new]
    open_end = bool(hunks) and hunks[-1].new_is_open
    return "\n".join(lines) + ("" if open_end or not lines else "\n")


def _hunks(reader: PatchLines) -> tuple[Hunk, ...]:
    hunks: list[Hunk] = []
    while reader.more:
        if reader.look().startswith("@@"):
            hunks.append(_hunk(reader, len(hunks) + 1))
        elif not reader.look().strip():
            reader.take()
        else:
            break
    return tuple(hunks)


def _hunk(reader: PatchLines, number: int) -> Hunk:
    heading = reader.take()
    ranges = _RANGES.match(heading)
    left = _Left(ranges)
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
    # Where the numbers are wrong, empty lines behind the hunk may be none of it.
    while blank and not left.is_over:
        left.uncount(lines.pop().sign)
        blank -= 1
    return Hunk(
        number=number,
        lines=tuple(lines),
        # Some write a line of the file here, as V4A has it; git only puts one behind the numbers.
        headings=heading_of(heading) if ranges is None else (),
        old_line=int(ranges[1]) if ranges is not None else None,
        # Only the last line of a file can lack a line end.
        at_end=bool(open_ends),
        new_is_open=open_ends.get("+", False) if open_ends else None,
    )


class _Left:
    """How many lines of a hunk are still to come, by its heading. A heading that is wrong about it decides nothing."""

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
        """Also true for the line `-- ` of a mailed patch, which is none of the hunk."""
        return self._old == self._new == 0
