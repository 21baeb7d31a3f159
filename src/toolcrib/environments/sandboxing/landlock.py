"""Confines a program with Landlock, seccomp and dropped capabilities, where bubblewrap is missing or refused.

This is also a script that needs nothing but Python: `landlock.py DESCRIPTOR POLICY SCRIPT …` runs another such script
confined and stays outside itself. When the script ends, or the other side of the socket DESCRIPTOR is gone, it ends
everything that the script started, wherever that hides. If the kernel grants us our own mounts, the script has its own
/tmp and everything else is read-only; one more argument, `own-mounts`, tells it so.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import select
import signal
import stat
import struct
import sys
import time
from pathlib import Path
from typing import Any

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
TELL_VERSION = 1
PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_DEVICES = (1 << 6) | (1 << 11)
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
FIRST_RIGHTS = (1 << 13) - 1
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
TCP_BIND, TCP_CONNECT = 1, 2
ABSTRACT_SOCKETS, SIGNALS = 1, 2

SET_NO_NEW_PRIVILEGES, SET_SUBREAPER, DROP_FROM_BOUNDING_SET, SET_SECCOMP, SECCOMP_FILTER = 38, 36, 24, 22, 2
CAPABILITY_VERSION = 0x20080522
END_SECONDS = 5

MOUNT_SETATTR, AT_FDCWD, RECURSIVELY, READ_ONLY = 442, -100, 0x8000, 1
MOUNT_BIND, MOUNT_RECURSIVE, MOUNT_PRIVATE = 4096, 16384, 1 << 18
NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000
# Folders that all programs of a user share; semaphores are in the first.
SHARED_FOLDERS = ("/dev/shm", "/tmp")
OWN_MOUNTS = "own-mounts"
NO_MOUNTS, CANNOT_CONFINE = 125, 126


def landlock_version() -> int:
    """The Landlock version of this kernel; 0 means none."""
    if sys.platform != "linux":
        return 0
    answer: int = ctypes.CDLL(None, use_errno=True).syscall(CREATE_RULESET, None, 0, TELL_VERSION)
    return max(answer, 0)


def can_scope_signals_and_sockets(version: int) -> bool:
    """Whether signals and abstract sockets of programs outside can be blocked."""
    return version >= 6


def main() -> None:
    link, policy, script = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    _adopt_orphans()
    pid = _start(policy, script, own_mounts=True)
    if _mounts_were_refused(link, pid):
        _wait_for_end(link, _start(policy, script, own_mounts=False))
    end_all_children()


def _adopt_orphans() -> None:
    """Become the subreaper: orphans of descendants become our children, so that all can be ended."""
    _call("prctl", SET_SUBREAPER, 1, 0, 0, 0)


def _start(policy: dict[str, Any], script: list[str], *, own_mounts: bool) -> int:
    pid = os.fork()
    if pid != 0:
        return pid
    code = CANNOT_CONFINE
    try:
        _adopt_orphans()
        if own_mounts:
            code = NO_MOUNTS
            take_own_mounts(policy["temporary"], policy["write"], policy["read"])
            os.environ["TMPDIR"] = "/tmp"
            script = [*script, OWN_MOUNTS]
            code = CANNOT_CONFINE
        confine(policy)
        sys.argv = script
        runpy.run_path(script[0], run_name="__main__")
        # The process outside does this too, unless it was killed.
        end_all_children()
        code = 0
    except OSError as error:
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(code)


def take_own_mounts(temporary: str, writable: list[str], readable: list[str]) -> None:
    """Make everything read-only for this process except `writable`, with `temporary` as its /tmp."""
    _unshare_mounts()
    kept = [path for path in (*readable, *writable) if path in writable or path.startswith("/tmp/")]
    held = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in kept if os.path.exists(path)]  # noqa: PTH110
    shared = [folder for folder in SHARED_FOLDERS if Path(folder).is_dir()]
    for folder in shared:
        _call("mount", os.fsencode(temporary), folder.encode(), None, MOUNT_BIND, None)
    for path, descriptor in held:
        # The old /tmp is covered now; mount the path back under its old name.
        _make_mount_point(path, descriptor)
        source = f"/proc/self/fd/{descriptor}".encode()
        _call("mount", source, os.fsencode(path), None, MOUNT_BIND | MOUNT_RECURSIVE, None)
        os.close(descriptor)
    _set_read_only("/", True)
    for path in (*writable, *shared):
        _set_read_only(path, False)
    for path in kept:
        if path not in writable:
            _set_read_only(path, True)


def _unshare_mounts() -> None:
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None).unshare(NEW_MOUNTS) != 0:
        _call("unshare", NEW_MOUNTS | NEW_USERS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", None, b"/", None, MOUNT_RECURSIVE | MOUNT_PRIVATE, None)


def _make_mount_point(path: str, descriptor: int) -> None:
    if not path.startswith("/tmp/"):
        return
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        Path(path).mkdir(parents=True, exist_ok=True)
    else:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()


def _set_read_only(path: str, read_only: bool) -> None:
    attributes = struct.pack("=QQQQ", *((READ_ONLY, 0) if read_only else (0, READ_ONLY)), 0, 0)
    size = ctypes.c_size_t(len(attributes))
    _call("syscall", MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), RECURSIVELY, attributes, size)


def confine(policy: dict[str, Any]) -> None:
    """Confine this process and everything it starts."""
    drop_capabilities()
    _call("prctl", SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _restrict_files(policy)
    if policy["seccomp"]:
        install_filter(bytes.fromhex(policy["seccomp"]))


def drop_capabilities() -> None:
    """Drop all capabilities of root, also for programs started later."""
    for capability in range(64):
        if ctypes.CDLL(None).prctl(DROP_FROM_BOUNDING_SET, capability, 0, 0, 0) != 0:
            break
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    _call("capset", header, bytes(24))


def install_filter(program: bytes) -> None:
    steps = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(steps))
    _call("prctl", SET_SECCOMP, SECCOMP_FILTER, described, 0, 0)


def _restrict_files(policy: dict[str, Any]) -> None:
    version = landlock_version()
    handled = FIRST_RIGHTS
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        handled |= right if version >= since else 0
    ports = TCP_BIND | TCP_CONNECT if version >= 4 and not policy["network"] else 0
    scoped = ABSTRACT_SOCKETS | SIGNALS if can_scope_signals_and_sockets(version) else 0
    attributes = struct.pack("=QQQ", handled, ports, scoped)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _call("syscall", CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    read = READ_FILE | READ_DIR | EXECUTE
    rights = {
        "list": READ_DIR,
        "read": read,
        "write": handled & ~MAKE_DEVICES & ~IOCTL_DEV,
        "devices": READ_FILE | WRITE_FILE | IOCTL_DEV | TRUNCATE,
    }
    for kind, allowed in rights.items():
        for path in policy[kind]:
            _allow(ruleset, path, allowed & handled)
    _call("syscall", RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # What does not exist, or is inaccessible to us, cannot be used anyway.
    try:
        if not Path(path).is_dir():
            rights &= FILE_RIGHTS
        if rights:
            _call("syscall", ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _call(name: str, *arguments: Any) -> int:
    """Call the C library; raises OSError on failure."""
    library = ctypes.CDLL(None, use_errno=True)
    answer: int = library[name](*arguments)
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments[:1]}: {os.strerror(number)}")
    return answer


def _mounts_were_refused(link: int, pid: int) -> bool:
    """Wait for the end of the program; returns whether it failed because it could not get its own mounts."""
    _wait_for_end(link, pid)
    ended, status = os.waitpid(pid, os.WNOHANG)
    return ended == pid and os.waitstatus_to_exitcode(status) == NO_MOUNTS


def _wait_for_end(link: int, pid: int) -> None:
    """Returns when the program has ended or the other side is gone."""
    watch = select.poll()
    watch.register(os.pidfd_open(pid), select.POLLIN)
    watch.register(link, 0)
    watch.poll()


def end_all_children() -> None:
    """Kill every descendant; none is missed, because orphans become our children."""
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        for pid in _descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _descendants(ancestor: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                status = Path(entry.path, "stat").read_bytes()
            except OSError:
                continue
            parents.setdefault(int(status.rpartition(b")")[2].split()[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


if __name__ == "__main__":
    main()
