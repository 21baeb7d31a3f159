"""Checks that secrets stay out and that nothing stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Literal

from toolcrib.core.environments import CommandRequest
from toolcrib.environments.conformance.check import (
    COMMAND_SECONDS,
    GONE_SECONDS,
    ConformanceFailure,
    Printed,
    Trial,
    a_mark,
    check,
    equal,
    expect,
)

# The values come on standard input: in the arguments of a program they would themselves be seen.
_WHO_SHOWS = r"""
command cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | command tr '\0' '\n' >"$SEEN_IN_PROC"
command env >>"$SEEN_IN_PROC"
export -p >>"$SEEN_IN_PROC"
command grep -F -c -f - "$SEEN_IN_PROC"
command rm -f "$SEEN_IN_PROC"
unset SEEN_IN_PROC
"""


@check("secrets", "secrets")
async def secrets_are_not_seen(trial: Trial) -> None:
    """Keys of this process are neither in the environment of a command nor in /proc of any process that it can see."""
    async with trial.folder() as folder:
        for name, value in trial.subject.secrets.items():
            equal(f"value of {name}", (await trial.run(f'printf %s "${{{name}-}}"')).text, "")
            await trial.does(f"export SEEN_IN_PROC={folder}/seen")
            seen = await trial.run(_WHO_SHOWS, stdin=value.encode() + b"\n")
            equal(f"places inside that show {name}", seen.text.strip(), "0")
    printed = Printed()
    execution = await trial.environment.start(CommandRequest(command="env", mode="background"), printed)
    await trial.ended(execution)
    for name, value in trial.subject.secrets.items():
        expect(value.encode() not in printed.data, f"{name} not to reach a background command", "it does")


@check("command-is-not-in-proc")
async def command_is_not_in_proc(trial: Trial) -> None:
    """The text of a command, which may hold a password, is not in the arguments of any process inside."""
    mark = a_mark()
    modes: tuple[Literal["foreground", "background"], ...] = ("foreground", "background")
    for mode in modes:
        printed = Printed()
        request = CommandRequest(command=f"PASSWORD={mark}; echo ready; sleep 600", mode=mode)
        async with trial.started(request, printed):
            await printed.wait_for(b"ready")
            equal(f"processes that show the text of a {mode} command", await trial.running(mark), 0)


@check("sessions-are-apart", alone=True)
async def sessions_are_apart(trial: Trial) -> None:
    """Two environments of one backend share neither variables nor folder nor functions."""
    other = trial.subject.make()
    await other.open()
    try:
        await trial.does("export APART=1; apart() { echo; }; cd /tmp")
        second = Trial(trial.subject, other)
        await second.prints("echo ${APART-none}; type -t apart || echo none", "none\nnone\n")
        await second.does("export APART=2; cd /usr")
        await trial.prints("echo $APART; pwd", "1\n/tmp\n")
    finally:
        await other.close()


@check("close-leaves-nothing", alone=True, seconds=180)
async def close_leaves_nothing(trial: Trial) -> None:
    """Closing an environment ends every command, background and left-behind ones too, and gives all of it back."""
    await _closed(trial.environment.close())
    before = await _outside(trial)
    mark = a_mark()
    first = trial.subject.make()
    await first.open()
    inner = Trial(trial.subject, first)
    try:
        await inner.run(f"setsid sleep {mark} >/dev/null 2>&1 & nohup sleep {mark} >/dev/null 2>&1 & echo")
        await first.start(CommandRequest(command=f"trap '' TERM; sleep {mark}", mode="background"), Printed())
        running = await first.start(CommandRequest(command=f"sleep {mark}"), Printed())
        await inner.becomes_running(mark, 4)
        folder = first.address().get("folder", "")
    finally:
        await _closed(first.close())
    await _closed(first.close())
    ended = await trial.ended(running, what="a command of a closed environment")
    expect(ended.reason in ("killed", "lost"), "a running command to be ended by it", ended)
    await _nothing_new(trial, before)
    await _nothing_seen_by_another(trial, mark, folder)


async def _nothing_seen_by_another(trial: Trial, mark: str, folder: str) -> None:
    """Where environments share one place, as on this machine, another one can look."""
    other = trial.subject.make()
    await other.open()
    try:
        looking = Trial(trial.subject, other)
        await looking.none_left(mark)
        if folder:
            await looking.prints(f"ls -d '{folder}' 2>/dev/null; :", "")
    finally:
        await _closed(other.close())


async def _closed(closing: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            await closing
    except TimeoutError:
        raise ConformanceFailure(f"expected close() to return within {COMMAND_SECONDS:.0f} s; it did not") from None


async def _outside(trial: Trial) -> frozenset[str]:
    return frozenset(await trial.subject.leftovers()) if trial.subject.leftovers else frozenset()


async def _nothing_new(trial: Trial, before: frozenset[str]) -> None:
    new: frozenset[str] = frozenset()
    for _ in range(int(GONE_SECONDS / 0.1)):
        new = await _outside(trial) - before
        if not new:
            return
        await asyncio.sleep(0.1)
    raise ConformanceFailure(f"expected nothing to be left outside; seen {sorted(new)}")


CHECKS = (secrets_are_not_seen, command_is_not_in_proc, sessions_are_apart, close_leaves_nothing)
