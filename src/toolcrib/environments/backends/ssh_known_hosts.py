"""Whose host keys we trust: the files of OpenSSH, with its rule `accept-new`.

A host that no line names is trusted at first sight and written down; one whose key differs from its line is refused.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.ssh_package import ssh_package

if TYPE_CHECKING:
    import asyncssh

DEFAULT_PORT = 22
PATTERN_CHARACTERS = frozenset("*?|!/")


class KnownLine(Struct, frozen=True, kw_only=True):
    file: Path
    number: int


class KnownHost(Struct, kw_only=True):
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
