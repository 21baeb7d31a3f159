"""A desktop for tests: an X display without a screen."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def x_display(*programs: str) -> Iterator[str]:
    """Set DISPLAY to a display of its own; skips where it, or one of the programs for it, is not installed."""
    missing = [name for name in ("Xvfb", *programs) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is missing")
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-screen", "0", "640x480x24", "-nolisten", "tcp", "-noreset"]
    with (
        subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        os.close(write)
        with os.fdopen(read) as told:
            name = f":{told.readline().strip()}"
        patch.setenv("DISPLAY", name)
        yield name
        server.terminate()
