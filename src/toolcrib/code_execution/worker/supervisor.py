"""The first process of a script: runs it in a child process, relays frames, and ends what it leaves running.

Sent as text to the environment; imports little, because every script pays for it. Its arguments are its own text, the
nonce that starts its channel, the text of `script_process.py`, and the path it was started with.

A frame is one letter, four bytes of length, and that many bytes. It sends H (ready), O and E (output and errors of the
script), C (a tool call), X (an exception) and D (the end); it receives S (the start) and R (a result).
"""
# ruff: noqa: UP031, PTH102, PTH118, PTH123, PTH208 - for Python 3.7, and without the cost of pathlib

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` itself takes longer to import
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 32 * 1024 * 1024
CHUNK = 65536
CHECK_SECONDS = 0.05
CHECK_MEMORY_SECONDS = 0.25
READS_AFTER_THE_END = 64
SET_SUBREAPER = 36
GIVE_UP_SECONDS = 10.0
PAGE = os.sysconf("SC_PAGE_SIZE")


def frame(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


class Frames:
    def __init__(self) -> None:
        self.held = bytearray()

    def take(self, data: bytes) -> list[tuple[bytes, bytes]]:
        self.held += data
        found = []
        while len(self.held) >= 5:
            end = 5 + int.from_bytes(self.held[1:5], "big")
            if end > LONGEST:
                raise ValueError("a frame is too long")
            if len(self.held) < end:
                break
            found.append((bytes(self.held[:1]), bytes(self.held[5:end])))
            del self.held[:end]
        return found


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_exactly(descriptor: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = os.read(descriptor, length - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


class Supervisor:
    def __init__(self, nonce: bytes, script_process: str) -> None:
        # Close what the shell left open. Duplicates are not inherited by child processes.
        os.closerange(3, 256)
        self.input, self.output = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        os.close(nothing)
        # Do everything possible before the request arrives: an interpreter may be started ahead.
        self.script_process: dict[str, Any] = {"__name__": "script_process"}
        exec(compile(script_process, "<script process>", "exec"), self.script_process)
        hello = self.script_process["json"].dumps({"called": sys.argv[4], "executable": sys.executable})
        write_all(self.output, b"\0" + nonce + b"\0" + frame(b"H", hello.encode()))
        head = read_exactly(self.input, 5)
        self.order: dict[str, Any] = eval(read_exactly(self.input, int.from_bytes(head[1:], "big")), {})
        self.before: set[int] = processes() if self.order["alone"] else set()
        self.folder = self.enter_folder()
        if not self.order["alone"]:
            adopt_orphans()
        self.printed, self.complained, self.requests, self.results = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        self.to_script = bytearray()
        self.frames_in, self.frames_out = Frames(), Frames()
        self.ended, self.noted = os.pipe()
        self.pid = 0
        self.status: int | None = None
        self.next_check = self.next_memory_check = 0.0
        self.at_start = len(processes())

    def enter_folder(self) -> str:
        if self.order["strict"]:
            made = os.path.join(os.environ.get("TMPDIR") or "/tmp", "script-" + os.urandom(6).hex())
            os.mkdir(made, 0o700)
            os.chdir(made)
            return made
        return ""

    def run(self) -> None:
        os.set_blocking(self.noted, False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(self.noted)
        self.pid = os.fork()
        if self.pid == 0:
            self.become_script()
            return
        for kept, closed in (self.printed, self.complained, self.requests, self.results[::-1]):
            os.set_blocking(kept, False)
            os.close(closed)
        try:
            self.finish(self.carry())
        finally:
            os._exit(0)

    def become_script(self) -> None:
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        os.setpgid(0, 0)
        os.dup2(self.printed[1], 1)
        os.dup2(self.complained[1], 2)
        others = (self.input, self.output, self.ended, self.noted, self.requests[0], self.results[1])
        for descriptor in others + self.printed + self.complained:
            os.close(descriptor)
        self.script_process["run"](self.order, frame, self.requests[1], self.results[0])

    def carry(self) -> int:
        """Transfer until the script's process has ended; returns its exit status."""
        watch = select.poll()
        for descriptor in (self.input, self.ended, self.printed[0], self.complained[0], self.requests[0]):
            watch.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in watch.poll(CHECK_SECONDS * 1000):
                if descriptor == self.ended:
                    os.read(self.ended, CHUNK)
                elif descriptor == self.results[1]:
                    self.feed_script(watch)
                elif descriptor == self.input:
                    if not self.from_other_side(watch):
                        self.kill_script()
                elif not self.from_script(descriptor):
                    watch.unregister(descriptor)
            self.reap()
            if self.status is not None:
                return self.status
            self.check_limits()

    def reap(self) -> None:
        """Reap the script and its orphans, which became our children."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self.pid:
                    self.status = status
                if not pid:
                    return
        except ChildProcessError:
            return

    def from_other_side(self, watch: select.poll) -> bool:
        data = os.read(self.input, CHUNK)
        if not data:
            watch.unregister(self.input)
            return False
        for kind, payload in self.frames_in.take(data):
            if kind == b"R":
                self.to_script += frame(kind, payload)
        self.feed_script(watch)
        return True

    def feed_script(self, watch: select.poll) -> None:
        try:
            while self.to_script:
                del self.to_script[: os.write(self.results[1], self.to_script[:CHUNK])]
        except BlockingIOError:
            watch.register(self.results[1], select.POLLOUT)
            return
        except OSError:
            self.to_script.clear()
        try:
            watch.unregister(self.results[1])
        except KeyError:
            pass

    def from_script(self, descriptor: int) -> bool:
        """Pass on what a pipe of the script contains; False at its end."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        if descriptor != self.requests[0]:
            write_all(self.output, frame(b"O" if descriptor == self.printed[0] else b"E", data))
            return True
        try:
            for kind, payload in self.frames_out.take(data):
                if kind in (b"C", b"X"):
                    write_all(self.output, frame(kind, payload))
        except ValueError:
            # It broke its channel: calls fail at once instead of waiting forever.
            for end in (self.results[1], self.requests[0]):
                os.dup2(1, end)
            return False
        return True

    def finish(self, status: int) -> None:
        for descriptor in (self.printed[0], self.complained[0], self.requests[0]):
            for _ in range(READS_AFTER_THE_END):
                if not select.select([descriptor], [], [], 0)[0] or not self.from_script(descriptor):
                    break
        left, certain = self.end_orphans()
        if self.folder:
            import shutil  # noqa: PLC0415 - only needed here

            os.chdir("/")
            shutil.rmtree(self.folder, ignore_errors=True)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        self.send_end(code, left, certain)

    def send_end(self, code: int, left: int, certain: bool, too_much: str = "") -> None:
        text = '{"code":%d,"left":%d,"certain":%d,"too_much":"%s"}' % (code, left, certain, too_much)
        write_all(self.output, frame(b"D", text.encode()))

    def end_orphans(self) -> tuple[int, bool]:
        """How many processes of the script were ended, and whether none is left for certain."""
        ended: set[int] = set()
        for _ in range(20):
            left = self.members()
            if not left:
                return len(ended), True
            self.kill(left)
            ended |= left
            select.select([], [], [], 0.01)
            self.reap()
        return len(ended), False

    def kill_script(self) -> None:
        self.kill(self.members() | {self.pid})

    def kill(self, pids: set[int]) -> None:
        # Suspended first: a running process could start another while we go through the list.
        for number in (_signal.SIGSTOP, _signal.SIGKILL):
            for pid in pids:
                try:
                    os.kill(pid, number)
                except OSError:
                    pass

    def check_limits(self) -> None:
        """End a script that exceeds a limit; report that first, because the other side can do more."""
        now = time.monotonic()
        if now < self.next_check:
            return
        self.next_check = now + CHECK_SECONDS
        too_much = "processes" if self.has_too_many_processes() else "memory" if self.uses_too_much_memory(now) else ""
        if not too_much:
            return
        # The kernel does this atomically: no process of the group can start another meanwhile.
        try:
            os.killpg(self.pid, _signal.SIGKILL)
        except OSError:
            pass
        self.send_end(-_signal.SIGKILL, 0, certain=False, too_much=too_much)
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < give_up:
            left = self.members()
            if not left:
                break
            self.kill(left)
            self.reap()
        os._exit(0)

    def has_too_many_processes(self) -> bool:
        most = self.order["max_processes"]
        # Counting is cheap; determining the owners of thousands would take long.
        if not most or len(processes()) - self.at_start <= most:
            return False
        return bool(self.order["alone"]) or len(self.members(dead_too=True)) > most

    def uses_too_much_memory(self, now: float) -> bool:
        """Whether all processes of the script together exceed the memory limit; the kernel only limits each one."""
        most: int = self.order["memory_bytes"]
        if not most or now < self.next_memory_check:
            return False
        self.next_memory_check = now + CHECK_MEMORY_SECONDS
        others = self.members()
        if not others:
            return False
        everybody = others | {self.pid}
        # The first sum counts shared memory several times; the exact figure is slower to get.
        return sum(map(resident, everybody)) > most and sum(map(own_share, everybody)) > most

    def members(self, dead_too: bool = False) -> set[int]:
        """The processes of the script besides its first one.

        If nothing else runs there, all that started after us; otherwise our descendants, its process group, and those
        with the command's id in their environment.
        """
        others = processes() - self.before - {self.pid, os.getpid()}
        if self.order["alone"]:
            return {pid for pid in others if lives(stat(pid))}
        mark = ("TOOLCRIB_COMMAND_ID=" + os.environ.get("TOOLCRIB_COMMAND_ID", "?")).encode()
        newest = int((read("/proc/loadavg").split() or [b"0"])[-1])
        # Pids are assigned in order, until they wrap around.
        later = {pid: stat(pid) for pid in others if pid > self.pid or newest < self.pid}
        found: set[int] = set()
        ours = {self.pid, os.getpid()}
        for pid, seen in sorted(later.items()):
            if lives(seen) or (dead_too and seen):
                is_ours = int(seen[1]) in ours or int(seen[2]) == self.pid
                if is_ours or mark in read("/proc/%d/environ" % pid).split(b"\0"):
                    found.add(pid)
                    ours.add(pid)
        return found


def adopt_orphans() -> None:
    """Become the subreaper: orphans of descendants become our children, so that they are found."""
    try:
        import ctypes  # noqa: PLC0415 - where nothing else runs, it is not needed

        ctypes.CDLL(None).prctl(SET_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return  # They are found by group and command id.


def processes() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdigit()}
    except OSError:
        return set()


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(262144)
    except OSError:
        return b""


def stat(pid: int) -> list[bytes]:
    """State, parent and process group."""
    return read("/proc/%d/stat" % pid).rpartition(b") ")[2].split()[:3]


def lives(seen: list[bytes]) -> bool:
    return bool(seen) and seen[0] not in (b"Z", b"X")


def resident(pid: int) -> int:
    """The resident memory of a process in bytes, including shared memory."""
    return int((read("/proc/%d/statm" % pid).split() or [b"0", b"0"])[1]) * PAGE


def own_share(pid: int) -> int:
    """The memory of a process in bytes, including its share of shared memory."""
    parts = read("/proc/%d/smaps_rollup" % pid).partition(b"Pss:")[2].split()
    return int(parts[0]) * 1024 if parts else 0


if __name__ == "__main__":
    Supervisor(sys.argv[2].encode(), sys.argv[3]).run()
