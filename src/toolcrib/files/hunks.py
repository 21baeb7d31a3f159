"""Applies the hunks of a patch to a file: each in the one place where its old lines match, or not at all."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolcrib.files.near_matches import NearMatch, near_matches
from toolcrib.files.patch_parsing import Hunk, HunkLine
from toolcrib.files.text_files import TextFile

MAX_PLACES = 1_000
"""A hunk that matches in more places than this is ambiguous in any case."""
MAX_LISTED = 10
MAX_COMPARED_CHARS = 2_000_000_000
"""How much is searched for all hunks of one file."""
MAX_EXPLAINED = 5
"""How many misfits of one file get near matches, which take time to find."""


@dataclass(frozen=True)
class RejectedHunk:
    """A hunk that was not applied."""

    hunk: int
    problem: str
    near: tuple[NearMatch, ...] = ()


class HunkMismatch(Exception):
    """Some hunks do not match in exactly one place."""

    def __init__(self, misfits: Sequence[RejectedHunk]) -> None:
        super().__init__("; ".join(f"hunk {one.hunk}: {one.problem}" for one in misfits))
        self.misfits = tuple(misfits)


def with_hunks(file: TextFile, hunks: Sequence[Hunk]) -> TextFile:
    """The file with all hunks applied in order; raises HunkMismatch with every hunk that has no single place."""
    if len(hunks) * len(file.text) > MAX_COMPARED_CHARS:
        raise HunkMismatch([RejectedHunk(1, "there are too many hunks for a file of this size; use write_file")])
    lines = _Lines(file.text)
    places = [_places(lines, hunk) for hunk in hunks]
    starts = _assigned(lines, hunks, places)
    usual_end = file.usual_line_end
    changed = list(_changed(_split(file), hunks, starts, usual_end))
    reaches_end = bool(hunks) and starts[-1] + len(hunks[-1].old) == len(lines.lines)
    says_open = hunks[-1].new_is_open if reaches_end else None
    ended = _with_file_end(changed, was_open=lines.is_open, says_open=says_open, usual_end=usual_end)
    return TextFile("".join(line.text + line.end for line in ended), file.encoding)


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    end: str
    is_new: bool = False


def _split(file: TextFile) -> list[_Line]:
    """The lines of a file, each with its own line end."""
    end = "\r" if file.line_end == "\r" else "\n"
    *ended, last = file.raw.split(end)
    lines = [_Line(line[:-1], "\r\n") if line.endswith("\r") else _Line(line, end) for line in ended]
    return [*lines, _Line(last, "")] if last else lines


class _Lines:
    """The lines of a text with LF line ends, and where they begin in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        # The last line has no line end.
        self.is_open = self.lines[-1] != ""
        if not self.is_open:
            self.lines.pop()
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        # With a line end before and after every line.
        self._framed = "\n" + text + "\n" * self.is_open

    def places_of(self, block: Sequence[str], first: int) -> list[int]:
        """The line numbers, from `first` on, where these lines match; at most MAX_PLACES."""
        text, sought = self._framed, "\n" + "\n".join(block) + "\n"
        found = text.find(sought, self.starts[min(first, len(self.lines))])
        places: list[int] = []
        while found >= 0 and len(places) < MAX_PLACES:
            # Here, the line end before a line is where the line starts in the text.
            places.append(bisect.bisect_left(self.starts, found))
            found = text.find(sought, found + 1)
        return places

    def has_at(self, block: Sequence[str], at: int) -> bool:
        return at >= 0 and self.lines[at : at + len(block)] == list(block)

    def end_of_scope(self, at: int) -> int:
        """The first line after `at` that is not indented deeper."""
        depth = _indentation(self.lines[at])
        for number in range(at + 1, len(self.lines)):
            if self.lines[number].strip() and _indentation(self.lines[number]) <= depth:
                return number
        return len(self.lines)


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _places(lines: _Lines, hunk: Hunk) -> list[int]:
    """The lines where a hunk may start."""
    old = hunk.old
    if not old:
        return _places_without_context(lines, hunk)
    if hunk.at_end:
        end = len(lines.lines) - len(old)
        return [end] if lines.has_at(old, end) else []
    if not hunk.headings:
        return lines.places_of(old, 0)
    scopes = list(_scopes(lines, hunk.headings, may_be_part=True))
    if not scopes:
        return []
    after = lines.places_of(old, scopes[0][0])
    if len(after) <= 1:
        return after
    inside = [place for place in after if any(start <= place < end for start, end in scopes)]
    return inside or after


def _places_without_context(lines: _Lines, hunk: Hunk) -> list[int]:
    if hunk.at_end or not lines.lines:
        return [len(lines.lines)]
    if hunk.headings:
        return [start for start, _ in _scopes(lines, hunk.headings, may_be_part=False)]
    if hunk.old_line is not None and hunk.old_line <= len(lines.lines):
        return [hunk.old_line]
    return []


def _scopes(lines: _Lines, headings: Sequence[str], *, may_be_part: bool) -> Iterator[tuple[int, int]]:
    """The ranges from each line that is the last heading, inside the others, to the end of its block.

    Models cut off the end of a heading, which does no harm if context lines also identify the place.
    """
    scopes = [(0, len(lines.lines))]
    for heading in headings:
        sought = heading.strip()
        inside = dict.fromkeys(number for start, end in scopes for number in range(start, end))
        found = [number for number in inside if lines.lines[number].strip() == sought]
        if not found and may_be_part:
            found = [number for number in inside if sought in lines.lines[number]]
        scopes = [(number + 1, lines.end_of_scope(number)) for number in found[:MAX_LISTED]]
    yield from scopes


def _assigned(lines: _Lines, hunks: Sequence[Hunk], places: Sequence[list[int]]) -> list[int]:
    """The place of each hunk, given that they are in order and do not overlap."""
    lost = [hunk for hunk, found in zip(hunks, places, strict=True) if not found]
    if lost:
        raise HunkMismatch([_without_place(lines, hunk, number < MAX_EXPLAINED) for number, hunk in enumerate(lost)])
    narrowed = [_by_number(lines, hunk, found) for hunk, found in zip(hunks, places, strict=True)]
    problem: HunkMismatch | None = None
    for shared in (False, True):
        for candidates in (places, narrowed):
            try:
                return _in_order([_extent(hunk, shared) for hunk in hunks], candidates)
            except HunkMismatch as error:
                problem = problem or error
    assert problem is not None
    raise problem


@dataclass(frozen=True, slots=True)
class _Extent:
    """How far a hunk reaches from its first line."""

    number: int
    changed_from: int
    """The first line that others may not use as context; 0 if contexts may not overlap."""
    changed_to: int
    """The line after the last such line."""
    length: int

    def free_behind(self, start: int, following: _Extent) -> int:
        """Where the next hunk may start if this one starts at `start`."""
        return max(start + self.changed_to, start + self.length - following.changed_from)

    def latest_before(self, following: _Extent, start: int) -> int:
        """Where this one may start at the latest if the next one starts at `start`."""
        return min(start - self.changed_to, start + following.changed_from - self.length)


def _extent(hunk: Hunk, shares_context: bool) -> _Extent:
    """With shared context, the last lines of one hunk may be the first ones of the next."""
    length = len(hunk.old)
    if not shares_context:
        return _Extent(hunk.number, 0, length, length)
    before = _context_lines(hunk.lines)
    return _Extent(hunk.number, before, length - _context_lines(hunk.lines[::-1]), length)


def _context_lines(lines: Sequence[HunkLine]) -> int:
    """How many lines of context come first."""
    return next((count for count, line in enumerate(lines) if line.sign != " "), len(lines))


def _by_number(lines: _Lines, hunk: Hunk, found: list[int]) -> list[int]:
    """The place that the line number of a diff names, if the hunk matches there."""
    if hunk.old_line is not None and hunk.old and lines.has_at(hunk.old, hunk.old_line - 1):
        return [hunk.old_line - 1]
    return found


def _in_order(hunks: Sequence[_Extent], places: Sequence[list[int]]) -> list[int]:
    """Place each hunk as early and as late as possible: if both agree, there is only one way to apply all."""
    earliest: list[int] = []
    for number, (hunk, found) in enumerate(zip(hunks, places, strict=True)):
        free = hunks[number - 1].free_behind(earliest[-1], hunk) if number else 0
        at = bisect.bisect_left(found, free)
        if at == len(found):
            line = found[-1] + 1
            problem = f"its lines match only in line {line}, not below the hunk before it; join the two"
            raise HunkMismatch([RejectedHunk(hunk.number, problem + ", or put them in the order of the file")])
        earliest.append(found[at])
    latest = [places[-1][-1]] if places else []
    for hunk, following, found in zip(hunks[-2::-1], hunks[:0:-1], places[-2::-1], strict=True):
        latest.append(found[bisect.bisect_right(found, hunk.latest_before(following, latest[-1])) - 1])
    misfits = [
        _ambiguous(hunk, found)
        for hunk, found, first, last in zip(hunks, places, earliest, reversed(latest), strict=True)
        if first != last or len(found) >= MAX_PLACES
    ]
    if misfits:
        raise HunkMismatch(misfits)
    return earliest


def _ambiguous(hunk: _Extent, found: Sequence[int]) -> RejectedHunk:
    listed = ", ".join(str(place + 1) for place in found[:MAX_LISTED]) + (" …" if len(found) > MAX_LISTED else "")
    return RejectedHunk(
        hunk.number, f"its lines match in several places (lines {listed}); add context lines, or a heading"
    )


def _without_place(lines: _Lines, hunk: Hunk, is_explained: bool) -> RejectedHunk:
    def near(wanted: str) -> tuple[NearMatch, ...]:
        return near_matches(lines.text, wanted) if is_explained else ()

    if not hunk.old:
        if hunk.headings:
            return RejectedHunk(hunk.number, f"no line is {hunk.headings[-1].strip()!r}", near(hunk.headings[-1]))
        return RejectedHunk(
            hunk.number, "it only adds lines and does not say where; add a line of the file that it follows"
        )
    where = lines.places_of(hunk.old, 0)[:MAX_LISTED]
    if where and hunk.at_end:
        return RejectedHunk(hunk.number, f"its lines match in line {where[0] + 1}, not at the end of the file")
    if where:
        listed = ", ".join(str(place + 1) for place in where)
        lines_are = f"line {listed}" if len(where) == 1 else f"lines {listed}"
        problem = f"its lines match in {lines_are}, but not below {hunk.headings[-1].strip()!r}"
        return RejectedHunk(hunk.number, problem, near(hunk.headings[-1]))
    return RejectedHunk(hunk.number, "its lines do not occur in the file", near("\n".join(hunk.old)))


def _changed(lines: list[_Line], hunks: Sequence[Hunk], starts: Sequence[int], usual_end: str) -> Iterator[_Line]:
    """The lines of the file with the hunks applied.

    Context lines stay as they are; new lines get the line ends of those that they replace, and then the usual one.
    """
    at = 0
    for hunk, start in zip(hunks, starts, strict=True):
        before = _context_lines(hunk.lines)
        yield from lines[at : start + before]
        at = start + before
        ends: list[str] = []
        for line in hunk.lines[before : len(hunk.lines) - _context_lines(hunk.lines[::-1])]:
            if line.sign == "+":
                yield _Line(line.text, (ends.pop(0) if ends else "") or usual_end, is_new=True)
                continue
            if line.sign == "-":
                ends.append(lines[at].end)
            else:
                ends.clear()
                yield lines[at]
            at += 1
    yield from lines[at:]


def _with_file_end(lines: list[_Line], *, was_open: bool, says_open: bool | None, usual_end: str) -> Iterator[_Line]:
    """Only the last line may lack a line end: if it did before, or if the patch says so."""
    for line in lines[:-1]:
        yield line if line.end else _Line(line.text, usual_end)
    for line in lines[-1:]:
        becomes_open = says_open if says_open is not None else was_open if line.is_new else not line.end
        yield _Line(line.text, "" if becomes_open else line.end or usual_end)
