"""JSON pointers with wildcards: the values behind a pattern, the leaves of a value, and the pattern that fits best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolcrib.core.origins import OriginDeclaration, OriginLevel

ANY_KEY, ANY_DEPTH = "*", "**"
MAX_DEPTH = 32
"""Deeper values are read as one text, so that a hostile result costs no recursion."""


def parts_of(pointer: str) -> tuple[str, ...]:
    """The keys of a pointer, unescaped."""
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def pointer_of(parts: tuple[str, ...]) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def leaves(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is neither an object nor a list, with its position."""
    children: Iterator[tuple[str, Any]] | None = None
    if isinstance(value, Mapping):
        children = ((str(key), child) for key, child in value.items())
    elif isinstance(value, (list, tuple)):
        children = ((str(index), child) for index, child in enumerate(value))
    if children is None or len(at) >= MAX_DEPTH:
        yield at, value
        return
    for key, child in children:
        yield from leaves(child, (*at, key))


def values_at(arguments: Mapping[str, Any], pointer: str) -> Iterator[tuple[str, Any]]:
    """The leaves of the arguments that the pointer covers, each with its own pointer."""
    wanted = parts_of(pointer)
    for at, value in leaves(arguments):
        if covers(wanted, at):
            yield pointer_of(at), value


def covers(pattern: tuple[str, ...], at: tuple[str, ...]) -> bool:
    """Whether the pattern matches the position or something above it."""
    if not pattern:
        return True
    first, rest = pattern[0], pattern[1:]
    if first == ANY_DEPTH:
        return any(covers(rest, at[skipped:]) for skipped in range(len(at) + 1))
    return bool(at) and first in (ANY_KEY, at[0]) and covers(rest, at[1:])


class OriginMap:
    """The levels that a declaration gives to the parts of a result."""

    def __init__(self, declared: OriginDeclaration) -> None:
        by_pointer: Mapping[str, OriginLevel] = (
            declared if isinstance(declared, Mapping) else {"": declared or "untrusted"}
        )
        # The most specific pattern first: the longest one, and of two the one with fewer wildcards.
        self._patterns = sorted(
            ((parts_of(pointer), level) for pointer, level in by_pointer.items()),
            key=lambda one: (-len(one[0]), one[0].count(ANY_DEPTH), one[0].count(ANY_KEY)),
        )

    @property
    def has_fields(self) -> bool:
        return any(parts for parts, _ in self._patterns)

    @property
    def weakest(self) -> OriginLevel:
        """The level of a result whose fields cannot be told apart."""
        levels = {level for _, level in self._patterns}
        order: tuple[OriginLevel, ...] = ("untrusted", "derived", "trusted", "person")
        return next((level for level in order if level in levels), "untrusted")

    def level_at(self, at: tuple[str, ...]) -> OriginLevel:
        """The level at a position; a field that no pattern covers is untrusted."""
        return next((level for parts, level in self._patterns if covers(parts, at)), "untrusted")
