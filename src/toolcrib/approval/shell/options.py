"""Splits an argument list into options, their values and operands, the way getopt does."""

from __future__ import annotations

import re

import msgspec

from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord


class Arguments(msgspec.Struct):
    """The options with their values, in order, and the operands of one command."""

    options: list[tuple[str, ExpandedWord | None]] = msgspec.field(default_factory=list)
    operands: list[ExpandedWord] = msgspec.field(default_factory=list)

    def has(self, *names: str) -> bool:
        """True when one of the options was given, possibly as an unambiguous abbreviation (`--recurs`)."""
        return any(_names(given, names) for given, _ in self.options)

    def value(self, *names: str) -> ExpandedWord | None:
        """The last value of one of these options."""
        for given, value in reversed(self.options):
            if value is not None and _names(given, names):
                return value
        return None

    def values(self, *names: str) -> list[ExpandedWord]:
        return [value for given, value in self.options if value is not None and _names(given, names)]


def _names(given: str, names: tuple[str, ...]) -> bool:
    if given in names:
        return True
    if not given.startswith("--") or len(given) < 4:
        return False
    return any(name.startswith(given) for name in names)


def parse_arguments(
    arguments: list[ExpandedWord], values: frozenset[str], *, single_dash: bool = False, stop_early: bool = False
) -> Arguments:
    """Split arguments; `values` are the options that take one, `single_dash` reads `-name` as one option.

    `stop_early` ends at the first operand, as wrappers such as `sudo` and `env` do.
    """
    result = Arguments()
    number, count = 0, len(arguments)
    while number < count:
        given = arguments[number]
        text = given.text
        number += 1
        if text == "--":
            result.operands.extend(arguments[number:])
            break
        if len(text) < 2 or text[0] != "-":
            if stop_early:
                result.operands.extend(arguments[number - 1 :])
                break
            result.operands.append(given)
        elif text[1] == "-" or single_dash:
            number += _long(result, given, arguments, number, values)
        else:
            number += _cluster(result, given, arguments, number, values)
    return result


def _long(result: Arguments, given: ExpandedWord, rest: list[ExpandedWord], number: int, values: frozenset[str]) -> int:
    name, equals, value = given.text.partition("=")
    if equals:
        result.options.append((name, given.with_text(value)))
        return 0
    if name in values and number < len(rest):
        result.options.append((name, rest[number]))
        return 1
    result.options.append((name, None))
    return 0


def _cluster(
    result: Arguments, given: ExpandedWord, rest: list[ExpandedWord], number: int, values: frozenset[str]
) -> int:
    text = given.text
    if text in values and number < len(rest):
        result.options.append((text, rest[number]))
        return 1
    for at in range(1, min(len(text), 64)):
        name = "-" + text[at]
        if name not in values:
            result.options.append((name, None))
            continue
        if at + 1 < len(text):
            result.options.append((name, given.with_text(text[at + 1 :])))
            return 0
        if number < len(rest):
            result.options.append((name, rest[number]))
            return 1
        result.options.append((name, None))
    # `-rf` as a whole, for programs whose options are words after one dash.
    if len(text) > 2:
        result.options.append((text, None))
    return 0


def option_values(words: list[ExpandedWord], names: tuple[str, ...]) -> list[ExpandedWord]:
    """The values of some options in all spellings: `-c x`, `-cx`, `--command=x`, or at the end of a cluster."""
    found: list[ExpandedWord] = []
    for number, word in enumerate(words):
        text = word.text
        for name in names:
            if text == name or (len(name) == 2 and re.fullmatch(rf"-[A-Za-z]{{0,6}}{name[1]}", text)):
                found.extend(words[number + 1 : number + 2])
            elif text.startswith(name + "="):
                found.append(word.with_text(text[len(name) + 1 :]))
            elif len(name) == 2 and text.startswith(name) and len(text) > 2 and not text.startswith("--"):
                found.append(word.with_text(text[2:]))
            else:
                continue
            break
    return found


def may_be_option(field_: ExpandedWord) -> bool:
    """True for a word that the shell could still turn into an option."""
    return field_.text.startswith(UNKNOWN)
