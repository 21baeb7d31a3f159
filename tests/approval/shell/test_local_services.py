"""Services of this machine, and programs that runners fetch by name: what is not known is asked about."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolcrib.approval.analyse import analyse
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.shell.local_services import CONNECTORS
from toolcrib.approval.shell.option_table import EXPECTED, VARIABLES

SOCKETS = (
    "/var/run/docker.sock",
    "/run/user/1000/podman/podman.sock",
    "/run/user/1000/bus",
    "/run/dbus/system_bus_socket",
    "/tmp/ssh-abc/agent.1",
    "/run/containerd/containerd.sock",
    "/home/user/.gnupg/S.gpg-agent",
    "/home/user/.toolcrib/x.sock",
)
WAYS = (
    "curl --unix-socket {} http://localhost/x",
    "nc -U {}",
    "socat - UNIX-CONNECT:{}",
    "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{}\")'",
    'node -e \'require("net").connect("{}")\'',
    "ruby -rsocket -e 'UNIXSocket.new(\"{}\")'",
    "perl -e 'IO::Socket::UNIX->new(\"{}\")'",
)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_reach_a_socket_of_a_service_is_asked_about(way: str) -> None:
    """Whatever the program or language is."""
    assert [socket for socket in SOCKETS if analyse(way.format(socket)).verdict == "safe"] == []


@pytest.mark.parametrize("way", WAYS)
def test_sockets_of_the_project_and_of_databases_are_not(way: str) -> None:
    """A development server, and a database with its own passwords."""
    for socket in ("./tmp/app.sock", "/var/run/mysqld/mysqld.sock", "/tmp/app.sock"):
        assert analyse(way.format(socket)).verdict == "safe", socket


@pytest.mark.parametrize("program", sorted(CONNECTORS - {"nc", "ncat", "netcat", "telnet", "gpg-connect-agent"}))
def test_our_own_server_is_out_of_reach_for_every_client(program: str) -> None:
    """At its usual port everything but its health; at others, what answers questions and starts runs."""
    found = analyse(f"{program} http://localhost:8642/api/approvals/1").findings
    assert "own_program" in {finding.rule for finding in found}
    assert analyse(f"{program} http://127.0.0.1:9000/api/runs").verdict == "ask"
    assert analyse(f"{program} http://localhost:8642/health").verdict == "safe"


RUNNERS = ("npx", "npx -y", "npm exec", "pnpm dlx", "yarn dlx", "bunx", "bun x", "uvx", "uv tool run", "pipx run")


@pytest.mark.parametrize("runner", RUNNERS)
def test_only_well_known_packages_run_by_name(runner: str) -> None:
    """With or without a version."""
    known = "ruff" if runner.startswith(("uv", "pipx")) else "prettier"
    assert analyse(f"{runner} {known} .").verdict == "safe"
    assert analyse(f"{runner} {known}@1.2 .").verdict == "safe"
    assert analyse(f"{runner} nobody-knows-this .").verdict == "ask"
    assert analyse(f"{runner} git+https://x.example/p").verdict == "ask"


def test_what_the_project_has_installed_is_not_fetched(tmp_path: Path) -> None:
    """`npx` runs it from node_modules."""
    (tmp_path / "node_modules" / ".bin").mkdir(parents=True)
    (tmp_path / "node_modules" / ".bin" / "our-tool").touch()

    def verdict(command: str) -> str:
        return read_command(command, cwd=str(tmp_path), home="/home/user", here=True).assessment.verdict

    assert verdict("npx our-tool") == "safe"
    assert verdict("npx other-tool") == "ask"


@pytest.mark.parametrize("name", sorted(name for name, kind in VARIABLES.items() if kind in EXPECTED))
def test_a_variable_that_names_a_program_names_a_usual_one(name: str) -> None:
    """Its options do not matter, other programs do."""
    usual = sorted(EXPECTED[VARIABLES[name]])[0]
    assert analyse(f"{name}='{usual} -x' tool").verdict == "safe"
    assert analyse(f"{name}=/tmp/other tool").verdict == "ask"
    assert analyse(f"{name}='python3 -c pass' tool").verdict == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "curl -X POST http://localhost:9123/api/approvals/1",
        "curl 127.0.0.1:9123/anything",
        "nc localhost 9123 <<< x",
        "python3 -c 'import urllib.request as u; u.urlopen(\"http://localhost:9123/x\")'",
        "exec 3<>/dev/tcp/localhost/9123",
    ],
)
def test_our_server_is_known_by_the_port_in_the_settings(command: str) -> None:
    """It answers questions wherever it listens; another program at that port is only known without such a setting."""
    own = ("//localhost:9123",)

    assert read_command(command, cwd="/p", home="/home/user", own=own).assessment.verdict != "safe"
    assert read_command("curl localhost:9124/x", cwd="/p", home="/home/user", own=own).assessment.verdict == "safe"
    assert read_command("curl localhost:9123/health", cwd="/p", home="/home/user", own=own).assessment.verdict == "safe"
