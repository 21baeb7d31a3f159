"""The settings of the browser tools, and how to find a Chromium on this machine.

Annotations are real objects here, as in `settings.py`.
"""

import os
import sys
from typing import Annotated, Literal

from msgspec import Meta

from toolcrib.config.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section

CHROMIUM_NAMES = (
    "chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome", "microsoft-edge-stable",
)  # fmt: skip


class BrowserSettings(Section, frozen=True, kw_only=True):
    """How the browser tools work."""

    executable: str = ""
    """The browser to run; empty means the first Chromium or Chrome on the search path."""
    headed: bool = False
    """Show the window of the browser; needs a desktop."""
    sandbox: Literal["auto", "off"] = "auto"
    """`auto`: Chromium's own sandbox, unless toolcrib runs as root; `off` for containers where it cannot work."""
    profile: str = ""
    """Keep cookies and logins in the profile with this name; empty means that each session starts without any."""
    cdp_url: str = ""
    """A browser that already runs, by its DevTools address (http:// or ws://); `${NAME}` inserts a variable. Addresses
    that its pages load are not checked by toolcrib."""
    cdp_reuse_context: bool = False
    """With `cdp_url`: work in the browser's own window, with its cookies, instead of a new private one."""
    cloud_provider: str = ""
    """The provider of a plugin that starts remote browsers; empty means none."""
    inactivity_timeout: PositiveFloat = 120
    """After how many seconds without a call a session's browser is closed."""
    command_timeout: PositiveFloat = 30
    """How many seconds one navigation, click or other act may take."""
    settle_timeout: NonNegativeFloat = 3
    """How many seconds to wait, after an act, for a page that is still loading or changing."""
    max_tabs: PositiveInt = 8
    """How many tabs a session may have; a page that opens more has them closed."""
    snapshot_chars: Annotated[int, Meta(ge=1_000)] = 15_000
    """The most characters of one snapshot; the rest is in a file."""
    dialog_policy: Literal["must_respond", "auto_dismiss", "auto_accept"] = "must_respond"
    """What happens to dialogs of a page: the model answers them with `browser_dialog`, or toolcrib does at once."""
    dialog_timeout_s: PositiveFloat = 300
    """After how many seconds an unanswered dialog is dismissed."""
    max_cache_mb: PositiveFloat = 200
    """The most space for screenshots and full snapshots in the home, in megabytes; the oldest are deleted first."""
    max_download_mb: PositiveFloat = 100
    """The largest file to download or upload, in megabytes."""


def find_chromium(configured: str = "", search_path: str | None = None) -> str:
    """The browser to run; empty if there is none. Runs at every start, so it only looks at names."""
    folders = (os.environ.get("PATH", "") if search_path is None else search_path).split(os.pathsep)
    if configured:
        configured = os.path.expanduser(configured)  # noqa: PTH111 - pathlib costs time at every start
        if "/" in configured:
            return configured if os.access(configured, os.X_OK) else ""
    for name in (configured,) if configured else CHROMIUM_NAMES:
        for folder in folders:
            path = f"{folder}/{name}"
            if folder and os.access(path, os.X_OK):
                return path
    return ""


def has_playwright() -> bool:
    """Whether the library that drives browsers is installed; only looks for its folder."""
    name = "playwright"
    return name in sys.modules or any(os.path.isdir(os.path.join(folder, name)) for folder in sys.path)  # noqa: PTH112, PTH118
