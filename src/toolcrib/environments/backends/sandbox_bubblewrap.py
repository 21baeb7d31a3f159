"""A sandbox by bubblewrap: namespaces of its own, with only chosen parts of this machine mounted."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from toolcrib.environments.backends.sandbox_policy import Visible, system_folders

SPAWNER_INSIDE = "/run/toolcrib/spawner.py"
ANSWER_SECONDS = 5


def find_bubblewrap() -> tuple[str, tuple[int, ...]] | None:
    """The program and its version; None where it is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb"(\d+)\.(\d+)\.(\d+)", answer.stdout)
    return (program, tuple(int(part) for part in found.groups())) if found else None


def bubblewrap_trial(program: str) -> str:
    """Why bubblewrap cannot make namespaces here; empty if it can."""
    arguments = [program, "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        answer = subprocess.run(arguments, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if answer.returncode == 0 else answer.stderr.decode(errors="replace").strip() or "it failed"


def bubblewrap_arguments(
    version: tuple[int, ...],
    visible: Visible,
    *,
    scratch: Path,
    network: bool,
    shared_memory_bytes: int,
    seccomp: int | None,
    spawner: Path,
) -> list[str]:
    """Everything between `bwrap` and the program to run."""
    arguments = ["--unshare-all", "--unshare-user", "--die-with-parent", "--as-pid-1", "--new-session"]
    arguments += ["--cap-drop", "ALL", "--hostname", "sandbox"]
    if network:
        arguments.append("--share-net")
    if version >= (0, 8, 0):
        arguments.append("--disable-userns")
    if seccomp is not None:
        arguments += ["--seccomp", str(seccomp)]
    arguments += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--dir",
        "/run",
        "--dir",
        "/var",
        "--symlink",
        "../tmp",
        "/var/tmp",
    ]
    for folder in system_folders():
        if folder.is_symlink():
            arguments += ["--symlink", str(folder.readlink()), str(folder)]
        else:
            arguments += ["--ro-bind", str(folder), str(folder)]
    if shared_memory_bytes and version >= (0, 7, 0):
        arguments += ["--size", str(shared_memory_bytes)]
    arguments += ["--tmpfs", "/dev/shm"]
    arguments += ["--ro-bind", str(spawner), SPAWNER_INSIDE]
    arguments += _mounts(visible, scratch)
    for path in visible.hidden:
        arguments += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
    # Root's sandbox is still root's: without this it could write to the settings of the kernel in /proc/sys.
    read_only = [word for folder in ("/proc", "/dev", "/") for word in ("--remount-ro", folder)]
    return [*arguments, *read_only, "--chdir", str(visible.workspace), "--"]


def _mounts(visible: Visible, scratch: Path) -> Sequence[str]:
    """What is mounted on top of the system: outer folders first, so that none covers one inside it."""
    mounts: dict[Path, tuple[str, Path]] = {
        Path("/tmp"): ("--bind", scratch / "tmp"),
        visible.home: ("--bind", scratch / "home"),
    }
    mounts |= {path: ("--ro-bind", path) for path in visible.readable}
    mounts |= {path: ("--bind", path) for path in visible.writable}
    arguments: list[str] = []
    for target in sorted(mounts, key=lambda path: len(path.parts)):
        how, source = mounts[target]
        arguments += [how, str(source), str(target)]
    return arguments
