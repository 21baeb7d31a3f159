"""Where values come from: the levels, the declarations of tools, and what provenance found out about one value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import msgspec

OriginLevel = Literal["person", "trusted", "untrusted", "derived"]
"""`person`: a person typed it. `trusted`: from a source that no stranger can write to. `untrusted`: strangers may have
written it. `derived`: computed from the arguments of the call, so it says nothing by itself."""

OriginDeclaration = OriginLevel | Literal[""] | Mapping[str, OriginLevel]
"""One level for a whole result, or levels by JSON pointer into it; empty means that nothing is declared.

A pointer covers everything below it, and the most specific one wins. `*` stands for any one key or index, `**` for any
number of them; the pointer `""` is the whole result.
"""

DelicateRole = Literal["destination", "record", "amount", "path", "date", "content", "value"]
"""What an argument decides: where something goes, which existing record changes, how much, which file, when, the text
that is sent, or any other value."""

ORIGIN_LEVELS: tuple[str, ...] = get_args(OriginLevel)
DELICATE_ROLES: tuple[str, ...] = get_args(DelicateRole)


class ValueOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a value comes from."""

    level: OriginLevel
    source: str = ""
    """The tool whose result contained it; empty for a person's words."""
    call_id: str = ""
    pointer: str = ""
    """Where in the result it was found, as a JSON pointer; empty for plain text."""
    about: str = ""
    """What the tool was asked for, such as the address of a page; empty if it takes no text."""

    def __str__(self) -> str:
        if self.level == "person":
            return "the user's words"
        call = f" (call {self.call_id})" if self.call_id else ""
        field = f", field {self.pointer}" if self.pointer else ""
        about = f" for {self.about!r}" if self.about else ""
        return f"the result of {self.source or 'a tool'}{about}{call}{field}"


class ValueFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What provenance found out about one delicate value of a call."""

    pointer: str
    """The argument, as a JSON pointer."""
    role: DelicateRole
    value: str
    vouched: bool
    """Whether the value may be used without asking."""
    reason: str
    """One clause: where the value comes from, or why nothing vouches for it."""
    origin: ValueOrigin | None = None
    """Where it was found; None if nowhere."""

    def __str__(self) -> str:
        return f"the {self.role} {self.value!r} ({self.pointer}) {self.reason}"


class ResultSource(msgspec.Struct, frozen=True, kw_only=True):
    """One result that values may come from."""

    number: int
    """Its place among the results of the session."""
    question: int
    """The question that it was read for."""
    tool: str
    call_id: str
    content: str | dict[str, Any]
    arguments: Mapping[str, Any]
    origin: OriginDeclaration


class ValueSources(Protocol):
    """What a session has heard and read so far."""

    question: int
    """The number of the current question."""
    is_incomplete: bool

    @property
    def words(self) -> Sequence[tuple[int, str]]:
        """The person's words, each with the number of its question."""
        ...

    @property
    def results(self) -> Iterable[ResultSource]: ...


def is_origin(declared: object) -> bool:
    """Whether this is a valid declaration."""
    if isinstance(declared, Mapping):
        return all(is_pointer(pointer) and level in ORIGIN_LEVELS for pointer, level in declared.items())
    return declared == "" or declared in ORIGIN_LEVELS


def is_pointer(pointer: object) -> bool:
    """Whether this is a JSON pointer: empty, or starting with a slash."""
    return isinstance(pointer, str) and (not pointer or pointer.startswith("/"))
