"""Texts and images of web pages, as files in the home."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from toolcrib.config.files import OWNER_FILE, make_folder

NAME_CHARS = 80


OWNERS = "owners"
"""In a folder of the cache, the folder with those of other owners than the home's."""


def owner_folder(folder: Path, owner: str) -> Path:
    """The part of a folder of the cache that belongs to an owner; the folder itself for the owner of the home."""
    return folder / OWNERS / owner if owner else folder


def owner_of_cached(cache: Path, path: str) -> str:
    """Whose file in the cache it is; empty for the owner of the home."""
    parts = Path(os.path.relpath(path, os.path.realpath(cache))).parts
    return parts[2] if len(parts) > 3 and parts[1] == OWNERS else ""


class PageFiles:
    """Texts and images of pages as files, for each owner; the oldest make room for new ones.

    `owner` says for whom a page is saved.
    """

    def __init__(self, folder: Path, max_bytes: int, owner: Callable[[], str] = lambda: "") -> None:
        self._all = folder
        self._max_bytes = max_bytes
        self._owner = owner

    def save(self, host: str, url: str, data: bytes, suffix: str) -> Path:
        """Write the content of a page, replacing what was saved for the same address before; raises OSError."""
        folder = owner_folder(self._all, self._owner())
        make_folder(folder)
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", host)[:NAME_CHARS].strip(".") or "page"
        path = folder / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:10]}{suffix}"
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
        for path in replaced.parent.iterdir():
            with contextlib.suppress(OSError):
                status = path.stat()
                if path != replaced and path.name != OWNERS:
                    files.append((status.st_mtime_ns, status.st_size, path))
                    total += status.st_size
        for _, size, path in sorted(files):
            if total <= self._max_bytes:
                return
            # Another process may have removed it first.
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
