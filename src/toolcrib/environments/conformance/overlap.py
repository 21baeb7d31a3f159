"""Checks of commands that overlap: several at once in the foreground, and commands in the background."""

from __future__ import annotations

import asyncio
import time

from toolcrib.core.environments import CommandRequest, TerminalSize
from toolcrib.environments.conformance.check import ConformanceFailure, Printed, Trial, a_mark, check, equal, expect

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


CHECKS = (
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
