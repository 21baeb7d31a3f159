"""Finds the lines that a missing search text probably meant: shown as suggestions, never applied.

The first search ignores what models get wrong: white space, quotes, look-alikes, case. If that finds nothing, the
places that share the most lines, or the line that shares the most words, are taken. The work is counted and limited, so
no file and no text can make it slow.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from toolcrib.files.text_files import as_lf

MAX_PROPOSALS = 3
MAX_EFFORT = 80_000_000
"""Enough for a file of ten megabytes; larger ones get no proposals."""
MAX_SHOWN_LINES = 40
MAX_SHOWN_CHARS = 2_000
MAX_COMPARED_CHARS = 300
"""At most this much of two lines is compared letter by letter."""
MAX_COMPARED_LINES = 100
MAX_OCCURRENCES = 50
"""A line that occurs more often than this does not help to locate anything."""
MIN_SHARED_LINES = 0.5
MIN_LIKENESS = 0.6

_LOOK_ALIKES = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′`´＇", "'"),
        **dict.fromkeys("“”„‟″«»＂", '"'),
        **dict.fromkeys("‐‑‒–—―−﹘﹣－", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
        "…": "...",
        "×": "x",
    }
)
_WORD = re.compile(r"\w+")
_NUMBERED = re.compile(r"^ *\d+\|", re.MULTILINE)
NUMBERS = "no line numbers and bars in the file; read_file puts them before the lines"


class WorkBudget:
    """Counts the work of one search in characters; `spend` says whether any is left."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0

    def spend(self, amount: int) -> bool:
        if self.spent + amount > self.limit:
            return False
        self.spent += amount
        return True


@dataclass(frozen=True, slots=True)
class NearMatch:
    """Some lines of a file, and how they differ from the wanted text."""

    first_line: int
    """Counted from 1."""
    lines: tuple[str, ...]
    why: str

    def as_json(self) -> dict[str, object]:
        """For the result: the lines verbatim, for the model to use."""
        text = "\n".join(self.lines[:MAX_SHOWN_LINES])
        cut = len(self.lines) > MAX_SHOWN_LINES or len(text) > MAX_SHOWN_CHARS
        shown = text[:MAX_SHOWN_CHARS] + ("\n… (cut)" if cut else "")
        last = self.first_line + len(self.lines) - 1
        lines = str(self.first_line) if last == self.first_line else f"{self.first_line}-{last}"
        return {"lines": lines, "differs": self.why, "text": shown}


def near_matches(text: str, wanted: str, effort: WorkBudget | None = None) -> tuple[NearMatch, ...]:
    """Up to three places in a text with LF line ends, best first."""
    wanted = as_lf(wanted).strip("\n")
    numberless = _NUMBERED.sub("", wanted)
    if numberless != wanted and numberless in text:
        start = text.count("\n", 0, text.index(numberless))
        lines = text.split("\n")[start : start + numberless.count("\n") + 1]
        return (NearMatch(start + 1, tuple(lines), NUMBERS),)
    effort = effort or WorkBudget(MAX_EFFORT)
    if not wanted.strip() or not text or not effort.spend(8 * (len(text) + len(wanted))):
        return ()
    lines, wanted_lines = text.split("\n"), wanted.split("\n")
    spoken, wanted_spoken = [_skeleton(line) for line in lines], [_skeleton(line) for line in wanted_lines]
    found = [(start, lines[start:end]) for start, end in _in_other_words(spoken, wanted_spoken)]
    if not found:
        starts = _with_most_lines(spoken, wanted_spoken, effort)
        found = [(start, lines[start : start + len(wanted_lines)]) for start in starts]
    if not found:
        found = [(start, [lines[start]]) for start in _likest_lines(lines, wanted_lines, effort)]
    return tuple(
        NearMatch(start + 1, tuple(actual), difference(wanted_lines, actual)) for start, actual in found[:MAX_PROPOSALS]
    )


def _skeleton(line: str) -> str:
    """A line without white space, case, kinds of quotes and look-alikes."""
    if not line.isascii():
        line = unicodedata.normalize("NFKC", line.translate(_LOOK_ALIKES))
    return "".join(line.split()).replace("\\", "").replace('"', "'").replace("`", "'").lower()


def _in_other_words(spoken: Sequence[str], wanted: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The ranges where the wanted lines match except for their form, and for empty lines between them.

    The outer ones may be parts of lines.
    """
    numbers = [number for number, line in enumerate(spoken) if line]
    text, sought = "\n".join(filter(None, spoken)), "\n".join(filter(None, wanted))
    if not sought:
        return
    line = counted = 0
    found, given = text.find(sought), 0
    while found >= 0 and given < MAX_PROPOSALS:
        line, counted = line + text.count("\n", counted, found), found
        yield numbers[line], numbers[line + sought.count("\n")] + 1
        given += 1
        end = text.find("\n", found)
        found = text.find(sought, end + 1) if end >= 0 else -1


def _with_most_lines(spoken: Sequence[str], wanted: Sequence[str], effort: WorkBudget) -> Iterator[int]:
    """Where most of the wanted lines match at the right distance from each other."""
    telling = {line for line in wanted if len(line) > 2}
    if len(telling) < 2:
        return
    where: dict[str, list[int]] = {line: [] for line in telling}
    for number, line in enumerate(spoken):
        if line in where:
            where[line].append(number)
    votes: Counter[int] = Counter()
    for number, line in enumerate(wanted):
        places = where.get(line, ())
        if 0 < len(places) <= MAX_OCCURRENCES and effort.spend(len(places)):
            votes.update(place - number for place in places if place >= number)
    needed = max(2, MIN_SHARED_LINES * len(telling))
    chosen: list[int] = []
    for start, count in votes.most_common(10 * MAX_PROPOSALS):
        # Overlapping places are the same place, one line further.
        if count >= needed and all(abs(start - other) >= len(wanted) for other in chosen):
            chosen.append(start)
            yield start


def _likest_lines(lines: Sequence[str], wanted: Sequence[str], effort: WorkBudget) -> Iterator[int]:
    """The lines most similar to the most distinctive wanted one: by shared words first, then letter by letter."""
    sought = max(wanted, key=lambda line: len(line.strip())).strip()[:MAX_COMPARED_CHARS]
    words = set(_WORD.findall(sought.lower()))
    if not words:
        return
    shared: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        common = len(words.intersection(_WORD.findall(line[:MAX_COMPARED_CHARS].lower())))
        if common:
            shared.append((-common, number))
    if not shared:
        # For a typo in the only word, compare lines of about the same length.
        room = max(4, len(sought) // 2)
        shared = [(0, number) for number, line in enumerate(lines) if abs(len(line.strip()) - len(sought)) <= room]
    compared: list[tuple[float, int]] = []
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(sought)
    for _, number in sorted(shared)[:MAX_COMPARED_LINES]:
        candidate = lines[number].strip()[:MAX_COMPARED_CHARS]
        if not effort.spend(len(candidate) * len(sought)):
            break
        matcher.set_seq1(candidate)
        likeness = matcher.ratio()
        if likeness >= MIN_LIKENESS or (len(sought) >= 8 and sought in candidate):
            compared.append((-likeness, number))
    yield from (number for _, number in sorted(compared)[:MAX_PROPOSALS])


def difference(wanted: Sequence[str], actual: Sequence[str]) -> str:
    """How the lines of a file differ from the wanted ones, in one phrase."""
    kinds: dict[str, None] = {}
    other: list[str] = []
    if len(actual) != len(wanted):
        wanted, actual = [line for line in wanted if line.strip()], [line for line in actual if line.strip()]
        kinds["empty lines" if len(actual) == len(wanted) else "other number of lines"] = None
    for number, (want, have) in enumerate(zip(wanted, actual, strict=False)):
        # Only part of the outer lines may be meant, so what surrounds that part is not a difference.
        have = have.lstrip() if number == 0 and not _indentation(want) else have
        have = have.rstrip() if number == len(wanted) - 1 and want.rstrip() == want else have
        if _stands_in(have, want, is_first=number == 0, is_last=number == len(wanted) - 1):
            continue
        found = list(_kinds(want, have))
        kinds.update(dict.fromkeys(found))
        if not found:
            other.append(have)
    if other:
        kinds["other text"] = None
    return ", ".join(kinds) or "the lines around it"


def _stands_in(have: str, want: str, *, is_first: bool, is_last: bool) -> bool:
    """Whether a line of the file matches; the first one may start with more, and the last one end with more."""
    if is_first and is_last:
        return want.strip() != "" and want in have
    return have.endswith(want) if is_first else have.startswith(want) if is_last else have == want


def _kinds(want: str, have: str) -> Iterator[str]:
    """The kinds of differences between two lines with the same words; nothing if the words differ."""
    if _skeleton(want) not in _skeleton(have):
        return
    if _indentation(want) != _indentation(have) and have.strip().startswith(want.strip()[:1]):
        tabs = "\t" in _indentation(have) and "\t" not in _indentation(want)
        yield "indentation (tabs in the file)" if tabs else "indentation"
    if want.rstrip() == want and have.rstrip() != have:
        yield "trailing white space in the file"
    elif want.rstrip() != want and have.rstrip() == have:
        yield "no trailing white space in the file"
    bare_want, bare_have = want.strip(), have.strip()
    if not bare_have.isascii() or not bare_want.isascii():
        odd = sorted(set(bare_have) ^ set(bare_want), key=ord)
        named = ", ".join(_named(odd))
        if named:
            yield f"look-alike characters ({named})"
            bare_want, bare_have = bare_want.translate(_LOOK_ALIKES), bare_have.translate(_LOOK_ALIKES)
    yield from _kinds_in_ascii(bare_want, bare_have)


def _kinds_in_ascii(want: str, have: str) -> Iterator[str]:
    if ("\\" in want) != ("\\" in have):
        yield "backslashes"
    want, have = want.replace("\\", ""), have.replace("\\", "")
    if _quotes(want) != _quotes(have) and want not in have:
        yield "quotes"
    want, have = (line.replace('"', "'").replace("`", "'") for line in (want, have))
    if want.split() != have.split() and "".join(want.split()).lower() in "".join(have.split()).lower():
        squeezed_want, squeezed_have = "".join(want.split()), "".join(have.split())
        if squeezed_want not in squeezed_have:
            yield "upper and lower case"
        if " ".join(want.split()).lower() not in " ".join(have.split()).lower():
            yield "white space inside the line"
    elif want != have and want not in have:
        yield "white space inside the line"


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _quotes(line: str) -> str:
    return re.sub(r"[^'\"`]", "", line)


def _named(characters: Iterable[str]) -> Iterator[str]:
    for character in characters:
        if ord(character) > 127:
            yield f"U+{ord(character):04X} {unicodedata.name(character, 'unnamed').lower()}"
