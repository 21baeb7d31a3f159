"""Code that a command line only prepares: functions, aliases and hooks, which this line or a later one runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toolcrib.approval.shell.assignments import LASTING_HOOKS, judge_environment
from toolcrib.approval.shell.findings import Findings
from toolcrib.approval.shell.fold import Folder
from toolcrib.approval.shell.fork_bombs import is_bomb
from toolcrib.approval.shell.model import ANYTHING, NOTHING, UNKNOWN, Data, Field, NotUnderstood, name_set
from toolcrib.approval.shell.parser import split_words
from toolcrib.approval.shell.runner import Site
from toolcrib.approval.shell.state import State
from toolcrib.approval.shell.syntax import Command, FunctionDefinition

MAX_CALLS = 8
MAX_RECURSION = 2
DANGEROUS_BY_ARGUMENTS = name_set(
    "rm grm srm shred wipe unlink dd truncate chmod chown chgrp kill pkill killall shutdown reboot halt poweroff init "
    "mkfs wipefs sudo doas env nohup eval exec xargs busybox"
)
"""Programs to which a later command need only add arguments; under another name nobody would see it."""


class Definitions(Findings):
    """Remembers what a command line defines, judges it when it is called, and at the end what never was."""

    folder: Folder

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.bombs: set[str] = set()
        self.called: set[int] = set()
        self.defined: list[tuple[str, Command, str, Site | None]] = []
        self.aliases: dict[str, tuple[str, Site]] = {}
        self.called_aliases: set[str] = set()
        self.hooks: set[tuple[str, str]] = set()

    def command(self, node: Command, state: State, stdin: Data | None) -> Data:
        """Judge one node of the tree."""
        raise NotImplementedError

    def run_text(self, text: str, state: State, stdin: Data | None, site: Site) -> Data:
        """Judge a shell script given as text."""
        raise NotImplementedError

    def invoke(self, words: list[Field], state: State, stdin: Data | None, site: Site) -> Data:
        """Judge one command given by its words."""
        raise NotImplementedError

    def feed(self, path: str, data: Data, state: State) -> Data:
        """Judge the script behind `>( … )` with what is written to it."""
        raise NotImplementedError

    def define(self, node: FunctionDefinition, state: State) -> Data:
        name = node.name.literal
        if name is None:
            raise NotUnderstood("a function has an odd name")
        state.functions[name] = (node.body, self.source)
        self.defined.append((name, node.body, self.source, self.site))
        if is_bomb(name, node.body):
            self.bombs.add(name)
        return NOTHING

    def define_alias(self, name: str, text: str, site: Site) -> None:
        self.aliases[name] = (text, site)

    def finish(self, state: State) -> None:
        """Judge what was defined and waits for a later command, which may call it with anything."""
        source, site = self.source, self.site
        lasting = {id(body) for body, _ in state.functions.values()}
        # Judging one may define the next, so the list grows on the way.
        for definition in self.defined:
            if id(definition[1]) not in self.called:
                self.judge_function(*definition, state)
            elif id(definition[1]) in lasting:
                known = {finding.rule for finding in self.findings}
                before = len(self.findings)
                self.judge_function(*definition, state)
                # What was found when it was called need not be said twice.
                self.findings[before:] = [each for each in self.findings[before:] if each.rule not in known]
        self.source, self.site = source, site
        for name, (text, place) in list(self.aliases.items()):
            with self.only_prepared():
                self.judge_alias(name, text, state.copy(), place)
        hooks = {name: value for name, value in state.variables.items() if name in LASTING_HOOKS}
        if hooks:
            with self.only_prepared():
                judge_environment(self, hooks, state, self.whole_site())

    def judge_function(self, name: str, body: Command, source: str, site: Site | None, state: State) -> None:
        self.called.add(id(body))
        self.source, self.site = source, site
        if name in self.bombs:
            self.report("fork_bomb", f"defines {name!r}, which starts copies of itself", self.whole_site())
            return
        inner = state.copy()
        inner.positional = None
        # Its own name inside it means the program of that name, as behind `command`.
        self.calls = [name] * MAX_RECURSION
        try:
            with self.only_prepared():
                self.command(body, inner, None)
        finally:
            self.calls = []

    @contextmanager
    def only_prepared(self) -> Iterator[None]:
        """Inside, a block becomes a question: nothing of it has run yet."""
        before = len(self.findings)
        try:
            yield
        finally:
            self.soften(before)

    def judge_alias(self, name: str, text: str, state: State, site: Site) -> None:
        self.calls.append(name)
        try:
            if text.strip() and name not in self.called_aliases:
                self.run_text(text, state, None, site)
        finally:
            self.calls.pop()
        program = text.strip().rpartition("/")[2]
        if program != name and program in DANGEROUS_BY_ARGUMENTS:
            self.report("unknown_code", f"makes the name {name!r} run {program}", site)

    def call_function(self, name: str, arguments: list[Field], state: State, stdin: Data | None, site: Site) -> Data:
        self.called.add(id(state.functions[name][0]))
        if name in self.bombs:
            self.report(
                "fork_bomb", "calls a function that starts copies of itself without end", site, severity="block"
            )
            return NOTHING
        if len(self.calls) > MAX_CALLS:
            return ANYTHING
        body, source = state.functions[name]
        outer_source, outer_site, outer_arguments = self.source, self.site, state.positional
        self.source, self.site = source, self.site or site
        state.positional = arguments
        self.calls.append(name)
        try:
            return self.command(body, state, stdin)
        finally:
            self.calls.pop()
            self.source, self.site, state.positional = outer_source, outer_site, outer_arguments

    def wrapped_program(self, words: list[Field], state: State) -> list[Field]:
        """The words of the program behind a function of its name, as in `ls() { command ls -F "$@"; }`."""
        # What a later command will add to a function that is only defined is judged with that command.
        return words if state.positional is not None else [word for word in words if word.text != UNKNOWN]

    def call_alias(self, name: str, arguments: list[Field], state: State, stdin: Data | None, site: Site) -> Data:
        self.called_aliases.add(name)
        self.calls.append(name)
        try:
            split = split_words(state.aliases[name])
            if split is None:
                return self.run_text(state.aliases[name], state, stdin, site)
            words = self.folder.fields(split, state)
            return self.invoke([*words, *arguments], state, stdin, site) if words else NOTHING
        finally:
            self.calls.pop()
