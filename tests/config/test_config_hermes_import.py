from pathlib import Path

import pytest

from toolcrib.config.env_file import read_env_file
from toolcrib.config.hermes_import import apply_import, describe, plan_import
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.core.errors import ConfigError

CONFIG = """\
model: gpt
honcho: {host: hermes}
toolsets: [hermes-cli]
agent: {disabled_toolsets: [web], max_turns: 90}
plugins: {enabled: [notes], project: yes}
tools: {tool_search: {enabled: off}}
tool_output: {max_lines: 100, max_bytes: lots}
logging: {level: INFO}
approvals: {mode: smart}
command_allowlist: [recursive delete]
"""


@pytest.fixture
def hermes(tmp_path: Path) -> Path:
    root = tmp_path / "hermes"
    for name, text in {
        "config.yaml": CONFIG,
        ".env": "EXA_API_KEY=exa-secret-value\nHASS_TOKEN='a b'\n",
        "skills/dev/review/SKILL.md": "review",
        "skills/dev/review/run.sh": "#!/bin/sh",
        "memories/MEMORY.md": "remember",
        "memories/USER.md": "user",
        "memories/MEMORY.md.lock": "",
        "plugins/notes/plugin.yaml": "name: notes",
        "plugins/notes/__pycache__/x.pyc": "",
        "sessions/1.json": "{}",
        "state.db": "",
        "tools/mine.py": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "skills/dev/review/run.sh").chmod(0o755)
    return root


def everything(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def actions(plan) -> dict[str, str]:
    return {item.name: item.action for item in plan.items}


def test_planning_changes_nothing(hermes, home):
    """The dry run reads both homes and writes to neither."""
    before = everything(hermes)

    describe(plan_import(hermes, home))

    assert everything(hermes) == before
    assert not home.root.exists()


def test_what_fits_is_brought_and_the_rest_is_listed(hermes, home):
    """Every part of the old home has one line that says what becomes of it."""
    assert actions(plan_import(hermes, home)) == {
        "config.yaml: model": "bring",
        "config.yaml: honcho": "not carried over",
        "config.yaml: toolsets": "bring",
        "config.yaml: agent.disabled_toolsets": "bring",
        "config.yaml: agent.max_turns": "bring",
        "config.yaml: plugins.enabled": "bring",
        "config.yaml: plugins.project": "bring",
        "config.yaml: tools.tool_search.enabled": "bring",
        "config.yaml: tool_output.max_lines": "bring",
        "config.yaml: tool_output.max_bytes": "not carried over",
        "config.yaml: logging.level": "bring",
        "config.yaml: approvals.mode": "bring",
        "config.yaml: command_allowlist": "bring",
        ".env: EXA_API_KEY": "bring",
        ".env: HASS_TOKEN": "bring",
        "skills/dev": "bring",
        "memories/MEMORY.md": "bring",
        "memories/USER.md": "bring",
        "plugins/notes": "bring",
        "sessions": "left in place",
        "tools": "left in place",
    }


def test_applying_does_what_the_plan_says(hermes, home):
    """Settings, secrets, skills, memories and plugins arrive; the old home stays as it was."""
    before = everything(hermes)

    problems = apply_import(plan_import(hermes, home))

    settings = load_settings(home, {})
    assert problems == []
    assert (settings.toolsets, settings.agent.disabled_toolsets) == (["hermes-cli"], ["web"])
    assert (settings.plugins.enabled, settings.plugins.project) == (["notes"], True)
    assert (settings.tools.tool_search.enabled, settings.tool_output.max_lines) == ("off", 100)
    assert read_env_file(home.env_file) == {"EXA_API_KEY": "exa-secret-value", "HASS_TOKEN": "a b"}
    assert (home.skills_dir / "dev/review/SKILL.md").read_text() == "review"
    assert (home.skills_dir / "dev/review/run.sh").stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in home.memories_dir.iterdir()) == ["MEMORY.md", "USER.md"]
    assert everything(home.plugins_dir) == {"notes/plugin.yaml": "name: notes"}
    assert everything(hermes) == before


def test_nothing_that_exists_is_overwritten(hermes, home):
    """Own settings, secrets and files win, and are named as conflicts."""
    home.memories_dir.mkdir(parents=True)
    (home.memories_dir / "MEMORY.md").write_text("mine")
    (home.skills_dir / "dev/review").mkdir(parents=True)
    (home.skills_dir / "dev/review/SKILL.md").write_text("mine")
    home.config_file.write_text("toolsets: [web]\ntools: {tool_search: on}\nlogging: {level: info}\n")
    home.env_file.write_text("EXA_API_KEY=mine\n")

    plan = plan_import(hermes, home)
    problems = apply_import(plan)

    kept = {name for name, action in actions(plan).items() if action == "keep ours"}
    assert problems == []
    assert kept >= {"config.yaml: toolsets", ".env: EXA_API_KEY", "memories/MEMORY.md", "skills/dev/review/SKILL.md"}
    assert load_settings(home, {}).toolsets == ["web"]
    assert load_settings(home, {}).tools.tool_search.enabled == "on"
    assert read_env_file(home.env_file)["EXA_API_KEY"] == "mine"
    assert (home.memories_dir / "MEMORY.md").read_text() == "mine"
    assert (home.skills_dir / "dev/review/SKILL.md").read_text() == "mine"
    assert (home.skills_dir / "dev/review/run.sh").exists()


def test_a_file_that_appears_after_the_plan_is_not_overwritten(hermes, home):
    """A plan that is out of date loses nothing: the copy is refused and reported."""
    plan = plan_import(hermes, home)
    home.memories_dir.mkdir(parents=True)
    (home.memories_dir / "USER.md").write_text("newer")

    problems = apply_import(plan)

    assert len(problems) == 1
    assert "USER.md" in problems[0]
    assert (home.memories_dir / "USER.md").read_text() == "newer"


def test_importing_again_finds_nothing_to_do(hermes, home):
    """A second import is harmless and says so."""
    apply_import(plan_import(hermes, home))

    again = plan_import(hermes, home)

    assert "bring" not in actions(again).values()
    assert "There is nothing to import" in describe(again)


def test_the_description_is_readable_and_shows_no_secret(hermes, home):
    """One line for each thing, no secret values, and at the end what to type."""
    plan = plan_import(hermes, home)

    text = describe(plan)

    assert text.endswith("To do this, run `toolcrib import hermes`.")
    assert "  config.yaml: honcho: toolcrib has no setting with that name" in text.splitlines()
    assert "toolcrib plugins enable NAME" in text
    assert "exa-secret-value" not in text
    assert "exa-secret-value" not in repr(plan)


def test_links_are_not_followed(hermes, home):
    """A link in the old home may lead anywhere: it is listed, not copied."""
    (hermes / "skills" / "link").symlink_to("/etc")

    assert actions(plan_import(hermes, home))["skills/link"] == "not carried over"


def test_a_home_that_is_missing_or_our_own_is_a_clear_error(hermes, tmp_path):
    """Nowhere to import from, or importing into itself, says what to set."""
    with pytest.raises(ConfigError, match="set HERMES_HOME"):
        plan_import(tmp_path / "absent", Home(tmp_path / "x"))
    with pytest.raises(ConfigError, match="set TOOLCRIB_HOME"):
        plan_import(hermes, Home(hermes))


SERVERS = """\
mcp_servers:
  time:
    command: uvx
    args: [mcp-server-time, --port, 8080]
    env: {TOKEN: secret-of-a-server, RETRIES: 3}
    tools: {include: [get_current_time], prompts: false}
    sampling: false
    lifecycle: {idle_timeout_seconds: 60}
    osv_check: true
  notes:
    url: https://example.com/mcp
    transport: carrier-pigeon
"""


def test_mcp_servers_are_brought_over(hermes, home):
    """Each with the keys that we know; a key or value that we do not know has a line of its own."""
    (hermes / "config.yaml").write_text(SERVERS)
    plan = plan_import(hermes, home)

    assert apply_import(plan) == []

    servers = load_settings(home).mcp_servers
    time = servers["time"]
    assert (time.command, time.args) == ("uvx", ["mcp-server-time", "--port", "8080"])
    assert time.env == {"TOKEN": "secret-of-a-server", "RETRIES": "3"}
    assert (time.tools.include, time.tools.prompts, time.sampling.enabled) == (["get_current_time"], False, False)
    assert time.lifecycle.idle_timeout_seconds == 60
    assert servers["notes"].url == "https://example.com/mcp"
    done = actions(plan)
    assert done["config.yaml: mcp_servers.time.osv_check"] == "not carried over"
    assert done["config.yaml: mcp_servers.notes.transport"] == "not carried over"
    assert "secret-of-a-server" not in describe(plan)


def test_an_mcp_server_that_is_here_stays_whole(hermes, home):
    """Parts of two servers under one name would be neither; an equal one is not even mentioned."""
    (hermes / "config.yaml").write_text(SERVERS)
    home.root.mkdir()
    home.config_file.write_text("mcp_servers: {time: {url: 'http://127.0.0.1:1/mcp'}}\n")

    plan = plan_import(hermes, home)
    apply_import(plan)

    about_time = {name: action for name, action in actions(plan).items() if "mcp_servers.time" in name}
    assert about_time == {"config.yaml: mcp_servers.time": "keep ours"}
    servers = load_settings(home).mcp_servers
    assert (servers["time"].command, servers["time"].url) == ("", "http://127.0.0.1:1/mcp")
    assert "notes" in servers
    again = [item.name for item in plan_import(hermes, home).items if "mcp_servers.notes.url" in item.name]
    assert again == []
