"""Checks of ending commands: time limits, interrupts, whole trees gone inside the backend, children left behind."""

from __future__ import annotations

import asyncio
import time

from toolcrib.core.environments import INTERRUPTED, TIMED_OUT, CommandRequest, TerminalSize
from toolcrib.environments.conformance.check import (
    Check,
    ConformanceFailure,
    Printed,
    Trial,
    a_mark,
    check,
    equal,
    expect,
)
from toolcrib.environments.foreground import Limits, run_foreground

TREES = {
    "children": ("sleep {0} & sleep {0} & (sleep {0}) & wait", 3),
    "setsid": ("setsid sleep {0} & sleep {0}", 2),
    "nohup": ("nohup sleep {0} >/dev/null 2>&1 & sleep {0}", 2),
    "double-fork": ("( ( sleep {0} & ) & ); sleep {0}", 2),
    "daemon": ("( setsid bash -c 'sleep {0} >/dev/null 2>&1 </dev/null & sleep 0.1' & ); sleep {0}", 2),
    "ignores-signals": ("bash -c 'trap \"\" TERM INT HUP QUIT; sleep {0}; sleep {0}' & sleep {0}", 2),
    "no-environment": ('env -i PATH="$PATH" setsid sleep {0} & sleep {0}', 2),
    "stopped": ("sleep {0} & sleep 0.2; kill -STOP $!; sleep {0}", 2),
    "pipeline": ("sleep {0} | sleep {0} | sleep {0}", 3),
}


def _all_trees(mark: str) -> tuple[str, int]:
    """A command that has every kind of tree at once, and how many processes that makes."""
    text = "".join(f"( {tree} ) & " for tree, _ in TREES.values())
    return f"echo started; {text} wait".replace("{0}", mark), sum(count for _, count in TREES.values())


@check("time-limit")
async def time_limit(trial: Trial) -> None:
    """At its time limit a command ends with 124, its output so far is kept and all of its trees are gone inside."""
    mark = a_mark()
    command, count = _all_trees(mark)
    started = time.monotonic()
    running = asyncio.create_task(
        run_foreground(trial.environment, CommandRequest(command=command), Limits(timeout_seconds=3.0))
    )
    await trial.becomes_running(mark, count)
    result = await running
    took = time.monotonic() - started
    equal("exit code", result.exit_code, TIMED_OUT)
    expect(result.timed_out, "timed_out to be set", result)
    expect("started" in result.text, "the output up to then", result.text)
    expect(took < 12, "the answer soon after the limit of 3 s", f"{took:.1f} s")
    await trial.none_left(mark, at_once=True)


def _terminate(tree: str) -> Check:
    text, count = TREES[tree]

    async def run(trial: Trial) -> None:
        mark = a_mark()
        async with trial.started(CommandRequest(command=text.format(mark)), Printed()) as execution:
            await trial.becomes_running(mark, count)
            await execution.terminate(0.5)
            await trial.none_left(mark, at_once=True)
            ended = await trial.ended(execution)
            equal("reason", ended.reason, "killed")
            expect(ended.exit_code != 0, "the exit code of a killed command not to be 0", ended.exit_code)

    return Check(name=f"kill-{tree}", rule=f"Ending a command ends its tree ({tree}) inside the backend.", run=run)


@check("kill-at-once")
async def kill_at_once(trial: Trial) -> None:
    """A command that is ended in the moment of its start is gone, too, and soon."""
    for _ in range(5):
        mark = a_mark()
        execution = await trial.environment.start(CommandRequest(command=f"sleep {mark} & sleep {mark}"), Printed())
        started = time.monotonic()
        await execution.terminate(0.2)
        took = time.monotonic() - started
        equal("reason", (await trial.ended(execution)).reason, "killed")
        expect(took < 3, "it to be ended soon", f"{took:.1f} s")
        await trial.none_left(mark, at_once=True)


@check("interrupt")
async def interrupt(trial: Trial) -> None:
    """An interrupted command ends with 130 at once, its output so far is kept and all of its trees are gone inside."""
    mark = a_mark()
    command, count = _all_trees(mark)
    event = asyncio.Event()
    running = asyncio.create_task(
        run_foreground(trial.environment, CommandRequest(command=command), Limits(timeout_seconds=60), interrupt=event)
    )
    await trial.becomes_running(mark, count)
    asked = time.monotonic()
    event.set()
    result = await running
    expect(time.monotonic() - asked < 8, "an answer soon after the interrupt", f"{time.monotonic() - asked:.1f} s")
    equal("exit code", result.exit_code, INTERRUPTED)
    expect(result.interrupted, "interrupted to be set", result)
    expect("started" in result.text, "the output up to then", result.text)
    await trial.none_left(mark, at_once=True)


@check("term-is-heard")
async def term_is_heard(trial: Trial) -> None:
    """A program is asked to end before it is forced to: its handler for TERM runs and its last output arrives."""
    printed = Printed()
    command = "bash -c 'trap \"echo cleaned; exit 0\" TERM; echo ready; while :; do sleep 0.05; done'"
    async with trial.started(CommandRequest(command=command), printed) as execution:
        await printed.wait_for(b"ready")
        await execution.terminate(5.0)
        await trial.ended(execution)
    expect(b"cleaned" in printed.data, "the output of the handler", bytes(printed.data))


@check("session-after-time-limit")
async def session_after_time_limit(trial: Trial) -> None:
    """After a time limit the session is there, with the state from before that command or with what it had changed."""
    await trial.does("export BEFORE=limit; cd /")
    request = CommandRequest(command="sleep 600")
    await run_foreground(trial.environment, request, Limits(timeout_seconds=0.5))
    await trial.prints("echo $BEFORE; pwd", "limit\n/\n")


@check("held-pipe")
async def held_pipe(trial: Trial) -> None:
    """A child that keeps the output open does not hold up the result, and is named as left behind."""
    mark = a_mark()
    commands = (f"sleep {mark} & echo done", f"(sleep {mark} &) ; echo done", f"setsid sleep {mark} & echo done")
    for command in commands:
        printed = Printed()
        started = time.monotonic()
        execution = await trial.environment.start(CommandRequest(command=command), printed)
        ended = await trial.ended(execution, seconds=15, what=command)
        took = time.monotonic() - started
        try:
            expect(took < 3, f"{command!r} to end while its child runs on", f"{took:.1f} s")
            equal("output", bytes(printed.data), b"done\n")
            equal("exit code", ended.exit_code, 0)
            named = [left for left in ended.left_behind if mark in left.command]
            expect(bool(named) and named[0].pid > 0, "the child among those left behind", ended.left_behind)
            expect(await trial.running(mark) > 0, "the child to go on running", "it was ended")
        finally:
            await execution.terminate(0.2)
        await trial.none_left(mark, at_once=True)


@check("nothing-left-behind")
async def nothing_left_behind(trial: Trial) -> None:
    """A command whose children have all ended leaves nothing behind, and says so."""
    outcome = await trial.run("sleep 0.05 & bash -c 'sleep 0.01 & wait'; wait; echo done | cat")
    equal("left behind", outcome.ended.left_behind, ())
    expect(outcome.seconds < 3, "no waiting for anything", f"{outcome.seconds:.1f} s")


@check("end-is-noticed-at-once")
async def end_is_noticed_at_once(trial: Trial) -> None:
    """The end of a command is noticed when it happens, not at the next look."""
    await trial.does("true")
    best = min([(await trial.run("sleep 0.3")).seconds for _ in range(3)])
    shortest = min([(await trial.run("true")).seconds for _ in range(3)])
    expect(best < 0.3 + shortest + 0.25, "the result soon after the end", f"{best:.3f} s for `sleep 0.3`")


ENDING_CHECKS = (
    time_limit,
    *(_terminate(tree) for tree in TREES),
    kill_at_once,
    interrupt,
    term_is_heard,
    session_after_time_limit,
    held_pipe,
    nothing_left_behind,
    end_is_noticed_at_once,
)


AT_ONCE = 10
LINES = 300


def _background(command: str) -> CommandRequest:
    return CommandRequest(command=command, mode="background")


@check("parallel-commands")
async def parallel_commands(trial: Trial) -> None:
    """Ten commands at once take about as long as one, and each has its own output and exit code."""
    one = (await trial.run("sleep 1")).seconds
    started = time.monotonic()
    outcomes = await asyncio.gather(
        *(trial.run(f"sleep 1; for i in {{1..50}}; do echo {n}; done; exit {n}") for n in range(AT_ONCE))
    )
    took = time.monotonic() - started
    for number, outcome in enumerate(outcomes):
        equal("output", outcome.text, f"{number}\n" * 50)
        equal("exit code", outcome.ended.exit_code, number)
    expect(took < one * 2 + 2, f"about {one:.1f} s for ten commands at once", f"{took:.1f} s")


@check("parallel-state")
async def parallel_state(trial: Trial) -> None:
    """Commands that overlap start from the state at their start, and the last to finish writes it back."""
    await trial.does("export SHARED=before; cd /")
    printed = Printed()
    long = await trial.environment.start(
        CommandRequest(command="echo ready; sleep 1.5; echo $SHARED; pwd; cd /usr"), printed
    )
    await printed.wait_for(b"ready")
    await trial.does("export SHARED=meanwhile; cd /tmp")
    await trial.prints("echo $SHARED; pwd", "meanwhile\n/tmp\n")
    await trial.ended(long)
    equal("state that the longer command saw", bytes(printed.data), b"ready\nbefore\n/\n")
    await trial.prints("pwd", "/usr\n")


@check("background-output")
async def background_output(trial: Trial) -> None:
    """A background command's output arrives in full and in order, with its exit code, from the session's state."""
    await trial.does("export SEEN='in back'; seen() { echo \"$SEEN\"; }; cd /")
    printed = Printed()
    command = f"seen; pwd; for i in {{1..{LINES}}}; do echo line$i; done; printf '\\xff\\0'; echo err >&2; exit 6"
    execution = await trial.environment.start(_background(command), printed)
    ended = await trial.ended(execution)
    lines = "".join(f"line{i}\n" for i in range(1, LINES + 1)).encode()
    equal("output", bytes(printed.data), b"in back\n/\n" + lines + b"\xff\0err\n")
    equal("exit code", ended.exit_code, 6)
    await trial.does("unset SEEN; unset -f seen")


@check("background-state")
async def background_state(trial: Trial) -> None:
    """A background command changes nothing in the session."""
    await trial.does("export UNCHANGED=1; cd /")
    await trial.ended(await trial.environment.start(_background("export UNCHANGED=2; cd /tmp"), Printed()))
    await trial.prints("echo $UNCHANGED; pwd", "1\n/\n")


@check("background-input")
async def background_input(trial: Trial) -> None:
    """A background command reads what is written to it, until its input is closed."""
    printed = Printed()
    async with trial.started(
        _background('while IFS= read -r line; do echo "<$line>"; done; cat; echo end'), printed
    ) as execution:
        await execution.write(b"one\ntwo ")
        await printed.wait_for(b"<one>")
        await execution.write(b"parts\n")
        await printed.wait_for(b"<two parts>")
        large = b"x" * 200_000 + b"\n"
        await execution.write(large)
        await printed.wait_for(b"<" + large.strip() + b">")
        await execution.close_input()
        await printed.wait_for(b"end")
        equal("exit code", (await trial.ended(execution)).exit_code, 0)


@check("background-kill")
async def background_kill(trial: Trial) -> None:
    """Killing a background command ends its whole tree inside the backend."""
    mark = a_mark()
    command = f"trap '' TERM; setsid sleep {mark} & (sleep {mark} &); nohup sleep {mark} & sleep {mark}"
    async with trial.started(_background(command), Printed()) as execution:
        await trial.becomes_running(mark, 4)
        await execution.terminate(0.3)
        await trial.none_left(mark, at_once=True)
        equal("reason", (await trial.ended(execution)).reason, "killed")


@check("background-survives")
async def background_survives(trial: Trial) -> None:
    """Foreground commands, ended, killed or timed out, leave a background command alone."""
    mark = a_mark()
    printed = Printed()
    async with trial.started(_background(f"echo up; sleep {mark}"), printed):
        await printed.wait_for(b"up")
        await trial.run("echo; exit 3")
        await trial.run("kill -KILL $$")
        other = await trial.environment.start(CommandRequest(command="sleep 600"), Printed())
        await other.terminate(0.1)
        equal("processes of the background command", min(await trial.running(mark), 1), 1)


@check("background-reattached")
async def background_reattached(trial: Trial) -> None:
    """A background command is found again by its id: its output from any offset on, and its exit code."""
    async with trial.folder() as folder:
        command = f"echo first; until [ -e {folder}/go ]; do sleep 0.05; done; echo second; exit 4"
        printed = Printed()
        execution = await trial.environment.start(_background(command), printed)
        await printed.wait_for(b"first\n")
        await execution.abandon()
        await _found_again(trial, execution.id, f"{folder}/go")


async def _found_again(trial: Trial, command_id: str, go: str) -> None:
    again = Printed()
    found = await trial.environment.reattach(command_id, again, offset=2)
    if found is None:
        raise ConformanceFailure(f"expected the command {command_id!r} to be found again; seen nothing")
    await again.wait_for(b"rst\n")
    await trial.does(f"touch {go}")
    ended = await trial.ended(found)
    equal("output from the offset on", bytes(again.data), b"rst\nsecond\n")
    equal("exit code", ended.exit_code, 4)
    equal("an unknown id", await trial.environment.reattach("no-such-command", Printed()), None)


@check("background-terminal", "pty")
async def background_terminal(trial: Trial) -> None:
    """A background command can have a terminal, and is typed to like one in the foreground."""
    from_terminal = Printed()
    command = '[ -t 0 ] && [ -t 1 ] && echo tty; read -r x; echo "<$x>"; exit 5'
    request = CommandRequest(command=command, mode="background", terminal=TerminalSize())
    async with trial.started(request, from_terminal) as execution:
        await from_terminal.wait_for(b"tty")
        await execution.write(b"typed\n")
        await from_terminal.wait_for(b"<typed>")
        equal("exit code", (await trial.ended(execution)).exit_code, 5)


OVERLAP_CHECKS = (
    parallel_commands,
    parallel_state,
    background_output,
    background_state,
    background_input,
    background_kill,
    background_survives,
    background_reattached,
    background_terminal,
)
