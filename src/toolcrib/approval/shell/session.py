"""What a session's shell knows from earlier commands: exported variables, functions and aliases.

An environment stores them as shell text (`export -p`, `declare -f`, `alias -p`). The functions and aliases that the
session started with are the user's own and count as programs; those that commands have defined since are read.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from toolcrib.approval.shell.assignments import declare
from toolcrib.approval.shell.expansion import Expander
from toolcrib.approval.shell.model import ANYTHING, UNKNOWN, ExpandedWord, NotUnderstood, Origin, StreamData
from toolcrib.approval.shell.parser import parse
from toolcrib.approval.shell.secret_variables import names_secret
from toolcrib.approval.shell.state import ShellState, Value
from toolcrib.approval.shell.syntax import Command, FunctionDefinition, Script, SimpleCommand, Substitution
from toolcrib.core.types import ShellSession

MAX_SESSION_TOKENS = 400_000
FIRST_DEFINITION = re.compile(r"^(?:[^\s=]+ \(\) *$|declare -fx |alias )", re.MULTILINE)
NOT_TAKEN = frozenset({"PWD", "HOME", "SHLVL", "_", "IFS"})
"""The state of a command line has its own, or they change with every shell."""
UNREADABLE = "earlier commands left variables or functions that cannot be read"


class KnownSession(msgspec.Struct, frozen=True):
    """The variables of a session, and the functions and aliases that its commands have defined."""

    variables: dict[str, Value] = msgspec.field(default_factory=dict)
    functions: dict[str, tuple[Command, str]] = msgspec.field(default_factory=dict)
    aliases: dict[str, str] = msgspec.field(default_factory=dict)
    error: str = ""

    def enter(self, state: ShellState) -> None:
        """Let a command line start with what the session knows."""
        state.variables.update(self.variables)
        state.functions.update(self.functions)
        state.aliases.update(self.aliases)


class _Definitions(msgspec.Struct, frozen=True):
    functions: dict[str, tuple[Command, str]]
    texts: dict[str, str]
    """The functions as text, to compare them."""
    aliases: dict[str, str]


@lru_cache(maxsize=16)
def read_session(session: ShellSession) -> KnownSession:
    """What the text of a session says; `error` is set if it cannot be read."""
    exports, rest = _sections(session.now)
    _, first_rest = _sections(session.first)
    try:
        variables = _variables(exports)
        if rest == first_rest:
            return KnownSession(variables)
        now, before = _definitions(rest), _definitions(first_rest)
    except NotUnderstood:
        return KnownSession(error=UNREADABLE)
    functions = {name: body for name, body in now.functions.items() if before.texts.get(name) != now.texts[name]}
    aliases = {name: text for name, text in now.aliases.items() if before.aliases.get(name) != text}
    return KnownSession(variables, functions, aliases)


def _sections(text: str) -> tuple[str, str]:
    """The exported variables, and the functions and aliases after them."""
    found = FIRST_DEFINITION.search(text)
    return (text[: found.start()], text[found.start() :]) if found else (text, "")


def _parsed(text: str) -> Script:
    script = parse(text, max_tokens=MAX_SESSION_TOKENS)
    if script.error:
        raise NotUnderstood(script.error)
    return script


def _run_nothing(_node: Substitution, _state: ShellState, _stdin: StreamData | None = None) -> StreamData:
    return ANYTHING


def _count_nothing(_steps: int) -> None:
    """The text of a session is as long as it is."""


@lru_cache(maxsize=16)
def _variables(text: str) -> dict[str, Value]:
    state = ShellState(home="/", cwd="")
    expander = Expander(_run_nothing, _count_nothing)
    for command in _parsed(text).body.commands:
        if isinstance(command, SimpleCommand):
            declare(expander, command.words, state)
    return {name: _value(name, value) for name, value in state.variables.items() if name not in NOT_TAKEN}


def _value(name: str, value: Value) -> Value:
    """The value of a variable; that of a key never becomes part of a message."""
    return [ExpandedWord(UNKNOWN, origin=Origin.KEY, keys=(name,))] if names_secret(name) else value


@lru_cache(maxsize=16)
def _definitions(text: str) -> _Definitions:
    script = _parsed(text)
    found = _Definitions({}, {}, {})
    expander, state = Expander(_run_nothing, _count_nothing), ShellState(home="/", cwd="")
    for command in script.body.commands:
        if isinstance(command, FunctionDefinition) and command.name.literal:
            found.functions[command.name.literal] = (command.body, script.text)
            found.texts[command.name.literal] = script.text[command.start : command.end]
        elif isinstance(command, SimpleCommand) and command.words[0].literal == "alias":
            for word in expander.fields(command.words[1:], state):
                name, equals, value = word.text.partition("=")
                if equals:
                    found.aliases[name] = value
    return found
