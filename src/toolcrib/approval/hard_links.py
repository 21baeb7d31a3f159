"""Other names of protected files: a hard link is the file itself, so its path alone does not tell what it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from posixpath import dirname

IN_HOME = (
    "",
    *(".ssh", ".gnupg", ".aws", ".kube", ".docker", ".toolcrib", "bin", ".local/bin"),
    *(".config/git", ".config/gh", ".config/fish", ".config/autostart", ".config/systemd/user"),
    *(".toolcrib/serve", ".toolcrib/mcp_tokens", ".toolcrib/logins"),
)
"""The folders of a home that hold keys, start-up files and our own files."""
MAX_ENTRIES = 2_000


def has_other_names(path: str) -> bool:
    """Whether a file has more than one name."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a path as text
    except (OSError, ValueError):
        return False
    return found.st_nlink > 1 and stat.S_ISREG(found.st_mode)


def guarded_files(home: str, own: Iterable[str]) -> dict[int, str]:
    """The files in the protected folders, by their numbers; `own` are further files of toolcrib."""
    folders = dict.fromkeys((*(f"{home}/{name}".rstrip("/") for name in IN_HOME), *(dirname(each) for each in own)))
    found: dict[int, str] = {}
    for folder in folders:
        try:
            with os.scandir(folder or "/") as entries:
                for entry in entries:
                    # In the home itself only hidden files are protected.
                    if (folder != home or entry.name.startswith(".")) and entry.is_file(follow_symlinks=False):
                        found[entry.inode()] = f"{folder}/{entry.name}"
                    if len(found) > MAX_ENTRIES:
                        return found
        except OSError:
            continue
    return found


def protected_name(path: str, guarded: dict[int, str]) -> str:
    """The protected file that a path is another name of; empty if there is none."""
    try:
        name = guarded.get(os.stat(path).st_ino, "")  # noqa: PTH116 - a path as text
        return name if name and os.path.samefile(path, name) else ""  # noqa: PTH121 - a path as text
    except (OSError, ValueError):
        return ""
