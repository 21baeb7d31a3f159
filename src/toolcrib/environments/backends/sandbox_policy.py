"""What a sandbox shows of this machine: the workspace to write to, the system to read, none of the user's secrets."""

from __future__ import annotations

import os
import platform
import pwd
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.sandbox_landlock import landlock_version
from toolcrib.environments.backends.sandbox_seccomp import NETWORK_SOCKETS, seccomp_program

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store")
SYSTEM_FOLDERS_ELSEWHERE = ("/run/current-system",)
# How deep to look for what only root may read: everywhere in /etc; elsewhere, where it is usual to keep such things.
DEPTH_OF_CLOSED_PARTS = {"/etc": 16, "/opt": 2}
NEVER_A_WORKSPACE = ("/proc", "/sys", "/dev", "/run", "/boot", "/home", "/tmp", "/var", *SYSTEM_FOLDERS)

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
HOME_OF_NOBODY = Path("/tmp/home")

# Programs that people install in their homes, without the settings and keys that lie beside them.
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


class Visible(Struct, frozen=True, kw_only=True):
    """Which parts of this machine programs see. Every path is without symbolic links."""

    workspace: Path
    home: Path
    writable: tuple[Path, ...]
    """The workspace and what the user added."""
    readable: tuple[Path, ...]
    hidden: tuple[Path, ...]
    """Parts of what is visible that are not."""
    whole_home: bool
    """The user's home is shown as it is, with whatever it holds besides the usual secrets."""


def what_is_visible(
    workspace: Path, home: Path | None, writable: Sequence[Path], readable: Sequence[Path], secrets: Sequence[Path]
) -> Visible:
    """Decide what programs see; raises EnvironmentFailed for what cannot be granted."""
    home = _home(home)
    workspace = workspace.expanduser().resolve()
    all_secrets = [place.resolve() for place in (*(home / name for name in SECRETS), *secrets)]
    granted_to_write = _unique([workspace, *(path.expanduser().resolve() for path in writable)])
    granted_to_read = [path.expanduser().resolve() for path in readable]
    for path in granted_to_write:
        _check_folder(path)
    for path in (*granted_to_write, *granted_to_read):
        if path == Path("/") or (path != home and home.is_relative_to(path)):
            raise EnvironmentFailed(f"{str(path)!r} is too much to give to a sandbox; choose the folder of a project")
        for secret in all_secrets:
            if path.is_relative_to(secret):
                raise EnvironmentFailed(
                    f"{str(path)!r} holds secrets and is never shown in a sandbox; choose another folder"
                )
    tools = [home / name for name in TOOLCHAINS if (home / name).is_dir()]
    shown = [*granted_to_read, *tools, *_own_python(), *_name_servers()]
    seen = [*granted_to_write, *shown]
    inside = [secret for secret in all_secrets if secret.exists() and any(secret.is_relative_to(path) for path in seen)]
    closed = [part for folder, depth in DEPTH_OF_CLOSED_PARTS.items() for part in closed_parts(Path(folder), depth)]
    return Visible(
        workspace=workspace,
        home=home,
        writable=tuple(granted_to_write),
        readable=tuple(path for path in _unique(shown) if path.exists() and path not in granted_to_write),
        hidden=tuple(_unique([*inside, *closed])),
        whole_home=any(home.is_relative_to(path) for path in (*granted_to_write, *granted_to_read)),
    )


def landlock_policy(visible: Visible, scratch: Path, *, network: bool, spawner: Path) -> dict[str, object]:
    """What the launcher is told; raises EnvironmentFailed where Landlock is not enough."""
    if landlock_version() == 0:
        raise EnvironmentFailed("this kernel has no Landlock, or it is switched off")
    exposed = [path for path in visible.hidden if any(path.is_relative_to(place) for place in visible.writable)]
    if exposed:
        raise EnvironmentFailed(f"it cannot hide {str(exposed[0])!r} within a folder that may be written to")
    # Landlock does not guard sockets that have a name in the file system, such as that of Docker.
    seccomp = seccomp_program(platform.machine(), sockets=NETWORK_SOCKETS if network else ())
    if seccomp is None:
        raise EnvironmentFailed(f"it is not enough without seccomp, which has no list for {platform.machine()!r}")
    places = [*(place.resolve() for place in system_folders()), *visible.readable]
    shown = [part for place in places for part in open_parts(place, visible.hidden)]
    return {
        "list": [str(path) for path in places],
        "read": [*map(str, shown), "/proc", str(spawner)],
        "write": [str(path) for path in (*visible.writable, scratch / "tmp", scratch / "home")],
        "temporary": str(scratch / "tmp"),
        "devices": DEVICES,
        "network": network,
        "seccomp": seccomp.hex(),
    }


def system_folders() -> list[Path]:
    return [Path(name) for name in (*SYSTEM_FOLDERS, *SYSTEM_FOLDERS_ELSEWHERE) if Path(name).exists()]


def closed_parts(folder: Path, depth: int) -> Iterator[Path]:
    """What only its owner may read. Root owns nearly all of it, and a sandbox of root's is still root's."""
    if os.geteuid() != 0 or depth == 0:
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        mode = entry.lstat().st_mode
        if stat.S_ISDIR(mode):
            if mode & stat.S_IXOTH and mode & stat.S_IROTH:
                yield from closed_parts(entry, depth - 1)
            else:
                yield entry
        elif stat.S_ISREG(mode) and not mode & stat.S_IROTH:
            yield entry


def open_parts(folder: Path, hidden: Sequence[Path]) -> Iterator[Path]:
    """The largest parts of a folder that hold nothing hidden."""
    if folder in hidden:
        return
    if not any(path.is_relative_to(folder) for path in hidden):
        yield folder
        return
    for entry in sorted(folder.iterdir()):
        if not entry.is_symlink():
            yield from open_parts(entry, hidden)


def _home(given: Path | None) -> Path:
    try:
        home = (given or Path(pwd.getpwuid(os.geteuid()).pw_dir)).resolve()
    except KeyError:
        return HOME_OF_NOBODY  # Containers run as numbers that no user has.
    return home if home != Path("/") else HOME_OF_NOBODY


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise EnvironmentFailed(f"there is no folder {str(path)!r} to give to the sandbox; make it, or choose another")
    if str(path) in NEVER_A_WORKSPACE:
        raise EnvironmentFailed(f"{str(path)!r} is too much to give to a sandbox; choose the folder of a project")


def _own_python() -> list[Path]:
    """The Python that runs us, which serves inside too."""
    prefixes = {Path(sys.base_prefix).resolve(), Path(sys.base_exec_prefix).resolve()}
    return [prefix for prefix in sorted(prefixes) if not _is_of_system(prefix)]


def _name_servers() -> list[Path]:
    """Where names are looked up, if that is kept outside of /etc."""
    file = Path("/etc/resolv.conf").resolve()
    return [file] if file.is_file() and not _is_of_system(file) else []


def _is_of_system(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in SYSTEM_FOLDERS)


def _unique(paths: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys(paths))
