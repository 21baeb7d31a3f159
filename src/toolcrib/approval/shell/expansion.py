"""Expands words as the shell would, as far as that is possible without running anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from toolcrib.approval.shell.model import MAX_BRACE_WORDS, UNKNOWN, ExpandedWord, NotUnderstood, Origin, StreamData
from toolcrib.approval.shell.parser import parse, parse_quoted
from toolcrib.approval.shell.secret_files import protected_by_pattern, secrets_by_pattern
from toolcrib.approval.shell.secret_variables import names_secret
from toolcrib.approval.shell.state import UNKNOWN_VALUE, ShellState, Value
from toolcrib.approval.shell.syntax import (
    Arithmetic,
    ArrayLiteral,
    ExtendedGlob,
    LiteralText,
    ParameterExpansion,
    Substitution,
    Word,
    WordPart,
)

RunSubstitution = Callable[[Substitution, ShellState], StreamData]
GLOB = re.compile(r"[*?]|\[[^\]]{1,64}\]")
BLANKS = re.compile(r"[ \t\n]+")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w{0,255})(\[[^\]]*\])?(\+?)=")
NAME = re.compile(r"[A-Za-z_]\w*")
PROMPT_ESCAPE = re.compile(r"\\[^$`]")
MAX_TEXT = 20_000
# An array appended to itself doubles with every step.
MAX_FIELDS = 20_000
MAX_LOOP_VALUES = 16
MAX_EXPRESSION_NAMES = 64


class Expander:
    """Turns words into fields; `run` returns the output of a substitution, `spend` counts work."""

    def __init__(self, run: RunSubstitution, spend: Callable[[int], None]) -> None:
        self.run = run
        self.spend = spend
        self.evaluated: set[int] = set()
        """The substitutions, arithmetic expressions and here-documents that were come across, by identity."""

    def fields(self, words: Sequence[Word], state: ShellState) -> list[ExpandedWord]:
        result: list[ExpandedWord] = []
        for word in words:
            literal = word.literal
            if literal is not None and literal[0] != "~" and "{" not in literal:
                result.append(ExpandedWord(literal, bool(GLOB.search(literal))))
            else:
                for expanded in expand_braces(word):
                    result.extend(self.word(expanded, state))
            if len(result) > MAX_FIELDS:
                raise NotUnderstood("a list of words is too long")
        return [marked(each, state) if each.glob else each for each in result]

    def text(self, word: Word, state: ShellState) -> ExpandedWord:
        """The single field of a word that is not split, as in an assignment or a redirection."""
        literal = word.literal
        if literal is not None and literal[0] != "~":
            return ExpandedWord(literal, bool(GLOB.search(literal)))
        parts = self.word(word, state, split=False)
        if len(parts) == 1:
            return parts[0]
        origin = 0
        keys: tuple[str, ...] = ()
        for part in parts:
            origin |= part.origin
            keys += part.keys
        return ExpandedWord(" ".join(part.text for part in parts), any(part.glob for part in parts), origin, keys)

    def word(self, word: Word, state: ShellState, split: bool = True) -> list[ExpandedWord]:
        builder = _WordBuilder(separator(state))
        for number, part in enumerate(word.parts):
            if isinstance(part, LiteralText):
                text = part.text
                if number == 0 and not part.quoted and text.startswith("~"):
                    text = tilde(text, state)
                builder.add(text, quoted=part.quoted, glob=not part.quoted and bool(GLOB.search(text)))
            elif isinstance(part, ParameterExpansion):
                self.add_parameter(part, builder, state, split)
            elif isinstance(part, Substitution):
                builder.add_value(self.substitution(part, state), part.quoted or not split)
            elif isinstance(part, Arithmetic):
                builder.add_value(self.arithmetic(part, state), part.quoted or not split)
            elif isinstance(part, ArrayLiteral):
                for field in self.fields(part.words, state):
                    builder.add_field(field)
            elif isinstance(part, ExtendedGlob):
                self.text(part.pattern, state)
                # `*` matches everything that the pattern matches, and more.
                builder.add("*", quoted=False, glob=True)
        return builder.finish()

    def add_parameter(self, part: ParameterExpansion, builder: _WordBuilder, state: ShellState, split: bool) -> None:
        index = part.index.literal if part.index is not None else None
        if not part.operation and part.name in ("@", "*"):
            self.spread(state.positional, part.quoted, part.name == "@", builder, split)
        elif not part.operation and index in ("@", "*"):
            values = state.variables.get(state.target(part.name))
            self.spread(values, part.quoted, index == "@", builder, split)
        else:
            builder.add_value(self.parameter(part, state), part.quoted or not split)

    def spread(self, values: Value | None, quoted: bool, separate: bool, builder: _WordBuilder, split: bool) -> None:
        """Add `"$@"` or `"${a[@]}"`: one field for each value."""
        if values is None:
            builder.add_value(ExpandedWord(UNKNOWN, origin=Origin.LISTED), quoted=True)
            return
        if quoted:
            builder.add("", quoted=True, glob=False)
        for number, value in enumerate(values):
            if number:
                if split and (not quoted or separate):
                    builder.end_field()
                else:
                    builder.add(" ", quoted=True, glob=False)
            builder.add_value(value, quoted)

    def substitution(self, part: Substitution, state: ShellState) -> ExpandedWord:
        self.evaluated.add(id(part))
        data = self.run(part, state.copy())
        if part.kind == "command":
            if data.text is None:
                return ExpandedWord(UNKNOWN, origin=data.origin)
            return ExpandedWord(data.text.rstrip("\n"), origin=data.origin)
        # Far above the descriptors that people use.
        name = f"/dev/fd/{1000 + len(state.files) + len(state.sinks)}"
        if part.kind == "output":
            state.sinks[name] = part
            return ExpandedWord(name)
        state.files[name] = data
        return ExpandedWord(name, origin=data.origin)

    # Arithmetic and names

    def arithmetic(self, part: Arithmetic, state: ShellState) -> ExpandedWord:
        """The value of a single number; a calculation counts as zero after the commands in it are judged."""
        self.evaluated.add(id(part))
        text = self.text(part.expression, state).text
        self.calculate(text, state)
        return ExpandedWord(str(int(text)) if text.isdecimal() else "0")

    def calculate(self, expression: str, state: ShellState) -> None:
        """Judge the commands that a calculation runs: in subscripts, and in the values of the variables it names.

        The shell evaluates such a value as an expression again, however often it was quoted before.
        """
        pending, seen = [expression], set[str]()
        while pending:
            text = pending.pop()
            if "$" in text or "`" in text:
                self.text(parse_quoted(text), state)
            for name in NAME.findall(text):
                if name in seen or len(seen) > MAX_EXPRESSION_NAMES:
                    continue
                seen.add(name)
                pending += [each.text for each in state.variables.get(state.target(name), ()) if not each.is_number]
        self.spend(len(seen) // 8)

    def subscript_of(self, name: str, state: ShellState) -> str:
        """The variable in a name such as `x[i]`, after judging the commands that its subscript runs."""
        variable, bracket, index = name.partition("[")
        if bracket:
            self.calculate(index.removesuffix("]"), state)
        return variable

    def index(self, word: Word | None, state: ShellState) -> str:
        """The text of a subscript, which is calculated unless it means all elements."""
        if word is None:
            return ""
        text = self.text(word, state).text
        if text not in ("@", "*") and not text.isdecimal():
            self.calculate(text, state)
        return text

    # Parameters

    def parameter(self, part: ParameterExpansion, state: ShellState) -> ExpandedWord:
        """The value of `$name` or `${name…}`."""
        name = state.target(part.name) if state.references else part.name
        if "[" in name:
            name = self.subscript_of(name, state)
        value = element(lookup(name, state), self.index(part.index, state))
        operation = part.operation
        if not operation or part.argument is None:
            return value if value is not None else unset_value(name)
        if operation == "@":
            return self.transformed(value, self.text(part.argument, state), state)
        # Whether or not the shell needs it, everything in it is judged.
        argument = self.text(part.argument, state)
        if operation[0] == "!":
            names = value.text if value is not None and value.known else ""
            found = lookup(self.subscript_of(names, state), state)
            return element(found, "") or unset_value(names)
        if operation == "#" and not part.argument.parts:
            return ExpandedWord(str(len(value.text)) if value is not None and value.known else "0")
        if operation in (":-", "-", ":=", "="):
            return self.default(part, value, argument, state)
        if operation in (":+", "+"):
            # A variable that is not set here may be set in the environment.
            return ExpandedWord("") if value is not None and value.known and value.text == "" else argument
        if operation == ":":
            self.calculate(argument.text, state)
        if operation in (":?", "?") or value is None:
            return value if value is not None else unset_value(name)
        if operation[0] in "#%":
            # The pattern is tried at every position in the text.
            self.spend(len(value.text) // 64)
        return transform(value, operation, argument)

    def default(
        self, part: ParameterExpansion, value: ExpandedWord | None, default: ExpandedWord, state: ShellState
    ) -> ExpandedWord:
        """The value of `${name:-default}` and the like."""
        if value is not None and not value.known:
            return value
        if value is not None and (value.text or part.operation[0] != ":"):
            return value
        if "=" in part.operation:
            state.assign(part.name, [default])
        return default if value is not None or not names_secret(part.name) else unset_value(part.name)

    def transformed(self, value: ExpandedWord | None, argument: ExpandedWord, state: ShellState) -> ExpandedWord:
        """The value of `${name@operator}`; `P` reads the text like a prompt, which may run commands."""
        if argument.text == "P":
            code = prompt_code(value.text) if value is not None and value.known else f'eval "{UNKNOWN}"'
            script = parse(code)
            if script.error:
                raise NotUnderstood(script.error)
            self.run(Substitution("command", script.body, False, script.text, 0, 0), state.copy())
        return value.with_text(UNKNOWN) if value is not None else ExpandedWord(UNKNOWN)


class _WordBuilder:
    def __init__(self, separator: re.Pattern[str]) -> None:
        self.separator = separator
        self.fields: list[ExpandedWord] = []
        self.pieces: list[str] = []
        self.started = False
        self.glob = False
        self.origin = 0
        self.keys: tuple[str, ...] = ()
        self.splits = False

    def add(self, text: str, *, quoted: bool, glob: bool) -> None:
        self.pieces.append(text)
        self.started = self.started or quoted or bool(text)
        self.glob = self.glob or glob

    def add_field(self, field: ExpandedWord) -> None:
        self.end_field()
        self.fields.append(field)

    def add_value(self, value: ExpandedWord, quoted: bool) -> None:
        self.keys += value.keys
        if quoted:
            self.origin |= value.origin
            self.add(capped(value.text), quoted=True, glob=False)
            return
        self.splits = True
        pieces = self.separator.split(capped(value.text))
        for number, piece in enumerate(pieces):
            if number:
                self.end_field()
            self.origin |= value.origin
            self.add(piece, quoted=False, glob=bool(GLOB.search(piece)))

    def end_field(self) -> None:
        if self.started:
            text, origin = "".join(self.pieces), self.origin
            if text == UNKNOWN and self.splits and is_list(origin):
                origin |= Origin.LISTED
            self.fields.append(ExpandedWord(text, self.glob, origin, self.keys))
            self.keys = ()
        self.pieces, self.started, self.glob, self.origin, self.splits = [], False, False, 0, False

    def finish(self) -> list[ExpandedWord]:
        self.end_field()
        return self.fields


def marked(word: ExpandedWord, state: ShellState) -> ExpandedWord:
    """A pattern with a mark if it may match a secret or a protected file: whatever holds it later stands for that."""
    mark = Origin.SECRET_FILE if secrets_by_pattern(word, state) else 0
    if protected_by_pattern(word, state):
        mark |= Origin.PROTECTED_FILE
    return ExpandedWord(word.text, True, word.origin | mark, word.keys) if mark else word


def is_list(origin: int) -> bool:
    """True for output of a file or program that may become any number of words when unquoted."""
    return bool(origin & (Origin.FILE | Origin.PROGRAM)) and not origin & Origin.ONE


def capped(text: str) -> str:
    """The text, cut to its limit; UNKNOWN replaces the rest, to keep anything from hiding there."""
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + UNKNOWN


def prompt_code(text: str) -> str:
    """The command that expands a prompt, which the shell reads like a double-quoted string."""
    return ': "' + PROMPT_ESCAPE.sub("", text).replace('"', '\\"') + '"'


def separator(state: ShellState) -> re.Pattern[str]:
    """What splits an unquoted value: blanks, or the characters of IFS."""
    given = state.variables.get("IFS")
    if not given or not given[0].known or not given[0].text:
        return BLANKS
    return re.compile("[" + re.escape(given[0].text[:16]) + "]+")


def tilde(text: str, state: ShellState) -> str:
    name, slash, rest = text[1:].partition("/")
    if not name:
        return state.home + slash + rest
    if name == "+":
        return (state.cwd or ".") + slash + rest
    if name == "-":
        return previous_directory(state).text + slash + rest
    return ("/root" if name == "root" else "/home/" + name) + slash + rest


def previous_directory(state: ShellState) -> ExpandedWord:
    """Where `cd -` and `$OLDPWD` lead; UNKNOWN when this command line has not changed directories yet."""
    return (state.variables.get("OLDPWD") or UNKNOWN_VALUE)[0]


def lookup(name: str, state: ShellState) -> Value | None:
    """The value of a variable; None when it is unset here, UNKNOWN when only the running shell knows it."""
    if name in state.variables:
        return state.variables[name]
    if name.isdecimal() and name != "0":
        if state.positional is None:
            return UNKNOWN_VALUE
        number = int(name) - 1
        return [state.positional[number]] if number < len(state.positional) else [ExpandedWord("")]
    standard = {"HOME": state.home, "IFS": " \t\n", "SHELL": "/bin/bash", "BASH": "/bin/bash", "0": "bash"}
    if name in standard:
        return [ExpandedWord(standard[name])]
    if name == "PROMPT_COMMAND":
        # Its previous value was judged when it was set.
        return [ExpandedWord("")]
    if name == "PWD":
        return [ExpandedWord(state.cwd or ".")] if state.cwd_known else UNKNOWN_VALUE
    if name in ("$", "!"):
        return [ExpandedWord("$" + name)]
    if name in ("EUID", "UID", "PPID", "RANDOM", "SECONDS", "LINENO", "?", "#"):
        return [ExpandedWord("1")]
    return None


def unset_value(name: str) -> ExpandedWord:
    """The value of a variable that this command line does not set: the environment may."""
    return ExpandedWord(UNKNOWN, origin=Origin.KEY, keys=(name,)) if names_secret(name) else ExpandedWord(UNKNOWN)


def element(values: Value | None, index: str) -> ExpandedWord | None:
    if values is None:
        return None
    if index in ("@", "*"):
        origin = 0
        for value in values:
            origin |= value.origin
        return ExpandedWord(" ".join(value.text for value in values), origin=origin)
    try:
        return values[int(index or 0)]
    except (ValueError, IndexError):
        return ExpandedWord(UNKNOWN) if index else ExpandedWord("")


def transform(value: ExpandedWord, operation: str, argument: ExpandedWord) -> ExpandedWord:
    """Apply `${x:1:2}`, `${x,,}`, `${x%…}`, `${x/…/…}`; what cannot be computed is UNKNOWN."""
    if not value.known or not argument.known or len(value.text) > MAX_TEXT:
        return value.with_text(UNKNOWN)
    text = value.text
    if operation == ":":
        return value.with_text(substring(text, argument.text))
    if operation in (",,", "^^", ",", "^") and not argument.text:
        cased = text.lower() if "," in operation else text.upper()
        return value.with_text(cased if len(operation) == 2 else cased[:1] + text[1:])
    if operation in ("#", "##", "%", "%%"):
        return value.with_text(strip_pattern(text, operation, argument.text))
    if operation in ("/", "//", "/#", "/%"):
        return value.with_text(replace(text, operation, argument.text))
    return value.with_text(UNKNOWN)


def substring(text: str, bounds: str) -> str:
    offset, _, length = bounds.partition(":")
    try:
        start = int(offset.strip(" ()") or 0)
        size = int(length.strip(" ()")) if length.strip() else None
    except ValueError:
        return UNKNOWN
    start = max(0, start + len(text)) if start < 0 else start
    if size is None:
        return text[start:]
    return text[start:size] if size < 0 else text[start : start + size]


def strip_pattern(text: str, operation: str, pattern: str) -> str:
    if len(text) > 256 or len(pattern) > 64 or pattern.count("*") > 2:
        return UNKNOWN
    ends = range(len(text) + 1) if operation in ("#", "%%") else range(len(text), -1, -1)
    for at in ends:
        removed, kept = (text[:at], text[at:]) if operation[0] == "#" else (text[at:], text[:at])
        if fnmatchcase(removed, pattern):
            return kept
    return text


def replace(text: str, operation: str, argument: str) -> str:
    pattern, _, replacement = argument.partition("/")
    if GLOB.search(pattern) or "\\" in pattern or operation in ("/#", "/%"):
        return UNKNOWN
    return text.replace(pattern, replacement, -1 if operation == "//" else 1)


_FIRST_OPAQUE = 0xF0000
_RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?$")


def expand_braces(word: Word) -> list[Word]:
    """The words that a word expands to; most expand to themselves."""
    if not any(type(part) is LiteralText and not part.quoted and "{" in part.text for part in word.parts):
        return [word]
    opaque: list[WordPart] = []
    pieces: list[str] = []
    for part in word.parts:
        if isinstance(part, LiteralText) and not part.quoted:
            pieces.append(part.text)
        else:
            pieces.append(chr(_FIRST_OPAQUE + len(opaque)))
            opaque.append(part)
    texts = _expand("".join(pieces))
    if len(texts) == 1:
        return [word]
    words = [Word(tuple(_parts(text, opaque, word)), word.start, word.end) for text in texts]
    # An unquoted empty alternative, as in `{/,}`, is not a word.
    return [expanded for expanded in words if expanded.parts]


def _parts(text: str, opaque: list[WordPart], word: Word) -> list[WordPart]:
    parts: list[WordPart] = []
    for piece in re.split(r"([\U000F0000-\U000FFFFD])", text):
        if len(piece) == 1 and ord(piece) >= _FIRST_OPAQUE:
            parts.append(opaque[ord(piece) - _FIRST_OPAQUE])
        elif piece:
            parts.append(LiteralText(piece, False, word.start, word.end))
    return parts


def _expand(text: str) -> list[str]:
    if text.count("{") > MAX_BRACE_WORDS:
        raise NotUnderstood("there are too many braces in one word")
    results: list[str] = []
    pending = [text]
    while pending:
        current = pending.pop(0)
        group = _first_group(current)
        if group is None:
            results.append(current)
        else:
            start, end, alternatives = group
            pending[:0] = [current[:start] + alternative + current[end:] for alternative in alternatives]
        if len(pending) + len(results) > MAX_BRACE_WORDS:
            raise NotUnderstood("braces expand to too many words")
    return results


def _first_group(text: str) -> tuple[int, int, list[str]] | None:
    """Start, end and alternatives of the first `{…}` that expands, or None."""
    start = text.find("{")
    while start >= 0:
        depth, commas = 0, []
        for at in range(start, min(len(text), start + 4096)):
            character = text[at]
            depth += {"{": 1, "}": -1}.get(character, 0)
            if character == "," and depth == 1:
                commas.append(at)
            if depth == 0:
                inner = _alternatives(text, start, at, commas)
                if inner is not None:
                    return start, at + 1, inner
                break
        start = text.find("{", start + 1)
        if start > 4096:
            return None
    return None


def _alternatives(text: str, start: int, end: int, commas: list[int]) -> list[str] | None:
    if commas:
        edges = [start, *commas, end]
        return [text[left + 1 : right] for left, right in pairwise(edges)]
    sequence = _RANGE.match(text[start + 1 : end])
    return _sequence(*sequence.groups()) if sequence else None


def _sequence(first: str, last: str, step: str | None) -> list[str] | None:
    if first.lstrip("-").isdigit() != last.lstrip("-").isdigit():
        return None
    numeric = first.lstrip("-").isdigit()
    low, high = (int(first), int(last)) if numeric else (ord(first), ord(last))
    stride = abs(int(step or 1)) or 1
    values = range(low, high + 1, stride) if low <= high else range(low, high - 1, -stride)
    if len(values) > MAX_BRACE_WORDS:
        # Numbers alone cannot make a harmless word dangerous, so a few of them are enough.
        values = values[:4]
    return [str(value) if numeric else chr(value) for value in values]


def further_input(stdin: StreamData | None) -> Iterator[StreamData]:
    """What is left to read in each further round of a loop that takes one line after another."""
    if stdin is None or stdin.text is None:
        return
    lines = stdin.text.split("\n")
    seen = {lines[0]}
    for at, line in enumerate(lines[1:], start=1):
        if line in seen or (not line and at == len(lines) - 1):
            continue
        if len(seen) >= MAX_LOOP_VALUES:
            yield StreamData(None, stdin.origin)
            return
        seen.add(line)
        yield StreamData("\n".join(lines[at:]), stdin.origin)


def loop_values(values: list[ExpandedWord], state: ShellState) -> list[ExpandedWord | None]:
    """The values that a loop is judged with; those that another command lists are marked.

    A pattern that may match a protected file stands for that file, too.
    """
    kept: list[ExpandedWord | None] = [
        ExpandedWord(value.text, value.glob, value.origin | Origin.LISTED)
        if not value.known and value.origin & (Origin.PROGRAM | Origin.FILE)
        else value
        for value in values[:MAX_LOOP_VALUES]
    ]
    marked_ones = [value for value in values[:MAX_LOOP_VALUES] if value.origin & Origin.PROTECTED_FILE and value.glob]
    kept += [ExpandedWord(protected_by_pattern(value, state)) for value in marked_ones[:4]]
    return [*kept, ExpandedWord(UNKNOWN)] if len(values) > MAX_LOOP_VALUES else kept
