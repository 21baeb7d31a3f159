"""Where a script runs, and the Python interpreter for it: started on demand or ahead of the next script."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.code_execution.channel import ChannelBroken, Frame, FrameReader, HelloFrame
from toolcrib.config.settings import CodeExecutionSettings
from toolcrib.core.environments import (
    BackendPath,
    CommandExit,
    CommandRequest,
    Environment,
    EnvironmentSpec,
    Execution,
    ExecutionTarget,
)
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.sandbox import COVERED_SEPARATOR

BEGINNING = b"\0%b\0"
"""Surrounds the nonce that an interpreter prints first: a program that merely echoes its arguments prints no NUL."""
IDLE_SECONDS = 60.0
"""How long an idle interpreter waits for the next script."""


class InterpreterShim(Struct, frozen=True, kw_only=True):
    """A slow program that finds and starts an interpreter, as version managers install them."""

    path: str
    executable: str


class InterpreterRequest(Struct, frozen=True, kw_only=True):
    """Which interpreter is wanted; an idle one that was started for an equal request will do."""

    command: Callable[[str, InterpreterShim | None], str]
    """The command line, for a nonce that the interpreter prints first and a known shim."""
    folder: BackendPath | None
    depends_on: tuple[object, ...]
    """What the choice of the interpreter depends on."""


class Interpreter:
    """An interpreter that waits for its script, or runs it."""

    def __init__(self) -> None:
        self._nonce = os.urandom(16).hex()
        self._on_frame: Callable[[Frame], None] = lambda _: None
        self._on_broken: Callable[[], None] = lambda: None
        self._reader = FrameReader(BEGINNING % self._nonce.encode(), self._take)
        self._is_ready = False
        self.shim: InterpreterShim | None = None
        """The shim it was started through; known once it is ready."""
        self.execution: Execution
        self.ended: asyncio.Future[CommandExit]

    async def start(self, environment: Environment, request: InterpreterRequest, shim: InterpreterShim | None) -> None:
        self.shim = shim
        command = request.command(self._nonce, shim)
        command_request = CommandRequest(command=command, cwd=request.folder, open_input=True)
        self.execution = await environment.start(command_request, self._on_output)
        self.ended = asyncio.ensure_future(self.execution.wait())

    def serve(self, on_frame: Callable[[Frame], None], on_broken: Callable[[], None]) -> None:
        """Send the frames of its script to these callbacks."""
        self._on_frame, self._on_broken = on_frame, on_broken

    @property
    def noise(self) -> str:
        """What was printed before the first frame."""
        return self._reader.noise

    async def write(self, data: bytes) -> None:
        """Send a frame; ignored if the interpreter has ended."""
        with contextlib.suppress(OSError, EnvironmentFailed):
            await self.execution.write(data)

    async def close(self) -> None:
        """Close its input: an idle interpreter then ends."""
        self.ended.cancel()
        with contextlib.suppress(OSError, EnvironmentFailed):
            await self.execution.close_input()

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, HelloFrame):
            # Only the first one: a later one can only come from the script.
            if self._is_ready:
                return
            self._is_ready = True
            if frame.called != frame.executable:
                self.shim = InterpreterShim(path=frame.called, executable=frame.executable)
        else:
            self._on_frame(frame)

    def _on_output(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except ChannelBroken:
            self._on_broken()


class _IdleInterpreter:
    """An interpreter that was started ahead of its script, or is starting."""

    def __init__(self, environment: Environment, request: InterpreterRequest, shim: InterpreterShim | None) -> None:
        self.request = request
        self.starting = asyncio.ensure_future(self._start(environment, shim))
        self.timer: asyncio.TimerHandle

    async def _start(self, environment: Environment, shim: InterpreterShim | None) -> Interpreter | None:
        interpreter = Interpreter()
        try:
            await interpreter.start(environment, self.request, shim)
        except EnvironmentFailed:
            return None  # The next script will report why.
        return interpreter

    def fits(self, request: InterpreterRequest) -> bool:
        return (self.request.folder, self.request.depends_on) == (request.folder, request.depends_on)

    async def close(self) -> None:
        interpreter = await self.starting
        if interpreter is not None:
            await interpreter.close()


class InterpreterPool:
    """At most one idle interpreter per environment. Used on the loop of the environments, which end it on close."""

    def __init__(self) -> None:
        self._idle: dict[int, _IdleInterpreter] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def take(self, environment: Environment, request: InterpreterRequest) -> Interpreter:
        """An interpreter for this request: the idle one if it fits and is alive, else a new one."""
        idle = self._idle.pop(id(environment), None)
        if idle is not None:
            idle.timer.cancel()
            if not idle.fits(request):
                self._close(idle)
            elif (ready := await idle.starting) is not None and not ready.ended.done():
                return ready
        interpreter = Interpreter()
        await interpreter.start(environment, request, None)
        return interpreter

    def prepare(self, environment: Environment, request: InterpreterRequest, shim: InterpreterShim | None) -> None:
        """Start one for the next script in the background."""
        key = id(environment)
        self._forget(key)
        idle = self._idle[key] = _IdleInterpreter(environment, request, shim)
        idle.timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._forget, key)

    def _forget(self, key: int) -> None:
        idle = self._idle.pop(key, None)
        if idle is not None:
            idle.timer.cancel()
            self._close(idle)

    def _close(self, idle: _IdleInterpreter) -> None:
        task = asyncio.ensure_future(idle.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


WORKER_FOLDER = Path(__file__).parent / "worker"
MEGABYTE = 1024 * 1024
OTHER_PROCESSES = 1000
"""Older kernels count all processes of the user against a sandbox; the supervisor counts the script's own."""
NO_PYTHON = "toolcrib: no python"
OLD_PYTHON = "toolcrib: old python"
BOOTSTRAP = f"""import sys
if sys.version_info < (3, 7): sys.stdout.write("{OLD_PYTHON} %d.%d\\n" % sys.version_info[:2]); sys.exit(1)
exec(compile(sys.argv[1], "<supervisor>", "exec"), dict(__name__="__main__"))"""
# Finds the interpreter: the one in the settings, the project's, or the first on PATH. Never our own: a script could
# import whatever is installed there. Each candidate is opened first, because Landlock shows files that it does not let
# us open. Few malloc arenas, because each counts as much against the memory limit as ten threads.
START_INTERPRETER = """__tc_options=(-I -X utf8 {options})
for __tc_python in {candidates} ''; do
    if [[ $__tc_python != */* ]]; then
        builtin hash "$__tc_python" 2>/dev/null || builtin continue
        __tc_python=${{BASH_CMDS[$__tc_python]}}
    fi
    [[ ! -x $__tc_python ]] || ! {{ builtin true <"$__tc_python"; }} 2>/dev/null || builtin break
done
[[ -x $__tc_python ]] || {{ builtin printf '{no_python}\\n'; builtin exit 1; }}
[[ $__tc_python != {shim} ]] || __tc_python={executable}
if [[ ${{__tc_python%/*}} -ef {own} ]]; then __tc_python={base} __tc_options+=({base_options}); fi
builtin export MALLOC_ARENA_MAX=${{MALLOC_ARENA_MAX:-2}}
"$__tc_python" "${{__tc_options[@]}}" -c {first} {supervisor} {nonce} {script_process} "$__tc_python\""""
VENV_PYTHON = ".venv/bin/python"
VERSION_FILES = (VENV_PYTHON, ".python-version")
"""Files of a project that determine its interpreter."""
PROJECT = f'${{VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python"}} "$PWD/{VENV_PYTHON}"'


class ScriptEnvironment(Struct, frozen=True, kw_only=True):
    """Where one script runs."""

    spec: EnvironmentSpec
    folder: BackendPath | None
    """The start folder; None means the folder of the session."""
    alone: bool
    """Only scripts run there, one at a time."""
    isolated: bool
    """It can harm nothing outside the session's folder, except over the network."""
    note: str = ""


def sandbox_environment(
    where: ExecutionTarget, settings: CodeExecutionSettings, *, isolated: bool
) -> ScriptEnvironment:
    """A sandbox around the folder of a session on this machine."""
    workspace = Path(where.spec.cwd).resolve()
    folder = Path(where.folder or workspace).resolve()
    is_inside = folder == workspace or folder.is_relative_to(workspace)
    options = (
        ("for", "scripts"),
        ("network", "on" if settings.network else "off"),
        ("max_processes", str(settings.max_processes + OTHER_PROCESSES if settings.max_processes else 0)),
        ("shared_memory_mb", str(settings.memory_mb)),
    )
    return ScriptEnvironment(
        spec=EnvironmentSpec(
            backend="sandbox", session=where.spec.session, task=where.spec.task, cwd=str(workspace), options=options
        ),
        folder=BackendPath(str(folder if is_inside else workspace)),
        alone=True,
        isolated=isolated,
        note="" if is_inside else f"the sandbox only contains {str(workspace)!r}, so the script ran there",
    )


def session_environment(where: ExecutionTarget) -> ScriptEnvironment:
    """The environment in which the session's commands run."""
    return ScriptEnvironment(spec=where.spec, folder=None, alone=False, isolated=where.isolated)


DEEPEST = 3
MOST_FOLDERS = 400
"""Scanned before every script, so deeply nested files and files in very large trees are not found."""
NOT_OF_THE_PROJECT = frozenset({"node_modules", "venv", "__pycache__"})
HARMLESS_ENDINGS = ("example", "sample", "template", "dist", "test")


def secret_files(project: Path) -> dict[str, str]:
    """The secret files that can be found quickly: the path below the project, and the identity of the file.

    A file that replaces one of them is another file, which hiding the first does not hide.
    """
    found: dict[str, str] = {}
    for entry in project_entries(project):
        if entry.name.startswith(".env") and not entry.name.endswith(HARMLESS_ENDINGS):
            try:
                status = entry.stat()
            except OSError:
                continue
            found[os.path.relpath(entry.path, project)] = f"{status.st_dev}.{status.st_ino}"
    return found


def project_entries(project: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of the project's folders, breadth first, as far as that is quick."""
    folders = deque([(str(project), 1)])
    for _ in range(MOST_FOLDERS):
        if not folders:
            return
        folder, depth = folders.popleft()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            yield entry
            is_ordinary = not entry.name.startswith(".") and entry.name not in NOT_OF_THE_PROJECT
            if depth < DEEPEST and is_ordinary and entry.is_dir(follow_symlinks=False):
                folders.append((entry.path, depth + 1))


def without_secrets(target: ScriptEnvironment) -> ScriptEnvironment:
    """The sandbox with the project's current secret files hidden."""
    found = secret_files(Path(target.spec.cwd))
    options = (("covered", COVERED_SEPARATOR.join(found)), ("covered_are", " ".join(found.values())))
    return replace(target, spec=replace(target.spec, options=target.spec.options + options))


def in_slot(target: ScriptEnvironment, slot: int) -> ScriptEnvironment:
    """A sandbox of the same kind; the number distinguishes those in use."""
    return replace(target, spec=replace(target.spec, options=(*target.spec.options, ("slot", str(slot)))))


def interpreter_request(
    settings: CodeExecutionSettings, where: ExecutionTarget, target: ScriptEnvironment
) -> InterpreterRequest:
    """The interpreter for a script of this session."""
    folders = (target.folder or "", where.spec.cwd)
    of_project = (
        tuple(_identity(Path(folder, name)) for folder in folders for name in VERSION_FILES) if target.alone else ()
    )
    return InterpreterRequest(
        command=partial(interpreter_command, settings, where), folder=target.folder, depends_on=of_project
    )


def interpreter_command(
    settings: CodeExecutionSettings, where: ExecutionTarget, nonce: str, shim: InterpreterShim | None = None
) -> str:
    """The command line that finds an interpreter in the environment and starts a script's supervisor in it."""
    strict = settings.mode == "strict"
    in_venv = sys.prefix != sys.base_prefix
    return START_INTERPRETER.format(
        options="-S" if strict else "",
        candidates=_candidates(settings, where),
        no_python=NO_PYTHON,
        own=shlex.quote(str(Path(sys.executable).parent)),
        base=shlex.quote(_base_interpreter() if in_venv else sys.executable),
        # Without a base interpreter to fall back to, exclude what is installed beside us.
        base_options="" if in_venv else "-S",
        first=shlex.quote(BOOTSTRAP),
        supervisor=shlex.quote(_worker_text("supervisor.py")),
        nonce=nonce,
        script_process=shlex.quote(_worker_text("script_process.py")),
        shim=shlex.quote(shim.path if shim else ""),
        executable=shlex.quote(shim.executable if shim else ""),
    )


def _candidates(settings: CodeExecutionSettings, where: ExecutionTarget) -> str:
    """The interpreters to try, as shell words."""
    # This machine always has a Python: the base of ours.
    fallback = [shlex.quote(_base_interpreter())] if where.is_here else []
    if settings.python:
        is_ours = Path(settings.python).parent == Path(sys.executable).parent
        return " ".join([shlex.quote(settings.python), *(fallback if is_ours else ())])
    if settings.mode == "strict":
        return "python3 python"
    of_workspace = [shlex.quote(f"{where.spec.cwd}/{VENV_PYTHON}")] if where.spec.cwd else []
    return " ".join([PROJECT, *of_workspace, "python3", "python", *fallback])


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
def _worker_text(name: str) -> str:
    """A worker program without its comments, which would be sent with every script."""
    lines = (WORKER_FOLDER / name).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))
