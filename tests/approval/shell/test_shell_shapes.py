"""Hostile inputs, most of them found by a fuzzer: each gets a verdict; `bench/approval.py` measures their time."""

from __future__ import annotations

import pytest

from toolcrib.approval.analyse import analyse

REPEATED = {
    "pipes": ("a|", 50_000),
    "tee lines": ("tee a/b\n", 12_000),
    "heredocs": ("<<A ", 20_000),
    "NUL": ("\0", 1_000_000),
    "substitutions": ("$(", 300_000),
    "braced parameters": ("${", 100_000),
    "arithmetic": ("$((", 100_000),
    "backticks": ("`", 100_000),
    "quotes": ("''", 500_000),
    "double quotes": ('"', 999_999),
    "semicolons": (";", 1_000_000),
    "parentheses": ("(", 100_000),
    "closing parentheses": (") rev", 4_000),
    "braces": ("{a,", 3_000),
    "functions": ("f()", 50_000),
    "cases": ("case x in ", 2_000),
    "ifs": ("if ", 5_000),
    "tests": ("[[ ", 5_000),
    "wrappers": ("env ", 10_000),
    "remote wrappers": ("env ssh h", 1_000),
    "finders": ("find . -exec env ", 1_000),
    "redirected wrappers": ("&> time xargs", 1_500),
    "quoted pipes": ("'|'|", 5_000),
    "signals": ("kill -9]${x}nice ", 1_000),
    "open brackets": ("eval[[xargs/etc", 7_000),
    "shells in pipes": ("|sh{", 5_000),
    "braced remotes": ("{a,b}//ssh h--sed", 1_000),
    "continuation lines": ("\\\n", 300_000),
    "backslashes": ("\\", 1_000_000),
    "arrays": ("a=(", 1_000),
    "extended globs": ("a @(", 50_000),
    "comments": ("a #\n", 200_000),
    "output substitutions": ("echo ls > >(sh); ", 3_000),
    "nested output substitutions": ("tee >(", 40),
    "descriptors": ("exec 3<<< ls; sh <&3;", 2_000),
    "name references": ("declare -n a=b; declare -n b=a; echo $a;", 1_000),
    "doubling": ("x=$x$x$x$x;", 200),
}
NESTED = {
    "perl code": ("perl -e '", 'open("', 3_000, "'"),
    "python code": ("python3 -c '", "x = 1\n", 9_000, "'"),
    "python brackets": ("python3 -c '", "[1+", 9_000, "'"),
    "sql": ("psql -c '", "delete from x where a=1; ", 40_000, "'"),
    "sql comments": ("psql -c '", "/*", 500_000, "'"),
    "sed script": ("sed '", "s/a/", 75_000, "'"),
    "vim command": ("vim -c '", "!", 300_000, "'"),
    "heredoc into bash": ("bash <<'E'\n", "echo a\n", 100_000, "E\n"),
    "makefile": ("printf '", "x:\\n\\techo a\\n", 3_000, "' > Makefile; make"),
    "package scripts": ("echo '", '{"a":', 20_000, "' > package.json; npm run x"),
    "sql in strings": ("psql -c '", "do $$ execute ", 3_000, "'"),
    "prompt strings": ("x='", "$(ls)", 300, "'; echo ${x@P}; echo ${x@P}"),
    "pattern removal": ("x=" + "a" * 500 + ";", "echo ${x%%*a*a*a*a*b};", 300, ""),
    "replacement": ("x=" + "a" * 90_000 + ";", "echo ${x//a/bb};", 300, ""),
}


@pytest.mark.parametrize("name", REPEATED)
def test_repeated_input_gets_a_verdict(name: str) -> None:
    """Any input gets a verdict, none of these a block, and the analyser does not fail on it."""
    unit, count = REPEATED[name]

    assessment = analyse(unit * count)

    assert assessment.verdict in ("safe", "ask")
    assert not [reason for reason in assessment.not_understood if "analyser failed" in reason]


@pytest.mark.parametrize("name", NESTED)
def test_long_code_gets_a_verdict(name: str) -> None:
    """Long code for an interpreter gets a verdict, too."""
    start, unit, count, end = NESTED[name]

    assessment = analyse(start + unit * count + end)

    assert assessment.verdict in ("safe", "ask")
    assert not [reason for reason in assessment.not_understood if "analyser failed" in reason]


def test_unread_rest_is_never_safe() -> None:
    """What lies beyond a limit is not read, so the whole command is asked about."""
    assert analyse("ls;" * 20_000 + "rm -rf /").verdict == "ask"
    assert analyse("psql -c '" + "select 1; " * 20_000 + "drop table x'").verdict == "ask"
    assert analyse("bash <<'E'\n" + "echo a\n" * 20_000 + "rm -rf /\nE\n").verdict == "ask"
