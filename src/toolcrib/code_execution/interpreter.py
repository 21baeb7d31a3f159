"""Interpreters that wait for a script: one that was just started, or one that was started ahead of the next script."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from toolcrib.code_execution.channel import ChannelBroken, Frame, FrameReader, HelloFrame
from toolcrib.code_execution.protected_files import secret_files
from toolcrib.config.tool_settings import CodeExecutionSettings
from toolcrib.core.environments import BackendPath, CommandExit, CommandRequest, Environment, EnvironmentSpec, Execution
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.sandbox import COVERED_SEPARATOR
from toolcrib.terminal.whereabouts import Whereabouts

BEGINNING = b"\0%b\0"
"""Around the word that an interpreter begins with: what only repeats its arguments does not write these."""
WAIT_SECONDS = 60.0
"""How long an interpreter waits for the next script; then its memory is given back."""


@dataclass(frozen=True, kw_only=True)
class InterpreterShim:
    """A program that looks for an interpreter each time and starts it, as version managers have them: slow."""

    path: str
    executable: str


@dataclass(frozen=True, kw_only=True)
class InterpreterRequest:
    """Which interpreter is wanted; one that was started for an equal order will do."""

    command: Callable[[str, InterpreterShim | None], str]
    """The command line, by the word that the interpreter begins with, and what is known of the one that is found."""
    folder: BackendPath | None
    looks_like: tuple[object, ...]
    """What the choice of the interpreter depends on."""


class Interpreter:
    """One that is about to wait for its script, or runs it."""

    def __init__(self) -> None:
        self._nonce = os.urandom(16).hex()
        self._on_frame: Callable[[Frame], None] = lambda _: None
        self._on_broken: Callable[[], None] = lambda: None
        self._reader = FrameReader(BEGINNING % self._nonce.encode(), self._take)
        self._is_ready = False
        self.shim: InterpreterShim | None = None
        """What was found on the way to it; known once it is ready."""
        self.execution: Execution
        self.ended: asyncio.Future[CommandExit]

    async def start(self, environment: Environment, order: InterpreterRequest, shim: InterpreterShim | None) -> None:
        self.shim = shim
        request = CommandRequest(command=order.command(self._nonce, shim), cwd=order.folder, open_input=True)
        self.execution = await environment.start(request, self._hear)
        self.ended = asyncio.ensure_future(self.execution.wait())

    def serve(self, on_frame: Callable[[Frame], None], on_broken: Callable[[], None]) -> None:
        """From now on it works for this script."""
        self._on_frame, self._on_broken = on_frame, on_broken

    @property
    def noise(self) -> str:
        """What was printed instead of a beginning."""
        return self._reader.noise

    async def write(self, data: bytes) -> None:
        """Give it a frame; one that has ended does not get it."""
        with contextlib.suppress(OSError, EnvironmentFailed):
            await self.execution.write(data)

    async def leave(self) -> None:
        """Let go of it: one that waits ends when its input does."""
        self.ended.cancel()
        with contextlib.suppress(OSError, EnvironmentFailed):
            await self.execution.close_input()

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, HelloFrame):
            # Its first word: a later one could only be the script's.
            if self._is_ready:
                return
            self._is_ready = True
            if frame.called != frame.executable:
                self.shim = InterpreterShim(path=frame.called, executable=frame.executable)
        else:
            self._on_frame(frame)

    def _hear(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except ChannelBroken:
            self._on_broken()


class _IdleInterpreter:
    """An interpreter that was started ahead, or is about to be."""

    def __init__(self, environment: Environment, order: InterpreterRequest, shim: InterpreterShim | None) -> None:
        self.order = order
        self.starting = asyncio.ensure_future(self._start(environment, shim))
        self.timer: asyncio.TimerHandle

    async def _start(self, environment: Environment, shim: InterpreterShim | None) -> Interpreter | None:
        interpreter = Interpreter()
        try:
            await interpreter.start(environment, self.order, shim)
        except EnvironmentFailed:
            return None  # The next script finds out why.
        return interpreter

    def fits(self, order: InterpreterRequest) -> bool:
        return (self.order.folder, self.order.looks_like) == (order.folder, order.looks_like)

    async def leave(self) -> None:
        interpreter = await self.starting
        if interpreter is not None:
            await interpreter.leave()


class InterpreterPool:
    """At most one for each environment. Used on the loop where the environments live; they end it when they close."""

    def __init__(self) -> None:
        self._waiting: dict[int, _IdleInterpreter] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def take(self, environment: Environment, order: InterpreterRequest) -> Interpreter:
        """One for this order: the one that waits, if it fits and still lives, else a new one."""
        waiting = self._waiting.pop(id(environment), None)
        if waiting is not None:
            waiting.timer.cancel()
            if not waiting.fits(order):
                self._let_go(waiting)
            elif (ready := await waiting.starting) is not None and not ready.ended.done():
                return ready
        interpreter = Interpreter()
        await interpreter.start(environment, order, None)
        return interpreter

    def prepare(self, environment: Environment, order: InterpreterRequest, shim: InterpreterShim | None) -> None:
        """Start one for the next script, in the background."""
        key = id(environment)
        self._forget(key)
        waiting = self._waiting[key] = _IdleInterpreter(environment, order, shim)
        waiting.timer = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._forget, key)

    def _forget(self, key: int) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.timer.cancel()
            self._let_go(waiting)

    def _let_go(self, waiting: _IdleInterpreter) -> None:
        task = asyncio.ensure_future(waiting.leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


WORKER_FOLDER = Path(__file__).parent / "worker"
MEGABYTE = 1024 * 1024
MORE_PROCESSES = 1000
"""Older kernels count all processes of the user against a sandbox; those of the script are counted from inside."""
NO_PYTHON = "toolcrib: no python"
OLD_PYTHON = "toolcrib: old python"
FIRST_WORDS = f"""import sys
if sys.version_info < (3, 7): sys.stdout.write("{OLD_PYTHON} %d.%d\\n" % sys.version_info[:2]); sys.exit(1)
exec(compile(sys.argv[1], "<supervisor>", "exec"), dict(__name__="__main__"))"""
# With few arenas: each takes as much from the bound on memory as ten threads do.
# Finds the interpreter: the one in the settings, the project's, or the first on the way. Never ours: what can be
# imported there could be imported by a script.
CHOOSE = """__tc_options=(-I -X utf8 {options})
for __tc_python in {candidates}; do
    if [[ $__tc_python == */* ]]; then
        [[ ! -x $__tc_python ]] || builtin break
    elif builtin hash "$__tc_python" 2>/dev/null; then
        __tc_python=${{BASH_CMDS[$__tc_python]}}
        builtin break
    fi
done
[[ -x $__tc_python ]] || {{ builtin printf '{no_python}\\n'; builtin exit 1; }}
[[ $__tc_python != {shim} ]] || __tc_python={executable}
if [[ ${{__tc_python%/*}} -ef {own} ]]; then __tc_python={base} __tc_options+=({base_options}); fi
builtin export MALLOC_ARENA_MAX=${{MALLOC_ARENA_MAX:-2}}
"$__tc_python" "${{__tc_options[@]}}" -c {first} {supervisor} {nonce} {script_side} "$__tc_python\""""
VENV_PYTHON = ".venv/bin/python"
CHOICES = (VENV_PYTHON, ".python-version")
"""Files of a project that decide which interpreter it gets."""
PROJECT = f'${{VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python"}} "$PWD/{VENV_PYTHON}"'


@dataclass(frozen=True, kw_only=True)
class ScriptEnvironment:
    """Where one script runs."""

    spec: EnvironmentSpec
    folder: BackendPath | None
    """To start in; None means the folder that its session is in."""
    alone: bool
    """Nothing but scripts of ours runs there, and one at a time."""
    isolated: bool
    """It can harm nothing outside of the session's folder, except by the network."""
    note: str = ""


def sandbox_environment(where: Whereabouts, settings: CodeExecutionSettings, *, isolated: bool) -> ScriptEnvironment:
    """A sandbox around the folder of a session that works on this machine."""
    workspace = Path(where.spec.cwd).resolve()
    folder = Path(where.folder or workspace).resolve()
    is_inside = folder == workspace or folder.is_relative_to(workspace)
    options = (
        ("for", "scripts"),
        ("network", "on" if settings.network else "off"),
        ("max_processes", str(settings.max_processes + MORE_PROCESSES if settings.max_processes else 0)),
        ("shared_memory_mb", str(settings.memory_mb)),
    )
    return ScriptEnvironment(
        spec=EnvironmentSpec(backend="sandbox", session=where.spec.session, cwd=str(workspace), options=options),
        folder=BackendPath(str(folder if is_inside else workspace)),
        alone=True,
        isolated=isolated,
        note="" if is_inside else f"the sandbox shows {str(workspace)!r} alone, so the script ran there",
    )


def session_environment(where: Whereabouts) -> ScriptEnvironment:
    """The place that commands of the session run in."""
    return ScriptEnvironment(spec=where.spec, folder=None, alone=False, isolated=where.isolated)


def without_secrets(place: ScriptEnvironment) -> ScriptEnvironment:
    """The sandbox that does not show the files with secrets that the project has now."""
    found = secret_files(Path(place.spec.cwd))
    options = (("covered", COVERED_SEPARATOR.join(found)), ("covered_are", " ".join(found.values())))
    return replace(place, spec=replace(place.spec, options=place.spec.options + options))


def in_slot(place: ScriptEnvironment, slot: int) -> ScriptEnvironment:
    """A sandbox of the same kind; the number tells those in use apart."""
    return replace(place, spec=replace(place.spec, options=(*place.spec.options, ("slot", str(slot)))))


def interpreter_request(
    settings: CodeExecutionSettings, where: Whereabouts, place: ScriptEnvironment
) -> InterpreterRequest:
    """The interpreter for a script of this session."""
    folders = (place.folder or "", where.spec.cwd)
    of_project = tuple(_identity(Path(folder, name)) for folder in folders for name in CHOICES) if place.alone else ()
    return InterpreterRequest(
        command=partial(interpreter_command, settings, where), folder=place.folder, looks_like=of_project
    )


def interpreter_command(
    settings: CodeExecutionSettings, where: Whereabouts, nonce: str, shim: InterpreterShim | None = None
) -> str:
    """The command line that finds an interpreter in the place and starts the supervisor of a script in it."""
    strict = settings.mode == "strict"
    in_venv = sys.prefix != sys.base_prefix
    return CHOOSE.format(
        options="-S" if strict else "",
        candidates=_candidates(settings, where),
        no_python=NO_PYTHON,
        own=shlex.quote(str(Path(sys.executable).parent)),
        base=shlex.quote(_base_interpreter() if in_venv else sys.executable),
        # Without a base to fall back to, what is installed beside us is left out.
        base_options="" if in_venv else "-S",
        first=shlex.quote(FIRST_WORDS),
        supervisor=shlex.quote(_text("supervisor.py")),
        nonce=nonce,
        script_side=shlex.quote(_text("script_process.py")),
        shim=shlex.quote(shim.path if shim else ""),
        executable=shlex.quote(shim.executable if shim else ""),
    )


def _candidates(settings: CodeExecutionSettings, where: Whereabouts) -> str:
    """The interpreters to look for, as words of the shell."""
    # There is a Python on this machine in any case: the one below ours.
    at_last = [shlex.quote(_base_interpreter())] if where.is_here else []
    if settings.python:
        is_ours = Path(settings.python).parent == Path(sys.executable).parent
        return " ".join([shlex.quote(settings.python), *(at_last if is_ours else ())])
    if settings.mode == "strict":
        return "python3 python"
    of_workspace = [shlex.quote(f"{where.spec.cwd}/{VENV_PYTHON}")] if where.spec.cwd else []
    return " ".join([PROJECT, *of_workspace, "python3", "python", *at_last])


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _base_interpreter() -> str:
    found: str = getattr(sys, "_base_executable", "")
    if found and Path(found).parent != Path(sys.executable).parent:
        return found
    return str(Path(sys.executable).resolve())


@cache
def _text(name: str) -> str:
    """A text that runs inside, without its comments, which would travel with every script."""
    lines = (WORKER_FOLDER / name).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))
