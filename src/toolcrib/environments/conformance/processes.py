"""Checks of processes: time limits, interrupts, ended trees, orphans, concurrent and background commands."""

from __future__ import annotations

import asyncio

from toolcrib.core.environments import INTERRUPTED, TIMED_OUT, CommandRequest, TerminalSize
from toolcrib.environments.conformance.check import (
    COMMAND_SECONDS,
    Check,
    CheckContext,
    ConformanceFailure,
    OutputRecorder,
    check,
    equal,
    expect,
    new_marker,
)
from toolcrib.environments.foreground import CommandLimits, run_foreground

TRIES_TO_BE_QUICK = 20
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
async def time_limit(ctx: CheckContext) -> None:
    """At its time limit a command exits with 124, keeps its output so far, and all its process trees have ended."""
    # The trees must stand before the limit is reached, which takes a slow machine longer.
    for seconds in (3.0, 9.0, 27.0):
        mark = new_marker()
        command, count = _all_trees(mark)
        limits = CommandLimits(timeout_seconds=seconds)
        running = asyncio.create_task(run_foreground(ctx.environment, CommandRequest(command=command), limits))
        stood = await ctx.stands_before(running, mark, count)
        result = await running
        await ctx.none_left(mark, at_once=True)
        if stood:
            break
    expect(stood, f"{count} processes to run within {seconds:.0f} s", "fewer")
    equal("exit code", result.exit_code, TIMED_OUT)
    expect(result.timed_out, "timed_out to be set", result)
    expect("started" in result.text, "the output up to then", result.text)


def _terminate(tree: str) -> Check:
    text, count = TREES[tree]

    async def run(ctx: CheckContext) -> None:
        mark = new_marker()
        async with ctx.started(CommandRequest(command=text.format(mark)), OutputRecorder()) as execution:
            await ctx.becomes_running(mark, count)
            await execution.terminate(0.5)
            await ctx.none_left(mark, at_once=True)
            ended = await ctx.ended(execution)
            equal("reason", ended.reason, "killed")
            expect(ended.exit_code != 0, "the exit code of a killed command not to be 0", ended.exit_code)

    return Check(name=f"kill-{tree}", rule=f"Ending a command ends its tree ({tree}) inside the backend.", run=run)


@check("kill-at-once")
async def kill_at_once(ctx: CheckContext) -> None:
    """A command that is ended at the moment of its start ends, too."""
    for _ in range(5):
        mark = new_marker()
        execution = await ctx.environment.start(
            CommandRequest(command=f"sleep {mark} & sleep {mark}"), OutputRecorder()
        )
        await execution.terminate(0.2)
        equal("reason", (await ctx.ended(execution)).reason, "killed")
        await ctx.none_left(mark, at_once=True)


@check("interrupt")
async def interrupt(ctx: CheckContext) -> None:
    """An interrupted command exits with 130, keeps its output, and all its process trees have ended."""
    mark = new_marker()
    command, count = _all_trees(mark)
    event = asyncio.Event()
    running = asyncio.create_task(
        run_foreground(
            ctx.environment, CommandRequest(command=command), CommandLimits(timeout_seconds=200), interrupt=event
        )
    )
    await ctx.becomes_running(mark, count)
    event.set()
    result = await running
    equal("exit code", result.exit_code, INTERRUPTED)
    expect(result.interrupted, "interrupted to be set", result)
    expect("started" in result.text, "the output up to then", result.text)
    await ctx.none_left(mark, at_once=True)


@check("term-is-heard")
async def term_is_heard(ctx: CheckContext) -> None:
    """A program gets TERM before KILL: its handler runs and its last output arrives."""
    printed = OutputRecorder()
    command = "bash -c 'trap \"echo cleaned; exit 0\" TERM; echo ready; while :; do sleep 0.05; done'"
    async with ctx.started(CommandRequest(command=command), printed) as execution:
        await printed.wait_for(b"ready")
        await execution.terminate(5.0)
        await ctx.ended(execution)
    expect(b"cleaned" in printed.data, "the output of the handler", bytes(printed.data))


@check("session-after-time-limit")
async def session_after_time_limit(ctx: CheckContext) -> None:
    """After a time limit the session continues, with the state before that command or with its changes."""
    await ctx.run_ok("export BEFORE=limit; cd /")
    request = CommandRequest(command="sleep 600")
    await run_foreground(ctx.environment, request, CommandLimits(timeout_seconds=0.5))
    await ctx.expect_output("echo $BEFORE; pwd", "limit\n/\n")


@check("held-pipe")
async def held_pipe(ctx: CheckContext) -> None:
    """A child that holds the output open does not delay the result, and is reported as an orphan."""
    mark = new_marker()
    commands = (f"sleep {mark} & echo done", f"(sleep {mark} &) ; echo done", f"setsid sleep {mark} & echo done")
    for command in commands:
        printed = OutputRecorder()
        execution = await ctx.environment.start(CommandRequest(command=command), printed)
        ended = await ctx.ended(execution, what=command)
        try:
            equal("output", bytes(printed.data), b"done\n")
            equal("exit code", ended.exit_code, 0)
            named = [left for left in ended.orphans if mark in left.command]
            expect(bool(named) and named[0].pid > 0, "the child among the orphans", ended.orphans)
            expect(await ctx.running(mark) > 0, "the child to go on running", "it was ended")
        finally:
            await execution.terminate(0.2)
        await ctx.none_left(mark, at_once=True)


@check("nothing-left-behind")
async def nothing_left_behind(ctx: CheckContext) -> None:
    """A command whose children have all ended reports no orphans."""
    outcome = await ctx.run("sleep 0.05 & bash -c 'sleep 0.01 & wait'; wait; echo done | cat")
    equal("orphans", outcome.ended.orphans, ())


@check("end-is-noticed-at-once")
async def end_is_noticed_at_once(ctx: CheckContext) -> None:
    """The end of a command is noticed when it happens, not at the next poll."""
    await ctx.run_ok("true")
    best = shortest = COMMAND_SECONDS
    # A busy machine delays most of the results, but not all; a poll delays each.
    for _ in range(TRIES_TO_BE_QUICK):
        best = min(best, (await ctx.run("sleep 0.3")).seconds)
        shortest = min(shortest, (await ctx.run("true")).seconds)
        if best < 0.3 + shortest + 0.25:
            return
    raise ConformanceFailure(f"expected the result soon after the end; seen {best:.3f} s for `sleep 0.3`")


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
async def parallel_commands(ctx: CheckContext) -> None:
    """Ten commands run at the same time, and each has its own output and exit code."""
    async with ctx.folder() as folder:
        # None of them ends before all of them run.
        wait = f"touch {folder}/up.{{0}}; until [ -e {folder}/go ]; do sleep 0.1; done; "
        print_lines = "for i in {{1..50}}; do echo {0}; done; exit {0}"
        running = [asyncio.create_task(ctx.run((wait + print_lines).format(n))) for n in range(AT_ONCE)]
        await ctx.run_ok(f"until [ $(ls {folder} | wc -l) = {AT_ONCE} ]; do sleep 0.1; done; touch {folder}/go")
        outcomes = await asyncio.gather(*running)
    for number, outcome in enumerate(outcomes):
        equal("output", outcome.text, f"{number}\n" * 50)
        equal("exit code", outcome.ended.exit_code, number)


@check("parallel-state")
async def parallel_state(ctx: CheckContext) -> None:
    """Overlapping commands start from the state at their start, and the last to finish saves its own."""
    async with ctx.folder() as folder:
        await ctx.run_ok("export SHARED=before; cd /")
        printed = OutputRecorder()
        command = f"echo ready; until [ -e {folder}/go ]; do sleep 0.1; done; echo $SHARED; pwd; cd /usr"
        async with ctx.started(CommandRequest(command=command), printed) as long:
            await printed.wait_for(b"ready")
            await ctx.run_ok("export SHARED=meanwhile; cd /tmp")
            await ctx.expect_output("echo $SHARED; pwd", "meanwhile\n/tmp\n")
            await ctx.run_ok(f"touch {folder}/go")
            await ctx.ended(long)
        equal("state that the longer command saw", bytes(printed.data), b"ready\nbefore\n/\n")
        await ctx.expect_output("pwd", "/usr\n")


@check("background-output")
async def background_output(ctx: CheckContext) -> None:
    """A background command's output arrives in full and in order, with its exit code, from the session's state."""
    await ctx.run_ok("export SEEN='in back'; seen() { echo \"$SEEN\"; }; cd /")
    printed = OutputRecorder()
    command = f"seen; pwd; for i in {{1..{LINES}}}; do echo line$i; done; printf '\\xff\\0'; echo err >&2; exit 6"
    execution = await ctx.environment.start(_background(command), printed)
    ended = await ctx.ended(execution)
    lines = "".join(f"line{i}\n" for i in range(1, LINES + 1)).encode()
    equal("output", bytes(printed.data), b"in back\n/\n" + lines + b"\xff\0err\n")
    equal("exit code", ended.exit_code, 6)
    await ctx.run_ok("unset SEEN; unset -f seen")


@check("background-state")
async def background_state(ctx: CheckContext) -> None:
    """A background command changes nothing in the session."""
    await ctx.run_ok("export UNCHANGED=1; cd /")
    await ctx.ended(await ctx.environment.start(_background("export UNCHANGED=2; cd /tmp"), OutputRecorder()))
    await ctx.expect_output("echo $UNCHANGED; pwd", "1\n/\n")


@check("background-input")
async def background_input(ctx: CheckContext) -> None:
    """A background command reads what is written to it, until its input is closed."""
    printed = OutputRecorder()
    async with ctx.started(
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
        equal("exit code", (await ctx.ended(execution)).exit_code, 0)


@check("background-kill")
async def background_kill(ctx: CheckContext) -> None:
    """Killing a background command ends its whole tree inside the backend."""
    mark = new_marker()
    command = f"trap '' TERM; setsid sleep {mark} & (sleep {mark} &); nohup sleep {mark} & sleep {mark}"
    async with ctx.started(_background(command), OutputRecorder()) as execution:
        await ctx.becomes_running(mark, 4)
        await execution.terminate(0.3)
        await ctx.none_left(mark, at_once=True)
        equal("reason", (await ctx.ended(execution)).reason, "killed")


@check("background-survives")
async def background_survives(ctx: CheckContext) -> None:
    """Foreground commands that end, are killed or time out do not affect a background command."""
    mark = new_marker()
    printed = OutputRecorder()
    async with ctx.started(_background(f"echo up; sleep {mark}"), printed):
        await printed.wait_for(b"up")
        await ctx.run("echo; exit 3")
        await ctx.run("kill -KILL $$")
        other = await ctx.environment.start(CommandRequest(command="sleep 600"), OutputRecorder())
        await other.terminate(0.1)
        equal("processes of the background command", min(await ctx.running(mark), 1), 1)


@check("background-reattached")
async def background_reattached(ctx: CheckContext) -> None:
    """A background command can be reattached by its id: output from any offset, and exit code."""
    async with ctx.folder() as folder:
        command = f"echo first; until [ -e {folder}/go ]; do sleep 0.05; done; echo second; exit 4"
        printed = OutputRecorder()
        execution = await ctx.environment.start(_background(command), printed)
        await printed.wait_for(b"first\n")
        await execution.abandon()
        await _found_again(ctx, execution.id, f"{folder}/go")


async def _found_again(ctx: CheckContext, command_id: str, go: str) -> None:
    again = OutputRecorder()
    found = await ctx.environment.reattach(command_id, again, offset=2)
    if found is None:
        raise ConformanceFailure(f"expected the command {command_id!r} to be found again; seen nothing")
    await again.wait_for(b"rst\n")
    await ctx.run_ok(f"touch {go}")
    ended = await ctx.ended(found)
    equal("exit code and reason", (ended.exit_code, ended.reason, ended.note), (4, "exited", ""))
    equal("output from the offset on", bytes(again.data), b"rst\nsecond\n")
    equal("an unknown id", await ctx.environment.reattach("no-such-command", OutputRecorder()), None)


@check("background-terminal", "pty")
async def background_terminal(ctx: CheckContext) -> None:
    """A background command can have a terminal, and reads input like one in the foreground."""
    from_terminal = OutputRecorder()
    command = '[ -t 0 ] && [ -t 1 ] && echo tty; read -r x; echo "<$x>"; exit 5'
    request = CommandRequest(command=command, mode="background", terminal=TerminalSize())
    async with ctx.started(request, from_terminal) as execution:
        await from_terminal.wait_for(b"tty")
        await execution.write(b"typed\n")
        await from_terminal.wait_for(b"<typed>")
        equal("exit code", (await ctx.ended(execution)).exit_code, 5)


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
