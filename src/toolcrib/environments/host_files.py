"""Files of this machine, for a backend whose place is this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from toolcrib.core.environments import BackendPath, FileSlice, FileStatus
from toolcrib.environments import host_copies, host_lines
from toolcrib.environments.host_paths import has_link, open_regular, spot_of
from toolcrib.environments.host_writing import check_expected, fill_with, replace_file


class HostFiles(Struct, frozen=True):
    """Reads and writes files directly; relative paths start at `folder()`, `~` at the user's home.

    Work on the disk runs in a thread of the loop's pool: a slow disk must not hold up commands. Where links may be
    followed, they are followed first; what is done then, is done to a path without links.
    """

    folder: Callable[[], BackendPath]

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes:
        return await asyncio.to_thread(_read, self._followed(path, plain))

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice:
        return await asyncio.to_thread(_read_lines, self._followed(path, plain), first, count, max_bytes)

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None:
        await asyncio.to_thread(replace_file, self._followed(path, plain), fill_with(data), mode, expected)

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None:
        await asyncio.to_thread(_remove, self._itself(path, plain), expected)

    async def remove_folder(self, path: BackendPath) -> None:
        await asyncio.to_thread(_remove_folder, self._itself(path))

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None:
        await asyncio.to_thread(_make_folder, self._followed(path), mode)

    async def make_link(self, path: BackendPath, target: str) -> None:
        await asyncio.to_thread(_make_link, self._itself(path), target)

    async def list_folder(self, path: BackendPath) -> list[str]:
        return await asyncio.to_thread(lambda: sorted(os.listdir(self._on_host(path))))  # noqa: PTH208 - names alone

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None:
        return await asyncio.to_thread(_status, self._on_host(path), follow_links)

    async def upload(self, source: Path, target: BackendPath) -> None:
        await asyncio.to_thread(host_copies.copy, source, Path(self._on_host(target)))

    async def download(self, source: BackendPath, target: Path) -> None:
        await asyncio.to_thread(host_copies.copy, Path(self._on_host(source)), target)

    def _on_host(self, path: BackendPath) -> str:
        if "\0" in path:
            raise ValueError(f"a path cannot hold a zero byte: {path!r}")
        from_home = path == "~" or path.startswith("~/")
        return os.path.join(self.folder(), os.path.expanduser(path) if from_home else path)  # noqa: PTH111, PTH118

    def _followed(self, path: BackendPath, plain: bool = False) -> str:
        """The absolute path to act on; the slash that asks for a folder is kept."""
        written = self._on_host(path)
        if plain:
            return written
        return os.path.realpath(written) + ("/" if written.endswith("/") else "")

    def _itself(self, path: BackendPath, plain: bool = False) -> str:
        """The same, but of a link at the end the path of the link."""
        written = os.path.normpath(self._on_host(path))
        if plain:
            return written
        above, name = os.path.split(written)
        return os.path.join(os.path.realpath(above), name)  # noqa: PTH118


def status_of(about: os.stat_result, real: str, link: str = "") -> FileStatus:
    kind: Literal["file", "folder", "link", "other"] = "other"
    if stat.S_ISREG(about.st_mode):
        kind = "file"
    elif stat.S_ISDIR(about.st_mode):
        kind = "folder"
    elif stat.S_ISLNK(about.st_mode):
        kind = "link"
    return FileStatus(
        kind=kind,
        size=about.st_size,
        mode=stat.S_IMODE(about.st_mode),
        real=BackendPath(real),
        link=link,
        stamp=f"{about.st_dev:x}.{about.st_ino:x}.{about.st_size:x}.{about.st_mtime_ns:x}.{about.st_ctime_ns:x}",
    )


def _status(path: str, follow_links: bool) -> FileStatus | None:
    try:
        if follow_links:
            return status_of(os.stat(path), os.path.realpath(path))  # noqa: PTH116
        path = os.path.normpath(path)
        about = os.lstat(path)
        link = os.readlink(path) if stat.S_ISLNK(about.st_mode) else ""  # noqa: PTH115 - as it is written
    except (FileNotFoundError, NotADirectoryError):
        return None
    above, name = os.path.split(path)
    return status_of(about, os.path.normpath(os.path.join(os.path.realpath(above), name)), link)  # noqa: PTH118


def _read(path: str) -> bytes:
    with spot_of(path) as spot:
        descriptor, _ = open_regular(spot)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def _read_lines(path: str, first: int, count: int, max_bytes: int) -> FileSlice:
    with spot_of(path) as spot:
        descriptor, about = open_regular(spot)
    try:
        data, at_end = host_lines.take_lines(descriptor, first, count, max_bytes)
        total = None
        if at_end and data:
            total = first - 1 + data.count(b"\n") + (not data.endswith(b"\n"))
        elif about.st_size <= host_lines.COUNTED_BYTES:
            total = host_lines.count_lines(descriptor)
    finally:
        os.close(descriptor)
    status = status_of(about, os.path.normpath(path))
    return FileSlice(data=data, first=first, status=status, at_end=at_end, total_lines=total)


def _remove(path: str, expected: str | None) -> None:
    with spot_of(path) as spot:
        about = spot.about()
        if about is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        check_expected(spot, expected)
        os.unlink(spot.name, dir_fd=spot.folder)
        spot.sync_folder()


def _remove_folder(path: str) -> None:
    with spot_of(path) as spot:
        try:
            os.rmdir(spot.name, dir_fd=spot.folder)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or errno.EIO), path) from None
        spot.sync_folder()


def _make_folder(path: str, mode: int | None) -> None:
    with spot_of(path, make_folders=True) as spot:
        about = spot.about()
        if about is None:
            os.mkdir(spot.name, dir_fd=spot.folder)
            if mode is not None:
                os.chmod(spot.name, mode, dir_fd=spot.folder)
            spot.sync_folder()
        elif stat.S_ISLNK(about.st_mode):
            raise has_link(path)
        elif not stat.S_ISDIR(about.st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def _make_link(path: str, target: str) -> None:
    with spot_of(path, make_folders=True) as spot:
        about = spot.about()
        if about is not None and stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        copy = f".toolcrib-{secrets.token_hex(8)}"
        os.symlink(target, copy, dir_fd=spot.folder)
        try:
            os.rename(copy, spot.name, src_dir_fd=spot.folder, dst_dir_fd=spot.folder)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(copy, dir_fd=spot.folder)
            raise
        spot.sync_folder()
