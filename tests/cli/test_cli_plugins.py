"""`toolcrib plugins`: a plugin that fails is shown as failed, with the reason, the line and the remedy."""

from __future__ import annotations

import json

import pytest

from tests.cli.cli_program import Program

ENABLED = "plugins:\n  enabled: [bad]\n"


def write_plugin(toolcrib: Program, code: str, name: str = "bad") -> None:
    toolcrib.write(f"plugins/{name}/plugin.yaml", f"name: {name}\n")
    toolcrib.write(f"plugins/{name}/__init__.py", code)


def test_enabling_a_plugin_that_fails_says_so_and_exits_with_1(toolcrib: Program):
    """The plugin stays enabled, so that it works as soon as the reason is gone."""
    write_plugin(toolcrib, "import json\nimport a_package_that_nobody_has\n")

    outcome = toolcrib("plugins", "enable", "bad")

    assert outcome.code == 1
    assert "is enabled, but it failed to load" in outcome.stderr
    assert "__init__.py:2: it imports 'a_package_that_nobody_has', which is not installed" in outcome.stderr
    assert "Enabled plugin" not in outcome.stderr
    assert toolcrib("config", "get", "plugins.enabled").stdout == '["bad"]\n'


def test_the_list_shows_a_plugin_that_fails_as_failed(toolcrib: Program):
    """In the table and in JSON; what a plugin prints does not get into the JSON."""
    write_plugin(toolcrib, "print('loading')\ndef register(ctx): raise ValueError('boom')\n")
    write_plugin(toolcrib, "print('loading')\ndef register(ctx): pass\n", name="good")
    toolcrib.write("config.yaml", "plugins:\n  enabled: [bad, good]\n")

    table = toolcrib("plugins", "list")
    listed = {plugin["name"]: plugin for plugin in json.loads(toolcrib("plugins", "list", "--json").stdout)}

    assert table.code == 0
    assert "failed" in table.stdout
    assert (listed["bad"]["state"], listed["good"]["state"]) == ("failed", "enabled")
    assert "__init__.py:2: ValueError: boom" in listed["bad"]["problems"][0]


def test_a_broken_tool_file_in_a_plugin_is_a_problem_of_a_plugin_that_works(toolcrib: Program):
    """The plugin is loaded, and the list names the file that is not."""
    write_plugin(toolcrib, "def register(ctx): pass\n")
    toolcrib.write("plugins/bad/tides.py", "from tools.registry import registry\nregistry.register(name=nonsense)\n")

    enabled = toolcrib("plugins", "enable", "bad")

    assert enabled.code == 0
    assert enabled.stderr.count("tides.py:2: NameError") == 1


def test_listing_runs_no_code_of_plugins_that_are_not_enabled(toolcrib: Program):
    """A folder alone runs nothing."""
    write_plugin(toolcrib, "open('ran', 'w').close()\ndef register(ctx): pass\n")

    toolcrib("plugins", "list")

    assert not (toolcrib.root / "ran").exists()


@pytest.mark.services
def test_doctor_shows_a_failed_plugin_as_failed(toolcrib: Program):
    """Doctor and the list agree."""
    write_plugin(toolcrib, "def register(ctx): raise ValueError('boom')\n")
    toolcrib.write("config.yaml", ENABLED)

    about = json.loads(toolcrib("doctor", "--json").stdout)

    assert [plugin["state"] for plugin in about["plugins"]] == ["failed"]


def test_data_of_a_plugin_goes_to_toolcribs_home(toolcrib: Program):
    """The home that the reference's functions name is ours."""
    code = (
        "from hermes_constants import get_hermes_home\n"
        "from hermes_cli.config import get_hermes_home as same\n"
        "assert same() == get_hermes_home()\n"
        "def register(ctx):\n"
        "    folder = get_hermes_home() / 'notes'\n"
        "    folder.mkdir(parents=True)\n"
        "    (folder / 'data.txt').write_text('kept')\n"
    )
    write_plugin(toolcrib, code, name="notes")

    assert toolcrib("plugins", "enable", "notes").code == 0
    assert (toolcrib.home / "notes/data.txt").read_text() == "kept"
