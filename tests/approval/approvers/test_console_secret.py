"""A secret at the terminal, in a real pseudo-terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.approval.approvers.approver_terminal import Terminal
from toolcrib.approval.approvers import ConsoleApprover, SmartApprover
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.core.ports import SecretAsker

PROMPT = "sudo ls\nPassword: "


@pytest.mark.parametrize(
    ("keys", "secret"),
    [
        ("hunter2\r", "hunter2"),
        ("hunter2\n", "hunter2"),
        ("pässwört ☃\r", "pässwört ☃"),
        ("wrong\x15right\r", "right"),
        ("abx\x7fc\x1b[A\r", "abc"),
        ("\r", None),
        ("half\x03", None),
        ("\x04", None),
    ],
)
def test_what_is_typed_is_the_secret_and_is_shown_nowhere(tmp_path: Path, keys: str, secret: str | None):
    """Input up to Enter, with line editing; an empty line, Ctrl-C and Ctrl-D give None."""
    with Terminal(tmp_path, {"secret": PROMPT}) as terminal:
        terminal.expect("Password: ")
        terminal.type(keys)
        result = terminal.result()

    assert result["answers"] == [secret]
    assert result["restored"]
    shown = terminal.screen.partition("Password: ")[2]
    assert shown.strip() in ("", "no password given")


def test_nobody_answers_in_time(tmp_path: Path):
    """The question has its own timeout, after which there is no secret."""
    with Terminal(tmp_path, {"secret": PROMPT, "timeout_seconds": 0.3}) as terminal:
        assert terminal.result()["answers"] == [None]

    assert "no answer in time" in terminal.screen


def test_what_was_typed_before_the_question_is_no_answer(tmp_path: Path):
    """Input typed before the question is not a password."""
    with Terminal(tmp_path, {"secret": PROMPT}, typed_ahead="early\r") as terminal:
        terminal.expect("Password: ")
        terminal.type("late\r")
        assert terminal.result()["answers"] == ["late"]


def test_a_prompt_cannot_paint_over_itself(tmp_path: Path):
    """Characters in the command that a terminal would obey are spelled out."""
    with Terminal(tmp_path, {"secret": "sudo \x1b[2Jls\nPassword: "}) as terminal:
        shown = terminal.expect("Password: ")
        terminal.type("\r")
        terminal.result()

    assert "\x1b[2J" not in shown


async def test_without_a_terminal_nobody_can_be_asked():
    """No one can answer through a pipe."""
    assert await ConsoleApprover(io.StringIO("x\n"), io.StringIO(), timeout_seconds=1).ask_secret(PROMPT, 1) is None


async def test_a_model_passes_the_question_on_to_the_person():
    """Only a person can provide a secret; without a channel for it there is none."""

    class Person:
        async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
            raise AssertionError(request)

        async def ask_secret(self, prompt: str, timeout_seconds: float) -> str | None:
            return f"{prompt}{timeout_seconds:g}"

    class Deaf:
        ask = Person.ask

    class Judge:
        async def complete(self, prompt: str, *, timeout_seconds: float) -> str:
            raise AssertionError(prompt)

    smart = SmartApprover(Judge(), Person())
    assert isinstance(smart, SecretAsker)
    assert await smart.ask_secret("p", 5) == "p5"
    assert await SmartApprover(Judge(), Deaf()).ask_secret("p", 5) is None
