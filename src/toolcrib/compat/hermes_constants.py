"""`hermes_constants`: the user's home folder."""

from __future__ import annotations

from pathlib import Path

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
