"""What a file is at one moment, copies of it, and how it is put back. No link is ever followed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from pathlib import Path
from typing import Literal

import msgspec

from toolcrib.config.files import OWNER_FILE, make_folder

MAX_FILE_BYTES = 10_000_000
Kind = Literal["missing", "file", "link", "too_large", "no_room", "unreadable", "special"]
CANNOT_BE_KEPT: dict[Kind, str] = {
    "too_large": f"it was larger than {MAX_FILE_BYTES // 1_000_000} MB, so that no copy was kept",
    "no_room": "there was no room for another copy",
    "unreadable": "it could not be read, so that no copy was kept",
    "special": "it is neither a file nor a link",
}


class FileState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was at a path."""

    kind: Kind
    digest: str = ""
    """Of a file: the SHA-256 of its content."""
    mode: int = 0
    link: str = ""
    """Of a link: where it points to."""
    size: int = 0
    changed_ns: int = 0
    """Of what no copy was kept of: when it was last changed."""

    def is_same(self, other: FileState) -> bool:
        """Whether both describe the same thing; the mode of a file counts too."""
        if self.digest and other.digest:
            return (self.digest, self.mode) == (other.digest, other.mode)
        return self == other


def state_of(path: Path, limit: int = MAX_FILE_BYTES) -> tuple[FileState, bytes]:
    """What is at the path now, and its content where it is a file that can be kept."""
    try:
        about = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return FileState(kind="missing"), b""
    except OSError:
        return FileState(kind="unreadable"), b""
    if stat.S_ISLNK(about.st_mode):
        return FileState(kind="link", link=str(path.readlink())), b""
    if not stat.S_ISREG(about.st_mode):
        return FileState(kind="special"), b""
    mode = stat.S_IMODE(about.st_mode)
    try:
        content = _content(path, limit) if about.st_size <= limit else None
    except OSError:
        return FileState(kind="unreadable", mode=mode, size=about.st_size, changed_ns=about.st_mtime_ns), b""
    if content is None:
        return FileState(kind="too_large", mode=mode, size=about.st_size, changed_ns=about.st_mtime_ns), b""
    digest = hashlib.sha256(content).hexdigest()
    return FileState(kind="file", digest=digest, mode=mode, size=len(content)), content


def put_back(path: Path, state: FileState, content: bytes) -> None:
    """Make the path what it was; in one step, so that nobody sees half a file."""
    if state.kind == "missing":
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.undo")
    try:
        if state.kind == "link":
            temporary.symlink_to(state.link)
        else:
            _write_new(temporary, content)
            temporary.chmod(state.mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save_copy(folder: Path, digest: str, content: bytes) -> None:
    """Keep a content under its digest; it is on disk when this returns."""
    target = folder / digest
    if target.exists():
        return
    make_folder(folder)
    temporary = folder / f".{digest}.{secrets.token_hex(4)}"
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(temporary.unlink, missing_ok=True)
        _write_new(temporary, content)
        temporary.replace(target)
        on_failure.pop_all()


def _content(path: Path, limit: int) -> bytes | None:
    """The content of a regular file; None when it grew beyond the limit while it was looked at."""
    # Neither a link nor a pipe that was put there since the first look is opened or waited for.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(f"{str(path)!r} is no file any more")
        content = stream.read(limit + 1)
    return content if len(content) <= limit else None


def _write_new(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
