"""Splits a command line into words, redirections, operators and reserved words, as bash does."""

from __future__ import annotations

import re

from toolcrib.approval.shell.braces import expand_braces
from toolcrib.approval.shell.model import MAX_DEPTH, NotUnderstood
from toolcrib.approval.shell.tokens import Budget, Part, Redirection, Script, Token, Word
from toolcrib.approval.shell.words import REDIRECTION, WordLexer

OPERATOR = re.compile(r"\|\||\|&|\||&&|&|;;&|;;|;&|;|\n|\(|\)")
COPROCESS_NAME = re.compile(r"[ \t]+[A-Za-z_]\w*(?=\s+[{(])")
TIME_OPTIONS = re.compile(r"(?:[ \t]+(?:-p|--)(?=[ \t]))*")
END_OF_TEST = re.compile(r"\]\](?=[\s;|&)]|$)")

OPENING = frozenset({"if", "then", "elif", "else", "while", "until", "do", "{"})
CLOSING = frozenset({"fi", "done", "esac", "}"})
NESTING = frozenset({"if", "while", "until", "for", "select", "case", "{", "("})
RESERVED = OPENING | CLOSING | {"for", "select", "case", "function", "time", "coproc", "!", "[["}


def tokenize(source: str) -> Script:
    """The tokens of a whole command line; raises NotUnderstood when it is malformed or beyond the limits."""
    lexer = Lexer(source, Budget())
    return Script(lexer.command_list(closing=""), source, 0, len(source))


class Lexer(WordLexer):
    def command_list(self, closing: str) -> list[Token]:
        self.deeper()
        level = _Level(self, closing)
        while level.step():
            pass
        self.depth -= 1
        return level.tokens


class _Level:
    """One command list being read: where a command word may stand, and which constructs are open."""

    def __init__(self, lexer: Lexer, closing: str) -> None:
        self.lexer = lexer
        self.closing = closing
        self.tokens: list[Token] = []
        self.command_position = True
        self.parentheses = 0
        self.open = 0
        self.cases: list[str] = []
        self.expected = ""

    def step(self) -> bool:
        """Read one token; False at the end of this list."""
        lexer = self.lexer
        lexer.skip_blanks()
        source, at = lexer.source, lexer.position
        if at >= len(source):
            if self.closing or self.open > 0 or self.cases:
                raise NotUnderstood("a parenthesis or a compound command is not closed")
            last = next((token for token in reversed(self.tokens) if token.text != "\n"), None)
            if last is not None and last.kind == "operator" and last.text in ("|", "|&", "||", "&&"):
                raise NotUnderstood(f"nothing follows {last.text!r}")
            lexer.read_heredocs()
            return False
        character = source[at]
        if character == "#":
            lexer.skip_comment()
            return True
        if character in "<>&{0123456789":
            redirection = REDIRECTION.match(source, at)
            if redirection and not self.is_process_substitution(redirection):
                self.redirection(redirection)
                return True
        operator = OPERATOR.match(source, at)
        if operator:
            return self.operator(operator.group())
        self.word()
        return True

    def is_process_substitution(self, match: re.Match[str]) -> bool:
        return match.group() in "<>" and self.lexer.source.startswith("(", match.end())

    def add(self, token: Token) -> None:
        self.lexer.budget.spend()
        self.tokens.append(token)

    def redirection(self, match: re.Match[str]) -> None:
        lexer, operator = self.lexer, match.group(3)
        lexer.position = match.end()
        if operator in ("<<", "<<-"):
            target = lexer.queue_heredoc(strip_tabs=operator == "<<-")
        else:
            lexer.skip_blanks()
            target = lexer.word()
            if target.start == target.end:
                raise NotUnderstood("a redirection has no target")
        redirection = Redirection(operator, match.group(1) or match.group(2) or "", target)
        self.add(Token("redirection", operator, match.start(), lexer.position, redirection=redirection))

    def operator(self, text: str) -> bool:
        lexer, at = self.lexer, self.lexer.position
        in_pattern = bool(self.cases) and self.cases[-1] == "pattern"
        if text == "(" and in_pattern:
            lexer.position += 1
            return True
        if text == ")":
            if in_pattern:
                self.cases[-1] = "body"
            elif self.parentheses:
                self.parentheses -= 1
                self.open -= 1
            elif self.closing:
                lexer.position += 1
                return False
            else:
                raise NotUnderstood("unexpected ')'")
        if text == "(" and self.command_position and self.arithmetic_command():
            return True
        self.check_operator(text, in_pattern)
        lexer.position += len(text)
        if text == "(":
            self.parentheses += 1
            self.nest()
        if text in (";;", ";&", ";;&") and self.cases:
            self.cases[-1] = "pattern"
        self.command_position = True
        self.expected = ""
        self.add(Token("operator", text, at, lexer.position))
        if text == "\n":
            lexer.read_heredocs()
        return True

    def check_operator(self, text: str, in_pattern: bool) -> None:
        """Refuse an operator with nothing in front of it; the parser would take long to recover from many."""
        if text in ("\n", "(", ")") or in_pattern:
            return
        last = self.tokens[-1] if self.tokens else None
        if (
            last is None
            or (last.kind == "operator" and last.text not in (")", "\n"))
            or (last.text == "\n" and text not in (";;", ";&", ";;&") and last.kind == "operator")
        ):
            if text in (";;", ";&", ";;&") and last is not None and last.text in (";", "&"):
                return
            raise NotUnderstood(f"unexpected {text!r}")

    def nest(self) -> None:
        self.open += 1
        if self.open > MAX_DEPTH:
            raise NotUnderstood("the command is nested too deeply")

    def arithmetic_command(self) -> bool:
        lexer, start = self.lexer, self.lexer.position
        if not lexer.source.startswith("((", start):
            return False
        inner = lexer.arithmetic(start + 2)
        if inner is None:
            return False
        inner.parts = [Part("arithmetic", words=[Word(inner.parts, start, lexer.position)])]
        if self.expected == "name":
            self.tokens.append(Token("word", "_", start, start, word=Word([Part("text", "_")], start, start)))
            self.tokens.append(Token("reserved", "in", start, start))
            self.add(Token("word", "", start, lexer.position, word=inner))
            self.expected = ""
        else:
            self.add(Token("test", "((", start, lexer.position, word=inner))
        self.command_position = False
        return True

    def word(self) -> None:
        lexer = self.lexer
        start = lexer.position
        word = lexer.word(argument=not self.command_position)
        if lexer.position == start:
            raise NotUnderstood(f"unexpected {lexer.source[start]!r}")
        literal = word.literal
        if self.expected == "in" and literal in ("in", "do"):
            self.expected = ""
            self.command_position = literal == "do"
            if self.cases and self.cases[-1] == "subject":
                self.cases[-1] = "pattern"
                self.command_position = True
            self.add(Token("reserved", literal, start, lexer.position))
            return
        if self.command_position and not self.expected and literal in RESERVED and self.reserved(literal, start):
            return
        for expanded in expand_braces(word):
            self.add(Token("word", "", expanded.start, expanded.end, word=expanded))
        self.command_position = bool(self.cases) and self.cases[-1] == "pattern"
        self.expected = {"name": "in", "function": "body"}.get(self.expected, "")
        if self.expected == "body":
            self.function_parentheses()

    def function_parentheses(self) -> None:
        """Write `function name {` as `name() {`, so that the grammar sees one form."""
        lexer = self.lexer
        match = re.compile(r"[ \t]*\([ \t]*\)").match(lexer.source, lexer.position)
        if match:
            lexer.position = match.end()
        for text in "()":
            self.tokens.append(Token("operator", text, lexer.position, lexer.position))
        self.command_position = True
        self.expected = ""

    def reserved(self, literal: str, start: int) -> bool:
        """Take a reserved word in command position; False when it turns out to be an ordinary word."""
        lexer = self.lexer
        if self.cases and self.cases[-1] == "pattern" and literal != "esac":
            return False
        if literal == "[[":
            self.test_expression(start)
            return True
        if literal == "!":
            return True
        if literal == "time":
            options = TIME_OPTIONS.match(lexer.source, lexer.position)
            lexer.position = options.end() if options else lexer.position
            return True
        if literal == "coproc":
            name = COPROCESS_NAME.match(lexer.source, lexer.position)
            lexer.position = name.end() if name else lexer.position
            return True
        if literal == "function":
            self.expected = "function"
            self.command_position = False
            return True
        if literal in NESTING:
            self.nest()
        if literal in CLOSING:
            self.open -= 1
            if self.open < 0:
                raise NotUnderstood(f"unexpected {literal!r}")
        if literal == "esac" and self.cases:
            self.cases.pop()
        if literal == "case":
            self.cases.append("subject")
        self.expected = {"for": "name", "select": "name", "case": "name"}.get(literal, "")
        # `for ((` is arithmetic although a name is expected, so the position stays one of a command there.
        self.command_position = literal in OPENING or literal in CLOSING or literal in ("for", "select")
        self.add(Token("reserved", literal, start, lexer.position))
        return True

    def test_expression(self, start: int) -> None:
        """Take `[[ … ]]` as one word that holds the expansions inside it."""
        lexer, parts = self.lexer, list[Part]()
        source = lexer.source
        while True:
            lexer.budget.spend()
            at = lexer.position
            if at >= len(source):
                raise NotUnderstood("a [[ is not closed")
            if source[at] == "]" and source[at - 1].isspace() and END_OF_TEST.match(source, at):
                lexer.position += 2
                break
            if source[at] == '"':
                parts.extend(lexer.double_quoted())
            elif source[at] in "$`'\\":
                parts.append(lexer.part(source[at]))
            else:
                lexer.position += 1
        word = Word([Part("arithmetic", words=[Word(parts, start, lexer.position)])], start, lexer.position)
        self.add(Token("test", "[[", start, lexer.position, word=word))
        self.command_position = False
