"""Files in memory, for an environment that runs nothing."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import posixpath
from pathlib import Path

from toolcrib.core.environments import BackendPath, FileSlice, FileStatus
from toolcrib.core.errors import PathChanged


class FakeFiles:
    """The file methods of Environment. Paths are texts: nothing is made absolute, and links are not followed."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.modes: dict[str, int] = {}
        self.links: dict[str, str] = {}
        """What each link says, by its path."""
        self.folders: set[str] = set()
        """Those that were made; others are there because something is in them."""

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes:
        if path in self.files:
            return self.files[path]
        if plain and path in self.links:
            raise PathChanged(f"{path!r} is a link to {self.links[path]!r}")
        if self._is_folder(path):
            raise _refusal(IsADirectoryError, errno.EISDIR, path)
        raise _refusal(FileNotFoundError, errno.ENOENT, path)

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice:
        content = await self.read_file(path, plain=plain)
        lines = content.split(b"\n")
        lines = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
        asked = b"".join(lines[first - 1 : first - 1 + count])
        status = await self.status(path)
        assert status is not None
        return FileSlice(
            data=asked[:max_bytes],
            first=first,
            status=status,
            at_end=len(asked) <= max_bytes and first - 1 + count >= len(lines),
            total_lines=len(lines),
        )

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None:
        self._check(path, expected, plain)
        if self._is_folder(path):
            raise _refusal(IsADirectoryError, errno.EISDIR, path)
        self.files[path] = data
        if mode is not None:
            self.modes[path] = mode

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None:
        if self._is_folder(path):
            raise _refusal(IsADirectoryError, errno.EISDIR, path)
        if path not in self.files and path not in self.links:
            raise _refusal(FileNotFoundError, errno.ENOENT, path)
        self._check(path, expected, plain=False)
        self.files.pop(path, None)
        self.links.pop(path, None)

    async def remove_folder(self, path: BackendPath) -> None:
        if self._names(path):
            raise _refusal(OSError, errno.ENOTEMPTY, path)
        if path not in self.folders:
            raise _refusal(FileNotFoundError, errno.ENOENT, path)
        self.folders.discard(path)

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None:
        if path in self.files:
            raise _refusal(FileExistsError, errno.EEXIST, path)
        if not self._is_folder(path) and mode is not None:
            self.modes[path] = mode
        self.folders.add(path)

    async def make_link(self, path: BackendPath, target: str) -> None:
        if self._is_folder(path):
            raise _refusal(IsADirectoryError, errno.EISDIR, path)
        self.files.pop(path, None)
        self.links[path] = target

    async def list_folder(self, path: BackendPath) -> list[str]:
        if path in self.files:
            raise _refusal(NotADirectoryError, errno.ENOTDIR, path)
        if not self._is_folder(path):
            raise _refusal(FileNotFoundError, errno.ENOENT, path)
        return self._names(path)

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None:
        if path in self.links and not follow_links:
            return FileStatus(kind="link", size=0, mode=0o777, real=path, link=self.links[path])
        if path in self.files:
            content = self.files[path]
            mode, stamp = self.modes.get(path, 0o644), hashlib.sha256(content).hexdigest()
            return FileStatus(kind="file", size=len(content), mode=mode, real=path, stamp=stamp)
        if self._is_folder(path):
            return FileStatus(kind="folder", size=0, mode=self.modes.get(path, 0o755), real=path)
        return None

    async def upload(self, source: Path, target: BackendPath) -> None:
        """Copy a file into the place; folders are not copied here."""
        data, about = await asyncio.to_thread(lambda: (source.read_bytes(), source.stat()))
        await self.write_file(target, data, mode=about.st_mode & 0o777)

    async def download(self, source: BackendPath, target: Path) -> None:
        await asyncio.to_thread(target.write_bytes, await self.read_file(source))

    def _is_folder(self, path: str) -> bool:
        return path == "/" or path in self.folders or bool(self._names(path))

    def _names(self, path: str) -> list[str]:
        above = path.rstrip("/") + "/"
        known = (*self.files, *self.links, *self.folders)
        return sorted({one[len(above) :].partition("/")[0] for one in known if one.startswith(above) and one != above})

    def _check(self, path: str, expected: str | None, plain: bool) -> None:
        above = path
        while plain and above not in ("", "/"):
            if above in self.links:
                raise PathChanged(f"{path!r} leads through a link to {self.links[above]!r}")
            above = posixpath.dirname(above)
        if expected is None:
            return
        content = self.files.get(path)
        if (content is None) != (expected == "") or (content is not None and _digest(content) != expected):
            raise PathChanged(f"{path!r} has changed since it was looked at; read it again")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _refusal(kind: type[OSError], number: int, path: str) -> OSError:
    return kind(number, os.strerror(number), path)
