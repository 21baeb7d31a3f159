"""Reads the words of a command line with their quotes and expansions, and the bodies of its heredocs.

A word keeps its parts (literal text, variables, nested scripts), so nothing is matched as text later. The work is
bounded: tokens and nesting are counted, and past the limits the answer is NotUnderstood.
"""

from __future__ import annotations

import re

import msgspec

from toolcrib.approval.shell.ansi_quotes import decode_ansi_quotes
from toolcrib.approval.shell.model import MAX_DEPTH, NotUnderstood
from toolcrib.approval.shell.tokens import Budget, Part, Script, Token, Word

PLAIN = re.compile(r"[A-Za-z0-9_./:,@%+^=\-]+")
LITERAL = re.compile(r"[^\s|&;()<>$`\"'\\*?\[\]{}~!+@]+|[{}\[\]~!+@*?]")
IN_QUOTES = re.compile(r'[^"$`\\]+')
IN_HEREDOC = re.compile(r"[^$`\\]+")
IN_BRACES = re.compile(r"[^}$`\\\"']+")
REDIRECTION = re.compile(r"(?:(\d+)|\{(\w+)\})?(&>>|&>|<<<|<<-|<<|<>|<&|>>|>\||>&|<|>)")
BLANK = re.compile(r"[ \t]+")
PARAMETER = re.compile(r"([!#]?)([A-Za-z_]\w*|\d+|[@*#?$!\-])(\[[^\]]*\])?")
NAME = re.compile(r"[A-Za-z_]\w*")
PARENTHESIS = re.compile(r"\\.|'[^']*'|[()]", re.DOTALL)
BACKTICKS = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
OPERATION = re.compile(r"[:#%/^,@+=?\-!*]*")
ARRAY_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=$")


class _Heredoc(msgspec.Struct):
    delimiter: str
    quoted: bool
    strip_tabs: bool
    target: Word


class WordLexer:
    def __init__(self, source: str, budget: Budget) -> None:
        self.source = source
        self.budget = budget
        self.position = 0
        self.depth = 0
        self.heredocs: list[_Heredoc] = []

    def command_list(self, closing: str) -> list[Token]:
        """Tokens up to the closing parenthesis, or to the end of the text."""
        raise NotImplementedError

    def nested(self, source: str) -> WordLexer:
        """A lexer for text inside this one, on the same budget and one level down."""
        inner = type(self)(source, self.budget)
        inner.depth = self.depth
        inner.deeper()
        return inner

    def word(self, stop: str = "", argument: bool = True) -> Word:
        """The word at the current position; it ends at a blank, an operator or one of `stop`."""
        source, start = self.source, self.position
        plain = PLAIN.match(source, start)
        end = plain.end() if plain else start
        if plain and not stop and (end == len(source) or source[end] in " \t\n;|&<>") and not self.descriptor_at(start):
            self.position = end
            self.budget.spend()
            return Word([Part("text", plain.group())], start, end)
        parts: list[Part] = []
        while self.position < len(source):
            character = source[self.position]
            if character in " \t\n|&;)" or character in stop:
                break
            if character in "<>":
                if not source.startswith("(", self.position + 1):
                    break
                parts.append(self.process_substitution())
            elif character == "(":
                if not self.parenthesis_in_word(parts, argument):
                    break
            elif character == '"':
                parts.extend(self.double_quoted())
            else:
                parts.append(self.part(character))
        return Word(merge(parts), start, self.position)

    def double_quoted(self) -> list[Part]:
        self.position += 1
        return [Part("text", "", True), *self.quoted_word(IN_QUOTES, '"').parts]

    def descriptor_at(self, start: int) -> bool:
        return self.source[start].isdigit() and bool(REDIRECTION.match(self.source, start))

    def part(self, character: str) -> Part:
        self.budget.spend()
        if character == "'":
            return self.single_quoted()
        if character == "\\":
            self.position += 2
            return Part("text", self.source[self.position - 1 : self.position], True)
        if character == "$":
            return self.dollar(quoted=False)
        if character == "`":
            return self.backticks(quoted=False)
        literal = LITERAL.match(self.source, self.position)
        text = literal.group() if literal else character
        self.position += len(text)
        return Part("text", text)

    def parenthesis_in_word(self, parts: list[Part], argument: bool) -> bool:
        """Take `name=( … )` and extended globs; False when the parenthesis belongs to the grammar."""
        before = parts[-1] if parts else None
        text = "".join(part.text for part in parts) if all(part.kind == "text" for part in parts) else ""
        if before is None or before.quoted:
            return False
        if ARRAY_ASSIGNMENT.match(text):
            self.position += 1
            parts.append(Part("array", words=self.array_words()))
            return True
        if argument and before.text[-1:] in "?*+@!" and before.text:
            end = self.matching_parenthesis(self.position)
            parts.append(Part("text", "*"))
            self.position = end + 1
            return True
        return False

    def array_words(self) -> list[Word]:
        words: list[Word] = []
        self.deeper()
        while True:
            self.skip_blanks(newlines=True)
            if self.position >= len(self.source):
                raise NotUnderstood("an array is not closed")
            if self.source[self.position] == ")":
                self.position += 1
                self.depth -= 1
                return words
            before = self.position
            words.append(self.word())
            if self.position == before:
                raise NotUnderstood("an array holds something that is not a word")

    def matching_parenthesis(self, start: int) -> int:
        depth = 0
        for match in PARENTHESIS.finditer(self.source, start):
            depth += {"(": 1, ")": -1}.get(match.group(), 0)
            if depth == 0:
                return match.start()
        raise NotUnderstood("a parenthesis is not closed")

    def skip_blanks(self, newlines: bool = False) -> None:
        while self.position < len(self.source):
            blank = BLANK.match(self.source, self.position)
            if blank:
                self.position = blank.end()
            elif newlines and self.source[self.position] == "\n":
                self.position += 1
            elif newlines and self.source[self.position] == "#":
                self.skip_comment()
            else:
                return

    def skip_comment(self) -> None:
        end = self.source.find("\n", self.position)
        self.position = len(self.source) if end < 0 else end

    def single_quoted(self) -> Part:
        end = self.source.find("'", self.position + 1)
        if end < 0:
            raise NotUnderstood("a single quote is not closed")
        text = self.source[self.position + 1 : end]
        self.position = end + 1
        return Part("text", text, True)

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotUnderstood("the command is nested too deeply")

    def quoted_word(self, literal: re.Pattern[str], closing: str) -> Word:
        """Text with expansions but without word splitting: in double quotes, a heredoc or `${x:-…}`."""
        source, start, parts = self.source, self.position, list[Part]()
        self.deeper()
        in_braces = closing == "}"
        while True:
            if self.position >= len(source):
                if closing:
                    raise NotUnderstood("a quote or brace is not closed")
                break
            self.budget.spend()
            character = source[self.position]
            if character == closing:
                self.position += 1
                break
            match = literal.match(source, self.position)
            if match:
                parts.append(Part("text", match.group(), not in_braces))
                self.position = match.end()
            elif character == "\\":
                parts.append(self.escape_in_quotes(closing))
            elif character == "$":
                parts.append(self.dollar(quoted=not in_braces))
            elif character == "`":
                parts.append(self.backticks(quoted=not in_braces))
            elif character == "'":
                parts.append(self.single_quoted())
            else:
                parts.extend(self.double_quoted())
        self.depth -= 1
        return Word(parts, start, self.position)

    def escape_in_quotes(self, closing: str) -> Part:
        following = self.source[self.position + 1 : self.position + 2]
        self.position += 2
        escapable = '$`"\\' if closing == '"' else "$`\\"
        if closing == "}" or following in escapable:
            return Part("text", following, True)
        return Part("text", "\\" + following, True)

    def dollar(self, quoted: bool) -> Part:
        source, at = self.source, self.position
        following = source[at + 1 : at + 2]
        if following == "(":
            return self.arithmetic_or_command(quoted)
        if following == "{":
            return self.braced_parameter(quoted)
        if following == "'" and not quoted:
            text, self.position = decode_ansi_quotes(source, at + 2)
            return Part("text", text, True)
        if following == '"' and not quoted:
            self.position = at + 1
            return Part("text", "", True)
        name = NAME.match(source, at + 1)
        if name:
            self.position = name.end()
            return Part("variable", name.group(), quoted)
        if following and following in "@*#?$!-0123456789":
            self.position = at + 2
            return Part("variable", following, quoted)
        self.position = at + 1
        return Part("text", "$", quoted)

    def arithmetic_or_command(self, quoted: bool) -> Part:
        start = self.position
        if self.source.startswith("$((", start):
            inner = self.arithmetic(start + 3)
            if inner is not None:
                return Part("arithmetic", quoted=quoted, words=[inner])
        self.position = start + 2
        tokens = self.command_list(closing=")")
        return Part("command", quoted=quoted, script=Script(tokens, self.source, start, self.position))

    def arithmetic(self, start: int) -> Word | None:
        """The inside of `((…))`; None, with the position unmoved, when it is two subshells instead."""
        before, parts, depth = self.position, list[Part](), 0
        self.position = start
        self.deeper()
        while self.position < len(self.source):
            self.budget.spend()
            character = self.source[self.position]
            if character == ")" and depth == 0:
                if not self.source.startswith("))", self.position):
                    break
                self.position += 2
                self.depth -= 1
                return Word(parts, start, self.position)
            depth += {"(": 1, ")": -1}.get(character, 0)
            if character == '"':
                parts.extend(self.double_quoted())
            elif character in "$`'\\":
                parts.append(self.part(character))
            else:
                parts.append(Part("text", character))
                self.position += 1
        self.position = before
        self.depth -= 1
        return None

    def braced_parameter(self, quoted: bool) -> Part:
        self.position += 2
        match = PARAMETER.match(self.source, self.position)
        if not match:
            raise NotUnderstood("a ${…} cannot be read")
        prefix, name, index = match.group(1), match.group(2), match.group(3) or ""
        self.position = match.end()
        if prefix == "#" and not self.source.startswith("}", self.position):
            raise NotUnderstood("a ${#…} cannot be read")
        operation = OPERATION.match(self.source, self.position)
        sign = operation.group() if operation else ""
        # `:-`, `##` and the like are operators; a longer run of such characters already belongs to the argument.
        for length in (2, 1):
            if sign[:length] in _PARAMETER_OPERATORS:
                sign = sign[:length]
                break
        else:
            if sign:
                raise NotUnderstood("a ${…} cannot be read")
        self.position += len(sign)
        argument = self.quoted_word(IN_BRACES, "}")
        if not sign and argument.parts:
            raise NotUnderstood("a ${…} cannot be read")
        return Part("variable", name, quoted, prefix + sign, index.strip("[]"), [argument])

    def backticks(self, quoted: bool) -> Part:
        start = self.position
        match = BACKTICKS.match(self.source, start)
        if not match:
            raise NotUnderstood("a backtick is not closed")
        inner = re.sub(r"\\([`\\$])" if not quoted else r"\\([`\\$\"])", r"\1", match.group(1))
        script = Script(self.nested(inner).command_list(closing=""), inner, 0, len(inner))
        self.position = match.end()
        return Part("command", quoted=quoted, script=script)

    def process_substitution(self) -> Part:
        start = self.position
        direction = self.source[start]
        self.position += 2
        tokens = self.command_list(closing=")")
        return Part("process", direction, script=Script(tokens, self.source, start, self.position))

    def queue_heredoc(self, strip_tabs: bool) -> Word:
        self.budget.heredocs -= 1
        if self.budget.heredocs < 0:
            raise NotUnderstood("there are too many heredocs")
        self.skip_blanks()
        start = self.position
        word = self.word()
        if word.start == word.end:
            raise NotUnderstood("a heredoc has no delimiter")
        raw = self.source[start : self.position]
        target = Word([], start, self.position)
        self.heredocs.append(
            _Heredoc(re.sub(r"[\\'\"]", "", raw), bool(re.search(r"[\\'\"]", raw)), strip_tabs, target)
        )
        return target

    def read_heredocs(self) -> None:
        """Read the bodies that start on this line into their words."""
        for heredoc in self.heredocs:
            tabs = r"\t*" if heredoc.strip_tabs else ""
            ending = re.compile(rf"^{tabs}{re.escape(heredoc.delimiter)}$\n?", re.MULTILINE).search(
                self.source, self.position
            )
            end, after = (ending.start(), ending.end()) if ending else (len(self.source), len(self.source))
            body = self.source[self.position : end]
            if heredoc.strip_tabs:
                body = re.sub(r"^\t+", "", body, flags=re.MULTILINE)
            heredoc.target.parts = self.heredoc_parts(body, heredoc.quoted)
            self.position = after
        self.heredocs = []

    def heredoc_parts(self, body: str, quoted: bool) -> list[Part]:
        if quoted:
            return [Part("text", body, True)]
        return self.nested(body).quoted_word(IN_HEREDOC, "").parts


_PARAMETER_OPERATORS = frozenset(
    {
        ":-",
        ":=",
        ":?",
        ":+",
        "-",
        "=",
        "?",
        "+",
        "##",
        "#",
        "%%",
        "%",
        "//",
        "/#",
        "/%",
        "/",
        "^^",
        "^",
        ",,",
        ",",
        ":",
        "@",
        "*",
    }
)


def merge(parts: list[Part]) -> list[Part]:
    """The same parts with neighbouring unquoted literals joined."""
    if len(parts) < 2:
        return parts
    merged = [parts[0]]
    for part in parts[1:]:
        last = merged[-1]
        if part.kind == last.kind == "text" and not part.quoted and not last.quoted:
            merged[-1] = Part("text", last.text + part.text)
        else:
            merged.append(part)
    return merged
