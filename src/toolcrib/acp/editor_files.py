"""The files of an environment, read and written through the editor where it offers that.

Unsaved buffers are read instead of the disk, and edits land in the buffers. Only text files inside the session's
folder go through the editor. The disk decides what may be reached: each file is first opened there, under the rules of
the environment. If the editor does not give the text of a file, the disk does; if it refuses an edit, the edit fails.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import posixpath
from collections import OrderedDict
from pathlib import Path

from msgspec.structs import replace

from toolcrib.acp.editor import EditorConnection, EditorRefused
from toolcrib.acp.tool_calls import read_text_file
from toolcrib.core.environments import (
    EVERY_LINE,
    BackendPath,
    FileSlice,
    FileStatus,
)
from toolcrib.core.errors import PathChanged
from toolcrib.environments.shell import EnvironmentFiles

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
BUFFER_BYTES = 10_000_000
"""Larger files are read from disk."""
MAX_KNOWN = 256
MARK = "\ufeff"


class BufferTexts:
    """What the tools last read from and wrote to the editor's buffers, for the diffs that it shows."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._replaced: dict[str, str] = {}

    def seen(self, path: str, text: str) -> None:
        self._texts[path] = text
        self._texts.move_to_end(path)
        if len(self._texts) > MAX_KNOWN:
            gone, _ = self._texts.popitem(last=False)
            self._replaced.pop(gone, None)

    def written(self, path: str, old: str, new: str) -> None:
        self._replaced[path] = old
        self.seen(path, new)

    def read(self, path: str) -> str | None:
        """The text of a file: of its buffer if we have just used it, else of the disk."""
        return self._texts[path] if path in self._texts else read_text_file(path)

    def replaced(self, path: str, before: str | None) -> str | None:
        """What the latest edit of a buffer replaced; `before` if none did."""
        return self._replaced.pop(path, before)


class EditorFiles:
    """The files of an environment of this machine, as the editor has them. Runs on the environment's loop.

    Only what tools read and write with a checked path (`plain`) goes through the editor; the rest are the
    environment's own files.
    """

    def __init__(
        self, inner: EnvironmentFiles, editor: EditorConnection, session_id: str, folder: str, texts: BufferTexts
    ) -> None:
        self._inner = inner
        self._editor = editor
        self._session_id = session_id
        self._inside = os.path.realpath(folder).rstrip("/") + "/"
        self._texts = texts

    async def read_file(self, path: BackendPath, *, plain: bool = False) -> bytes:
        data = await self._inner.read_file(path, plain=plain)
        buffer = await self._buffer(path, data) if plain else None
        return data if buffer is None else buffer

    def _is_readable(self, path: str) -> bool:
        return self._editor.reads_files and path.startswith(self._inside)

    async def read_lines(
        self, path: BackendPath, *, first: int, count: int, max_bytes: int, plain: bool = False
    ) -> FileSlice:
        if not plain or not self._is_readable(path):
            return await self._inner.read_lines(path, first=first, count=count, max_bytes=max_bytes, plain=plain)
        whole = await self._inner.read_lines(path, first=1, count=EVERY_LINE, max_bytes=BUFFER_BYTES, plain=True)
        buffer = await self._buffer(path, whole.data) if whole.at_end else None
        if buffer is None or buffer == whole.data:
            return await self._inner.read_lines(path, first=first, count=count, max_bytes=max_bytes, plain=True)
        return _slice(buffer, first, count, max_bytes, whole.status)

    async def write_file(
        self,
        path: BackendPath,
        data: bytes,
        *,
        mode: int | None = None,
        expected: str | None = None,
        plain: bool = False,
    ) -> None:
        text = _text(data)
        is_editors = plain and self._editor.writes_files and path.startswith(self._inside)
        exists, before = await self._before(path) if is_editors and text is not None else (False, None)
        if text is None or before is None:
            await self._inner.write_file(path, data, mode=mode, expected=expected, plain=plain)
            return
        if expected is not None and expected != (hashlib.sha256(before).hexdigest() if exists else ""):
            raise PathChanged(f"{path!r} was changed in the editor meanwhile; read it again")
        if not exists:
            # An editor may not create the folders of a file.
            await self._inner.make_folder(BackendPath(posixpath.dirname(path)))
        request = self._editor.client.write_text_file(session_id=self._session_id, path=path, content=text)
        try:
            await self._editor.request(request, ANSWER_SECONDS)
        except EditorRefused as error:
            raise PermissionError(errno.EACCES, f"the editor did not write it ({error})", path) from error
        self._texts.written(path, _text(before) or "", text)

    async def _before(self, path: BackendPath) -> tuple[bool, bytes | None]:
        """Whether a file exists, and what an edit replaces; None for what is not text, which no editor can have."""
        try:
            before = await self.read_file(path, plain=True)
        except FileNotFoundError:
            return False, b""
        return True, before if _text(before) is not None else None

    async def _buffer(self, path: str, on_disk: bytes) -> bytes | None:
        """The text of the buffer as the file's bytes would be; None if the disk has to do."""
        known = _text(on_disk)
        if known is None or not self._is_readable(path) or len(on_disk) > BUFFER_BYTES:
            return None
        request = self._editor.client.read_text_file(session_id=self._session_id, path=path)
        try:
            text = (await self._editor.request(request, ANSWER_SECONDS)).content
        except EditorRefused as error:
            logger.info("the editor did not read %s, so the disk is used: %s", path, error)
            return None
        text = _as_on_disk(text, known)
        self._texts.seen(path, text)
        return text.encode("utf-8", "replace")

    # The disk alone

    async def remove_file(self, path: BackendPath, *, expected: str | None = None, plain: bool = False) -> None:
        await self._inner.remove_file(path, expected=expected, plain=plain)

    async def remove_folder(self, path: BackendPath) -> None:
        await self._inner.remove_folder(path)

    async def make_folder(self, path: BackendPath, *, mode: int | None = None) -> None:
        await self._inner.make_folder(path, mode=mode)

    async def make_link(self, path: BackendPath, target: str) -> None:
        await self._inner.make_link(path, target)

    async def list_folder(self, path: BackendPath) -> list[str]:
        return await self._inner.list_folder(path)

    async def status(self, path: BackendPath, *, follow_links: bool = True) -> FileStatus | None:
        return await self._inner.status(path, follow_links=follow_links)

    async def upload(self, source: Path, target: BackendPath) -> None:
        await self._inner.upload(source, target)

    async def download(self, source: BackendPath, target: Path) -> None:
        await self._inner.download(source, target)


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _as_on_disk(text: str, on_disk: str) -> str:
    """An editor's text with the mark and the line ends of the file, which buffers do not show."""
    if "\r\n" in on_disk and "\r" not in text:
        windows = on_disk.count("\r\n") * 2 > on_disk.count("\n")
        if text == on_disk.replace("\r\n", "\n").removeprefix(MARK):
            return on_disk
        text = text.replace("\n", "\r\n") if windows else text
    return MARK + text if on_disk.startswith(MARK) and not text.startswith(MARK) else text


def _slice(data: bytes, first: int, count: int, max_bytes: int, status: FileStatus) -> FileSlice:
    lines = _lines(data)
    wanted = b"".join(lines[first - 1 : first - 1 + count])
    # The stamp of the file does not change with the buffer, and readers recognise a version by it.
    stamp = f"{status.stamp}.{hashlib.sha256(data).hexdigest()[:16]}"
    return FileSlice(
        data=wanted[:max_bytes],
        first=first,
        status=replace(status, size=len(data), stamp=stamp),
        at_end=first - 1 + count >= len(lines) and len(wanted) <= max_bytes,
        total_lines=len(lines),
    )


def _lines(data: bytes) -> list[bytes]:
    """The lines by LF alone, as on disk."""
    pieces = data.split(b"\n")
    last = pieces.pop()
    return [piece + b"\n" for piece in pieces] + ([last] if last else [])
