"""`agent.file_safety`: which files no tool may read or write, by the rules of the gate."""

from __future__ import annotations

import os

from toolcrib.approval.paths import PathScope, SensitivePaths
from toolcrib.config.paths import find_home
from toolcrib.files.paths import why_never_read


def is_write_denied(path: str) -> bool:
    """Whether no tool may write this file."""
    return bool(_reason_to_deny(path))


def get_write_denied_error(path: str, *, verb: str = "Write") -> str | None:
    """Why this file may not be written, deleted or moved; None if it may."""
    reason = _reason_to_deny(path)
    return f"{verb} denied: {str(path)!r} is protected: {reason}." if reason else None


def get_read_block_error(path: str) -> str | None:
    """Why this file is not read directly; None if it is."""
    folders = _folders()
    real = folders.written_and_real(str(path))[1]
    reason = why_never_read(real, find_home(), is_here=True)
    if not reason and os.path.basename(real).startswith(".env") and _paths().is_secret(str(path), folders):  # noqa: PTH119 - text only
        reason = "it holds keys of a project; read .env.example instead"
    return f"Access denied: {path}: {reason}." if reason else None


def raise_if_read_blocked(path: str) -> None:
    """Raise ValueError with the reason if this file is not read directly."""
    error = get_read_block_error(path)
    if error is not None:
        raise ValueError(error)


def _reason_to_deny(path: str) -> str:
    return _paths().reason_to_deny_write(str(path), _folders())


def _paths() -> SensitivePaths:
    return SensitivePaths(str(find_home().root))


def _folders() -> PathScope:
    here = os.path.abspath(os.curdir)  # noqa: PTH100 - the folder may be gone
    return PathScope(cwd=here, workspace=here, home=os.path.expanduser("~"))  # noqa: PTH111
