"""Hostile inputs, most of them found by a fuzzer: each gets a verdict; `bench/approval.py` measures their time."""

from __future__ import annotations

import time

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
    "directories": ("cd a; ", 2_000),
    "directories beside each other": ("cd a& ", 2_000),
    "counting loops": ("for i in $(seq 100000); do ", 30),
    "pipes of xargs": ("ls | xargs ls ", 2_000),
    "chained verbs": ("tool e_modules || ", 1_000),
    "hidden directories": ("cat " + ".ssh/" * 800 + "; ", 240),
    "clusters": ("rm " + ("-" + "x" * 63 + " ") * 500 + "; ", 30),
}
NESTED = {
    "client copies": ("psql -c '", "\\copy ", 9_000, "'"),
    "copies to": ('psql -c "', "copy to ", 7_000, '"'),
    "client groups": ("psql -c '", "\\g(", 19_000, "'"),
    "client backticks": ("psql -c '", "\\set a ", 8_000, "`'"),
    "client targets": ("mysql -e '", "tee a\n", 9_000, "'"),
    "languages": ('psql -c "', "create function ", 3_500, '"'),
    "addresses in code": ("node -e '", "0x7f", 4_700, " fetch('"),
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
    "unfinished find": ("find . ", "-exec rm -f {} ", 600, "\\;"),
    "verbs in a word": ("tool nod", "e_modules", 10_000, ""),
    "python calls in calls": ("python3 -c 'x=", "f(", 50, "0" + ").g()" * 50 + "'"),
    "python doubling": ('python3 -c \'x="a"\n', "x=x+x\n", 5_000, "'"),
    "python lists in lists": ("python3 -c 'x=[1]\n", "x=[x,x]\n", 60, 'y="a"+str(x)\''),
    "python loops in loops": ("python3 -c '", "[x for x in ", 60, "y" + "]" * 60 + "'"),
    "ruby commands": ("ruby -e '", "%x(", 6_000, "'"),
    "printed rounds": ("printf '%s" + "a" * 100_000 + "' ", "a ", 900, ""),
}
READ_AGAIN = {
    "perl": ("echo '" + "print 1; " * 2_000 + "' > f; ", "perl f; "),
    "perl from a variable": ("x='" + "print 1; " * 2_000 + "'; ", 'perl -e "$x"; '),
    "python": ("echo '" + "x = 1\n" * 6_000 + "' > f; ", "python3 f; "),
    "sql": ("echo '" + "select 1; " * 5_000 + "' > f; ", "psql -f f; "),
    "vim": ("echo '" + ("a" * 900 + "\n") * 200 + "' > f; ", "vim -S f x; "),
    "sed": ("echo '" + "s/a/b/;" * 500 + "' > f; ", "sed -f f x; "),
    "make": ("echo '" + "a=b\n" * 199 + "' > f; ", "make -f f; "),
    "package scripts": (
        'echo \'{"scripts": {' + '"a": "ls",' * 5_000 + '"b": "ls"}}\' > package.json; ',
        "npm run b; ",
    ),
    "filters": ("echo '" + "a\n" * 40_000 + "' > f; cat f ", "| rev "),
    "a deep directory": ("cd " + "abc/" * 1_000 + "; ", "rm a b c d e; "),
}
GROWING = {
    "verbs in a word": ("tool nod", "e_modules", 500, ""),
    "modes": ("chmod ", "oa", 2_000, " x"),
    "modes of programs": ("install -m +", "s", 2_000, "! x"),
    "key names": ("cat ", "_priv", 1_000, ""),
    "certificate names": ("cat ", "ca", 2_000, "!"),
    "directories of keys": ("cat ", ".ssh/", 1_000, ""),
    "parent directories": ("rm ", "../", 1_000, ""),
    "blanks in perl": ("perl -e 'system", " ", 4_000, "x'"),
    "blanks in loops": ("perl -e 'while 1", " ", 4_000, "x'"),
    "lines of tcl": ("tclsh -c '", "\n", 4_000, "'"),
    "open ruby commands": ("ruby -e '", "%x(", 1_200, "'"),
    "unclosed secrets": ("ruby -e 'x \"", ".ssh", 1_000, "'"),
    "blanks in vim": ("vim -c '", " ", 1_000, "' x"),
    "make functions": ("make --eval '", "$(shell ", 1_000, "'"),
}


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("name", REPEATED)
def test_repeated_input_gets_a_verdict(name: str) -> None:
    """Any input gets a verdict, none of these a block, and the analyser does not fail on it."""
    unit, count = REPEATED[name]

    assessment = analyse(unit * count)

    assert assessment.verdict in ("safe", "ask")
    assert not [reason for reason in assessment.not_understood if "analyser failed" in reason]


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("name", NESTED)
def test_long_code_gets_a_verdict(name: str) -> None:
    """Long code for an interpreter gets a verdict, too."""
    start, unit, count, end = NESTED[name]

    assessment = analyse(start + unit * count + end)

    assert assessment.verdict in ("safe", "ask")
    assert not [reason for reason in assessment.not_understood if "analyser failed" in reason]


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("name", READ_AGAIN)
def test_work_that_is_asked_for_again_and_again_is_counted(name: str) -> None:
    """Short commands that each cause much work use up what a command line is worth, and the answer is a question."""
    start, again = READ_AGAIN[name]

    assert not analyse(start + again).not_understood
    assert analyse(start + again * 600).not_understood == ("the command line has too many commands",)


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("name", GROWING)
def test_time_grows_with_the_input_and_not_with_its_square(name: str) -> None:
    """Four times the input takes about four times as long; sixteen times would be too long at the limits."""
    start, unit, count, end = GROWING[name]

    short, long = (processor_time(start + unit * times + end) for times in (count, 4 * count))

    assert long < 10 * short + 0.005


def processor_time(command: str) -> float:
    """The least time of three runs on this thread, however busy the machine is."""
    times: list[float] = []
    for _ in range(3):
        started = time.thread_time()
        analyse(command)
        times.append(time.thread_time() - started)
    return min(times)


def test_unread_rest_is_never_safe() -> None:
    """What lies beyond a limit is not read, so the whole command is asked about."""
    assert analyse("ls;" * 20_000 + "rm -rf /").verdict == "ask"
    assert analyse("psql -c '" + "select 1; " * 20_000 + "drop table x'").verdict == "ask"
    assert analyse("bash <<'E'\n" + "echo a\n" * 20_000 + "rm -rf /\nE\n").verdict == "ask"
