"""The rules of ignore files such as `.gitignore`, as git reads them.

Imports only the standard library at module level, because the search process has to start quickly.
"""

from __future__ import annotations

import codecs
import contextlib
import re

# How pathspec writes "everything" and "every folder".
_WHOLE_TREE = {".": "(?s:.+)", "/": "(?s:.+/)"}


class MalformedRule(ValueError):
    """A line that is no rule; git skips it."""


def git_rule(line: str) -> tuple[bool, re.Pattern[str]] | None:
    """Whether a line of an ignore file ignores paths or keeps them, and the expression that matches exactly those.

    Folders end with a slash. None for a comment or an empty line; raises MalformedRule.
    """
    # Costs more to import than everything else here, and most searches by ripgrep do without.
    from pathspec.patterns.gitignore import GitIgnorePatternError, basic  # noqa: PLC0415

    try:
        rule = basic.GitIgnoreBasicPattern(line)
    except (GitIgnorePatternError, re.error) as error:
        raise MalformedRule(str(error)) from error
    if rule.include is None or rule.regex is None or line.removeprefix("!").rstrip() == "/":
        return None
    # The expressions of pathspec match everything in a matching folder, too. Whoever walks has decided about folders
    # before it comes to their content, so a full match is right, except for rules that are about the content.
    expression, written = _WHOLE_TREE.get(rule.regex.pattern, rule.regex.pattern), line.rstrip()
    if any(part not in ("", "!", "**") for part in written.split("/")):
        expression += "(?s:.+)" if written.endswith("/**") else "(?s:.+/)" if written.endswith("/**/") else ""
    return rule.include, re.compile(expression)


class IgnoreFile:
    """The rules of one ignore file; paths are relative to its folder.

    Like git, it compares bytes: `?` is one byte, not one letter.
    """

    __slots__ = ("_expression", "_ignores")

    def __init__(self, content: bytes) -> None:
        rules = []
        for line in content.removeprefix(codecs.BOM_UTF8).decode("latin-1").split("\n"):
            with contextlib.suppress(MalformedRule):
                rules.append(git_rule(line.removesuffix("\r")))
        last_first = [rule for rule in reversed(rules) if rule is not None]
        self._ignores = [ignores for ignores, _ in last_first]
        self._expression = re.compile("|".join(f"({expression.pattern})" for _, expression in last_first))

    def __bool__(self) -> bool:
        return bool(self._ignores)

    def decides(self, path: bytes) -> bool | None:
        """Whether the last rule that matches a path ignores it; None when none does. Folders end with a slash."""
        match = self._expression.fullmatch(path.decode("latin-1"))
        return None if match is None or match.lastindex is None else self._ignores[match.lastindex - 1]
