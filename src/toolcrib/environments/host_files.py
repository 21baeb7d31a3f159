"""Files of this machine, for a backend whose place is this machine."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolcrib.core.environments import BackendPath, FileStatus


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Reads and writes files directly; relative paths start at `folder()`, `~` at the user's home.

    Work on the disk runs in a thread of the loop's pool: a slow disk must not hold up commands.
    """

    folder: Callable[[], BackendPath]

    async def read_file(self, path: BackendPath) -> bytes:
        return await asyncio.to_thread(_read, self._on_host(path))

    async def write_file(self, path: BackendPath, data: bytes, *, mode: int | None = None) -> None:
        def fill(copy: Path) -> None:
            copy.write_bytes(data)

        await asyncio.to_thread(_replace, self._on_host(path), fill, mode)

    async def status(self, path: BackendPath) -> FileStatus | None:
        try:
            about = self._on_host(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        kind: Literal["file", "folder", "other"] = "file" if stat.S_ISREG(about.st_mode) else "other"
        if stat.S_ISDIR(about.st_mode):
            kind = "folder"
        return FileStatus(kind=kind, size=about.st_size, mode=stat.S_IMODE(about.st_mode))

    async def upload(self, source: Path, target: BackendPath) -> None:
        await asyncio.to_thread(_copy, source, self._on_host(target))

    async def download(self, source: BackendPath, target: Path) -> None:
        await asyncio.to_thread(_copy, self._on_host(source), target)

    def _on_host(self, path: BackendPath) -> Path:
        if "\0" in path:
            raise ValueError(f"a path cannot hold a zero byte: {path!r}")
        return Path(self.folder(), Path(path).expanduser() if path == "~" or path.startswith("~/") else path)


def _read(path: Path) -> bytes:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(f"cannot use {str(path)!r}: it is neither a file nor a folder")
    return path.read_bytes()


def _copy(source: Path, target: Path) -> None:
    if not source.is_dir():
        mode = stat.S_IMODE(source.stat().st_mode) & 0o777
        _replace(target, lambda copy: _copy_content(source, copy), mode)
        return
    if target.resolve().is_relative_to(source.resolve()):
        raise OSError(f"cannot copy {str(source)!r} into itself ({str(target)!r})")
    _copy_folder(source, target)


def _copy_folder(source: Path, target: Path) -> None:
    """Copy what is in a folder; links stay links, devices and sockets are left out, as in every other place."""
    is_new = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    for found in sorted(source.iterdir()):
        copy = target / found.name
        if found.is_symlink():
            copy.unlink(missing_ok=True)
            copy.symlink_to(found.readlink())
        elif found.is_dir():
            _copy_folder(found, copy)
        elif found.is_file():
            _copy(found, copy)
    if is_new:
        # Last, because it may be a mode that lets nobody write.
        target.chmod(stat.S_IMODE(source.stat().st_mode) & 0o777)


def _copy_content(source: Path, copy: Path) -> None:
    shutil.copyfile(source, copy)


def _replace(path: Path, fill: Callable[[Path], None], mode: int | None) -> None:
    """Put a file that `fill` writes into the place of `path`; mode and owner of an old one are kept."""
    path = path.resolve() if path.is_symlink() else path
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    old = path.stat() if path.exists() else None
    if old is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    in_place = old is not None and not os.access(path.parent, os.W_OK)
    folder = Path(tempfile.gettempdir()) if in_place else path.parent
    copy = folder / f".toolcrib-{secrets.token_hex(8)}"
    # A new file gets what the user's mask leaves; one that may be private is private from its first byte.
    at_first = 0o666 if old is None and mode is None else 0o600
    descriptor = os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, at_first)
    try:
        if old is not None:
            in_place = in_place or not _given_to(descriptor, old)
            mode = stat.S_IMODE(old.st_mode) if mode is None else mode
        os.close(descriptor)
        fill(copy)
        if in_place:
            shutil.copyfile(copy, path)
            return
        if mode is not None:
            copy.chmod(mode)
        copy.replace(path)
    finally:
        copy.unlink(missing_ok=True)


def _given_to(descriptor: int, old: os.stat_result) -> bool:
    """Whether a new file now belongs to the owner of the old one."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
        return True
    try:
        os.fchown(descriptor, old.st_uid, old.st_gid)
    except PermissionError:
        return False
    return True
