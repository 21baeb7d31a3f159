"""The parser agrees with bash about what is valid, and with shfmt about the words of every command."""

from __future__ import annotations

import json
import random
import re
from collections import Counter

import pytest

from tests.approval.shell import generated_shell, shell_definitions, shell_detours, test_shell_traps
from tests.approval.shell.other_parsers import BASH, SHFMT, bash_accepts, shfmt_commands
from tests.approval.shell.shell_rows import read_rows, tables
from tests.approval.shell.test_shell_fuzz_corpus import CORPUS
from toolcrib.approval.analyse import analyse
from toolcrib.approval.shell.parser import parse
from toolcrib.approval.shell.syntax import Script, SimpleCommand, Substitution, walk

CONTROLS = re.compile("[\0\r\ud800-\udfff]")
"""bash drops a NUL, and a lone surrogate cannot be passed on."""
needs_bash = pytest.mark.skipif(not BASH, reason="bash is not installed")
needs_shfmt = pytest.mark.skipif(not SHFMT, reason="shfmt is not installed")

LEFT_TO_RUN_TIME = re.compile(r"\$\{…|too long|too many heredocs")
"""Errors that bash reports no sooner than at run time, and our limits."""
READ_LENIENTLY = re.compile(r"time\s+\w+(?:\[.*\])?\+?=\(|coproc\s+\S+=|[<>]\(\(")
"""What bash refuses although it means nothing else than what we read."""


def corpus() -> list[str]:
    """Every command of the tables, and what the fuzzer kept."""
    commands = [row.command for table in tables() for row in read_rows(table)]
    commands += [json.loads(line)["command"] for line in CORPUS.read_text().splitlines()]
    for module in (shell_definitions, shell_detours, test_shell_traps):
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, list):
                commands += value
    return [each for each in dict.fromkeys(commands) if not CONTROLS.search(each)]


def disagreement(text: str) -> str:
    """How the parser and the others differ about a text; empty when they agree."""
    script = parse(text)
    if LEFT_TO_RUN_TIME.search(script.error) or READ_LENIENTLY.search(text):
        return ""
    if BASH and bash_accepts(text) is bool(script.error):
        return f"{text!r}: bash {'accepts' if script.error else 'refuses'} it; we say {script.error or 'nothing'!r}"
    other = shfmt_commands(text) if SHFMT and not script.error else None
    if other is not None and Counter(other) != Counter(commands_of(script)):
        return f"{text!r}: shfmt reads {other}, we read {commands_of(script)}"
    return ""


def commands_of(script: Script) -> list[tuple[str, ...]]:
    """The words of every simple command, as they are written."""
    sources: dict[int, str] = {}
    for node in walk(script):
        if isinstance(node, Substitution):
            sources |= {id(each): node.source for each in walk(node.body)}
    commands = [
        tuple(sources.get(id(node), script.text)[word.start : word.end] for word in node.words)
        for node in walk(script)
        if isinstance(node, SimpleCommand) and node.words
    ]
    # To shfmt, `let` is a calculation and no command.
    return [each for each in commands if each[0] != "let"]


@needs_bash
@needs_shfmt
def test_generated_texts_are_read_as_others_read_them() -> None:
    """Well-formed texts and rows of tokens are accepted, refused and split as bash and shfmt do."""
    chance = random.Random(0)
    texts = [make(chance) for _ in range(40) for make in (generated_shell.script, generated_shell.tokens)]

    assert [each for each in map(disagreement, texts) if each] == []


@pytest.mark.services
@needs_bash
@needs_shfmt
def test_labelled_commands_are_read_as_others_read_them() -> None:
    """A sample of the tables; the services look at all of them."""
    assert [each for each in map(disagreement, corpus()[::60]) if each] == []


@needs_bash
@needs_shfmt
@pytest.mark.services
def test_all_labelled_commands_are_read_as_others_read_them() -> None:
    """Every command of the tables and of the fuzzer's corpus."""
    assert [each for each in map(disagreement, corpus()) if each] == []


@needs_bash
@needs_shfmt
@pytest.mark.services
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_generated_texts_are_read_as_others_read_them(seed: int) -> None:
    """The same with thousands of texts."""
    chance = random.Random(seed)
    texts = [make(chance) for _ in range(400) for make in (generated_shell.script, generated_shell.tokens)]

    assert [each for each in map(disagreement, texts) if each] == []


def test_well_formed_texts_are_understood() -> None:
    """The analyser reads every generated text, and no generated row of tokens makes it fail."""
    chance = random.Random(0)

    for _ in range(150):
        text = generated_shell.script(chance)
        assert not analyse(text).not_understood, text
        rows = generated_shell.tokens(chance)
        assert not [each for each in analyse(rows).not_understood if "analyser failed" in each], rows
