"""What the commands about environments share: the settings with all keys, and a backend by its name."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import error_line, hint, note, print_json, print_line, print_table
from toolcrib.config.child_environment import SECRET_NAMES, child_environment
from toolcrib.config.env_file import fill_environment
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.environments import (
    BackendPath,
    CommandRequest,
    Engine,
    Environment,
    EnvironmentSpec,
    Execution,
    Leftover,
    TerminalSize,
)
from toolcrib.core.errors import ToolcribError, UsageError
from toolcrib.core.types import JsonObject
from toolcrib.environments.backend_options import Order
from toolcrib.environments.backends.bash_runner import BashRunner, BashRunnerEngine
from toolcrib.environments.create import (
    backend_statuses,
    create_environment,
    leftovers,
    remove_leftover,
    resolve,
    session_options,
)
from toolcrib.environments.shell import ShellEnvironment
from toolcrib.environments.specs import BUILT_IN, backend_name, third_party

group = CommandGroup("env")

SESSION = "command line"
SHORTEST_SECRET = 8
"""What is shorter is found in many places by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The settings, and the variables of this process with the keys of the .env file among them."""

    settings: Settings
    environ: Mapping[str, str]

    @property
    def configured(self) -> str:
        """The backend that the settings choose."""
        return self.settings.terminal.backend

    def maker(self, backend: str, **overrides: str) -> Callable[[], Environment]:
        """Makes new environments of a backend, by its name or as `module:factory`; raises UnknownName at once."""
        if ":" in backend:
            factory = _factory(backend)
            spec = EnvironmentSpec(backend=backend, session=SESSION, cwd=overrides.get("cwd", ""))
            return lambda: self._made_by(factory, spec)
        wanted = {"backend": backend, **{name: value for name, value in overrides.items() if value}}
        spec = resolve(self.settings, wanted, session=SESSION, workspace=Path.cwd(), environ=self.environ)
        return lambda: create_environment(spec, self.settings, self.environ)

    def _made_by(self, factory: Callable[..., Any], spec: EnvironmentSpec) -> Environment:
        made = factory(spec, self.settings)
        if hasattr(made, "start"):
            return cast(Environment, made)
        if hasattr(made, "_run_bash"):
            made = BashRunnerEngine(cast(BashRunner, made), spec.backend)
        if not hasattr(made, "spawn"):
            raise UsageError(
                f"{spec.backend!r} made a {type(made).__name__}; it should give an Environment, an Engine, or a "
                "BaseEnvironment"
            )
        order = Order(spec=spec, terminal=self.settings.terminal, environ=self.environ)
        return ShellEnvironment(cast(Engine, made), session_options(order))

    def secrets(self) -> dict[str, str]:
        """The variables of this process that no command may see."""
        handed_on = child_environment(self.environ, passthrough=self.settings.terminal.env_passthrough)
        return {
            name: value
            for name, value in self.environ.items()
            if re.search(SECRET_NAMES, name, re.IGNORECASE) and name not in handed_on and len(value) >= SHORTEST_SECRET
        }


def here() -> Here:
    """What this process knows about backends."""
    settings = load_settings()
    fill_environment(settings.home)
    return Here(settings=settings, environ=environment())


def _factory(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    # A backend that is being written lies in the folder that its author is in.
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"no backend {name!r}: {error}; write it as `MODULE:FUNCTION`") from error
    finally:
        sys.path.pop(0)
    if not callable(factory):
        raise UsageError(f"{name!r} is not a function; write the backend as `MODULE:FUNCTION`")
    return cast(Callable[..., Any], factory)


def complete_backends(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of backends for the shell."""
    return matching_names(lambda: [*BUILT_IN, *third_party()], incomplete)


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects for programs.")
def list_backends(as_json: bool) -> None:
    """List the backends for commands: which can be used here, and why one cannot.

    The backend that the settings choose is marked with a star. Nothing is started for this; programs and services are
    only asked whether they are there.

    Each object of --json has the keys name, usable, configured, detail and remedy.
    """
    found = here()
    chosen = backend_name(found.configured)
    statuses = asyncio.run(backend_statuses(found.settings, found.environ))
    if as_json:
        print_json(
            [
                {
                    "name": status.kind,
                    "usable": status.usable,
                    "configured": status.kind == chosen,
                    "detail": status.detail,
                    "remedy": status.remedy,
                }
                for status in statuses
            ]
        )
        return
    print_table(
        ["backend", "usable", "what is here, or missing", "to do"],
        [
            [
                f"{status.kind} *" if status.kind == chosen else status.kind,
                "yes" if status.usable else "no",
                status.detail,
                status.remedy or "-",
            ]
            for status in statuses
        ],
    )
    hint("* is in use; change it with `toolcrib config set terminal.backend NAME`.")


# Replaces the shell that commands run under; `$BASH` is where that one was found.
INTERACTIVE = 'exec "$BASH" -i'
READ_BYTES = 65536


@group.command("shell")
@click.argument("backend", required=False, shell_complete=complete_backends)
@click.option("--image", default="", help="The image to use, where the backend has images.")
@click.option("--cwd", default="", metavar="FOLDER", help="The folder to start in, as the backend names it.")
def open_shell(backend: str | None, image: str, cwd: str) -> int:
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


IN_USE = "in use"
REMOVED = "removed"
FOUND = "would be removed"


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of something that was found."""

    leftover: Leftover
    state: str


@group.command("clean")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for programs.")
def clean_environments(dry_run: bool, as_json: bool) -> int:
    """Remove what processes of ours that died left behind.

    Containers, instances, sandboxes in the cloud and folders that toolcrib made are looked for in every backend that
    can be used. What belongs to a process that still runs is listed and left alone. Exit code 1 when a backend could
    not be asked, or something could not be removed.

    The object of --json has the keys leftovers (each with kind, name, detail, owner_alive and state, which is removed,
    would be removed, in use or why it is still there) and problems.
    """
    fates, problems = asyncio.run(_clean(here(), dry_run=dry_run))
    if as_json:
        print_json({"leftovers": [_as_json(fate) for fate in fates], "problems": problems})
    elif not fates:
        print_line("Nothing was left behind.")
    else:
        rows = [[fate.leftover.kind, fate.leftover.name, fate.state, fate.leftover.detail] for fate in fates]
        print_table(["kind", "name", "state", "detail"], rows)
    if not as_json:
        for problem in problems:
            note(f"could not be asked or removed: {problem}")
    return 1 if problems else 0


async def _clean(found: Here, *, dry_run: bool) -> tuple[list[Fate], list[str]]:
    left, problems = await leftovers(found.settings, found.environ)
    fates: list[Fate] = []
    for leftover in left:
        if leftover.owner_alive:
            fates.append(Fate(leftover, IN_USE))
        elif dry_run:
            fates.append(Fate(leftover, FOUND))
        else:
            state = await _removed(found, leftover)
            fates.append(Fate(leftover, state))
            if state != REMOVED:
                problems.append(f"{leftover.kind} {leftover.name}: {state}")
    return fates, problems


async def _removed(found: Here, leftover: Leftover) -> str:
    try:
        await remove_leftover(leftover, found.settings, found.environ)
    except (ToolcribError, TimeoutError, OSError) as error:
        return str(error) or "no answer"
    return REMOVED


def _as_json(fate: Fate) -> JsonObject:
    return {
        "kind": fate.leftover.kind,
        "name": fate.leftover.name,
        "detail": fate.leftover.detail,
        "owner_alive": fate.leftover.owner_alive,
        "state": fate.state,
    }


group.lazy("check", "env_check:check_backend", "Run the conformance suite against a backend, built in or your own.")
