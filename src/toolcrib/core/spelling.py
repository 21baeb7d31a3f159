"""Tells whether one name is likely a misspelling of another: typos, and other spellings of the same words."""

from __future__ import annotations

from toolcrib.core.lazy import lazy_pattern

_WORDS = lazy_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+")
_DIGITS = lazy_pattern(r"\d+")
_MAX_NAME_CHARS = 80
# Short words are one letter apart without being misspelt (`to` and `too`, `min` and `max`, `date` and `data`).
_SHORT_WORD = 3
_PLAIN_WORD = 5
_LONG_WORD = 8


def is_misspelling(given: str, known: str) -> bool:
    """Whether `given` is another spelling of `known`: `filePath`, `file-path` or `fiel_path` for `file_path`.

    Names that differ in a whole word (`start_date` and `end_date`) or in a number (`line1` and `line2`) are not.
    """
    if given == known or max(len(given), len(known)) > _MAX_NAME_CHARS:
        return False
    if _DIGITS.findall(given) != _DIGITS.findall(known):
        return False
    ours, theirs = _words(given), _words(known)
    if not ours or not theirs:
        return False
    if "".join(ours) == "".join(theirs):
        return True
    if len(ours) != len(theirs):
        if set(ours) < set(theirs) or set(theirs) < set(ours):
            # A further word makes another name: `message_id` is not `message`.
            return False
        return _differ_by_a_slip("".join(ours), "".join(theirs), at_most=1)
    wrong = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
    return len(wrong) <= 2 and all(_differ_by_a_slip(one, other) for one, other in wrong)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


def _differ_by_a_slip(given: str, known: str, at_most: int = 2) -> bool:
    length = len(known)
    if length < _SHORT_WORD or abs(len(given) - length) > 1:
        return False
    limit = min(at_most, 2 if length >= _LONG_WORD and given[0] == known[0] else 1)
    if length < _PLAIN_WORD and len(given) == length and sorted(given) != sorted(known):
        # Another letter in a short word is mostly another word; a swap or a lost or doubled letter is a slip.
        return False
    return _distance(given, known, limit) <= limit


def _distance(left: str, right: str, limit: int) -> int:
    """The number of lost, added, changed or swapped letters, exact up to the limit."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, letter in enumerate(left, 1):
        above, before_above = row, before
        row = [i]
        for j, other in enumerate(right, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == right[j - 2] and left[i - 2] == other:
                cost = min(cost, before_above[j - 2] + 1)
            row.append(cost)
        before = above
        if min(row) > limit:
            return limit + 1
    return row[-1]
