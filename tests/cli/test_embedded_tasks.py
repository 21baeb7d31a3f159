"""The embedded model does what newcomers ask first; measured with the real weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.embedded_tasks import DAYS_TOOL, FIRST, SECOND, Tasks, attempt_tasks
from toolcrib.agent.host import AgentHost
from toolcrib.registry.default import registry
from toolcrib.registry.registry import ToolRegistry

pytestmark = pytest.mark.services

WANTED = 12


@pytest.mark.parametrize("tasks", [FIRST, SECOND], ids=["first", "second"])
async def test_most_everyday_tasks_are_done(
    tasks: Tasks, model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least 12 of 15: facts about files, commands, a tool of one's own, notes, changes, small talk.

    Nobody approves anything: what the gate would ask about is denied, whatever the model comes up with.
    """
    monkeypatch.setenv("TOOLCRIB_MODEL_DIR", model_dir)
    tools = tmp_path / "home" / "tools"
    tools.mkdir(parents=True)
    (tools / "days.py").write_text(DAYS_TOOL)
    (tmp_path / "work").mkdir()
    host = AgentHost(
        home=tmp_path / "home",
        entry_point="interactive",
        workspace=tmp_path / "work",
        registry=ToolRegistry(parent=registry),
        platform="cli",
        provider="embedded",
    )
    try:
        host.runtime.load()
        results = await attempt_tasks(host, tasks, tmp_path / "work")
    finally:
        await host.close()
    failed = [f"{question} -> {attempt.tools}: {attempt.answer}" for question, ok, attempt in results if not ok]
    assert len(results) - len(failed) >= WANTED, "\n".join(failed)
