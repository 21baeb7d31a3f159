import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.config.edit import add_to_list, get_value, put_mappings, remove_from_list, set_value, unset_value
from toolcrib.config.load import check_settings, load_settings
from toolcrib.config.paths import Home
from toolcrib.core.errors import ConfigError

CONFIG = """\
# My settings.
toolsets: [cli, "web"]   # what chat offers

plugins:
    # those that I trust
    enabled:
    - one     # the first
    - 'two'

# How tools run.
tools:
  max_parallel:   4
  tool_search: on   # always

  timeouts: {terminal: 5}
logging:
  level: info
# The end.
"""


def changed_lines(before: str, after: str) -> tuple[set[str], set[str]]:
    return set(before.splitlines()) - set(after.splitlines()), set(after.splitlines()) - set(before.splitlines())


@pytest.mark.parametrize(
    ("key", "text", "gone", "new"),
    [
        ("tools.max_parallel", "16", "  max_parallel:   4", "  max_parallel:   16"),
        ("toolsets", "a, b", 'toolsets: [cli, "web"]   # what chat offers', "toolsets: [a, b]   # what chat offers"),
        ("toolsets", "[]", 'toolsets: [cli, "web"]   # what chat offers', "toolsets: []   # what chat offers"),
        ("tools.timeouts.web", "2.5", "  timeouts: {terminal: 5}", "  timeouts: {terminal: 5, web: 2.5}"),
        ("tools.timeouts.a.b", "1", "  timeouts: {terminal: 5}", "  timeouts: {terminal: 5, a.b: 1}"),
        ("logging.level", "debug", "  level: info", "  level: debug"),
        ("tools.tool_search", "off", "  tool_search: on   # always", '  tool_search: "off"   # always'),
        (
            "tools.tool_search.threshold_pct",
            "20",
            "  tool_search: on   # always",
            '  tool_search: {enabled: "on", threshold_pct: 20}   # always',
        ),
        ("tools.check_timeout_seconds", "2", None, "  check_timeout_seconds: 2"),
        ("plugins.project", "true", None, "    project: true"),
    ],
)
def test_setting_a_value_changes_one_line(write_config, key, text, gone, new):
    """Every other line, comments and spacing included, stays as it was."""
    home = write_config(CONFIG)

    set_value(home, key, text)

    after = home.config_file.read_text()
    assert changed_lines(CONFIG, after) == ({gone} if gone else set(), {new})
    assert check_settings(home) == []


def test_a_new_section_is_added_at_the_end(write_config):
    """A key of a section that the file does not have yet brings its section with it."""
    home = write_config(CONFIG)

    set_value(home, "tool_output.max_lines", "10")
    set_value(home, "plugins.entries.my.plugin.allow_tool_override", "true")

    added = "tool_output:\n  max_lines: 10\n"
    assert (
        home.config_file.read_text()
        == CONFIG.replace(
            "    - 'two'\n", "    - 'two'\n    entries:\n      my.plugin:\n        allow_tool_override: true\n"
        )
        + added
    )
    assert load_settings(home, {}).plugins.entries["my.plugin"].allow_tool_override


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "tools:\n", "tools: # later\n\n# x\n", "tools: {}\n", "tools: ~\n", "tools: {}"]
)
def test_a_value_can_be_set_where_nothing_stands(write_config, text):
    """Empty files, empty sections and files without a last line end are filled in."""
    home = write_config(text)

    set_value(home, "tools.max_parallel", "3")

    assert get_value(load_settings(home, {}), "tools.max_parallel") == 3
    assert all(line in home.config_file.read_text() for line in text.splitlines() if line.startswith("#"))


def test_adding_to_and_removing_from_a_list_keeps_the_comments(write_config):
    """Items come and go one line at a time; what stands around them is not moved."""
    home = write_config(CONFIG)

    add_to_list(home, "plugins.enabled", "three")
    add_to_list(home, "plugins.enabled", "three")
    assert home.config_file.read_text() == CONFIG.replace("    - 'two'\n", "    - 'two'\n    - three\n")

    for item in ("two", "three", "absent"):
        remove_from_list(home, "plugins.enabled", item)
    assert home.config_file.read_text() == CONFIG.replace("    - 'two'\n", "")

    remove_from_list(home, "plugins.enabled", "one")
    assert load_settings(home, {}).plugins.enabled == []
    assert "# those that I trust" in home.config_file.read_text()
    assert "# How tools run." in home.config_file.read_text()


def test_a_list_that_is_not_written_starts_from_its_default(home):
    """Adding to `toolsets` keeps the default that was in force, and removing from it leaves the rest."""
    add_to_list(home, "toolsets", "web")
    assert load_settings(home, {}).toolsets == ["cli", "web"]

    unset_value(home, "toolsets")
    remove_from_list(home, "toolsets", "cli")
    assert load_settings(home, {}).toolsets == []
    add_to_list(home, "toolsets", "x")
    assert load_settings(home, {}).toolsets == ["x"]


@pytest.mark.parametrize(
    ("key", "gone"),
    [
        ("tools.max_parallel", {"  max_parallel:   4"}),
        ("plugins.enabled", {"    enabled:", "    - one     # the first", "    - 'two'"}),
        ("tools", {"tools:", "  max_parallel:   4", "  tool_search: on   # always", "  timeouts: {terminal: 5}"}),
        ("logging.level", {"  level: info"}),
        ("tool_output.max_lines", set()),
    ],
)
def test_unsetting_removes_only_the_key(write_config, key, gone):
    """The default holds again; comments around the key stay."""
    home = write_config(CONFIG)

    unset_value(home, key)

    assert changed_lines(CONFIG, home.config_file.read_text()) == (gone, set())
    assert check_settings(home) == []


def test_unsetting_in_a_one_line_mapping(write_config):
    """Keys leave `{a: 1, b: 2}` without breaking it, first, middle or last."""
    home = write_config("tools: {max_parallel: 1, check_timeout_seconds: 2, timeouts: {}}\n")

    unset_value(home, "tools.check_timeout_seconds")
    assert home.config_file.read_text() == "tools: {max_parallel: 1, timeouts: {}}\n"
    unset_value(home, "tools.timeouts")
    unset_value(home, "tools.max_parallel")
    assert home.config_file.read_text() == "tools: {}\n"


def test_anchors_survive_or_the_round_trip_takes_over(write_config):
    """A change of an alias touches only the key that was named."""
    home = write_config("custom_toolsets:\n  a: &x {tools: [one]}  # first\n  b: *x\n")

    set_value(home, "custom_toolsets.b", "{tools: [two]}")

    assert load_settings(home, {}).custom_toolsets["a"].tools == ["one"]
    assert load_settings(home, {}).custom_toolsets["b"].tools == ["two"]
    assert "# first" in home.config_file.read_text()


def test_line_ends_and_byte_order_mark_stay(write_config):
    """A file from Windows stays one."""
    home = write_config("\ufefftools:\r\n  max_parallel: 2\r\n# end\r\n")

    set_value(home, "tools.max_parallel", "3")
    set_value(home, "logging.level", "error")

    assert home.config_file.read_bytes().decode() == (
        "\ufefftools:\r\n  max_parallel: 3\r\n# end\r\nlogging:\r\n  level: error\r\n"
    )


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("tools.max_paralel", "3", "did you mean 'tools.max_parallel'"),
        ("tools.max_parallel", "many", "'tools.max_parallel' should be a whole number, not the text 'many'"),
        ("tools.max_parallel", "0", "should be at least 1"),
        ("tools.max_parallel", "", "should be a whole number, not empty"),
        ("tools.max_parallel", "[", "not valid YAML"),
        ("tools.max_parallel.x", "1", "has no keys inside it"),
        ("plugins", "[a]", "should be a mapping"),
        ("safe_mode", "true", "unknown key 'safe_mode'"),
    ],
)
def test_a_bad_value_is_refused_and_the_file_stays(write_config, key, text, said):
    """Nothing is written that could not be read again."""
    home = write_config(CONFIG)

    with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
        set_value(home, key, text)

    assert home.config_file.read_text() == CONFIG


def test_a_broken_file_is_never_written_to(write_config):
    """A file with another mistake is left for its owner to correct, and the mistake is named."""
    home = write_config("tols: 1\n")

    with pytest.raises(ConfigError, match="unknown key 'tols'"):
        set_value(home, "tools.max_parallel", "3")

    assert home.config_file.read_text() == "tols: 1\n"


def test_a_bad_value_can_be_corrected_by_setting_it(write_config):
    """The one mistake of a file can be put right from the command line."""
    home = write_config("tools:\n  max_parallel: many  # ?\n")

    set_value(home, "tools.max_parallel", "3")

    assert home.config_file.read_text() == "tools:\n  max_parallel: 3  # ?\n"


def test_only_lists_take_items(home):
    """Adding to something that is not a list says what to type instead."""
    with pytest.raises(ConfigError, match=r"toolcrib config set tools\.max_parallel"):
        add_to_list(home, "tools.max_parallel", "3")


def test_getting_values_gives_plain_data(home):
    """A section is a dict, an unset name says how to set it, an unknown key names the nearest."""
    settings = load_settings(home, {})

    assert get_value(settings, "logging") == {"level": "info"}
    with pytest.raises(ConfigError, match="is not set"):
        get_value(settings, "tools.timeouts.web")
    with pytest.raises(ConfigError, match=r"did you mean 'logging\.level'"):
        get_value(settings, "logging.levl")


def test_permissions_and_links_survive(write_config, tmp_path):
    """The file behind a symbolic link is changed, and keeps its mode; the link stays a link."""
    home = write_config("")
    real = tmp_path / "dotfiles" / "toolcrib.yaml"
    real.parent.mkdir()
    real.write_text("# mine\n")
    real.chmod(0o640)
    home.config_file.unlink()
    home.config_file.symlink_to(real)

    set_value(home, "logging.level", "error")

    assert home.config_file.is_symlink()
    assert real.read_text() == "# mine\nlogging:\n  level: error\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_new_config_is_for_its_owner(home):
    """A config file that we create can only be read by its owner."""
    set_value(home, "logging.level", "error")

    assert stat.S_IMODE(home.config_file.stat().st_mode) == 0o600


SET_WITHOUT_ROOT = """
import os, sys
from pathlib import Path
import ruamel.yaml
from toolcrib.config.edit import set_value
from toolcrib.config.paths import Home
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
set_value(Home(Path(sys.argv[1])), "logging.level", "error")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be read-only there")
def test_a_read_only_home_is_a_clear_error():
    """Where nothing can be written, the error names the file and what to check."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        home = Home(Path(folder) / "home")
        home.root.mkdir()
        home.config_file.write_text("# mine\n")
        home.root.chmod(0o555)

        command = [sys.executable, "-c", SET_WITHOUT_ROOT, str(home.root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

        home.root.chmod(0o755)
        assert f"ConfigError: cannot write {str(home.config_file)!r} (Permission denied)" in done.stderr
        assert f"`ls -ld {home.root}`" in done.stderr
        assert home.config_file.read_text() == "# mine\n"


def test_a_file_in_place_of_the_home_is_a_clear_error(tmp_path):
    """A home that is a file is named, not crashed on."""
    (tmp_path / "home").write_text("")

    with pytest.raises(ConfigError, match="cannot"):
        set_value(Home(tmp_path / "home"), "logging.level", "error")


WRITE_FOREVER = """
import sys
import tempfile
from pathlib import Path
from toolcrib.config.edit import set_value
from toolcrib.config.paths import Home
home = Home(Path(sys.argv[1]))
n = 0
while True:
    n += 1
    set_value(home, "tools.max_parallel", str(n))
    if n == 3:
        print("going", flush=True)
"""


@pytest.mark.services
@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_killed_writer_never_leaves_a_broken_file(write_config):
    """While a writer runs and after it is killed, the file is whole; the next writer is not held up."""
    home = write_config(CONFIG)

    for _ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITE_FOREVER, str(home.root)], stdout=subprocess.PIPE)
        with writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            sizes = {home.config_file.stat().st_size for _ in range(3000)}
            writer.send_signal(signal.SIGKILL)
        assert min(sizes) >= len(CONFIG)
        gone, new = changed_lines(CONFIG, home.config_file.read_text())
        assert len(gone) <= 1
        assert len(new) <= 1
        assert check_settings(home) == []

    set_value(home, "tools.max_parallel", "7")
    assert sorted(path.name for path in home.root.iterdir()) == [".config.yaml.lock", "config.yaml"]


@pytest.mark.services
def test_two_processes_writing_at_once_lose_nothing(write_config):
    """Writers wait for each other: every change of both is there in the end."""
    home = write_config(CONFIG)
    script = (
        "import sys; from pathlib import Path; from toolcrib.config.edit import set_value, add_to_list\n"
        "from toolcrib.config.paths import Home; home = Home(Path(sys.argv[1]))\n"
        "for name in (f'{sys.argv[2]}{n}' for n in range(8)):\n"
        "    set_value(home, f'tools.timeouts.{name}', '1'); add_to_list(home, 'toolsets', name)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(home.root), name]) for name in ("a", "b")]

    assert [writer.wait(60) for writer in writers] == [0, 0]
    settings = load_settings(home, {})
    names = {f"{name}{n}" for name in "ab" for n in range(8)}
    assert set(settings.tools.timeouts) == names | {"terminal"}
    assert set(settings.toolsets) == names | {"cli", "web"}


@given(st.text(min_size=1).filter(lambda text: "." not in text), st.text())
def test_any_text_can_be_written_and_read_back(tmp_path_factory, name, description):
    """Whatever a name or a text holds, it is quoted so that YAML gives it back."""
    home = Home(tmp_path_factory.mktemp("edit"))
    home.config_file.write_text(CONFIG)

    set_value(home, f"custom_toolsets.{name}.description", description)
    add_to_list(home, "plugins.enabled", name)

    settings = load_settings(home, {})
    assert settings.custom_toolsets[name].description == description
    assert name in settings.plugins.enabled
    assert home.config_file.read_text().count("#") >= CONFIG.count("#")


def test_a_value_that_is_not_text_is_refused(home):
    """A broken character from the terminal is refused before the file is touched."""
    with pytest.raises(ConfigError):
        set_value(home, "custom_toolsets.a.description", "\udcff")
    assert not home.config_file.exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("mcp_servers:  # none yet\nmodel: x\n", "mcp_servers:  # none yet\n  a:\n    command: b\nmodel: x\n"),
        ("mcp_servers:", "mcp_servers:\n  a:\n    command: b\n"),
        ("mcp_servers:\r\nmodel: x\r\n", "mcp_servers:\r\n  a:\r\n    command: b\r\nmodel: x\r\n"),
        ("{mcp_servers: }\n", "{mcp_servers: {a: {command: b}} }\n"),
        (
            "# one\n---\nmodel: x  # two\n...\n# three\n",
            "# one\n---\nmodel: x  # two\nmcp_servers:\n  a:\n    command: b\n...\n# three\n",
        ),
    ],
)
def test_an_empty_section_and_the_end_of_a_document_keep_all_around_them(tmp_path: Path, before: str, after: str):
    """A mapping is written as a block where there is room for one, and no comment is lost."""
    home = Home(tmp_path)
    home.config_file.write_bytes(before.encode())

    put_mappings(home, {("mcp_servers", "a"): {"command": "b"}})

    assert home.config_file.read_bytes().decode() == after
