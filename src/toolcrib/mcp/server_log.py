"""What a server prints as errors, in a file that cannot grow without end."""

from __future__ import annotations

import re
from pathlib import Path

from toolcrib.config.files import OWNER_FILE, make_folder

MAX_LOG_BYTES = 1024 * 1024
TAIL_BYTES = 2000
_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


class ServerLog:
    """The log of one server: at most twice MAX_LOG_BYTES, in two files. Logging never fails a connection."""

    def __init__(self, folder: Path, server: str) -> None:
        name = _NOT_IN_FILE_NAMES.sub("_", server).lstrip(".")[:100] or "server"
        self.path = folder / f"{name}.log"
        self._size = -1
        self._recent = b""

    @property
    def tail(self) -> str:
        """What was printed last."""
        return self._recent.decode("utf-8", "replace").strip()

    def begin(self, line: str) -> None:
        """Note that a new process or connection begins."""
        self._recent = b""
        self._append(f"--- {line}\n".encode("utf-8", "replace"))

    def write(self, data: bytes) -> None:
        self._recent = (self._recent + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        self._append(data[-MAX_LOG_BYTES:])

    def _append(self, data: bytes) -> None:
        try:
            self._make_room(len(data))
            with self.path.open("ab") as stream:
                stream.write(data)
            self._size += len(data)
        except OSError:
            return  # A full disk is no reason to lose the server.

    def _make_room(self, wanted: int) -> None:
        if self._size < 0:
            make_folder(self.path.parent)
            self.path.touch(mode=OWNER_FILE)
            self._size = self.path.stat().st_size
        if self._size + wanted > MAX_LOG_BYTES:
            self.path.replace(self.path.with_suffix(".log.1"))
            self.path.touch(mode=OWNER_FILE)
            self._size = 0
