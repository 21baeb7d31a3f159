"""Runs `toolcrib` under a bad condition of the machine. A program: CONDITION FOLDER ARGUMENTS….

FOLDER holds `home`, the home of the user, and `work`, the folder to start in. What a condition changes (mounts, limits,
capabilities, descriptors) is gone with the process, except for permissions.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_RDONLY, MS_REMOUNT, MS_REC, MS_PRIVATE = 1, 32, 16384, 1 << 18
CAPABILITY_VERSION = 0x20080522
FILE_CAPABILITIES = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
UNAVAILABLE = 77
"""The exit code where this machine cannot produce the condition."""


def deleted_folder(folder: Path) -> None:
    (folder / "work").rename(folder / "renamed")
    shutil.rmtree(folder / "renamed")


def full_stdout(_: Path) -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def closed_stdout(_: Path) -> None:
    os.close(1)
    sys.stdout = None  # type: ignore[assignment] - as Python itself has it then


def full_stderr(_: Path) -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)


def home_is_a_file(folder: Path) -> None:
    shutil.rmtree(folder / "home")
    (folder / "home").write_text("a file is in the way")


def home_inside_a_file(folder: Path) -> None:
    home_is_a_file(folder)
    os.environ["TOOLCRIB_HOME"] = str(folder / "home" / "below")


def forbidden_home(folder: Path) -> None:
    (folder / "home").chmod(0)
    _obey_permissions()


def read_only_home(folder: Path) -> None:
    for path in ((folder / "home"), *(folder / "home").rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    _obey_permissions()


def read_only_disk(folder: Path) -> None:
    _mount_over(folder / "home", "")
    _call("mount", b"none", os.fsencode(folder / "home"), None, MS_REMOUNT | MS_RDONLY, None)


def full_disk(folder: Path) -> None:
    """A disk with a few bytes left: a file can be created, but not filled."""
    _mount_over(folder / "home", "size=4M")
    _fill(folder / "home")


def full_disk_of_the_workspace(folder: Path) -> None:
    _mount_over(folder / "work", "size=64k")
    os.chdir(folder / "work")
    _fill(folder / "work")


def no_file_may_grow(_: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


CONDITIONS: dict[str, Callable[[Path], None]] = {
    one.__name__: one
    for one in (
        deleted_folder,
        full_stdout,
        closed_stdout,
        full_stderr,
        home_is_a_file,
        home_inside_a_file,
        forbidden_home,
        read_only_home,
        read_only_disk,
        full_disk,
        full_disk_of_the_workspace,
        no_file_may_grow,
    )
}


def _fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))


def _obey_permissions() -> None:
    """Root reads and writes everything, unless it gives up two capabilities."""
    if os.geteuid() != 0:
        return
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()
    _call("capget", header, data)
    for kind in (0, 1):  # effective and permitted
        data[kind] &= ~FILE_CAPABILITIES
    _call("capset", header, data)


def _mount_over(folder: Path, options: str) -> None:
    """Move a folder to a small disk of its own, which only this process sees."""
    if os.geteuid() != 0:
        sys.exit(UNAVAILABLE)
    content = folder.with_name(f"{folder.name}-content")
    folder.rename(content)
    folder.mkdir()
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options.encode())
    shutil.copytree(content, folder, dirs_exist_ok=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        sys.stderr.write(f"{name}: {os.strerror(ctypes.get_errno())}\n")
        sys.exit(UNAVAILABLE)


def main() -> None:
    condition, folder, *arguments = sys.argv[1:]
    os.chdir(Path(folder) / "work")
    CONDITIONS[condition](Path(folder))
    sys.argv = ["toolcrib", *arguments]
    runpy.run_module("toolcrib", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
