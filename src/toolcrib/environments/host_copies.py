"""Copies files and folders of this machine to another path of this machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from toolcrib.environments.host_writing import Fill, replace_file

_CHUNK_BYTES = 1024 * 1024


def copy(source: Path, target: Path) -> None:
    """Copy a file or folder to exactly that path, modes kept."""
    if not source.is_dir():
        _copy_file(source, target)
        return
    if target.resolve().is_relative_to(source.resolve()):
        raise OSError(f"cannot copy {str(source)!r} into itself ({str(target)!r})")
    _copy_folder(source, target)


def _copy_file(source: Path, target: Path) -> None:
    mode = stat.S_IMODE(source.stat().st_mode) & 0o777
    replace_file(os.path.realpath(target), _content_of(source), mode)


def _content_of(source: Path) -> Fill:
    def fill(descriptor: int) -> None:
        with source.open("rb") as file, os.fdopen(descriptor, "wb", closefd=False) as copy:
            while chunk := file.read(_CHUNK_BYTES):
                copy.write(chunk)

    return fill


def _copy_folder(source: Path, target: Path) -> None:
    """Copy what is in a folder; links stay links, devices and sockets are left out, as in every other place."""
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
        # Last, because it may be a mode that lets nobody write.
        target.chmod(stat.S_IMODE(source.stat().st_mode) & 0o777)
