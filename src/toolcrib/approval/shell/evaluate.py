"""Walks the syntax tree as a shell would, without running anything, and judges every command on the way."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from toolcrib.approval.shell.assignments import LASTING_HOOKS, assign, calculate, declare, judge_environment
from toolcrib.approval.shell.data_flow import judge_flow
from toolcrib.approval.shell.expansion import Expander, further_input, loop_values
from toolcrib.approval.shell.findings import FindingLog
from toolcrib.approval.shell.fork_bombs import exhausts, is_bomb, spawns_itself
from toolcrib.approval.shell.handlers import HANDLERS
from toolcrib.approval.shell.handlers.builtins import judge_alias_name, judge_condition, judge_function_name
from toolcrib.approval.shell.judge import (
    help_only,
    judge,
    judge_emptied,
    prints_nothing,
    read_redirections,
    write_redirections,
)
from toolcrib.approval.shell.model import (
    ANYTHING,
    MAX_STEPS,
    NOTHING,
    UNKNOWN,
    ExpandedWord,
    NotUnderstood,
    Origin,
    Severity,
    StreamData,
)
from toolcrib.approval.shell.outputs import output_of, with_keys
from toolcrib.approval.shell.parser import parse, split_words
from toolcrib.approval.shell.paths import resolve
from toolcrib.approval.shell.protected_arguments import judge_words
from toolcrib.approval.shell.rules import DANGERS
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation
from toolcrib.approval.shell.state import CHARACTERS_PASSED_ON, ShellState, Value, effort
from toolcrib.approval.shell.syntax import (
    AndOrList,
    ArithmeticCommand,
    CaseCommand,
    Command,
    CommandList,
    ConditionalCommand,
    FunctionDefinition,
    GroupCommand,
    IfCommand,
    LoopCommand,
    PipelineCommand,
    Redirection,
    Script,
    SimpleCommand,
    Substitution,
)

ANY: frozenset[str] = frozenset()
MAX_NESTED_SCRIPTS = 10
MAX_WRAPPED = 10
MAX_WORDS = 2000
MAX_COMMAND_DEPTH = 90
"""How deep commands may nest, counting scripts inside scripts; a level takes up to seven Python stack frames."""
MAX_CALLS = 8
MAX_RECURSION = 2
INIT_SCRIPT = re.compile(r"/etc/(?:rc\.d/)?(?:init|rc)\.d/[\w.-]+$")


class Evaluator:
    """Collects the findings of one command line."""

    def __init__(self) -> None:
        self.log = FindingLog()
        self.not_understood: list[str] = []
        self.expander = Expander(self.run_substitution, self.spend)
        self.hooks: set[tuple[str, str]] = set()
        self.given: Mapping[str, Value] = {}
        """The variables that the session had before."""

        self.source = ""
        """The text that the spans of the current nodes point into."""
        self.site: CommandLocation | None = None
        """Where findings belong while the evaluator judges a text other than the command line."""
        self.scripts: dict[str, Script] = {}
        """Nested scripts that are already parsed, by their text."""

        self.steps = 0
        self.depth = 0
        self.nested = 0
        self.wrapped = 0

        self.defined: list[tuple[str, Command, str, CommandLocation | None]] = []
        self.called: set[int] = set()
        """The bodies of functions that were called, by identity."""
        self.calls: list[str] = []
        """The functions and aliases that are being called now."""
        self.bombs: set[str] = set()
        self.aliases: dict[str, tuple[str, CommandLocation]] = {}
        self.called_aliases: set[str] = set()

    def run(self, script: Script, state: ShellState) -> None:
        """Judge a whole command line: what its commands do, and what it defines for later ones."""
        self.source = script.text
        if script.error:
            self.not_understood.append(script.error)
        self.command(script.body, state, None)
        self.finish(state)
        for each in (script, *self.scripts.values()):
            self.require_evaluated(each)

    def require_evaluated(self, script: Script) -> None:
        """Raise NotUnderstood if a shell would evaluate a part that the evaluator did not come across."""
        evaluated = self.expander.evaluated
        # A malformed text is not understood anyway, and its last command is not in the tree.
        for node in script.dynamic if not script.error else ():
            if id(node) not in evaluated:
                raise NotUnderstood("a part of the command was not evaluated")

    def assign(self, name: str, value: Value, state: ShellState) -> None:
        name = state.target(name)
        if "[" in name:
            name = self.expander.subscript_of(name, state)
        if name in state.integers:
            calculate(self.expander, value, state)
        state.assign(name, value)

    def calculate(self, expression: str, state: ShellState) -> None:
        self.expander.calculate(expression, state)

    def run_substitution(self, node: Substitution, state: ShellState, stdin: StreamData | None = None) -> StreamData:
        outer_source, outer_site = self.source, self.site
        if node.source is not outer_source:
            # Positions in a nested text mean nothing in the original one, so findings keep the outer position.
            self.source, self.site = node.source, self.whole_site()
        try:
            return self.command(node.body, state, stdin)
        finally:
            self.source, self.site = outer_source, outer_site

    def run_text(self, text: str, state: ShellState, stdin: StreamData | None, site: CommandLocation) -> StreamData:
        if UNKNOWN in text and text.strip() in (UNKNOWN, ""):
            self.report("unknown_code", "runs code that is only known at run time", site)
            return ANYTHING
        if self.nested >= MAX_NESTED_SCRIPTS:
            raise NotUnderstood("scripts are nested too deeply")
        self.spend(1 + len(text) // 8)
        script = self.scripts.get(text)
        if script is None:
            script = self.scripts[text] = parse(text)
        outer_source, outer_site = self.source, self.site
        self.source, self.site = script.text, site
        self.nested += 1
        try:
            output = self.command(script.body, state, stdin)
        finally:
            self.nested -= 1
            self.source, self.site = outer_source, outer_site
        if script.error:
            raise NotUnderstood(script.error)
        return output

    def suspects(
        self, command: str | list[ExpandedWord], state: ShellState, site: CommandLocation, only: frozenset[str] = ANY
    ) -> bool:
        with self.log.aside() as found, suppress(NotUnderstood):
            if isinstance(command, str):
                self.run_text(command, state.copy(), None, site)
            else:
                self.invoke(command, state.copy(), None, site)
        self.spend(1)
        return any(not only or each.rule in only or each.severity == "block" for each in found)

    def feed(self, path: str, data: StreamData, state: ShellState) -> StreamData:
        inner = state.copy()
        # The script starts before the redirection to it.
        inner.sinks.pop(path)
        inner.outputs = {number: file for number, file in state.outputs.items() if file != path}
        return self.run_substitution(state.sinks[path], inner, data)

    def command(self, node: Command, state: ShellState, stdin: StreamData | None) -> StreamData:
        self.spend(1)
        if self.depth >= MAX_COMMAND_DEPTH:
            raise NotUnderstood("the command is nested too deeply")
        self.depth += 1
        try:
            return self.judge_command(node, state, stdin)
        finally:
            self.depth -= 1

    def judge_command(self, node: Command, state: ShellState, stdin: StreamData | None) -> StreamData:
        match node:
            case SimpleCommand():
                return self.simple(node, state, stdin)
            case CommandList():
                return self.sequence(node, state, stdin)
            case PipelineCommand():
                return self.pipeline(node, state, stdin)
            case AndOrList():
                return self.and_or(node, state, stdin)
            case GroupCommand():
                return self.group(node, state, stdin)
            case IfCommand():
                return self.conditional(node, state, stdin)
            case CaseCommand():
                return self.case(node, state, stdin)
            case LoopCommand():
                return self.loop(node, state, stdin)
            case FunctionDefinition():
                return self.define(node, state)
            case ConditionalCommand():
                judge_condition(self, [self.expander.text(word, state) for word in node.words], state)
                return self.invoke([ExpandedWord("[[")], state, stdin, self.site_of(node))
            case ArithmeticCommand():
                self.expander.arithmetic(node.arithmetic, state)
                return self.invoke([ExpandedWord("((")], state, stdin, self.site_of(node))

    def site_of(self, node: SimpleCommand | ConditionalCommand | ArithmeticCommand) -> CommandLocation:
        return self.site or CommandLocation(self.source[node.start : node.end], (node.start, node.end))

    def pipeline(self, node: PipelineCommand, state: ShellState, stdin: StreamData | None) -> StreamData:
        data = stdin
        self.look_for_self_spawning(node)
        for command in node.commands:
            inner = state.copy()
            data = self.command(command, inner, data)
            state.files.update(inner.files)
        return data or NOTHING

    def and_or(self, node: AndOrList, state: ShellState, stdin: StreamData | None) -> StreamData:
        outputs = [self.command(node.commands[0], state, stdin)]
        inner = state.copy()
        inner.input = state.input
        outputs += [self.command(command, inner, inner.input or stdin) for command in node.commands[1:]]
        state.merge(inner)
        return StreamData.join(outputs)

    def sequence(self, node: CommandList, state: ShellState, stdin: StreamData | None) -> StreamData:
        if node.background:
            self.look_for_self_spawning(node)
        outputs = [self.command(command, state, state.input or stdin) for command in node.commands]
        return StreamData.join(outputs) if outputs else NOTHING

    def look_for_self_spawning(self, node: Command) -> None:
        if spawns_itself(node):
            self.report("fork_bomb", "starts copies of itself", self.whole_site())

    def group(self, node: GroupCommand, state: ShellState, stdin: StreamData | None) -> StreamData:
        inner = state.copy() if node.subshell else state
        site = self.whole_site()
        targets = self.targets(node.redirections, inner)
        before, outputs = inner.descriptors, inner.outputs
        if targets:
            inner.descriptors, inner.outputs = dict(before), dict(outputs)
        data = read_redirections(self, targets, inner, stdin, site)
        output = self.command(node.body, inner, data)
        output = write_redirections(self, targets, inner, output, site)
        if targets:
            inner.descriptors, inner.outputs = before, outputs
        return output

    def conditional(self, node: IfCommand, state: ShellState, stdin: StreamData | None) -> StreamData:
        outputs = [self.command(node.clauses[0].condition, state, stdin)]
        before = state.copy()
        for number, clause in enumerate(node.clauses):
            inner = before.copy()
            if number:
                outputs.append(self.command(clause.condition, inner, stdin))
                nested = inner.copy()
                outputs.append(self.command(clause.body, nested, stdin))
                inner.merge(nested)
            else:
                outputs.append(self.command(clause.body, inner, stdin))
            state.merge(inner)
        if node.otherwise is not None:
            inner = before.copy()
            outputs.append(self.command(node.otherwise, inner, stdin))
            state.merge(inner)
        return StreamData.join(outputs)

    def case(self, node: CaseCommand, state: ShellState, stdin: StreamData | None) -> StreamData:
        outputs: list[StreamData] = []
        self.expander.text(node.subject, state)
        before = state.copy()
        for item in node.items:
            inner = before.copy()
            for pattern in item.patterns:
                self.expander.text(pattern, inner)
            outputs.append(self.command(item.body, inner, stdin))
            state.merge(inner)
        return StreamData.join(outputs) if outputs else NOTHING

    def loop(self, node: LoopCommand, state: ShellState, stdin: StreamData | None) -> StreamData:
        if (how := exhausts(node)) != "":
            self.report("fork_bomb", how, self.whole_site())
        self.condition(node, state, stdin)
        if node.counter is not None:
            self.expander.arithmetic(node.counter, state)
        # A list that is empty as far as we know may still have words when it runs.
        values = (
            [None] if node.values is None else loop_values(self.expander.fields(node.values, state), state) or [None]
        )
        name = node.variable.literal if node.variable is not None else None
        outputs: list[StreamData] = []
        inner = state.copy()
        for value in values:
            if name is not None:
                self.assign(name, [value or ExpandedWord(UNKNOWN)], inner)
            outputs.append(self.command(node.body, inner, stdin))
        for given in further_input(stdin) if node.values is None and "read" in self.source else ():
            self.condition(node, inner, given)
            outputs.append(self.command(node.body, inner, given))
        state.merge(inner)
        return StreamData.join(outputs) if outputs else NOTHING

    def condition(self, node: LoopCommand, state: ShellState, stdin: StreamData | None) -> None:
        if node.condition is not None:
            state.listing, listing = True, state.listing
            self.command(node.condition, state, stdin)
            state.listing = listing

    def targets(self, redirections: Sequence[Redirection], state: ShellState) -> list[tuple[Redirection, ExpandedWord]]:
        self.expander.evaluated.update([id(each.target) for each in redirections])
        return [(each, self.expander.text(each.target, state)) for each in redirections]

    def simple(self, node: SimpleCommand, state: ShellState, stdin: StreamData | None) -> StreamData:
        site = self.site_of(node)
        assigned = assign(self.expander, node.assignments, state) if node.assignments else {}
        declared = declare(self.expander, node.words, state)
        if declared:
            judge_environment(self, declared, state, site)
        words = self.expander.fields(node.words if declared is None else node.words[:1], state)
        if node.redirections:
            return self.redirected(node.redirections, assigned, words, state, stdin, site)
        return self.assigned(assigned, words, state, stdin, site)

    def redirected(
        self,
        redirections: Sequence[Redirection],
        assigned: dict[str, list[ExpandedWord]],
        words: list[ExpandedWord],
        state: ShellState,
        stdin: StreamData | None,
        site: CommandLocation,
    ) -> StreamData:
        """Judge a command with redirections; only those of a bare `exec` outlive it."""
        before, outputs = state.descriptors, state.outputs
        state.descriptors, state.outputs = dict(before), dict(outputs)
        targets = self.targets(redirections, state)
        data = read_redirections(self, targets, state, stdin, site)
        output = self.assigned(assigned, words, state, data, site) if words or assigned else data or NOTHING
        texts = [word.text for word in words]
        lasting = texts[-1:] == ["exec"] and set(texts[:-1]) <= {"time", "!", "command", "builtin", "--"}
        output = write_redirections(self, targets, state, ANYTHING if lasting else output, site)
        if prints_nothing(texts):
            judge_emptied(self, targets, state, site)
        if not lasting:
            state.descriptors, state.outputs = before, outputs
        elif data is not stdin:
            state.input = data
        return output

    def assigned(
        self,
        assigned: dict[str, list[ExpandedWord]],
        words: list[ExpandedWord],
        state: ShellState,
        stdin: StreamData | None,
        site: CommandLocation,
    ) -> StreamData:
        """Judge a command with the variables that are set before it."""
        if words:
            inner = state
            if assigned:
                inner = state.copy()
                inner.variables.update(assigned)
                judge_environment(self, assigned, state, site)
            output = self.invoke(words, inner, stdin, site)
            if assigned:
                changed = {name: value for name, value in inner.variables.items() if name not in assigned}
                state.variables.update(changed)
                state.cwd, state.cwd_known, state.functions = inner.cwd, inner.cwd_known, inner.functions
                state.aliases, state.files = inner.aliases, inner.files
            return output
        state.variables.update(assigned)
        judge_environment(self, assigned, state, site)
        return NOTHING

    def invoke(
        self, words: list[ExpandedWord], state: ShellState, stdin: StreamData | None, site: CommandLocation
    ) -> StreamData:
        self.spend(effort(words, state, stdin))
        if len(words) > MAX_WORDS:
            raise NotUnderstood("a command has too many arguments to analyse")
        self.wrapped += 1
        if self.wrapped > MAX_WRAPPED:
            raise NotUnderstood("wrapped commands are nested too deeply")
        try:
            return self.run_command(words, state, stdin, site)
        finally:
            self.wrapped -= 1

    def run_command(
        self, words: list[ExpandedWord], state: ShellState, stdin: StreamData | None, site: CommandLocation
    ) -> StreamData:
        first = words[0]
        name = first.text.rpartition("/")[2]
        if UNKNOWN in name or not name or (first.glob and name not in ("[", "[[")):
            return self.unknown_command(first, words, stdin, site)
        if name in state.functions and "/" not in first.text:
            if self.calls.count(name) < MAX_RECURSION:
                return self.call_function(name, words[1:], state, stdin, site)
            # A function may wrap the program of its name: `ls() { command ls -F "$@"; }`. What a later command adds
            # to a function that is only defined here is judged with that command.
            words = words if state.positional is not None else [word for word in words if word.text != UNKNOWN]
        if name in state.aliases and name not in self.calls:
            return self.call_alias(name, words[1:], state, stdin, site)
        path = resolve(first, state) if "/" in first.text else ""
        if path in state.files:
            self.run_file(state.files[path], words[1:], state, site)
        name, words = ("service", [words[0], *words]) if INIT_SCRIPT.match(path) else (name, words)
        if path and any(path.startswith(directory + "/") for directory in state.fetched):
            self.report("remote_code", "runs a program from a repository that it has just fetched", site)
        call = CommandCall(name.removesuffix(".exe"), words[1:], state, stdin, site.text, site.span)
        handler = HANDLERS.get(call.program)
        if handler is None and help_only(call):
            return ANYTHING
        judge(self, call, site, handled=handler is not None)
        self.judge_flow(call, site)
        judge_words(self, call, site, handled=handler is not None)
        printed = handler(self, call, site) if handler is not None else None
        output = with_keys(call, printed if printed is not None else self.output(call))
        if state.sinks:
            self.fill_sinks(call, output)
        return output

    def judge_flow(self, call: CommandCall, site: CommandLocation) -> None:
        judge_flow(self, call, site)

    def fill_sinks(self, call: CommandCall, output: StreamData) -> None:
        """Judge the `>( … )` scripts among a command's words with what the command may write to them."""
        for word in call.words:
            # The name may follow an option, as in `of=>(sh)`.
            path = word.text[max(0, word.text.find("/dev/fd/")) :]
            if path in call.state.sinks:
                copies = call.program in ("tee", "sponge") and call.stdin is not None
                data = output if copies else StreamData(None, output.origin | Origin.PROGRAM)
                self.feed(path, data, call.state)

    def output(self, call: CommandCall) -> StreamData:
        data = output_of(call)
        self.spend(len(data.text or "") // CHARACTERS_PASSED_ON)
        return data

    def unknown_command(
        self, first: ExpandedWord, words: list[ExpandedWord], stdin: StreamData | None, site: CommandLocation
    ) -> StreamData:
        if not first.text:
            return NOTHING
        if first.origin & Origin.NETWORK:
            self.report("remote_code", "runs code that it fetched from the network", site)
        else:
            self.report("unknown_command", "which program runs is only known at run time", site)
        return ANYTHING

    def run_file(
        self, data: StreamData, arguments: list[ExpandedWord], state: ShellState, site: CommandLocation
    ) -> None:
        """Judge running a file that the same command line wrote."""
        if data.text is not None:
            inner = state.copy()
            inner.positional = arguments
            self.run_text(data.text, inner, None, site)
        elif data.origin & (Origin.NETWORK | Origin.DECODED):
            self.report("remote_code", "runs a file that it has just downloaded or decoded", site)

    def define(self, node: FunctionDefinition, state: ShellState) -> StreamData:
        name = node.name.literal
        if name is None:
            raise NotUnderstood("a function has an unusual name")
        state.functions[name] = (node.body, self.source)
        self.defined.append((name, node.body, self.source, self.site))
        if is_bomb(name, node.body):
            self.bombs.add(name)
        judge_function_name(self, name, self.source[node.start : node.end], self.whole_site())
        return NOTHING

    def define_alias(self, name: str, text: str, site: CommandLocation) -> None:
        self.aliases[name] = (text, site)

    def finish(self, state: ShellState) -> None:
        """Judge definitions that no command called yet: a later one may call them with any arguments."""
        source, site = self.source, self.site
        lasting = {id(body) for body, _ in state.functions.values()}
        # Judging one may define another, so the list grows during the loop.
        for definition in self.defined:
            if id(definition[1]) not in self.called:
                self.judge_function(*definition, state)
            elif id(definition[1]) in lasting:
                # Do not report again what was found when it was called.
                with self.log.only_new_rules():
                    self.judge_function(*definition, state)
        self.source, self.site = source, site
        for name, (text, place) in list(self.aliases.items()):
            with self.log.only_prepared():
                self.judge_alias(name, text, state.copy(), place)
        hooks = {
            name: value
            for name, value in state.variables.items()
            if name in LASTING_HOOKS and self.given.get(name) != value
        }
        if hooks:
            with self.log.only_prepared():
                judge_environment(self, hooks, state, self.whole_site())

    def judge_function(
        self, name: str, body: Command, source: str, site: CommandLocation | None, state: ShellState
    ) -> None:
        self.called.add(id(body))
        self.source, self.site = source, site
        if name in self.bombs:
            self.report("fork_bomb", f"defines {name!r}, which starts copies of itself", self.whole_site())
            return
        inner = state.copy()
        inner.positional = None
        # Inside it, its own name means the program of that name, as after `command`.
        self.calls = [name] * MAX_RECURSION
        try:
            with self.log.only_prepared():
                self.command(body, inner, None)
        finally:
            self.calls = []

    def judge_alias(self, name: str, text: str, state: ShellState, site: CommandLocation) -> None:
        self.calls.append(name)
        try:
            if text.strip() and name not in self.called_aliases:
                self.run_text(text, state, None, site)
        finally:
            self.calls.pop()
        judge_alias_name(self, name, text, site)

    def call_function(
        self,
        name: str,
        arguments: list[ExpandedWord],
        state: ShellState,
        stdin: StreamData | None,
        site: CommandLocation,
    ) -> StreamData:
        self.called.add(id(state.functions[name][0]))
        if name in self.bombs:
            self.report("fork_bomb", "calls a function that endlessly starts copies of itself", site, severity="block")
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

    def call_alias(
        self,
        name: str,
        arguments: list[ExpandedWord],
        state: ShellState,
        stdin: StreamData | None,
        site: CommandLocation,
    ) -> StreamData:
        self.called_aliases.add(name)
        self.calls.append(name)
        try:
            split = split_words(state.aliases[name])
            if split is None:
                return self.run_text(state.aliases[name], state, stdin, site)
            words = self.expander.fields(split, state)
            return self.invoke([*words, *arguments], state, stdin, site) if words else NOTHING
        finally:
            self.calls.pop()

    def report(
        self, key: str, reason: str, site: CommandLocation, *, severity: Severity = "ask", paths: tuple[str, ...] = ()
    ) -> None:
        self.log.report(DANGERS[key], reason, site, severity=severity, paths=paths)

    def whole_site(self) -> CommandLocation:
        return self.site or CommandLocation(self.source.strip(), (0, len(self.source)))

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise NotUnderstood("the command line has too many commands")
