"""A crib for each test of skills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.skills.skill_crib import Crib
from toolcrib.testing import ScriptedApprover, isolated_runtime


@pytest.fixture
def make_crib(tmp_path: Path) -> Iterator[Callable[..., Crib]]:
    with ExitStack() as opened:

        def make(config: str = "skills: {bundled: false}\n", *answers: Any) -> Crib:
            project = tmp_path / "project"
            (project / ".git").mkdir(parents=True, exist_ok=True)
            approver = ScriptedApprover(*answers)
            runtime = opened.enter_context(
                isolated_runtime(tmp_path / "crib", config, registry=None, workspace=project, approver=approver)
            )
            return Crib(tmp_path, runtime, approver)

        yield make


@pytest.fixture
def crib(make_crib: Callable[..., Crib]) -> Crib:
    return make_crib()
