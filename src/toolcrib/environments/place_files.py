"""The part of an environment that is about files: all of it is done by the `files` of its parts."""

from __future__ import annotations

from pathlib import Path

from toolcrib.core.environments import BackendPath, FileSlice, FileStatus
from toolcrib.environments.session_parts import PlaceParts


class PlaceFiles:
    """The file methods of Environment."""

    parts: PlaceParts
    """Known once the place is open."""

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes:
        return await self.parts.files.read_file(path, plain=plain)

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice:
        return await self.parts.files.read_lines(path, first=first, count=count, max_bytes=max_bytes, plain=plain)

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None:
        await self.parts.files.write_file(path, data, mode=mode, expected=expected, plain=plain)

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None:
        await self.parts.files.remove_file(path, expected=expected, plain=plain)

    async def remove_folder(self, path: BackendPath) -> None:
        await self.parts.files.remove_folder(path)

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None:
        await self.parts.files.make_folder(path, mode=mode)

    async def make_link(self, path: BackendPath, target: str) -> None:
        await self.parts.files.make_link(path, target)

    async def list_folder(self, path: BackendPath) -> list[str]:
        return await self.parts.files.list_folder(path)

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None:
        return await self.parts.files.status(path, follow_links=follow_links)

    async def upload(self, source: Path, target: BackendPath) -> None:
        await self.parts.files.upload(source, target)

    async def download(self, source: BackendPath, target: Path) -> None:
        await self.parts.files.download(source, target)
