"""What a sandbox may see and do: the workspace to write, the system to read, none of the user's secrets.

The rules as a seccomp program, as a Landlock policy, and as arguments of bubblewrap.
"""

from __future__ import annotations

import errno
import os
import platform
import pwd
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.sandboxing.landlock import landlock_version

LOAD_WORD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, JUMP_IF_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE_WITH = 0x7FFF0000, 0x00050000
# Offsets in the kernel's `struct seccomp_data`; arguments are 64 bits wide, low half first.
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
X32_CALLS = 0x40000000
NAMESPACE_FLAGS = 0x7E020000
TYPE_INTO_A_TERMINAL, PASTE_INTO_A_CONSOLE = 0x5412, 0x541C

LOCAL_SOCKETS = frozenset({int(socket.AF_UNIX)})
# Netlink lists the addresses of this machine; name resolution needs it.
NETWORK_SOCKETS = frozenset({int(socket.AF_INET), int(socket.AF_INET6), 16})


class _Machine(Struct, frozen=True):
    audit_name: int
    clone: int
    clone3: int
    ioctl: int
    prlimit64: int
    socket: int
    refused: tuple[int, ...]


# name: number on x86_64, on aarch64
REFUSED_CALLS: dict[str, tuple[int | None, int | None]] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "userfaultfd": (323, 282),
    # A ring performs calls that this filter never sees.
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "lookup_dcookie": (212, 18),
    "ioperm": (173, None),
    "iopl": (172, None),
    "modify_ldt": (154, None),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "kcmp": (312, 272),
    "vhangup": (153, 58),
}

_MACHINES = {
    "x86_64": _Machine(
        audit_name=0xC000003E,
        clone=56,
        clone3=435,
        ioctl=16,
        prlimit64=302,
        socket=41,
        refused=tuple(x86 for x86, _ in REFUSED_CALLS.values() if x86 is not None),
    ),
    "aarch64": _Machine(
        audit_name=0xC00000B7,
        clone=220,
        clone3=435,
        ioctl=29,
        prlimit64=261,
        socket=198,
        refused=tuple(arm for _, arm in REFUSED_CALLS.values() if arm is not None),
    ),
}


def seccomp_program(machine: str, *, sockets: Collection[int]) -> bytes | None:
    """The seccomp filter for this processor, allowing only these socket families; None for an unknown processor."""
    known = _MACHINES.get(machine)
    if known is None:
        return None
    refuse, unknown = _result(errno.EPERM), _result(errno.ENOSYS)
    program = [
        _step(LOAD_WORD, ARCHITECTURE),
        # A program for another processor has other call numbers.
        _step(JUMP_IF_EQUAL, known.audit_name, then=1),
        unknown,
        _step(LOAD_WORD, NUMBER),
    ]
    if machine == "x86_64":
        program += [_step(JUMP_IF_AT_LEAST, X32_CALLS, otherwise=1), unknown]
    for number in known.refused:
        program += [_step(JUMP_IF_EQUAL, number, otherwise=1), refuse]
    # Its flags are behind a pointer, where no filter sees them; the C library falls back to `clone`.
    program += [_step(JUMP_IF_EQUAL, known.clone3, otherwise=1), unknown]
    program += _when(
        known.clone, [_step(LOAD_WORD, FIRST_ARGUMENT), _step(JUMP_IF_ANY_BIT, NAMESPACE_FLAGS, otherwise=1), refuse]
    )
    # Only its own limits: changing those of another process can kill it.
    own = [_step(LOAD_WORD, FIRST_ARGUMENT), _step(JUMP_IF_EQUAL, 0, then=1), refuse]
    program += _when(known.prlimit64, own)
    terminal_tricks = [_step(LOAD_WORD, SECOND_ARGUMENT)]
    for request in (TYPE_INTO_A_TERMINAL, PASTE_INTO_A_CONSOLE):
        terminal_tricks += [_step(JUMP_IF_EQUAL, request, otherwise=1), refuse]
    program += _when(known.ioctl, terminal_tricks)
    families = [_step(LOAD_WORD, FIRST_ARGUMENT)]
    for family in sorted(sockets):
        families += [_step(JUMP_IF_EQUAL, family, otherwise=1), _step(RETURN, ALLOW)]
    program += _when(known.socket, [*families, _result(errno.EACCES)])
    return b"".join([*program, _step(RETURN, ALLOW)])


def _when(number: int, steps: list[bytes]) -> list[bytes]:
    """Steps for one system call, which is allowed if they do not decide."""
    return [_step(JUMP_IF_EQUAL, number, otherwise=len(steps) + 1), *steps, _step(RETURN, ALLOW)]


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _result(error: int) -> bytes:
    return _step(RETURN, REFUSE_WITH | error)


SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store")
SYSTEM_FOLDERS_ELSEWHERE = ("/run/current-system",)
# How deep to search for what only root may read.
PRIVATE_DEPTHS = {"/etc": 16, "/opt": 2}
NEVER_A_WORKSPACE = ("/proc", "/sys", "/dev", "/run", "/boot", "/home", "/tmp", "/var", *SYSTEM_FOLDERS)

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
HOME_OF_NOBODY = Path("/tmp/home")

# Programs that people install in their homes, without the settings and keys beside them.
TOOLCHAINS = (
    ".local/bin",
    ".local/share/uv/python",
    ".local/share/uv/tools",
    ".local/pipx/venvs",
    ".local/share/pipx/venvs",
    ".cargo/bin",
    ".rustup/toolchains",
    ".pyenv",
    ".nvm/versions",
    ".volta/bin",
    ".volta/tools",
    ".bun/bin",
    ".deno/bin",
    ".sdkman/candidates",
    "go/bin",
)

SECRETS = (
    ".toolcrib",
    ".hermes",
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".oci",
    ".terraform.d",
    ".config/gcloud",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".config/op",
    ".config/rclone",
    ".config/doctl",
    ".config/git/credentials",
    ".config/google-chrome",
    ".config/chromium",
    ".mozilla",
    ".thunderbird",
    ".password-store",
    ".local/share/keyrings",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".vault-token",
    ".git-credentials",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".bash_history",
    ".zsh_history",
    ".python_history",
)


class VisibleFiles(Struct, frozen=True, kw_only=True):
    """The parts of this machine that programs see. No path contains symbolic links."""

    workspace: Path
    home: Path
    writable: tuple[Path, ...]
    """The workspace and the folders that the user added."""
    readable: tuple[Path, ...]
    hidden: tuple[Path, ...]
    """Hidden parts of what is visible."""
    whole_home: bool
    """The user's whole home is visible, except for the usual secrets."""


def visible_files(
    workspace: Path, home: Path | None, writable: Sequence[Path], readable: Sequence[Path], secrets: Sequence[Path]
) -> VisibleFiles:
    """Decide what programs see; raises EnvironmentFailed for a folder that cannot be granted."""
    home = _home(home)
    workspace = workspace.expanduser().resolve()
    all_secrets = [path.resolve() for path in (*(home / name for name in SECRETS), *secrets)]
    granted_to_write = _unique([workspace, *(path.expanduser().resolve() for path in writable)])
    granted_to_read = [path.expanduser().resolve() for path in readable]
    for path in granted_to_write:
        _check_folder(path)
    for path in (*granted_to_write, *granted_to_read):
        if path == Path("/") or (path != home and home.is_relative_to(path)):
            raise EnvironmentFailed(f"{str(path)!r} is too broad for a sandbox; choose a project folder")
        for secret in all_secrets:
            if path.is_relative_to(secret):
                raise EnvironmentFailed(
                    f"{str(path)!r} contains secrets and is never shown in a sandbox; choose another folder"
                )
    tools = [home / name for name in TOOLCHAINS if (home / name).is_dir()]
    shown = [*granted_to_read, *tools, *_own_python(), *_name_servers()]
    seen = [*granted_to_write, *shown]
    inside = [secret for secret in all_secrets if secret.exists() and any(secret.is_relative_to(path) for path in seen)]
    closed = [part for folder, depth in PRIVATE_DEPTHS.items() for part in private_paths(Path(folder), depth)]
    return VisibleFiles(
        workspace=workspace,
        home=home,
        writable=tuple(granted_to_write),
        readable=tuple(path for path in _unique(shown) if path.exists() and path not in granted_to_write),
        hidden=tuple(_unique([*inside, *closed])),
        whole_home=any(home.is_relative_to(path) for path in (*granted_to_write, *granted_to_read)),
    )


def landlock_policy(visible: VisibleFiles, scratch: Path, *, network: bool, spawner: Path) -> dict[str, object]:
    """The policy for the launcher; raises EnvironmentFailed where Landlock is not sufficient."""
    if landlock_version() == 0:
        raise EnvironmentFailed("this kernel does not support Landlock, or it is disabled")
    exposed = [path for path in visible.hidden if any(path.is_relative_to(folder) for folder in visible.writable)]
    if exposed:
        raise EnvironmentFailed(f"it cannot hide {str(exposed[0])!r} inside a writable folder")
    # Landlock does not restrict sockets in the file system, such as that of Docker.
    seccomp = seccomp_program(platform.machine(), sockets=NETWORK_SOCKETS if network else ())
    if seccomp is None:
        raise EnvironmentFailed(f"it needs seccomp, which does not support {platform.machine()!r}")
    folders = [*(folder.resolve() for folder in system_folders()), *visible.readable]
    shown = [part for folder in folders for part in parts_without(folder, visible.hidden)]
    return {
        "list": [str(path) for path in folders],
        "read": [*map(str, shown), "/proc", str(spawner)],
        "write": [str(path) for path in (*visible.writable, scratch / "tmp", scratch / "home")],
        "temporary": str(scratch / "tmp"),
        "devices": DEVICES,
        "network": network,
        "seccomp": seccomp.hex(),
    }


def system_folders() -> list[Path]:
    return [Path(name) for name in (*SYSTEM_FOLDERS, *SYSTEM_FOLDERS_ELSEWHERE) if Path(name).exists()]


def private_paths(folder: Path, depth: int) -> Iterator[Path]:
    """Paths that only their owner may read. Root owns nearly all of them, and root in a sandbox is still root."""
    if os.geteuid() == 0:
        yield from map(Path, _private_names(str(folder), depth))


def _private_names(folder: str, depth: int) -> Iterator[str]:
    # Of names and not of paths: /etc has thousands, and each sandbox looks at all of them.
    if depth == 0:
        return
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():
            continue
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if mode & stat.S_IXOTH and mode & stat.S_IROTH:
                yield from _private_names(entry.path, depth - 1)
            else:
                yield entry.path
        elif stat.S_ISREG(mode) and not mode & stat.S_IROTH:
            yield entry.path


def parts_without(folder: Path, hidden: Sequence[Path]) -> Iterator[Path]:
    """The largest parts of a folder that contain nothing hidden."""
    names = {str(path) for path in hidden}
    above = {str(parent) for path in hidden for parent in path.parents}
    yield from map(Path, _names_without(str(folder), names, above))


def _names_without(folder: str, hidden: set[str], above: set[str]) -> Iterator[str]:
    if folder in hidden:
        return
    if folder not in above:
        yield folder
        return
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if not entry.is_symlink():
            yield from _names_without(entry.path, hidden, above)


def _home(given: Path | None) -> Path:
    try:
        home = (given or Path(pwd.getpwuid(os.geteuid()).pw_dir)).resolve()
    except KeyError:
        return HOME_OF_NOBODY  # Containers may run as ids without a user.
    return home if home != Path("/") else HOME_OF_NOBODY


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise EnvironmentFailed(
            f"the folder {str(path)!r} for the sandbox does not exist; create it, or choose another"
        )
    if str(path) in NEVER_A_WORKSPACE:
        raise EnvironmentFailed(f"{str(path)!r} is too broad for a sandbox; choose a project folder")


def _own_python() -> list[Path]:
    """The Python that runs us; the spawner inside needs it too."""
    prefixes = {Path(sys.base_prefix).resolve(), Path(sys.base_exec_prefix).resolve()}
    return [prefix for prefix in sorted(prefixes) if not _is_of_system(prefix)]


def _name_servers() -> list[Path]:
    """The resolver configuration, if it is outside /etc."""
    file = Path("/etc/resolv.conf").resolve()
    return [file] if file.is_file() and not _is_of_system(file) else []


def _is_of_system(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in SYSTEM_FOLDERS)


def _unique(paths: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys(paths))


SPAWNER_INSIDE = "/run/toolcrib/spawner.py"
ANSWER_SECONDS = 5


def find_bubblewrap() -> tuple[str, tuple[int, ...]] | None:
    """The program and its version; None if it is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb"(\d+)\.(\d+)\.(\d+)", answer.stdout)
    return (program, tuple(int(part) for part in found.groups())) if found else None


def bubblewrap_problem(program: str) -> str:
    """Why bubblewrap cannot create namespaces here; empty if it can."""
    arguments = [program, "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        answer = subprocess.run(arguments, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if answer.returncode == 0 else answer.stderr.decode(errors="replace").strip() or "it failed"


def bubblewrap_arguments(
    version: tuple[int, ...],
    visible: VisibleFiles,
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
    arguments += _mount_arguments(visible, scratch)
    for path in visible.hidden:
        arguments += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
    # Root in a sandbox is still root: without this it could change kernel settings in /proc/sys.
    read_only = [word for folder in ("/proc", "/dev", "/") for word in ("--remount-ro", folder)]
    return [*arguments, *read_only, "--chdir", str(visible.workspace), "--"]


def _mount_arguments(visible: VisibleFiles, scratch: Path) -> Sequence[str]:
    """The mounts on top of the system: outer folders first, so that none covers an inner one."""
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
