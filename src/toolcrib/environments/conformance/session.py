"""Checks of the session: what one command leaves for the next, whatever way it ended."""

from __future__ import annotations

from toolcrib.environments.conformance.check import Trial, check, equal, expect
from toolcrib.environments.conformance.commands import ODD_TEXTS


@check("cwd-kept")
async def cwd_kept(trial: Trial) -> None:
    """The next command starts in the folder that the last one went to, and the environment says which that is."""
    async with trial.folder() as folder:
        for name in ("plain", "two words", "it's", "ünï☃", "-dash", "line\nbreak", "$x"):
            quoted = "'" + f"{folder}/{name}".replace("'", "'\\''") + "'"
            await trial.does(f"mkdir -- {quoted} && cd -- {quoted}")
            await trial.prints('printf %s "$PWD"', f"{folder}/{name}")
            equal("cwd of the environment", trial.environment.cwd, f"{folder}/{name}")
        await trial.does(f"cd {folder}")
        await trial.prints("(cd /); pwd", f"{folder}\n")


@check("cwd-given")
async def cwd_given(trial: Trial) -> None:
    """A folder that is given holds for that command; one that does not exist is an error that says so."""
    async with trial.folder() as folder:
        await trial.does("cd /")
        equal("pwd", (await trial.run("pwd", cwd=folder)).text, f"{folder}\n")
        ran = await trial.run(f"echo ran; touch {folder}/ran", cwd=f"{folder}/missing")
        equal("reason", ran.ended.reason, "no_folder")
        expect(ran.ended.exit_code != 0, "an exit code that is not 0", ran.ended.exit_code)
        expect("missing" in ran.ended.note, "the folder's name in the note", ran.ended.note)
        await trial.prints(f"ls -A {folder}", "")


@check("cwd-vanished")
async def cwd_vanished(trial: Trial) -> None:
    """When the session's folder is gone, the next command runs in one that exists, and this is said."""
    async with trial.folder() as folder:
        await trial.does(f"mkdir {folder}/short-lived && cd {folder}/short-lived && rmdir {folder}/short-lived")
        outcome = await trial.run("echo alive; cd . && pwd")
        equal("output", outcome.text.splitlines()[:1], ["alive"])
        equal("exit code", outcome.ended.exit_code, 0)
        expect("short-lived" in outcome.ended.note, "the folder's name in the note", outcome.ended.note)
        await trial.does("cd /")
        equal("the note afterwards", (await trial.run("true")).ended.note, "")


@check("exports-kept")
async def exports_kept(trial: Trial) -> None:
    """Exported variables are kept with any value, and reach the programs of later commands."""
    for text in ODD_TEXTS:
        quoted = "'" + text.replace("'", "'\\''") + "'"
        await trial.does(f"export KEPT={quoted}")
        await trial.prints("printf '%s|' \"$KEPT\"; bash -c 'printf %s \"$KEPT\"'", f"{text}|{text}")
    await trial.does("export NOT_TEXT=$'\\xff\\xfe' EMPTY= ; KEPT=changed")
    await trial.prints('printf %s "$NOT_TEXT|$KEPT|${EMPTY-unset}"', b"\xff\xfe|changed|")
    await trial.does("declare -x -i NUMBER=4; export lower_case=1 _underscore=2")
    await trial.prints("echo $NUMBER $lower_case $_underscore", "4 1 2\n")
    await trial.does("unset NOT_TEXT EMPTY NUMBER lower_case _underscore KEPT")


@check("unset-stays")
async def unset_stays(trial: Trial) -> None:
    """A variable that was unset, or is not exported any more, does not come back."""
    await trial.does("export GONE=1 HIDDEN=1")
    await trial.does("unset GONE; export -n HIDDEN")
    await trial.prints("echo ${GONE-unset} ${HIDDEN-unset}", "unset unset\n")
    home = (await trial.run('printf %s "$HOME"')).text
    await trial.does("unset HOME")
    await trial.prints("echo ${HOME-unset}", "unset\n")
    await trial.does(f"export HOME='{home}'")


@check("functions-kept")
async def functions_kept(trial: Trial) -> None:
    """Functions are kept, exported ones also for programs, changed and removed ones as they are."""
    await trial.does(
        "greet() { local who=${1:-you}; printf 'hello %s\\n' \"$who\"; }\nshout() { echo LOUD; }; export -f shout"
    )
    await trial.prints("greet 'a b'; bash -c shout", "hello a b\nLOUD\n")
    await trial.prints("greet", "hello you\n")
    await trial.does('greet() { cat <<EOF\nit\'s "new" $1\nEOF\n}')
    await trial.prints("greet x", 'it\'s "new" x\n')
    await trial.does("unset -f greet; export -fn shout")
    await trial.prints("type -t greet; shout; bash -c 'type -t shout'; :", "LOUD\n")
    await trial.does("unset -f shout")
    await trial.prints("type -t shout; :", "")


@check("aliases-kept")
async def aliases_kept(trial: Trial) -> None:
    """Aliases are kept and work in later commands."""
    await trial.does("alias say='echo \"it'\\''s\"' two='echo a; echo b'")
    await trial.prints("say fine\ntwo", "it's fine\na\nb\n")
    await trial.does("unalias say two")
    expect((await trial.run("say x")).ended.exit_code == 127, "an alias that was removed to be gone", "it still works")


@check("kept-after-exit")
async def kept_after_exit(trial: Trial) -> None:
    """What a command changed is kept when it ends by `exit`, a failure under `set -e` or `set -u`, or in a function."""
    async with trial.folder() as folder:
        endings = {
            "exit 3": 3,
            "set -e; false; echo unreached": 1,
            "set -eu; echo ${no_such_variable:?}; echo unreached": None,
            "set -o pipefail; false | true": 1,
            "leave() { exit 9; }; leave": 9,
            "return 4 2>/dev/null; exit 4": 4,
        }
        for number, (ending, code) in enumerate(endings.items()):
            await trial.does(f"mkdir {folder}/{number}")
            outcome = await trial.run(f"export ENDED={number}; cd {folder}/{number}; {ending}")
            expect("unreached" not in outcome.text, f"{ending!r} to end the command", outcome.text)
            if code is not None:
                equal(f"exit code of {ending!r}", outcome.ended.exit_code, code)
            await trial.prints("echo $ENDED; pwd", f"{number}\n{folder}/{number}\n")
        await trial.prints("false; echo still", "still\n")


@check("exit-trap")
async def exit_trap(trial: Trial) -> None:
    """A command's own EXIT trap runs once, sees the exit code, and the state is kept all the same."""
    await trial.prints("trap 'echo bye $?' EXIT; export TRAPPED=1; echo hi", "hi\nbye 0\n")
    await trial.prints("echo $TRAPPED", "1\n")
    await trial.prints("trap 'echo bye $?' EXIT; export TRAPPED=2; exit 5", "bye 5\n", exit_code=5)
    await trial.prints("echo $TRAPPED", "2\n")
    await trial.prints("trap 'echo bye' 0; trap - EXIT; echo none", "none\n")
    await trial.prints("(trap 'echo inner' EXIT; echo in); echo out", "in\ninner\nout\n")
    await trial.prints("trap 'exit 6' EXIT; export TRAPPED=3; true", "", exit_code=6)
    await trial.prints("echo $TRAPPED", "3\n")
    await trial.prints(
        "trap 'echo err' ERR; false; trap 'echo usr' USR1; kill -USR1 $BASHPID; echo end", "err\nusr\nend\n"
    )


@check("exec")
async def exec_keeps_the_state_before(trial: Trial) -> None:
    """After `exec` the session is as it was before that command; the exit code is the program's."""
    await trial.does("export BEFORE=1; cd /")
    await trial.prints("export BEFORE=2; cd /tmp; exec bash -c 'echo $BEFORE; exit 9'", "2\n", exit_code=9)
    await trial.prints("echo $BEFORE; pwd", "1\n/\n")


@check("kills-its-shell")
async def kills_its_shell(trial: Trial) -> None:
    """A command that kills its own shell ends at once with that signal; the session goes on from before."""
    await trial.does("export BEFORE=here")
    for signal, code in (("KILL", 137), ("TERM", 143), ("HUP", 129)):
        outcome = await trial.run(
            f"export BEFORE=lost; echo dying; kill -{signal} $$; sleep 5; echo survived", seconds=4
        )
        equal(f"exit code after kill -{signal} $$", outcome.ended.exit_code, code)
        equal("output", outcome.text, "dying\n")
        if signal == "KILL":
            await trial.prints("echo $BEFORE", "here\n")
    await trial.prints("echo next", "next\n")


CHECKS = (
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
