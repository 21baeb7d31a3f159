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


COMMENTED = """\
// Zed settings, see https://zed.dev/docs
{
  "theme": "One", // not "agent_servers": {}
  /* "agent_servers": {"old": 1}, */
  "path": "C:\\\\ // no comment \\"",
  "languages": [1, 2,],
}
"""
WITH_SERVERS = """\
{
  "agent_servers": {
    // mine
    "other": {"command": "x",},
  },
}"""


@pytest.fixture
def zed(tmp_path: Path) -> Path:
    target = tmp_path / ".config/zed/settings.json"
    target.parent.mkdir(parents=True)
    return target


@pytest.mark.parametrize("text", [COMMENTED, WITH_SERVERS, COMMENTED.replace("\n", "\r\n"), f"\ufeff{COMMENTED}"])
def test_comments_and_commas_of_the_person_are_kept(tmp_path: Path, zed: Path, text: str) -> None:
    """Every line that was there still is; the file as it was is beside it, and a second time changes nothing."""
    zed.write_bytes(text.encode())
    assert "settings.json.toolcrib.bak" in write_settings(settings_for("zed", tmp_path))
    written = zed.read_bytes().decode()
    assert [line for line in text.splitlines() if line in written.splitlines()] == text.splitlines()
    assert written.count('"toolcrib": {') == 1
    assert ("\r\n" in written) == ("\r\n" in text)
    backup = zed.with_name("settings.json.toolcrib.bak")
    assert backup.read_bytes() == text.encode()
    assert "already" in write_settings(settings_for("zed", tmp_path))
    assert zed.read_bytes().decode() == written
    assert backup.read_bytes() == text.encode()


def test_an_older_entry_is_replaced_where_it_is(tmp_path: Path, zed: Path) -> None:
    zed.write_text('{\n  "agent_servers": {\n    "toolcrib": {"command": "/old", "args": []}, // ours\n  }\n}\n')
    write_settings(settings_for("zed", tmp_path))
    written = zed.read_text()
    assert "/old" not in written
    assert ", // ours" in written


@pytest.mark.parametrize("text", ["", "\n", "// nothing yet\n", "{}"])
def test_a_file_without_settings_gets_them(tmp_path: Path, zed: Path, text: str) -> None:
    zed.write_text(text)
    write_settings(settings_for("zed", tmp_path))
    written = zed.read_text()
    assert text.strip("{}\n") in written
    assert json.loads(written.removeprefix("// nothing yet\n"))["agent_servers"].keys() == {"toolcrib"}


@pytest.mark.parametrize(
    "text", ["[]", '{"agent_servers": 5}', '{"theme": "One"', '{"a": 1} trailing', '{"a" 1}', "{'a': 1}", "/* {}"]
)
def test_settings_that_we_cannot_read_are_left_alone(tmp_path: Path, zed: Path, text: str) -> None:
    zed.write_text(text)
    with pytest.raises(UsageError, match="--write"):
        write_settings(settings_for("zed", tmp_path))
    assert zed.read_text() == text
    assert [one.name for one in zed.parent.iterdir() if not one.name.startswith(".")] == ["settings.json"]


def test_settings_that_are_not_text_are_left_alone(tmp_path: Path, zed: Path) -> None:
    zed.write_bytes(b'{"theme": "\xff"}')
    with pytest.raises(UsageError, match="--write"):
        write_settings(settings_for("zed", tmp_path))
    assert zed.read_bytes() == b'{"theme": "\xff"}'


def test_the_settings_of_neovim_are_a_program(tmp_path: Path) -> None:
    found = settings_for("neovim", tmp_path)
    assert 'args = { "acp" }' in found.text or '"toolcrib", "acp" }' in found.text
    with pytest.raises(UsageError, match="does not edit"):
        write_settings(found)


@pytest.mark.services
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
