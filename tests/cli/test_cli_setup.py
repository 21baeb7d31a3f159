"""`toolcrib setup TOOL`, `import` and `plugins`: what is asked, what is written, what is never shown."""

from __future__ import annotations

import json
import stat

import pytest

from tests.cli.cli_program import KEYED_TOOL, Program

SECRET = "tide-0123456789abcdef"
DESCRIBED = (
    KEYED_TOOL
    + """
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS

OPTIONAL_ENV_VARS["TIDES_API_KEY"] = {
    "description": "Tides of the world", "prompt": "Tides API key", "url": "https://tides.example/keys",
    "tools": ["tides"], "password": True,
}
OPTIONAL_ENV_VARS["TIDES_UNITS"] = {
    "description": "Units of the tables", "prompt": "Units", "url": "", "tools": ["tides"], "password": False,
}
"""
)


def test_a_key_is_typed_unseen_and_kept_for_its_owner(toolcrib: Program):
    """A password never appears on the screen; the file is for its owner alone; other values are shown."""
    toolcrib.write("tools/tides.py", DESCRIBED)

    seen = toolcrib.on_terminal("setup", "tides", answers=(("you type):", SECRET), ("Units:", "metres")))

    assert seen.code == 0
    assert SECRET not in seen.stdout
    assert "****cdef" in seen.stdout
    assert "https://tides.example/keys" in seen.stdout
    env_file = toolcrib.home / ".env"
    assert env_file.read_text() == f"TIDES_API_KEY={SECRET}\nTIDES_UNITS=metres\n"
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600
    assert json.loads(toolcrib("tools", "explain", "tides", "--json").stdout)["available"] is True


def test_enter_leaves_a_value_as_it_is(toolcrib: Program):
    """Nothing typed means nothing changed, and what is set is shown masked."""
    toolcrib.write("tools/tides.py", KEYED_TOOL)
    env_file = toolcrib.write(".env", f"TIDES_API_KEY={SECRET}\n")
    env_file.chmod(0o600)

    seen = toolcrib.on_terminal("setup", "tides", answers=(("[****cdef]", ""),))

    assert seen.code == 0
    assert env_file.read_text() == f"TIDES_API_KEY={SECRET}\n"


def test_what_was_saved_before_an_interrupt_stays(toolcrib: Program):
    """Each answer is kept at once."""
    toolcrib.write("tools/tides.py", DESCRIBED)

    seen = toolcrib.on_terminal("setup", "tides", answers=(("you type):", SECRET), ("Units:", "^C")))

    assert seen.code == 130
    assert "Stopped; 1 value saved. Run `toolcrib setup --list`" in seen.stdout
    assert (toolcrib.home / ".env").read_text() == f"TIDES_API_KEY={SECRET}\n"


def test_the_list_masks_secrets(toolcrib: Program):
    """Neither the table nor the JSON shows a stored secret."""
    toolcrib.write("tools/tides.py", DESCRIBED)
    toolcrib.write(".env", f"TIDES_API_KEY={SECRET}\n").chmod(0o600)

    table = toolcrib("setup", "--list").stdout
    listed = {row["name"]: row for row in json.loads(toolcrib("setup", "--list", "--json").stdout)}

    assert SECRET not in table
    assert (listed["TIDES_API_KEY"]["set"], listed["TIDES_API_KEY"]["shown"]) == (True, "****cdef")
    assert listed["TIDES_UNITS"]["set"] is False
    assert "EXA_API_KEY" in listed


ATTIC = """
import json, os
from pathlib import Path
from agent.memory_provider import MemoryProvider


class Attic(MemoryProvider):
    @property
    def name(self):
        return "attic"

    def is_available(self):
        return bool(os.environ.get("ATTIC_KEY"))

    def initialize(self, session_id, **kwargs):
        pass

    def get_tool_schemas(self):
        return []

    def get_config_schema(self):
        return [
            {"key": "api_key", "description": "Attic key", "secret": True, "required": True, "env_var": "ATTIC_KEY",
             "url": "https://attic.example/keys"},
            {"key": "region", "description": "Where it is kept", "default": "eu", "choices": ["eu", "us"]},
            {"key": "project", "description": "Which box", "required": True},
        ]

    def save_config(self, values, hermes_home):
        (Path(hermes_home) / "attic.json").write_text(json.dumps(values))

    def backup_paths(self):
        return ["/srv/attic"]


def register(ctx):
    ctx.register_memory_provider(Attic())
"""


def test_a_memory_provider_is_set_up_as_its_schema_says(toolcrib: Program):
    """Secrets go to .env unseen, the rest to the provider, and from then on it is the one that is used."""
    toolcrib.write("plugins/attic/plugin.yaml", "name: attic\nversion: 1.0.0\ndescription: x\n")
    toolcrib.write("plugins/attic/__init__.py", ATTIC)
    toolcrib.write("config.yaml", "plugins:\n  enabled: [attic]\n")
    answers = (("you type):", SECRET), ("region [eu]:", "us"), ("project:", ""), ("project:", "left"))

    seen = toolcrib.on_terminal("setup", "attic", answers=answers)

    assert seen.code == 0, seen.stdout
    assert SECRET not in seen.stdout
    for said in ("https://attic.example/keys", "project is required", "/srv/attic", "attic gets your conversations"):
        assert said in seen.stdout
    assert (toolcrib.home / ".env").read_text() == f"ATTIC_KEY={SECRET}\n"
    assert json.loads((toolcrib.home / "attic.json").read_text()) == {"region": "us", "project": "left"}
    assert toolcrib("config", "get", "memory.provider").stdout == "attic\n"
    listed = json.loads(toolcrib("setup", "attic", "--list", "--json").stdout)
    assert [(row["name"], row["shown"]) for row in listed] == [("ATTIC_KEY", "****cdef")]


def test_a_bundled_memory_provider_says_what_is_missing(toolcrib: Program):
    """Without a key it is chosen, but not used; a script is told which line to add."""
    seen = toolcrib.on_terminal("setup", "mem0", answers=(("you type):", ""),))

    assert seen.code == 0
    assert "mem0 cannot be used yet: MEM0_API_KEY is not set" in seen.stdout
    broken = toolcrib("doctor")
    assert broken.code == 1
    assert "the memory provider 'mem0' is not used: MEM0_API_KEY is not set" in broken.stdout
    refused = toolcrib("setup", "honcho")
    assert refused.code == 2
    assert "HONCHO_API_KEY=VALUE" in refused.stderr
    assert "config set memory.provider honcho" in refused.stderr
    assert "'honcho'" in toolcrib("setup", "honchoo").stderr


def test_the_tools_of_the_configured_memory_explain_themselves(toolcrib: Program):
    """As those of any other source; without the provider there are none."""
    assert toolcrib("tools", "explain", "mem0_search").code == 2

    toolcrib.write("config.yaml", "memory:\n  provider: mem0\n")
    explained = toolcrib("tools", "explain", "mem0_search", "--json", MEM0_API_KEY=SECRET)

    assert json.loads(explained.stdout)["available"] is True
    assert SECRET not in explained.stdout
    assert "mem0_add" in toolcrib("tools", "list", MEM0_API_KEY=SECRET).stdout


def test_import_asks_before_it_changes_anything(toolcrib: Program):
    """On a terminal the plan is shown and a no leaves everything as it was; a yes does it."""
    source = toolcrib.root / "old"
    source.mkdir()
    (source / ".env").write_text("EXA_API_KEY=exa-0123456789abcdef\n")

    refused = toolcrib.on_terminal("import", "hermes", "--from", str(source), answers=(("[y/N]", "n"),))
    assert (refused.code, toolcrib.home.exists()) == (0, False)
    accepted = toolcrib.on_terminal("import", "hermes", "--from", str(source), answers=(("[y/N]", "y"),))

    assert accepted.code == 0
    assert (toolcrib.home / ".env").read_text() == "EXA_API_KEY=exa-0123456789abcdef\n"
    assert "exa-0123456789abcdef" not in refused.stdout + accepted.stdout


def test_a_plugin_is_switched_on_and_off(toolcrib: Program):
    """Enabling shows where the plugin comes from and makes its tools appear; disabling takes them away."""
    toolcrib.write("plugins/tide-tables/plugin.yaml", "name: tide-tables\nversion: 1.10\n")
    toolcrib.write("plugins/tide-tables/__init__.py", KEYED_TOOL + "\ndef register(ctx):\n    pass\n")
    [found] = json.loads(toolcrib("plugins", "list", "--json").stdout)

    enabled = toolcrib("plugins", "enable", "tide-tables")
    tools = toolcrib("tools", "list").stdout
    disabled = toolcrib("plugins", "disable", "tide-tables")

    assert (found["state"], found["origin"], found["version"]) == ("not enabled", "user", "1.10")
    assert str(toolcrib.home / "plugins/tide-tables") in enabled.stderr
    assert "tides" in tools
    assert disabled.code == 0
    assert "tides" not in toolcrib("tools", "list").stdout
    assert json.loads(toolcrib("plugins", "list", "--json").stdout)[0]["state"] == "disabled"


@pytest.mark.services
def test_doctor_names_a_plugin_that_fails(toolcrib: Program):
    """A plugin that cannot be loaded is a problem with a reason, in text and in JSON."""
    toolcrib.write("config.yaml", "plugins:\n  enabled: [bad]\n")
    toolcrib.write("plugins/bad/plugin.yaml", "name: bad\n")
    toolcrib.write("plugins/bad/__init__.py", "import a_package_that_nobody_has\n")

    outcome = toolcrib("doctor", "--json")

    about = json.loads(outcome.stdout)
    assert outcome.code == 1
    assert about["ok"] is False
    assert any("a_package_that_nobody_has" in problem["what"] for problem in about["problems"])


@pytest.mark.services
def test_doctor_sees_keys_that_others_can_read(toolcrib: Program):
    """Loose permissions are a problem with the command that ends it."""
    toolcrib.write(".env", "A_KEY=b\n").chmod(0o644)

    outcome = toolcrib("doctor")

    assert outcome.code == 1
    assert "chmod 600" in outcome.stdout.splitlines()[-1]
