"""The way to a file of this machine, one folder after the other, so that no link can lead elsewhere on the way."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from toolcrib.core.errors import PathChanged

# Where a folder may be passed through but not be listed, only O_PATH opens it.
_THROUGH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Spot:
    """A name in an open folder: what is done to it happens there, whatever becomes of the path."""

    folder: int
    """A descriptor, for `dir_fd`."""
    name: str
    path: str
    """The whole, for people."""

    def about(self) -> os.stat_result | None:
        """What is there, links not followed; None when nothing is."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, flags: int, mode: int = 0o666) -> int:
        return os.open(self.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=self.folder)

    def beside(self, name: str) -> Spot:
        return Spot(self.folder, name, os.path.join(os.path.dirname(self.path), name))  # noqa: PTH118, PTH120

    def sync_folder(self) -> None:
        """Put names on the disk, as far as the folder may be opened for that."""
        with contextlib.suppress(OSError):
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.folder)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def spot_of(path: str, *, make_folders: bool = False) -> Iterator[Spot]:
    """The place of an absolute path without links; raises PathChanged for a link in one of the folders above it."""
    *above, name = [part for part in os.path.normpath(path).split("/") if part] or ["."]
    folder = os.open("/", _THROUGH)
    try:
        for part in above:
            inner = _step(Spot(folder, part, path), make_folders)
            os.close(folder)
            folder = inner
        yield Spot(folder, name, path)
    finally:
        os.close(folder)


def _step(spot: Spot, make: bool) -> int:
    try:
        return os.open(spot.name, _THROUGH, dir_fd=spot.folder)
    except FileNotFoundError:
        if not make:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), spot.path) from None
    except OSError as error:
        raise _refused(error, spot) from None
    with contextlib.suppress(FileExistsError):
        os.mkdir(spot.name, dir_fd=spot.folder)
        spot.sync_folder()
    try:
        return os.open(spot.name, _THROUGH, dir_fd=spot.folder)
    except OSError as error:
        raise _refused(error, spot) from None


def _refused(error: OSError, spot: Spot) -> Exception:
    about = spot.about() if error.errno in (errno.ENOTDIR, errno.ELOOP) else None
    if about is not None and stat.S_ISLNK(about.st_mode):
        return has_link(spot.path)
    return OSError(error.errno, os.strerror(error.errno or errno.EIO), spot.path)


def has_link(path: str) -> PathChanged:
    """The error for a link where none may be."""
    try:
        return links_in_the_way(path, os.path.realpath(path))
    except OSError:
        return links_in_the_way(path, "")


def links_in_the_way(path: str, real: str) -> PathChanged:
    """The error for a path with links, which lead to `real`; nowhere, if that is empty or the same."""
    if real in ("", path):
        return PathChanged(f"there is a link on the way to {path!r} that leads nowhere; remove it, or try again")
    return PathChanged(f"there is a link on the way to {path!r}: it leads to {real!r}; name that path if you mean it")


def open_regular(spot: Spot, flags: int = os.O_RDONLY) -> tuple[int, os.stat_result]:
    """A descriptor of a file, never of a pipe, socket or device, and without waiting for one."""
    about = spot.about()
    if about is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), spot.path)
    check_regular(about, spot.path)
    try:
        descriptor = spot.open(flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise has_link(spot.path) from None
        raise OSError(error.errno, os.strerror(error.errno or errno.EIO), spot.path) from None
    try:
        about = os.fstat(descriptor)
        check_regular(about, spot.path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, about


def check_regular(about: os.stat_result, path: str) -> None:
    """Raises what says why this is no file to read or write."""
    if stat.S_ISLNK(about.st_mode):
        raise has_link(path)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(f"cannot use {path!r}: it is neither a file nor a folder")


Fill = Callable[[int], None]
"""Writes the whole content to a descriptor, from where it stands."""
MAX_PUT_BACK_BYTES = 64 * 1024 * 1024
"""A file that cannot be replaced, and whose new content does not fit, gets its old one back up to this size."""
_CANNOT_LINK = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def fill_with(data: bytes) -> Fill:
    def fill(descriptor: int) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    return fill


def replace_file(path: str, fill: Fill, mode: int | None = None, expected: str | None = None) -> None:
    """Put what `fill` writes into the place of `path`, which has no links; mode and owner of an old file are kept."""
    if path.endswith("/"):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    with spot_of(path, make_folders=True) as spot:
        old = spot.about()
        if old is not None:
            check_regular(old, path)
            if not os.access(spot.name, os.W_OK, dir_fd=spot.folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        if not _replaced(spot, old, fill, mode, expected):
            _fill_in_place(spot, fill, mode, expected)
        spot.sync_folder()


def _replaced(spot: Spot, old: os.stat_result | None, fill: Fill, mode: int | None, expected: str | None) -> bool:
    """Write a new file beside the old one and rename it; False when only the old one can be written to."""
    copy = spot.beside(f".toolcrib-{secrets.token_hex(8)}")
    # A new file gets what the user's mask leaves; one that may be private is private from its first byte.
    at_first = 0o666 if old is None and mode is None else 0o600
    try:
        descriptor = copy.open(os.O_CREAT | os.O_EXCL | os.O_WRONLY, at_first)
    except PermissionError:
        if old is None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), spot.path) from None
        return False
    try:
        with os.fdopen(descriptor, "wb", buffering=0):
            if old is not None and not _given_to(descriptor, old):
                return False
            fill(descriptor)
            _dress(descriptor, spot, old, mode)
            os.fsync(descriptor)
        return _took_place(copy, spot, expected)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy.name, dir_fd=copy.folder)


def check_expected(spot: Spot, expected: str | None) -> None:
    """Raises PathChanged where the content is not the expected one."""
    if expected is None:
        return
    try:
        descriptor, _ = open_regular(spot)
    except FileNotFoundError:
        if expected:
            raise PathChanged(f"{spot.path!r} has been removed since it was looked at") from None
        return
    if not expected:
        os.close(descriptor)
        raise PathChanged(f"{spot.path!r} exists now; it did not when it was looked at")
    with os.fdopen(descriptor, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise PathChanged(f"{spot.path!r} has changed since it was looked at; read it again")


def _took_place(copy: Spot, spot: Spot, expected: str | None) -> bool:
    if expected == "":
        try:
            # A hard link takes nobody's place, unlike a rename.
            os.link(copy.name, spot.name, src_dir_fd=copy.folder, dst_dir_fd=spot.folder)
        except FileExistsError:
            raise PathChanged(f"{spot.path!r} exists now; it did not when it was looked at") from None
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
        else:
            return True
    check_expected(spot, expected)
    about = spot.about()
    if about is not None:
        check_regular(about, spot.path)
    try:
        os.rename(copy.name, spot.name, src_dir_fd=copy.folder, dst_dir_fd=spot.folder)
    except OSError as error:
        # A file that is itself a mount cannot be replaced, only filled.
        if error.errno == errno.EBUSY and about is not None:
            return False
        raise OSError(error.errno, os.strerror(error.errno or errno.EIO), spot.path) from None
    return True


def _given_to(descriptor: int, old: os.stat_result) -> bool:
    """Whether a new file now belongs to the owner of the old one."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
        return True
    try:
        os.fchown(descriptor, old.st_uid, old.st_gid)
    except PermissionError:
        return False
    return True


def _dress(descriptor: int, spot: Spot, old: os.stat_result | None, mode: int | None) -> None:
    """Give a new file the attributes of the old one, and the mode that was asked for."""
    if old is not None:
        with contextlib.suppress(OSError):
            _copy_attributes(descriptor, spot)
        mode = stat.S_IMODE(old.st_mode) if mode is None else mode
    if mode is not None:
        os.fchmod(descriptor, mode)


def _copy_attributes(descriptor: int, spot: Spot) -> None:
    """Access lists and the like; of those that cannot be read or given, none."""
    if not hasattr(os, "listxattr"):
        return
    old, _ = open_regular(spot)
    try:
        kept = os.listxattr(old)
        for name in kept:
            with contextlib.suppress(OSError):
                os.setxattr(descriptor, name, os.getxattr(old, name))
        for name in set(os.listxattr(descriptor)) - set(kept):
            # A folder may give new files an access list that lets others in.
            with contextlib.suppress(OSError):
                os.removexattr(descriptor, name)
    finally:
        os.close(old)


def _fill_in_place(spot: Spot, fill: Fill, mode: int | None, expected: str | None) -> None:
    """Fill a file that cannot be replaced, because its folder is closed or its owner is somebody else."""
    check_expected(spot, expected)
    descriptor, old = open_regular(spot, os.O_RDWR)
    try:
        before = os.pread(descriptor, MAX_PUT_BACK_BYTES, 0)
        try:
            fill(descriptor)
        except OSError:
            # The disk is full: what was there has its room.
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
