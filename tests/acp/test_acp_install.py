"""`toolcrib acp install`, and what the program says to a person who starts it by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from toolcrib.cli.commands.acp_install import settings_for, write_settings
from toolcrib.core.errors import UsageError


@pytest.mark.parametrize(
    ("editor", "file"), [("zed", ".config/zed/settings.json"), ("jetbrains", ".jetbrains/acp.json")]
)
def test_settings_are_added_to_what_is_there(tmp_path: Path, editor: str, file: str) -> None:
    """Everything else in the file stays; writing twice changes nothing more."""
    target = tmp_path / file
    target.parent.mkdir(parents=True)
    target.write_text('{"theme": "One", "agent_servers": {"other": {"command": "x"}}}')
    for _ in range(2):
        assert str(target) in write_settings(settings_for(editor, tmp_path))
    written = json.loads(target.read_text())
    assert written["theme"] == "One"
    assert set(written["agent_servers"]) == {"other", "toolcrib"}
    assert written["agent_servers"]["toolcrib"]["args"][-1] == "acp"
    assert (
        json.loads(settings_for(editor, tmp_path).text)["agent_servers"]["toolcrib"]
        == (written["agent_servers"]["toolcrib"])
    )


@pytest.mark.parametrize("text", ['{\n  // mine\n  "theme": "One",\n}', "[]", '{"agent_servers": 5}'])
def test_settings_that_we_cannot_keep_are_left_alone(tmp_path: Path, text: str) -> None:
    target = tmp_path / ".config/zed/settings.json"
    target.parent.mkdir(parents=True)
    target.write_text(text)
    with pytest.raises(UsageError, match="--write"):
        write_settings(settings_for("zed", tmp_path))
    assert target.read_text() == text


def test_the_settings_of_neovim_are_a_program(tmp_path: Path) -> None:
    found = settings_for("neovim", tmp_path)
    assert 'args = { "acp" }' in found.text or '"toolcrib", "acp" }' in found.text
    with pytest.raises(UsageError, match="does not edit"):
        write_settings(found)


def test_a_file_as_input_is_no_editor(tmp_path: Path) -> None:
    """An editor uses pipes; anything else gets a sentence that says how to set one up."""
    (tmp_path / "input").write_text("{}\n")
    with (tmp_path / "input").open() as input:
        done = subprocess.run(
            [sys.executable, "-m", "toolcrib", "acp"], stdin=input, capture_output=True, text=True, check=False
        )
    assert done.returncode != 0
    assert done.stdout == ""
    assert "`toolcrib acp install`" in done.stderr
