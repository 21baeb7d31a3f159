"""`hermes_constants`: the user's home folder, and what this machine has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from toolcrib.config.files import OWNER_FOLDER
from toolcrib.config.paths import find_home


def get_hermes_home() -> Path:
    """The current home folder."""
    return find_home().root


def display_hermes_home() -> str:
    """The home folder for display, with `~` for the user's own folder."""
    home = get_hermes_home()
    try:
        return str(Path("~") / home.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(home)


def get_hermes_dir(new_subpath: str, old_name: str) -> Path:
    """A folder of the home; the one under its former name, if that still contains something."""
    former = get_hermes_home() / old_name
    has_content = former.is_dir() and any(former.iterdir())
    return former if has_content else get_hermes_home() / new_subpath


def get_bundled_skills_dir(default: Path | None = None) -> Path:
    """Where skills are: `default`, or the folder in the home. toolcrib bundles none."""
    return default if default is not None else get_hermes_home() / "skills"


def get_optional_skills_dir(default: Path | None = None) -> Path:
    """Where skills are that have to be installed first: `default`, or a folder in the home."""
    return default if default is not None else get_hermes_home() / "optional-skills"


def secure_parent_dir(path: Path) -> None:
    """Make the folder of a file accessible to its owner only. The root and top-level folders stay as they are."""
    folder = Path(path).resolve().parent
    if len(folder.parts) > 2:
        folder.chmod(OWNER_FOLDER)


def is_termux() -> bool:
    """Whether this is Termux on Android."""
    return bool(os.environ.get("TERMUX_VERSION")) or "com.termux/files/usr" in os.environ.get("PREFIX", "")


def find_node_executable(command: str) -> str | None:
    """The path of `node`, `npm`, `npx` or another program; None if it is not installed."""
    return shutil.which(command)
