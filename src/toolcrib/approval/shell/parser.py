"""Parses shell text into a syntax tree, as bash does.

`parse` is pure: it knows no folder, environment or settings, so everything that inspects a command can share one tree.
What bash refuses is not understood here either, except that extended globs count without `shopt -s extglob` and that
some conditions between `[[` and `]]` are not looked at closely: there we only read more than bash would run. The other
way round, what bash refuses no sooner than at run time is not understood: a malformed `${…}` ("bad substitution"), and
malformed text in backticks or here-documents.
"""

from __future__ import annotations

import re

from toolcrib.approval.shell.lexer import IN_HEREDOC, PARENTHESES, PLAIN_WORD, Lexer
from toolcrib.approval.shell.model import MAX_TOKENS, NotUnderstood
from toolcrib.approval.shell.source_text import Budget
from toolcrib.approval.shell.syntax import (
    AndOrList,
    Arithmetic,
    ArithmeticCommand,
    Assignment,
    CaseCommand,
    CaseItem,
    Command,
    CommandList,
    ConditionalCommand,
    FunctionDefinition,
    GroupCommand,
    IfClause,
    IfCommand,
    LiteralText,
    LoopCommand,
    PipelineCommand,
    Redirection,
    Script,
    SimpleCommand,
    Word,
)

_END = r"(?=[ \t\n;|&()]|[<>](?!\()|\Z)"
_RESERVED = (
    r"(?:if|then|elif|else|fi|while|until|do|done|for|select|case|esac|function|time|coproc|in|[{}!]|\[\[|\]\])" + _END
)
RESERVED = re.compile(_RESERVED)
RESERVED_FIRST = frozenset("itefwuds{}![]c")
MISPLACED = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "in", "}", "]]"})
WORD_IN = re.compile("in" + _END)
TIME_OPTION = re.compile("(?:-p|--)" + _END)
COPROCESS_NAME = re.compile(r"[^ \t\n;|&()<>$`\"'\\]+(?=[ \t]+(?:\(|" + _RESERVED + "))")
CASE_END = re.compile(r";;&|;;|;&")
UNARY_TEST = re.compile(r"-[abcdefghknoprstuvwxzGLNORS]")
ASSIGNING = frozenset({"alias", "declare", "eval", "export", "let", "local", "readonly", "typeset"})
"""Commands whose arguments may be arrays."""
BINARY_TEST = re.compile(r"(?:=~|==?|!=|-(?:eq|ne|lt|le|gt|ge|nt|ot|ef))(?=[ \t\n])|[<>]")
END_OF_TEST = re.compile(r"\]\]" + _END)
ENDS_WORDS = frozenset(("", *"\n;|&()"))
REDIRECTS = frozenset("<>&{0123456789")
NONE_IN_BACKGROUND: frozenset[int] = frozenset()

Closers = frozenset[str]
TO_END: Closers = frozenset()
TO_PARENTHESIS = frozenset({")"})
TO_THEN = frozenset({"then"})
TO_ELSE = frozenset({"elif", "else", "fi"})
TO_FI = frozenset({"fi"})
TO_DO = frozenset({"do"})
TO_DONE = frozenset({"done"})
TO_BRACE = frozenset({"}"})
TO_CASE_END = frozenset({";;", "esac"})


def parse(text: str, *, max_tokens: int = MAX_TOKENS) -> Script:
    """The syntax tree of a text; `Script.error` says why when it is malformed or beyond the limits."""
    return Parser(text, Budget(tokens=max_tokens)).script()


def parse_quoted(text: str) -> Word:
    """A text that the shell expands like the inside of double quotes; a double quote in it is literal."""
    lexer = Parser(text, Budget()).lexer
    return Word(tuple(lexer.quoted_parts(IN_HEREDOC, "")), 0, lexer.end)


def split_words(text: str) -> tuple[Word, ...] | None:
    """The words of a text that contains only words; None for any other text."""
    lexer, words = Parser(text, Budget()).lexer, list[Word]()
    try:
        while lexer.peek():
            words.append(lexer.word())
            if words[-1].start == words[-1].end:
                return None
    except NotUnderstood:
        return None
    return tuple(words)


class Parser:
    """One pass over one text."""

    def __init__(self, text: str, budget: Budget) -> None:
        self.lexer = Lexer(text, budget, self)
        self.budget = budget
        self.complete: list[Command] = []
        """The commands of the outermost list so far."""

    def script(self) -> Script:
        lexer, error = self.lexer, ""
        try:
            body = self.command_list(TO_END)
        except NotUnderstood as reason:
            error = str(reason)
            body = CommandList(tuple(self.complete), NONE_IN_BACKGROUND, 0, lexer.position)
        return Script(lexer.original, lexer.source, body, error, tuple(self.budget.dynamic))

    # What the lexer needs

    def commands(self, closing: str) -> CommandList:
        return self.command_list(TO_PARENTHESIS if closing else TO_END)

    def nested(self, text: str) -> tuple[CommandList, str]:
        inner = Parser(text, self.budget)
        return inner.command_list(TO_END), inner.lexer.source

    # Lists

    def command_list(self, closers: Closers, *, may_be_empty: bool = True) -> CommandList:
        """The commands up to one of the closers, which is not consumed, or to the end if there are no closers."""
        lexer, budget = self.lexer, self.budget
        budget.enter()
        commands: list[Command] = self.complete if budget.depth == 1 else []
        background: list[int] = []
        lexer.skip_newlines()
        start = lexer.position
        while not self.is_closed(closers):
            commands.append(self.and_or())
            character = lexer.peek()
            if character == "&":
                background.append(len(commands) - 1)
                lexer.position += 1
            elif character == ";" and not CASE_END.match(lexer.source, lexer.position, lexer.end):
                lexer.position += 1
            elif character != "\n":
                if not self.is_closed(closers):
                    raise self.unexpected()
                break
            lexer.skip_newlines()
        if not commands and not may_be_empty:
            raise self.unexpected()
        budget.leave()
        numbers = frozenset(background) if background else NONE_IN_BACKGROUND
        return CommandList(tuple(commands), numbers, start, lexer.position)

    def is_closed(self, closers: Closers) -> bool:
        """True at a closer of this list; a closer of some other list is an error."""
        lexer = self.lexer
        if lexer.position >= lexer.end:
            if closers:
                raise NotUnderstood("a parenthesis or a compound command is not closed")
            if lexer.heredocs:
                lexer.read_heredocs()
            return True
        character = lexer.source[lexer.position]
        if character == ")":
            closer = ")"
        elif character == ";":
            closer = ";;" if CASE_END.match(lexer.source, lexer.position, lexer.end) else ";"
        elif character in RESERVED_FIRST:
            closer = self.reserved()
            if closer not in MISPLACED:
                return False
        else:
            return False
        if closer not in closers:
            raise self.unexpected()
        return True

    def reserved(self) -> str:
        """The reserved word at this position, or ""."""
        match = RESERVED.match(self.lexer.source, self.lexer.position, self.lexer.end)
        return match[0] if match else ""

    def unexpected(self) -> NotUnderstood:
        lexer = self.lexer
        character = lexer.peek()
        found = self.reserved() or character
        return NotUnderstood(f"unexpected {found!r}" if found else "the command ends too early")

    def and_or(self) -> Command:
        """Pipelines joined by `&&` and `||`."""
        lexer = self.lexer
        source, start = lexer.source, lexer.position
        chain: list[Command] = []
        while True:
            chain.append(self.pipeline())
            if not source.startswith(("&&", "||"), lexer.position):
                break
            lexer.position += 2
            lexer.skip_newlines()
        return chain[0] if len(chain) == 1 else AndOrList(tuple(chain), start, lexer.position)

    def pipeline(self) -> Command:
        lexer = self.lexer
        source, start = lexer.source, lexer.position
        commands: list[Command] = []
        while True:
            commands.append(self.command())
            if lexer.peek() != "|" or source.startswith("||", lexer.position):
                break
            lexer.position += 2 if source.startswith("|&", lexer.position) else 1
            refused = ("!", "time") if lexer.peek() == "\n" else ("!",)
            lexer.skip_newlines()
            if self.reserved() in refused:
                raise self.unexpected()
        return commands[0] if len(commands) == 1 else PipelineCommand(tuple(commands), start, lexer.position)

    # Commands

    def command(self) -> Command:
        lexer = self.lexer
        if lexer.position >= lexer.end:
            raise self.unexpected()
        character = lexer.source[lexer.position]
        if character not in RESERVED_FIRST and character != "(":
            return self.simple()
        word = self.reserved()
        if word in MISPLACED:
            raise self.unexpected()
        if word in ("!", "time"):
            return self.prefixed(word)
        if word == "coproc":
            return self.coprocess()
        if word == "function":
            return self.function()
        return self.compound(word) or self.simple()

    def prefixed(self, word: str) -> Command:
        """The command after any `!` and `time`, which may also stand alone."""
        lexer = self.lexer
        start = lexer.position
        while word in ("!", "time"):
            self.budget.spend()
            lexer.position += len(word)
            character = lexer.peek()
            while word == "time" and (option := TIME_OPTION.match(lexer.source, lexer.position, lexer.end)):
                lexer.position = option.end()
                character = lexer.peek()
            if character in ENDS_WORDS and character not in ("(", "|", "&"):
                return SimpleCommand((), (), (), start, lexer.position)
            word = self.reserved()
        return self.command()

    def coprocess(self) -> Command:
        lexer = self.lexer
        lexer.position += len("coproc")
        lexer.peek()
        word = self.reserved()
        name = None if word else COPROCESS_NAME.match(lexer.source, lexer.position, lexer.end)
        if name:
            lexer.position = name.end()
            lexer.peek()
            word = self.reserved()
        if word in MISPLACED:
            raise self.unexpected()
        return self.compound(word) or self.simple()

    def compound(self, word: str) -> Command | None:
        """The compound command that a reserved word or a parenthesis begins, with the redirections after it."""
        lexer = self.lexer
        start = lexer.position
        command: Command
        if word == "{":
            command = self.group(TO_BRACE, subshell=False)
        elif not word and lexer.source.startswith("(", start) and start < lexer.end:
            command = self.arithmetic_command() or self.group(TO_PARENTHESIS, subshell=True)
        elif word == "if":
            command = self.conditional()
        elif word in ("while", "until"):
            command = self.loop(len(word))
        elif word in ("for", "select"):
            command = self.counted_loop(len(word))
        elif word == "case":
            command = self.case()
        elif word == "[[":
            command = self.test()
        else:
            return None
        redirections: list[Redirection] = []
        while lexer.peek() in REDIRECTS:
            redirection = lexer.redirection()
            if redirection is None:
                break
            redirections.append(redirection)
        if not redirections:
            return command
        return GroupCommand(command, False, tuple(redirections), start, redirections[-1].end)

    def group(self, closers: Closers, *, subshell: bool) -> GroupCommand:
        lexer = self.lexer
        start = lexer.position
        lexer.position += 1
        body = self.command_list(closers, may_be_empty=False)
        lexer.position += 1
        return GroupCommand(body, subshell, (), start, lexer.position)

    def arithmetic_command(self) -> ArithmeticCommand | None:
        arithmetic = self.double_parentheses()
        return None if arithmetic is None else ArithmeticCommand(arithmetic, arithmetic.start, arithmetic.end)

    def double_parentheses(self) -> Arithmetic | None:
        lexer, start = self.lexer, self.lexer.position
        if not lexer.source.startswith("((", start) or start in lexer.not_arithmetic:
            return None
        return lexer.arithmetic(start, start + 2, quoted=False)

    def conditional(self) -> IfCommand:
        lexer = self.lexer
        start, clauses, otherwise, word = lexer.position, list[IfClause](), None, "if"
        while word in ("if", "elif"):
            at = lexer.position
            lexer.position += len(word)
            condition = self.command_list(TO_THEN, may_be_empty=False)
            lexer.position += len("then")
            body = self.command_list(TO_ELSE, may_be_empty=False)
            clauses.append(IfClause(condition, body, at, lexer.position))
            word = self.reserved()
        if word == "else":
            lexer.position += len("else")
            otherwise = self.command_list(TO_FI, may_be_empty=False)
        lexer.position += len("fi")
        return IfCommand(tuple(clauses), otherwise, start, lexer.position)

    def loop(self, length: int) -> LoopCommand:
        """`while` or `until`."""
        lexer = self.lexer
        start = lexer.position
        lexer.position += length
        condition = self.command_list(TO_DO, may_be_empty=False)
        body = self.loop_body()
        return LoopCommand(None, None, None, condition, body, start, lexer.position)

    def counted_loop(self, length: int) -> LoopCommand:
        """`for` or `select`."""
        lexer = self.lexer
        start, variable, values = lexer.position, None, None
        lexer.position += length
        lexer.peek()
        counter = self.double_parentheses() if length == len("for") else None
        if counter is not None:
            if lexer.peek() == ";":
                lexer.position += 1
        else:
            variable = self.required_word()
            is_separated = lexer.peek() == "\n"
            lexer.skip_newlines()
            if WORD_IN.match(lexer.source, lexer.position, lexer.end):
                lexer.position += len("in")
                values = self.loop_values()
            elif lexer.peek() == ";":
                lexer.position += 1
            elif not is_separated and self.reserved() != "do":
                raise self.unexpected()
        lexer.skip_newlines()
        body = self.loop_body()
        return LoopCommand(variable, values, counter, None, body, start, lexer.position)

    def loop_values(self) -> tuple[Word, ...]:
        lexer, values = self.lexer, list[Word]()
        while lexer.peek() not in ENDS_WORDS:
            values.append(self.required_word())
        if lexer.peek() == ";":
            lexer.position += 1
        elif lexer.peek() != "\n":
            raise self.unexpected()
        return tuple(values)

    def loop_body(self) -> Command:
        lexer = self.lexer
        word = self.reserved()
        if word == "{":
            return self.group(TO_BRACE, subshell=False)
        if word != "do":
            raise self.unexpected()
        lexer.position += len("do")
        body = self.command_list(TO_DONE, may_be_empty=False)
        lexer.position += len("done")
        return body

    def required_word(self) -> Word:
        word = self.lexer.word()
        if word.start == word.end:
            raise self.unexpected()
        return word

    def case(self) -> CaseCommand:
        lexer = self.lexer
        start, items = lexer.position, list[CaseItem]()
        lexer.position += len("case")
        lexer.peek()
        subject = self.required_word()
        lexer.skip_newlines()
        if not WORD_IN.match(lexer.source, lexer.position, lexer.end):
            raise self.unexpected()
        lexer.position += len("in")
        lexer.skip_newlines()
        while self.reserved() != "esac":
            at = lexer.position
            patterns = self.case_patterns()
            body = self.command_list(TO_CASE_END)
            items.append(CaseItem(patterns, body, at, lexer.position))
            end = CASE_END.match(lexer.source, lexer.position, lexer.end)
            if end:
                lexer.position = end.end()
                lexer.skip_newlines()
        lexer.position += len("esac")
        return CaseCommand(subject, tuple(items), start, lexer.position)

    def case_patterns(self) -> tuple[Word, ...]:
        lexer, patterns = self.lexer, list[Word]()
        if lexer.peek() == "(":
            lexer.position += 1
            lexer.peek()
        while True:
            patterns.append(self.required_word())
            character = lexer.peek()
            if character not in ("|", ")"):
                raise self.unexpected()
            lexer.position += 1
            if character == ")":
                return tuple(patterns)
            lexer.peek()

    def function(self) -> FunctionDefinition:
        """`function name`, with or without parentheses."""
        lexer = self.lexer
        start = lexer.position
        lexer.position += len("function")
        lexer.peek()
        name = lexer.word(may_be_function=True)
        if name.start == name.end:
            raise self.unexpected()
        lexer.peek()
        return self.function_body(name, start)

    def function_body(self, name: Word, start: int) -> FunctionDefinition:
        lexer = self.lexer
        parentheses = PARENTHESES.match(lexer.source, lexer.position, lexer.end)
        if parentheses:
            lexer.position = parentheses.end()
        lexer.skip_newlines()
        body = self.compound(self.reserved())
        if body is None:
            raise self.unexpected()
        return FunctionDefinition(name, body, start, lexer.position)

    def simple(self) -> Command:
        lexer, budget = self.lexer, self.budget
        source, end, start = lexer.source, lexer.end, lexer.position
        assignments: list[Assignment] = []
        words: list[Word] = []
        redirections: list[Redirection] = []
        last = start
        while True:
            at = lexer.position
            plain = PLAIN_WORD.match(source, at, end)
            if plain and (words or "=" not in plain[1]):
                budget.spend()
                last = plain.end(1)
                words.append(Word((LiteralText(plain[1], False, at, last),), at, last))
                lexer.position = plain.end()
                continue
            character = lexer.peek()
            redirection = lexer.redirection() if character in REDIRECTS else None
            if redirection is not None:
                redirections.append(redirection)
                last = redirection.end
            elif character in ENDS_WORDS:
                break
            elif not words:
                first = lexer.assignment() or lexer.word(may_be_function=True)
                last = first.end
                if isinstance(first, Assignment):
                    assignments.append(first)
                elif first.start == last:
                    raise self.unexpected()
                else:
                    words.append(first)
            else:
                word = lexer.word(arrays=words[0].literal in ASSIGNING)
                words.append(word)
                last = word.end
                if word.start == last:
                    raise self.unexpected()
        if last == start:
            raise self.unexpected()
        if character == "(":
            is_name = len(words) == 1 and not redirections and not assignments
            if is_name and PARENTHESES.match(source, lexer.position, end):
                return self.function_body(words[0], start)
            raise self.unexpected()
        return SimpleCommand(tuple(assignments), tuple(words), tuple(redirections), start, last)

    # [[ … ]]

    def test(self) -> ConditionalCommand:
        lexer = self.lexer
        source, end, start = lexer.source, lexer.end, lexer.position
        lexer.position += len("[[")
        words: list[Word] = []
        parentheses, expects_term = 0, True
        while True:
            lexer.skip_newlines()
            at = lexer.position
            if at >= end:
                raise NotUnderstood("a [[ is not closed")
            if expects_term and (words or parentheses or not END_OF_TEST.match(source, at, end)):
                if self.reserved() == "!":
                    lexer.position += 1
                elif source[at] == "(":
                    lexer.position += 1
                    parentheses += 1
                else:
                    self.test_term(words)
                    expects_term = False
            elif source[at] == ")" and parentheses:
                lexer.position += 1
                parentheses -= 1
            elif source.startswith(("&&", "||"), at):
                lexer.position += 2
                expects_term = True
            elif not parentheses and END_OF_TEST.match(source, at, end):
                lexer.position += len("]]")
                return ConditionalCommand(tuple(words), start, lexer.position)
            else:
                raise self.unexpected()

    def test_term(self, words: list[Word]) -> None:
        """One operand, or an operator with its operands."""
        lexer = self.lexer
        if END_OF_TEST.match(lexer.source, lexer.position, lexer.end):
            raise self.unexpected()
        first = self.required_word()
        words.append(first)
        character = lexer.peek()
        if UNARY_TEST.fullmatch(first.literal or ""):
            if character in ENDS_WORDS or END_OF_TEST.match(lexer.source, lexer.position, lexer.end):
                raise self.unexpected()
            words.append(self.required_word())
            return
        if character == "\n":
            raise self.unexpected()
        operator = BINARY_TEST.match(lexer.source, lexer.position, lexer.end)
        if operator:
            lexer.position = operator.end()
            words.append(Word((LiteralText(operator[0], True, *operator.span()),), *operator.span()))
            lexer.peek()
            words.append(lexer.pattern() if operator[0] == "=~" else self.required_word())
