"""Recognises commands that multiply endlessly."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolcrib.approval.shell.syntax import (
    AndOrList,
    CaseCommand,
    Command,
    CommandList,
    GroupCommand,
    IfCommand,
    LiteralText,
    LoopCommand,
    ParameterExpansion,
    PipelineCommand,
    SimpleCommand,
    Substitution,
)


def children(node: Command) -> Iterator[tuple[Command, bool]]:
    """The commands inside a command, each with whether it runs concurrently with others."""
    match node:
        case PipelineCommand():
            yield from ((child, True) for child in node.commands)
        case AndOrList():
            yield from ((child, False) for child in node.commands)
        case CommandList():
            yield from ((child, number in node.background) for number, child in enumerate(node.commands))
        case GroupCommand() | LoopCommand():
            yield node.body, False
        case IfCommand():
            yield from ((clause.body, False) for clause in node.clauses)
            if node.otherwise is not None:
                yield node.otherwise, False
        case CaseCommand():
            yield from ((item.body, False) for item in node.items)


def simple_commands(node: Command) -> Iterator[tuple[SimpleCommand, bool]]:
    """The simple commands in a command, each with whether it runs concurrently with others."""
    pending = [(node, False)]
    while pending:
        current, beside = pending.pop()
        if isinstance(current, SimpleCommand):
            yield current, beside
        pending.extend((child, beside or parallel) for child, parallel in children(current))


def is_bomb(name: str, body: Command) -> bool:
    """True for a function that starts another copy of itself while it runs, whatever its name."""
    calls = [beside for command, beside in simple_commands(body) if command.words and command.words[0].literal == name]
    return any(calls) and (len(calls) > 1 or all(calls))


def spawns_itself(node: Command) -> bool:
    """True for `$0 | $0 &` and the like: a script that starts more copies of itself while it runs."""
    return any(beside and _runs_itself(command) for command, beside in simple_commands(node))


def _runs_itself(command: SimpleCommand) -> bool:
    return any(
        isinstance(part, ParameterExpansion) and part.name in ("0", "BASH_SOURCE")
        for word in command.words[:2]
        for part in word.parts
    )


def exhausts(loop: LoopCommand) -> str:
    """How an endless loop uses up the machine; empty if it does not."""
    if spawns_without_end(loop):
        return "starts processes in an endless loop"
    return "writes to files in an endless loop" if _is_endless(loop) and _only_grows(loop.body) else ""


def _is_endless(loop: LoopCommand) -> bool:
    if loop.condition is None:
        return loop.counter is not None and _counts_far(loop)
    condition = [command.words[0].literal for command, _ in simple_commands(loop.condition) if command.words]
    return condition in (["true"], [":"], ["1"])


PAUSES = frozenset({"wait", "sleep", "read", "break", "exit", "return", "inotifywait", "curl", "wget", "make", "kill"})
"""What ends a loop, or makes each round wait for something."""


def _only_grows(body: Command) -> bool:
    """True for a body that adds to a file, or makes another file or folder, each time and without waiting."""
    commands = [command for command, _ in simple_commands(body)]
    names = [command.words[0].literal for command in commands if command.words]
    if any(name in PAUSES or name is None for name in names):
        return False
    appends = any(each.operator in (">>", "&>>") for command in commands for each in command.redirections)
    return appends or {*names} == {"mkdir", "cd"} or "mktemp" in names or "fallocate" in names


def spawns_without_end(loop: LoopCommand) -> bool:
    """True for an endless loop whose body starts something in the background."""
    if loop.condition is None:
        return _has_background(loop.body) and _counts_far(loop)
    if not _is_endless(loop):
        return False
    commands = list(simple_commands(loop.body))
    waits = any(
        command.words and command.words[0].literal in ("wait", "sleep", "read")
        for command, beside in commands
        if not beside
    )
    return any(beside for _, beside in commands) and _has_background(loop.body) and not waits


def _counts_far(loop: LoopCommand) -> bool:
    """True for `((;;))` and for counting to a thousand or more."""
    if loop.counter is not None:
        text = "".join(part.text for part in loop.counter.expression.parts if isinstance(part, LiteralText))
        condition = text.split(";")[1:2]
        return condition in ([""], ["1"], [" "]) or bool(re.search(r"\d{4,}", text))
    for word in loop.values or ():
        if re.search(r"\{\d+\.\.\d{4,}\}", word.literal or ""):
            return True
        for part in word.parts:
            if isinstance(part, Substitution):
                text = part.source[part.start : part.end]
                return "seq" in text and bool(re.search(r"\d{4,}", text))
    return False


def _has_background(node: Command) -> bool:
    if isinstance(node, CommandList) and node.background:
        return True
    return any(_has_background(child) for child, _ in children(node))
