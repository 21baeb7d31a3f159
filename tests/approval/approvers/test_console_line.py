"""A line of text at the terminal, in a real pseudo-terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.approval.approvers.approver_terminal import Terminal


@pytest.mark.parametrize(
    ("keys", "line", "shown"),
    [
        ("Ada\r", "Ada", "> Ada"),
        ("Adx\x7fa\n", "Ada", "> Adx\b \ba"),
        ("wrong\x15right\r", "right", "right"),
        ("☃日\x7f\r", "☃", "> ☃日\b \b\b \b"),
        ("\r", None, "> "),
        ("half\x03", None, "no answer given"),
    ],
)
def test_what_is_typed_is_shown_and_given(tmp_path: Path, keys: str, line: str | None, shown: str) -> None:
    """Input up to Enter, with line editing; an empty line and Ctrl-C give None."""
    with Terminal(tmp_path, {"line": "Your name?\n> "}) as terminal:
        terminal.expect("> ")
        terminal.type(keys)
        result = terminal.result()

    assert result["answers"] == [line]
    assert shown in terminal.screen
