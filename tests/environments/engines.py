"""The engines that `scripts/test-services up` has started, as the tests reach them; a missing one skips the test.

Containers get no network: the engines here have none to give, and podman would change the host's to make one.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

STATE_FILE = Path(__file__).parents[2] / ".services" / "env"

IMAGE = "toolcrib-test:latest"
"""In docker and podman: bash and the usual programs; the users are root and tester (1000)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Podman:
    program: Path
    """A script that names the storage and settings of this podman; needs no variables."""
    host: str
    """Its docker-compatible socket, as a DOCKER_HOST."""
    containers_conf: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SshServer:
    host: str
    port: int
    user: str
    """An ordinary user, whose home was empty at first; other tests use it too."""
    key: Path
    known_hosts: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Apptainer:
    program: Path
    image: Path
    """An unpacked image, a folder."""
    sif: Path | None
    """The same as one file, where that could be made."""


def docker_host() -> str:
    """The DOCKER_HOST of the running engine."""
    host = _state("docker").get("DOCKER_HOST", "")
    if not _listens(host):
        _skip("docker", "no engine")
    return host


def podman() -> Podman:
    state = _state("podman")
    program, host = Path(state.get("PODMAN", "")), state.get("PODMAN_HOST", "")
    if not program.is_file() or not _listens(host):
        _skip("podman", "not set up")
    return Podman(program=program, host=host, containers_conf=Path(state["CONTAINERS_CONF"]))


def ssh_server() -> SshServer:
    state = _state("ssh")
    try:
        host, port = state["SSH_HOST"], int(state["SSH_PORT"])
        socket.create_connection((host, port), timeout=5).close()
    except (KeyError, OSError):
        _skip("ssh", "no server")
    return SshServer(
        host=host,
        port=port,
        user=state["SSH_USER"],
        key=Path(state["SSH_KEY"]),
        known_hosts=Path(state["SSH_KNOWN_HOSTS"]),
    )


def sudo_password() -> str:
    """What sudo wants from the user of the ssh server."""
    password = _state("sudo").get("SUDO_PASSWORD", "")
    if not password:
        _skip("sudo", "not set up")
    return password


def apptainer() -> Apptainer:
    """Its tests are marked `may_skip`: it comes from a source that moves, so it may be missing where all else is up."""
    state = _state("apptainer")
    program, image, sif = Path(state.get("APPTAINER", "")), state.get("APPTAINER_IMAGE"), state.get("APPTAINER_SIF")
    if not image or not _succeeds([program, "--version"]):
        _skip("apptainer", "not set up")
    return Apptainer(program=program, image=Path(image), sif=Path(sif) if sif else None)


def bubblewrap() -> Path:
    program = shutil.which("bwrap")
    if program is None:
        _skip("bubblewrap", "not installed")
    if not _succeeds([program, "--ro-bind", "/", "/", "--unshare-all", "true"]):
        _skip("bubblewrap", "cannot make a sandbox here")
    return Path(program)


def terminal_settings(backend: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The settings under `terminal` that let commands run in this backend; skips where it is not started."""
    if backend == "docker":
        monkeypatch.setenv("DOCKER_HOST", docker_host())
        return {"backend": "docker", "docker": {"image": IMAGE, "network": False}}
    if backend == "ssh":
        pytest.importorskip("asyncssh")
        server = ssh_server()
        where = {"host": server.host, "port": server.port, "user": server.user, "key": str(server.key)}
        return {"backend": "ssh", "ssh": {**where, "known_hosts": str(server.known_hosts)}}
    return {"backend": backend}


def _state(service: str) -> Mapping[str, str]:
    """What the state file says, its names without their prefix."""
    try:
        text = STATE_FILE.read_text()
    except FileNotFoundError:
        _skip(service, "not started")
    lines = (shlex.split(line)[0].partition("=") for line in text.splitlines() if line)
    return {name.removeprefix("TOOLCRIB_TEST_"): value for name, _, value in lines}


def _listens(unix_host: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        try:
            connection.connect(unix_host.removeprefix("unix://"))
        except OSError:
            return False
        return True


def _succeeds(command: Sequence[str | Path]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except OSError:
        return False


def _skip(service: str, what: str) -> NoReturn:
    pytest.skip(f"{service}: {what}; run scripts/test-services up")
