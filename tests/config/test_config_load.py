import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.config import settings as settings_module
from toolcrib.config import terminal_settings
from toolcrib.config.load import check_settings, load_settings
from toolcrib.config.paths import Home, find_home
from toolcrib.config.schema import SettingsReader, all_settings, find_setting, is_section, known_keys
from toolcrib.config.settings import CustomToolset, PluginEntry, Settings
from toolcrib.core.errors import ConfigError


def problems_of(write_config, text: str) -> list[str]:
    home = write_config(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(home, {})
    lines = str(caught.value).splitlines()
    assert check_settings(home) == lines
    return [line.replace(str(home.config_file), "FILE") for line in lines]


@pytest.mark.parametrize("text", [None, "", "\n\n", "# only a comment\n", "---\n", "\ufeff", "tools:\n", "toolsets:\n"])
def test_an_empty_config_means_defaults(home, write_config, text):
    """No file, an empty one and keys without a value all give the defaults."""
    if text is not None:
        write_config(text)

    assert load_settings(home, {}) == Settings(home=home)
    assert check_settings(home) == []


def test_every_section_is_read(write_config):
    """Values of the file reach the fields of their sections, with their types."""
    home = write_config(
        "toolsets: []\n"
        "agent: {disabled_toolsets: [web]}\n"
        "custom_toolsets:\n"
        "  mine: {description: Mine, tools: [a], includes: [web]}\n"
        "  bare:\n"
        "plugins: {enabled: [p], disabled: [q], project: true, entries: {p: {allow_tool_override: true}}}\n"
        "tools:\n"
        "  max_parallel: 3\n"
        "  timeouts: {terminal: 5, web.search: 0.5}\n"
        "  tool_search: {enabled: off, threshold_pct: 12.5}\n"
        "tool_output: {max_lines: 1_000}\n"
        "security: {redact_secrets: false}\n"
        "logging: {level: DEBUG}\n"
    )

    settings = load_settings(home, {})

    assert settings.toolsets == []
    assert settings.agent.disabled_toolsets == ["web"]
    assert settings.custom_toolsets == {
        "mine": CustomToolset(description="Mine", tools=["a"], includes=["web"]),
        "bare": CustomToolset(),
    }
    assert settings.plugins.entries == {"p": PluginEntry(allow_tool_override=True)}
    assert (settings.plugins.enabled, settings.plugins.disabled, settings.plugins.project) == (["p"], ["q"], True)
    assert settings.tools.timeouts == {"terminal": 5.0, "web.search": 0.5}
    assert (settings.tools.tool_search.enabled, settings.tools.tool_search.threshold_pct) == ("off", 12.5)
    assert (settings.tools.max_parallel, settings.tool_output.max_lines) == (3, 1000)
    assert (settings.security.redact_secrets, settings.logging.level) == (False, "debug")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("true", "on"), ("false", "off"), ("on", "on"), ("off", "off"), ("auto", "auto"), ("{enabled: true}", "on")],
)
def test_tool_search_may_be_a_single_word(write_config, written, meant):
    """`tool_search` as a bare value sets `enabled`; true and false mean on and off."""
    home = write_config(f"tools:\n  tool_search: {written}\n")

    assert load_settings(home, {}).tools.tool_search.enabled == meant


def test_all_problems_are_reported_together_in_order(write_config):
    """One line for each problem: file, line, key, what is wrong and what to do."""
    text = (
        "tols: {}\ntools: #\n  max_paralel: 3\n  max_parallel: many\n  timeouts: {x: -1}\nplugins: [a]\nplugins: {}\n"
    )

    problems = problems_of(write_config, text)

    assert problems == [
        "FILE:1: unknown key 'tols'; did you mean 'tools' or 'toolsets'? "
        "Rename or remove it, then run `toolcrib config check`",
        "FILE:3: unknown key 'tools.max_paralel'; did you mean 'tools.max_parallel'? "
        "Rename or remove it, then run `toolcrib config check`",
        "FILE:4: 'tools.max_parallel' should be a whole number, not the text 'many'; "
        "correct it, then run `toolcrib config check`",
        "FILE:5: 'tools.timeouts.x' should be more than 0, not -1; correct it, then run `toolcrib config check`",
        "FILE:6: 'plugins' should be a mapping of keys to values, not a list; "
        "correct it, then run `toolcrib config check`",
        "FILE:7: 'plugins' is written twice, first in line 6; keep one of the two",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "FILE:1: the file should be a mapping of keys to values, not a list"),
        ("just text\n", "FILE:1: the file should be a mapping of keys to values, not the text 'just text'"),
        ("toolsets: web\n", "FILE:1: 'toolsets' should be a list like [one, two], not the text 'web'"),
        ("toolsets: [web, 3]\n", "FILE:1: 'toolsets.1' should be text, not the number 3"),
        ("toolsets: [null]\n", "FILE:1: 'toolsets.0' should be text, not empty"),
        ("plugins: {project: yes}\n", "FILE:1: 'plugins.project' should be true or false, not the text 'yes'"),
        ("tools: {max_parallel: 0}\n", "FILE:1: 'tools.max_parallel' should be at least 1, not 0"),
        ("tools: {max_parallel: true}\n", "FILE:1: 'tools.max_parallel' should be a whole number, not true"),
        ("tools: {max_parallel: 1.5}\n", "FILE:1: 'tools.max_parallel' should be a whole number, not the number 1.5"),
        ("tools: {check_timeout_seconds: .nan}\n", "FILE:1: 'tools.check_timeout_seconds' should be a number, not"),
        ("tools: {check_timeout_seconds: .inf}\n", "FILE:1: 'tools.check_timeout_seconds' should be a number, not"),
        ("tools: {tool_search: maybe}\n", "FILE:1: 'tools.tool_search.enabled' should be one of auto, on, off, not"),
        ("tools: {tool_search: {threshold_pct: 101}}\n", "FILE:1: 'tools.tool_search.threshold_pct' should be at most"),
        ("logging: {level: loud}\n", "FILE:1: 'logging.level' should be one of debug, info, warning, error, not"),
        ("custom_toolsets: {a: {tool: [x]}}\n", "FILE:1: unknown key 'custom_toolsets.a.tool'; did you mean"),
        ("tools: {timeouts: {1: 2}}\n", "FILE:1: the name 1 in 'tools.timeouts' is not text; put it in quotes"),
        ("max_parallel: 3\n", "FILE:1: unknown key 'max_parallel'; did you mean 'tools.max_parallel'"),
        ("zzzz: 3\n", "FILE:1: unknown key 'zzzz'; at the top of the file there can be toolsets, model"),
        ("safe_mode: true\n", "FILE:1: unknown key 'safe_mode'"),
        ("home: /x\n", "FILE:1: unknown key 'home'"),
        ("toolsets: !!python/name:os.system x\n", "FILE:1: the tag 'tag:yaml.org,2002:python/name:os.system'"),
        ("a: 1\n---\nb: 2\n", "FILE:2:1: this is not valid YAML ("),
        ("tools: [1\nb: 2\n", "FILE:2:2: this is not valid YAML ("),
        ("\ttools: 1\n", "FILE:1:1: this is not valid YAML ("),
        ("tools: {}\nx: \x01\n", "FILE:2:4: this is not valid YAML (it contains a character that YAML does not allow)"),
        ("toolsets: &a [*a]\n", "FILE: values are nested too deeply"),
        ("a: " + "[" * 1000, "FILE: values are nested too deeply"),
    ],
)
def test_each_mistake_has_its_own_sentence(write_config, text, said):
    """A wrong value names what was expected and what was found; broken YAML names line and column."""
    problems = problems_of(write_config, text)

    assert problems[0].startswith(said)


def test_anchors_and_merge_keys_work(write_config):
    """Aliases and `<<` are part of YAML and mean what they mean elsewhere; own keys win over merged ones."""
    home = write_config(
        "custom_toolsets:\n  a: &a {description: A, tools: [x]}\n  b:\n    <<: *a\n    description: B\n"
    )

    assert load_settings(home, {}).custom_toolsets["b"] == CustomToolset(description="B", tools=["x"])


def test_a_date_is_text(write_config):
    """YAML 1.2 has no dates: a text setting that looks like one stays text."""
    home = write_config("custom_toolsets: {a: {description: 2024-01-01}}\n")

    assert load_settings(home, {}).custom_toolsets["a"].description == "2024-01-01"


def test_a_file_that_is_not_text_is_a_clear_error(home):
    """Bytes that are not UTF-8, or a folder in place of the file, are answered with what to do."""
    home.root.mkdir()
    home.config_file.write_bytes(b"a: 1\nb: \xff\n")
    assert check_settings(home) == [f"{home.config_file}:2: the file is not UTF-8 text; save it as UTF-8"]

    home.config_file.unlink()
    home.config_file.mkdir()
    assert "cannot read" in check_settings(home)[0]


@pytest.mark.parametrize(
    ("environ", "safe", "project"),
    [
        ({}, False, False),
        ({"TOOLCRIB_SAFE_MODE": "1", "TOOLCRIB_ENABLE_PROJECT_PLUGINS": "true"}, True, True),
        ({"HERMES_SAFE_MODE": "1", "HERMES_ENABLE_PROJECT_PLUGINS": "1"}, True, True),
        ({"TOOLCRIB_SAFE_MODE": "0", "HERMES_SAFE_MODE": "1"}, False, False),
    ],
)
def test_the_environment_switches_safe_mode_and_project_plugins(home, environ, safe, project):
    """Switches come from the environment, ours before the ones of Hermes Agent."""
    settings = load_settings(home, environ)

    assert (settings.safe_mode, settings.plugins.project, settings.home) == (safe, project, home)


def test_keys_of_hermes_are_left_alone_in_a_home_that_is_shared_with_it(write_config):
    """In a home found through HERMES_HOME unknown keys belong to another program; known ones are still checked."""
    root = str(write_config("approvals: {mode: smart}\nagent: {tool_delay: 9}\ntoolsets: [hermes-cli]\n").root)

    assert load_settings(find_home({"HERMES_HOME": root}), {}).toolsets == ["hermes-cli"]
    with pytest.raises(ConfigError, match=r"unknown key 'agent\.tool_delay'"):
        load_settings(find_home({"TOOLCRIB_HOME": root}), {})


@given(st.sampled_from(sorted(key for key in known_keys() if "NAME" not in key)), st.data())
def test_a_misspelt_key_is_answered_with_the_right_one(key, data):
    """Whatever single letter is dropped from a known key, the known key is among the suggestions."""
    parent, _, word = key.rpartition(".")
    drop = data.draw(st.integers(0, len(word) - 1))
    wrong = ".".join(part for part in (parent, word[:drop] + word[drop + 1 :]) if part)
    if wrong in set(known_keys()):
        return

    with pytest.raises(ConfigError) as caught:
        find_setting(wrong)

    assert repr(key) in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(known_keys())), json_values)
def test_any_value_gives_settings_or_problems(key, value):
    """Whatever stands under a key, the reader answers with settings and sentences, never with a crash."""
    for part in reversed(key.split(".")):
        value = {part: value}
    reader = SettingsReader()

    settings = reader.section(Settings, value)

    assert isinstance(settings, Settings)
    assert all(re.search(r"should be|unknown key|is not text", message) for _, message in reader.problems)


@pytest.mark.parametrize("module", [settings_module, terminal_settings])
def test_every_setting_is_documented(module):
    """Each field of each section has a text under it, from which the reference docs are made."""
    tree = ast.parse(inspect.getsource(module))
    for section in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for statement, following in zip(section.body, [*section.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign):
                assert isinstance(following, ast.Expr), f"{section.name}.{ast.unparse(statement.target)}"


def test_every_section_can_be_made_from_nothing():
    """A section has a default for every field, so that a file may leave out any of them."""

    def sections(cls):
        yield cls
        for setting in all_settings(cls).values():
            for inner in (setting.expected, *get_args(setting.expected)):
                if is_section(inner):
                    yield from sections(inner)

    assert all(section() == section() for section in sections(Settings))


def test_yaml_is_only_imported_for_a_config_file(home, write_config):
    """A process without a config file does not pay for the YAML library."""
    script = (
        "import sys; from pathlib import Path; from toolcrib.config.load import load_settings;"
        "from toolcrib.config.paths import Home; load_settings(Home(Path(sys.argv[1])), {});"
        "print('ruamel.yaml' in sys.modules)"
    )

    def imported() -> str:
        command = [sys.executable, "-c", script, str(home.root)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert imported() == "False"
    write_config("# nothing yet\n")
    assert imported() == "False"
    write_config("toolsets: [web]\n")
    assert imported() == "True"


def test_a_setting_that_may_be_unset_takes_a_value_of_its_type(tmp_path: Path) -> None:
    """A number is a number where the default is to say nothing, and text is still refused."""
    home = Home(tmp_path)
    home.config_file.write_text("model: {temperature: 0.3}\n")
    assert load_settings(home).model.temperature == 0.3

    home.config_file.write_text("model: {temperature: warm}\n")
    with pytest.raises(ConfigError, match=r"'model\.temperature' should be a number"):
        load_settings(home)
