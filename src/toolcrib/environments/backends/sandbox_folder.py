"""The folder of this machine that a sandbox has for its own /tmp and home, locked for as long as its owner lives."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from toolcrib.core.environments import Leftover
from toolcrib.environments.host_process import spawn_on_host

PREFIX = "toolcrib-sandbox-"
LOCK = "owner"
KIND = "sandbox folder"
NEW_SECONDS = 60
# Programs may have left folders that even their owner cannot list.
REMOVE = 'chmod -R u+rwX -- "$1" 2>/dev/null; rm -rf -- "$1"'


class SandboxFolder:
    """A new private folder; `remove` it in the end."""

    def __init__(self, parent: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)).resolve()
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # The kernel lets go of it when we end, however that happens.
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._lock, f"{os.getpid()}\n".encode())
        self.temporary.mkdir()
        self.home.mkdir()

    @property
    def temporary(self) -> Path:
        return self.path / "tmp"

    @property
    def home(self) -> Path:
        return self.path / "home"

    async def remove(self) -> None:
        await _remove(self.path)
        os.close(self._lock)


async def leftovers(parent: Path | None = None) -> list[Leftover]:
    """The folders that sandboxes of ours have here, those of sandboxes in use too."""
    return list(_find(Path(parent or tempfile.gettempdir())))


async def remove_abandoned(parent: Path | None = None) -> None:
    """Delete the folders whose owners were killed before they could."""
    for leftover in await leftovers(parent):
        if not leftover.owner_alive and not _is_new(leftover.name):
            await remove(leftover)


async def remove(leftover: Leftover) -> None:
    """Delete a folder that `leftovers` found and whose owner has gone."""
    path = Path(leftover.name)
    if leftover.kind == KIND and path.name.startswith(PREFIX) and not _owner_is_alive(path):
        await _remove(path)


def _find(parent: Path) -> Iterator[Leftover]:
    for path in sorted(parent.glob(f"{PREFIX}*")):
        if path.is_symlink() or not path.is_dir() or path.lstat().st_uid != os.geteuid():
            continue
        alive = _owner_is_alive(path)
        yield Leftover(
            kind=KIND,
            name=str(path),
            detail="/tmp and home of a sandbox that is in use"
            if alive
            else "/tmp and home of a sandbox that has ended",
            owner_alive=alive,
        )


def _is_new(name: str) -> bool:
    """Whether it was made just now, so that its owner may not have locked it yet."""
    try:
        return Path(name).stat().st_mtime > time.time() - NEW_SECONDS
    except OSError:
        return False


def _owner_is_alive(path: Path) -> bool:
    try:
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


async def _remove(path: Path) -> None:
    removing = await spawn_on_host(
        ["/bin/sh", "-c", REMOVE, "sh", str(path)], on_output=_ignore, environ={"PATH": os.defpath}
    )
    await removing.wait()
    await removing.abandon()


def _ignore(_: bytes) -> None:
    return
