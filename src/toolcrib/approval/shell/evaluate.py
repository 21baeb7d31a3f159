"""Walks the tree of a command line as a shell would, without running anything, and judges every command on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from toolcrib.approval.shell.assignments import assign, declare, judge_environment
from toolcrib.approval.shell.commands import HANDLERS, is_silent_about_secrets
from toolcrib.approval.shell.definitions import MAX_RECURSION, Definitions
from toolcrib.approval.shell.flow import (
    judge_emptied,
    judge_flow,
    prints_nothing,
    read_redirections,
    write_redirections,
)
from toolcrib.approval.shell.fold import Folder
from toolcrib.approval.shell.fork_bombs import spawns_itself, spawns_without_end
from toolcrib.approval.shell.judge import help_only, judge
from toolcrib.approval.shell.model import (
    ANYTHING,
    NOTHING,
    UNKNOWN,
    Data,
    Field,
    NotUnderstood,
    Origin,
)
from toolcrib.approval.shell.outputs import output_of
from toolcrib.approval.shell.parser import parse
from toolcrib.approval.shell.paths import MAX_PATH, is_private, is_secret, resolve
from toolcrib.approval.shell.rules.base import Call
from toolcrib.approval.shell.runner import Site
from toolcrib.approval.shell.state import State
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

MAX_NESTED_SCRIPTS = 10
MAX_WRAPPED = 10
MAX_WORDS = 2000
MAX_COMMAND_DEPTH = 64
"""How deep commands may lie in each other; each level takes a few calls of Python."""
MAX_LOOP_VALUES = 16
WORDS_IN_A_STEP = 4
PATH_CHARACTERS_IN_A_STEP = 1000
CHARACTERS_PASSED_ON = 2000
OPTION_LETTERS_IN_A_STEP = 64


class Evaluator(Definitions):
    """Collects the findings of one command line."""

    def __init__(self) -> None:
        super().__init__()
        self.nested = 0
        self.wrapped = 0
        self.depth = 0
        self.scripts: dict[str, Script] = {}
        self.folder = Folder(self.run_substitution, self.spend)

    def run(self, script: Script, state: State) -> None:
        """Judge a whole command line: what its commands do, and what it leaves behind for later ones."""
        self.source = script.text
        if script.error:
            self.not_understood.append(script.error)
        self.command(script.body, state, None)
        self.finish(state)

    def run_substitution(self, node: Substitution, state: State, stdin: Data | None = None) -> Data:
        outer_source, outer_site = self.source, self.site
        if node.source is not outer_source:
            # Positions in another text mean nothing in the original one, so findings keep the outer place.
            self.source, self.site = node.source, self.whole_site()
        try:
            return self.command(node.body, state, stdin)
        finally:
            self.source, self.site = outer_source, outer_site

    def run_text(self, text: str, state: State, stdin: Data | None, site: Site) -> Data:
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

    def feed(self, path: str, data: Data, state: State) -> Data:
        inner = state.copy()
        # The script was started before the redirection to it.
        inner.sinks.pop(path)
        inner.outputs = {number: file for number, file in state.outputs.items() if file != path}
        return self.run_substitution(state.sinks[path], inner, data)

    def command(self, node: Command, state: State, stdin: Data | None) -> Data:
        self.spend(1)
        if self.depth >= MAX_COMMAND_DEPTH:
            raise NotUnderstood("the command is nested too deeply")
        self.depth += 1
        try:
            return self.judge_command(node, state, stdin)
        finally:
            self.depth -= 1

    def judge_command(self, node: Command, state: State, stdin: Data | None) -> Data:
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
                self.folder.fields(node.words, state)
                return self.invoke([Field("[[")], state, stdin, self.site_of(node))
            case ArithmeticCommand():
                self.folder.arithmetic(node.arithmetic, state)
                return self.invoke([Field("((")], state, stdin, self.site_of(node))

    def site_of(self, node: SimpleCommand | ConditionalCommand | ArithmeticCommand) -> Site:
        return self.site or Site(self.source[node.start : node.end], (node.start, node.end))

    def pipeline(self, node: PipelineCommand, state: State, stdin: Data | None) -> Data:
        data = stdin
        self.look_for_self_spawning(node)
        for command in node.commands:
            inner = state.copy()
            data = self.command(command, inner, data)
            state.files.update(inner.files)
        return data or NOTHING

    def and_or(self, node: AndOrList, state: State, stdin: Data | None) -> Data:
        outputs = [self.command(node.commands[0], state, stdin)]
        inner = state.copy()
        inner.input = state.input
        outputs += [self.command(command, inner, inner.input or stdin) for command in node.commands[1:]]
        state.merge(inner)
        return Data.join(outputs)

    def sequence(self, node: CommandList, state: State, stdin: Data | None) -> Data:
        if node.background:
            self.look_for_self_spawning(node)
        outputs = [self.command(command, state, state.input or stdin) for command in node.commands]
        return Data.join(outputs) if outputs else NOTHING

    def look_for_self_spawning(self, node: Command) -> None:
        if spawns_itself(node):
            self.report("fork_bomb", "starts copies of itself", self.whole_site())

    def group(self, node: GroupCommand, state: State, stdin: Data | None) -> Data:
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

    def conditional(self, node: IfCommand, state: State, stdin: Data | None) -> Data:
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
        return Data.join(outputs)

    def case(self, node: CaseCommand, state: State, stdin: Data | None) -> Data:
        outputs: list[Data] = []
        self.folder.text(node.subject, state)
        before = state.copy()
        for item in node.items:
            inner = before.copy()
            for pattern in item.patterns:
                self.folder.text(pattern, inner)
            outputs.append(self.command(item.body, inner, stdin))
            state.merge(inner)
        return Data.join(outputs) if outputs else NOTHING

    def loop(self, node: LoopCommand, state: State, stdin: Data | None) -> Data:
        if spawns_without_end(node):
            self.report("fork_bomb", "starts processes in an endless loop", self.whole_site())
        self.condition(node, state, stdin)
        if node.counter is not None:
            self.folder.arithmetic(node.counter, state)
        values = [None] if node.values is None else loop_values(self.folder.fields(node.values, state))
        name = node.variable.literal if node.variable is not None else None
        outputs: list[Data] = []
        inner = state.copy()
        for value in values:
            if name is not None:
                inner.assign(name, [value or Field(UNKNOWN)])
            outputs.append(self.command(node.body, inner, stdin))
        for given in further_input(stdin) if node.values is None and "read" in self.source else ():
            self.condition(node, inner, given)
            outputs.append(self.command(node.body, inner, given))
        state.merge(inner)
        return Data.join(outputs) if outputs else NOTHING

    def condition(self, node: LoopCommand, state: State, stdin: Data | None) -> None:
        if node.condition is not None:
            state.listing, listing = True, state.listing
            self.command(node.condition, state, stdin)
            state.listing = listing

    def targets(self, redirections: Sequence[Redirection], state: State) -> list[tuple[Redirection, Field]]:
        return [(each, self.folder.text(each.target, state)) for each in redirections]

    def simple(self, node: SimpleCommand, state: State, stdin: Data | None) -> Data:
        site = self.site_of(node)
        assigned = assign(self.folder, node.assignments, state) if node.assignments else {}
        declared = declare(self.folder, node.words, state)
        if declared:
            judge_environment(self, declared, state, site)
        words = self.folder.fields(node.words if declared is None else node.words[:1], state)
        if node.redirections:
            return self.redirected(node.redirections, assigned, words, state, stdin, site)
        return self.assigned(assigned, words, state, stdin, site)

    def redirected(
        self,
        redirections: Sequence[Redirection],
        assigned: dict[str, list[Field]],
        words: list[Field],
        state: State,
        stdin: Data | None,
        site: Site,
    ) -> Data:
        """Judge a command with redirections, which outlive it only behind a bare `exec`."""
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
        self, assigned: dict[str, list[Field]], words: list[Field], state: State, stdin: Data | None, site: Site
    ) -> Data:
        """Judge a command with the variables that are set in front of it."""
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

    def invoke(self, words: list[Field], state: State, stdin: Data | None, site: Site) -> Data:
        self.spend(effort(words, state, stdin))
        if len(words) > MAX_WORDS:
            raise NotUnderstood("a command has too many arguments to look at each")
        self.wrapped += 1
        if self.wrapped > MAX_WRAPPED:
            raise NotUnderstood("commands are wrapped in each other too deeply")
        try:
            return self.run_command(words, state, stdin, site)
        finally:
            self.wrapped -= 1

    def run_command(self, words: list[Field], state: State, stdin: Data | None, site: Site) -> Data:
        first = words[0]
        name = first.text.rpartition("/")[2]
        if UNKNOWN in name or not name or (first.glob and name not in ("[", "[[")):
            return self.unknown_command(first, words, stdin, site)
        if name in state.functions and "/" not in first.text:
            if self.calls.count(name) < MAX_RECURSION:
                return self.call_function(name, words[1:], state, stdin, site)
            words = self.wrapped_program(words, state)
        if name in state.aliases and name not in self.calls:
            return self.call_alias(name, words[1:], state, stdin, site)
        path = resolve(first, state) if "/" in first.text else ""
        if path in state.files:
            self.run_file(state.files[path], words[1:], state, site)
        if INIT_SCRIPT.match(path):
            name, words = "service", [words[0], *words]
        if self.in_cloned_directory(path, state):
            self.report("remote_code", "runs a program from a repository that it has just fetched", site)
        call = Call(name.removesuffix(".exe"), words[1:], state, stdin, site.text, site.span)
        handler = HANDLERS.get(call.program)
        if handler is None and help_only(call):
            return ANYTHING
        judge(self, call, site, handled=handler is not None)
        judge_flow(self, call, site)
        printed = handler(self, call, site) if handler is not None else None
        output = printed if printed is not None else self.output(call)
        if state.sinks:
            self.fill_sinks(call, output)
        return output

    def fill_sinks(self, call: Call, output: Data) -> None:
        """Judge the scripts behind `>( … )` among the words of a command with what it may write to them."""
        for word in call.words:
            # The name may stand behind an option, as in `of=>(sh)`.
            path = word.text[max(0, word.text.find("/dev/fd/")) :]
            if path in call.state.sinks:
                copies = call.program in ("tee", "sponge") and call.stdin is not None
                data = output if copies else Data(None, output.origin | Origin.PROGRAM)
                self.feed(path, data, call.state)

    def in_cloned_directory(self, path: str, state: State) -> bool:
        return bool(path) and any(path.startswith(directory + "/") for directory in state.fetched)

    def output(self, call: Call) -> Data:
        data = output_of(call)
        self.spend(len(data.text or "") // CHARACTERS_PASSED_ON)
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

    def run_file(self, data: Data, arguments: list[Field], state: State, site: Site) -> None:
        """Judge the run of a file that the same command line wrote."""
        if data.text is not None:
            inner = state.copy()
            inner.positional = arguments
            self.run_text(data.text, inner, None, site)
        elif data.origin & (Origin.NETWORK | Origin.DECODED):
            self.report("remote_code", "runs a file that it has just downloaded or decoded", site)


def effort(words: list[Field], state: State, stdin: Data | None) -> int:
    """The steps that one look at a command takes: every word may be a path, from the directory that it runs in."""
    path_characters = len(words) * len(state.cwd) + sum(min(len(word.text), MAX_PATH) for word in words)
    letters = sum(len(word.text) for word in words if word.text.startswith("-"))
    read = len(stdin.text) if stdin is not None and stdin.text is not None else 0
    return (
        1
        + len(words) // WORDS_IN_A_STEP
        + path_characters // PATH_CHARACTERS_IN_A_STEP
        + letters // OPTION_LETTERS_IN_A_STEP
        + read // CHARACTERS_PASSED_ON
    )


def further_input(stdin: Data | None) -> Iterator[Data]:
    """What is left to read in each further round of a loop that takes one line after another."""
    if stdin is None or stdin.text is None:
        return
    lines = stdin.text.split("\n")
    seen = {lines[0]}
    for at, line in enumerate(lines[1:], start=1):
        if line in seen or (not line and at == len(lines) - 1):
            continue
        if len(seen) >= MAX_LOOP_VALUES:
            yield Data(None, stdin.origin)
            return
        seen.add(line)
        yield Data("\n".join(lines[at:]), stdin.origin)


def loop_values(values: list[Field]) -> list[Field | None]:
    """The values that a loop is judged with; what another command lists is marked as such."""
    kept: list[Field | None] = [
        Field(value.text, value.glob, value.origin | Origin.LISTED)
        if not value.known and value.origin & (Origin.PROGRAM | Origin.FILE)
        else value
        for value in values[:MAX_LOOP_VALUES]
    ]
    return [*kept, Field(UNKNOWN)] if len(values) > MAX_LOOP_VALUES else kept


INIT_SCRIPT = re.compile(r"/etc/(?:rc\.d/)?(?:init|rc)\.d/[\w.-]+$")
