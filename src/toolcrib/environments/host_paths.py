"""Opens and replaces files on this machine without following links, one folder at a time.

Replacing is atomic: after a crash the old or the new file is there, never a part.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator

from msgspec import Struct

from toolcrib.core.errors import PathChanged

# A folder that may be traversed but not listed can only be opened with O_PATH.
_TRAVERSE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderEntry(Struct, frozen=True):
    """A name in an open folder: operations happen there, even if the path changes meanwhile."""

    folder: int
    """A descriptor, for `dir_fd`."""
    name: str
    path: str
    """The full path, for messages."""

    def stat(self) -> os.stat_result | None:
        """The status without following links; None when nothing is there."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, flags: int, mode: int = 0o666) -> int:
        return os.open(self.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=self.folder)

    def beside(self, name: str) -> FolderEntry:
        return FolderEntry(self.folder, name, os.path.join(os.path.dirname(self.path), name))  # noqa: PTH118, PTH120

    def sync_folder(self) -> None:
        """Flush the folder to disk, if it may be opened for that."""
        with contextlib.suppress(OSError):
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.folder)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def open_entry(path: str, *, make_folders: bool = False) -> Iterator[FolderEntry]:
    """The entry of an absolute path without links; raises PathChanged for a link in one of its parent folders."""
    *above, name = [part for part in os.path.normpath(path).split("/") if part] or ["."]
    folder = os.open("/", _TRAVERSE)
    try:
        for part in above:
            inner = _step(FolderEntry(folder, part, path), make_folders)
            os.close(folder)
            folder = inner
        yield FolderEntry(folder, name, path)
    finally:
        os.close(folder)


def _step(entry: FolderEntry, make: bool) -> int:
    try:
        return os.open(entry.name, _TRAVERSE, dir_fd=entry.folder)
    except FileNotFoundError:
        if not make:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), entry.path) from None
    except OSError as error:
        raise _open_error(error, entry) from None
    with contextlib.suppress(FileExistsError):
        os.mkdir(entry.name, dir_fd=entry.folder)
        entry.sync_folder()
    try:
        return os.open(entry.name, _TRAVERSE, dir_fd=entry.folder)
    except OSError as error:
        raise _open_error(error, entry) from None


def _open_error(error: OSError, entry: FolderEntry) -> Exception:
    about = entry.stat() if error.errno in (errno.ENOTDIR, errno.ELOOP) else None
    if about is not None and stat.S_ISLNK(about.st_mode):
        return link_error(entry.path)
    return OSError(error.errno, os.strerror(error.errno or errno.EIO), entry.path)


def link_error(path: str) -> PathChanged:
    """The error for a link where none is allowed."""
    try:
        return link_error_to(path, os.path.realpath(path))
    except OSError:
        return link_error_to(path, "")


def link_error_to(path: str, real: str) -> PathChanged:
    """The error for a path with links that lead to `real`; empty or unchanged means they are dangling."""
    if real in ("", path):
        return PathChanged(f"{path!r} contains a dangling link; remove it, or try again")
    return PathChanged(f"{path!r} contains a link and leads to {real!r}; use that path if you mean it")


def open_regular(entry: FolderEntry, flags: int = os.O_RDONLY) -> tuple[int, os.stat_result]:
    """A descriptor of a regular file; refuses pipes, sockets and devices without blocking on them."""
    about = entry.stat()
    if about is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), entry.path)
    check_regular(about, entry.path)
    try:
        descriptor = entry.open(flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise link_error(entry.path) from None
        raise OSError(error.errno, os.strerror(error.errno or errno.EIO), entry.path) from None
    try:
        about = os.fstat(descriptor)
        check_regular(about, entry.path)
    except (OSError, PathChanged):
        os.close(descriptor)
        raise
    return descriptor, about


def check_regular(about: os.stat_result, path: str) -> None:
    """Raises the matching error if this is not a regular file."""
    if stat.S_ISLNK(about.st_mode):
        raise link_error(path)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(f"cannot use {path!r}: it is neither a file nor a folder")


ContentWriter = Callable[[int], None]
"""Writes the complete content to a descriptor."""
MAX_PUT_BACK_BYTES = 64 * 1024 * 1024
"""Up to this size, a file that cannot be replaced gets its old content back if the new one does not fit."""
_CANNOT_LINK = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def writer_of(data: bytes) -> ContentWriter:
    def fill(descriptor: int) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    return fill


def replace_file(path: str, fill: ContentWriter, mode: int | None = None, expected: str | None = None) -> None:
    """Replace the file at `path`, which has no links, with what `fill` writes; keeps mode and owner."""
    if path.endswith("/"):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    with open_entry(path, make_folders=True) as entry:
        old = entry.stat()
        if old is not None:
            check_regular(old, path)
            if not os.access(entry.name, os.W_OK, dir_fd=entry.folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        if not _was_replaced(entry, old, fill, mode, expected):
            _overwrite(entry, fill, mode, expected)
        if old is None:
            # A new name must reach the disk, too. After a power cut, an old one has either content, the old or the new.
            entry.sync_folder()


def _was_replaced(
    entry: FolderEntry, old: os.stat_result | None, fill: ContentWriter, mode: int | None, expected: str | None
) -> bool:
    """Write a new file beside the old one and rename it; False if only the old one is writable."""
    copy = entry.beside(f".toolcrib-{secrets.token_hex(8)}")
    # A new file follows the umask; one that may be private is private from its first byte.
    at_first = 0o666 if old is None and mode is None else 0o600
    try:
        descriptor = copy.open(os.O_CREAT | os.O_EXCL | os.O_WRONLY, at_first)
    except PermissionError:
        if old is None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), entry.path) from None
        return False
    try:
        with os.fdopen(descriptor, "wb", buffering=0):
            if old is not None and not _has_owner_of(descriptor, old):
                return False
            fill(descriptor)
            _apply_attributes(descriptor, entry, old, mode)
            os.fsync(descriptor)
        return _installed(copy, entry, expected)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy.name, dir_fd=copy.folder)


def check_expected(entry: FolderEntry, expected: str | None) -> None:
    """Raises PathChanged if the content is not the expected one."""
    if expected is None:
        return
    try:
        descriptor, _ = open_regular(entry)
    except FileNotFoundError:
        if expected:
            raise PathChanged(f"{entry.path!r} was removed after it was last read") from None
        return
    if not expected:
        os.close(descriptor)
        raise PathChanged(f"{entry.path!r} exists now; it did not exist before")
    with os.fdopen(descriptor, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise PathChanged(f"{entry.path!r} has changed since it was last read; read it again")


def _installed(copy: FolderEntry, entry: FolderEntry, expected: str | None) -> bool:
    if expected == "":
        try:
            # Unlike a rename, a hard link never overwrites a file.
            os.link(copy.name, entry.name, src_dir_fd=copy.folder, dst_dir_fd=entry.folder)
        except FileExistsError:
            raise PathChanged(f"{entry.path!r} exists now; it did not exist before") from None
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
        else:
            return True
    check_expected(entry, expected)
    about = entry.stat()
    if about is not None:
        check_regular(about, entry.path)
    try:
        os.rename(copy.name, entry.name, src_dir_fd=copy.folder, dst_dir_fd=entry.folder)
    except OSError as error:
        # A file that is a mount point cannot be replaced, only overwritten.
        if error.errno == errno.EBUSY and about is not None:
            return False
        raise OSError(error.errno, os.strerror(error.errno or errno.EIO), entry.path) from None
    return True


def _has_owner_of(descriptor: int, old: os.stat_result) -> bool:
    """Give a new file the owner of the old one; returns whether that worked."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
        return True
    try:
        os.fchown(descriptor, old.st_uid, old.st_gid)
    except PermissionError:
        return False
    return True


def _apply_attributes(descriptor: int, entry: FolderEntry, old: os.stat_result | None, mode: int | None) -> None:
    """Give a new file the attributes of the old one, and the requested mode."""
    if old is not None:
        with contextlib.suppress(OSError):
            _copy_attributes(descriptor, entry)
        mode = stat.S_IMODE(old.st_mode) if mode is None else mode
    if mode is not None:
        os.fchmod(descriptor, mode)


def _copy_attributes(descriptor: int, entry: FolderEntry) -> None:
    """Copy extended attributes such as ACLs, skipping those that cannot be read or set."""
    if not hasattr(os, "listxattr"):
        return
    old, _ = open_regular(entry)
    try:
        kept = os.listxattr(old)
        for name in kept:
            with contextlib.suppress(OSError):
                os.setxattr(descriptor, name, os.getxattr(old, name))
        for name in set(os.listxattr(descriptor)) - set(kept):
            # A folder may give new files a default ACL that admits others.
            with contextlib.suppress(OSError):
                os.removexattr(descriptor, name)
    finally:
        os.close(old)


def _overwrite(entry: FolderEntry, fill: ContentWriter, mode: int | None, expected: str | None) -> None:
    """Overwrite a file in place: its folder is not writable, or another user owns the file."""
    check_expected(entry, expected)
    descriptor, old = open_regular(entry, os.O_RDWR)
    try:
        before = os.pread(descriptor, MAX_PUT_BACK_BYTES, 0)
        try:
            fill(descriptor)
        except OSError:
            # The disk is full, but the old content still fits.
            if old.st_size == len(before):
                os.pwrite(descriptor, before, 0)
                os.ftruncate(descriptor, len(before))
            raise
        os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR))
        if mode is not None and mode != stat.S_IMODE(old.st_mode):
            with contextlib.suppress(PermissionError):
                os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
