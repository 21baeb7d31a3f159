"""Explains errors of the operating system: what happened to which file, and what to do about it."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

from toolcrib.core.errors import UsageError

ANOTHER_HOME = "set TOOLCRIB_HOME to another folder"
"""The way out for files of the home, besides repairing it."""
FOLDER_GONE = "the current folder no longer exists; go to another one, as with `cd ~`, and try again"
NO_TEMPORARY_FOLDER = "No usable temporary directory"
"""How the `tempfile` module of Python says that there is none."""


def current_folder() -> Path:
    """The folder that the process works in; raises UsageError if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError(FOLDER_GONE) from error


def explain_os_error(
    error: OSError, doing: str = "use", path: Path | str = "", *, otherwise: str = "use another folder"
) -> str:
    """One sentence: what cannot be done, why, and what to do.

    `doing` is a verb. Without a path, the error says which one it concerns. `otherwise` is the way out if the folder
    cannot be repaired.
    """
    named = str(path) or _path_of(error)
    if not named and error.errno == errno.ENOENT and not _has_current_folder():
        return FOLDER_GONE
    if NO_TEMPORARY_FOLDER in reason_of(error):
        return f"no temporary folder can be written to; {remedy_for(error)}"
    what = f"cannot {doing} {named!r}" if named else f"cannot {doing} a file"
    remedy = remedy_for(error, named, otherwise=otherwise)
    return f"{what} ({reason_of(error)})" + (f"; {remedy}" if remedy else "")


def reason_of(error: OSError) -> str:
    """What the system says, without the number of the error."""
    return error.strerror or str(error) or type(error).__name__


def remedy_for(error: OSError, path: Path | str = "", *, otherwise: str = "use another folder") -> str:
    """What to do about an error, as a clause; empty if the error does not tell."""
    named = str(path) or _path_of(error)
    blocking = _file_in_the_way(named)
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            shown = f": `df -h {_folder_of(named)}` shows how full it is" if named else ""
            return f"free some space on the disk and try again{shown}"
        case errno.EFBIG:
            return "a limit on the size of files is in the way; raise it with `ulimit -f unlimited`"
        case errno.EROFS:
            return f"make it writable, or {otherwise}"
        case errno.EACCES | errno.EPERM:
            shown = f" with `ls -ld {_guarded(named)}`" if named else ""
            return f"check the owner and the permissions{shown}, or {otherwise}"
        case errno.ENOTDIR | errno.EEXIST if blocking:
            return f"{blocking!r} is a file, where a folder is needed; move it away, or {otherwise}"
        case errno.EMFILE | errno.ENFILE:
            return "too many files are open; close programs, or raise the limit with `ulimit -n 4096`"
        case errno.EIO:
            return "the disk reports an error; check it, and copy what you need"
        case errno.ENOENT if NO_TEMPORARY_FOLDER in reason_of(error):
            return "free some space in `/tmp`, or set TMPDIR to a folder that you can write to"
        case _:
            return ""


def _path_of(error: OSError) -> str:
    return os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""


def _folder_of(path: str) -> str:
    """The nearest folder that exists, as it is typed in a shell."""
    parents = Path(path).parents
    return shlex.quote(str(next((one for one in parents if os.path.isdir(one)), Path("/"))))  # noqa: PTH112


def _guarded(path: str) -> str:
    """What denies access, as it is typed in a shell: the folder if nothing can be written to it, else the file."""
    folder = str(Path(path).parent)
    return shlex.quote(path if os.access(folder, os.W_OK | os.X_OK) else folder)


def _file_in_the_way(path: str) -> str:
    """The part of the path that should be a folder and is not."""
    # `os.path` says no where `Path` may raise the very error that is being explained.
    above = [path, *map(str, Path(path).parents)] if path else []
    return next((one for one in above if os.path.lexists(one) and not os.path.isdir(one)), "")  # noqa: PTH112


def _has_current_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True
