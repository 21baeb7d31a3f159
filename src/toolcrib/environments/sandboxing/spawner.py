"""Runs inside a sandbox for its whole life: starts programs on request and reports their exits.

A script that needs nothing but Python: `spawner.py DESCRIPTOR OPTIONS [NOTE]`. Requests and answers are JSON, one
message each, on the packet socket DESCRIPTOR; the streams of a program are passed along with its request.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import termios
from typing import Any, NoReturn

MESSAGE_BYTES = 128 * 1024
DESCRIPTORS = 3
SET_DUMPABLE = 4
CREATE_RULESET, RESTRICT_SELF = 444, 446
SCOPE_OF_ABSTRACT_SOCKETS = struct.pack("=QQQ", 0, 0, 1)
CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD)


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    options = json.loads(sys.argv[2])
    os.set_inheritable(link.fileno(), False)
    # No program in the sandbox may inspect this process or impersonate it.
    ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _block_foreign_abstract_sockets()
    for name, most in options["limits"].items():
        _limit(getattr(resource, name), most)
    os.chdir(options["folder"])
    refused = [folder for folder in options["writable"] if not os.access(folder, os.W_OK | os.X_OK)]
    spawner = Spawner(link)
    spawner.answer({"ready": True, "refused": refused, "notes": sys.argv[3:]})
    spawner.serve()


def _block_foreign_abstract_sockets() -> None:
    """Abstract sockets are part of the network, which may be shared; a newer Landlock can restrict them."""
    library = ctypes.CDLL(None)
    size = ctypes.c_size_t(len(SCOPE_OF_ABSTRACT_SOCKETS))
    ruleset: int = library.syscall(CREATE_RULESET, SCOPE_OF_ABSTRACT_SOCKETS, size, 0)
    if ruleset >= 0:
        library.syscall(RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


class Spawner:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._requests: dict[int, int] = {}
        self._ended, noted = os.pipe()
        os.set_blocking(self._ended, False)
        os.set_blocking(noted, False)
        signal.set_wakeup_fd(noted, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def serve(self) -> None:
        """Serve requests until the other side is gone."""
        watch = select.poll()
        watch.register(self._link, select.POLLIN)
        watch.register(self._ended, select.POLLIN)
        while True:
            ready = dict(watch.poll())
            if self._ended in ready:
                os.read(self._ended, 4096)
            # The other side relies on exits, so report them before handling new requests.
            self._report_exits()
            if self._link.fileno() in ready and not self._take_request():
                return

    def answer(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self._link.sendmsg([json.dumps(message).encode()], rights)

    def _report_exits(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            # Other children are orphans that we adopted.
            request = self._requests.pop(pid, None)
            if request is not None:
                code = os.waitstatus_to_exitcode(status)
                self.answer({"ended": request, "code": code if code >= 0 else 128 - code})

    def _take_request(self) -> bool:
        message, streams = self._receive()
        if not message:
            return False
        try:
            request = json.loads(message)
            if "stored" in request:
                with open(streams.pop(), encoding="utf-8", closefd=True) as stored:  # noqa: PTH123
                    request = json.load(stored)
            self._start(request, streams)
        finally:
            for descriptor in streams:
                os.close(descriptor)
        return True

    def _receive(self) -> tuple[bytes, list[int]]:
        message, rights, _, _ = self._link.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(DESCRIPTORS * 4))
        streams = array.array("i")
        for level, kind, data in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                streams.frombytes(data[: len(data) - len(data) % streams.itemsize])
        for descriptor in streams:
            os.set_inheritable(descriptor, False)
        return message, list(streams)

    def _start(self, request: dict[str, Any], streams: list[int]) -> None:
        number, argv = request["id"], request["argv"]
        master: tuple[int, ...] = ()
        try:
            if request["size"] is None:
                pid = _start_with_pipes(argv, *streams)
            else:
                if not streams:
                    # A terminal of the sandbox's own devpts has a name that programs in here can look up.
                    opened, terminal = os.openpty()
                    master = (opened,)
                    streams.append(terminal)
                pid = _start_on_terminal(argv, streams[0], request["size"])
            # Its exit can only be noticed after this, in the same thread.
            self._requests[pid] = number
            self.answer({"started": number, "pid": pid}, master)
        except (OSError, ValueError) as error:
            self.answer({"failed": number, "errno": getattr(error, "errno", None), "why": str(error)})
        finally:
            for descriptor in master:
                os.close(descriptor)


def _start_with_pipes(argv: list[str], stdin: int, output: int) -> int:
    return os.posix_spawnp(
        argv[0],
        argv,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, stdin, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        setsid=True,
        setsigdef=CHANGED_BY_PYTHON,
    )


def _start_on_terminal(argv: list[str], terminal: int, size: list[int]) -> int:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    pid = os.fork()
    if pid == 0:
        _become(argv, terminal)
    return pid


def _become(argv: list[str], terminal: int) -> NoReturn:
    """Exec the program in a session that controls the terminal."""
    try:
        signal.set_wakeup_fd(-1)
        for number in CHANGED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for descriptor in (0, 1, 2):
            os.dup2(terminal, descriptor)
        os.execvp(argv[0], argv)
    except (OSError, ValueError) as error:
        os.write(2, f"{argv[0]}: {error}\r\n".encode(errors="replace"))
    finally:
        os._exit(127)


if __name__ == "__main__":
    main()
