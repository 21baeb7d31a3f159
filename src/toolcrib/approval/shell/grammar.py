"""Builds the syntax tree of a command line: tree-sitter parses its structure, the lexer has read its words.

tree-sitter-bash misreads many words in silence (`rm$IFS-rf`, `{rm,-rf,/}`, `time { …; }`, `cat <<A <<B`), so it never
sees them: each word becomes a numbered name and only the operators and reserved words stay. An error node means
NotUnderstood.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from toolcrib.approval.shell.model import MAX_SKELETON_BYTES, NotUnderstood
from toolcrib.approval.shell.tokens import Redirection, Script, Token, Word

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Tree

_SPELLED = {"|&": "|", ";&": ";;", ";;&": ";;", "select": "for", "until": "while"}
_ENDS_COMPOUND = frozenset({")", "}", "fi", "done", "esac"})


class Simple(msgspec.Struct):
    """One simple command: its words, with assignments in front, and its redirections."""

    words: list[Word]
    redirections: list[Redirection]
    start: int
    end: int


class Pipeline(msgspec.Struct):
    commands: list[Command]


class AndOr(msgspec.Struct):
    """Commands joined by `&&` and `||`: the first always runs, the others may."""

    commands: list[Command]


class Sequence(msgspec.Struct):
    commands: list[Command]
    background: set[int] = msgspec.field(default_factory=set)


class Group(msgspec.Struct):
    """A compound command with its redirections; a subshell keeps its changes to itself."""

    body: Command
    subshell: bool
    redirections: list[Redirection]


class Branches(msgspec.Struct):
    """Alternatives after something that always runs: `if`, `case`."""

    always: Command | None
    subject: Word | None
    alternatives: list[Command]


class Loop(msgspec.Struct):
    variable: Word | None
    values: list[Word] | None
    condition: Command | None
    body: Command


class Function(msgspec.Struct):
    name: Word
    body: Command


Command = Simple | Pipeline | AndOr | Sequence | Group | Branches | Loop | Function


@cache
def _load() -> Callable[[bytes], Tree]:
    # Loading the parser costs 10 ms and 3 MB, which a process that never judges a command should not pay.
    import tree_sitter_bash  # noqa: PLC0415
    from tree_sitter import Language, Parser  # noqa: PLC0415

    language = Language(tree_sitter_bash.language())

    def parse(text: bytes) -> Tree:
        # A parser holds state while it runs, so threads do not share one; making it costs two microseconds.
        parser: Parser = Parser(language)
        return parser.parse(text)

    return parse


def parse(script: Script) -> Command:
    """The tree of a script; raises NotUnderstood when it is malformed or no parser can be loaded."""
    tokens = script.tokens
    skeleton, offsets = _skeleton(tokens)
    if len(skeleton) > MAX_SKELETON_BYTES:
        raise NotUnderstood("the command is too long to be read in full")
    try:
        tree = _load()(skeleton.encode())
    except (ImportError, OSError) as error:
        raise NotUnderstood(f"the shell parser cannot be loaded: {error}") from error
    root = tree.root_node
    if root.has_error:
        raise NotUnderstood("the command is not valid shell syntax")
    return _Builder(script, offsets).sequence(root.children)


def _skeleton(tokens: list[Token]) -> tuple[str, list[int]]:
    """The structure as text, and the offset at which each token starts in it."""
    pieces: list[str] = []
    offsets: list[int] = []
    length = 0
    after_compound = False
    for number, token in enumerate(tokens):
        if token.kind in ("word", "test"):
            text = f"w{number} "
            after_compound = False
        elif token.kind == "redirection":
            # Among words a redirection is one more word; only behind a compound command the grammar must see it.
            text = f">r{number} " if after_compound else f"r{number} "
        else:
            text = _SPELLED.get(token.text, token.text)
            text = text if text == "\n" else text + " "
            after_compound = token.text in _ENDS_COMPOUND
        offsets.append(length)
        pieces.append(text)
        length += len(text)
    return "".join(pieces), offsets


class _Builder:
    def __init__(self, script: Script, offsets: list[int]) -> None:
        self.script = script
        self.offsets = offsets

    def tokens(self, node: Node) -> list[Token]:
        first = bisect_left(self.offsets, node.start_byte)
        return self.script.tokens[first : bisect_left(self.offsets, node.end_byte)]

    def word(self, node: Node) -> Word:
        word = self.tokens(node)[0].word
        if word is None:
            raise NotUnderstood("a reserved word stands where a name is expected")
        return word

    def sequence(self, nodes: list[Node]) -> Sequence:
        """The statements among some nodes, with the numbers of those that `&` sends to the background."""
        result = Sequence([])
        for node in nodes:
            if node.type == "&":
                result.background.add(len(result.commands) - 1)
            elif node.is_named:
                result.commands.append(self.command(node))
        return result

    def command(self, node: Node) -> Command:
        kind = node.type
        if kind == "command":
            return self.simple(self.tokens(node))
        if kind == "pipeline":
            return Pipeline([self.command(child) for child in node.children if child.is_named])
        if kind == "list":
            return self.and_or(node)
        if kind == "redirected_statement":
            return self.redirected(node)
        if kind in ("subshell", "compound_statement", "do_group"):
            return Group(self.sequence(node.children), kind == "subshell", [])
        if kind in ("if_statement", "elif_clause"):
            return self.conditional(node)
        if kind == "else_clause":
            return self.sequence(node.children)
        if kind == "case_statement":
            items = [child for child in node.children if child.type == "case_item"]
            subject = node.child_by_field_name("value")
            return Branches(None, self.word(subject) if subject else None, [self.case_item(item) for item in items])
        if kind in ("for_statement", "while_statement"):
            return self.loop(node)
        if kind == "function_definition":
            return self.function(node)
        raise NotUnderstood(f"the shell construct {kind!r} is not known")

    def simple(self, tokens: list[Token]) -> Simple:
        words = [token.word for token in tokens if token.word is not None]
        redirections = [token.redirection for token in tokens if token.redirection is not None]
        return Simple(words, redirections, tokens[0].start, tokens[-1].end)

    def and_or(self, node: Node) -> Command:
        """A chain flattened from the left, because thousands of `&&` nest as deep as they are many."""
        commands: list[Command] = []
        while node.type == "list":
            left, right = node.children[0], node.children[-1]
            commands.append(self.command(right))
            node = left
        commands.append(self.command(node))
        return AndOr(commands[::-1])

    def redirected(self, node: Node) -> Command:
        body = node.child_by_field_name("body")
        redirections = [
            token.redirection
            for child in node.children_by_field_name("redirect")
            for token in self.tokens(child)
            if token.redirection is not None
        ]
        if body is None:
            raise NotUnderstood("a redirection stands alone where a command is expected")
        return Group(self.command(body), False, redirections)

    def conditional(self, node: Node) -> Command:
        then = next((i for i, child in enumerate(node.children) if child.type == "then"), 0)
        clauses = ("elif_clause", "else_clause")
        branch = [child for child in node.children[then:] if child.type not in clauses]
        others = [self.command(child) for child in node.children if child.type in clauses]
        return Branches(self.sequence(node.children[:then]), None, [self.sequence(branch), *others])

    def case_item(self, node: Node) -> Command:
        closing = next((i for i, child in enumerate(node.children) if child.type == ")"), -1)
        return self.sequence(node.children[closing + 1 :])

    def loop(self, node: Node) -> Command:
        body = node.child_by_field_name("body")
        if body is None:
            raise NotUnderstood("a loop has no body")
        if node.type == "while_statement":
            nodes = [child for child in node.children if child != body]
            return Loop(None, None, self.sequence(nodes), self.command(body))
        variable = node.child_by_field_name("variable")
        values = [self.word(child) for child in node.children_by_field_name("value")]
        has_values = any(child.type == "in" for child in node.children)
        return Loop(self.word(variable) if variable else None, values if has_values else None, None, self.command(body))

    def function(self, node: Node) -> Command:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            raise NotUnderstood("a function cannot be read")
        return Function(self.word(name), self.command(body))
