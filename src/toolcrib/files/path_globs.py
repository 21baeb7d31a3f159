"""Globs over paths, as ripgrep reads them in ignore files: `*` and `?` stop at a slash, `**` does not, `{a,b}` chooses.

Paths are bytes, with slashes and without one in front. Standard library only: the search process starts without
anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class GlobError(ValueError):
    """A glob that means nothing; says why."""


class Wild(Enum):
    """The parts of a glob that are no literal text, as regular expressions."""

    ANY = b"[^/]"
    STAR = b"[^/]*"
    PREFIX = b"(?:/?|.*/)"
    SUFFIX = b"/.*"
    BETWEEN = b"(?:/|/.*/)"


@dataclass(frozen=True, slots=True)
class Class:
    """One character out of a set, or not."""

    expression: bytes


@dataclass(frozen=True, slots=True)
class Either:
    options: tuple[tuple[Token, ...], ...]


Token = str | Wild | Class | Either
"""A text token is one literal character."""


def tokens_of(glob: str) -> tuple[Token, ...]:
    """The parts of a glob; raises GlobError."""
    return _Reader(glob).whole()


def expression_of(tokens: Iterable[Token]) -> bytes:
    """The regular expression of a glob, for `fullmatch` with DOTALL over the bytes of a path."""
    tokens = tuple(tokens)
    if tokens == (Wild.PREFIX,):
        return b".*"
    return b"".join(map(_expression, tokens))


def compiled(glob: str) -> re.Pattern[bytes]:
    """What matches the same paths as a glob; raises GlobError."""
    return re.compile(expression_of(tokens_of(glob)), re.DOTALL)


def _expression(token: Token) -> bytes:
    if isinstance(token, str):
        return re.escape(token.encode(errors="surrogateescape"))
    if isinstance(token, Wild):
        return token.value
    if isinstance(token, Class):
        return token.expression
    # An option without anything in it does not count.
    options = [expression_of(option) for option in token.options if option]
    return b"(?:" + b"|".join(options) + b")" if options else b""


class _Reader:
    def __init__(self, glob: str) -> None:
        self.glob = glob
        self.at = 0
        self.open: list[list[list[Token]]] = []
        """The options so far of each brace that is open."""
        self.tokens: list[Token] = []

    def whole(self) -> tuple[Token, ...]:
        while self.at < len(self.glob):
            character = self.glob[self.at]
            self.at += 1
            self.step(character)
        if self.open:
            raise GlobError(f"an opening {{ without a closing one in {self.glob!r}")
        return tuple(self.tokens)

    def step(self, character: str) -> None:
        if character == "?":
            self.tokens.append(Wild.ANY)
        elif character == "*":
            self.star()
        elif character == "[":
            self.tokens.append(self.character_class())
        elif character == "\\":
            if self.at >= len(self.glob):
                raise GlobError(f"a backslash at the end of {self.glob!r}")
            self.tokens.append(self.glob[self.at])
            self.at += 1
        elif character == "{":
            self.open.append([])
            self.open[-1].append(self.tokens)
            self.tokens = []
        elif character == "," and self.open:
            self.open[-1].append(self.tokens)
            self.tokens = []
        elif character == "}":
            self.close()
        else:
            self.tokens.append(character)

    def close(self) -> None:
        if not self.open:
            raise GlobError(f"a closing }} without an opening one in {self.glob!r}")
        outside, *options = self.open.pop()
        options.append(self.tokens)
        self.tokens = [*outside, Either(tuple(map(tuple, options)))]

    def star(self) -> None:
        before = self.glob[self.at - 2 : self.at - 1] if self.at > 1 else ""
        if self.glob[self.at : self.at + 1] != "*":
            self.tokens.append(Wild.STAR)
            return
        self.at += 1
        after = self.glob[self.at : self.at + 1]
        if not self.tokens:
            if after not in ("", "/"):
                self.tokens += [Wild.STAR, Wild.STAR]
                return
            self.tokens.append(Wild.PREFIX)
            self.at += 1
            return
        is_suffix = after == "" or (bool(self.open) and after in ",}")
        if before != "/" or not (is_suffix or after == "/"):
            self.tokens += [Wild.STAR, Wild.STAR]
            return
        if not is_suffix:
            self.at += 1
        last = self.tokens.pop()
        kept = last in (Wild.PREFIX, Wild.SUFFIX)
        self.tokens.append(last if kept else Wild.SUFFIX if is_suffix else Wild.BETWEEN)

    def character_class(self) -> Class:
        start = self.at
        negated = self.glob[self.at : self.at + 1] in ("!", "^") and self.at < len(self.glob)
        self.at += negated
        members: list[str] = []
        while True:
            if self.at >= len(self.glob):
                raise GlobError(f"an opening [ without a closing one in {self.glob!r}")
            character = self.glob[self.at]
            self.at += 1
            if character == "]" and members:
                break
            members.append(character)
        return Class(_class_expression(members, negated, self.glob[start : self.at]))


def _class_expression(members: list[str], negated: bool, text: str) -> bytes:
    pieces, at = list[bytes](), 0
    while at < len(members):
        low = high = members[at]
        if at + 2 < len(members) and members[at + 1] == "-":
            high = members[at + 2]
            at += 2
        if low > high:
            raise GlobError(f"the range {low}-{high} in [{text} is not one")
        pieces.append(_byte_range(low, high))
        at += 1
    return b"[" + (b"^" if negated else b"") + b"".join(pieces) + b"]"


def _byte_range(low: str, high: str) -> bytes:
    if low.isascii() and high.isascii():
        return b"\\x%02x-\\x%02x" % (ord(low), ord(high))
    # Sets work byte by byte, so a letter beyond ASCII means each of its bytes.
    return b"".join(b"\\x%02x" % byte for byte in (low + high).encode(errors="surrogateescape"))
