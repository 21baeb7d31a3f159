"""The values that the shell analyser works with: words, data on pipes, and limits."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["ask", "block"]
VerdictName = Literal["safe", "ask", "block"]

UNKNOWN = "\ufdd0"
"""A placeholder in words for text that only the running shell knows. U+FDD0 never occurs in real text."""

MAX_TOKENS = 14_000
"""Words and parts of words in one text."""
MAX_DEPTH = 40
"""How deep quotes, substitutions and compound commands may nest."""
MAX_STEPS = 2_000
"""Work on one command line; a step takes about 50 microseconds."""
MAX_HEREDOCS = 200
MAX_PATH = 4096
"""No file system allows longer paths; only the end of one is analysed."""
MAX_BRACE_WORDS = 64
MAX_DATA_CHARS = 200_000


def name_set(names: str) -> frozenset[str]:
    """A set of names written in one string, separated by blanks."""
    return frozenset(names.split())


class Origin:
    """Where data came from, as far as that matters for the verdict: bits of a plain number, which is quick to join."""

    NONE = 0
    NETWORK = 1
    SECRET = 2
    DECODED = 4
    PROGRAM = 8
    FILE = 16
    SETUP = 32
    SHELL = 64
    PRIVATE = 128
    ENDLESS = 256
    LISTED = 512
    """One of many things that another command found."""
    ONE = 1024
    """One thing or a few, even if little else is known: a fresh file name, the newest of a list."""
    KEY = 2048
    """The value of a variable that is named like a key or a password."""
    SECRET_FILE = 4096
    """The name of a file that may be a secret."""
    PROTECTED_FILE = 8192
    """The name of a file that may be protected from tools."""
    ARCHIVE = 16384
    """Many files in one stream."""
    MACHINE = 32768
    """What programs tell about this machine: its processes, connections, users."""
    PERSONAL = 65536
    """A file of the user that does not belong to the workspace."""
    DATABASE = 131072
    """A database, or a dump of one, by the name of its file."""


class ExpandedWord(msgspec.Struct, frozen=True):
    """One word of an argument list after expansion; `text` contains UNKNOWN where a part cannot be known."""

    text: str
    glob: bool = False
    origin: int = 0
    keys: tuple[str, ...] = ()
    """The variables with keys or passwords that are part of the text."""

    @property
    def known(self) -> bool:
        return UNKNOWN not in self.text

    @property
    def is_number(self) -> bool:
        return self.text.isdecimal()

    def with_text(self, text: str) -> ExpandedWord:
        return ExpandedWord(text, self.glob, self.origin, self.keys)


class StreamData(msgspec.Struct, frozen=True):
    """What flows through a pipe or out of a substitution: its text if known, and its origins."""

    text: str | None = None
    origin: int = 0

    @staticmethod
    def join(parts: list[StreamData]) -> StreamData:
        if len(parts) == 1:
            return parts[0]
        origin = 0
        for part in parts:
            origin |= part.origin
        if any(part.text is None for part in parts) or sum(len(part.text or "") for part in parts) > MAX_DATA_CHARS:
            return StreamData(None, origin)
        return StreamData("".join(part.text or "" for part in parts), origin)


NOTHING = StreamData("")
ANYTHING = StreamData(None)


class NotUnderstood(Exception):
    """The analyser cannot read the command line; the text tells the user why."""
