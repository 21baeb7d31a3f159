"""The pieces that the lexer makes of a command line: words with their parts, redirections, operators."""

from __future__ import annotations

from typing import Literal

import msgspec

from toolcrib.approval.shell.model import MAX_HEREDOCS, MAX_TOKENS, NotUnderstood


class Part(msgspec.Struct):
    """A piece of a word: literal text, a `${…}`, a nested script, arithmetic or an array of words."""

    kind: Literal["text", "variable", "command", "process", "arithmetic", "array"]
    text: str = ""
    quoted: bool = False
    operation: str = ""
    index: str = ""
    words: list[Word] = msgspec.field(default_factory=list)
    script: Script | None = None


class Word(msgspec.Struct):
    parts: list[Part]
    start: int
    end: int

    @property
    def literal(self) -> str | None:
        """The text of a word that is one unquoted literal; None for any other."""
        if len(self.parts) == 1 and self.parts[0].kind == "text" and not self.parts[0].quoted:
            return self.parts[0].text
        return None


class Redirection(msgspec.Struct):
    operator: str
    descriptor: str
    target: Word


class Token(msgspec.Struct):
    kind: Literal["word", "redirection", "operator", "reserved", "test"]
    text: str
    start: int
    end: int
    word: Word | None = None
    redirection: Redirection | None = None


class Script(msgspec.Struct):
    """The tokens of one command list; `source` is the text that their positions point into."""

    tokens: list[Token]
    source: str
    start: int = 0
    end: int = 0


class Budget(msgspec.Struct):
    tokens: int = MAX_TOKENS
    heredocs: int = MAX_HEREDOCS

    def spend(self) -> None:
        self.tokens -= 1
        if self.tokens < 0:
            raise NotUnderstood("the command is too long to be read in full")
