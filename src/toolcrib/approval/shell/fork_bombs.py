"""Recognises commands that multiply without end."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolcrib.approval.shell import grammar
from toolcrib.approval.shell.tokens import Word


def children(node: grammar.Command) -> Iterator[tuple[grammar.Command, bool]]:
    """The commands inside a command, each with whether it runs beside others."""
    match node:
        case grammar.Pipeline():
            yield from ((child, True) for child in node.commands)
        case grammar.AndOr():
            yield from ((child, False) for child in node.commands)
        case grammar.Sequence():
            yield from ((child, number in node.background) for number, child in enumerate(node.commands))
        case grammar.Group():
            yield node.body, False
        case grammar.Branches():
            yield from ((child, False) for child in node.alternatives)
        case grammar.Loop():
            yield node.body, False


def simple_commands(node: grammar.Command, beside: bool = False) -> Iterator[tuple[grammar.Simple, bool]]:
    if isinstance(node, grammar.Simple):
        yield node, beside
    for child, parallel in children(node):
        yield from simple_commands(child, beside or parallel)


def is_bomb(name: str, body: grammar.Command) -> bool:
    """True for a function that starts itself beside itself, whatever its name."""
    calls = [beside for command, beside in simple_commands(body) if command.words and command.words[0].literal == name]
    return any(calls) and (len(calls) > 1 or all(calls))


def spawns_itself(node: grammar.Command) -> bool:
    """True for `$0 | $0 &` and the like: a script that runs itself beside itself."""
    return any(beside and _runs_itself(command) for command, beside in simple_commands(node))


def _runs_itself(command: grammar.Simple) -> bool:
    return any(
        part.kind == "variable" and part.text in ("0", "BASH_SOURCE")
        for word in command.words[:2]
        for part in word.parts
    )


def spawns_without_end(loop: grammar.Loop) -> bool:
    """True for an endless loop whose body starts something in the background."""
    if loop.condition is None:
        return _has_background(loop.body) and any(_counts_far(word) for word in loop.values or [])
    condition = [command.words[0].literal for command, _ in simple_commands(loop.condition) if command.words]
    if condition not in (["true"], [":"], ["1"]):
        return False
    commands = list(simple_commands(loop.body))
    waits = any(
        command.words and command.words[0].literal in ("wait", "sleep", "read")
        for command, beside in commands
        if not beside
    )
    return any(beside for _, beside in commands) and _has_background(loop.body) and not waits


def _counts_far(word: Word) -> bool:
    """True for `((;;))` and for counting to a thousand or more."""
    for part in word.parts:
        if part.kind == "arithmetic":
            text = "".join(inner.text for each in part.words for inner in each.parts)
            condition = text.split(";")[1:2]
            return condition in ([""], ["1"], [" "]) or bool(re.search(r"\d{4,}", text))
        if part.kind == "command" and part.script is not None:
            text = part.script.source[part.script.start : part.script.end]
            return "seq" in text and bool(re.search(r"\d{4,}", text))
    return False


def _has_background(node: grammar.Command) -> bool:
    if isinstance(node, grammar.Sequence) and node.background:
        return True
    return any(_has_background(child) for child, _ in children(node))
