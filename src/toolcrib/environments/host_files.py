"""Files of this machine, for the `local` backend."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from toolcrib.core.environments import EVERY_LINE, BackendPath, FileSlice, FileStatus
from toolcrib.environments.host_paths import (
    ContentWriter,
    check_expected,
    link_error,
    open_entry,
    open_regular,
    replace_file,
    writer_of,
)


class HostFiles(Struct, frozen=True):
    """Reads and writes files directly; relative paths start at `folder()`, `~` at the user's home.

    Disk access runs in a thread of the loop's pool: a slow disk must not delay commands. Where links may be followed,
    they are resolved first; the operation itself then uses a path without links.
    """

    folder: Callable[[], BackendPath]

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes:
        return await asyncio.to_thread(_read, self._resolved(path, plain))

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice:
        return await asyncio.to_thread(_read_lines, self._resolved(path, plain), first, count, max_bytes)

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None:
        await asyncio.to_thread(replace_file, self._resolved(path, plain), writer_of(data), mode, expected)

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None:
        await asyncio.to_thread(_remove, self._unresolved(path, plain), expected)

    async def remove_folder(self, path: BackendPath) -> None:
        await asyncio.to_thread(_remove_folder, self._unresolved(path))

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None:
        await asyncio.to_thread(_make_folder, self._resolved(path), mode)

    async def make_link(self, path: BackendPath, target: str) -> None:
        await asyncio.to_thread(_make_link, self._unresolved(path), target)

    async def list_folder(self, path: BackendPath) -> list[str]:
        return await asyncio.to_thread(lambda: sorted(os.listdir(self._on_host(path))))  # noqa: PTH208 - names alone

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None:
        return await asyncio.to_thread(_status, self._on_host(path), follow_links)

    async def upload(self, source: Path, target: BackendPath) -> None:
        await asyncio.to_thread(copy_on_host, source, Path(self._on_host(target)))

    async def download(self, source: BackendPath, target: Path) -> None:
        await asyncio.to_thread(copy_on_host, Path(self._on_host(source)), target)

    def _on_host(self, path: BackendPath) -> str:
        if "\0" in path:
            raise ValueError(f"a path cannot contain a NUL byte: {path!r}")
        from_home = path == "~" or path.startswith("~/")
        return os.path.join(self.folder(), os.path.expanduser(path) if from_home else path)  # noqa: PTH111, PTH118

    def _resolved(self, path: BackendPath, plain: bool = False) -> str:
        """The absolute path to act on; keeps a trailing slash, which demands a folder."""
        written = self._on_host(path)
        if plain:
            return written
        return os.path.realpath(written) + ("/" if written.endswith("/") else "")

    def _unresolved(self, path: BackendPath, plain: bool = False) -> str:
        """Like `_resolved`, but does not follow a link at the end of the path."""
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
    with open_entry(path) as entry:
        descriptor, _ = open_regular(entry)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def _read_lines(path: str, first: int, count: int, max_bytes: int) -> FileSlice:
    with open_entry(path) as entry:
        descriptor, about = open_regular(entry)
    try:
        data, at_end = take_lines(descriptor, first, count, max_bytes)
        total = None
        if at_end and data:
            if count < EVERY_LINE:
                total = first - 1 + data.count(b"\n") + (not data.endswith(b"\n"))
        elif about.st_size <= COUNTED_BYTES:
            total = count_lines(descriptor)
    finally:
        os.close(descriptor)
    status = status_of(about, os.path.normpath(path))
    return FileSlice(data=data, first=first, status=status, at_end=at_end, total_lines=total)


def _remove(path: str, expected: str | None) -> None:
    with open_entry(path) as entry:
        about = entry.stat()
        if about is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        check_expected(entry, expected)
        os.unlink(entry.name, dir_fd=entry.folder)
        entry.sync_folder()


def _remove_folder(path: str) -> None:
    with open_entry(path) as entry:
        try:
            os.rmdir(entry.name, dir_fd=entry.folder)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or errno.EIO), path) from None
        entry.sync_folder()


def _make_folder(path: str, mode: int | None) -> None:
    with open_entry(path, make_folders=True) as entry:
        about = entry.stat()
        if about is None:
            os.mkdir(entry.name, dir_fd=entry.folder)
            if mode is not None:
                os.chmod(entry.name, mode, dir_fd=entry.folder)
            entry.sync_folder()
        elif stat.S_ISLNK(about.st_mode):
            raise link_error(path)
        elif not stat.S_ISDIR(about.st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def _make_link(path: str, target: str) -> None:
    with open_entry(path, make_folders=True) as entry:
        about = entry.stat()
        if about is not None and stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        copy = f".toolcrib-{secrets.token_hex(8)}"
        os.symlink(target, copy, dir_fd=entry.folder)
        try:
            os.rename(copy, entry.name, src_dir_fd=entry.folder, dst_dir_fd=entry.folder)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(copy, dir_fd=entry.folder)
            raise
        entry.sync_folder()


SKIP_BYTES = 1024 * 1024
COUNTED_BYTES = 1024 * 1024
"""All lines of a file up to this size are counted."""
LARGE_BYTES = 64 * 1024 * 1024
"""From this size on the system's `tail` skips lines: it uses vector instructions that Python lacks."""
ENDLESS_BYTES = 256 * 1024 * 1024
"""A virtual file of the kernel has no size; one that yields this much never ends."""
SYSTEM_PROGRAMS = "/usr/bin:/bin"


def take_lines(descriptor: int, first: int, count: int, max_bytes: int) -> tuple[bytes, bool]:
    """Lines `first` to `first + count - 1`, truncated at `max_bytes`, and whether the file ends there."""
    with _from_line(descriptor, first) as (source, data):
        pieces: list[bytes] = []
        size = lines = 0
        while True:
            data = data or os.read(source, min(SKIP_BYTES, max_bytes - size + 1))
            if not data:
                return b"".join(pieces), True
            if lines == count or size == max_bytes:
                return b"".join(pieces), False
            taken, found = _take_first_lines(data, count - lines)
            taken = taken[: max_bytes - size]
            pieces.append(taken)
            size += len(taken)
            lines += found
            data = data[len(taken) :]


@contextlib.contextmanager
def _from_line(descriptor: int, first: int) -> Iterator[tuple[int, bytes]]:
    """A descriptor to continue from, and what was already read of the wanted lines."""
    tail = shutil.which("tail", path=SYSTEM_PROGRAMS) if first > 1 and _is_large(descriptor) else None
    if tail is None:
        yield descriptor, _skipped(descriptor, first - 1)
        return
    # It gets the open file rather than the path, which may name another file by now.
    process = subprocess.Popen(
        [tail, "-n", f"+{first}"], stdin=descriptor, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
    )
    assert process.stdout is not None
    try:
        yield process.stdout.fileno(), b""
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def _is_large(descriptor: int) -> bool:
    return os.fstat(descriptor).st_size >= LARGE_BYTES


def count_lines(descriptor: int) -> int | None:
    """How many lines a small file has, including an unterminated last one; None if it turns out to be large."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    total, size, last = 0, 0, b"\n"
    while data := os.read(descriptor, COUNTED_BYTES):
        size += len(data)
        if size > COUNTED_BYTES:
            return None
        total += data.count(b"\n")
        last = data[-1:]
    return total + (last != b"\n")


def _skipped(descriptor: int, lines: int) -> bytes:
    """Skip this many lines; returns what was read beyond them."""
    if lines <= 0:
        return b""
    buffer = bytearray(SKIP_BYTES)
    view = memoryview(buffer)
    left = max(ENDLESS_BYTES, os.fstat(descriptor).st_size)
    while left > 0 and (size := os.readv(descriptor, [view])):
        found = buffer.count(b"\n", 0, size)
        if found >= lines:
            return bytes(view[_end_of_line(buffer, lines, found, size) : size])
        lines -= found
        left -= size
    return b""


def _end_of_line(buffer: bytes | bytearray, number: int, found: int, size: int) -> int:
    """Where the line with that number ends; searched from the nearer end."""
    if number > found // 2:
        at = size
        for _ in range(found - number + 1):
            at = buffer.rfind(b"\n", 0, at)
        return at + 1
    at = -1
    for _ in range(number):
        at = buffer.find(b"\n", at + 1)
    return at + 1


def _take_first_lines(data: bytes, count: int) -> tuple[bytes, int]:
    """At most this many lines of the data, and how many newlines they contain; not counted if every line is wanted."""
    if count == EVERY_LINE:
        return data, 0
    found = data.count(b"\n")
    if found < count:
        return data, found
    return data[: _end_of_line(data, count, found, len(data))], count


_CHUNK_BYTES = 1024 * 1024


def copy_on_host(source: Path, target: Path) -> None:
    """Copy a file or folder to exactly that path; keeps modes."""
    if not source.is_dir():
        _copy_file(source, target)
        return
    if target.resolve().is_relative_to(source.resolve()):
        raise OSError(f"cannot copy {str(source)!r} into itself ({str(target)!r})")
    _copy_folder(source, target)


def _copy_file(source: Path, target: Path) -> None:
    mode = stat.S_IMODE(source.stat().st_mode) & 0o777
    replace_file(os.path.realpath(target), _content_of(source), mode)


def _content_of(source: Path) -> ContentWriter:
    def fill(descriptor: int) -> None:
        with source.open("rb") as file, os.fdopen(descriptor, "wb", closefd=False) as copy:
            while chunk := file.read(_CHUNK_BYTES):
                copy.write(chunk)

    return fill


def _copy_folder(source: Path, target: Path) -> None:
    """Copy the content of a folder; keeps links, skips devices and sockets, as in every other environment."""
    is_new = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    for found in sorted(source.iterdir()):
        twin = target / found.name
        if found.is_symlink():
            twin.unlink(missing_ok=True)
            twin.symlink_to(found.readlink())
        elif found.is_dir():
            _copy_folder(found, twin)
        elif found.is_file():
            _copy_file(found, twin)
    if is_new:
        # Last, because the mode may forbid writing.
        target.chmod(stat.S_IMODE(source.stat().st_mode) & 0o777)
