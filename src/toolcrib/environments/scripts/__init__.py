"""The bash scripts that run inside an environment, read once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path


@cache
def script(name: str) -> str:
    """The text of a script beside this file."""
    return (Path(__file__).parent / f"{name}.sh").read_text(encoding="utf-8")


RUNNER = ("prepare", "trap", "orphans", "runner")
LOCAL_RUNNER = ("trap", "runner")
"""For a shell that leads a session and starts without variables; its orphans are found from outside."""
SERVING = ("serving",)


def runner_text(parts: Sequence[str]) -> str:
    """The text that commands run under."""
    return "\n".join(map(script, parts))


ENTRY = 'eval "$1"; builtin eval "$__tc_before"; __tc_take_command; builtin eval "$__tc_command"'
"""On one line, so that the shell counts lines from the start of the command in its messages."""
SERVING_ENTRY = (
    'eval "$1"; builtin eval "$__tc_before"; builtin set -m; while builtin true; do '
    '(__tc_take_command; builtin eval "$__tc_command") & __tc_wait_for_fork; done'
)
"""The same for a shell that forks for each command; with `set -m` every fork leads a process group."""
