"""What `skill_manage` did can be undone, step by step."""

from __future__ import annotations

import os

from tests.skills.skill_crib import SkillProject, skill_text
from toolcrib.undo.history import FileHistory


async def test_every_change_of_a_skill_can_be_undone(crib: SkillProject) -> None:
    """Each undo gives the files and modes before one call: deleted, removed, written, changed and created ones."""
    steps = [
        {"action": "create", "content": skill_text("brew", body="One."), "category": "kitchen"},
        {"action": "write_file", "file_path": "scripts/run.sh", "file_content": "#!/bin/sh\necho hi\n"},
        {"action": "patch", "old_string": "One.", "new_string": "Two."},
        {"action": "remove_file", "file_path": "scripts/run.sh"},
        {"action": "delete"},
    ]
    states = [{}]
    for at, step in enumerate(steps):
        ctx = crib.runtime.context(cwd=str(crib.project), session_id="s", call_id=f"c{at}")
        result = await crib.runtime.call("skill_manage", {"name": "brew", **step}, ctx=ctx)
        assert not result.is_error, result.text
        states.append(crib.files())
    history = FileHistory(crib.runtime.settings.home.undo_dir)

    for before in reversed(states[:-1]):
        undone = history.undo_calls("s")
        assert not undone.refused
        assert crib.files() == before
        script = crib.skills / "kitchen/brew/scripts/run.sh"
        assert not script.exists() or os.access(script, os.X_OK)

    assert (await crib.said("skill_manage", name="brew", **steps[0]))["success"]
