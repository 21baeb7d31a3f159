"""Logs in to a host as `ssh` would with the same files, but never asks for a password.

Host keys follow OpenSSH's `accept-new` rule.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from toolcrib.core.errors import EnvironmentFailed

if TYPE_CHECKING:
    import asyncssh


def ssh_package() -> Any:
    """The module `asyncssh`, which is optional and takes a quarter of a second to import."""
    try:
        import asyncssh  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentFailed(
            f"the ssh backend needs the package asyncssh ({error}); run `pip install 'toolcrib[ssh]'`"
        ) from error
    logger = logging.getLogger("asyncssh")
    if logger.level == logging.NOTSET:
        # At INFO it logs every command line that it sends.
        logger.setLevel(logging.WARNING)
    return asyncssh


DEFAULT_PORT = 22
PATTERN_CHARACTERS = frozenset("*?|!/")


class KnownLine(Struct, frozen=True, kw_only=True):
    file: Path
    number: int


class KnownHost(Struct, kw_only=True):
    """What the known_hosts files say about one host, and the key that its server presented."""

    name: str
    """As written in such a file: `host`, `[host]:port`, or its alias."""
    write_to: Path | None
    accept_new: bool
    lines: list[KnownLine] = field(default_factory=list)
    keys: list[asyncssh.SSHKey] = field(default_factory=list)
    authorities: list[asyncssh.SSHKey] = field(default_factory=list)
    revoked: list[asyncssh.SSHKey] = field(default_factory=list)
    presented_key: asyncssh.SSHKey | None = None
    """A key that is not in the files."""

    def trusted(self, host: str, address: str, port: int | None) -> Sequence[Sequence[asyncssh.SSHKey]]:
        """The keys for asyncssh; by name only, because an address may have belonged to another host."""
        return (self.keys, self.authorities, self.revoked)

    def accepts(self, key: asyncssh.SSHKey) -> bool:
        """Whether a key that is not in the files is accepted."""
        self.presented_key = key
        return self.accept_new and not self.lines

    def remember(self) -> None:
        """Save a newly accepted key. If the file is not writable, the key is new again next time."""
        if self.presented_key is None or self.write_to is None:
            return
        line = f"{self.name} {_public_text(self.presented_key)}\n".encode()
        with contextlib.suppress(OSError):
            self.write_to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.write_to, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":
                    line = b"\n" + line
                os.write(handle, line)
            finally:
                os.close(handle)

    def why_refused(self, reason: str) -> str:
        """The message for a host key that was not accepted; `reason` comes from asyncssh."""
        if self.presented_key is None:
            # A revoked key, or a certificate of an authority that is not in the files.
            return f"the host key of {self.name!r} is refused: {reason}; ask the administrator of that machine"
        shown = f"{self.presented_key.get_algorithm()} {self.presented_key.get_fingerprint()}"
        if not self.lines:
            return (
                f"the host {self.name!r} is unknown and new hosts are not accepted; its key is {shown}. "
                f"If that is right, connect once with `ssh`, which asks and saves it"
            )
        return (
            f"the host key of {self.name!r} has changed: it presents {shown}, which is not the one in "
            f"{_listed(self.lines)}. Somebody may be intercepting the connection, or the machine was reinstalled. "
            f"If it was reinstalled, remove the old line: ssh-keygen -f {str(self.lines[0].file)!r} -R {self.name!r}"
        )


def read_known_host(
    host: str, port: int, *, alias: str | None, files: Sequence[Path], accept_new: bool = True
) -> KnownHost:
    """What `files` say about a host; new keys are saved to the first of them."""
    name = alias or (host if port == DEFAULT_PORT else f"[{host}]:{port}")
    known = KnownHost(name=name, write_to=files[0] if files else None, accept_new=accept_new)
    for file in files:
        _collect(file, known)
    if not known.lines and name.startswith("["):
        # As in `ssh`: a key saved for the default port is valid on another one, but does not forbid a new key.
        usual = KnownHost(name=host, write_to=None, accept_new=False)
        for file in files:
            _collect(file, usual)
        known.keys, known.authorities, known.revoked = usual.keys, usual.authorities, usual.revoked
    return known


def _collect(file: Path, known: KnownHost) -> None:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise EnvironmentFailed(
            f"the known hosts file {str(file)!r} cannot be read: {error.strerror or error}; correct its permissions"
        ) from error
    for number, line in enumerate(text.splitlines(), 1):
        if not _may_name(line, known.name):
            continue
        try:
            keys, authorities, revoked, *_ = ssh_package().import_known_hosts(line).match(known.name, "", None)
        except ValueError:
            continue  # `ssh` skips unreadable lines too.
        known.keys += keys
        known.authorities += authorities
        known.revoked += revoked
        if keys:
            known.lines.append(KnownLine(file=file, number=number))


def _may_name(line: str, name: str) -> bool:
    """A cheap check that saves parsing the keys of most lines."""
    fields = line.split(None, 2)
    if len(fields) < 2 or fields[0].startswith("#"):
        return False
    names = fields[1] if fields[0].startswith("@") else fields[0]
    return not PATTERN_CHARACTERS.isdisjoint(names) or name in names.split(",")


def _public_text(key: asyncssh.SSHKey) -> str:
    algorithm, encoded, *_comment = key.export_public_key("openssh").decode().split()
    return f"{algorithm} {encoded}"


def _listed(lines: Sequence[KnownLine]) -> str:
    return " and ".join(f"{str(line.file)!r} line {line.number}" for line in lines)


AGENT_ANSWER_SECONDS = 2.0
KEEPALIVES_UNANSWERED = 3


class SshOptions(Struct, frozen=True, kw_only=True):
    """Where and how to log in. Empty values come from the ssh config file, then from the usual defaults."""

    host: str
    """A name, an address, or a `Host` of the ssh config file."""
    port: int = 0
    user: str = ""
    key: str = ""
    """The private key file to use instead of those that `ssh` would try."""
    known_hosts: str = ""
    config: str = ""
    """An ssh config file instead of `~/.ssh/config`; `none` for none."""
    agent_path: str = ""
    """The socket of the agent, if the config file names none (IdentityAgent); empty means SSH_AUTH_SOCK."""
    accept_new_host_keys: bool = True
    connect_timeout_seconds: float = 15.0
    """Also how long a server may take to start a program before the connection is considered dead."""
    keepalive_seconds: float = 15.0
    max_connections: int = 4
    """More than one is opened only while the server refuses another session on the first (MaxSessions)."""
    session_wait_seconds: float = 10.0
    """How long to wait for a session when all connections are full."""


class Login(Struct, frozen=True, kw_only=True):
    """A logged-in connection, and its actual host, port and user."""

    connection: asyncssh.SSHClientConnection
    host: str
    port: int
    user: str


async def log_in(options: SshOptions, on_lost: Callable[[str], None]) -> Login:
    """Connect and log in; raises EnvironmentFailed with the reason and a remedy.

    Calls `on_lost` once, with the reason, when the connection ends later.
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
    """The callbacks of asyncssh for a connection; has the methods of its SSHClient, which is optional."""

    def __init__(self, known: KnownHost, on_lost: Callable[[str], None]) -> None:
        self._known = known
        self._on_lost = on_lost

    def validate_host_public_key(self, host: str, address: str, port: int, key: asyncssh.SSHKey) -> bool:
        return self._known.accepts(key)

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
    """Our options on top of those of the ssh config file, with keys loaded."""
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
        # Commands over there must not reach back: no agent, no display, none of our environment.
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
    """Offer only this key: servers disconnect after a few wrong ones. The agent may supply a protected key."""
    sdk = ssh_package()
    public = key.with_name(f"{key.name}.pub")
    identities: list[Any] = [str(public)] if public.exists() else []
    if not identities:
        try:
            identities = [sdk.read_private_key(str(key)).public_data]
        except sdk.KeyImportError:
            identities = []  # Protected, and unknown which of the agent's keys it is: offer all of them.
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
            "check host, port and network, for example with `ssh -v`"
        )
    if isinstance(error, socket.gaierror):
        return f"the host name {resolved.host!r} cannot be resolved ({error.strerror}); correct terminal.ssh.host"
    if isinstance(error, ConnectionRefusedError) or f"Errno {errno.ECONNREFUSED}]" in str(error):
        return (
            f"nothing listens on port {resolved.port} of {resolved.host!r}: connection refused. "
            "Start sshd there, or correct terminal.ssh.port"
        )
    if isinstance(error, sdk.KeyExchangeFailed) and known.lines:
        return (
            f"{where} has no host key of the type saved in {str(known.lines[0].file)!r} line "
            f"{known.lines[0].number} ({error.reason}). If the machine was reinstalled, remove that line: "
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
        return f"{where} denied access, and there was no key to offer; {advice}"
    return f"{where} rejected every key that was offered ({', '.join(offered)}); {advice}"


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
