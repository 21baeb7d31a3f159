"""The way to a file of this machine, one folder after the other, so that no link can lead elsewhere on the way."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from msgspec import Struct

from toolcrib.core.errors import PathChanged

# Where a folder may be passed through but not be listed, only O_PATH opens it.
_THROUGH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Spot(Struct, frozen=True):
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
