"""Logging in to a host: what `ssh` would do with the same files, without ever asking for a password."""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolcrib.core.errors import EnvironmentFailed

if TYPE_CHECKING:
    import asyncssh


def ssh_package() -> Any:
    """The module `asyncssh`; raises EnvironmentFailed saying how to install it."""
    try:
        import asyncssh  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentFailed(
            f"the ssh backend needs the package asyncssh ({error}); pip install 'toolcrib[ssh]'"
        ) from error
    chatter = logging.getLogger("asyncssh")
    if chatter.level == logging.NOTSET:
        # At INFO it writes every command line that it sends.
        chatter.setLevel(logging.WARNING)
    return asyncssh


DEFAULT_PORT = 22
PATTERN_CHARACTERS = frozenset("*?|!/")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLine:
    file: Path
    number: int


@dataclass(slots=True, kw_only=True)
class KnownHost:
    """What the known_hosts files say about one host, and what its server showed us."""

    name: str
    """As it stands in such a file: `host`, `[host]:port`, or its alias."""
    write_to: Path | None
    accept_new: bool
    lines: list[KnownLine] = field(default_factory=list)
    keys: list[asyncssh.SSHKey] = field(default_factory=list)
    authorities: list[asyncssh.SSHKey] = field(default_factory=list)
    revoked: list[asyncssh.SSHKey] = field(default_factory=list)
    shown_key: asyncssh.SSHKey | None = None
    """A key that the files do not hold."""

    def trusted(self, host: str, address: str, port: int | None) -> Sequence[Sequence[asyncssh.SSHKey]]:
        """The answer to asyncssh's question; by name only, as an address may have belonged to somebody else before."""
        return (self.keys, self.authorities, self.revoked)

    def judge(self, key: asyncssh.SSHKey) -> bool:
        """Whether a key that the files do not hold is accepted."""
        self.shown_key = key
        return self.accept_new and not self.lines

    def remember(self) -> None:
        """Write a newly accepted key down. A file that cannot be written to means that it is new again next time."""
        if self.shown_key is None or self.write_to is None:
            return
        line = f"{self.name} {_public_text(self.shown_key)}\n".encode()
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
        """The sentence for a host key that was not accepted; `reason` is what asyncssh says about it."""
        if self.shown_key is None:
            # A revoked key, or a certificate of an authority that the files do not name.
            return f"the host key of {self.name!r} is refused: {reason}; ask whoever runs that machine"
        shown = f"{self.shown_key.get_algorithm()} {self.shown_key.get_fingerprint()}"
        if not self.lines:
            return (
                f"the host {self.name!r} is not known and new hosts are not accepted; its key is {shown}. "
                f"If that is right, connect once with `ssh`, which asks and writes it down"
            )
        return (
            f"the host key of {self.name!r} has changed: it shows {shown}, which is not the one in "
            f"{_listed(self.lines)}. Somebody may be listening in, or the machine was set up anew. "
            f"If you know that it was, remove the old line: ssh-keygen -f {str(self.lines[0].file)!r} -R {self.name!r}"
        )


def read_known_host(
    host: str, port: int, *, alias: str | None, files: Sequence[Path], accept_new: bool = True
) -> KnownHost:
    """What `files` know about a host; new keys will go to the first of them."""
    name = alias or (host if port == DEFAULT_PORT else f"[{host}]:{port}")
    known = KnownHost(name=name, write_to=files[0] if files else None, accept_new=accept_new)
    for file in files:
        _collect(file, known)
    if not known.lines and name.startswith("["):
        # As with `ssh`: a key written down for the usual port is fine on another one, but does not forbid a new key.
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
            continue  # One unreadable line does not take the others away; `ssh` skips it too.
        known.keys += keys
        known.authorities += authorities
        known.revoked += revoked
        if keys:
            known.lines.append(KnownLine(file=file, number=number))


def _may_name(line: str, name: str) -> bool:
    """A cheap look that spares most lines the parsing of their key."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
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
