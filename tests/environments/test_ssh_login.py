"""Logging in over ssh: keys, host keys, the ssh config file, and errors that say what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.environments.own_sshd import OwnSshd, make_key, own_sshd
from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.ssh import SshEngine, SshOptions

# ruff: noqa: ASYNC240 - the files that these tests look into are tiny.


pytestmark = pytest.mark.services


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnSshd]:
    server = own_sshd(tmp_path / "sshd")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def options(server: OwnSshd) -> SshOptions:
    return SshOptions(
        host="127.0.0.1",
        port=server.port,
        user=server.user,
        key=str(server.key),
        known_hosts=str(server.folder / "known_hosts"),
        config="none",
    )


@pytest.fixture
def known_hosts(options: SshOptions) -> Path:
    return Path(options.known_hosts)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """The socket of an ssh-agent without keys."""
    socket_file = tmp_path / "agent"
    running = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket_file)], stdout=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.readline()  # It tells where it listens, once it does.
    yield socket_file
    running.terminate()
    running.wait(timeout=10)
    running.stdout.close()


@contextlib.asynccontextmanager
async def opened(options: SshOptions) -> AsyncIterator[SshEngine]:
    engine = SshEngine(options)
    try:
        await engine.open()
        yield engine
    finally:
        await engine.close()


async def failure(options: SshOptions) -> str:
    with pytest.raises(EnvironmentFailed) as caught:
        async with opened(options):
            pass
    return str(caught.value)


async def output_of(engine: SshEngine, script: str) -> str:
    output = bytearray()
    process = await engine.spawn(["bash", "-c", script], on_output=output.extend)
    await asyncio.wait_for(process.wait(), 20)
    return output.decode()


async def test_an_unknown_host_is_accepted_and_written_down_once(
    options: SshOptions, known_hosts: Path, server: OwnSshd
) -> None:
    """The first sight of a host writes its key down, in a private file; the second finds it there."""
    for _ in range(2):
        async with opened(options):
            pass

    key = (server.folder / "hostkey.pub").read_text().split()[:2]
    assert known_hosts.read_text() == f"[127.0.0.1]:{server.port} {' '.join(key)}\n"
    assert known_hosts.stat().st_mode & 0o777 == 0o600


def home_known_hosts() -> Path:
    return Path.home() / ".ssh" / "known_hosts"


async def test_without_a_named_file_the_users_own_is_used(options: SshOptions, server: OwnSshd) -> None:
    """The default is ~/.ssh/known_hosts, made when it is missing, its folder closed to others."""
    async with opened(replace(options, known_hosts="")):
        pass

    file = home_known_hosts()
    assert str(server.port) in file.read_text()
    assert file.parent.stat().st_mode & 0o777 == 0o700


async def test_a_new_line_never_joins_an_unfinished_one(
    options: SshOptions, known_hosts: Path, server: OwnSshd
) -> None:
    """A file whose last line has no end keeps that line."""
    known_hosts.write_text("other.invalid ssh-ed25519 AAAA")

    async with opened(options):
        pass

    first, second = known_hosts.read_text().splitlines()
    assert first == "other.invalid ssh-ed25519 AAAA"
    assert second.startswith(f"[127.0.0.1]:{server.port} ssh-ed25519 ")


async def test_a_changed_host_key_is_refused_and_the_line_named(
    options: SshOptions, known_hosts: Path, server: OwnSshd
) -> None:
    """A host that shows another key than before is not connected to; the message names file, line and remedy."""
    known_hosts.write_text("# a comment\n\n")
    async with opened(options):
        pass
    before = known_hosts.read_text()
    server.stop()
    server.change_host_key()
    server.start()

    message = await failure(options)

    assert "has changed" in message
    assert f"{str(known_hosts)!r} line 3" in message
    assert f"ssh-keygen -f {str(known_hosts)!r} -R '[127.0.0.1]:{server.port}'" in message
    assert known_hosts.read_text() == before


def hash_host_names(file: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)


async def test_hashed_host_names_are_understood(options: SshOptions, known_hosts: Path, server: OwnSshd) -> None:
    """A line whose host name is hashed counts like any other: trusted when equal, refused when changed."""
    async with opened(options):
        pass
    hash_host_names(known_hosts)
    hashed = known_hosts.read_text()

    async with opened(options):
        pass
    server.stop()
    server.change_host_key()
    server.start()
    message = await failure(options)

    assert hashed.startswith("|1|")
    assert known_hosts.read_text() == hashed
    assert "line 1" in message


async def test_a_key_for_the_usual_port_does_not_forbid_another_server(
    options: SshOptions, known_hosts: Path, server: OwnSshd
) -> None:
    """Two servers on one machine may have different keys, as long as each is written down for its port."""
    make_key(server.folder / "other")
    other = (server.folder / "other.pub").read_text()
    known_hosts.write_text(f"127.0.0.1 {other}")

    async with opened(options):
        pass

    assert f"[127.0.0.1]:{server.port} " in known_hosts.read_text()


async def test_a_revoked_host_key_is_refused(options: SshOptions, known_hosts: Path, server: OwnSshd) -> None:
    """A key marked as revoked is never accepted, though the host is new."""
    key = (server.folder / "hostkey.pub").read_text()
    known_hosts.write_text(f"@revoked * {key}")

    assert "revoked" in await failure(options)


async def test_new_hosts_can_be_refused(options: SshOptions, known_hosts: Path) -> None:
    """Where new hosts are not accepted, an unknown one is an error that shows its key."""
    message = await failure(replace(options, accept_new_host_keys=False))

    assert "is unknown" in message
    assert "SHA256:" in message
    assert not known_hosts.exists()


async def test_a_refused_key_is_named(options: SshOptions, server: OwnSshd) -> None:
    """The message says who was refused, which keys were offered, and how to add one."""
    wrong = server.folder / "wrong"
    make_key(wrong)

    message = await failure(replace(options, key=str(wrong)))

    assert f"{server.user}@127.0.0.1 port {server.port} rejected every key" in message
    assert fingerprint(wrong) in message
    assert "authorized_keys" in message


def fingerprint(key: Path) -> str:
    return subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True).stdout.split()[1]


async def test_no_key_at_all_is_said(options: SshOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any key the message says so and how to make one."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)

    message = await failure(replace(options, key=""))

    assert "there was no key to offer" in message
    assert "ssh-keygen" in message


async def test_a_missing_key_file_is_named(options: SshOptions, server: OwnSshd) -> None:
    """A key file that does not exist is an error before anything is sent."""
    missing = str(server.folder / "missing")

    message = await failure(replace(options, key=missing))

    assert missing in message
    assert "terminal.ssh.key" in message


async def test_a_file_that_is_no_key_is_named(options: SshOptions, server: OwnSshd) -> None:
    """A key file with something else in it is an error that names it."""
    rubbish = server.folder / "rubbish"
    rubbish.write_text("not a key\n")

    assert str(rubbish) in await failure(replace(options, key=str(rubbish)))


async def test_a_protected_key_comes_from_the_agent(
    options: SshOptions, server: OwnSshd, agent: Path, tmp_path: Path
) -> None:
    """A key with a passphrase is never asked for: it works while the agent holds it, else the message says ssh-add."""
    protected = tmp_path / "protected"
    make_key(protected, passphrase="correct horse")
    with (server.folder / "authorized_keys").open("a") as authorized:
        authorized.write((tmp_path / "protected.pub").read_text())
    with_agent = replace(options, key=str(protected), agent_path=str(agent))

    without = await failure(with_agent)
    add_to_agent(protected, "correct horse", agent, tmp_path)
    async with opened(with_agent) as engine:
        said = await output_of(engine, "echo hello; env")

    assert f"ssh-add {protected}" in without
    assert said.startswith("hello\n")
    assert "SSH_AUTH_SOCK" not in said


async def test_the_agent_that_the_ssh_config_file_names_comes_first(
    options: SshOptions, server: OwnSshd, agent: Path, tmp_path: Path
) -> None:
    """IdentityAgent of a host counts more than the agent of the session, as with `ssh`."""
    held = tmp_path / "held"
    make_key(held, passphrase="correct horse")
    (server.folder / "authorized_keys").write_text((tmp_path / "held.pub").read_text())
    add_to_agent(held, "correct horse", agent, tmp_path)
    config = tmp_path / "config"
    config.write_text(f"Host *\n  IdentityAgent {agent}\n")
    elsewhere = str(tmp_path / "no-agent")

    async with opened(replace(options, key="", config=str(config), agent_path=elsewhere)) as engine:
        said = await output_of(engine, "echo hello")

    assert said == "hello\n"


def add_to_agent(key: Path, passphrase: str, agent: Path, folder: Path) -> None:
    answer = folder / "answer"
    answer.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
    answer.chmod(0o700)
    environ = {**os.environ, "SSH_AUTH_SOCK": str(agent), "SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(
        ["ssh-add", str(key)], env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=20
    )


async def test_the_ssh_config_file_is_honoured(options: SshOptions, server: OwnSshd, tmp_path: Path) -> None:
    """A Host of the ssh config file brings its address, port, user, key, alias and known_hosts file."""
    known = tmp_path / "config known hosts"
    config = tmp_path / "config"
    config.write_text(
        f"Host host\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.user}\n"
        f'  IdentityFile {server.key}\n  HostKeyAlias the-host\n  UserKnownHostsFile "{known}"\n'
        "  ForwardAgent yes\n  RemoteCommand false\n  RequestTTY force\n  SendEnv *\n"
    )

    async with opened(SshOptions(host="host", config=str(config))) as engine:
        said = await output_of(engine, "echo $0; tty; env")
        address = engine.address()

    assert said.startswith("bash\nnot a tty\n")
    assert "TOOLCRIB_HOME" not in said
    assert (address["host"], address["port"], address["user"]) == ("host", str(server.port), server.user)
    assert known.read_text().startswith("the-host ssh-ed25519 ")


async def test_a_changed_key_of_an_aliased_host_is_refused(
    options: SshOptions, known_hosts: Path, server: OwnSshd, tmp_path: Path
) -> None:
    """The alias is what the key is looked up by, whatever the port."""
    make_key(tmp_path / "other")
    known_hosts.write_text(f"the-host {(tmp_path / 'other.pub').read_text()}")
    config = tmp_path / "config"
    config.write_text("Host *\n  HostKeyAlias the-host\n")

    message = await failure(replace(options, config=str(config)))

    assert "the host key of 'the-host' has changed" in message


async def test_an_unknown_host_name_is_said(options: SshOptions) -> None:
    """A name that nobody knows is told apart from a machine that does not answer."""
    assert "'no-such-host.invalid' cannot be resolved" in await failure(replace(options, host="no-such-host.invalid"))


async def test_a_closed_port_is_said(options: SshOptions) -> None:
    """Nothing listens: the message names host, port and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        for host in ("127.0.0.1", "localhost"):
            message = await failure(replace(options, host=host, port=port))
            assert f"nothing listens on port {port} of {host!r}: connection refused" in message


async def test_a_server_that_never_answers_is_given_up(options: SshOptions) -> None:
    """Connecting is bounded by its timeout, also when the port is open."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()

        message = await failure(replace(options, port=silent.getsockname()[1], connect_timeout_seconds=0.3))

    assert "did not answer within 0.3 seconds" in message


async def test_a_port_of_something_else_is_said(options: SshOptions) -> None:
    """A server that does not speak ssh is an error with its reason."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        message = await failure(replace(options, port=other.sockets[0].getsockname()[1]))
    finally:
        other.close()

    assert "failed" in message
    assert "ssh -v" in message


async def test_an_empty_host_is_said(options: SshOptions) -> None:
    """Without a host there is nothing to try."""
    assert "terminal.ssh.host" in await failure(replace(options, host=""))


def test_without_the_package_the_message_says_how_to_install_it(tmp_path: Path) -> None:
    """asyncssh is optional: loading the backend does not need it, opening one says what to install."""
    (tmp_path / "asyncssh.py").write_text("raise ImportError('gone')\n")
    program = (
        "import asyncio, sys\n"
        "from toolcrib.environments.backends.ssh import SshEngine, SshOptions\n"
        "assert 'asyncssh' not in sys.modules\n"
        "try: asyncio.run(SshEngine(SshOptions(host='x')).open())\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=True)

    assert said.stdout.startswith("EnvironmentFailed ")
    assert "pip install 'toolcrib[ssh]'" in said.stdout
