"""Checks of the session: what one command leaves for the next, hostile settings, secrets, and clean-up."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Literal

from toolcrib.core.environments import CommandRequest
from toolcrib.environments.conformance.check import (
    COMMAND_SECONDS,
    GONE_SECONDS,
    CheckContext,
    ConformanceFailure,
    OutputRecorder,
    check,
    equal,
    expect,
    new_marker,
)
from toolcrib.environments.conformance.commands import ODD_TEXTS
from toolcrib.environments.process_tree import command_name, is_ours


@check("cwd-kept")
async def cwd_kept(ctx: CheckContext) -> None:
    """The next command starts in the folder that the last one changed to, and the environment reports it."""
    async with ctx.folder() as folder:
        for name in ("plain", "two words", "it's", "ünï☃", "-dash", "line\nbreak", "$x"):
            quoted = "'" + f"{folder}/{name}".replace("'", "'\\''") + "'"
            await ctx.run_ok(f"mkdir -- {quoted} && cd -- {quoted}")
            await ctx.expect_output('printf %s "$PWD"', f"{folder}/{name}")
            equal("cwd of the environment", ctx.environment.cwd, f"{folder}/{name}")
        await ctx.run_ok(f"cd {folder}")
        await ctx.expect_output("(cd /); pwd", f"{folder}\n")


@check("cwd-given")
async def cwd_given(ctx: CheckContext) -> None:
    """A given folder applies to that command only; a missing one is reported as `no_folder`."""
    async with ctx.folder() as folder:
        await ctx.run_ok("cd /")
        equal("pwd", (await ctx.run("pwd", cwd=folder)).text, f"{folder}\n")
        ran = await ctx.run(f"echo ran; touch {folder}/ran", cwd=f"{folder}/missing")
        equal("reason", ran.ended.reason, "no_folder")
        expect(ran.ended.exit_code != 0, "an exit code that is not 0", ran.ended.exit_code)
        expect("missing" in ran.ended.note, "the folder's name in the note", ran.ended.note)
        await ctx.expect_output(f"ls -A {folder}", "")


@check("cwd-vanished")
async def cwd_vanished(ctx: CheckContext) -> None:
    """If the session's folder no longer exists, the next command runs in one that does, with a note."""
    async with ctx.folder() as folder:
        await ctx.run_ok(f"mkdir {folder}/short-lived && cd {folder}/short-lived && rmdir {folder}/short-lived")
        outcome = await ctx.run("echo alive; cd . && pwd")
        equal("output", outcome.text.splitlines()[:1], ["alive"])
        equal("exit code", outcome.ended.exit_code, 0)
        expect("short-lived" in outcome.ended.note, "the folder's name in the note", outcome.ended.note)
        await ctx.run_ok("cd /")
        equal("the note afterwards", (await ctx.run("true")).ended.note, "")


@check("exports-kept")
async def exports_kept(ctx: CheckContext) -> None:
    """Exported variables keep any value and reach the programs of later commands."""
    for text in ODD_TEXTS:
        quoted = "'" + text.replace("'", "'\\''") + "'"
        await ctx.run_ok(f"export KEPT={quoted}")
        await ctx.expect_output("printf '%s|' \"$KEPT\"; bash -c 'printf %s \"$KEPT\"'", f"{text}|{text}")
    await ctx.run_ok("export NOT_TEXT=$'\\xff\\xfe' EMPTY= ; KEPT=changed")
    await ctx.expect_output('printf %s "$NOT_TEXT|$KEPT|${EMPTY-unset}"', b"\xff\xfe|changed|")
    await ctx.run_ok("declare -x -i NUMBER=4; export lower_case=1 _underscore=2")
    await ctx.expect_output("echo $NUMBER $lower_case $_underscore", "4 1 2\n")
    await ctx.run_ok("unset NOT_TEXT EMPTY NUMBER lower_case _underscore KEPT")


@check("unset-stays")
async def unset_stays(ctx: CheckContext) -> None:
    """A variable that was unset, or is no longer exported, does not come back."""
    await ctx.run_ok("export GONE=1 HIDDEN=1")
    await ctx.run_ok("unset GONE; export -n HIDDEN")
    await ctx.expect_output("echo ${GONE-unset} ${HIDDEN-unset}", "unset unset\n")
    home = (await ctx.run('printf %s "$HOME"')).text
    await ctx.run_ok("unset HOME")
    await ctx.expect_output("echo ${HOME-unset}", "unset\n")
    await ctx.run_ok(f"export HOME='{home}'")


@check("functions-kept")
async def functions_kept(ctx: CheckContext) -> None:
    """Functions are kept, exported ones also for programs; changes and removals are kept too."""
    await ctx.run_ok(
        "greet() { local who=${1:-you}; printf 'hello %s\\n' \"$who\"; }\nshout() { echo LOUD; }; export -f shout"
    )
    await ctx.expect_output("greet 'a b'; bash -c shout", "hello a b\nLOUD\n")
    await ctx.expect_output("greet", "hello you\n")
    await ctx.run_ok('greet() { cat <<EOF\nit\'s "new" $1\nEOF\n}')
    await ctx.expect_output("greet x", 'it\'s "new" x\n')
    await ctx.run_ok("unset -f greet; export -fn shout")
    await ctx.expect_output("type -t greet; shout; bash -c 'type -t shout'; :", "LOUD\n")
    await ctx.run_ok("unset -f shout")
    await ctx.expect_output("type -t shout; :", "")


@check("aliases-kept")
async def aliases_kept(ctx: CheckContext) -> None:
    """Aliases are kept and work in later commands."""
    await ctx.run_ok("alias say='echo \"it'\\''s\"' two='echo a; echo b'")
    await ctx.expect_output("say fine\ntwo", "it's fine\na\nb\n")
    await ctx.run_ok("unalias say two")
    expect((await ctx.run("say x")).ended.exit_code == 127, "an alias that was removed to be gone", "it still works")


@check("kept-after-exit")
async def kept_after_exit(ctx: CheckContext) -> None:
    """Changes are kept when a command ends by `exit`, a failure under `set -e` or `set -u`, or in a function."""
    async with ctx.folder() as folder:
        endings = {
            "exit 3": 3,
            "set -e; false; echo unreached": 1,
            "set -eu; echo ${no_such_variable:?}; echo unreached": None,
            "set -o pipefail; false | true": 1,
            "leave() { exit 9; }; leave": 9,
            "return 4 2>/dev/null; exit 4": 4,
        }
        for number, (ending, code) in enumerate(endings.items()):
            await ctx.run_ok(f"mkdir {folder}/{number}")
            outcome = await ctx.run(f"export ENDED={number}; cd {folder}/{number}; {ending}")
            expect("unreached" not in outcome.text, f"{ending!r} to end the command", outcome.text)
            if code is not None:
                equal(f"exit code of {ending!r}", outcome.ended.exit_code, code)
            await ctx.expect_output("echo $ENDED; pwd", f"{number}\n{folder}/{number}\n")
        await ctx.expect_output("false; echo still", "still\n")


@check("exit-trap")
async def exit_trap(ctx: CheckContext) -> None:
    """A command's own EXIT trap runs once, sees the exit code, and the state is still kept."""
    await ctx.expect_output("trap 'echo bye $?' EXIT; export TRAPPED=1; echo hi", "hi\nbye 0\n")
    await ctx.expect_output("echo $TRAPPED", "1\n")
    await ctx.expect_output("trap 'echo bye $?' EXIT; export TRAPPED=2; exit 5", "bye 5\n", exit_code=5)
    await ctx.expect_output("echo $TRAPPED", "2\n")
    await ctx.expect_output("trap 'echo bye' 0; trap - EXIT; echo none", "none\n")
    await ctx.expect_output("(trap 'echo inner' EXIT; echo in); echo out", "in\ninner\nout\n")
    await ctx.expect_output("trap 'exit 6' EXIT; export TRAPPED=3; true", "", exit_code=6)
    await ctx.expect_output("echo $TRAPPED", "3\n")
    await ctx.expect_output(
        "trap 'echo err' ERR; false; trap 'echo usr' USR1; kill -USR1 $BASHPID; echo end", "err\nusr\nend\n"
    )


@check("exec")
async def exec_keeps_the_state_before(ctx: CheckContext) -> None:
    """After `exec` the session is as it was before that command; the exit code is the program's."""
    await ctx.run_ok("export BEFORE=1; cd /")
    await ctx.expect_output("export BEFORE=2; cd /tmp; exec bash -c 'echo $BEFORE; exit 9'", "2\n", exit_code=9)
    await ctx.expect_output("echo $BEFORE; pwd", "1\n/\n")


@check("kills-its-shell")
async def kills_its_shell(ctx: CheckContext) -> None:
    """A command that kills its own shell ends at once with that signal; the session continues as before."""
    await ctx.run_ok("export BEFORE=here")
    for signal, code in (("KILL", 137), ("TERM", 143), ("USR1", 138)):
        outcome = await ctx.run(f"export BEFORE=lost; echo dying; kill -{signal} $$; sleep 600; echo survived")
        equal(f"exit code after kill -{signal} $$", outcome.ended.exit_code, code)
        equal("output", outcome.text, "dying\n")
        if signal == "KILL":
            await ctx.expect_output("echo $BEFORE", "here\n")
    await ctx.expect_output("echo next", "next\n")


SESSION_CHECKS = (
    cwd_kept,
    cwd_given,
    cwd_vanished,
    exports_kept,
    unset_stays,
    functions_kept,
    aliases_kept,
    kept_after_exit,
    exit_trap,
    exec_keeps_the_state_before,
    kills_its_shell,
)


BUILTINS = ("cd", "printf", "export", "echo", "eval", "exit", "trap", "set", "unset", "read", "alias", "pwd", "declare")


async def _session_works(ctx: CheckContext, what: str) -> None:
    """Output, exit code, folder, variables and functions go from one command to the next."""
    outcome = await ctx.run("export STILL='a b'; builtin cd /; still() { echo \"$STILL\"; }; echo printed; (exit 3)")
    equal(f"output after {what}", outcome.text, "printed\n")
    equal(f"exit code after {what}", outcome.ended.exit_code, 3)
    outcome = await ctx.run("still; pwd")
    equal(f"state after {what}", outcome.text, "a b\n/\n")
    await ctx.run_ok("unset STILL; unset -f still")


@check("shell-options")
async def shell_options(ctx: CheckContext) -> None:
    """Shell options apply to the command that sets them, and do not affect the session or its output."""
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
        await ctx.run(f"{option}; export OPTION=set; cd /tmp")
        await ctx.expect_output("echo $OPTION; pwd", "set\n/tmp\n")
        await ctx.run_ok("unset OPTION")
        await _session_works(ctx, option)
    for option in ("nullglob", "failglob", "dotglob", "extglob", "nocasematch", "nocaseglob", "lastpipe", "xpg_echo"):
        await ctx.run_ok(f"shopt -s {option}; export OPTION=shopt")
        await ctx.expect_output("echo $OPTION", "shopt\n")
        await _session_works(ctx, f"shopt -s {option}")


@check("trace-is-only-the-commands")
async def trace_is_only_the_commands(ctx: CheckContext) -> None:
    """`set -x` traces the lines of the command, and none of our own."""
    lines = (await ctx.run("set -x; echo hi")).text.splitlines()
    equal("trace", [line.lstrip("+") for line in lines], [" echo hi", "hi"])


@check("odd-variables", alone=True)
async def odd_variables(ctx: CheckContext) -> None:
    """Unusual values of variables that shells and programs obey do not break the session."""
    before = (await ctx.run("printf '%s' \"$PATH\"")).text
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
        await ctx.run(assignment)
        await _session_works(ctx, assignment)
        name = assignment.split("=")[0].split()[-1]
        await ctx.run(f"unset {name}; export PATH='{before}'")
    await ctx.expect_output("export LC_ALL=C TEXT='☃ é'; unset IFS; echo \"$TEXT\"", "☃ é\n")
    await ctx.expect_output("echo \"$TEXT\"; printf %s '☃' | wc -c | tr -d ' '", "☃ é\n3\n")


@check("shadowed-builtins", alone=True)
async def shadowed_builtins(ctx: CheckContext) -> None:
    """Functions and aliases named like builtins work for the user, and do not affect our own shell code."""
    for name in BUILTINS:
        await ctx.run(f"function {name} {{ builtin echo mine; }}")
        outcome = await ctx.run(f"{name} x")
        expect("mine" in outcome.text, f"the user's function {name!r} to be called", outcome.text)
        equal(f"output beside a function {name!r}", (await ctx.run("builtin printf '%s\\n' plain")).text, "plain\n")
        await ctx.run(f"builtin unset -f {name}")
        equal(f"output after a function {name!r}", (await ctx.run("echo plain; cd /")).text, "plain\n")
    await ctx.run("alias echo='false' cd='false' eval='false' local='false' if='false' printf='false'")
    await ctx.run("unalias -a")
    await _session_works(ctx, "aliases named like builtins")


@check("many-variables-and-functions")
async def many_variables_and_functions(ctx: CheckContext) -> None:
    """A session with hundreds of variables and functions, and a value of 100 kB, works as before."""
    await ctx.run_ok('for i in {1..300}; do export MANY_$i=value$i; eval "many_$i() { echo $i; }"; done')
    await ctx.expect_output("echo $MANY_1 $MANY_300; many_300", "value1 value300\n300\n")
    await ctx.run_ok("for i in {1..300}; do unset MANY_$i; unset -f many_$i; done")
    await ctx.run_ok("printf -v LARGE '%0100000d' 7; LARGE_COPY=$LARGE; export LARGE")
    await ctx.expect_output("echo ${#LARGE}; unset LARGE", "100000\n")
    await ctx.expect_output("env | grep -c LARGE; :", "0\n")


@check("limits-and-masks")
async def limits_and_masks(ctx: CheckContext) -> None:
    """A umask or a limit applies only to the command that sets it."""
    before = (await ctx.run("umask; ulimit -c; ulimit -n")).text
    await ctx.run_ok("umask 000; ulimit -c 0; ulimit -n 20")
    equal("mask and limits of the next command", (await ctx.run("umask; ulimit -c; ulimit -n")).text, before)


ODD_SESSION_CHECKS = (
    shell_options,
    trace_is_only_the_commands,
    odd_variables,
    shadowed_builtins,
    many_variables_and_functions,
    limits_and_masks,
)


# The value comes on standard input: as an argument it would be visible itself.
_WHO_SHOWS = r"""
IFS= builtin read -r wanted
{ command env; builtin export -p; } | command grep -F -q -f <(builtin printf '%s\n' "$wanted") && builtin echo command
builtin read -r boot </proc/sys/kernel/random/boot_id
builtin echo "space $boot $(command readlink /proc/self/ns/pid)"
command grep -laF -f - /proc/[0-9]*/environ /proc/[0-9]*/cmdline <<<"$wanted"
"""
SHOWN_HOLDERS = 3
_PROC_FILE = re.compile(r"/proc/(\d+)/(?:environ|cmdline)")


@check("secrets", "secrets")
async def secrets_are_not_seen(ctx: CheckContext) -> None:
    """Keys of this process are neither in a command's environment nor in /proc of toolcrib or what it starts."""
    for name, value in ctx.subject.secrets.items():
        equal(f"value of {name}", (await ctx.run(f'printf %s "${{{name}-}}"')).text, "")
        # One line of a key with several, because grep takes each line as a pattern.
        line = max(value.splitlines(), key=len)
        lines = (await ctx.run(_WHO_SHOWS, stdin=line.encode() + b"\n")).text.splitlines()
        expect("command" not in lines, f"{name} not to be in a command's environment", "it is")
        pids = sorted({int(found[1]) for line in lines if (found := _PROC_FILE.fullmatch(line))})
        if not ctx.environment.isolated and f"space {_process_space()}" in lines:
            await _note_other_holders(ctx, name, pids)
        else:
            equal(f"processes that show {name} inside", pids, [])
    printed = OutputRecorder()
    execution = await ctx.environment.start(CommandRequest(command="env", mode="background"), printed)
    await ctx.ended(execution)
    for name, value in ctx.subject.secrets.items():
        expect(value.encode() not in printed.data, f"{name} not to reach a background command", "it does")


async def _note_other_holders(ctx: CheckContext, name: str, pids: list[int]) -> None:
    """Where commands see the processes of this machine, they also see those that the user gave the key to."""
    ours = [pid for pid in pids if is_ours(pid)]
    equal(f"processes of toolcrib that show {name}", ours, [])
    others = [f"{command_name(pid)} (pid {pid})" for pid in pids]
    if others:
        more = f" and {len(others) - SHOWN_HOLDERS} more" if len(others) > SHOWN_HOLDERS else ""
        ctx.note(
            f"toolcrib does not show {name}, but your other processes do: "
            f"{', '.join(others[:SHOWN_HOLDERS])}{more}. Commands here run as you and can read it there. To keep "
            "keys from commands, use the sandbox backend or a container."
        )


def _process_space() -> str:
    """Identifies the process ids that this process sees: the running system and its pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "unknown"


@check("command-is-not-in-proc")
async def command_is_not_in_proc(ctx: CheckContext) -> None:
    """The text of a command, which may contain a password, is not in the arguments of any process inside."""
    mark = new_marker()
    modes: tuple[Literal["foreground", "background"], ...] = ("foreground", "background")
    for mode in modes:
        printed = OutputRecorder()
        request = CommandRequest(command=f"PASSWORD={mark}; echo ready; sleep 600", mode=mode)
        async with ctx.started(request, printed):
            await printed.wait_for(b"ready")
            equal(f"processes that show the text of a {mode} command", await ctx.running(mark), 0)


@check("sessions-are-apart", alone=True)
async def sessions_are_apart(ctx: CheckContext) -> None:
    """Two environments of one backend share neither variables nor folder nor functions."""
    other = ctx.subject.make()
    await other.open()
    try:
        await ctx.run_ok("export APART=1; apart() { echo; }; cd /tmp")
        second = CheckContext(ctx.subject, other)
        await second.expect_output("echo ${APART-none}; type -t apart || echo none", "none\nnone\n")
        await second.run_ok("export APART=2; cd /usr")
        await ctx.expect_output("echo $APART; pwd", "1\n/tmp\n")
    finally:
        await other.close()


@check("close-leaves-nothing", alone=True, seconds=180)
async def close_leaves_nothing(ctx: CheckContext) -> None:
    """Closing an environment ends every command, including background ones and orphans, and releases everything."""
    await _closed(ctx.environment.close())
    before = await _outside(ctx)
    mark = new_marker()
    first = ctx.subject.make()
    await first.open()
    inner = CheckContext(ctx.subject, first)
    try:
        await inner.run(f"setsid sleep {mark} >/dev/null 2>&1 & nohup sleep {mark} >/dev/null 2>&1 & echo")
        await first.start(CommandRequest(command=f"trap '' TERM; sleep {mark}", mode="background"), OutputRecorder())
        running = await first.start(CommandRequest(command=f"sleep {mark}"), OutputRecorder())
        await inner.becomes_running(mark, 4)
        folder = first.address().get("folder", "")
    finally:
        await _closed(first.close())
    await _closed(first.close())
    ended = await ctx.ended(running, what="a command of a closed environment")
    expect(ended.reason in ("killed", "lost"), "a running command to be ended by it", ended)
    await _nothing_new(ctx, before)
    await _nothing_seen_by_another(ctx, mark, folder)


async def _nothing_seen_by_another(ctx: CheckContext, mark: str, folder: str) -> None:
    """Where environments share a machine, another one can check."""
    other = ctx.subject.make()
    await other.open()
    try:
        looking = CheckContext(ctx.subject, other)
        await looking.none_left(mark)
        if folder:
            await looking.expect_output(f"ls -d '{folder}' 2>/dev/null; :", "")
    finally:
        await _closed(other.close())


async def _closed(closing: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            await closing
    except TimeoutError:
        raise ConformanceFailure(f"expected close() to return within {COMMAND_SECONDS:.0f} s; it did not") from None


async def _outside(ctx: CheckContext) -> frozenset[str]:
    return frozenset(await ctx.subject.leftovers()) if ctx.subject.leftovers else frozenset()


async def _nothing_new(ctx: CheckContext, before: frozenset[str]) -> None:
    new: frozenset[str] = frozenset()
    for _ in range(int(GONE_SECONDS / 0.1)):
        new = await _outside(ctx) - before
        if not new:
            return
        await asyncio.sleep(0.1)
    raise ConformanceFailure(f"expected nothing to be left outside; seen {sorted(new)}")


HYGIENE_CHECKS = (secrets_are_not_seen, command_is_not_in_proc, sessions_are_apart, close_leaves_nothing)
