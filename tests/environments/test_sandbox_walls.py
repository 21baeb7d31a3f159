"""The walls of a sandbox: what programs in it cannot read, change, reach or become."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import toolcrib
from tests.environments.engine_runs import bash, run
from tests.environments.sandboxes import (
    MECHANISMS,
    SECRET,
    OpenSandbox,
    UserFolders,
    make_folders,
    opening,
    skip_without,
)
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.sandbox import SandboxEngine
from toolcrib.environments.sandboxing.policy import REFUSED_CALLS, parts_without, private_paths, seccomp_program

ASK_FOR_KEYS = "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(250, 0, -3, 0) < 0)"
# Each must fail inside. None of them would harm this machine if it did not.
ESCAPES = {
    "remove a file of the home": "rm {home}/notes.txt",
    "read a file of the home": "cat {home}/notes.txt",
    "read a private key": "cat {home}/.ssh/id_test",
    "read a private key through a link": "ln -sf {home}/.ssh link; cat link/id_test",
    "read a private key through /proc": "cat /proc/self/root{home}/.ssh/id_test",
    "link a private key into the workspace": "ln {home}/.ssh/id_test stolen",
    "write to /etc": "touch /etc/toolcrib-test",
    "write to /usr": "touch /usr/toolcrib-test",
    "write to the root folder": "touch /toolcrib-test",
    "read the passwords of the system": "cat /etc/shadow",
    "open a setting of the kernel": "exec 3>>/proc/sys/kernel/core_pattern",
    "open the disk": "cat /dev/vda /dev/sda | head -c 1 | grep -q .",
    "make a device": "mknod device c 1 1",
    "make a user namespace": "unshare --user true",
    "make a mount namespace": "unshare --mount true",
    "mount": "mkdir -p m; mount -t tmpfs none m",
    "become root": "su -c true root </dev/null || sudo -n true",
    "gain a capability": "grep -E '^Cap(Prm|Eff|Bnd):.*[1-9a-f]' /proc/self/status",
    "use the keys of the kernel": f"python3 -c '{ASK_FOR_KEYS}'",
}


@pytest.fixture
def folders(tmp_path: Path) -> UserFolders:
    return make_folders(tmp_path)


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return str(request.param)


@pytest.fixture
async def opened(folders: UserFolders, mechanism: str) -> AsyncIterator[OpenSandbox]:
    async with opening(folders, mechanism) as open_sandbox:
        yield open_sandbox


@pytest.fixture
async def sandbox(opened: OpenSandbox) -> SandboxEngine:
    return await opened()


async def test_escapes_fail(sandbox: SandboxEngine, folders: UserFolders) -> None:
    """Nothing outside the workspace can be changed, no secret read, no privilege gained."""
    succeeded = []
    for name, script in ESCAPES.items():
        code, printed = await run(sandbox, sandbox.shell, "-c", script.replace("{home}", str(folders.home)))
        if code == 0 or SECRET.encode() in printed:
            succeeded.append(name)

    assert succeeded == []
    assert not (folders.workspace / "stolen").exists()


async def test_the_home_stays_as_it_is(sandbox: SandboxEngine, folders: UserFolders) -> None:
    """What programs write to a path in the home is refused, or goes to the sandbox's own home."""
    home = folders.home
    script = f"cd {home}; echo x >notes.txt; echo x >new; mkdir -p .ssh; echo x >.ssh/authorized_keys; rm -rf .aws"

    await run(sandbox, sandbox.shell, "-c", script)

    assert (home / "notes.txt").read_text() == f"{SECRET}\n"
    assert sorted(path.name for path in home.iterdir()) == [".aws", ".ssh", "notes.txt", "project"]
    assert [path.name for path in (home / ".ssh").iterdir()] == ["id_test"]
    assert (home / ".aws/credentials").exists()


async def test_modes_of_files_elsewhere_cannot_be_changed(sandbox: SandboxEngine, folders: UserFolders) -> None:
    """An isolated sandbox guards modes and times of files too."""
    if not sandbox.isolated:
        pytest.skip(f"not isolated here: {sandbox.description}")
    key = folders.home / ".ssh/id_test"
    before = key.stat()

    await run(sandbox, sandbox.shell, "-c", f"chmod 777 {key}; touch -d 2001-01-01 {key}; chmod 0 {folders.home}")

    assert (key.stat().st_mode, key.stat().st_mtime) == (before.st_mode, before.st_mtime)
    assert folders.home.stat().st_mode & 0o700 == 0o700


async def test_our_own_variables_cannot_be_read(
    opened: OpenSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process outside shows its variables to programs inside."""
    with subprocess_with_secret() as other:
        sandbox = await opened()

        _, printed = await run(sandbox, sandbox.shell, "-c", f"cat /proc/{other.pid}/environ /proc/*/environ")

        other.kill()
    assert SECRET.encode() not in printed


async def test_processes_outside_cannot_be_signalled(sandbox: SandboxEngine) -> None:
    """Signals reach programs of the sandbox only."""
    with subprocess_with_secret() as other:
        code, _ = await run(sandbox, sandbox.shell, "-c", f"kill -TERM {other.pid}")

        assert other.poll() is None
        other.kill()
    assert code != 0


@pytest.mark.parametrize(("network", "reached"), [(False, False), (True, True)])
async def test_the_network_has_a_switch(opened: OpenSandbox, network: bool, reached: bool) -> None:
    """Without the network, not even this machine's own services can be reached."""
    sandbox = await opened(network=network)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        code, _ = await run(sandbox, sandbox.shell, "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}")

    assert (code == 0) == reached


@pytest.mark.parametrize("network", [False, True])
async def test_sockets_of_other_programs_cannot_be_reached(
    opened: OpenSandbox, folders: UserFolders, network: bool
) -> None:
    """A service that listens in the file system outside, as Docker does, is out of reach."""
    sandbox = await opened(network=network)
    with socket.socket(socket.AF_UNIX) as server:
        path = folders.home / "s"
        with contextlib.chdir(path.parent):  # Names of sockets are short.
            server.bind("s")
        server.listen()
        script = f"import os, socket; os.chdir({str(path.parent)!r}); socket.socket(socket.AF_UNIX).connect('s')"

        code, _ = await run(sandbox, "/usr/bin/env", "python3", "-c", script)

    assert code != 0


async def test_abstract_sockets_of_other_programs_cannot_be_reached(opened: OpenSandbox) -> None:
    """A socket without a file belongs to the network; sharing that does not share the socket."""
    sandbox = await opened(network=True)
    if not sandbox.isolated:
        pytest.skip(f"not isolated here: {sandbox.description}")
    name = f"toolcrib-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + {name!r})"

        code, _ = await run(sandbox, "/usr/bin/env", "python3", "-c", script)

    assert code != 0


async def test_odd_socket_families_are_refused(sandbox: SandboxEngine) -> None:
    """Sockets that reach past namespaces, such as to the machine's host, cannot be made."""
    script = "import socket; socket.socket(40, socket.SOCK_STREAM)"

    code, printed = await run(sandbox, "/usr/bin/env", "python3", "-c", script)

    assert code != 0, printed


async def test_secrets_in_a_workspace_are_hidden(folders: UserFolders) -> None:
    """With the whole home as workspace, bubblewrap hides its secrets, and the sandbox is not called isolated."""
    skip_without("bubblewrap")
    sandbox = SandboxEngine(folders.options(workspace=folders.home, use="bubblewrap"))
    await sandbox.open()
    try:
        assert await bash(sandbox, "cat notes.txt; cat .ssh/id_test .aws/credentials 2>/dev/null || echo hidden") == (
            f"{SECRET}\nhidden\n"
        )
        assert not sandbox.isolated
    finally:
        await sandbox.close()


async def test_landlock_refuses_a_workspace_with_secrets(folders: UserFolders) -> None:
    """Landlock cannot hide a part of what may be written, so it says no."""
    skip_without("landlock")
    sandbox = SandboxEngine(folders.options(workspace=folders.home, use="landlock"))

    with pytest.raises(EnvironmentFailed, match=r"\.ssh"):
        await sandbox.open()


@pytest.mark.parametrize("chosen", ["/", "/usr", "/tmp", "{home}/..", "{home}/.ssh", "{home}/nowhere"])
async def test_a_workspace_that_cannot_be_given_is_refused(folders: UserFolders, chosen: str) -> None:
    """System folders, all homes, secrets and what does not exist are no workspace."""
    place = Path(chosen.replace("{home}", str(folders.home)))

    with pytest.raises(EnvironmentFailed, match="choose"):
        await SandboxEngine(folders.options(workspace=place)).open()


@pytest.mark.parametrize("option", ["readable", "writable"])
async def test_secrets_cannot_be_granted(folders: UserFolders, option: str) -> None:
    """Folders of keys are never shown, not even when asked for."""
    with pytest.raises(EnvironmentFailed, match="secrets"):
        await SandboxEngine(folders.options(**{option: (folders.home / ".aws",)})).open()


def test_parts_that_only_root_may_read_are_found(tmp_path: Path) -> None:
    """What others may not read is left out, and everything else is kept in as few parts as possible."""
    for name in ("a/open", "a/closed", "b/open", "private/inside"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch(mode=0o644)
    (tmp_path / "a/closed").chmod(0o640)
    (tmp_path / "private").chmod(0o700)
    closed = [tmp_path / "a/closed", tmp_path / "private"]

    assert list(private_paths(tmp_path, 9)) == (closed if os.geteuid() == 0 else [])
    assert list(parts_without(tmp_path, closed)) == [tmp_path / "a/open", tmp_path / "b"]


def test_system_calls_have_the_numbers_that_this_kernel_gives_them() -> None:
    """The list of refused calls agrees with the headers of this system, where they are installed."""
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if platform.machine() != "x86_64" or not header.exists():
        pytest.skip("no headers of the kernel for x86_64 here")
    known = dict(line.split()[1:3] for line in header.read_text().splitlines() if line.startswith("#define __NR_"))

    for name, (number, _) in REFUSED_CALLS.items():
        assert known.get(f"__NR_{name}", str(number)) == str(number), name


def test_an_unknown_processor_has_no_filter() -> None:
    """Numbers of system calls differ between processors; for others there is no list."""
    assert seccomp_program("pdp11", sockets=()) is None
    assert seccomp_program("aarch64", sockets=()) is not None


OPEN_AND_TELL = """
import asyncio, ctypes, json, os, platform, sys
from pathlib import Path
from toolcrib.environments.backends.sandbox import SandboxEngine, SandboxOptions
from toolcrib.environments.sandboxing.landlock import install_filter
from toolcrib.environments.sandboxing.policy import seccomp_program

async def main():
    use, home, without_namespaces = sys.argv[1:]
    if without_namespaces == "yes":
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
        install_filter(seccomp_program(platform.machine(), sockets=(1, 2, 10, 16)))
    workspace = Path(home, "project")
    engine = SandboxEngine(SandboxOptions(workspace=workspace, home=Path(home), use=use, temporary=Path(home)))
    await engine.open()
    printed = bytearray()
    script = f"id -u; echo x >new && echo wrote; cat {home}/.ssh/id_test; touch {home}/new; touch $TMPDIR/t && echo t"
    process = await engine.spawn([engine.shell, "-c", script], on_output=printed.extend)
    await process.wait()
    await process.abandon()
    told = {"in_force": engine.description, "isolated": engine.isolated, "printed": printed.decode(),
            "temporary": engine.temporary, "owner": (workspace / "new").stat().st_uid}
    await engine.close()
    print(json.dumps(told))

asyncio.run(main())
"""


@pytest.mark.parametrize("use", MECHANISMS)
@pytest.mark.services
def test_an_unprivileged_user_has_the_same_walls(use: str, tmp_path: Path) -> None:
    """A user without privileges gets a sandbox just as root does."""
    skip_without(use)
    if os.geteuid() != 0:
        pytest.skip("the other tests run as an unprivileged user already")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = shutil.which(version, path="/usr/bin:/usr/local/bin")
    if python is None or shutil.which("setpriv") is None:
        pytest.skip(f"no {version} that another user could run, or no setpriv")
    told = _told_by(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python], use, owner=65534)

    assert told["in_force"].lower().startswith(use)
    assert told["isolated"]
    assert told["printed"].splitlines()[:2] == ["65534", "wrote"]
    assert SECRET not in told["printed"]
    assert told["printed"].endswith("t\n")
    assert told["owner"] == 65534


@pytest.mark.services
def test_without_namespaces_landlock_takes_over_and_says_what_it_lacks() -> None:
    """Where the kernel refuses namespaces, files and secrets are still guarded; the gap is told."""
    skip_without("landlock")
    told = _told_by([sys.executable], "auto", without_namespaces=True)

    assert told["in_force"].startswith("Landlock")
    assert "not protected" in told["in_force"]
    assert not told["isolated"]
    assert told["temporary"] != "/tmp"
    assert "wrote" in told["printed"]
    assert SECRET not in told["printed"]
    assert told["printed"].endswith("t\n")


def _told_by(
    python: list[str], use: str, *, owner: int | None = None, without_namespaces: bool = False
) -> dict[str, Any]:
    """What another process says of the sandbox that it opened, in a home of its own."""
    parent = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    try:
        folders = make_folders(parent)
        # Another user may not be able to read this repository, nor the packages in its environment.
        for package in (Path(toolcrib.__file__).parent, Path(msgspec.__file__).parent):
            without_bytecode = shutil.ignore_patterns("__pycache__")
            shutil.copytree(package, parent / "packages" / package.name, ignore=without_bytecode)
        if owner is not None:
            for path in (parent, *parent.rglob("*")):
                os.chown(path, owner, owner)
        arguments = [use, str(folders.home), "yes" if without_namespaces else "no"]
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(parent / "packages"), "PYTHONDONTWRITEBYTECODE": "1"}
        ended = subprocess.run(
            [*python, "-c", OPEN_AND_TELL, *arguments],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert ended.returncode == 0, ended.stderr
        assert not (folders.home / "new").exists()
        told: dict[str, Any] = json.loads(ended.stdout)
        return told
    finally:
        shutil.rmtree(parent)


def subprocess_with_secret() -> subprocess.Popen[bytes]:
    """A process outside that carries a secret among its variables."""
    return subprocess.Popen(["sleep", "1000"], env={"TOKEN": SECRET, "PATH": os.environ["PATH"]})
