"""Logging in to a host: what `ssh` would do with the same files, without ever asking for a password."""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.ssh_known_hosts import KnownHost, read_known_host
from toolcrib.environments.backends.ssh_package import ssh_package

if TYPE_CHECKING:
    import asyncssh

AGENT_ANSWER_SECONDS = 2.0
KEEPALIVES_UNANSWERED = 3


class SshOptions(Struct, frozen=True, kw_only=True):
    """Where to log in, and with what. What is empty comes from the ssh config file, then from the usual defaults."""

    host: str
    """A name, an address, or a `Host` of the ssh config file."""
    port: int = 0
    user: str = ""
    key: str = ""
    """The file of the private key to use, instead of those that `ssh` would try."""
    known_hosts: str = ""
    config: str = ""
    """An ssh config file instead of `~/.ssh/config`; `none` reads none."""
    agent_path: str = ""
    """The socket of the agent, where the config file names none (IdentityAgent); empty means SSH_AUTH_SOCK."""
    accept_new_host_keys: bool = True
    connect_timeout_seconds: float = 15.0
    """Also how long a server may take to start a program before the connection counts as dead."""
    keepalive_seconds: float = 15.0
    max_connections: int = 4
    """More than one is opened only while the server allows no further session on the first (MaxSessions)."""
    session_wait_seconds: float = 10.0
    """How long to wait for a session when all connections are full."""


class Login(Struct, frozen=True, kw_only=True):
    """A connection that is logged in, and where it really led."""

    connection: asyncssh.SSHClientConnection
    host: str
    port: int
    user: str


async def log_in(options: SshOptions, on_lost: Callable[[str], None]) -> Login:
    """Connect and log in; raises EnvironmentFailed saying what is wrong and what to do.

    `on_lost` is called once, with the reason, when the connection ends later.
    """
    sdk = ssh_package()
    resolved = _resolve(options)
    known = read_known_host(
        resolved.host,
        resolved.port,
        alias=resolved.host_key_alias,
        files=_known_hosts_files(options, resolved),
        accept_new=options.accept_new_host_keys,
    )
    try:
        async with asyncio.timeout(options.connect_timeout_seconds):
            connection = await sdk.connect(
                options.host,
                options=resolved,
                known_hosts=known.trusted,
                client_factory=lambda: _Client(known, on_lost),
            )
    except (TimeoutError, OSError, sdk.Error, ValueError) as error:
        raise EnvironmentFailed(await _why_not(error, options, resolved, known)) from error
    known.remember()
    return Login(connection=connection, host=resolved.host, port=resolved.port, user=resolved.username)


class _Client:
    """What asyncssh asks and tells about a connection; it has the methods of SSHClient, from an optional package."""

    def __init__(self, known: KnownHost, on_lost: Callable[[str], None]) -> None:
        self._known = known
        self._on_lost = on_lost

    def validate_host_public_key(self, host: str, address: str, port: int, key: asyncssh.SSHKey) -> bool:
        return self._known.judge(key)

    def validate_host_ca_key(self, host: str, address: str, port: int, key: asyncssh.SSHKey) -> bool:
        return False

    def connection_made(self, connection: asyncssh.SSHClientConnection) -> None:
        return

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost(str(error) if error else "closed")

    def debug_msg_received(self, message: str, language: str, always_display: bool) -> None:
        return

    def auth_banner_received(self, message: str, language: str) -> None:
        return

    def begin_auth(self, user: str) -> None:
        return

    def auth_completed(self) -> None:
        return

    def public_key_auth_requested(self) -> None:
        return None


def _resolve(options: SshOptions) -> asyncssh.SSHClientConnectionOptions:
    """Our options over those of the ssh config file, keys loaded."""
    if not options.host:
        raise EnvironmentFailed("the ssh backend has no host; set terminal.ssh.host")
    chosen: dict[str, Any] = {
        "host": options.host,
        "port": options.port or (),
        "username": options.user or (),
        "keepalive_interval": options.keepalive_seconds,
        "keepalive_count_max": KEEPALIVES_UNANSWERED,
        "connect_timeout": None,
        "password_auth": False,
        "kbdint_auth": False,
        # What a model runs over there must not reach back: no agent, no display, nothing of our environment.
        "agent_forwarding": False,
        "x11_forwarding": False,
        "send_env": [],
    }
    if options.config:
        chosen["config"] = None if options.config == "none" else [str(Path(options.config).expanduser())]
    sdk = ssh_package()
    try:
        if options.key:
            chosen |= _only_this_key(Path(options.key).expanduser())
        resolved: asyncssh.SSHClientConnectionOptions = sdk.SSHClientConnectionOptions(**chosen)
        if options.agent_path and resolved.config.get("IdentityAgent", ()) == ():
            resolved = sdk.SSHClientConnectionOptions(**chosen, agent_path=options.agent_path)
    except OSError as error:
        raise EnvironmentFailed(
            f"the ssh key or config file {str(error.filename)!r} cannot be read: {error.strerror}; "
            "correct terminal.ssh.key or create it with `ssh-keygen -t ed25519`"
        ) from error
    except ValueError as error:
        source = f"the key {options.key!r} or " if options.key else ""
        raise EnvironmentFailed(f"{source}the ssh config file cannot be used: {error}") from error
    return resolved


def _only_this_key(key: Path) -> dict[str, Any]:
    """Offer one key and no other: servers hang up after a few wrong ones. A protected key may come from the agent."""
    sdk = ssh_package()
    public = key.with_name(f"{key.name}.pub")
    identities: list[Any] = [str(public)] if public.exists() else []
    if not identities:
        try:
            identities = [sdk.read_private_key(str(key)).public_data]
        except sdk.KeyImportError:
            identities = []  # Protected, and nothing tells which of the agent's keys it is: let it offer all.
    return {"client_keys": [str(key)], "ignore_encrypted": True, "agent_identities": identities or None}


def _known_hosts_files(options: SshOptions, resolved: asyncssh.SSHClientConnectionOptions) -> list[Path]:
    if options.known_hosts:
        return [Path(options.known_hosts).expanduser()]
    if resolved.known_hosts is None:
        return []  # `UserKnownHostsFile none`
    named = resolved.known_hosts if isinstance(resolved.known_hosts, list) else []
    return [Path(str(name)).expanduser() for name in named] or [Path.home() / ".ssh" / "known_hosts"]


async def _why_not(
    error: Exception, options: SshOptions, resolved: asyncssh.SSHClientConnectionOptions, known: KnownHost
) -> str:
    sdk = ssh_package()
    where = f"{resolved.username}@{resolved.host} port {resolved.port}"
    if isinstance(error, sdk.HostKeyNotVerifiable):
        return known.why_refused(error.reason)
    if isinstance(error, sdk.PermissionDenied):
        return await _why_denied(options, resolved, where)
    if isinstance(error, TimeoutError):
        return (
            f"{where} did not answer within {options.connect_timeout_seconds:g} seconds; "
            "check host, port and network, for instance with `ssh -v`"
        )
    if isinstance(error, socket.gaierror):
        return f"the host name {resolved.host!r} is not known ({error.strerror}); correct terminal.ssh.host"
    if isinstance(error, ConnectionRefusedError) or f"Errno {errno.ECONNREFUSED}]" in str(error):
        return (
            f"nothing answers on port {resolved.port} of {resolved.host!r}: connection refused. "
            "Start sshd there, or correct terminal.ssh.port"
        )
    if isinstance(error, sdk.KeyExchangeFailed) and known.lines:
        return (
            f"{where} has no host key of the kind written down in {str(known.lines[0].file)!r} line "
            f"{known.lines[0].number} ({error.reason}). If the machine was set up anew, remove that line: "
            f"ssh-keygen -f {str(known.lines[0].file)!r} -R {known.name!r}"
        )
    return f"connecting to {where} failed: {error}; try `ssh -v` with the same host, port and user"


async def _why_denied(options: SshOptions, resolved: asyncssh.SSHClientConnectionOptions, where: str) -> str:
    offered = [_described(pair) for pair in resolved.client_keys or ()]
    offered += [f"{_described(pair)} of the agent" for pair in await _agent_keys(resolved)]
    protected = options.key and not resolved.client_keys
    advice = (
        f"add the public key to ~/.ssh/authorized_keys of {resolved.username!r} there "
        f"(ssh-copy-id -p {resolved.port} {resolved.username}@{resolved.host}), or name another in terminal.ssh.key"
    )
    if protected:
        advice = f"{options.key!r} is protected by a passphrase: load it into the agent with `ssh-add {options.key}`"
    if not offered:
        advice = advice if protected else f"create a key with `ssh-keygen -t ed25519` and {advice}"
        return f"{where} refused us, and there was no key to offer; {advice}"
    return f"{where} refused every key that was offered ({', '.join(offered)}); {advice}"


async def _agent_keys(resolved: asyncssh.SSHClientConnectionOptions) -> list[Any]:
    if not resolved.agent_path:
        return []
    try:
        async with (
            asyncio.timeout(AGENT_ANSWER_SECONDS),
            ssh_package().connect_agent(resolved.agent_path) as agent,
        ):
            return list(await agent.get_keys(resolved.agent_identities))
    except (OSError, ValueError, TimeoutError):
        return []


def _described(pair: Any) -> str:
    digest = base64.b64encode(hashlib.sha256(pair.public_data).digest()).decode().rstrip("=")
    comment = pair.get_comment()
    return f"{pair.get_algorithm()} SHA256:{digest}" + (f" {comment!r}" if comment else "")
