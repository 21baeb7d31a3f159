"""Files of a project that scripts must not see: the `.env` files."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

DEEPEST = 3
MOST_FOLDERS = 400
"""Scanned before every script, so deeply nested files and files in very large trees are not found."""
NOT_OF_THE_PROJECT = frozenset({"node_modules", "venv", "__pycache__"})
HARMLESS_ENDINGS = ("example", "sample", "template", "dist", "test")


def secret_files(project: Path) -> dict[str, str]:
    """The secret files that can be found quickly: the path below the project, and the identity of the file.

    A file that replaces one of them is another file, which hiding the first does not hide.
    """
    found: dict[str, str] = {}
    for entry in project_entries(project):
        if entry.name.startswith(".env") and not entry.name.endswith(HARMLESS_ENDINGS):
            try:
                status = entry.stat()
            except OSError:
                continue
            found[os.path.relpath(entry.path, project)] = f"{status.st_dev}.{status.st_ino}"
    return found


def project_entries(project: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of the project's folders, breadth first, as far as that is quick."""
    folders = deque([(str(project), 1)])
    for _ in range(MOST_FOLDERS):
        if not folders:
            return
        folder, depth = folders.popleft()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            yield entry
            is_ordinary = not entry.name.startswith(".") and entry.name not in NOT_OF_THE_PROJECT
            if depth < DEEPEST and is_ordinary and entry.is_dir(follow_symlinks=False):
                folders.append((entry.path, depth + 1))
