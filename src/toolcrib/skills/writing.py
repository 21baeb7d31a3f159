"""Carries a change of the user's skills out: whoever looks, at any moment, sees the old state or the new one."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from toolcrib.config.files import make_folder, replace_file
from toolcrib.skills.changes import Change

OWNER_PROGRAM = 0o700
# Readers pass over names that begin with a dot.
BUILDING, LEAVING = ".building-", ".leaving-"


def carry_out(change: Change, skills_dir: Path) -> None:
    """Do it. Only by the one who holds `config.files.writing(skills_dir)`."""
    root = Path(os.path.realpath(skills_dir))
    _clear(root)
    match change.kind:
        case "create":
            _create(change, root)
        case "write":
            is_new_program = change.text.startswith("#!") and not change.path.exists()
            make_folder(change.path.parent)
            replace_file(change.path, change.text.encode())
            if is_new_program:
                change.path.chmod(OWNER_PROGRAM)
        case "remove":
            change.path.unlink()
        case "delete":
            leaving = Path(tempfile.mkdtemp(prefix=LEAVING, dir=root))
            change.folder.rename(leaving / change.folder.name)
            _clear(root)


def _create(change: Change, root: Path) -> None:
    """Build the folder beside, then let it appear at once."""
    make_folder(change.folder.parent)
    building = Path(tempfile.mkdtemp(prefix=BUILDING, dir=root))
    replace_file(building / change.path.name, change.text.encode())
    building.rename(change.folder)


def _clear(root: Path) -> None:
    """Remove what is left of deleted skills and of killed processes; what cannot be removed is in nobody's way."""
    for pattern in (BUILDING, LEAVING):
        for left in root.glob(f"{pattern}*"):
            shutil.rmtree(left, ignore_errors=True)
