"""Variables that a command line assigns: before a command, on their own, or with `declare`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from toolcrib.approval.shell.command_options import SENDS_ON, judge_variable
from toolcrib.approval.shell.expansion import ASSIGNMENT, Expander, prompt_code
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, name_set
from toolcrib.approval.shell.option_table import kind_of_variable
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Runner
from toolcrib.approval.shell.state import ShellState
from toolcrib.approval.shell.syntax import ArrayLiteral, Assignment, LiteralText, Word

DECLARING = name_set("declare typeset export local readonly")
REFERRING = name_set("declare typeset local")
"""`-n` has another meaning for `export`."""
REFERENCE = re.compile(r"-[A-Za-z]*n")
NAME = re.compile(r"[A-Za-z_]\w*")
ANYBODYS_DIRECTORY = re.compile(r"(?:/tmp|/var/tmp|/dev/shm)(?!/[^:]*/bin/?(?::|$))(?:/|:|$)")
LASTING_HOOKS = name_set("PROMPT_COMMAND BASH_ENV ENV PS0 PS1 PS2 PS4 HISTFILE HISTSIZE HISTFILESIZE")
"""Variables that the shell later runs as code without a visible command, or that say what it remembers."""
LOADERS = ("LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT", "BASH_FUNC_")
LIFT_THE_GATE = name_set("TOOLCRIB_YOLO HERMES_YOLO_MODE TOOLCRIB_ENABLE_PROJECT_PLUGINS HERMES_ENABLE_PROJECT_PLUGINS")
ELEMENT = re.compile(r"^\[[^\]]*\]=")


def assign(expander: Expander, given: Sequence[Assignment], state: ShellState) -> dict[str, list[ExpandedWord]]:
    """The variables assigned before a command, with their values; leaves `state` unchanged."""
    assigned: dict[str, list[ExpandedWord]] = {}
    for assignment in given:
        name = state.target(assignment.name)
        index = expander.index(assignment.index, state) if assignment.index is not None else None
        value = assigned_value(expander, assignment.value, state)
        if name == UNKNOWN:
            # The first value of a reference names the variable it stands for, and its subscript is calculated later.
            for each in value:
                expander.subscript_of(each.text, state)
            continue
        if "[" in name:
            name = expander.subscript_of(name, state)
        if name in state.integers:
            calculate(expander, value, state)
        before = assigned.get(name, state.variables.get(name, []))
        if assignment.appends:
            array = any(isinstance(part, ArrayLiteral) for part in assignment.value.parts)
            value = [*before, *value] if array else [ExpandedWord("".join(f.text for f in (*before[:1], *value)))]
        elif index is not None:
            at = int(index) if index.isdecimal() and len(index) < 4 else len(before)
            value = [*before[:at], *([ExpandedWord("")] * (at - len(before))), *value, *before[at + 1 :]]
        assigned[name] = value
    return assigned


def calculate(expander: Expander, values: Sequence[ExpandedWord], state: ShellState) -> None:
    """Judge the commands in values that the shell calculates."""
    for each in values:
        expander.calculate(each.text, state)


def assigned_value(expander: Expander, word: Word, state: ShellState) -> list[ExpandedWord]:
    first = word.parts[0] if word.parts else None
    if isinstance(first, ArrayLiteral):
        return [each.with_text(ELEMENT.sub("", each.text)) for each in expander.fields(first.words, state)]
    return [expander.text(word, state)] if word.parts else [ExpandedWord("")]


def as_assignment(word: Word) -> Assignment | None:
    """The assignment in an argument of `declare`; None for an option or a bare name."""
    first = word.parts[0] if word.parts else None
    if not isinstance(first, LiteralText) or first.quoted:
        return None
    match = ASSIGNMENT.match(first.text)
    if match is None:
        return None
    name, index, append = match.groups()
    rest = first.text[match.end() :]
    at = first.start + match.end()
    parts = (LiteralText(rest, False, at, first.end), *word.parts[1:]) if rest else word.parts[1:]
    subscript = LiteralText(index[1:-1], False, first.start, at) if index else None
    return Assignment(
        name,
        Word((subscript,), first.start, at) if subscript is not None and subscript.text else None,
        append == "+",
        Word(parts, at, word.end),
        word.start,
        word.end,
    )


def declare(expander: Expander, words: Sequence[Word], state: ShellState) -> dict[str, list[ExpandedWord]] | None:
    """The variables that `declare`, `export` or `local` assigns, after assigning them; None for other commands."""
    if not words or words[0].literal not in DECLARING or len(words) < 2:
        return None
    declared: dict[str, list[ExpandedWord]] = {}
    reference = is_integer = False
    for word in words[1:]:
        option = word.literal or ""
        if words[0].literal in REFERRING and option.startswith("-"):
            reference = reference or bool(REFERENCE.match(option))
            is_integer = is_integer or "i" in option
        assignment = as_assignment(word)
        if assignment is None:
            assigned = declare_text(expander, expander.fields((word,), state), state)
        else:
            assigned = assign(expander, (assignment,), state)
        names = [*assigned, *([option] if NAME.fullmatch(option) else [])]
        if reference:
            state.references.update({name: value[0].text for name, value in assigned.items() if value})
            if word.literal and NAME.fullmatch(word.literal):
                state.references[word.literal] = UNKNOWN
            continue
        if is_integer:
            state.integers |= frozenset(names)
            for value in assigned.values():
                calculate(expander, value, state)
        state.variables.update(assigned)
        declared.update(assigned)
    return declared


def declare_text(expander: Expander, words: Sequence[ExpandedWord], state: ShellState) -> dict[str, list[ExpandedWord]]:
    """The variables in arguments of `declare` that are only known after expansion, as in `declare "$name=$value"`."""
    assigned: dict[str, list[ExpandedWord]] = {}
    for word in words:
        match = ASSIGNMENT.match(word.text)
        name = match.group(1) if match else word.text
        subscript = match.group(2) if match else None
        if subscript or "[" in name:
            name = expander.subscript_of(f"{name}{subscript or ''}", state)
        if match:
            value = word.with_text(word.text[match.end() :])
            before = state.variables.get(state.target(name), []) if match.group(3) or subscript else []
            assigned[state.target(name)] = [*before, value]
    return assigned


def judge_environment(
    runner: Runner, assigned: Mapping[str, list[ExpandedWord]], state: ShellState, site: CommandLocation
) -> None:
    """Judge variables that the shell or some programs run as commands."""
    for name, value in assigned.items():
        if name in LASTING_HOOKS:
            for each in value:
                if (name, each.text) not in runner.hooks:
                    runner.hooks.add((name, each.text))
                    judge_hook(runner, name, each, state, site)
        elif kind_of_variable(name) and value:
            call = CommandCall("", [], state, None, site.text, site.span)
            judge_variable(runner, name, value[0], call, site)
        elif name in LIFT_THE_GATE and value and value[0].text.lower() not in ("", "0", "false", "no", "off"):
            runner.report("own_program", "would change what toolcrib is allowed to do", site)
        elif name == "SSH_AUTH_SOCK" and value and value[0].text.startswith("/"):
            runner.report("local_service", "uses another agent for the user's keys", site)
        elif name.startswith(LOADERS):
            runner.report("unknown_code", f"loads other code into the program through {name}", site)
        elif name == "PATH" and value and (ANYBODYS_DIRECTORY.match(value[0].text) or value[0].text.startswith(".:")):
            runner.report("unknown_code", "runs programs from a world-writable directory", site)


def judge_hook(runner: Runner, name: str, value: ExpandedWord, state: ShellState, site: CommandLocation) -> None:
    """Judge what the shell runs on its own: before each prompt, in a prompt, or when the next shell starts."""
    if name == "PROMPT_COMMAND":
        code = value.text.strip("; \t\n")
        if code:
            runner.run_text(code, state.copy(), None, site)
        if SENDS_ON.search(code):
            runner.report("exfiltration", "sends something before every prompt", site)
    elif name.startswith("HIST"):
        if state.variables.get(name) == [value] and value.text in ("", "0", "/dev/null"):
            runner.report("system_config", "makes the shell forget what it runs", site)
        elif name == "HISTFILE":
            call = CommandCall("", [], state, None, site.text, site.span)
            judge_variable(runner, name, value, call, site)
    elif name in ("BASH_ENV", "ENV"):
        runner.calculate(value.text, state.copy())
        if not value.text:
            return
        if name == "BASH_ENV" or re.match(r"[/~.]", value.text):
            runner.report("unknown_code", f"makes every shell that starts run a file, through {name}", site)
    elif "$(" in value.text or "`" in value.text:
        runner.run_text(prompt_code(value.text), state.copy(), None, site)
