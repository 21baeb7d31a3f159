"""Folders as tar streams: packed here piece by piece, unpacked here so that nothing lands outside of the target."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

CHUNK_BYTES = 256 * 1024


def packed(folder: Path) -> Iterator[bytes]:
    """What is in a folder, as the chunks of a tar archive; links stay links, devices and sockets are left out."""
    with tarfile.open(fileobj=io.BytesIO(), mode="w", format=tarfile.GNU_FORMAT) as maker:
        for path in _everything_in(folder):
            member = maker.gettarinfo(path, arcname=f"./{path.relative_to(folder)}")
            if member is None or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                continue
            # Names of our users mean nothing in the place; the archive is unpacked as its user's own.
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            yield member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
            if member.isreg():
                yield from _content(path, member.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _everything_in(folder: Path) -> Iterator[Path]:
    """Each file and folder below, a folder before what is in it."""
    for above, folders, files in os.walk(folder, onerror=_raise):
        for name in sorted([*folders, *files]):
            yield Path(above, name)


def _raise(error: OSError) -> None:
    raise error


def _content(path: Path, size: int) -> Iterator[bytes]:
    left = size
    with path.open("rb") as file:
        while left:
            chunk = file.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise OSError(f"{str(path)!r} became shorter while it was copied")
            left -= len(chunk)
            yield chunk
    yield bytes(-size % tarfile.BLOCKSIZE)


def unpack(archive: IO[bytes], target: Path) -> None:
    """Write what an archive holds into the folder `target`, modes kept, owned by us.

    A member that would land outside of it, or a link that points out of it, is left out; when all the others are
    written, that is raised as an OSError.
    """
    refused: list[str] = []
    is_new = not target.exists()

    def safe(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        if member.name in (".", "./") and not is_new:
            return None  # a folder that was there keeps its own mode
        try:
            checked = tarfile.data_filter(member, folder)
        except tarfile.FilterError as error:
            refused.append(f"{member.name!r} ({error})")
            return None
        # The filter also takes permissions away; these are the user's own files, only set-user-id bits are not kept.
        return checked.replace(mode=member.mode & 0o777, deep=False)

    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=archive, mode="r:") as opened:
        opened.extractall(target, filter=safe)
    if refused:
        raise OSError(f"not copied, because it leads out of {str(target)!r}: {', '.join(refused[:5])}")
