"""Walks the tree of a command line as a shell would, without running anything, and judges every command on the way."""

from __future__ import annotations

import re

from toolcrib.approval.shell import grammar
from toolcrib.approval.shell.assignments import assignments, declare, judge_environment
from toolcrib.approval.shell.commands import HANDLERS, is_silent_about_secrets
from toolcrib.approval.shell.flow import judge_flow, read_redirections, write_redirections
from toolcrib.approval.shell.fold import Folder
from toolcrib.approval.shell.fork_bombs import is_bomb, spawns_itself, spawns_without_end
from toolcrib.approval.shell.judge import help_only, judge
from toolcrib.approval.shell.lexer import tokenize
from toolcrib.approval.shell.model import (
    ANYTHING,
    MAX_STEPS,
    NOTHING,
    UNKNOWN,
    Data,
    Field,
    Finding,
    NotUnderstood,
    Origin,
    Severity,
)
from toolcrib.approval.shell.outputs import output_of
from toolcrib.approval.shell.paths import is_private, is_secret, resolve
from toolcrib.approval.shell.prescan import join_lines
from toolcrib.approval.shell.rules.base import Call
from toolcrib.approval.shell.rules.table import DANGERS
from toolcrib.approval.shell.runner import Site
from toolcrib.approval.shell.state import State
from toolcrib.approval.shell.tokens import Redirection, Script

MAX_NESTED_SCRIPTS = 10
MAX_CALLS = 8
MAX_WRAPPED = 16
MAX_WORDS = 2000
MAX_LOOP_VALUES = 16


class Evaluator:
    """Collects the findings of one command line."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.reported: set[Finding] = set()
        self.not_understood: list[str] = []
        self.steps = 0
        self.nested = 0
        self.wrapped = 0
        self.calls: list[str] = []
        self.bombs: set[str] = set()
        self.called: set[int] = set()
        self.defined: list[tuple[str, grammar.Command, str]] = []
        self.source = ""
        self.workspace = "//"
        self.site: Site | None = None
        self.folder = Folder(self.run_script)

    def run_script(self, script: Script, state: State) -> Data:
        outer = self.source
        self.source = script.source
        try:
            return self.command(grammar.parse(script), state, None)
        finally:
            self.source = outer

    def run_text(self, text: str, state: State, stdin: Data | None, site: Site) -> Data:
        if UNKNOWN in text and text.strip() in (UNKNOWN, ""):
            self.report("unknown_code", "runs code that is only known at run time", site)
            return ANYTHING
        if self.nested >= MAX_NESTED_SCRIPTS:
            raise NotUnderstood("scripts are nested too deeply")
        self.spend(1 + len(text) // 8)
        outer_source, outer_site = self.source, self.site
        # Inside a nested script positions mean nothing in the original text, so findings keep the outer place.
        self.source, self.site = join_lines(text), site
        self.nested += 1
        try:
            return self.command(grammar.parse(tokenize(self.source)), state, stdin)
        finally:
            self.nested -= 1
            self.source, self.site = outer_source, outer_site

    def report(
        self, key: str, reason: str, site: Site, *, severity: Severity = "ask", paths: tuple[str, ...] = ()
    ) -> None:
        danger = DANGERS[key]
        finding = Finding(
            rule=key,
            description=danger.description,
            severity=severity,
            subcommand=site.text[:500],
            span=site.span,
            paths=tuple(path.replace(UNKNOWN, "…") for path in paths),
            scope=self.scope(danger.scope, paths),
            reason=reason,
        )
        if finding not in self.reported:
            self.reported.add(finding)
            self.findings.append(finding)

    def scope(self, usual: str, paths: tuple[str, ...]) -> str:
        """What a grant would cover: the workspace where every path is known to lie in it, else something wider."""
        if usual != "inside the workspace":
            return usual
        if not paths or any(UNKNOWN in path for path in paths):
            return "files that are only known at run time"
        inside = all(
            path.startswith(self.workspace) if path.startswith("/") else not path.startswith("..") for path in paths
        )
        return usual if inside else "outside the workspace"

    def command(self, node: grammar.Command, state: State, stdin: Data | None) -> Data:
        self.spend(1)
        match node:
            case grammar.Simple():
                return self.simple(node, state, stdin)
            case grammar.Pipeline():
                return self.pipeline(node, state, stdin)
            case grammar.AndOr():
                return self.and_or(node, state, stdin)
            case grammar.Sequence():
                return self.sequence(node, state, stdin)
            case grammar.Group():
                return self.group(node, state, stdin)
            case grammar.Branches():
                return self.branches(node, state, stdin)
            case grammar.Loop():
                return self.loop(node, state, stdin)
            case grammar.Function():
                return self.define(node, state)

    def pipeline(self, node: grammar.Pipeline, state: State, stdin: Data | None) -> Data:
        data = stdin
        self.look_for_self_spawning(node)
        for command in node.commands:
            inner = state.copy()
            data = self.command(command, inner, data)
            state.files.update(inner.files)
        return data or NOTHING

    def and_or(self, node: grammar.AndOr, state: State, stdin: Data | None) -> Data:
        outputs = [self.command(node.commands[0], state, stdin)]
        inner = state.copy()
        outputs += [self.command(command, inner, stdin) for command in node.commands[1:]]
        state.merge(inner)
        return Data.join(outputs)

    def sequence(self, node: grammar.Sequence, state: State, stdin: Data | None) -> Data:
        if node.background:
            self.look_for_self_spawning(node)
        outputs = [self.command(command, state, stdin) for command in node.commands]
        return Data.join(outputs) if outputs else NOTHING

    def look_for_self_spawning(self, node: grammar.Command) -> None:
        if spawns_itself(node):
            self.report("fork_bomb", "starts copies of itself", self.whole_site())

    def whole_site(self) -> Site:
        return self.site or Site(self.source.strip(), (0, len(self.source)))

    def group(self, node: grammar.Group, state: State, stdin: Data | None) -> Data:
        inner = state.copy() if node.subshell else state
        site = self.whole_site()
        data = read_redirections(self, self.targets(node.redirections, inner), inner, stdin, site)
        output = self.command(node.body, inner, data)
        return write_redirections(self, self.targets(node.redirections, inner), inner, output, site)

    def branches(self, node: grammar.Branches, state: State, stdin: Data | None) -> Data:
        outputs: list[Data] = []
        if node.always is not None:
            outputs.append(self.command(node.always, state, stdin))
        if node.subject is not None:
            self.folder.text(node.subject, state)
        before = state.copy()
        for alternative in node.alternatives:
            inner = before.copy()
            outputs.append(self.command(alternative, inner, stdin))
            state.merge(inner)
        return Data.join(outputs) if outputs else NOTHING

    def loop(self, node: grammar.Loop, state: State, stdin: Data | None) -> Data:
        if spawns_without_end(node):
            self.report("fork_bomb", "starts processes in an endless loop", self.whole_site())
        if node.condition is not None:
            self.command(node.condition, state, stdin)
        values = [None] if node.values is None else self.folder.fields(node.values, state)[:MAX_LOOP_VALUES]
        name = node.variable.literal if node.variable is not None else None
        outputs: list[Data] = []
        inner = state.copy()
        for value in values:
            if name is not None:
                inner.variables[name] = [
                    value.with_text(UNKNOWN) if value is not None and value.glob else value or Field(UNKNOWN)
                ]
                if value is not None and value.glob:
                    inner.variables[name] = [Field(value.text, True)]
            outputs.append(self.command(node.body, inner, stdin))
        state.merge(inner)
        return Data.join(outputs) if outputs else NOTHING

    def define(self, node: grammar.Function, state: State) -> Data:
        name = node.name.literal
        if name is None:
            raise NotUnderstood("a function has an odd name")
        state.functions[name] = (node.body, self.source)
        self.defined.append((name, node.body, self.source))
        if is_bomb(name, node.body):
            self.bombs.add(name)
        return NOTHING

    def finish(self, state: State) -> None:
        """Judge the functions that were defined and never called: they wait for a later command."""
        # Judging one may define the next, so the list grows on the way.
        for name, body, source in self.defined:
            if id(body) in self.called:
                continue
            self.called.add(id(body))
            self.source = source
            if name in self.bombs:
                self.report("fork_bomb", f"defines {name!r}, which starts copies of itself", self.whole_site())
                continue
            before = len(self.findings)
            inner = state.copy()
            inner.positional = None
            self.command(body, inner, None)
            self.soften(before)

    def soften(self, first: int) -> None:
        """Turn blocks into questions for code that is only defined."""
        for number in range(first, len(self.findings)):
            found = self.findings[number]
            self.findings[number] = Finding(
                rule=found.rule,
                description=found.description,
                severity="ask",
                subcommand=found.subcommand,
                span=found.span,
                paths=found.paths,
                scope=found.scope,
                reason=found.reason,
            )

    def targets(self, redirections: list[Redirection], state: State) -> list[tuple[Redirection, Field]]:
        return [(each, self.folder.text(each.target, state)) for each in redirections]

    def simple(self, node: grammar.Simple, state: State, stdin: Data | None) -> Data:
        site = self.site or Site(self.source[node.start : node.end], (node.start, node.end))
        assigned, count = assignments(self.folder, node.words, state)
        declared = declare(self.folder, node.words[count:], state)
        words = self.folder.fields(node.words[count : count + 1] if declared else node.words[count:], state)
        targets = self.targets(node.redirections, state) if node.redirections else []
        data = read_redirections(self, targets, state, stdin, site) if targets else stdin
        if words:
            inner = state
            if assigned:
                inner = state.copy()
                inner.variables.update(assigned)
                judge_environment(self, assigned, state, site)
            output = self.invoke(words, inner, data, site)
            if assigned:
                state.cwd, state.cwd_known, state.functions = inner.cwd, inner.cwd_known, inner.functions
                state.aliases, state.files = inner.aliases, inner.files
        else:
            state.variables.update(assigned)
            judge_environment(self, assigned, state, site)
            output = NOTHING if not targets else (data or NOTHING)
        return write_redirections(self, targets, state, output, site) if targets else output

    def invoke(self, words: list[Field], state: State, stdin: Data | None, site: Site) -> Data:
        self.spend(1 + len(words) // 8)
        if len(words) > MAX_WORDS:
            raise NotUnderstood("a command has too many arguments to look at each")
        self.wrapped += 1
        if self.wrapped > MAX_WRAPPED:
            raise NotUnderstood("commands are wrapped in each other too deeply")
        try:
            return self.run_command(words, state, stdin, site)
        finally:
            self.wrapped -= 1

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise NotUnderstood("the command line holds too many commands")

    def run_command(self, words: list[Field], state: State, stdin: Data | None, site: Site) -> Data:
        first = words[0]
        name = first.text.rpartition("/")[2]
        if UNKNOWN in name or not name or (first.glob and name not in ("[", "[[")):
            return self.unknown_command(first, words, stdin, site)
        if name in state.functions and "/" not in first.text:
            return self.call_function(name, words[1:], state, stdin, site)
        if name in state.aliases and name not in self.calls:
            return self.call_alias(name, words[1:], state, stdin, site)
        path = resolve(first, state) if "/" in first.text else ""
        if path in state.files:
            self.run_file(state.files[path], state, site)
        if INIT_SCRIPT.match(path):
            name, words = "service", [words[0], *words]
        if self.in_cloned_directory(path, state):
            self.report("remote_code", "runs a program from a repository that it has just fetched", site)
        call = Call(name.removesuffix(".exe"), words[1:], state, stdin, site.text, site.span)
        handler = HANDLERS.get(call.program)
        if handler is None and help_only(call):
            return ANYTHING
        judge(self, call, site)
        judge_flow(self, call, site)
        printed = handler(self, call, site) if handler is not None else None
        return printed if printed is not None else self.output(call)

    def in_cloned_directory(self, path: str, state: State) -> bool:
        return bool(path) and any(path.startswith(directory + "/") for directory in state.fetched)

    def output(self, call: Call) -> Data:
        data = output_of(call)
        origin = data.origin
        for word in call.words:
            origin |= word.origin
            path = resolve(word.text.removeprefix("@"), call.state)
            if word.text and is_secret(path):
                origin |= Origin.SECRET
            elif word.text and is_private(path):
                origin |= Origin.PRIVATE
            elif path in call.state.files:
                origin |= call.state.files[path].origin & (Origin.SECRET | Origin.PRIVATE)
        if is_silent_about_secrets(call.program):
            origin &= ~(Origin.SECRET | Origin.PRIVATE)
        return Data(data.text, origin)

    def unknown_command(self, first: Field, words: list[Field], stdin: Data | None, site: Site) -> Data:
        if not first.text:
            return NOTHING
        if first.origin & Origin.NETWORK:
            self.report("remote_code", "runs what it fetched from the network", site)
        else:
            self.report("unknown_command", "which program runs is only known at run time", site)
        return ANYTHING

    def run_file(self, data: Data, state: State, site: Site) -> None:
        """Judge the run of a file that the same command line wrote."""
        if data.text is not None:
            self.run_text(data.text, state.copy(), None, site)
        elif data.origin & (Origin.NETWORK | Origin.DECODED):
            self.report("remote_code", "runs a file that it has just downloaded or decoded", site)

    def call_function(self, name: str, arguments: list[Field], state: State, stdin: Data | None, site: Site) -> Data:
        self.called.add(id(state.functions[name][0]))
        if name in self.bombs:
            self.report(
                "fork_bomb", "calls a function that starts copies of itself without end", site, severity="block"
            )
            return NOTHING
        if self.calls.count(name) > 1 or len(self.calls) > MAX_CALLS:
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

    def call_alias(self, name: str, arguments: list[Field], state: State, stdin: Data | None, site: Site) -> Data:
        self.calls.append(name)
        try:
            words = self.folder.fields(
                [token.word for token in tokenize(state.aliases[name]).tokens if token.word], state
            )
            if any(token.kind != "word" for token in tokenize(state.aliases[name]).tokens):
                return self.run_text(state.aliases[name], state, stdin, site)
            return self.invoke([*words, *arguments], state, stdin, site) if words else NOTHING
        finally:
            self.calls.pop()


INIT_SCRIPT = re.compile(r"/etc/(?:rc\.d/)?(?:init|rc)\.d/[\w.-]+$")
