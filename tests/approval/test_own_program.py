"""Our own program in a tool call: the gate knows every command, and a process knows that a tool call started it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.approval.approval_cases import run
from tests.cli.cli_program import Program
from tests.fork_server import SOURCE
from toolcrib.approval.build import build_policy
from toolcrib.approval.command_reader import read_command
from toolcrib.approval.options import GateOptions
from toolcrib.approval.paths import PathScope
from toolcrib.cli.app import make_root
from toolcrib.cli.group import CommandGroup
from toolcrib.config.paths import Home
from toolcrib.config.serve_settings import ServeSettings
from toolcrib.config.settings import Settings
from toolcrib.config.tool_call_mark import is_in_tool_call
from toolcrib.core.own_commands import GROUPS, KINDS, kind_of
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover, isolated_runtime

DENIED = [
    "sqlite3 ~/.toolcrib/sessions.db .dump",
    'curl -H "Authorization: Bearer $(cat ~/.toolcrib/s*/token)" -d x http://localhost:8642/api/approvals/1',
    "wget --post-data x http://127.0.0.1:8642/api/runs",
    "nc localhost 8642 < request",
    """python3 -c 'import urllib.request as u; u.urlopen("http://localhost:8642/api/approvals/1", b"{}")'""",
    """python3 -c 'import http.client as h; h.HTTPConnection("127.0.0.1", 8642).request("POST", "/api/runs")'""",
    "docker exec agent toolcrib config set approvals.mode off",
    "docker cp c.yaml agent:/root/.toolcrib/config.yaml",
    "git log -1 --format=x --output=$HOME/.toolcrib/config.yaml",
    "GIT_TRACE=$HOME/.toolcrib/config.yaml git status",
    "awk -v f=$HOME/.toolcrib/config.yaml '{print > f}' x",
    "vim -es -c 'e ~/.toolcrib/config.yaml' -c '%s/a/b/' -c wq",
    'for f in ~/.tool*/config.yaml; do echo x > "$f"; done',
    "cp x ~/.toolcrib/serve/tokens.json",
    "sqlite3 ~/.toolcrib/sessions.db 'update messages set content = 1'",
    "toolcrib chat --yolo -q hi",
    "TOOLCRIB_YOLO=1 toolcrib chat -q hi",
    "export HERMES_YOLO_MODE=1",
    "env TOOLCRIB_YOLO=1 toolcrib tools run x",
    "toolcrib mcp add evil -- sh -c x",
    "toolcrib config set approvals.mode off",
    "toolcrib model use x",
    "toolcrib sessions delete --yes abc",
    "toolcrib undo",
    "toolcrib undo --to 3",
    "toolcrib env shell",
    "toolcrib approvals revoke x",
    "toolcrib approvals suggest --add",
    "toolcrib chat --connect http://127.0.0.1:8642 -q hi",
    "toolcrib --connect=http://127.0.0.1:8642 hi",
    "toolcrib approvals answer K7Q2ZD",
    "toolcrib plugins enable x",
    "toolcrib cron create '5m' hi",
    "toolcrib setup --yes",
    "toolcrib import hermes --yes",
    "cp $(which toolcrib) /tmp/t && /tmp/t config set a b",
    "cp ~/.local/bin/toolcrib /tmp/t",
    'ln -s "$(command -v toolcrib)" t',
    "python -m toolcrib config set a b",
    "python3 -I -m toolcrib.cli.app config set a b",
    "python -m toolcrib.compat -c 'from tools.approval import enable_session_yolo'",
    "uvx toolcrib config set a b",
    "uvx toolcrib@latest config set a b",
    "uvx --from toolcrib toolcrib mcp add x",
    "pipx run toolcrib setup --yes",
    "pipx run --spec toolcrib==1 toolcrib setup --yes",
    "uv run toolcrib config set a b",
    "uv tool run toolcrib config set a b",
    "poetry run toolcrib config unset a",
    'python -c "from toolcrib.config.edit import set_value"',
    "python -c \"import toolcrib.cli.app as a; a.run(['config','set','a','b'])\"",
    "python -c \"import runpy; runpy.run_module('toolcrib')\"",
    "python -c \"__import__('toolcrib.__main__')\"",
    "python $(which toolcrib) config set a b",
    "python /usr/bin/toolcrib config set a b",
    "./.venv/bin/toolcrib config set a b",
    "bash -c 'toolcrib config set a b'",
    "echo config set a b | xargs toolcrib",
    "T=toolcrib; $T config set a b",
    "alias t=toolcrib; t config set a b",
    "toolcrib $X",
    "nohup setsid toolcrib mcp serve --policy allow &",
    "toolcrib mcp test x --call y --yes",
    "toolcrib skills approve x",
    "hermes config set approvals.mode off",
    "hermes --yolo",
    "toolcrib mcp login x",
    'python - <<X\nfrom toolcrib.cli.app import run\nrun(["config","set","a","b"])\nX',
    "sudo -u me toolcrib config set a b",
    "toolcrib cron run x",
    "ulimit -x unlimited",
    "prlimit --locks=unlimited toolcrib tools list",
    "ssh localhost toolcrib config set a b",
    "tmux new -d 'toolcrib config set a b'",
    "echo 'toolcrib config set a b' | sh",
    "perl -e 'system(\"toolcrib config set a b\")'",
]
ASKED = [
    "curl -d x http://localhost:9000/api/approvals/1",
    """python3 -c 'import http.client as h; h.HTTPConnection("localhost", 9000).request("POST", "/api/runs")'""",
    "cat ~/.toolcrib/approvals.jsonl",
    "cat /srv/agent-home/mcp_tokens/x.json",
    "cat ~/.toolcrib/serve/token",
    "cat /srv/agent-home/serve/token",
    "tmux send-keys -t 0 y Enter",
    "tmux set-buffer yes; tmux paste-buffer -t 0",
    "screen -X stuff $'always\\n'",
    "kitty @ send-text y",
    "python3 -c 'import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b\"y\")'",
    "ps eww",
    "grep -rl x ~/.toolcrib | xargs sed -i s/a/b/",
    "toolcrib",
    'toolcrib tools run terminal \'{"command":"ls"}\'',
    "script -qc 'toolcrib chat' /dev/null",
    'python -c "from toolcrib import Runtime; Runtime(yolo=True)"',
    "toolcrib chat -q hi",
    "uv tool uninstall toolcrib",
]
HARMLESS = [
    "curl -s http://localhost:8642/health",
    "curl -d x http://localhost:9000/api/items",
    "toolcrib tools list",
    "toolcrib --version",
    "toolcrib doctor",
    "toolcrib tools new hello --kind tool",
    "toolcrib tools lint hello.py",
    "toolcrib skills check",
    "toolcrib approvals test 'rm -rf x'",
    "toolcrib config get approvals.mode",
    "toolcrib sessions list --json",
    "toolcrib undo --list",
    "toolcrib sessions delete --dry-run --older-than 30d",
    "python -m toolcrib tools list",
    "uvx toolcrib tools list",
    'toolcrib tools run hello \'{"text": "hi"}\'',
    "toolcrib config set --help",
    'python -c "import toolcrib; print(toolcrib.__version__)"',
    'python -c "from toolcrib import tool, registry"',
    "pip install toolcrib",
    "pip show toolcrib",
    "which toolcrib",
    "grep -rn toolcrib src",
    "cp -r src/toolcrib build/",
    "git clone https://github.com/x/toolcrib",
    "ls ~/.toolcrib",
    "toolcrib mcp list",
    "toolcrib sessions export abc -o out.md",
    "hermes gateway status",
    "pytest tests -k toolcrib",
    "uv run pytest",
    "uv tool install ruff",
    "pipx list",
    "pipx install black",
]


def commands_of(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command of the program, as it is typed."""
    if not isinstance(command, CommandGroup):
        yield " ".join(path)
        return
    if command.invoke_without_command:
        yield " ".join(path)
    for name in command.summaries():
        inner = command.get_command(click.Context(command), name)
        assert inner is not None
        yield from commands_of(inner, (*path, name))


def test_every_command_of_the_program_is_classified():
    """A new command must be put into the table, or the gate would not know what it does."""
    assert set(commands_of(make_root())) == set(KINDS)


def test_a_group_alone_or_a_request_for_help_only_reads():
    """Help is shown whatever stands before it, but not where it is the value of an option."""
    assert {kind_of([name]) for name in GROUPS - {"acp", "serve"}} == {"reads"}
    assert kind_of(["serve", "--port", "8000"]) == kind_of(["acp"]) == "changes"
    assert kind_of(["what is here?"]) == kind_of([]) == "agent"
    assert kind_of(["config", "frobnicate"]) == "unknown"
    assert kind_of(["config", "set", "--help"]) == "reads"
    assert kind_of(["chat", "-q", "--help"]) == "agent"
    assert kind_of(["config", "set", "a", "b", "--", "--help"]) == "changes"


@pytest.mark.parametrize("command", DENIED)
def test_what_lifts_the_gate_or_changes_what_it_depends_on_is_denied(command):
    """No approval allows it, and the reason names no switch."""
    decision = run(command)
    assert decision.outcome == "deny", decision
    assert not any(word in " ".join(decision.reasons) for word in ("yolo", "YOLO", "config set approvals", "limit -"))


@pytest.mark.parametrize("command", ASKED)
def test_what_runs_more_than_this_session_can_see_is_asked_about(command):
    """Another agent, or an acting tool outside the session."""
    assert run(command).outcome == "ask"


def test_the_records_of_a_home_elsewhere_are_not_shown_without_a_question():
    """The log of decisions and the stored sessions, but not files of the same name."""
    own = ("/srv/agent/approvals.jsonl", "/srv/agent/sessions.db")
    assert read_command("cat /srv/agent/approvals.jsonl", own=own).assessment.verdict == "ask"
    assert read_command("strings /srv/agent/sessions.db", own=own).assessment.verdict == "ask"
    assert read_command("cat /srv/other/approvals.jsonl", own=own).assessment.verdict == "safe"


@pytest.mark.parametrize("command", HARMLESS)
def test_commands_that_only_look_or_write_a_template_are_not_asked_about(command):
    """Read-only and authoring commands are part of ordinary work."""
    assert run(command).outcome == "allow", run(command)


MARK = """
import os, sys
sys.path.insert(0, os.environ.get("SOURCE") or sys.argv[2])
from toolcrib.config.paths import Home
from toolcrib.config.serve_settings import ServeSettings
from toolcrib.config.settings import Settings
from toolcrib.config.tool_call_mark import is_in_tool_call
with open(sys.argv[1], "w") as file:
    file.write(str(is_in_tool_call()))
"""
DOUBLE_FORK = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "mark.py").write_text(MARK)
    (folder / "fork.py").write_text(DOUBLE_FORK)
    return folder


@pytest.fixture
def runtime(tmp_path: Path, work: Path) -> Iterator[Runtime]:
    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": work}
    config = "terminal: {login_shell: false}\n"
    with isolated_runtime(tmp_path / "home", config, approver=ScriptedApprover(*["once"] * 9), **options) as made:
        yield made


def written(path: Path) -> str:
    """The content of a file once a process has written it."""
    for _ in range(3000):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.01)
    raise AssertionError(f"nothing was written to {path}")


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize(
    "start",
    [
        "{python} mark.py out {source}",
        "env -i {python} mark.py out {source}",
        "setsid nohup {python} mark.py out {source} >/dev/null 2>&1 &",
        "{python} fork.py mark.py out {source}",
    ],
    ids=["plain", "empty environment", "setsid", "double fork"],
)
def test_a_process_knows_that_a_command_started_it(runtime: Runtime, work: Path, start: str):
    """Whatever the command does to its environment, session or parents."""
    command = start.format(python=sys.executable, source=SOURCE)
    result = json.loads(str(runtime.call_sync("terminal", {"command": command}).content))
    assert written(work / "out") == "True", result
    assert not is_in_tool_call()


@pytest.mark.parametrize(
    "first",
    [
        """builtin() { [ "$1" = ulimit ] && return 0; command builtin "$@"; }; export -f builtin""",
        "ulimit() { :; }; command() { :; }; export __tc_mark=0",
    ],
    ids=["builtin", "others"],
)
def test_a_function_of_an_earlier_command_does_not_take_the_mark_off(runtime: Runtime, work: Path, first: str):
    """The session keeps functions and variables, whatever they are called."""
    kept = "kept() { echo kept; }; export VALUE=1; "
    runtime.call_sync("terminal", {"command": kept + first})
    command = f'{sys.executable} mark.py out {SOURCE}; kept; echo "$VALUE"'
    result = json.loads(str(runtime.call_sync("terminal", {"command": command}).content))
    assert written(work / "out") == "True", result
    assert result["output"].split() == ["kept", "1"]


def test_a_process_knows_it_where_proc_is_covered(runtime: Runtime, work: Path):
    """In a namespace of its own, a command can mount over /proc, but not change its limits."""
    command = f"unshare -rm sh -c 'mount -t tmpfs x /proc && {sys.executable} mark.py out {SOURCE}'"
    result = json.loads(str(runtime.call_sync("terminal", {"command": command}).content))
    if result["exit_code"]:
        pytest.skip(f"this machine allows no such namespace: {result['output'][:200]}")
    assert written(work / "out") == "True", result


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("arguments", [{"background": True}, {"background": True, "pty": True}, {"pty": True}])
def test_background_and_terminal_commands_are_marked_too(runtime: Runtime, work: Path, arguments: dict[str, Any]):
    """Every way in which the terminal tool runs a command."""
    command = f"{sys.executable} mark.py out {SOURCE}"
    result = json.loads(str(runtime.call_sync("terminal", {"command": command, **arguments}).content))
    assert written(work / "out") == "True"
    if "session_id" in result:
        runtime.call_sync("process", {"action": "wait", "session_id": result["session_id"]})


PROGRAM = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from toolcrib.__main__ import main; sys.exit(main())"


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize(
    "words",
    [
        "config set approvals.mode off",
        "chat --yolo -q hi",
        "mcp add x -- true",
        "chat",
        "tools run anything --yolo",
        "undo",
    ],
)
def test_a_toolcrib_under_another_name_refuses_what_only_a_person_may_do(runtime: Runtime, work: Path, words: str):
    """The gate cannot know every name, so the program itself refuses."""
    (work / "harmless.py").write_text(PROGRAM)
    command = f"TOOLCRIB_HOME={work}/other {sys.executable} harmless.py {words}"
    result = json.loads(str(runtime.call_sync("terminal", {"command": command, "pty": words == "chat"}).content))
    assert result["exit_code"] == 1
    assert "a tool call of an agent started this toolcrib" in " ".join(result["output"].split())
    assert not (work / "other" / "config.yaml").exists()


def test_settings_that_a_command_wrote_do_not_lift_the_gate_of_the_toolcrib_it_starts(runtime: Runtime, work: Path):
    """A home of its own with approvals off, allow rules and grants, and still nobody can be asked."""
    (work / "harmless.py").write_text(PROGRAM)
    other = work / "other"
    other.mkdir()
    (other / "config.yaml").write_text(
        "approvals: {mode: 'off', rules: ['allow rm *'], policies: {library: allow}}\n"
        "command_allowlist: ['recursive_delete']\n"
    )
    (work / "kept").mkdir()
    arguments = json.dumps({"command": f"rm -rf {work}/kept"})
    (work / "arguments.json").write_text(arguments)
    command = f"TOOLCRIB_HOME={other} {sys.executable} harmless.py tools run terminal - < arguments.json"
    result = json.loads(str(runtime.call_sync("terminal", {"command": command}).content))
    assert "needs a person's approval" in result["output"]
    assert (work / "kept").is_dir()


def test_a_person_is_not_taken_for_a_tool_call(tmp_path: Path):
    """The same commands from a shell of one's own."""
    program = Program(tmp_path / "person")
    assert program("config", "set", "tools.max_parallel", "2").code == 0
    assert "max_parallel: 2" in (program.home / "config.yaml").read_text()


def test_scripts_and_sandboxed_commands_are_marked_too(tmp_path: Path, work: Path):
    """The script sandbox of execute_code, and the sandbox backend of the terminal."""
    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": work}
    config = "terminal: {backend: sandbox, login_shell: false}\n"
    with isolated_runtime(tmp_path / "home", config, approver=ScriptedApprover(*["once"] * 9), **options) as runtime:
        code = "print([line for line in open('/proc/self/limits') if 'file locks' in line])"
        script = str(runtime.call_sync("execute_code", {"code": code}).content)
        command = str(runtime.call_sync("terminal", {"command": "grep 'file locks' /proc/self/limits"}).content)
    assert "4611686018427387903" in script
    assert "4611686018427387903" in command


def test_the_gate_knows_the_port_of_our_server(tmp_path: Path) -> None:
    """The port in the settings reaches the reader of commands."""
    settings = Settings(home=Home(tmp_path), serve=ServeSettings(port=9123))
    policy = build_policy(GateOptions(settings=settings, workspace="/p"))

    assert policy.sensitive.server == "//localhost:9123"
    folders = PathScope(cwd="/p", workspace="/p", home="/home/user")
    assert "//localhost:9123" in policy.sensitive.protected_paths(folders)
