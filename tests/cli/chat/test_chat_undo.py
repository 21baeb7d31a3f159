"""Undo in the chat of whatever a program did, on a small and on a large terminal, with what it does not cover."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.chat.chat_program import ChatProgram, make_home

pytestmark = pytest.mark.services

REWRITE = """
import glob
for path in glob.glob("many/*.py"):
    text = open(path).read()
    open(path, "w").write(text.replace("=", " = "))
"""


def runs(*commands: str) -> list[dict[str, Any]]:
    """A command for each question, each with an answer that can be waited for."""
    steps = ([{"call": "terminal", "arguments": {"command": one}}, {"say": f"Done: {one}"}] for one in commands)
    return [step for pair in steps for step in pair]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    for folder in ("src", "many", "build", "data"):
        (work / folder).mkdir(parents=True)
    for number in range(500):
        (work / "many" / f"{number}.py").write_text(f"x={number}\n")
    for number in range(5):
        (work / "src" / f"{number}.py").write_text("def f(): pass\n")
        (work / "build" / f"{number}.o").write_bytes(bytes([number]) * 100)
    (work / "data" / "kept.bin").write_bytes(b"\0old")
    (work / "Makefile").write_text("clean:\n\t@rm -rf build\n")
    (work / "format.py").write_text(REWRITE)
    (work / "rewrite.sh").write_text("sed -i s/pass/return/ src/*.py; mv src/0.py src/9.py; chmod 755 src/1.py\n")
    return work


def files_of(work: Path) -> dict[str, tuple[int, bytes]]:
    found = (one for one in work.rglob("*") if one.is_file())
    return {str(one.relative_to(work)): (one.stat().st_mode, one.read_bytes()) for one in found}


def ask(chat: ChatProgram, question: str, command: str, *, approves: bool = False) -> None:
    chat.wait_idle()
    chat.enter(question)
    if approves:
        chat.wait_for_question()
        chat.type("y")
    chat.wait_for(f"Done: {command}")
    chat.wait_idle()


def answer_yes(chat: ChatProgram, *outcome: str) -> None:
    # The outcome of an earlier undo may still be on the screen.
    shown = {text: chat.text.count(text) for text in outcome}
    chat.enter("/undo")
    chat.wait_for("It also changed", "answer ❯")
    chat.enter("y")
    chat.wait_until(lambda now: all(now.count(text) > times for text, times in shown.items()), f"waited for {outcome}")
    chat.wait_idle()


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_whatever_a_program_did_is_undone_byte_for_byte(home: Path, work: Path, columns: int, rows: int) -> None:
    """A build tool, a formatter, a recursive delete, a script that edits in place."""
    formats = f"{sys.executable} format.py"
    commands: Sequence[tuple[str, bool, str]] = [
        ("make clean", False, "5 files were restored."),
        (formats, False, "500 files were restored."),
        ("rm -rf src", True, "5 files were restored."),
        ("bash rewrite.sh", False, "6 files were restored."),
    ]
    before = files_of(work)
    # The answers would wrap and be missed at 80 columns if they named the interpreter.
    steps = runs(*(command for command, _, _ in commands))
    steps[3] = {"say": "Done: formatted"}
    with ChatProgram(make_home(home, steps), cwd=work, columns=columns, rows=rows) as chat:
        for command, approves, outcome in commands:
            ask(chat, "go on", "formatted" if command == formats else command, approves=approves)
            assert files_of(work) != before
            answer_yes(chat, outcome)
            assert files_of(work) == before


def test_a_trial_a_conflict_and_force(home: Path, work: Path) -> None:
    """A trial changes nothing; what changed since is left alone until the person insists."""
    with ChatProgram(make_home(home, runs("bash rewrite.sh")), cwd=work, rows=24) as chat:
        ask(chat, "go on", "bash rewrite.sh")
        (work / "src" / "4.py").write_text("by hand")
        written = files_of(work)
        chat.enter("/undo --dry-run 1")
        chat.wait_for_answer("/undo --dry-run 1", "5 files would be restored, 1 skipped.")
        assert files_of(work) == written
        chat.wait_idle()
        answer_yes(chat, "4.py: skipped, it has changed since", "5 files were restored, 1 skipped.", "--force")
        assert (work / "src" / "4.py").read_text() == "by hand"
        chat.enter("/undo 1 --force")
        chat.wait_for_answer("/undo 1 --force", "1 file was restored.")

    assert (work / "src" / "4.py").read_text() == "def f(): pass\n"


def test_what_a_background_process_wrote_is_undone_only_by_force(home: Path, work: Path) -> None:
    """Nobody knows whether the process left the file like this."""
    command = "(read go < ../gate; echo late > late.txt; echo > ../done) & echo started"
    gate, done = work.parent / "gate", work.parent / "done"
    os.mkfifo(gate)
    os.mkfifo(done)
    with ChatProgram(make_home(home, [*runs(command)[:1], {"say": "Done: it"}]), cwd=work, rows=24) as chat:
        ask(chat, "go on", "it")
        gate.write_text("\n")
        done.read_text()  # waits until the background process has written
        answer_yes(chat, "continued in the background", "0 files were restored, 1 skipped.")
        assert (work / "late.txt").exists()
        chat.enter("/undo 1 --force")
        chat.wait_for_answer("/undo 1 --force", "1 file was")

    assert not (work / "late.txt").exists()


def test_ignored_folders_are_covered_once_they_are_added(home: Path, work: Path) -> None:
    """`undo.include` names folders that git ignores."""
    (work / ".git" / "refs").mkdir(parents=True)
    (work / ".git" / "objects").mkdir()
    (work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (work / ".gitignore").write_text("data/\n")
    (work / "rewrite.sh").write_text("echo new > data/kept.bin\n")
    make_home(home, runs("bash rewrite.sh"), config="undo:\n  include: [data]\n")
    with ChatProgram(home, cwd=work, rows=24) as chat:
        ask(chat, "go on", "bash rewrite.sh")
        answer_yes(chat, "data/kept.bin: restored")

    assert (work / "data" / "kept.bin").read_bytes() == b"\0old"


@pytest.mark.parametrize(
    ("config", "is_home", "why"),
    [
        ("undo:\n  max_files: 100\n", False, "the workspace has more than 100 files"),
        ("", True, "the workspace is a home folder"),
    ],
)
def test_what_undo_does_not_cover_is_told_at_the_call_and_by_undo(
    home: Path, work: Path, config: str, is_home: bool, why: str
) -> None:
    """A person who takes the exchange back must not believe that its files are back too."""
    make_home(home, runs("bash rewrite.sh"), config=config)
    variables = {"HOME": str(work)} if is_home else {}
    with ChatProgram(home, cwd=work, columns=120, **variables) as chat:
        ask(chat, "go on", "bash rewrite.sh")
        assert f"{why}, so undo covers only files that calls name" in chat.text
        chat.enter("/undo")
        chat.wait_for_answer("/undo", f"not saved: {why}")
        assert "answer ❯" not in chat.text

    assert (work / "src" / "9.py").exists()
