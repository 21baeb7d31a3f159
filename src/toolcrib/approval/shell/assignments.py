"""Variables that a command line assigns, in front of commands, alone or through `declare`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolcrib.approval.shell.fold import ASSIGNMENT, Folder, prompt_code
from toolcrib.approval.shell.model import UNKNOWN, Field, name_set
from toolcrib.approval.shell.runner import Runner, Site
from toolcrib.approval.shell.state import State
from toolcrib.approval.shell.tokens import Word

DECLARING = name_set("declare typeset export local readonly")
REFERRING = name_set("declare typeset local")
"""To `export`, `-n` means something else."""
REFERENCE = re.compile(r"-[A-Za-z]*n")
NAME = re.compile(r"[A-Za-z_]\w*")
ANYBODYS_DIRECTORY = re.compile(r"(?:/tmp|/var/tmp|/dev/shm)(?!/[^:]*/bin/?(?::|$))(?:/|:|$)")
LASTING_HOOKS = name_set("PROMPT_COMMAND BASH_ENV ENV PS0 PS1 PS2 PS4")
"""Variables that the shell runs later as code: a command that follows does not show it any more."""
LOADERS = ("LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT", "BASH_FUNC_")
ELEMENT = re.compile(r"^\[[^\]]*\]=")
RUN_BY_PROGRAMS = frozenset(
    {
        "GIT_SSH_COMMAND",
        "GIT_SSH",
        "GIT_PAGER",
        "PAGER",
        "EDITOR",
        "VISUAL",
        "GIT_EDITOR",
        "MANPAGER",
        "RSYNC_RSH",
        "BROWSER",
        "GIT_EXTERNAL_DIFF",
        "GIT_ASKPASS",
        "SSH_ASKPASS",
        "LESSOPEN",
        "GIT_PROXY_COMMAND",
        "GIT_SEQUENCE_EDITOR",
        "FZF_DEFAULT_COMMAND",
        "LESSCLOSE",
        "SUDO_EDITOR",
        "SUDO_ASKPASS",
        "SYSTEMD_EDITOR",
        "SYSTEMD_PAGER",
        "KUBE_EDITOR",
        "HGEDITOR",
        "SVN_EDITOR",
        "SVN_SSH",
        "CVS_RSH",
        "FCEDIT",
        "PSQL_EDITOR",
        "PSQL_PAGER",
        "AWS_PAGER",
        "BAT_PAGER",
    }
)


def assignments(folder: Folder, words: list[Word], state: State) -> tuple[dict[str, list[Field]], int]:
    """The variables that a command assigns in front, and how many words they take."""
    assigned: dict[str, list[Field]] = {}
    for number, word in enumerate(words):
        first = word.parts[0] if word.parts else None
        if first is None or first.kind != "text" or first.quoted:
            return assigned, number
        match = ASSIGNMENT.match(first.text)
        if not match:
            return assigned, number
        name, index, append = state.target(match.group(1)), match.group(2), match.group(3)
        value = assigned_value(folder, word, match.end(), state)
        if name == UNKNOWN:
            continue
        before = assigned.get(name, state.variables.get(name, []))
        if append:
            array = any(part.kind == "array" for part in word.parts)
            value = [*before, *value] if array else [Field("".join(f.text for f in (*before[:1], *value)))]
        elif index:
            at = int(index[1:-1]) if index[1:-1].isdecimal() and len(index) < 6 else len(before)
            value = [*before[:at], *([Field("")] * (at - len(before))), *value, *before[at + 1 :]]
        assigned[name] = value
    return assigned, len(words)


def assigned_value(folder: Folder, word: Word, skip: int, state: State) -> list[Field]:
    first = word.parts[0]
    rest = [type(first)("text", first.text[skip:]), *word.parts[1:]]
    if len(rest) > 1 and rest[1].kind == "array":
        return [each.with_text(ELEMENT.sub("", each.text)) for each in folder.fields(rest[1].words, state)]
    return [folder.text(Word(rest, word.start, word.end), state)] if rest[0].text or rest[1:] else [Field("")]


def declare(folder: Folder, words: list[Word], state: State) -> dict[str, list[Field]] | None:
    """Carry out `declare`, `export` and `local`: the variables that they assign; None for other commands."""
    if not words or words[0].literal not in DECLARING or len(words) < 2:
        return None
    declared: dict[str, list[Field]] = {}
    reference = False
    for word in words[1:]:
        reference = reference or (words[0].literal in REFERRING and bool(REFERENCE.match(word.literal or "")))
        assigned, _ = assignments(folder, [word], state)
        if reference:
            state.references.update({name: value[0].text for name, value in assigned.items() if value})
            if word.literal and NAME.fullmatch(word.literal):
                state.references[word.literal] = UNKNOWN
        else:
            state.variables.update(assigned)
            declared.update(assigned)
    return declared


def judge_environment(runner: Runner, assigned: Mapping[str, list[Field]], state: State, site: Site) -> None:
    """Look at variables that the shell or some programs run as commands."""
    for name, value in assigned.items():
        if name in LASTING_HOOKS:
            for each in value:
                if (name, each.text) not in runner.hooks:
                    runner.hooks.add((name, each.text))
                    judge_hook(runner, name, each, state, site)
        elif name in RUN_BY_PROGRAMS and value and value[0].known and " " in value[0].text:
            runner.run_text(value[0].text.lstrip("|- "), state.copy(), None, site)
        elif name.startswith(LOADERS):
            runner.report("unknown_code", f"loads other code into the program through {name}", site)
        elif name == "PATH" and value and ANYBODYS_DIRECTORY.match(value[0].text):
            runner.report("unknown_code", "takes programs from a directory that everybody can write to", site)


def judge_hook(runner: Runner, name: str, value: Field, state: State, site: Site) -> None:
    """Judge what the shell runs by itself: before each prompt, in a prompt, or when the next shell starts."""
    if name == "PROMPT_COMMAND":
        code = value.text.strip("; \t\n")
        if code:
            runner.run_text(code, state.copy(), None, site)
    elif name in ("BASH_ENV", "ENV"):
        if name == "BASH_ENV" or re.match(r"[/~.]", value.text):
            runner.report("unknown_code", f"makes every shell that starts run a file, through {name}", site)
    elif "$(" in value.text or "`" in value.text:
        runner.run_text(prompt_code(value.text), state.copy(), None, site)
