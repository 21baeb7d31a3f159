"""Dangerous rows of the tables stay dangerous inside other commands, in code and in encodings."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable
from functools import cache

import pytest

from tests.approval.shell.shell_rows import read_rows, tables
from toolcrib.approval.analyse import analyse

MAX_CHARACTERS = 600
QUICK_STEP, WIDE_STEP = 130, 9
"""Every so manieth row: a few in each run, many where time is cheap."""
quote = shlex.quote


def literal(text: str) -> str:
    """A string in single quotes, as perl reads it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


WRAPPERS: dict[str, Callable[[str], str]] = {
    "shell": lambda c: f"sh -c {quote(c)}",
    "here-string": lambda c: f"bash <<< {quote(c)}",
    "heredoc": lambda c: f"bash <<'ZZ'\n{c}\nZZ\n",
    "eval": lambda c: f"eval {quote(c)}",
    "subshell": lambda c: f"( {c}\n)",
    "condition": lambda c: f"if {c}\nthen :; fi",
    "loop": lambda c: f"for i in 1; do {c}\ndone",
    "case": lambda c: f"case a in a) {c}\n;; esac",
    "function": lambda c: f"zz() {{ {c}\n}}; zz",
    "substitution": lambda c: f'echo "$({c}\n)"',
    "process substitution": lambda c: f"cat <({c}\n)",
    "trap": lambda c: f"trap {quote(c)} EXIT",
    "base64": lambda c: f"echo {base64.b64encode(c.encode()).decode()} | base64 -d | sh",
    "variable": lambda c: f'printf -v zz %s {quote(c)}; eval "$zz"',
    "array": lambda c: f'zz=({quote(c)}); eval "${{zz[0]}}"',
    "xargs": lambda c: f"xargs -I@@ sh -c {quote(c)} <<< a",
    "find": lambda c: f"find . -maxdepth 0 -exec sh -c {quote(c)} \\;",
    "wrappers": lambda c: f"timeout 9 env nice bash -c {quote(c)}",
    "written script": lambda c: f"cat > /tmp/zz.sh <<'ZZ'\n{c}\nZZ\nsh /tmp/zz.sh",
    "python": lambda c: f"python3 -c {quote(f'import os; os.system({c!r})')}",
    "node": lambda c: "node -e " + quote(f'require("child_process").execSync({json.dumps(c)})'),
    "perl": lambda c: "perl -e " + quote(f"system({literal(c)})"),
}


@cache
def dangerous_rows(step: int) -> list[str]:
    rows = [row.command for name in tables() for row in read_rows(name) if row.label != "safe"]
    found = [command for command in rows[::step] if len(command) < MAX_CHARACTERS and "ZZ" not in command]
    return [command for command in found if analyse(command).verdict != "safe"]


def hidden(wrap: Callable[[str], str], step: int) -> list[str]:
    return [command for command in dangerous_rows(step) if analyse(wrap(command)).verdict == "safe"]


@pytest.mark.parametrize("name", WRAPPERS)
def test_no_wrapper_hides_a_danger(name: str) -> None:
    """What is asked about on its own is asked about inside something else."""
    assert hidden(WRAPPERS[name], QUICK_STEP) == []


@pytest.mark.services
@pytest.mark.parametrize("name", WRAPPERS)
def test_no_wrapper_hides_any_of_many_dangers(name: str) -> None:
    """The same for many rows."""
    assert hidden(WRAPPERS[name], WIDE_STEP) == []
