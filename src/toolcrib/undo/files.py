"""The files of an environment as undo sees them: what is at a path, and how to restore it. Links are never followed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from toolcrib.config.files import OWNER_FILE, OWNER_FOLDER
from toolcrib.core.content_digest import digest_of
from toolcrib.core.context import CallMemo
from toolcrib.core.errors import PathChanged

Kind = Literal["missing", "file", "folder", "link", "special"]

COARSE_NS = 50_000_000
"""A file that changed this recently may change again without a new timestamp."""
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
TOO_LARGE = "it was larger than {:g} MB, so no copy was saved"
UNSAVED = "no copy could be saved: {}"
SPECIAL = "it is neither a file, a folder nor a link"


class FileState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What is at a path. The content of a file is in the store under its digest, unless `not_kept` says why not."""

    kind: Kind
    mode: int = 0
    """Permission bits of a file or folder."""
    owner: tuple[int, int] | None = None
    """User and group, if the environment reports them."""
    size: int = 0
    digest: bytes = b""
    """For a file that was read: the SHA-256 of its content."""
    inode: int = 0
    changed_ns: int = 0
    """When the content was last changed, in nanoseconds."""
    touched_ns: int = 0
    """When anything about the file was last changed; 0 if unknown, or too recent to show a further change."""
    link: bytes = b""
    """For a link: its target, as written."""
    stamp: str = ""
    """For a file that was not read: differs when it was written to or replaced, as far as is known."""
    not_kept: str = ""
    """Why there is no copy, as part of a sentence."""

    @property
    def has_copy(self) -> bool:
        """Whether the content, if there is any, was stored."""
        return self.kind != "file" or (not self.not_kept and (self.size == 0 or bool(self.digest)))

    def is_same(self, other: FileState) -> bool:
        """Whether both describe the same thing, mode and owner included."""
        if self.kind != other.kind:
            return False
        if self.kind in ("missing", "special"):
            return True
        if self.kind == "link":
            return self.link == other.link
        return self._same_access(other) and (self.kind == "folder" or self.has_content_of(other))

    def has_content_of(self, other: FileState) -> bool:
        """Whether two files have the same content, as far as is known."""
        if self.kind != "file" or other.kind != "file" or self.size != other.size:
            return False
        if self.size == 0:
            return True
        if self.digest and other.digest:
            return self.digest == other.digest
        return bool(self.stamp) and self.stamp == other.stamp

    def _same_access(self, other: FileState) -> bool:
        owners = {owner for owner in (self.owner, other.owner) if owner is not None}
        return self.mode == other.mode and len(owners) < 2


MISSING = FileState(kind="missing")


def state_of(about: os.stat_result, path: str | bytes) -> FileState:
    """What the status of a path says; a file without its digest."""
    kind = stat.S_IFMT(about.st_mode)
    if kind == stat.S_IFLNK:
        target = os.readlink(os.fsencode(path))  # noqa: PTH115 - what it says, unchanged
        return FileState(kind="link", link=target, inode=about.st_ino, size=about.st_size, touched_ns=_settled(about))
    mode, owner = stat.S_IMODE(about.st_mode), (about.st_uid, about.st_gid)
    if kind == stat.S_IFDIR:
        return FileState(kind="folder", mode=mode, owner=owner)
    if kind != stat.S_IFREG:
        return FileState(kind="special", inode=about.st_ino, size=about.st_size, touched_ns=_settled(about))
    return FileState(
        kind="file",
        mode=mode,
        owner=owner,
        size=about.st_size,
        inode=about.st_ino,
        changed_ns=about.st_mtime_ns,
        touched_ns=_settled(about),
        stamp=f"{about.st_dev:x}-{about.st_ino:x}-{about.st_mtime_ns:x}",
    )


def _settled(about: os.stat_result) -> int:
    """The time of the last change if a further change would get another one, else 0."""
    # Timestamps are as coarse as the clock of the kernel; some file systems only count seconds.
    coarse = COARSE_NS if about.st_ctime_ns % COARSE_NS else 2_000_000_000
    return about.st_ctime_ns if time.time_ns() - about.st_ctime_ns > coarse else 0


def with_content(state: FileState, content: bytes, memo: CallMemo | None = None) -> FileState:
    """The state of a file after its content was read."""
    return replace(state, size=len(content), digest=digest_of(content, memo), stamp="")


def read_state(
    path: str | bytes, state: FileState, largest: float, memo: CallMemo | None = None
) -> tuple[FileState, bytes | None]:
    """A file as it is when it is read: its state, and its content unless it is too large."""
    if state.size > largest:
        return replace(state, not_kept=TOO_LARGE.format(largest / 1_000_000)), None
    try:
        descriptor = os.open(path, READ)
    except OSError:
        return replace(state, not_kept="it could not be read, so no copy was saved"), None
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        about = os.fstat(descriptor)
        content = stream.read() if stat.S_ISREG(about.st_mode) else None
        if content is None or len(content) > largest:
            return replace(state, not_kept="it was replaced while it was read"), None
        found, later = with_content(state_of(about, path), content, memo), os.fstat(descriptor)
    if (about.st_ctime_ns, about.st_size) != (later.st_ctime_ns, later.st_size):
        found = replace(found, touched_ns=0)
    return found, content


if sys.platform != "win32":
    from toolcrib.environments.host_paths import FolderEntry, open_entry, writer_of


class LocalFiles:
    """The files of this machine. Paths are absolute; every method may block and raise OSError."""

    def __init__(self, memo: CallMemo | None = None) -> None:
        self._memo = memo

    def fetch(self, paths: Sequence[str], limit: int) -> None:
        """Look at these paths and everything below them at once, if that is quicker; here it is not."""

    def look(self, path: str) -> FileState:
        """What is at the path itself; a file without its digest."""
        try:
            about = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return MISSING
        except ValueError as error:  # A zero byte, which no path can have.
            raise OSError(str(error)) from error
        return state_of(about, path)

    def read(self, path: str, state: FileState, largest: float) -> tuple[FileState, bytes | None]:
        """A file as it is when it is read: its state, and its content unless it is too large."""
        return read_state(path, state, largest, self._memo)

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted."""
        return sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths

    def real(self, path: str) -> str:
        """The path with every link followed, including the last one."""
        return os.path.realpath(path)

    def put(self, path: str, state: FileState, content: bytes) -> None:
        """Make the path a file, folder or link as described, atomically; an existing file or link is replaced."""
        with _spot(path, make_folders=True) as spot:
            if state.kind == "folder":
                # Open for the owner until its content is back; its own mode comes last.
                with contextlib.suppress(FileExistsError):
                    os.mkdir(spot.name, OWNER_FOLDER, dir_fd=spot.folder)
                return
            # Always the same name, to let the next process remove what a killed one left.
            temporary = spot.beside(f".{hashlib.sha256(os.fsencode(spot.name)).hexdigest()[:16]}.undo")
            _unlink(temporary)
            try:
                if state.kind == "link":
                    os.symlink(state.link, temporary.name, dir_fd=temporary.folder)
                else:
                    _write(temporary, state, content)
                os.rename(temporary.name, spot.name, src_dir_fd=spot.folder, dst_dir_fd=spot.folder)
            finally:
                _unlink(temporary)

    def set_access(self, path: str, state: FileState) -> None:
        """Give a file or folder its mode and owner."""
        with _spot(path) as spot:
            try:
                descriptor = spot.open(os.O_RDONLY)
            except PermissionError:
                # Even the owner may not open it, but may change its mode.
                os.chmod(spot.name, state.mode, dir_fd=spot.folder)
                return
            try:
                _give(descriptor, state)
            finally:
                os.close(descriptor)

    def set_time(self, path: str, state: FileState) -> None:
        """Restore the modification time of a file that was deleted."""
        if state.changed_ns:
            times = state.changed_ns, state.changed_ns
            with _spot(path) as spot:
                os.utime(spot.name, ns=times, dir_fd=spot.folder, follow_symlinks=False)

    def sync(self) -> None:
        """Wait until everything that was restored is on the disk."""
        # Once for all files: a sync for each of thousands would take minutes.
        os.sync()

    def move(self, path: str, to: str) -> None:
        """Rename a file; nothing may exist at the new path."""
        with _spot(path) as source, _spot(to, make_folders=True) as target:
            if target.stat() is not None:
                raise FileExistsError(errno.EEXIST, "something else is there now", to)
            os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)

    def remove(self, path: str) -> None:
        """Remove a file, a link or an empty folder; a missing path is not an error."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), _spot(path) as spot:
            about = spot.stat()
            if about is not None and stat.S_ISDIR(about.st_mode):
                os.rmdir(spot.name, dir_fd=spot.folder)
            else:
                _unlink(spot)


@contextlib.contextmanager
def _spot(path: str, *, make_folders: bool = False) -> Iterator[FolderEntry]:
    """The location of a path; raises OSError if the path contains a link, even a new one."""
    try:
        with open_entry(path, make_folders=make_folders) as spot:
            yield spot
    except PathChanged as error:
        raise OSError("a link is in the way") from error


def _unlink(spot: FolderEntry) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(spot.name, dir_fd=spot.folder)


def _write(spot: FolderEntry, state: FileState, content: bytes) -> None:
    descriptor = spot.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE)
    try:
        writer_of(content)(descriptor)
        _give(descriptor, state)
    finally:
        os.close(descriptor)


def _give(descriptor: int, state: FileState) -> None:
    """Give a file or folder its owner and mode."""
    now = os.fstat(descriptor)
    if state.owner is not None and state.owner != (now.st_uid, now.st_gid):
        # Only root may give files away; for others the file becomes theirs, as with any editor.
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, *state.owner)
    os.fchmod(descriptor, state.mode)
