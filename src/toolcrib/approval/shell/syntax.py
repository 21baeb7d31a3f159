"""The syntax tree of shell text.

Every node is frozen and has a span: `start` and `end` are positions in the text without line continuations
(`Script.text`). The tree is complete: each word, redirection, subscript, pattern, default value and here-document of
the text is in it, and `walk` visits them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec


class SyntaxNode(msgspec.Struct, frozen=True, gc=False):
    """A node of the tree; nodes never form cycles."""


class LiteralText(SyntaxNode, frozen=True, gc=False):
    """Literal text; `quoted` text is neither split nor matched against file names."""

    text: str
    quoted: bool
    start: int
    end: int


class ParameterExpansion(SyntaxNode, frozen=True, gc=False):
    """`$name` or `${name…}`: `operation` is its operator (`:-`, `#`, `!` …), `argument` the word after it."""

    name: str
    quoted: bool
    start: int
    end: int
    operation: str = ""
    index: Word | None = None
    argument: Word | None = None


class Substitution(SyntaxNode, frozen=True, gc=False):
    """`$(…)` and backticks, or a process that is read (`<(…)`) or written (`>(…)`) like a file."""

    kind: Literal["command", "input", "output"]
    body: CommandList
    quoted: bool
    source: str
    """The text that the spans in `body` point into: the whole text, except for backticks with escapes in them."""
    start: int
    end: int


class Arithmetic(SyntaxNode, frozen=True, gc=False):
    """`$((…))`, `$[…]`, and the expression of `((…))` and `for ((…))`."""

    expression: Word
    quoted: bool
    start: int
    end: int


class ArrayLiteral(SyntaxNode, frozen=True, gc=False):
    """The `(…)` of `name=(…)`."""

    words: tuple[Word, ...]
    start: int
    end: int


class ExtendedGlob(SyntaxNode, frozen=True, gc=False):
    """The `(…)` of `@(…)`, `!(…)` and the like; the sign in front of it ends the literal text before."""

    pattern: Word
    start: int
    end: int


WordPart = LiteralText | ParameterExpansion | Substitution | Arithmetic | ArrayLiteral | ExtendedGlob


class Word(SyntaxNode, frozen=True, gc=False):
    parts: tuple[WordPart, ...]
    start: int
    end: int

    @property
    def literal(self) -> str | None:
        """The text of a word that is one unquoted literal; None for any other."""
        parts = self.parts
        if len(parts) == 1 and type(parts[0]) is LiteralText and not parts[0].quoted:
            return parts[0].text
        return None


class Redirection(SyntaxNode, frozen=True, gc=False):
    """`2>file` and the like. For a here-document, `target` is its body and `delimiter` the word that ends it."""

    operator: str
    descriptor: str
    delimiter: Word | None
    target: Word
    start: int
    end: int


class Assignment(SyntaxNode, frozen=True, gc=False):
    """`name=value`, `name[index]=value` or `name+=value` before a command."""

    name: str
    index: Word | None
    appends: bool
    value: Word
    start: int
    end: int


class SimpleCommand(SyntaxNode, frozen=True, gc=False):
    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirections: tuple[Redirection, ...]
    start: int
    end: int


class PipelineCommand(SyntaxNode, frozen=True, gc=False):
    commands: tuple[Command, ...]
    start: int
    end: int


class AndOrList(SyntaxNode, frozen=True, gc=False):
    """Commands joined by `&&` and `||`: the first always runs, the others may."""

    commands: tuple[Command, ...]
    start: int
    end: int


class CommandList(SyntaxNode, frozen=True, gc=False):
    """Commands that run one after the other; `background` has the indexes of those that end with `&`."""

    commands: tuple[Command, ...]
    background: frozenset[int]
    start: int
    end: int


class GroupCommand(SyntaxNode, frozen=True, gc=False):
    """`{ … }`, `( … )`, or another compound command with redirections; changes in a subshell stay in it."""

    body: Command
    subshell: bool
    redirections: tuple[Redirection, ...]
    start: int
    end: int


class IfClause(SyntaxNode, frozen=True, gc=False):
    """A condition with the commands that run when it holds."""

    condition: CommandList
    body: CommandList
    start: int
    end: int


class IfCommand(SyntaxNode, frozen=True, gc=False):
    clauses: tuple[IfClause, ...]
    otherwise: CommandList | None
    start: int
    end: int


class CaseItem(SyntaxNode, frozen=True, gc=False):
    patterns: tuple[Word, ...]
    body: CommandList
    start: int
    end: int


class CaseCommand(SyntaxNode, frozen=True, gc=False):
    subject: Word
    items: tuple[CaseItem, ...]
    start: int
    end: int


class LoopCommand(SyntaxNode, frozen=True, gc=False):
    """`for`, `select`, `while` or `until`; `condition` is set for the last two, `counter` for `for ((…))`."""

    variable: Word | None
    values: tuple[Word, ...] | None
    counter: Arithmetic | None
    condition: CommandList | None
    body: Command
    start: int
    end: int


class FunctionDefinition(SyntaxNode, frozen=True, gc=False):
    name: Word
    body: Command
    start: int
    end: int


class ConditionalCommand(SyntaxNode, frozen=True, gc=False):
    """`[[ … ]]` with its operands and operators as words."""

    words: tuple[Word, ...]
    start: int
    end: int


class ArithmeticCommand(SyntaxNode, frozen=True, gc=False):
    """`((…))`."""

    arithmetic: Arithmetic
    start: int
    end: int


Command = (
    SimpleCommand
    | PipelineCommand
    | AndOrList
    | CommandList
    | GroupCommand
    | IfCommand
    | CaseCommand
    | LoopCommand
    | FunctionDefinition
    | ConditionalCommand
    | ArithmeticCommand
)


class Script(SyntaxNode, frozen=True, gc=False):
    """A whole text, parsed once.

    With an `error` the text is malformed or beyond the limits, and `body` has only the commands before that: a
    shell reads a script line by line, so some of them may still run.
    """

    source: str
    """The text as it was given."""
    text: str
    """The text without line continuations, which the spans of the tree point into."""
    body: CommandList
    error: str = ""
    dynamic: tuple[SyntaxNode, ...] = ()
    """Every substitution, arithmetic expression and here-document in the tree; the evaluator comes across each."""


def walk(node: SyntaxNode) -> Iterator[SyntaxNode]:
    """The node and everything below it, in the order of the text."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        below: list[SyntaxNode] = []
        for name in current.__struct_fields__:
            value = getattr(current, name)
            if isinstance(value, SyntaxNode):
                below.append(value)
            elif isinstance(value, tuple) and name != "dynamic":
                below.extend(value)
        pending.extend(reversed(below))


class CommandParser(Protocol):
    """What the lexer asks of the parser that uses it."""

    def commands(self, closing: str) -> CommandList:
        """Parse from the lexer's position up to `closing`, or to the lexer's end."""

    def nested(self, text: str) -> tuple[CommandList, str]:
        """Parse another text on the same budget; also gives the text that its spans point into."""
