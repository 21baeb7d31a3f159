"""Sandboxes of either mechanism for tests, each with a workspace in a home that holds a secret."""

from __future__ import annotations

import os
import select
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from toolcrib.environments.backends.sandbox import SandboxEngine, SandboxOptions
from toolcrib.environments.sandboxing.landlock import landlock_version

MECHANISMS = ("bubblewrap", "landlock")
SECRET = "the-key-of-the-user"
OpenSandbox = Callable[..., Awaitable[SandboxEngine]]


@dataclass(frozen=True)
class UserFolders:
    home: Path
    workspace: Path

    def options(self, **changes: Any) -> SandboxOptions:
        return SandboxOptions(**{"workspace": self.workspace, "home": self.home, **changes})


def make_folders(parent: Path) -> UserFolders:
    """A home with a private key, something harmless, and a project."""
    home = parent / "user"
    workspace = home / "project"
    workspace.mkdir(parents=True)
    for name in (".ssh/id_test", ".aws/credentials", "notes.txt"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(f"{SECRET}\n")
    return UserFolders(home, workspace)


@asynccontextmanager
async def opening(folders: UserFolders, mechanism: str) -> AsyncIterator[OpenSandbox]:
    """Opens sandboxes with changed options, and closes them at the end."""
    async with AsyncExitStack() as stack:

        async def open_sandbox(**changes: Any) -> SandboxEngine:
            engine = SandboxEngine(folders.options(**{"use": mechanism, **changes}))
            await engine.open()
            stack.push_async_callback(engine.close)
            return engine

        yield open_sandbox


def skip_without(mechanism: str) -> None:
    if mechanism == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed (apt-get install bubblewrap)")
    if mechanism == "landlock" and landlock_version() == 0:
        pytest.skip("this kernel has no Landlock")


def running(mark: str) -> list[int]:
    """The processes of this machine whose command shows `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until_gone(pids: list[int], seconds: float = 15) -> list[int]:
    """Those of the processes that have not ended by then."""
    left = []
    for pid in pids:
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([watched], [], [], seconds)[0]:
                left.append(pid)
        finally:
            os.close(watched)
    return left
