"""Atomic file writes with one writer at a time."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from toolcrib.config.os_errors import ANOTHER_HOME, explain_os_error
from toolcrib.core.errors import ConfigError

if sys.platform != "win32":
    import fcntl

LOCK_WAIT_SECONDS = 10.0
LOCK_POLL_SECONDS = 0.005
PROBE_BYTES = 4096
OWNER_FILE = 0o600
OWNER_FOLDER = 0o700


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Lock a file for writing; yields the real file behind a symbolic link. OS errors become ConfigError."""
    target = Path(os.path.realpath(path))
    try:
        make_folder(target.parent)
        lock = os.open(target.with_name(f".{target.name}.lock"), os.O_RDWR | os.O_CREAT, OWNER_FILE)
        try:
            _take(lock, target)
            yield target
        finally:
            os.close(lock)
    except OSError as error:
        raise ConfigError(explain_os_error(error, "write", path, otherwise=ANOTHER_HOME)) from error


def replace_file(target: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace the content atomically; keeps the owner and, unless given, the mode. Only inside `writing`."""
    try:
        before = target.stat()
    except FileNotFoundError:
        before = None
    # The lock makes this name exclusively ours; remove what a killed writer left behind.
    temporary = target.with_name(f".{target.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE)
    with ExitStack() as on_failure:
        on_failure.callback(temporary.unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as stream:
            if before is not None:
                _keep_owner(descriptor, before)
                temporary.chmod(before.st_mode & 0o7777 if mode is None else mode)
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        temporary.replace(target)
        on_failure.pop_all()
    _sync_folder(target.parent)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, accessible only to the owner; does not change an existing one."""
    missing = list(itertools.takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    for folder in reversed(missing):
        folder.mkdir(mode=OWNER_FOLDER, exist_ok=True)


def why_unwritable(folder: Path) -> OSError | None:
    """The error that a small new file in a folder gives; None if the folder can be written to."""
    probe = folder / f".toolcrib-{os.getpid()}.probe"
    try:
        with contextlib.ExitStack() as undo:
            descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_FILE)
            undo.callback(probe.unlink)
            undo.callback(os.close, descriptor)
            # More than what fits beside the name of the file.
            os.write(descriptor, bytes(PROBE_BYTES))
    except OSError as error:
        return error
    return None


def _take(lock: int, target: Path) -> None:
    try:
        take_lock(lock, LOCK_WAIT_SECONDS)
    except TimeoutError:
        raise ConfigError(
            f"another process has been writing {str(target)!r} for {LOCK_WAIT_SECONDS:.0f} seconds; "
            "try again when it is done"
        ) from None


def take_lock(descriptor: int, seconds: float) -> None:
    """Lock an open file exclusively; raises TimeoutError if others keep it locked for so long."""
    for _ in lock_attempts(descriptor, seconds):
        time.sleep(LOCK_POLL_SECONDS)


def lock_attempts(descriptor: int, seconds: float) -> Iterator[None]:
    """Ends once an open file is locked exclusively; yields after each attempt that failed, so that the caller waits in
    its own way. Raises TimeoutError after so many seconds."""
    if sys.platform == "win32":
        return
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process kept it locked for {seconds:g} seconds") from None
        yield


def _keep_owner(descriptor: int, before: os.stat_result) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) == (before.st_uid, before.st_gid):
        return
    # Only root may change the owner; for others the file becomes theirs, as with any editor.
    with contextlib.suppress(PermissionError, AttributeError):
        os.fchown(descriptor, before.st_uid, before.st_gid)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power failure, if the system supports that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
