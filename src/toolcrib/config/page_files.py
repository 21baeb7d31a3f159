"""Texts and images of web pages, as files in the home."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

from toolcrib.config.files import OWNER_FILE, make_folder

NAME_CHARS = 80


class PageFiles:
    """Texts and images of pages as files, readable only by their owner; the oldest make room for new ones."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def save(self, host: str, url: str, data: bytes, suffix: str) -> Path:
        """Write the content of a page, replacing what was saved for the same address before; raises OSError."""
        make_folder(self._folder)
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", host)[:NAME_CHARS].strip(".") or "page"
        path = self._folder / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:10]}{suffix}"
        self._make_room(len(data), path)
        # A name of its own, because two calls may save the same page at once.
        draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        return path

    def _make_room(self, wanted: int, replaced: Path) -> None:
        files = []
        total = wanted
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                status = path.stat()
                if path != replaced:
                    files.append((status.st_mtime_ns, status.st_size, path))
                    total += status.st_size
        for _, size, path in sorted(files):
            if total <= self._max_bytes:
                return
            # Another process may have removed it first.
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
