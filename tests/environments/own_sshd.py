"""Ssh servers that a test may break: an sshd of its own, and a relay in front of one that can be cut or frozen."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
UP_WITHIN_SECONDS = 10


@dataclass(slots=True, kw_only=True)
class OwnSshd:
    """An sshd for the user who runs the tests, with everything of it in one folder."""

    folder: Path
    port: int
    running: subprocess.Popen[bytes] | None = None

    @property
    def key(self) -> Path:
        return self.folder / "key"

    @property
    def user(self) -> str:
        return getpass.getuser()

    def start(self) -> None:
        assert SSHD is not None
        self.running = subprocess.Popen(
            [SSHD, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.folder / "log")]
        )
        _wait_until_it_listens(self.port, self.running)

    def stop(self) -> None:
        """End it with all the connections that it serves."""
        if self.running is None:
            return
        for pid in [*_children(self.running.pid), self.running.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.running.wait(timeout=UP_WITHIN_SECONDS)
        self.running = None

    def change_host_key(self) -> None:
        (self.folder / "hostkey").unlink()
        make_key(self.folder / "hostkey")


def make_key(file: Path, passphrase: str = "") -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(file)], check=True, input=b"y\n")


def own_sshd(folder: Path, more_settings: str = "") -> OwnSshd:
    """An sshd that is not started yet; skips the test where there is none."""
    if SSHD is None:
        pytest.skip("ssh: sshd is not installed; run scripts/test-services up")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # Refuses to run as root without it.
    folder.mkdir(parents=True)
    make_key(folder / "hostkey")
    make_key(folder / "key")
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/hostkey\nPidFile {folder}/pid\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\n{more_settings}\n"
    )
    return OwnSshd(folder=folder, port=port)


def _wait_until_it_listens(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(UP_WITHIN_SECONDS * 50):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(timeout=0.02)
            assert server.returncode is None, "sshd has ended; see its log"
    raise AssertionError("sshd does not listen")


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            after_name = stat.read_text().rpartition(")")[2].split()
            if int(after_name[1]) == pid:
                found.append(int(stat.parent.name))
    return found


@dataclass(slots=True, kw_only=True)
class Relay:
    """Passes connections on to a server, until told otherwise."""

    port: int = 0
    connections: int = 0
    """How many it has passed on so far."""
    open_now: int = 0
    is_frozen: bool = False
    """Nothing passes, and nobody is told: as when a network is gone."""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def pass_on(self, host: str, port: int, here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_now += 1
        there, forth = await asyncio.open_connection(host, port)
        self._writers |= {back, forth}
        try:
            await asyncio.gather(self._pump(here, forth), self._pump(there, back))
        finally:
            self.open_now -= 1
            self._writers -= {back, forth}

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not self.is_frozen:
                    target.write(data)
                    await target.drain()
        except OSError:
            pass
        finally:
            target.close()


@contextlib.asynccontextmanager
async def relay_to(host: str, port: int) -> AsyncIterator[Relay]:
    relay = Relay()
    handlers: set[asyncio.Task[None]] = set()

    async def handle(here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await relay.pass_on(host, port, here, back)
        finally:
            handlers.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        relay.cut()
        if handlers:
            await asyncio.wait(handlers, timeout=5)
