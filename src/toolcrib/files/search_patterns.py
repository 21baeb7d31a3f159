"""Reads a search pattern: the regular expressions that ripgrep and our own search understand alike.

One line at a time is searched, so nothing matches a line break, and `^` and `$` are the ends of a line, before a
carriage return, too. What only one of the engines could do (lookaround, backreferences) is refused here, for both.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import NoReturn

from toolcrib.files import search_characters as characters

MOST_REPEATS = 1000
DEEPEST = 100
LITERALLY = r"put a backslash before each of . ^ $ * + ? ( ) [ ] { } | \ to search for it literally"
CONTROLS = {"t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


class PatternError(ValueError):
    """A pattern that cannot be searched for; says where and why."""


@dataclass(frozen=True, slots=True)
class Text:
    """One character."""

    character: str
    any_case: bool = False


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set. `items` are ranges and names: `d`, `w`, `s`, `[:alpha:]`, `Lu`; a `^` in front
    means all others."""

    items: tuple[tuple[int, int] | str, ...]
    negated: bool = False
    any_case: bool = False

    def ranges(self) -> characters.Ranges:
        """The characters that it matches."""
        found: list[tuple[int, int]] = []
        for item in self.items:
            if not isinstance(item, str):
                found.append(item)
            elif item.startswith("^"):
                found += characters.inverted(characters.named(item[1:]))
            else:
                found += characters.named(item)
        ranges = characters.joined(found)
        if self.any_case:
            ranges = characters.folded(ranges)
        return characters.matchable(characters.inverted(ranges) if self.negated else ranges)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place between characters: `^`, `$`, `b` or `B`."""

    kind: str


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Node
    low: int
    high: int | None
    lazy: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Node, ...]


Node = Text | Chars | Anchor | Repeat | Sequence | Choice


def parse(pattern: str) -> Node:
    """What a pattern means; raises PatternError."""
    return _Reader(pattern).whole()


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0

    def refuse(self, why: str, at: int | None = None) -> NoReturn:
        position = (self.at if at is None else at) + 1
        raise PatternError(f"the pattern {self.pattern!r} cannot be read at character {position}: {why}; {LITERALLY}")

    def peek(self, length: int = 1) -> str:
        return self.pattern[self.at : self.at + length]

    def take(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.at)
        if found:
            self.at += len(text)
        return found

    def whole(self) -> Node:
        if any("\ud800" <= one <= "\udfff" for one in self.pattern):
            self.refuse("it holds half a character", 0)
        node = self.choice(any_case=False)
        if self.at < len(self.pattern):
            self.refuse("a closing ) without an opening one")
        return node

    def choice(self, *, any_case: bool) -> Node:
        """All up to the end of the group. A flag such as (?i) counts from where it stands."""
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse("groups are nested too deep")
        options, parts = [], list[Node]()
        while self.at < len(self.pattern) and self.peek() != ")":
            if self.take("|"):
                options.append(Sequence(tuple(parts)))
                parts = []
                continue
            changed = self.flags(any_case)
            if changed is not None:
                any_case = changed
                continue
            parts.append(self.repeated(any_case))
        self.depth -= 1
        last = Sequence(tuple(parts))
        return Choice((*options, last)) if options else last

    def flags(self, any_case: bool) -> bool | None:
        """Whether case does not matter from here on, where a group of flags stands; else None, and nothing is read."""
        if self.peek(2) != "(?":
            return None
        end = self.at + 2
        while end < len(self.pattern) and self.pattern[end] in "imsuxUR-":
            end += 1
        if self.pattern[end : end + 1] != ")" or end == self.at + 2:
            return None
        start, self.at = self.at + 2, end + 1
        return self.case_of(self.pattern[start:end], start, any_case)

    def case_of(self, flags: str, at: int, any_case: bool) -> bool:
        on, _, off = flags.partition("-")
        # Lines are searched one by one and as Unicode: s, m and u change nothing.
        if set(on) - set("imsu") or set(off) - {"i", "s"} or (off == "" and "-" in flags):
            self.refuse(f"the flags {flags!r} are not known; only i (ignore case) is", at)
        return "i" in on or (any_case and "i" not in off)

    def repeated(self, any_case: bool) -> Node:
        start = self.at
        node = self.one(any_case)
        bounds = self.bounds()
        if bounds is None:
            return node
        if isinstance(node, Anchor):
            self.refuse("there is nothing to repeat", start)
        low, high = bounds
        if max(low, high or 0) > MOST_REPEATS:
            self.refuse(f"more than {MOST_REPEATS} repetitions", start)
        if high is not None and high < low:
            self.refuse("the repetition has its larger number first", start)
        lazy = self.take("?")
        again = self.at
        if self.bounds() is not None:
            self.refuse("a repetition of a repetition; put the first in a group", again)
        return Repeat(node, low, high, lazy)

    def bounds(self) -> tuple[int, int | None] | None:
        """The numbers of a repetition; None where there is none, and nothing is read."""
        for sign, low, high in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self.take(sign):
                return low, high
        end = self.pattern.find("}", self.at)
        if self.peek() != "{" or end < 0:
            return None
        first, comma, second = self.pattern[self.at + 1 : end].partition(",")
        # Anything else in braces is meant as it is written, as in `${name}` or `struct {`.
        if not (first or second) or any(one not in string.digits for one in first + second):
            return None
        if len(first) > 9 or len(second) > 9:
            self.refuse(f"more than {MOST_REPEATS} repetitions")
        self.at = end + 1
        low = int(first or 0)
        return low, (int(second) if second else None) if comma else low

    def one(self, any_case: bool) -> Node:
        """The next thing that can be repeated."""
        start = self.at
        character = self.peek()
        self.at += 1
        if character == "(":
            return self.group(any_case, start)
        if character == "[":
            return self.chars(any_case, start)
        if character == "\\":
            return self.escape(any_case, start)
        if character == ".":
            return Chars((), negated=True)
        if character in "^$":
            return Anchor(character)
        self.at = start
        if self.bounds() is not None:
            self.refuse("there is nothing to repeat", start)
        self.at = start + 1
        return self.text(character, any_case, start)

    def text(self, character: str, any_case: bool, at: int) -> Text:
        if character == "\n":
            self.refuse("a line break; files are searched line by line", at)
        if character == "\0":
            self.refuse("a zero byte; files that hold one are not searched", at)
        return Text(character, any_case and character.lower() != character.upper())

    def group(self, any_case: bool, start: int) -> Node:
        if self.take("?"):
            any_case = self.group_kind(any_case, start)
        node = self.choice(any_case=any_case)
        if not self.take(")"):
            self.refuse("an opening ( without a closing one", start)
        return node

    def group_kind(self, any_case: bool, start: int) -> bool:
        if self.take(":"):
            return any_case
        if self.peek() in ("=", "!") or self.peek(2) in ("<=", "<!"):
            self.refuse("lookahead and lookbehind are not supported", start)
        if self.peek(2) in ("P=", "P>"):
            self.refuse("backreferences are not supported", start)
        if self.take("P<") or self.take("<"):
            end = self.pattern.find(">", self.at)
            name = self.pattern[self.at : end] if end > 0 else ""
            if not name.isidentifier():
                self.refuse("the name of the group is not one", start)
            self.at = end + 1
            return any_case
        end = self.pattern.find(":", self.at)
        flags = self.pattern[self.at : end] if end > 0 else ""
        if not flags or set(flags) - set("imsuxUR-"):
            self.refuse("this kind of group is not supported", start)
        at, self.at = self.at, end + 1
        return self.case_of(flags, at, any_case)

    def escape(self, any_case: bool, start: int) -> Node:
        character = self.peek()
        self.at += 1
        if character in ("A", "z", "Z"):
            return Anchor("^" if character == "A" else "$")
        if character in ("b", "B") and character:
            return Anchor(character)
        name = self.class_name(character, start)
        if name:
            return Chars((name,), any_case=any_case)
        return self.text(self.character_of(character, start), any_case, start)

    def class_name(self, character: str, start: int) -> str:
        r"""The name of the class that \d, \W, \p{Lu} … mean; empty for other escapes."""
        if character and character in "dws":
            return character
        if character and character in "DWS":
            return "^" + character.lower()
        if character not in ("p", "P"):
            return ""
        name = self.peek()
        self.at += 1
        if name == "{":
            end = self.pattern.find("}", self.at)
            name = self.pattern[self.at : end] if end > 0 else ""
            self.at = end + 1
        negated = (character == "P") != name.startswith("^")
        name = name.removeprefix("^")
        if not characters.is_category(name):
            self.refuse(r"only categories such as \p{L}, \p{Lu} or \p{Nd} are known", start)
        return "^" + name if negated else name

    def character_of(self, character: str, start: int) -> str:
        """The character that an escape means."""
        if not character:
            self.refuse("a backslash at the end", start)
        if character in CONTROLS:
            return CONTROLS[character]
        if character in HEX_DIGITS:
            return self.by_number(HEX_DIGITS[character], start)
        if character == "n":
            self.refuse("a line break; files are searched line by line", start)
        if character.isdigit() or character == "k":
            self.refuse(r"backreferences and octal numbers are not supported; \x41 names a character", start)
        if character in "<>":
            self.refuse(r"use \b for the edge of a word", start)
        if character.isalpha() and character.isascii():
            self.refuse(f"the escape \\{character} is not known", start)
        return character

    def by_number(self, length: int, start: int) -> str:
        if self.take("{"):
            end = self.pattern.find("}", self.at)
            digits = self.pattern[self.at : end] if end > 0 else ""
            self.at = end + 1
        else:
            digits = self.peek(length)
            self.at += length
            digits = digits if len(digits) == length else ""
        if not digits or len(digits) > 8 or any(one not in string.hexdigits for one in digits):
            self.refuse("the number of a character is missing", start)
        code = int(digits, 16)
        if code > characters.LAST or 0xD800 <= code <= 0xDFFF:
            self.refuse("there is no character of that number", start)
        return chr(code)

    def chars(self, any_case: bool, start: int) -> Node:
        negated = self.take("^")
        items: list[tuple[int, int] | str] = []
        while not (items and self.peek() == "]"):
            if self.at >= len(self.pattern):
                self.refuse("an opening [ without a closing one", start)
            items.append(self.item(start))
        self.at += 1
        return Chars(tuple(items), negated, any_case)

    def item(self, start: int) -> tuple[int, int] | str:
        at = self.at
        if self.peek(2) == "&&":
            self.refuse("set operations are not supported")
        low = self.member(start)
        if self.peek() != "-" or self.peek(2) in ("-]", "-"):
            return low if isinstance(low, str) else (low, low)
        self.at += 1
        high = self.member(start)
        if isinstance(low, str) or isinstance(high, str) or low > high:
            self.refuse("the range is not one", at)
        return low, high

    def member(self, start: int) -> int | str:
        """One character of a class, as its number, or the name of a class."""
        at = self.at
        if self.at >= len(self.pattern):
            self.refuse("an opening [ without a closing one", start)
        if self.peek(2) == "[:" and (end := self.pattern.find(":]", at)) > 0:
            name = self.pattern[at + 2 : end]
            if name.removeprefix("^") not in characters.POSIX:
                self.refuse(f"there is no class [:{name}:]", at)
            self.at = end + 2
            return f"^[:{name[1:]}:]" if name.startswith("^") else f"[:{name}:]"
        character = self.peek()
        self.at += 1
        if character == "\\":
            character = self.peek()
            self.at += 1
            if name := self.class_name(character, at):
                return name
            character = "\b" if character == "b" else self.character_of(character, at)
        return ord(self.text(character, False, at).character)
