"""The contents that undo keeps: one pack for each call, so that any number of files costs one wait for the disk.

The line of the journal that belongs to a call stands at the end of its pack too. So the journal itself need not be
brought to the disk: what a power cut takes from it is found in the packs.

A killed process loses nothing of what was written. A power cut may, until the disk has it: that is asked for before the
call runs, and not waited for, because a disk may take longer than the call.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from pathlib import Path

from toolcrib.config.files import OWNER_FILE

SUFFIX = ".pack"
_END = struct.Struct("<Q8s")
_MARK = b"toolcrib"


class PackWriter:
    """Takes the contents of one call. Nothing of it counts before `close`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.size = 0
        self._path = folder / f"{name}{SUFFIX}"
        self._descriptor: int | None = None

    def add(self, content: bytes) -> int:
        """Where in the pack the content begins."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE)
        # To its place, so that what a full disk cut short is written over by the next.
        offset, left = os.lseek(self._descriptor, self.size, os.SEEK_SET), memoryview(content)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self.size += len(content)
        return offset

    def is_there(self, name: str) -> bool:
        """Whether a pack of the same session is there; another process may have dropped it to make room."""
        return name == self.name or self._path.with_name(f"{name}{SUFFIX}").exists()

    @property
    def is_empty(self) -> bool:
        return self._descriptor is None

    def close(self, line: bytes = b"", *, wait: bool = False) -> None:
        """Put the line at the end, and have all of it brought to the disk; wait for that only if told to."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            end = line + _END.pack(len(line), _MARK)
            os.lseek(descriptor, self.size, os.SEEK_SET)
            if os.write(descriptor, end) != len(end):
                raise OSError(f"the disk is full: {str(self._path)!r} cannot be written")
            self.size += len(end)
        except BaseException:
            os.close(descriptor)
            raise
        bring_to_disk(descriptor, wait=wait)

    def discard(self) -> None:
        """Remove what was written: nothing refers to it."""
        with contextlib.suppress(OSError):
            self.close()
        self._path.unlink(missing_ok=True)


def bring_to_disk(descriptor: int, *, wait: bool) -> None:
    """Have what was written brought to the disk, and close the descriptor."""
    if wait:
        _settle(descriptor)
    else:
        threading.Thread(target=_settle, args=(descriptor,), name="toolcrib-undo-disk", daemon=True).start()


def _settle(descriptor: int) -> None:
    try:
        # A disk that fails here is noticed when the copy is read: its digest is checked.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_content(folder: Path, pack: str, offset: int, size: int) -> bytes:
    """A content out of a pack; raises FileNotFoundError when it was dropped, OSError when it is cut short."""
    if size == 0:
        return b""
    with (folder / f"{pack}{SUFFIX}").open("rb") as stream:
        stream.seek(offset)
        content = stream.read(size)
    if len(content) != size:
        raise OSError("the copy is damaged")
    return content


def line_of(folder: Path, pack: str) -> bytes:
    """The line of the journal at the end of a pack; empty when the pack is not whole."""
    try:
        with (folder / f"{pack}{SUFFIX}").open("rb") as stream:
            stream.seek(-_END.size, os.SEEK_END)
            length, mark = _END.unpack(stream.read(_END.size))
            if mark != _MARK:
                return b""
            stream.seek(-_END.size - length, os.SEEK_END)
            return stream.read(length)
    except OSError:
        return b""


def pack_names(folder: Path) -> set[str]:
    try:
        return {entry.name.removesuffix(SUFFIX) for entry in os.scandir(folder) if entry.name.endswith(SUFFIX)}
    except OSError:
        return set()


def packs_of(folder: Path) -> list[os.DirEntry[str]]:
    """The packs of a session, the oldest first."""
    try:
        found = [entry for entry in os.scandir(folder) if entry.name.endswith(SUFFIX)]
        return sorted(found, key=lambda entry: entry.stat().st_mtime_ns)
    except OSError:
        return []


def size_of(folder: Path) -> int:
    """How many bytes a session takes on the disk."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))
    except OSError:
        return 0
