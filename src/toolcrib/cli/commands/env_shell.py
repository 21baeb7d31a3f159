"""`toolcrib env shell [BACKEND]`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator

import click

from toolcrib.cli.environments import complete_backends, here
from toolcrib.cli.output import error_line, note
from toolcrib.core.environments import BackendPath, CommandRequest, Environment, Execution, TerminalSize
from toolcrib.core.errors import UsageError

# Replaces the shell that commands run under; `$BASH` is where that one was found.
INTERACTIVE = 'exec "$BASH" -i'
READ_BYTES = 65536


@click.command(name="shell")
@click.argument("backend", required=False, shell_complete=complete_backends)
@click.option("--image", default="", help="The image to use, where the backend has images.")
@click.option("--cwd", default="", metavar="FOLDER", help="The folder to start in, as the backend names it.")
def command(backend: str | None, image: str, cwd: str) -> int:
    """Open a shell where the commands of a backend run.

    It is a new place, made as one for a session would be, and is given back when the shell ends. What you type goes
    there, Ctrl-C too; `exit` or Ctrl-D ends it. The exit code is the shell's. Without BACKEND it is the one that the
    settings choose.

    \b
    Example:
      toolcrib env shell docker --image debian:12
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("a shell needs a terminal; to run one command type `toolcrib tools run terminal …`")
    found = here()
    make = found.maker(backend or found.configured, image=image)
    return asyncio.run(_session(make(), cwd))


async def _session(environment: Environment, cwd: str) -> int:
    await environment.open()
    try:
        note(f"This is {environment.kind}; `exit` leaves it.")
        return await _shell(environment, cwd)
    finally:
        await environment.close()


async def _shell(environment: Environment, cwd: str) -> int:
    folder = BackendPath(cwd) if cwd else None
    if folder is not None:
        status = await environment.status(folder)
        if status is None or status.kind != "folder":
            raise UsageError(f"the folder {cwd!r} does not exist there; leave out `--cwd` to start in the usual one")
    execution = await environment.start(CommandRequest(command=INTERACTIVE, terminal=_size(), cwd=folder), _show)
    with _raw_keys():
        async with asyncio.TaskGroup() as tasks:
            typing = tasks.create_task(_forward(execution))
            try:
                ended = await execution.wait()
            finally:
                typing.cancel()
    if ended.reason == "lost":
        error_line(f"the connection to the shell was lost: {ended.note or 'no reason was given'}")
    return ended.exit_code


def _show(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


async def _forward(execution: Execution) -> None:
    """Send what is typed, and each new size of the terminal, to the shell until this is cancelled."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes | TerminalSize] = asyncio.Queue()
    keyboard = sys.stdin.fileno()

    def read() -> None:
        data = os.read(keyboard, READ_BYTES)
        if not data:
            loop.remove_reader(keyboard)
        typed.put_nowait(data)

    loop.add_reader(keyboard, read)
    loop.add_signal_handler(signal.SIGWINCH, lambda: typed.put_nowait(_size()))
    try:
        while True:
            what = await typed.get()
            if isinstance(what, TerminalSize):
                await execution.resize(what)
            elif what:
                with contextlib.suppress(BrokenPipeError):  # it ended while the key was on its way
                    await execution.write(what)
            else:
                await execution.terminate()  # our own terminal has gone
    finally:
        loop.remove_reader(keyboard)
        loop.remove_signal_handler(signal.SIGWINCH)


def _size() -> TerminalSize:
    size = os.get_terminal_size(sys.stdout.fileno())
    return TerminalSize(rows=size.lines or 24, columns=size.columns or 80)


@contextlib.contextmanager
def _raw_keys() -> Iterator[None]:
    """Every key goes to the shell as it is, until the block ends."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
