"""Variables that a command line assigns, in front of commands, alone or through `declare`."""

from __future__ import annotations

import re

from toolcrib.approval.shell.fold import ASSIGNMENT, Folder
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


def judge_environment(runner: Runner, assigned: dict[str, list[Field]], state: State, site: Site) -> None:
    """Look at variables that some programs run as commands."""
    for name, value in assigned.items():
        if name in RUN_BY_PROGRAMS and value and value[0].known and " " in value[0].text:
            runner.run_text(value[0].text, state.copy(), None, site)
        if name == "PROMPT_COMMAND" and value and value[0].text:
            runner.run_text(value[0].text, state.copy(), None, site)
        elif name.startswith(("LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT")) or name == "BASH_ENV":
            runner.report("unknown_code", f"loads other code into the program through {name}", site)
        elif name == "PATH" and value and ANYBODYS_DIRECTORY.match(value[0].text):
            runner.report("unknown_code", "takes programs from a directory that everybody can write to", site)
