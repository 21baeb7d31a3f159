"""The files of this machine, as undo looks at them and puts them back. No link is ever followed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from toolcrib.config.files import OWNER_FILE, OWNER_FOLDER
from toolcrib.core.errors import PathChanged
from toolcrib.undo.states import MISSING, FileState

if sys.platform != "win32":
    from toolcrib.environments.host_paths import FolderEntry, open_entry, open_regular


class Files(Protocol):
    """The files of one place. Paths are absolute; every method raises OSError, and may block."""

    is_far: bool
    """Every question takes a while, so that `fetch` is worth its price."""

    def begin_anew(self) -> None:
        """Forget what was seen so far: something has run since."""
        ...

    def fetch(self, paths: Sequence[str], limit: int) -> None:
        """Look at these paths and all below them in one go, where that is quicker and not more than so many bytes."""
        ...

    def look(self, path: str) -> FileState:
        """What is at the path itself; a file without its digest."""
        ...

    def is_missing(self, path: str) -> bool:
        """Whether nothing is at the path."""
        ...

    def read(self, path: str, limit: int) -> bytes | None:
        """The content of a file; None when it is larger than the limit."""
        ...

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted."""
        ...

    def real(self, path: str) -> str:
        """The path with every link on the way followed, the last one too."""
        ...

    def put(self, path: str, state: FileState, content: bytes) -> None:
        """Make the path a file, folder or link as described, in one step; a file or link that is there is replaced."""
        ...

    def set_access(self, path: str, state: FileState) -> None:
        """Give a file or folder its mode and owner."""
        ...

    def set_time(self, path: str, state: FileState) -> None:
        """Give a file that was gone the time of its last change back, where the place can do that."""
        ...

    def settle(self) -> None:
        """Wait until everything that was put is on the disk, where there is one to wait for."""
        ...

    def move(self, path: str, to: str) -> None:
        """Give a file another name; nothing must be there."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, a link or an empty folder; nothing there is no error."""
        ...


class Disk:
    """The files of this machine."""

    is_far = False

    def begin_anew(self) -> None:
        """Nothing: every look is a new one."""

    def fetch(self, paths: Sequence[str], limit: int) -> None:
        """Nothing: every look is quick."""

    def look(self, path: str) -> FileState:
        try:
            about = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return MISSING
        except ValueError as error:  # A zero byte: no path of this machine.
            raise OSError(str(error)) from error
        if stat.S_ISLNK(about.st_mode):
            return FileState(kind="link", link=os.readlink(path))  # noqa: PTH115 - what it says, unchanged
        mode, owner = stat.S_IMODE(about.st_mode), (about.st_uid, about.st_gid)
        if stat.S_ISDIR(about.st_mode):
            return FileState(kind="folder", mode=mode, owner=owner)
        if not stat.S_ISREG(about.st_mode):
            return FileState(kind="special")
        return FileState(
            kind="file",
            mode=mode,
            owner=owner,
            size=about.st_size,
            stamp=f"{about.st_dev:x}-{about.st_ino:x}-{about.st_mtime_ns:x}",
            changed_ns=about.st_mtime_ns,
            touched_ns=about.st_ctime_ns,
        )

    def is_missing(self, path: str) -> bool:
        return self.look(path).kind == "missing"

    def read(self, path: str, limit: int) -> bytes | None:
        with _spot(path) as spot:
            descriptor, about = open_regular(spot)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            content = stream.read() if about.st_size <= limit else None
        return content if content is not None and len(content) <= limit else None

    def names(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths

    def real(self, path: str) -> str:
        return os.path.realpath(path)

    def put(self, path: str, state: FileState, content: bytes) -> None:
        with _spot(path, make_folders=True) as spot:
            if state.kind == "folder":
                # Open for the owner until everything in it is back; its own mode comes last.
                with contextlib.suppress(FileExistsError):
                    os.mkdir(spot.name, OWNER_FOLDER, dir_fd=spot.folder)
                return
            # Always the same name, so that what a killed process left half is removed by the next one.
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
        with _spot(path) as spot:
            try:
                descriptor = spot.open(os.O_RDONLY)
            except PermissionError:
                # Closed even to its owner, who may still open it up.
                os.chmod(spot.name, state.mode, dir_fd=spot.folder)
                return
            try:
                _give(descriptor, state)
            finally:
                os.close(descriptor)

    def settle(self) -> None:
        # Once for all: waiting for each of thousands of files would take minutes.
        os.sync()

    def move(self, path: str, to: str) -> None:
        with _spot(path) as source, _spot(to, make_folders=True) as target:
            if target.stat() is not None:
                raise FileExistsError(errno.EEXIST, "something else is there now", to)
            os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), _spot(path) as spot:
            about = spot.stat()
            if about is not None and stat.S_ISDIR(about.st_mode):
                os.rmdir(spot.name, dir_fd=spot.folder)
            else:
                _unlink(spot)

    def set_time(self, path: str, state: FileState) -> None:
        if state.changed_ns:
            times = state.changed_ns, state.changed_ns
            with _spot(path) as spot:
                os.utime(spot.name, ns=times, dir_fd=spot.folder, follow_symlinks=False)


@contextlib.contextmanager
def _spot(path: str, *, make_folders: bool = False) -> Iterator[FolderEntry]:
    """The place of a path; a link on the way, also one that was put there just now, is an OSError."""
    try:
        with open_entry(path, make_folders=make_folders) as spot:
            yield spot
    except PathChanged as error:
        raise OSError("a link to another place is in the way") from error


def _unlink(spot: FolderEntry) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(spot.name, dir_fd=spot.folder)


def _write(spot: FolderEntry, state: FileState, content: bytes) -> None:
    descriptor = spot.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
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
