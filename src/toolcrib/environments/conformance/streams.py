"""Checks of large and difficult output, and of terminals."""

from __future__ import annotations

import asyncio
import resource
import sys
import time

from toolcrib.core.environments import CommandRequest, Execution, TerminalSize
from toolcrib.environments.conformance.check import ConformanceFailure, Printed, Trial, a_mark, check, equal, expect
from toolcrib.environments.foreground import Limits, run_foreground

LIMIT_BYTES = 50_000
BIG_BYTES = 100_000_000
MAY_GROW_BYTES = 40_000_000
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
INPUT_SECONDS = 10.0


@check("big-output", seconds=300)
async def big_output(trial: Trial) -> None:
    """100 MB of output are kept within bounds in memory, with the right beginning and the right end."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    command = f"echo BEGIN; head -c {BIG_BYTES} /dev/zero | tr '\\0' x; echo; echo END"
    result = await run_foreground(
        trial.environment, CommandRequest(command=command), Limits(timeout_seconds=240, limit_bytes=LIMIT_BYTES)
    )
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * PEAK_UNIT
    equal("exit code", result.exit_code, 0)
    expect(result.text.startswith("BEGIN\nxxx"), "the beginning of the output", result.text[:40])
    expect(result.text.rstrip().endswith("xxx\nEND"), "the end of the output", result.text[-40:])
    expect(len(result.text) < LIMIT_BYTES * 2, f"at most about {LIMIT_BYTES} characters", len(result.text))
    expect(grown < MAY_GROW_BYTES, f"memory to grow by less than {MAY_GROW_BYTES} bytes", grown)


@check("whole-output-arrives", seconds=120)
async def whole_output_arrives(trial: Trial) -> None:
    """Every byte that was written before the end has been handed over when the end is told."""
    for _ in range(5):
        outcome = await trial.run("head -c 3000000 /dev/zero | tr '\\0' y; printf END")
        equal("bytes", len(outcome.output), 3_000_003)
        equal("the end", outcome.output[-4:], b"yEND")


@check("output-arrives-while-running")
async def output_arrives_while_running(trial: Trial) -> None:
    """Output is handed over when it is written, not at the end."""
    printed = Printed()
    async with trial.started(CommandRequest(command="echo early; sleep 600"), printed):
        await printed.wait_for(b"early\n", 10)


@check("split-characters")
async def split_characters(trial: Trial) -> None:
    """A character whose bytes arrive one by one is one character; bytes that are none are replaced, not fatal."""
    request = CommandRequest(
        command=r"printf '\xe2\x82'; sleep 0.1; printf '\xac|\xf0\x9f'; sleep 0.1; printf '\xa6\x8a|\xff|'"
    )
    result = await run_foreground(trial.environment, request, Limits(timeout_seconds=30))
    expect(result.text.startswith("€|🦊|"), "'€|🦊|'", result.text)
    expect(result.text.rstrip().endswith("|"), "what follows a byte that is no character", result.text)


async def _becomes_waiting(execution: Execution, wanted: bool) -> None:
    """Wait until the environment says that the command waits for input."""
    deadline = time.monotonic() + INPUT_SECONDS
    while await execution.waits_for_input() is not wanted:
        if time.monotonic() > deadline:
            raise ConformanceFailure(
                f"expected waits_for_input() to become {wanted}; it did not in {INPUT_SECONDS:.0f} s"
            )
        await asyncio.sleep(0.05)


@check("waits-for-input", "pty")
async def waits_for_input(trial: Trial) -> None:
    """A command that waits for somebody to type is told from one that works or sleeps, and goes on when one types."""
    printed = Printed()
    request = CommandRequest(command="read -r -p 'name? ' name; echo hello $name; sleep 600", terminal=TerminalSize())
    async with trial.started(request, printed) as execution:
        await printed.wait_for(b"name? ")
        await _becomes_waiting(execution, True)
        await execution.write(b"Ada\n")
        await printed.wait_for(b"hello Ada")
        await _becomes_waiting(execution, False)


@check("waits-for-input-in-a-child", "pty")
async def waits_for_input_in_a_child(trial: Trial) -> None:
    """A child of the command that waits for input is seen too."""
    printed = Printed()
    request = CommandRequest(command="bash -c 'echo ready; cat; :'", terminal=TerminalSize())
    async with trial.started(request, printed) as execution:
        await printed.wait_for(b"ready")
        await _becomes_waiting(execution, True)


@check("terminal", "pty")
async def terminal(trial: Trial) -> None:
    """On a terminal all streams are one, of the size asked for, and the exit code is the command's."""
    printed = Printed()
    command = '[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; stty size; [ -n "$TERM" ] && echo named; exit 7'
    request = CommandRequest(command=command, terminal=TerminalSize(rows=41, columns=133))
    ended = await trial.ended(await trial.environment.start(request, printed))
    equal("output", bytes(printed.data).replace(b"\r\n", b"\n"), b"all\n41 133\nnamed\n")
    equal("exit code", ended.exit_code, 7)
    await trial.prints("[ -t 1 ] || echo none", "none\n")


@check("terminal-resize", "pty")
async def terminal_resize(trial: Trial) -> None:
    """A change of the terminal's size reaches the program."""
    printed = Printed()
    request = CommandRequest(
        command="trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done", terminal=TerminalSize()
    )
    async with trial.started(request, printed) as execution:
        await printed.wait_for(b"ready")
        await execution.resize(TerminalSize(rows=50, columns=99))
        await printed.wait_for(b"50 99", 10)


@check("terminal-keys", "pty")
async def terminal_keys(trial: Trial) -> None:
    """What is typed is read; Ctrl-C interrupts the program, and the command ends with 130."""
    mark = a_mark()
    request = CommandRequest(command=f"sleep {mark}; echo on", terminal=TerminalSize())
    async with trial.started(request, Printed()) as running:
        # A key that arrives before bash has started its program is bash's own affair.
        await trial.becomes_running(mark, 1)
        await running.write(b"\x03")
        ended = await trial.ended(running, seconds=10, what="a command after Ctrl-C")
        equal("exit code", ended.exit_code, 130)
    typed = Printed()
    async with trial.started(CommandRequest(command="cat; echo end", terminal=TerminalSize()), typed) as execution:
        await execution.write("ünï\n".encode())
        await typed.wait_for("ünï\r\nünï\r\n".encode())
        await execution.write(b"\x04")
        await typed.wait_for(b"end")
        equal("exit code", (await trial.ended(execution, seconds=10)).exit_code, 0)


@check("terminal-state", "pty")
async def terminal_state(trial: Trial) -> None:
    """A command on a terminal starts from the session's folder, variables and functions, and changes none of them."""
    await trial.does("export SHOWN='a b'; shown() { echo \"<$SHOWN>\"; }; cd /")
    printed = Printed()
    request = CommandRequest(command="shown; pwd; export SHOWN=changed; cd /tmp", terminal=TerminalSize())
    await trial.ended(await trial.environment.start(request, printed))
    equal("output", bytes(printed.data).replace(b"\r\n", b"\n"), b"<a b>\n/\n")
    await trial.prints("shown; pwd; unset -f shown; unset SHOWN", "<a b>\n/\n")


CHECKS = (
    big_output,
    whole_output_arrives,
    output_arrives_while_running,
    split_characters,
    waits_for_input,
    waits_for_input_in_a_child,
    terminal,
    terminal_resize,
    terminal_keys,
    terminal_state,
)
