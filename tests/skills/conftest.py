"""A crib for each test of skills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.skills.skill_crib import SkillProject
from toolcrib.testing import ScriptedApprover, isolated_runtime


@pytest.fixture
def make_crib(tmp_path: Path) -> Iterator[Callable[..., SkillProject]]:
    with ExitStack() as opened:

        def make(config: str = "skills: {bundled: false}\n", *answers: Any) -> SkillProject:
            project = tmp_path / "project"
            (project / ".git").mkdir(parents=True, exist_ok=True)
            approver = ScriptedApprover(*answers)
            runtime = opened.enter_context(
                isolated_runtime(tmp_path / "crib", config, registry=None, workspace=project, approver=approver)
            )
            return SkillProject(tmp_path, runtime, approver)

        yield make


@pytest.fixture
def crib(make_crib: Callable[..., SkillProject]) -> SkillProject:
    return make_crib()
