"""Reads the words of shell text with their quotes and expansions, its redirections and here-documents, as bash does.

A word keeps its parts (literal text, parameters, nested commands), so nothing is matched as text later. The work is
bounded: tokens and nesting are counted, and past the limits the answer is NotUnderstood.
"""

from __future__ import annotations

import re
from typing import Literal, TypeVar

from msgspec.structs import force_setattr

from toolcrib.approval.shell.model import NotUnderstood
from toolcrib.approval.shell.source_text import (
    Budget,
    Continuations,
    Heredoc,
    decode_ansi_quotes,
    join_lines,
    without_tabs,
)
from toolcrib.approval.shell.syntax import (
    Arithmetic,
    ArrayLiteral,
    Assignment,
    CommandParser,
    ExtendedGlob,
    LiteralText,
    ParameterExpansion,
    Redirection,
    Substitution,
    Word,
    WordPart,
)

PLAIN_WORD = re.compile(r"([A-Za-z0-9_./:,@%+^=\-]+)(?=[ \t\n;|&)]|\Z)[ \t]*+")
"""A word without anything to expand, and the blanks after it."""
LITERAL = re.compile(r"[^ \t\n|&;()<>$`\"'\\]+")
IN_QUOTES = re.compile(r'[^"$`\\]+')
IN_HEREDOC = re.compile(r"[^$`\\]+")
IN_BRACES = re.compile(r"[^}$`\\\"'<>]+")
IN_EXPRESSION = re.compile(r"[^()\[\]$`\\\"']+")
IN_PATTERN = re.compile(r"[^()$`\\\"']+")
REDIRECTION = re.compile(r"(?:(\d+)|\{([A-Za-z_]\w*)\})?(&>>|&>|<<<|<<-|<<|<>|<&|>>|>\||>&|<(?!\()|>(?!\())")
BLANKS = re.compile(r"[ \t]+")
BLANK_LINES = re.compile(r"(?:[ \t\n]++|#[^\n]*+)++")
PARAMETER = re.compile(r"([!#]?)([A-Za-z_]\w*|\d+|[@*#?$!\-])")
OPERATION = re.compile(r":[-=?+]|##|%%|//|/#|/%|\^\^|,,|[-=?+#%/^,:@*]")
NAME = re.compile(r"[A-Za-z_]\w*")
PARENTHESES = re.compile(r"\([ \t]*\)")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[|(\+?)=)")
ASSIGNS = re.compile(r"(\+?)=")
BACKTICKS = re.compile(r"`((?:[^`\\]|\\.)*+)`", re.DOTALL)
QUOTING = re.compile(r"[\\'\"]")
RAW = re.compile(r"['#`]|<<")
"""What may begin a text in which `\\`-newline is not a line continuation."""
SPECIAL_PARAMETERS = "@*#?$!-0123456789"
PATTERN_OPERATIONS = "#%/^,"


class Lexer:
    """Reads `source` from `position` on; the parser that uses it reads the commands inside substitutions."""

    def __init__(self, source: str, budget: Budget, parser: CommandParser) -> None:
        self.original = source
        self.source = join_lines(source)
        self.position = 0
        self.end = len(self.source)
        self.budget = budget
        self.parser = parser
        self.heredocs: list[Heredoc] = []
        self.parentheses = 0
        """How many substitutions with parentheses are open."""
        self.not_arithmetic: set[int] = set()
        self.cut = Continuations(source) if len(source) != self.end and RAW.search(source) else None
        self.newline_at = -1
        """Where a comment ended with a newline that was mistaken for a line continuation."""

    # Blanks, comments and lines

    def peek(self) -> str:
        """The next character after blanks and comments; empty at the end."""
        source, at, end = self.source, self.position, self.end
        while at < end and at != self.newline_at:
            character = source[at]
            if character in " \t":
                blanks = BLANKS.match(source, at, end)
                at = blanks.end() if blanks else end
            elif character == "#":
                at = self.comment_end(at)
            else:
                self.position = at
                return character
        self.position = at
        return "\n" if at == self.newline_at else ""

    def comment_end(self, start: int) -> int:
        """The position of the newline after a comment; `newline_at` records one mistaken for a continuation."""
        if self.cut is not None:
            self.budget.spend()
            newline = self.original.find("\n", self.cut.in_source(start))
            if self.cut.is_cut(newline - 1):
                self.newline_at = min(self.end, self.cut.in_text(newline + 1))
                return self.newline_at
        newline = self.source.find("\n", start, self.end)
        return self.end if newline < 0 else newline

    def skip_newlines(self) -> None:
        """Skip blanks, comments and newlines, and read the here-documents that start after one."""
        if self.cut is None and not self.heredocs:
            blank = BLANK_LINES.match(self.source, self.position, self.end)
            if blank:
                self.position = blank.end()
            return
        while self.peek() == "\n":
            if self.position == self.newline_at:
                self.newline_at = -1
            else:
                self.position += 1
            if self.heredocs:
                self.read_heredocs()

    # Words

    def word(self, *, arrays: bool = False, may_be_function: bool = False) -> Word:
        """The word at this position, or one with an empty span. `arrays` allows `name=(…)` in it."""
        source, start, end = self.source, self.position, self.end
        self.budget.spend()
        plain = PLAIN_WORD.match(source, start, end)
        if plain:
            self.position = plain.end()
            stop = plain.end(1)
            return Word((LiteralText(plain[1], False, start, stop),), start, stop)
        parts: list[WordPart] = []
        while self.position < end:
            at = self.position
            literal = LITERAL.match(source, at, end)
            if literal:
                self.position = literal.end()
                parts.append(LiteralText(literal[0], False, at, self.position))
                continue
            character = source[at]
            if character in " \t\n|&;)":
                break
            if character in "<>":
                if not source.startswith("(", at + 1):
                    break
                parts.append(self.substitution("input" if character == "<" else "output", quoted=False))
            elif character == "(":
                if may_be_function and PARENTHESES.match(source, at, end):
                    break
                part = self.parenthesis_in_word(parts, arrays)
                if part is not None:
                    parts.append(part)
                if not isinstance(part, ExtendedGlob):
                    break
            else:
                self.part(character, parts)
        return Word(tuple(parts), start, self.position)

    def part(self, character: str, parts: list[WordPart]) -> None:
        """Read what a quote, a backslash, a `$` or a backtick begins."""
        self.budget.spend()
        if character == '"':
            parts.extend(self.double_quoted())
        elif character == "'":
            parts.append(self.single_quoted())
        elif character == "\\":
            at = self.position
            self.position = min(at + 2, self.end)
            parts.append(LiteralText(self.source[at + 1 : self.position] or "\\", True, at, self.position))
        elif character == "$" and self.source.startswith('$"', self.position):
            self.position += 1
            parts.extend(self.double_quoted())
        elif character == "$":
            parts.append(self.dollar(quoted=False))
        else:
            parts.append(self.backticks(quoted=False))

    def parenthesis_in_word(self, parts: list[WordPart], arrays: bool) -> WordPart | None:
        """The `(…)` of an array or an extended glob; None when the parenthesis belongs to the grammar."""
        before = parts[-1] if parts else None
        if not isinstance(before, LiteralText) or before.quoted:
            return None
        if arrays and len(parts) == 1 and before.text.endswith("=") and ASSIGNMENT.fullmatch(before.text):
            return self.array()
        if before.text[-1] not in "?*+@!":
            return None
        start = self.position
        self.position += 1
        pattern = self.expression(IN_PATTERN, "(", ")")
        self.position += 1
        return ExtendedGlob(pattern, start, self.position)

    def pattern(self) -> Word:
        """The regular expression after `=~`, in which parentheses and bars are ordinary characters."""
        start, parts = self.position, list[WordPart]()
        while True:
            word = self.word()
            parts.extend(word.parts)
            at = self.position
            if at != word.end or at >= self.end or self.source[at] not in "(|" or self.source.startswith("||", at):
                break
            if self.source[at] == "(":
                self.position += 1
                inside = self.expression(IN_PATTERN, "(", ")")
                parts.extend((LiteralText("(", False, at, at + 1), *inside.parts))
                at = self.position
            self.position = at + 1
            parts.append(LiteralText(self.source[at], False, at, at + 1))
        if not parts:
            raise NotUnderstood("nothing follows '=~'")
        return Word(tuple(parts), start, parts[-1].end)

    def array(self) -> ArrayLiteral:
        start, words = self.position, list[Word]()
        self.position += 1
        self.budget.enter()
        while True:
            self.skip_newlines()
            if self.position >= self.end:
                raise NotUnderstood("an array is not closed")
            if self.source[self.position] == ")":
                self.position += 1
                self.budget.leave()
                return ArrayLiteral(tuple(words), start, self.position)
            word = self.array_element()
            if word.start == word.end:
                raise NotUnderstood("an array contains something that is not a word")
            words.append(word)

    def array_element(self) -> Word:
        """A word, or `[index]=value` where the index may hold blanks."""
        start = self.position
        if self.source[start] != "[":
            return self.word()
        return self.indexed_word(start, self.subscript())

    def indexed_word(self, start: int, index: Word) -> Word:
        """The word from `start` on, whose subscript is already read."""
        before = LiteralText(self.source[start : index.start], False, start, index.start)
        after = LiteralText("]", False, index.end, self.position)
        rest = self.word() if self.position < self.end and self.source[self.position] not in " \t\n" else None
        if rest is None:
            return Word((before, *index.parts, after), start, after.end)
        return Word((before, *index.parts, after, *rest.parts), start, rest.end)

    def subscript(self) -> Word:
        """The inside of `[…]`, and the position after it."""
        self.position += 1
        index = self.expression(IN_EXPRESSION, "[", "]")
        self.position += 1
        return index

    def assignment(self) -> Assignment | Word | None:
        """The assignment at this position, or a word that begins like one; None for anything else."""
        source, start = self.source, self.position
        head = ASSIGNMENT.match(source, start, self.end)
        if head is None:
            return None
        index, appends = None, head[2]
        self.position = head.end()
        if appends is None:
            self.position -= 1
            index = self.subscript()
            sign = ASSIGNS.match(source, self.position, self.end)
            if sign is None:
                return self.indexed_word(start, index)
            appends = sign[1]
            self.position = sign.end()
        at = self.position
        if source.startswith("(", at) and at < self.end:
            array = self.array()
            value = Word((array,), at, array.end)
        else:
            value = self.word()
        return Assignment(head[1], index, appends == "+", value, start, value.end)

    # Quotes

    def single_quoted(self) -> LiteralText:
        start, cut = self.position, self.cut
        if cut is None:
            last = self.source.find("'", start + 1, self.end)
            text, end = self.source[start + 1 : last], last + 1
        else:
            # Line continuations do not count here, so take the text from the original.
            first = cut.in_source(start) + 1
            last = self.original.find("'", first)
            text, end = self.original[first:last], cut.in_text(last) + 1
        if last < 0 or end > self.end:
            raise NotUnderstood("a single quote is not closed")
        self.position = end
        return LiteralText(text, True, start, end)

    def double_quoted(self) -> list[WordPart]:
        start = self.position
        self.position += 1
        parts = self.quoted_parts(IN_QUOTES, '"')
        return parts or [LiteralText("", True, start, self.position)]

    def quoted_parts(self, literal: re.Pattern[str], closing: str) -> list[WordPart]:
        """Text with expansions but without word splitting: in double quotes or, without `closing`, a here-document."""
        source, end, parts = self.source, self.end, list[WordPart]()
        self.budget.enter()
        while True:
            at = self.position
            if at >= end:
                if closing:
                    raise NotUnderstood("a double quote is not closed")
                break
            self.budget.spend()
            match = literal.match(source, at, end)
            if match:
                parts.append(LiteralText(match[0], True, at, match.end()))
                self.position = match.end()
                continue
            character = source[at]
            if character == closing:
                self.position += 1
                break
            if character == "\\":
                parts.append(self.escape('$`"\\' if closing else "$`\\"))
            elif character == "$":
                parts.append(self.dollar(quoted=True))
            else:
                parts.append(self.backticks(quoted=True))
        self.budget.leave()
        return parts

    def escape(self, escapable: str) -> LiteralText:
        """A backslash in double quotes or the like, where it only quotes some characters."""
        at = self.position
        following = self.source[at + 1 : min(at + 2, self.end)]
        self.position = at + 1 + len(following)
        text = following if following and following in escapable else "\\" + following
        return LiteralText(text, True, at, self.position)

    def ansi_quoted(self) -> LiteralText:
        """`$'…'` with its escapes decoded."""
        start = self.position
        if self.cut is None:
            text, self.position = decode_ansi_quotes(self.source, start + 2)
        else:
            text, end = decode_ansi_quotes(self.original, self.cut.in_source(start + 1) + 1)
            self.position = self.cut.in_text(end - 1) + 1
        if self.position > self.end:
            raise NotUnderstood("a $'…' quote is not closed")
        return LiteralText(text, True, start, self.position)

    # Expansions

    def dollar(self, *, quoted: bool) -> WordPart:
        source, at = self.source, self.position
        following = source[at + 1] if at + 1 < self.end else ""
        if following == "(":
            if source.startswith("((", at + 1) and at not in self.not_arithmetic:
                arithmetic = self.arithmetic(at, at + 3, quoted)
                if arithmetic is not None:
                    return arithmetic
            return self.substitution("command", quoted)
        if following == "{":
            return self.braced_parameter(quoted)
        if following == "[":
            self.position = at + 2
            expression = self.expression(IN_EXPRESSION, "[", "]")
            self.position += 1
            return self.recorded(Arithmetic(expression, quoted, at, self.position))
        if following == "'" and not quoted:
            return self.ansi_quoted()
        name = NAME.match(source, at + 1, self.end)
        if name:
            self.position = name.end()
            return ParameterExpansion(name[0], quoted, at, self.position)
        if following and following in SPECIAL_PARAMETERS:
            self.position = at + 2
            return ParameterExpansion(following, quoted, at, self.position)
        self.position = at + 1
        return LiteralText("$", quoted, at, at + 1)

    def substitution(self, kind: SubstitutionKind, quoted: bool) -> Substitution:
        """`$(…)`, `<(…)` or `>(…)`; pending here-documents belong to the line around it."""
        start = self.position
        outer, self.heredocs = self.heredocs, []
        self.position += 2
        self.parentheses += 1
        body = self.parser.commands(")")
        self.parentheses -= 1
        self.position += 1
        self.heredocs = outer + self.heredocs
        return self.recorded(Substitution(kind, body, quoted, self.source, start, self.position))

    def recorded(self, node: DynamicNode) -> DynamicNode:
        """The same node, which the evaluator must come across."""
        self.budget.dynamic.append(node)
        return node

    def arithmetic(self, start: int, inside: int, quoted: bool) -> Arithmetic | None:
        """The `((…))` from `start` on; None, with nothing consumed, when it is two subshells instead."""
        before = self.position, self.end, list(self.heredocs), self.parentheses, self.newline_at
        depth, recorded = self.budget.depth, len(self.budget.dynamic)
        self.position = inside
        try:
            expression = self.expression(IN_EXPRESSION, "(", ")")
            if self.source.startswith("))", self.position) and self.position + 2 <= self.end:
                self.position += 2
                return self.recorded(Arithmetic(expression, quoted, start, self.position))
        except NotUnderstood:
            self.budget.depth = depth
        del self.budget.dynamic[recorded:]
        # Remember it, because an enclosing arithmetic expression would try it again.
        self.not_arithmetic.add(start)
        self.position, self.end, self.heredocs, self.parentheses, self.newline_at = before
        return None

    def expression(self, literal: re.Pattern[str], opening: str, closing: str) -> Word:
        """Text with expansions up to its matching `closing`; the position stays before that."""
        source, start, end = self.source, self.position, self.end
        parts: list[WordPart] = []
        depth, in_quotes = 0, False
        self.budget.enter()
        while self.position < end:
            self.budget.spend()
            at = self.position
            match = literal.match(source, at, end)
            if match:
                self.position = match.end()
                parts.append(LiteralText(match[0], False, at, self.position))
                continue
            character = source[at]
            if character in '$`\\"' or (character == "'" and literal is IN_PATTERN):
                self.part(character, parts)
                continue
            if character == "'":
                # Arithmetic expands as in double quotes: a single quote hides a bracket, but not an expansion.
                in_quotes = not in_quotes
            elif in_quotes:
                pass
            elif character == opening:
                depth += 1
            elif character == closing:
                if depth == 0:
                    self.budget.leave()
                    return Word(tuple(parts), start, at)
                depth -= 1
            self.position = at + 1
            parts.append(LiteralText(character, False, at, at + 1))
        raise NotUnderstood(f"a {opening!r} is not closed")

    def braced_parameter(self, quoted: bool) -> ParameterExpansion:
        source, start, end = self.source, self.position, self.end
        self.position += 2
        head = PARAMETER.match(source, self.position, end)
        if head is None:
            raise NotUnderstood("a ${…} is malformed")
        prefix, name = head[1], head[2]
        self.position = head.end()
        index = None
        if source.startswith("[", self.position):
            index = self.subscript()
        sign = OPERATION.match(source, self.position, end)
        operation = sign[0] if sign else ""
        if sign and prefix != "#":
            self.position = sign.end()
        argument_start = self.position
        parts = self.braced_argument(quoted, operation)
        if parts and (not operation or prefix == "#"):
            raise NotUnderstood("a ${…} is malformed")
        argument = Word(tuple(parts), argument_start, self.position - 1)
        return ParameterExpansion(name, quoted, start, self.position, prefix + operation, index, argument)

    def braced_argument(self, quoted: bool, operation: str) -> list[WordPart]:
        """What follows the operator of a `${…}`, up to its brace."""
        source, end, parts = self.source, self.end, list[WordPart]()
        # In double quotes a single quote hides a brace, but hides an expansion only in a pattern.
        has_quotes = not quoted or operation[:1] in PATTERN_OPERATIONS
        in_quotes = False
        self.budget.enter()
        while True:
            at = self.position
            if at >= end:
                raise NotUnderstood("a ${ is not closed")
            self.budget.spend()
            match = IN_BRACES.match(source, at, end)
            if match:
                self.position = match.end()
                parts.append(LiteralText(match[0], False, at, self.position))
                continue
            character = source[at]
            if character == "}" and not in_quotes:
                self.position += 1
                break
            if character in "<>" and has_quotes and source.startswith("(", at + 1):
                parts.append(self.substitution("input" if character == "<" else "output", quoted=False))
            elif (
                character in "}<>" or (character == "'" and not has_quotes) or (quoted and source.startswith("$'", at))
            ):
                in_quotes = in_quotes ^ (character == "'")
                self.position += 1
                parts.append(LiteralText(character, False, at, self.position))
            else:
                self.part(character, parts)
        self.budget.leave()
        return parts

    def backticks(self, quoted: bool) -> Substitution:
        start = self.position
        match = BACKTICKS.match(self.source, start, self.end)
        if match is None:
            raise NotUnderstood("a backtick is not closed")
        if self.cut is None and "\\" not in match[1]:
            outer = self.end, self.heredocs, self.parentheses
            self.position, self.end, self.heredocs, self.parentheses = start + 1, match.end() - 1, [], 0
            body, source = self.parser.commands(""), self.source
            self.end, self.heredocs, self.parentheses = outer
        else:
            inside = match[1]
            if self.cut is not None:
                inside = self.original[self.cut.in_source(start) + 1 : self.cut.in_source(match.end() - 1)]
            inside = re.sub(r"\\([`\\$\"])" if quoted else r"\\([`\\$])", r"\1", inside)
            body, source = self.parser.nested(inside)
        self.position = match.end()
        return self.recorded(Substitution("command", body, quoted, source, start, self.position))

    # Redirections and here-documents

    def redirection(self) -> Redirection | None:
        """The redirection at this position, or None."""
        match = REDIRECTION.match(self.source, self.position, self.end)
        if match is None:
            return None
        self.budget.spend()
        start, operator = self.position, match[3]
        self.position = match.end()
        self.peek()
        # The digits of `< 2>f` belong to the next redirection.
        is_missing = operator[-1] != "&" and REDIRECTION.match(self.source, self.position, self.end)
        target = self.word()
        if is_missing or target.start == target.end:
            raise NotUnderstood(f"nothing follows {operator!r}")
        descriptor = match[1] or match[2] or ""
        if operator not in ("<<", "<<-"):
            return Redirection(operator, descriptor, None, target, start, target.end)
        body = self.queue_heredoc(target, strip_tabs=operator == "<<-")
        return Redirection(operator, descriptor, target, body, start, target.end)

    def queue_heredoc(self, delimiter: Word, *, strip_tabs: bool) -> Word:
        """The word of a here-document; its parts are filled in at the next line."""
        self.budget.heredocs -= 1
        if self.budget.heredocs < 0:
            raise NotUnderstood("there are too many heredocs")
        written = self.source[delimiter.start : delimiter.end]
        literals = [part.text for part in delimiter.parts if isinstance(part, LiteralText)]
        text = "".join(literals) if len(literals) == len(delimiter.parts) else QUOTING.sub("", written)
        body = self.recorded(Word((), delimiter.end, delimiter.end))
        self.heredocs.append(Heredoc(text, bool(QUOTING.search(written)), strip_tabs, body))
        return body

    def read_heredocs(self) -> None:
        """Read the here-documents that start on this line into their words."""
        heredocs, self.heredocs = self.heredocs, []
        for heredoc in heredocs:
            if heredoc.quoted and self.cut is not None:
                first = self.cut.in_source(self.position - 1) + 1
                last = self.cut.in_source(self.end)
                end, after = heredoc.body_end(self.original, first, last, nested=bool(self.parentheses))
                body = self.original[first:end]
                start, end, after = self.position, self.cut.in_text(end), self.cut.in_text(after)
            else:
                start = self.position
                end, after = heredoc.body_end(self.source, start, self.end, nested=bool(self.parentheses))
                body = self.source[start:end]
            parts: list[WordPart]
            if heredoc.quoted:
                parts = [LiteralText(body, True, start, end)] if body else []
            else:
                outer = self.end, self.parentheses
                self.end, self.parentheses = end, 0
                parts = self.quoted_parts(IN_HEREDOC, "")
                self.end, self.parentheses = outer
            if heredoc.strip_tabs:
                parts = [without_tabs(part, start) for part in parts]
            # The word belongs to a command that was complete before this line was read.
            for name, value in (("parts", tuple(parts)), ("start", start), ("end", end)):
                force_setattr(heredoc.target, name, value)
            self.position = after


SubstitutionKind = Literal["command", "input", "output"]
DynamicNode = TypeVar("DynamicNode", Substitution, Arithmetic, Word)
