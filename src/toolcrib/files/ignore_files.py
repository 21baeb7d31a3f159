"""Rules of .gitignore, .ignore and .rgignore files, with the meaning that ripgrep gives them.

The last rule of a file that fits decides; the file nearest to the path decides over those above it. Standard library
only: the search process starts without anything else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from toolcrib.files.path_globs import Class, Either, GlobError, Token, Wild, expression_of, tokens_of

IGNORE_FILES = (b".rgignore", b".ignore", b".gitignore")
"""In the order in which they overrule each other, in whatever folders they stand."""
EXCLUDE_FILE = b".git/info/exclude"


@dataclass(frozen=True, slots=True)
class Rule:
    tokens: tuple[Token, ...]
    keeps: bool
    """It takes back what another rule ignores."""
    only_folders: bool


def read_rule(line: str) -> Rule | None:
    """The rule in one line; None for a comment, an empty line, and what means nothing."""
    if line.startswith("#"):
        return None
    if not line.endswith("\\ "):
        line = line.rstrip()
    if not line:
        return None
    keeps = anchored = False
    if line.startswith(("\\!", "\\#")):
        line = line[1:]
        anchored = line.startswith("/")
    else:
        if line.startswith("!"):
            keeps, line = True, line[1:]
        if line.startswith("/"):
            anchored, line = True, line[1:]
    only_folders = line.endswith("/")
    if only_folders:
        line = line[:-1].removesuffix("\\")
    if not anchored and "/" not in line and not (line.startswith("**/") or line == "**"):
        line = f"**/{line}"
    if line.endswith("/**"):
        line += "/*"
    try:
        return Rule(tokens_of(line), keeps, only_folders)
    except GlobError:
        return None


@dataclass(slots=True)
class _Table:
    """Finds the last rule that fits, for files or for folders."""

    names: dict[bytes, int] = field(default_factory=dict)
    endings: dict[bytes, int] = field(default_factory=dict)
    """By what follows the last dot, dot included."""
    of_name: list[tuple[int, bytes]] = field(default_factory=list)
    of_path: list[tuple[int, bytes]] = field(default_factory=list)
    name_pattern: re.Pattern[bytes] | None = None
    path_pattern: re.Pattern[bytes] | None = None

    def add(self, index: int, rule: Rule) -> None:
        last = _last_name(rule.tokens)
        if last is None:
            self.of_path.append((index, expression_of(rule.tokens)))
        elif all(isinstance(token, str) for token in last):
            self.names[_literal(last)] = index
        elif last[0] is Wild.STAR and last[1:2] == (".",) and _is_ending(last[2:]):
            self.endings[_literal(last[1:])] = index
        else:
            self.of_name.append((index, expression_of(last)))

    def finish(self) -> None:
        self.name_pattern, self.path_pattern = _combined(self.of_name), _combined(self.of_path)

    def last_fitting(self, path: bytes, name: bytes) -> int:
        """The number of the last rule that fits, or -1."""
        found = self.names.get(name, -1)
        if self.endings:
            dot = name.rfind(b".")
            if dot >= 0:
                found = max(found, self.endings.get(name[dot:], -1))
        if self.name_pattern is not None and (fit := self.name_pattern.fullmatch(name)):
            found = max(found, self.of_name[-(fit.lastindex or 1)][0])
        if self.path_pattern is not None and (fit := self.path_pattern.fullmatch(path)):
            found = max(found, self.of_path[-(fit.lastindex or 1)][0])
        return found


class IgnoreFile:
    """The rules of one file; paths are relative to the folder that it stands in."""

    __slots__ = ("_files", "_folders", "_keeps")

    def __init__(self, content: bytes) -> None:
        rules = [rule for rule in map(read_rule, _lines(content)) if rule is not None]
        self._keeps = [rule.keeps for rule in rules]
        self._files, self._folders = _Table(), _Table()
        for index, rule in enumerate(rules):
            self._folders.add(index, rule)
            if not rule.only_folders:
                self._files.add(index, rule)
        self._files.finish()
        self._folders.finish()

    def __bool__(self) -> bool:
        return bool(self._keeps)

    def ignores(self, path: bytes, name: bytes, is_folder: bool) -> bool | None:
        """Whether a path is ignored; None when no rule fits. `name` is its last part."""
        index = (self._folders if is_folder else self._files).last_fitting(path, name)
        return None if index < 0 else not self._keeps[index]


def _lines(content: bytes) -> list[str]:
    """The lines, up to the first that is no text: ripgrep reads no further, either."""
    lines = []
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        try:
            lines.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError:
            break
    return lines


def _last_name(tokens: tuple[Token, ...]) -> tuple[Token, ...] | None:
    """What follows `**/`, where that can only be the last part of a path."""
    if len(tokens) < 2 or tokens[0] is not Wild.PREFIX:
        return None
    rest = tokens[1:]
    # A set or a choice might hold a slash.
    if any(isinstance(token, Class | Either) or token == "/" for token in rest):
        return None
    return rest if all(isinstance(token, str) or token in (Wild.ANY, Wild.STAR) for token in rest) else None


def _is_ending(tokens: tuple[Token, ...]) -> bool:
    return bool(tokens) and all(isinstance(token, str) and token != "." for token in tokens)


def _literal(tokens: tuple[Token, ...]) -> bytes:
    return "".join(token for token in tokens if isinstance(token, str)).encode(errors="surrogateescape")


def _combined(rules: list[tuple[int, bytes]]) -> re.Pattern[bytes] | None:
    """One expression whose group says which rule fits, later ones first."""
    if not rules:
        return None
    return re.compile(b"|".join(b"(%s)" % expression for _, expression in reversed(rules)), re.DOTALL)
