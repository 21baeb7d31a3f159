"""Puts files of this machine in their places in one step: a crash leaves the old or the new, never a part."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable

from toolcrib.core.errors import PathChanged
from toolcrib.environments.host_paths import Spot, check_regular, open_regular, spot_of

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
        if old is None:
            # A new name must reach the disk, too. After a power cut, an old one has either content, the old or the new.
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
