"""What holds for every command: exit codes, pipes, interrupts, help, and what a broken config must not stop."""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib

import click
import pytest

from tests.cli.cli_program import KEYED_TOOL, SOURCE, Program
from toolcrib.cli.app import make_root
from toolcrib.cli.commands.doctor import extra_packages
from toolcrib.cli.group import CommandGroup
from toolcrib.version import __version__


def test_version_is_answered_without_the_command_line(toolcrib: Program):
    """Neither click nor a config file, however broken, stands between a script and the version."""
    toolcrib.write("config.yaml", "nonsense: [\n")
    script = (
        "import sys; sys.argv[1:] = ['--version']\n"
        "from toolcrib.__main__ import main; main(); print('click' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=toolcrib.environment(), check=True
    )

    assert done.stdout == f"toolcrib {__version__}\nFalse\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("config", "path"), 0),
        (("config", "check"), 2),
        (("config", "set", "tools.max_parallel", "2"), 2),
        (("doctor",), 1),
        (("completion", "bash"), 0),
        (("tools", "new", "fresh", "--kind", "tool"), 0),
        (("tools", "list"), 2),
    ],
)
def test_a_broken_config_stops_only_what_needs_it(toolcrib: Program, arguments: tuple[str, ...], code: int):
    """What repairs or examines the config works without a good one; the rest refuses in one line."""
    toolcrib.write("config.yaml", "toolsts: [web]\n")

    outcome = toolcrib(*arguments)

    assert outcome.code == code
    assert "Traceback" not in outcome.stderr


def test_a_broken_config_can_be_repaired_by_key(toolcrib: Program):
    """A bad value is replaced by `config set`, and removed by `config unset`."""
    toolcrib.write("config.yaml", "# mine\nlogging:\n  level: loud\n")

    repaired = toolcrib("config", "set", "logging.level", "debug")

    assert repaired.code == 0
    assert toolcrib("config", "get", "logging.level").stdout == "debug\n"
    assert (toolcrib.home / "config.yaml").read_text().startswith("# mine\n")


@pytest.mark.services
def test_a_reader_that_leaves_early_is_no_error(toolcrib: Program):
    """`toolcrib … | head -1` ends quietly."""
    command = f"{shlex.quote(sys.executable)} -m toolcrib toolsets list --json | head -1"

    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env=toolcrib.environment(),
        cwd=toolcrib.root,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("[\n", "")


def test_an_interrupt_is_quiet(toolcrib: Program):
    """Ctrl-C while a question waits: exit code 130 and no traceback."""
    seen = toolcrib.on_terminal("tools", "new", "brew", answers=(("skill or tool? ", "^C"),))

    assert seen.code == 130
    assert "Traceback" not in seen.stdout
    assert "Aborted" not in seen.stdout


def test_an_interrupt_stops_a_running_tool(toolcrib: Program):
    """Ctrl-C in a handler that waits ends the program quietly."""
    toolcrib.write(
        "tools/sleepy.py",
        "import sys, time\nfrom toolcrib import tool\n@tool\ndef sleepy() -> str:\n"
        "    '''Waits.'''\n    print('asleep', file=sys.stderr, flush=True)\n    time.sleep(60)\n    return ''\n",
    )

    seen = toolcrib.on_terminal("tools", "run", "sleepy", answers=(("asleep", "^C"),))

    assert seen.code == 130
    assert "Traceback" not in seen.stdout


def test_a_terminal_that_cannot_show_an_emoji_still_shows_the_rest(toolcrib: Program):
    """Output that the encoding of the terminal lacks is escaped, never a crash."""
    outcome = toolcrib("tools", "list", PYTHONIOENCODING="ascii")

    assert outcome.code == 0
    assert "todo" in outcome.stdout


@pytest.mark.services
def test_json_stays_json_where_the_encoding_lacks_a_character(toolcrib: Program):
    """What cannot be written as it is becomes an escape that JSON knows, for a list as for a result."""
    toolcrib.write("tools/tides.py", KEYED_TOOL)

    listed = toolcrib("tools", "list", "--toolset", "tides", "--json", PYTHONIOENCODING="ascii")
    result = toolcrib("tools", "run", "tides", '{"port": "\\u00e9\\ud83c\\udf0a"}', PYTHONIOENCODING="ascii")

    assert json.loads(listed.stdout)[0]["emoji"] == "🌊"
    assert json.loads(result.stdout) == {"port": "é🌊"}


def test_texts_of_others_cannot_control_the_terminal(toolcrib: Program):
    """Escape sequences and turns of the writing direction in a description arrive as visible marks."""
    toolcrib.write("tools/tides.py", KEYED_TOOL.replace("High and low", "\\x1b]0;owned\\x07High\\u202e and low"))

    outcome = toolcrib("tools", "explain", "tides")

    assert not set("\x1b\u202e") & set(outcome.stdout)
    assert "owned" in outcome.stdout


def test_a_home_that_cannot_be_written_is_one_line(toolcrib: Program):
    """An error of the system is told like every other."""
    toolcrib.home.write_text("a file is in the way")

    outcome = toolcrib("tools", "new", "hello", "--kind", "tool")

    assert outcome.code != 0
    assert outcome.stderr.startswith("toolcrib: ")
    assert len(outcome.stderr.splitlines()) == 1


def every_command(group: CommandGroup | None = None, path: str = "") -> dict[str, tuple[click.Command, str]]:
    """Each group and command by what a person types, with the line that stands in the listing."""
    group = group or make_root()
    context = click.Context(group, info_name="toolcrib")
    found: dict[str, tuple[click.Command, str]] = {}
    for name, summary in group.summaries().items():
        command = group.get_command(context, name)
        assert command is not None
        found[f"{path} {name}".strip()] = command, summary
        if isinstance(command, CommandGroup):
            found |= every_command(command, f"{path} {name}".strip())
    return found


@pytest.mark.parametrize("path", every_command())
def test_every_command_explains_itself(path: str):
    """Help begins with the line that stands in the listing, and every option has a help text."""
    command, summary = every_command()[path]

    assert (command.help or "").splitlines()[0] == summary
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_every_command_function_can_be_reached():
    """A command that nobody can type is dead code."""
    reached = {id(command) for command, _ in every_command().values()}
    names = sorted(path.stem for path in (SOURCE / "toolcrib/cli/commands").glob("[!_]*.py"))
    modules = [importlib.import_module(f"toolcrib.cli.commands.{name}") for name in names]
    declared = {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, click.Command)
    }

    assert [name for name, value in declared.items() if id(value) not in reached] == []


def test_doctor_knows_every_extra():
    """The optional packages that doctor looks for are those of the distribution, each extra's own ones first."""
    project = SOURCE.parent / "pyproject.toml"
    if not project.exists():
        pytest.skip("runs in a checkout")
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]

    found = extra_packages()

    assert set(found) == set(extras) - {"all", "dev"}
    assert {extra: found[extra][0] for extra in ("openai", "embedded", "acp", "video", "vision")} == {
        "openai": "openai",
        "embedded": "xllamacpp",
        "acp": "agent-client-protocol",
        "video": "imageio-ffmpeg",
        "vision": "pillow",
    }


def completions(toolcrib: Program, line: str) -> list[str]:
    """What a real bash offers after `line`, with our script loaded."""
    folder = toolcrib.root / "bin"
    folder.mkdir(exist_ok=True)
    launcher = folder / "toolcrib"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m toolcrib "$@"\n')
    launcher.chmod(0o755)
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        'eval "$(toolcrib completion bash)"\n'
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMP_LINE='{line}'; COMP_POINT={len(line)}\n"
        "_toolcrib_completion toolcrib\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    environment = toolcrib.environment()
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.quick_rows(3)
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("toolcrib to", ["tools", "toolsets"]),
        ("toolcrib tools l", ["list", "lint"]),
        ("toolcrib tools list --j", ["--json"]),
        ("toolcrib tools run ti", ["tides"]),
        ("toolcrib toolsets show sea", ["search"]),
        ("toolcrib tools list --toolset tid", ["tides"]),
        ("toolcrib config get tools.max", ["tools.max_parallel"]),
        ("toolcrib completion f", ["fish"]),
        ("toolcrib plugins enable tide", ["tide-tables"]),
    ],
)
def test_bash_completes(toolcrib: Program, line: str, offered: list[str]):
    """The script works in a real bash: commands, options, tools, toolsets, keys, plugins."""
    toolcrib.write("tools/tides.py", 'print("noise")\n' + KEYED_TOOL)
    toolcrib.write("plugins/tide-tables/plugin.yaml", "name: tide-tables\n")

    assert completions(toolcrib, line) == offered


@pytest.mark.parametrize(
    ("shell", "mark"),
    [("zsh", "compdef _toolcrib_completion toolcrib"), ("fish", "complete --no-files --command toolcrib")],
)
def test_other_shells_get_a_script_of_their_own(toolcrib: Program, shell: str, mark: str):
    """The script asks the program in the way that this shell needs, and the program answers."""
    script = toolcrib("completion", shell).stdout
    words = {"zsh": ("toolcrib tools li", "2"), "fish": ("toolcrib tools li", "li")}[shell]

    answer = toolcrib(COMP_WORDS=words[0], COMP_CWORD=words[1], _TOOLCRIB_COMPLETE=f"{shell}_complete").stdout

    assert mark in script
    assert f"_TOOLCRIB_COMPLETE={shell}_complete" in script
    assert "list" in answer
    assert "lint" in answer
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False)
        assert checked.returncode == 0


@pytest.mark.services
def test_a_command_without_its_extra_says_what_to_install(toolcrib: Program):
    """`mcp serve` imports the SDK of MCP; without it, one line names the extra."""
    code = "import sys\nsys.modules['mcp'] = None\nfrom toolcrib.cli.app import run\nsys.exit(run(['mcp', 'serve']))"
    # Not forked: a server that has imported the SDK could not do without it.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=toolcrib.environment(), check=False)

    assert done.returncode == 2
    assert b"needs more packages" in done.stderr
    assert b"`pip install 'toolcrib[mcp]'`" in done.stderr


def test_ctrl_c_while_the_program_ends_is_an_exit_code_and_no_traceback(toolcrib: Program) -> None:
    """A thread that still works holds up the end; whoever presses once more does not want to wait for it."""
    toolcrib.home.mkdir(parents=True)
    program = (
        "import sys, threading\n"
        "from toolcrib.__main__ import main\n"
        "sys.argv = ['toolcrib', 'completion', 'bash']\n"
        "code = main()\n"
        "threading.Thread(target=sys.stdin.read).start()\n"
        "print('leaving', flush=True)\n"
        "sys.exit(code)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=toolcrib.environment(),
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any(line == "leaving\n" for line in process.stdout)
        process.send_signal(signal.SIGINT)

        assert (process.wait(60), process.stderr.read()) == (130, "")
