"""The bash texts that run inside a backend, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def script(name: str) -> str:
    """The text of one of the scripts beside this file."""
    return (Path(__file__).parent / f"{name}.sh").read_text(encoding="utf-8")


ENTRY = 'eval "$1"; builtin eval "$__tc_before"; __tc_take_command; builtin eval "$__tc_command"'
"""Written in one line, so that messages of the shell count lines from the start of the command."""
