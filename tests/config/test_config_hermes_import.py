import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from toolcrib.config.env_file import read_env_file
from toolcrib.config.hermes_import import apply_import, describe, plan_import
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.config.yaml_text import dotted
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
        "config.yaml: model (here: model.default)": "bring",
        "config.yaml: honcho": "not carried over",
        "config.yaml: toolsets": "bring",
        "config.yaml: agent.disabled_toolsets": "bring",
        "config.yaml: agent.max_turns": "bring",
        "config.yaml: plugins.enabled.notes": "not carried over",
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
        "memories/MEMORY.md.lock": "left in place",
        "approvals.mode": "differs",
        "compression.threshold_pct": "differs",
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
    assert (settings.plugins.enabled, settings.plugins.project) == ([], True)
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
    assert time.env == {"TOKEN": "${MCP_TIME_TOKEN}", "RETRIES": "3"}
    assert read_env_file(home.env_file) == {
        "EXA_API_KEY": "exa-secret-value",
        "HASS_TOKEN": "a b",
        "MCP_TIME_TOKEN": "secret-of-a-server",
    }
    assert (time.tools.include, time.tools.prompts, time.sampling.enabled) == (["get_current_time"], False, False)
    assert time.lifecycle.idle_timeout_seconds == 60
    assert servers["notes"].url == "https://example.com/mcp"
    done = actions(plan)
    assert done["config.yaml: mcp_servers.time.osv_check"] == "not carried over"
    assert done["config.yaml: mcp_servers.notes.transport"] == "not carried over"
    assert "secret-of-a-server" not in describe(plan)


def test_an_mcp_server_that_is_here_stays_whole(hermes, home):
    """Parts of two servers under one name would be neither; an equal one is unchanged."""
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
    assert actions(plan_import(hermes, home))["config.yaml: mcp_servers.notes.url"] == "unchanged"


PROVIDERS = frozenset({"openai", "anthropic", "openrouter", "gemini", "zai"})
MODELS = """\
model:
  provider: custom:Attic Server
  default: attic-1
  context_length: 32000
  max_tokens: 2000
  api_mode: chat_completions
custom_providers:
  - {name: Attic Server, base_url: "http://127.0.0.1:9/v1", api_key: attic-secret-value, model: attic-1, rpm: 5}
  - {name: cellar, base_url: "http://127.0.0.1:8/v1", api_mode: anthropic_messages, key_env: CELLAR_KEY}
  - {name: mine, base_url: "http://127.0.0.1:7/v1", api_key: "${MINE_KEY}"}
  - {name: odd, base_url: "http://127.0.0.1:6/v1", api_mode: codex_responses}
  - nonsense
providers:
  loft: {api: "http://127.0.0.1:5/v1", default_model: loft-1}
fallback_providers:
  - {provider: google, model: gemini-pro}
  - {provider: openrouter, model: vendor/model}
  - {provider: custom, model: spare, base_url: "http://127.0.0.1:4/v1"}
  - {provider: a-provider-of-the-future, model: x}
  - {provider: openai}
fallback_model: {provider: glm, model: glm-5}
compression: {enabled: false, threshold: 0.65, protect_last_n: 12, target_ratio: 0.2, summary_model: small}
auxiliary:
  compression: {provider: auto, model: ""}
  vision: {provider: openai, model: eyes, download_timeout: 30}
skills: {external_dirs: [~/skills, shared, /srv/skills, "${SKILLS_AT}/x", "$NOT_SET/x"], disabled: [old]}
approvals: {mode: off, cron_mode: approve, timeout: 30, deny: ["git push *"], mcp_reload_confirm: true}
"""


def test_models_providers_fallbacks_compression_and_skills_get_our_names(hermes, home):
    """What has another shape in the old config means the same in ours; secrets go to `.env`."""
    (hermes / "config.yaml").write_text(MODELS)
    (hermes / ".env").write_text("SKILLS_AT=/opt/skills\nATTIC_SERVER_API_KEY=another\n")

    plan = plan_import(hermes, home, PROVIDERS)
    assert apply_import(plan) == []

    settings = load_settings(home, {})
    model = settings.model
    assert (model.provider, model.default, model.context_window) == ("attic-server", "attic-1", 32000)
    assert model.max_output_tokens == 2000
    assert model.fallbacks == [
        "gemini/gemini-pro",
        "openrouter/vendor/model",
        "fallback-3/spare",
        "zai/glm-5",
    ]
    attic = settings.providers["attic-server"]
    assert (attic.base_url, attic.key_env, attic.model) == (
        "http://127.0.0.1:9/v1",
        "ATTIC_SERVER_API_KEY_2",
        "attic-1",
    )
    assert read_env_file(home.env_file)["ATTIC_SERVER_API_KEY_2"] == "attic-secret-value"
    assert (settings.providers["cellar"].protocol, settings.providers["cellar"].key_env) == ("anthropic", "CELLAR_KEY")
    assert settings.providers["mine"].key_env == "MINE_KEY"
    assert (settings.providers["loft"].base_url, settings.providers["loft"].model) == (
        "http://127.0.0.1:5/v1",
        "loft-1",
    )
    assert settings.providers["fallback-3"].base_url == "http://127.0.0.1:4/v1"
    compression = settings.compression
    assert (compression.enabled, compression.threshold_pct, compression.keep_messages) == (False, 65, 12)
    assert settings.auxiliary.model == "small"
    assert (settings.auxiliary.vision.provider, settings.auxiliary.vision.model) == ("openai", "eyes")
    assert settings.skills.folders == ["~/skills", str(hermes / "shared"), "/srv/skills", "/opt/skills/x"]
    assert settings.skills.disabled == ["old"]
    assert (settings.approvals.mode, settings.approvals.policies.cron) == ("off", "allow")
    done = actions(plan)
    for name in (
        "custom_providers.odd", "custom_providers.4", "fallback_providers.4", "fallback_providers.5",
        "custom_providers.Attic Server.rpm", "auxiliary.vision.download_timeout", "auxiliary.compression.provider",
        "compression.target_ratio", "approvals.mcp_reload_confirm", "model.api_mode",
    ):  # fmt: skip
        assert done.get(f"config.yaml: {name}") == "not carried over", name
    assert "attic-secret-value" not in describe(plan)


def test_a_model_with_a_vendor_keeps_its_provider(hermes, home):
    """`google/gemini-flash` for summaries is a model of the main provider, not a model of Google's own service."""
    (hermes / "config.yaml").write_text(
        "model: {provider: openrouter, default: anthropic/claude}\ncompression: {summary_model: google/gemini-flash}\n"
        "memory: {memory_enabled: false}\ntimezone: Europe/Berlin\n"
    )

    apply_import(plan_import(hermes, home, PROVIDERS))

    settings = load_settings(home, {})
    assert (settings.auxiliary.provider, settings.auxiliary.model) == ("openrouter", "google/gemini-flash")
    assert (settings.memory.enabled, settings.cron.timezone) == (False, "Europe/Berlin")


def test_a_custom_endpoint_in_the_model_section_becomes_a_provider(hermes, home):
    """Hermes Agent keeps address and key beside the model."""
    (hermes / "config.yaml").write_text(
        "model: {provider: custom, default: m, base_url: 'http://127.0.0.1:9/v1', api_key: a-secret-of-mine}\n"
    )

    apply_import(plan_import(hermes, home, PROVIDERS))

    settings = load_settings(home, {})
    custom = settings.providers["custom"]
    assert (settings.model.provider, settings.model.base_url) == ("custom", "")
    assert (custom.base_url, custom.key_env) == ("http://127.0.0.1:9/v1", "CUSTOM_API_KEY")
    assert read_env_file(home.env_file)["CUSTOM_API_KEY"] == "a-secret-of-mine"


def test_permissions_and_switches_are_not_imported(hermes, home):
    """Plugins, overrides, yolo mode and the sudo password need a new decision, and each has a line."""
    (hermes / "config.yaml").write_text(
        "plugins: {enabled: [notes], disabled: [old], entries: {notes: {allow_tool_override: true, color: red}}}\n"
    )
    (hermes / ".env").write_text("HERMES_YOLO_MODE=1\nSUDO_PASSWORD=x\nGOOD=1\nnot a line\n")

    plan = plan_import(hermes, home)
    apply_import(plan)

    done = actions(plan)
    assert done["config.yaml: plugins.entries.notes.allow_tool_override"] == "not carried over"
    assert done["config.yaml: plugins.entries.notes.color"] == "not carried over"
    assert (done[".env: HERMES_YOLO_MODE"], done[".env: SUDO_PASSWORD"]) == ("not carried over", "not carried over")
    assert done[".env: line 4"] == "not carried over"
    assert read_env_file(home.env_file) == {"GOOD": "1"}
    settings = load_settings(home, {})
    assert (settings.plugins.enabled, settings.plugins.disabled, settings.plugins.entries) == ([], ["old"], {})
    assert "`toolcrib plugins enable notes`" in describe(plan)


def test_the_different_default_of_approvals_is_told(hermes, home):
    """Without a word in the config, a model approves there and a person here."""
    (hermes / "config.yaml").write_text("toolsets: [hermes-cli]\n")

    assert "toolcrib asks you. To change that: `toolcrib config set approvals.mode smart`" in describe(
        plan_import(hermes, home)
    )


def test_the_soul_is_imported_and_every_other_entry_has_a_line(hermes, home):
    """Nothing in the old home is passed over in silence."""
    (hermes / "SOUL.md").write_text("You are a lighthouse keeper.")
    for name in ("auth.json", "logs/errors.log", "image_cache/1.png", "profiles/work/config.yaml", "weird", ".hidden"):
        (hermes / name).parent.mkdir(parents=True, exist_ok=True)
        (hermes / name).write_text("x")

    plan = plan_import(hermes, home)
    apply_import(plan)

    done = actions(plan)
    assert home.soul_file.read_text() == "You are a lighthouse keeper."
    for name in ("auth.json", "logs", "image_cache", "profiles", "weird", ".hidden"):
        assert done[name] == "left in place"


def test_a_broken_config_does_not_stop_the_rest(hermes, home):
    """It has a line that says where it is broken; keys, skills and memories arrive."""
    (hermes / "config.yaml").write_text("toolsets: [hermes-cli\nmodel: {\n")

    plan = plan_import(hermes, home)

    assert apply_import(plan) == []
    assert actions(plan)["config.yaml"] == "not carried over"
    assert read_env_file(home.env_file)["EXA_API_KEY"] == "exa-secret-value"
    assert not home.config_file.exists()


def test_what_cannot_be_copied_is_named_and_blocks_nothing(hermes, home):
    """Pipes, sockets and folders that cannot be read have a line each."""
    os.mkfifo(hermes / "skills" / "dev" / "pipe")
    locked = hermes / "skills" / "locked"
    locked.mkdir()
    locked.chmod(0)
    (hermes / "memories" / "MEMORY.md").unlink()
    (hermes / "memories" / "MEMORY.md").mkdir()

    plan = plan_import(hermes, home)
    locked.chmod(0o700)

    assert apply_import(plan) == []
    assert actions(plan)["skills/dev/pipe"] == "not carried over"
    if os.geteuid() != 0:
        assert actions(plan)["skills/locked"] == "not carried over"


def test_an_interrupted_import_can_be_repeated(hermes, home, monkeypatch):
    """A copy that stops half-way leaves no file behind that looks like ours."""

    def stop(_reading, writing) -> None:
        writing.write(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "copyfileobj", stop)
        plan = plan_import(hermes, home)
        with pytest.raises(KeyboardInterrupt):
            apply_import(plan)

    assert apply_import(plan_import(hermes, home)) == []
    assert "bring" not in actions(plan_import(hermes, home)).values()
    assert sorted(everything(home.memories_dir)) == ["MEMORY.md", "USER.md"]
    assert (home.skills_dir / "dev/review/SKILL.md").read_text() == "review"


KEYS = """
    model provider default base_url api_key custom_providers providers fallback_providers fallback_model compression
    threshold auxiliary skills external_dirs approvals mode cron_mode plugins enabled entries mcp_servers time env
    headers args url command terminal docker_image toolsets agent name tools memory memory_enabled timezone max_turns
"""
NAMES = st.sampled_from(KEYS.split()) | st.text(max_size=5)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)


@hypothesis_settings(max_examples=150, deadline=None)
@given(config=st.dictionaries(NAMES, VALUES, max_size=6))
def test_any_config_is_imported_or_explained(tmp_path_factory, config):
    """Whatever it holds: settings that load, a line for every key, and nothing to do the second time."""
    root = tmp_path_factory.mktemp("any")
    (root / "hermes").mkdir()
    (root / "hermes/config.yaml").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    home = Home(root / "home")

    plan = plan_import(root / "hermes", home, PROVIDERS)
    problems = apply_import(plan)

    load_settings(home, {})
    assert problems == []
    told = " ".join(item.name for item in plan.items)
    for key, value in config.items():
        if not plan.items or value in ({}, []) or any(item.name == "config.yaml" for item in plan.items):
            continue
        assert dotted((key,)) in told or is_empty(value)
    assert [item.name for item in plan_import(root / "hermes", home, PROVIDERS).items if item.action == "bring"] == []


def is_empty(value) -> bool:
    """Whether a value is a section of nothing."""
    return isinstance(value, dict) and all(is_empty(inner) for inner in value.values())
