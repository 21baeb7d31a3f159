import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.config.env_file import (
    exposure,
    get_env_value,
    load_env_file,
    parse_env,
    read_env_file,
    remove_env_value,
    save_env_value,
    save_env_values,
)
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS, mask
from toolcrib.config.paths import Home
from toolcrib.core.errors import ConfigError


def write_env(home: Home, text: str) -> None:
    home.root.mkdir(exist_ok=True)
    home.env_file.write_bytes(text.encode())


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("A=", ""),
        ("  A = b  ", "b"),
        ("export A=b", "b"),
        ("export  A='b c'", "b c"),
        ("A=b # note", "b"),
        ("A=b#c", "b#c"),
        ("A=#c", ""),
        ("A='b # c' # note", "b # c"),
        ('A="x\\ny\\t\\"q\\" \\\\ \\$H"', 'x\ny\t"q" \\ $H'),
        ("A='it\\'s \\n'", "it's \\n"),
        ('A="\\d"', "\\d"),
        ("A=$HOME and `ls`", "$HOME and `ls`"),
        ("A=b=c==", "b=c=="),
        ("A=b\r", "b"),
        ("A=\u2028x", "\u2028x".strip()),
    ],
)
def test_one_line_of_env(line, value):
    """Quotes, escapes, `export`, comments and line ends are understood; nothing is expanded."""
    (parsed,) = parse_env(line + "\n")

    assert (parsed.key, parsed.value, parsed.problem) == ("A", value, "")


def test_broken_lines_are_reported_and_the_rest_is_kept(home):
    """A line that cannot be read costs only itself, and is named with its number."""
    write_env(home, '\ufeffA=1\n\n# c\nnonsense\n9X=1\nB=\'open\nC=2\nD="x" y\n')
    environ: dict[str, str] = {}

    problems = load_env_file(home, environ)

    assert environ == {"A": "1", "C": "2"}
    assert [problem.removeprefix(f"{home.env_file}:").split(":")[0] for problem in problems] == ["4", "5", "6", "8"]


def test_what_is_set_already_wins(home):
    """A variable of the environment, even an empty one, is never overridden by the file."""
    write_env(home, "A=file\nB=file\nC=file\nC=last\n")
    environ = {"A": "set", "B": ""}

    assert load_env_file(home, environ) == []
    assert environ == {"A": "set", "B": "", "C": "last"}
    assert get_env_value(home, "A", {"A": "set"}) == "set"
    assert get_env_value(home, "C", {}) == "last"
    assert get_env_value(home, "D", {}) is None


def test_no_env_file_is_no_problem(home):
    """A home without `.env`, or one that is a folder, stops nothing."""
    assert load_env_file(home, {}) == []
    home.env_file.mkdir(parents=True)
    assert "cannot read" in load_env_file(home, {})[0]


@given(st.text().filter(lambda text: "\0" not in text))
def test_any_value_reads_back_as_it_was_saved(tmp_path_factory, value):
    """A saved value is the same when read, whatever characters it holds; its neighbours stay."""
    home = Home(tmp_path_factory.mktemp("env"))
    write_env(home, "# top\nBEFORE=1\nKEY=old\nAFTER='2'")

    save_env_value(home, "KEY", value)

    assert read_env_file(home.env_file) == {"BEFORE": "1", "KEY": value, "AFTER": "2"}


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters="\0\r")))
def test_a_shell_reads_single_line_values_as_we_do(value):
    """A value on one line means the same to a shell that sources the file."""
    if "\n" in value:
        return
    from toolcrib.config.env_file import _quoted

    script = f'A={_quoted("A", value)}\nprintf %s "$A"'

    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout == value


def test_saving_keeps_every_other_line(home):
    """Comments, order, broken lines, line ends and bytes that are not UTF-8 survive."""
    home.root.mkdir()
    home.env_file.write_bytes(b"# keys\r\nexport A=1 # one\r\nbroken\r\nB=\xff\r\n")

    save_env_values(home, {"A": "2 3", "C": "4"})
    remove_env_value(home, "NOPE")

    assert home.env_file.read_bytes() == b"# keys\r\nexport A='2 3'\r\nbroken\r\nB=\xff\r\nC=4\r\n"
    remove_env_value(home, "A")
    assert home.env_file.read_bytes() == b"# keys\r\nbroken\r\nB=\xff\r\nC=4\r\n"


def test_only_the_owner_may_read_the_file(home):
    """A new `.env` and its home are for the owner alone, and a looser file is tightened when saved."""
    old = os.umask(0)
    try:
        save_env_value(home, "A", "1")
    finally:
        os.umask(old)
    assert stat.S_IMODE(home.env_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700
    assert exposure(home) == ""

    home.env_file.chmod(0o644)
    assert "chmod 600" in exposure(home)
    save_env_value(home, "B", "2")
    assert stat.S_IMODE(home.env_file.stat().st_mode) == 0o600


@pytest.mark.parametrize("key", ["", "a b", "1A", "A=B", "A\n", "É"])
def test_a_bad_name_is_refused(home, key):
    """A key that no shell would accept is refused before anything is written."""
    with pytest.raises(ConfigError, match="not a variable name"):
        save_env_value(home, key, "x")
    assert not home.env_file.exists()


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_a_value_that_no_variable_can_hold_is_refused(home, value):
    """NUL and lone surrogates are refused with a sentence, and the file stays as it was."""
    save_env_value(home, "A", "1")
    with pytest.raises(ConfigError, match="type it again"):
        save_env_value(home, "A", value)
    assert read_env_file(home.env_file) == {"A": "1"}


def test_two_processes_saving_at_once_lose_nothing(home):
    """Writers wait for each other: every value of both is there in the end."""
    script = (
        "import sys; from pathlib import Path; from toolcrib.config.env_file import save_env_value;"
        "from toolcrib.config.paths import Home\n"
        "for n in range(15): save_env_value(Home(Path(sys.argv[1])), f'{sys.argv[2]}{n}', 'x')"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(home.root), name]) for name in ("A", "B")]

    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert read_env_file(home.env_file) == {f"{name}{n}": "x" for name in "AB" for n in range(15)}


def test_optional_variables_have_the_shape_that_the_wizard_needs():
    """Each entry has a description, a prompt, a url, the tools that use it and whether it is secret."""
    for name, about in OPTIONAL_ENV_VARS.items():
        assert set(about) == {"description", "prompt", "url", "tools", "password"}, name
        assert all(about[key] for key in ("description", "prompt", "url")), name
        assert isinstance(about["password"], bool)
        assert about["password"] or not name.endswith(("_KEY", "TOKEN", "SECRET", "PASSWORD")), name
    assert {"EXA_API_KEY", "HASS_TOKEN", "FAL_KEY", "DISCORD_BOT_TOKEN", "OPENAI_API_KEY"} <= set(OPTIONAL_ENV_VARS)


@pytest.mark.parametrize(("value", "shown"), [("", "****"), ("short", "****"), ("sk-1234567890abcd", "****abcd")])
def test_a_masked_value_shows_at_most_its_end(value, shown):
    """A long secret shows its last four characters, a short one nothing."""
    assert mask(value) == shown
