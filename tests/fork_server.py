"""Starts `toolcrib` many times at the price of one: a server imports it once and forks for each start.

Every start is still a process of its own, with its own arguments, variables, folder, streams and exit code. What a
fork cannot have is another setting of the interpreter itself, so a start with such variables (PYTHONPATH, LANG, …) gets
a new interpreter, as does every start on a system without `fork`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

SOURCE = Path(__file__).resolve().parents[1] / "src"
# How the interpreter of the server is set; a start that wants it otherwise gets an interpreter of its own.
INTERPRETER = {"PYTHONPATH": str(SOURCE), "LANG": "C.UTF-8"}
# Importing one of these registers tools or replaces modules, which each start must do by itself.
REGISTERING = ("toolcrib.mcp", "toolcrib.tools", "toolcrib.compat", "toolcrib.testing", "toolcrib.__main__")
# These import SDKs that take long and that few starts need.
HEAVY = (
    "toolcrib.acp",
    "toolcrib.browser",
    "toolcrib.cli.commands.mcp_serve",
    "toolcrib.integrations",
    "toolcrib.media",
    "toolcrib.serve",
)
NOT_PRELOADED = (*REGISTERING, *HEAVY)
PRELOADED = (
    "asyncio",
    "click",
    "rich.console",
    "rich.markdown",
    "rich.table",
    "prompt_toolkit",
    "ruamel.yaml",
    "openai",
)
STREAMS = 3
LARGEST_REQUEST = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of Python with what runs toolcrib."""

    arguments: Sequence[str]
    """Of the interpreter: `-m MODULE …`, `-c CODE …`, or `SCRIPT …`."""
    environ: Mapping[str, str]
    cwd: Path
    new_session: bool = False

    @property
    def can_fork(self) -> bool:
        chosen = self.environ.items() - without_interpreter_settings(self.environ).items()
        has_options = self.arguments[0].startswith("-") and self.arguments[0] not in ("-m", "-c")
        return dict(chosen) == INTERPRETER and not has_options and hasattr(os, "fork")


def without_interpreter_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter does not read when it starts."""
    return {name: value for name, value in environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}


class ForkedProcess:
    """A process that the server forked, used as one of `subprocess`."""

    def __init__(self, status: int) -> None:
        self._status = os.fdopen(status, "rb", buffering=0)
        self._lock = threading.Lock()
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _look(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
                line = self._status.readline()
                assert line, "the fork server has ended"
                self.returncode = int(line)
                self._status.close()
            return self.returncode


def start(wanted: Start, *, stdin: int, stdout: int, stderr: int) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start the program with these descriptors; it is a fork where that makes no difference."""
    if wanted.can_fork:
        return _server().start(wanted, (stdin, stdout, stderr))
    return subprocess.Popen(
        [sys.executable, *wanted.arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=wanted.environ,
        cwd=wanted.cwd,
        start_new_session=wanted.new_session,
    )


def run(wanted: Start, *, stdin: bytes = b"", timeout: float) -> subprocess.CompletedProcess[bytes]:
    """Run the program to its end, over pipes; it is killed when the time is over."""
    (given, feed), (printed, to_printed), (said, to_said) = os.pipe(), os.pipe(), os.pipe()
    try:
        process = start(wanted, stdin=given, stdout=to_printed, stderr=to_said)
    finally:
        for descriptor in (given, to_printed, to_said):
            os.close(descriptor)
    feeder = threading.Thread(target=_feed, args=(feed, stdin), daemon=True)
    readers = [_Reader(printed), _Reader(said)]
    for thread in (feeder, *readers):
        thread.start()
    try:
        code = process.wait(timeout)
        for reader in readers:
            reader.join(timeout)
            assert not reader.is_alive(), "the program has ended, and something holds its output open"
    finally:
        process.kill()
    return subprocess.CompletedProcess(wanted.arguments, code, readers[0].data, readers[1].data)


class _Reader(threading.Thread):
    """Reads a pipe up to its end."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(daemon=True)
        self._descriptor = descriptor
        self.data = b""

    def run(self) -> None:
        with os.fdopen(self._descriptor, "rb") as stream:
            self.data = stream.read()


def _feed(descriptor: int, data: bytes) -> None:
    # The program may end without having read it all.
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb", buffering=0) as stream:
        stream.write(data)


@cache
def _server() -> _Server:
    """The server of this process, started when it is first needed."""
    return _Server()


class _Server:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={"PATH": os.environ["PATH"], **INTERPRETER},
                # An interrupt at the keyboard is for the tests, which end their programs by closing the link.
                start_new_session=True,
            )
        atexit.register(self.close)

    def start(self, wanted: Start, streams: tuple[int, int, int]) -> ForkedProcess:
        status, to_status = os.pipe()
        request = {
            "arguments": list(wanted.arguments),
            "environ": dict(wanted.environ),
            "cwd": str(wanted.cwd),
            "new_session": wanted.new_session,
        }
        try:
            with self._lock:
                socket.send_fds(self._link, [json.dumps(request).encode()], [*streams, to_status])
        finally:
            os.close(to_status)
        return ForkedProcess(status)

    def close(self) -> None:
        self._link.close()
        self._process.wait()


def _preload() -> None:
    """Import what most starts import, and register nothing."""
    for name in PRELOADED:
        importlib.import_module(name)
    for path in sorted(SOURCE.glob("toolcrib/**/*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if not name.startswith(NOT_PRELOADED):
            # Some need a package that is not installed here.
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    # What every start finds out first, and remembers for the rest of its process.
    discovery = importlib.import_module("toolcrib.registry.discovery")
    discovery.tool_files(SOURCE / "toolcrib" / "tools", discovery.ScanCache())
    importlib.import_module("toolcrib.config.yaml_text").parse("a: [1]", "config.yaml")
    # A fork has only the thread that forked: a lock that another one held would stay held in it.
    assert threading.active_count() == 1, f"importing started threads: {threading.enumerate()}"
    gc.collect()
    gc.freeze()


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork for each request: gives it in the child, and None in the server when nobody wants more."""
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([link, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _reap(running)
        if link not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(link, LARGEST_REQUEST, STREAMS + 1)
        if not data:
            break
        *streams, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)
            for descriptor in {*descriptors, ended, wake, link.detach(), *running.values()}:
                os.close(descriptor)
            request: dict[str, Any] = json.loads(data)
            return request
        os.write(status, b"%d\n" % pid)
        running[pid] = status
        for descriptor in streams:
            os.close(descriptor)
    for pid in running:
        # Nobody is left who could end it.
        os.kill(pid, signal.SIGKILL)
    return None


def _reap(running: dict[int, int]) -> None:
    """Tell of every child that has ended how it ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        descriptor = running.pop(pid)
        # Whoever wanted to know may be gone.
        with contextlib.suppress(BrokenPipeError):
            os.write(descriptor, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(descriptor)


def _become(request: dict[str, Any]) -> None:
    """Be a new process: session, folder, variables, streams and arguments as after a start."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        stream = _stream(name, number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(name: str, number: int, like: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = io.FileIO(number, "r" if name == "stdin" else "w", closefd=False)
    raw.name = f"<{name}>"
    buffer = io.BufferedReader(raw) if name == "stdin" else io.BufferedWriter(raw)
    has_lines = raw.isatty() or name == "stderr"
    return io.TextIOWrapper(buffer, like.encoding, like.errors, newline=None, line_buffering=has_lines)


def _run(arguments: Sequence[str]) -> int:
    """Run a module, code or a script as the interpreter does; gives the exit code."""
    try:
        if arguments[0] == "-m":
            sys.argv = list(arguments[1:])
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            sys.path.insert(0, "")
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = list(arguments)
            sys.path.insert(0, str(Path(arguments[0]).parent))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, int) or ended.code is None:
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - it is shown, as the interpreter shows it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """End as an interpreter does, but leave the modules as they are: to take them down costs more than most starts."""
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    os._exit(code & 0xFF)


def main() -> None:
    """Serve; in each child, do what was asked for."""
    link = socket.socket(fileno=int(sys.argv[1]))
    # The folder of this file, where there are packages named as installed ones are.
    del sys.path[0]
    _preload()
    request = _serve(link)
    if request is None:
        os._exit(0)
    _become(request)
    _end(_run(request["arguments"]))


if __name__ == "__main__":
    main()
