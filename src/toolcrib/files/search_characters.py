"""Sets of characters as sorted ranges of code points: what a class in a search pattern means, in both engines.

The meaning is that of ripgrep: classes know Unicode, case is folded one character to one, and a line break is never in.
Standard library only: the search process starts without anything else.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache

Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
LAST_CASED = 0x1E943
CATEGORY_GROUPS = "LMNPSZ"
SPACES: Ranges = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0x85, 0x85),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
)
# Circled and squared letters, and the two joiners: they count as parts of words beside letters, marks and digits.
_MORE_OF_WORDS: Ranges = (
    (0x200C, 0x200D),
    (0x24B6, 0x24E9),
    (0x1F130, 0x1F149),
    (0x1F150, 0x1F169),
    (0x1F170, 0x1F189),
)
POSIX: dict[str, Ranges] = {
    "alnum": ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)),
    "alpha": ((0x41, 0x5A), (0x61, 0x7A)),
    "ascii": ((0x00, 0x7F),),
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "cntrl": ((0x00, 0x1F), (0x7F, 0x7F)),
    "digit": ((0x30, 0x39),),
    "graph": ((0x21, 0x7E),),
    "lower": ((0x61, 0x7A),),
    "print": ((0x20, 0x7E),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "upper": ((0x41, 0x5A),),
    "word": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "xdigit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
}
# No pattern meets these: files are searched line by line, and half characters stand for bytes that are no text.
_NEVER: Ranges = ((0x0A, 0x0A), (0xD800, 0xDFFF))


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters, in order, each once."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def inverted(ranges: Ranges) -> Ranges:
    """All other characters."""
    others, start = [], 0
    for low, high in joined(ranges):
        if start < low:
            others.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        others.append((start, LAST))
    return tuple(others)


def matchable(ranges: Ranges) -> Ranges:
    """The characters without those that no pattern meets."""
    return inverted(joined((*inverted(ranges), *_NEVER)))


def below(ranges: Ranges, limit: int) -> Ranges:
    return tuple((low, min(high, limit - 1)) for low, high in ranges if low < limit)


def named(name: str) -> Ranges:
    """The characters of `d`, `w`, `s`, `[:alpha:]` or a category such as `Lu`; raises KeyError for others."""
    if name == "s":
        return SPACES
    if name == "d":
        return _category("Nd")
    if name == "w":
        return _word()
    if name.startswith("[:"):
        return POSIX[name[2:-2]]
    return _category(name)


def is_category(name: str) -> bool:
    """Whether a name is one of the Unicode categories that patterns may use."""
    return name[:1] in CATEGORY_GROUPS and bool(name) and (len(name) == 1 or name in _categories())


def folded(ranges: Ranges) -> Ranges:
    """The characters, and all that differ from one of them only in case."""
    more = []
    for first, others in _cased().items():
        if any(low <= first <= high for low, high in ranges):
            more += [(other, other) for other in others]
    return joined((*ranges, *more))


def same_but_for_case(character: str) -> tuple[int, ...]:
    """The code points that differ from a character in case alone, itself included."""
    if character.isascii() and character not in "kKsS":
        return tuple(sorted({ord(character.lower()), ord(character.upper())}))
    return _cased().get(ord(character), (ord(character),))


@cache
def _word() -> Ranges:
    kinds = ("L", "M", "Nd", "Nl", "Pc")
    return joined(piece for one in (*map(_category, kinds), _MORE_OF_WORDS) for piece in one)


@cache
def _category(name: str) -> Ranges:
    kinds = [kind for kind in _categories() if kind.startswith(name)]
    if not kinds or name[0] not in CATEGORY_GROUPS:
        raise KeyError(name)
    return joined(piece for kind in kinds for piece in _categories()[kind])


@cache
def _categories() -> dict[str, Ranges]:
    """The characters of every category, from one look at all of them."""
    found: dict[str, list[tuple[int, int]]] = {}
    start, previous = 0, unicodedata.category("\0")
    kind_of = unicodedata.category
    for code in range(1, LAST + 2):
        kind = kind_of(chr(code)) if code <= LAST else ""
        if kind != previous:
            found.setdefault(previous, []).append((start, code - 1))
            start, previous = code, kind
    return {kind: tuple(ranges) for kind, ranges in found.items()}


@cache
def _cased() -> dict[int, tuple[int, ...]]:
    """For each character that has another case: all that fold to the same one."""
    by_fold: dict[str, list[int]] = {}
    for code in range(LAST_CASED + 1):
        character = chr(code)
        fold = _simple_fold(character)
        if fold != character:
            by_fold.setdefault(fold, [ord(fold)]).append(code)
    return {code: tuple(sorted(codes)) for codes in by_fold.values() for code in codes}


def _simple_fold(character: str) -> str:
    """The one character that stands for all cases; folds that need two characters do not count."""
    fold = character.casefold()
    if len(fold) > 1:
        fold = character.lower()
    return fold if len(fold) == 1 else character
