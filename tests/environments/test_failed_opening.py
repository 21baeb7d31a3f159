"""What stays of an environment that cannot be opened."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from toolcrib.core.errors import EnvironmentFailed
from toolcrib.environments.backends.local import LocalShellEnvironment
from toolcrib.environments.shell import SessionOptions

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/"}


def test_a_new_one_leaves_no_folder() -> None:
    """A start folder that does not exist is said, and nothing is left behind."""
    environment = LocalShellEnvironment(ENVIRON, SessionOptions(cwd="/no/such/folder"))

    with pytest.raises(EnvironmentFailed, match="/no/such/folder"):
        asyncio.run(environment.open())

    assert not Path(environment.folder).exists()


async def test_one_that_was_taken_over_keeps_what_its_commands_printed(tmp_path: Path) -> None:
    """The output of an earlier process's commands must not be lost because of a failure now."""
    log = tmp_path / "proc_1.log"
    log.write_text("finished\n")
    (tmp_path / "sessions").touch()
    environment = LocalShellEnvironment(ENVIRON, SessionOptions(cwd="/no/such/folder", folder=str(tmp_path)))

    with pytest.raises(EnvironmentFailed):
        await environment.open()

    assert log.read_text() == "finished\n"
