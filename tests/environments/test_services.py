"""The engines of the tests do what the tests of the backends count on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.environments.engines import IMAGE, Apptainer, Podman, SshServer, sudo_password

pytestmark = pytest.mark.services

LOOK_AROUND = "set -e; setsid --version >&2; ps -e >&2; mktemp -u >&2; tar --version >&2; echo -n here; exit 7"


def run(*command: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


def assert_ran(done: subprocess.CompletedProcess[bytes]) -> None:
    assert (done.stdout, done.returncode) == (b"here", 7), done.stderr.decode()


def test_docker_runs_the_image(docker_host: str):
    """The engine has the image, and the image has bash and what commands are run with."""
    assert_ran(run("docker", "-H", docker_host, "run", "--rm", "--network=none", IMAGE, "bash", "-c", LOOK_AROUND))


def test_podman_runs_the_image(podman: Podman):
    """podman is called like docker, and has the same image."""
    assert_ran(run(podman.program, "run", "--rm", "--network=none", IMAGE, "bash", "-c", LOOK_AROUND))


def test_podman_answers_docker_on_its_socket(podman: Podman):
    """A docker client reaches podman as it reaches docker."""
    done = run("docker", "-H", podman.host, "run", "--rm", "--network=none", IMAGE, "echo", "-n", "here")
    # Its exit code is not asked: podman removes the container before the client has read that.
    assert done.stdout == b"here", done.stderr.decode()


def test_ssh_logs_in_by_key_without_a_question(ssh_server: SshServer):
    """The host key is known and the user's key fits, so that nothing is asked."""
    options = ("-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={ssh_server.known_hosts}")
    login = ("-i", str(ssh_server.key), "-p", str(ssh_server.port), f"{ssh_server.user}@{ssh_server.host}")
    assert_ran(run("ssh", *options, *login, LOOK_AROUND))


def test_sudo_wants_the_password_of_the_ssh_user(ssh_server: SshServer):
    """The right one is accepted, no other."""
    password = sudo_password()
    sudo = ("runuser", "--user", ssh_server.user, "--", "sudo", "-k", "-S", "-p", "", "true")
    codes = [
        subprocess.run(sudo, input=f"{typed}\n".encode(), capture_output=True, timeout=60, check=False).returncode
        for typed in (password, "wrong")
    ]
    assert codes == [0, 1]


@pytest.mark.may_skip
def test_apptainer_runs_the_image(apptainer: Apptainer):
    """The unpacked image has bash and what commands are run with."""
    arguments = ("exec", "--no-privs", "--containall", "--pwd", "/", apptainer.image, "bash", "-c", LOOK_AROUND)
    assert_ran(run(apptainer.program, *arguments))


def test_bubblewrap_makes_a_sandbox(bubblewrap: Path):
    """A program runs in namespaces of its own."""
    assert_ran(run(bubblewrap, "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-all", "bash", "-c", LOOK_AROUND))
