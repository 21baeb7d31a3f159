"""`toolcrib env`: lists, enters and cleans up the environments where commands run."""

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
from typing import Any, cast

import click
from msgspec import Struct

from toolcrib.cli.commands.completion import matching_names
from toolcrib.cli.group import CommandGroup
from toolcrib.cli.output import error_line, hint, note, print_json, print_line, print_table
from toolcrib.config.env_file import fill_environment
from toolcrib.config.environment import SECRET_NAMES, child_environment, environment
from toolcrib.config.load import load_settings
from toolcrib.config.os_errors import current_folder
from toolcrib.config.settings import Settings
from toolcrib.core.environments import (
    BackendPath,
    CommandRequest,
    Environment,
    EnvironmentSpec,
    Execution,
    Leftover,
    TerminalSize,
)
from toolcrib.core.errors import EnvironmentFailed, ToolcribError, UsageError
from toolcrib.core.types import JsonObject
from toolcrib.environments.create import (
    backend_statuses,
    create_environment,
    environment_from,
    environment_request,
    leftovers,
    remove_leftover,
    resolve,
)
from toolcrib.environments.specs import BUILT_IN, backend_name, third_party

group = CommandGroup("env")

SESSION = "command line"
SHORTEST_SECRET = 8
"""A shorter value may occur anywhere by chance."""
# Replaces the shell that commands run under; `$BASH` is where that one was found.
INTERACTIVE = 'exec "$BASH" -i'
READ_BYTES = 65536
IN_USE = "in use"
REMOVED = "removed"
FOUND = "would be removed"


class BackendContext(Struct, frozen=True, kw_only=True):
    """What backends need: the settings, and the environment variables with those of .env."""

    settings: Settings
    environ: Mapping[str, str]

    @property
    def configured(self) -> str:
        """The backend named in the settings."""
        return self.settings.terminal.backend

    def maker(self, backend: str, **overrides: str) -> Callable[[], Environment]:
        """A factory for environments of a backend, given by name or `module:factory`; raises UnknownName."""
        if ":" in backend:
            factory = _factory(backend)
            spec = EnvironmentSpec(backend=backend, session=SESSION, cwd=overrides.get("cwd", ""))
            return lambda: self._created_by(factory, spec)
        wanted = {"backend": backend, **{name: value for name, value in overrides.items() if value}}
        spec = resolve(self.settings, wanted, session=SESSION, workspace=current_folder(), environ=self.environ)
        return lambda: create_environment(spec, self.settings, self.environ)

    def _created_by(self, factory: Callable[..., Any], spec: EnvironmentSpec) -> Environment:
        created = factory(spec, self.settings)
        try:
            return environment_from(created, environment_request(spec, self.settings, self.environ))
        except EnvironmentFailed as error:
            raise UsageError(str(error)) from error

    def secrets(self) -> dict[str, str]:
        """The secrets in the environment variables, which no command may see."""
        handed_on = child_environment(self.environ, passthrough=self.settings.terminal.env_passthrough)
        return {
            name: value
            for name, value in self.environ.items()
            if re.search(SECRET_NAMES, name, re.IGNORECASE) and name not in handed_on and len(value) >= SHORTEST_SECRET
        }


def backend_context() -> BackendContext:
    """The context of this process."""
    settings = load_settings()
    fill_environment(settings.home)
    return BackendContext(settings=settings, environ=environment())


def _factory(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    # The author of a backend runs this in the folder where it is.
    sys.path.insert(0, str(current_folder()))
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
    """Backend names for the shell."""
    return matching_names(lambda: [*BUILT_IN, *third_party()], incomplete)


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_backends(as_json: bool) -> None:
    """List the backends: which are usable, and what the others need.

    A star marks the configured backend. Starts nothing; only checks which programs and services are available.

    Each object of --json has the keys name, usable, configured, detail and remedy.
    """
    found = backend_context()
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
        ["backend", "usable", "details", "how to enable"],
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
    hint("* is in use; run `toolcrib config set terminal.backend NAME` to change it.")


@group.command("shell")
@click.argument("backend", required=False, shell_complete=complete_backends)
@click.option("--image", default="", help="The image, for backends that use one.")
@click.option("--cwd", default="", metavar="FOLDER", help="The folder to start in, as a path inside the environment.")
def open_shell(backend: str | None, image: str, cwd: str) -> int:
    """Open a shell in an environment.

    Creates a new environment, as for a session, and closes it when the shell ends. Everything you type goes to the
    shell, Ctrl-C too; `exit` or Ctrl-D ends it. The exit code is that of the shell. The default is the configured
    backend.

    \b
    Example:
      toolcrib env shell docker --image debian:12
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("a shell needs a terminal; to run a single command use `toolcrib tools run terminal …`")
    found = backend_context()
    make = found.maker(backend or found.configured, image=image)
    return asyncio.run(_session(make(), cwd))


async def _session(environment: Environment, cwd: str) -> int:
    await environment.open()
    try:
        note(f"Shell in {environment.kind}; type `exit` to leave.")
        return await _shell(environment, cwd)
    finally:
        await environment.close()


async def _shell(environment: Environment, cwd: str) -> int:
    folder = BackendPath(cwd) if cwd else None
    if folder is not None:
        status = await environment.status(folder)
        if status is None or status.kind != "folder":
            raise UsageError(
                f"the folder {cwd!r} does not exist in the environment; leave out `--cwd` to use the default"
            )
    execution = await environment.start(_by_person(folder), _show)
    with _raw_keys():
        async with asyncio.TaskGroup() as tasks:
            typing = tasks.create_task(_forward(execution))
            try:
                ended = await execution.wait()
            finally:
                typing.cancel()
    if ended.reason == "lost":
        error_line(f"the connection to the shell was lost: {ended.note or 'no reason given'}")
    return ended.exit_code


def _by_person(folder: BackendPath | None) -> CommandRequest:
    return CommandRequest(command=INTERACTIVE, terminal=_size(), cwd=folder, by_person=True)


def _show(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


async def _forward(execution: Execution) -> None:
    """Forward key presses and terminal resizes to the shell until cancelled."""
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
            event = await typed.get()
            if isinstance(event, TerminalSize):
                await execution.resize(event)
            elif event:
                with contextlib.suppress(BrokenPipeError):  # the shell has just ended
                    await execution.write(event)
            else:
                await execution.terminate()  # our terminal is gone
    finally:
        loop.remove_reader(keyboard)
        loop.remove_signal_handler(signal.SIGWINCH)


def _size() -> TerminalSize:
    size = os.get_terminal_size(sys.stdout.fileno())
    return TerminalSize(rows=size.lines or 24, columns=size.columns or 80)


@contextlib.contextmanager
def _raw_keys() -> Iterator[None]:
    """Put the terminal into raw mode, so that the shell gets every key."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


class CleanupOutcome(Struct, frozen=True):
    """What happened to a leftover."""

    leftover: Leftover
    state: str


@group.command("clean")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def clean_environments(dry_run: bool, as_json: bool) -> int:
    """Remove environments left behind by dead toolcrib processes.

    Searches every usable backend for containers, instances, cloud sandboxes and folders that toolcrib created. Lists
    those of running processes, but leaves them alone. Exit code 1 if a backend could not be searched or a removal
    failed.

    --json prints an object with the keys leftovers (each with kind, name, detail, owner_alive and state: removed, would
    be removed, in use, or why it is still there) and problems.
    """
    outcomes, problems = asyncio.run(_clean(backend_context(), dry_run=dry_run))
    if as_json:
        print_json({"leftovers": [_as_json(outcome) for outcome in outcomes], "problems": problems})
    elif not outcomes:
        print_line("Nothing to clean up.")
    else:
        rows = [
            [outcome.leftover.kind, outcome.leftover.name, outcome.state, outcome.leftover.detail]
            for outcome in outcomes
        ]
        print_table(["kind", "name", "state", "detail"], rows)
    if not as_json:
        for problem in problems:
            note(f"failed: {problem}")
    return 1 if problems else 0


async def _clean(found: BackendContext, *, dry_run: bool) -> tuple[list[CleanupOutcome], list[str]]:
    left, problems = await leftovers(found.settings, found.environ)
    outcomes: list[CleanupOutcome] = []
    for leftover in left:
        if leftover.owner_alive:
            outcomes.append(CleanupOutcome(leftover, IN_USE))
        elif dry_run:
            outcomes.append(CleanupOutcome(leftover, FOUND))
        else:
            state = await _removed(found, leftover)
            outcomes.append(CleanupOutcome(leftover, state))
            if state != REMOVED:
                problems.append(f"{leftover.kind} {leftover.name}: {state}")
    return outcomes, problems


async def _removed(found: BackendContext, leftover: Leftover) -> str:
    try:
        await remove_leftover(leftover, found.settings, found.environ)
    except (ToolcribError, TimeoutError, OSError) as error:
        return str(error) or "timed out"
    return REMOVED


def _as_json(outcome: CleanupOutcome) -> JsonObject:
    return {
        "kind": outcome.leftover.kind,
        "name": outcome.leftover.name,
        "detail": outcome.leftover.detail,
        "owner_alive": outcome.leftover.owner_alive,
        "state": outcome.state,
    }


group.lazy("check", "env_check:check_backend", "Run the conformance suite against a backend, built in or your own.")
