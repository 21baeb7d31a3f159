"""Checks that nothing a user does to his shell breaks the session for good."""

from __future__ import annotations

from toolcrib.environments.conformance.check import Trial, check, equal, expect

BUILTINS = ("cd", "printf", "export", "echo", "eval", "exit", "trap", "set", "unset", "read", "alias", "pwd", "declare")


async def _session_works(trial: Trial, what: str) -> None:
    """Output, exit code, folder, variables and functions go from one command to the next."""
    outcome = await trial.run("export STILL='a b'; builtin cd /; still() { echo \"$STILL\"; }; echo printed; (exit 3)")
    equal(f"output after {what}", outcome.text, "printed\n")
    equal(f"exit code after {what}", outcome.ended.exit_code, 3)
    outcome = await trial.run("still; pwd")
    equal(f"state after {what}", outcome.text, "a b\n/\n")
    await trial.does("unset STILL; unset -f still")


@check("shell-options")
async def shell_options(trial: Trial) -> None:
    """Options that a command sets work in that command, and leave the session and its output as they are."""
    for option in (
        "set -x",
        "set -u",
        "set -C",
        "set -f",
        "set -v",
        "set -o posix",
        "set -T",
        "set -E",
        "set -a",
        "set -b",
    ):
        await trial.run(f"{option}; export OPTION=set; cd /tmp")
        await trial.prints("echo $OPTION; pwd", "set\n/tmp\n")
        await trial.does("unset OPTION")
        await _session_works(trial, option)
    for option in ("nullglob", "failglob", "dotglob", "extglob", "nocasematch", "nocaseglob", "lastpipe", "xpg_echo"):
        await trial.does(f"shopt -s {option}; export OPTION=shopt")
        await trial.prints("echo $OPTION", "shopt\n")
        await _session_works(trial, f"shopt -s {option}")


@check("trace-is-only-the-commands")
async def trace_is_only_the_commands(trial: Trial) -> None:
    """`set -x` shows the lines of the command, and none of what runs around it."""
    lines = (await trial.run("set -x; echo hi")).text.splitlines()
    equal("trace", [line.lstrip("+") for line in lines], [" echo hi", "hi"])


@check("odd-variables", alone=True)
async def odd_variables(trial: Trial) -> None:
    """Variables that shells and programs obey, set to odd values, do not break the session."""
    before = (await trial.run("printf '%s' \"$PATH\"")).text
    for assignment in (
        "IFS=:",
        "export IFS=abc/0123",
        "export LC_ALL=C",
        "export POSIXLY_CORRECT=1",
        "export TMPDIR=/no/such/folder",
        "export CDPATH=/usr:/",
        "export PS4='$(echo injected)'",
        "export PROMPT_COMMAND='echo injected'",
        "export BASH_ENV=/no/such/file",
        "export ENV=/no/such/file",
        "export TIMEFORMAT=x BASH_XTRACEFD=2",
        "export GLOBIGNORE='*' GREP_OPTIONS=-v",
        "export PATH=/no/such/folder",
        "export HOME=/no/such/folder",
        "readonly NO_CHANGE=1; export NO_CHANGE",
    ):
        await trial.run(assignment)
        await _session_works(trial, assignment)
        name = assignment.split("=")[0].split()[-1]
        await trial.run(f"unset {name}; export PATH='{before}'")
    await trial.prints("export LC_ALL=C TEXT='☃ é'; unset IFS; echo \"$TEXT\"", "☃ é\n")
    await trial.prints("echo \"$TEXT\"; printf %s '☃' | wc -c | tr -d ' '", "☃ é\n3\n")


@check("shadowed-builtins", alone=True)
async def shadowed_builtins(trial: Trial) -> None:
    """Functions and aliases named like builtins work for the user, and do not reach what runs around a command."""
    for name in BUILTINS:
        await trial.run(f"function {name} {{ builtin echo mine; }}")
        outcome = await trial.run(f"{name} x")
        expect("mine" in outcome.text, f"the user's function {name!r} to be called", outcome.text)
        equal(f"output beside a function {name!r}", (await trial.run("builtin printf '%s\\n' plain")).text, "plain\n")
        await trial.run(f"builtin unset -f {name}")
        equal(f"output after a function {name!r}", (await trial.run("echo plain; cd /")).text, "plain\n")
    await trial.run("alias echo='false' cd='false' eval='false' local='false' if='false' printf='false'")
    await trial.run("unalias -a")
    await _session_works(trial, "aliases named like builtins")


@check("many-variables-and-functions")
async def many_variables_and_functions(trial: Trial) -> None:
    """A session with hundreds of variables and functions, and with a value of 100 kB in one, goes on as before."""
    await trial.does('for i in {1..300}; do export MANY_$i=value$i; eval "many_$i() { echo $i; }"; done')
    await trial.prints("echo $MANY_1 $MANY_300; many_300", "value1 value300\n300\n")
    await trial.does("for i in {1..300}; do unset MANY_$i; unset -f many_$i; done")
    await trial.does("printf -v LARGE '%0100000d' 7; LARGE_COPY=$LARGE; export LARGE")
    await trial.prints("echo ${#LARGE}; unset LARGE", "100000\n")
    await trial.prints("env | grep -c LARGE; :", "0\n")


@check("limits-and-masks")
async def limits_and_masks(trial: Trial) -> None:
    """A mask or a limit that one command sets is gone with it."""
    before = (await trial.run("umask; ulimit -c; ulimit -n")).text
    await trial.does("umask 000; ulimit -c 0; ulimit -n 20")
    equal("mask and limits of the next command", (await trial.run("umask; ulimit -c; ulimit -n")).text, before)


CHECKS = (
    shell_options,
    trace_is_only_the_commands,
    odd_variables,
    shadowed_builtins,
    many_variables_and_functions,
    limits_and_masks,
)
