"""`toolcrib env`: backends listed, checked, entered and cleaned up after, by the real program."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.cli_program import DEADLINE_SECONDS, Program, _read_until

KINDS = ["local", "sandbox", "docker", "ssh", "singularity", "modal", "daytona", "vercel_sandbox"]
BACKEND = """
import os, subprocess
from pathlib import Path
from toolcrib.environments.backends.local import LocalEngine, LocalShellEnvironment

class Forgetful(LocalShellEnvironment):
    async def start(self, request, on_output):
        from msgspec.structs import replace
        return await super().start(replace(request, command="{ " + request.command + "\\n}; true"), on_output)

def environment(spec, settings):
    return LocalShellEnvironment({"PATH": "/usr/bin:/bin"})

def engine(spec, settings):
    return LocalEngine({"PATH": "/usr/bin:/bin"})

def forgetful(spec, settings):
    return Forgetful({"PATH": "/usr/bin:/bin"})

def nothing(spec, settings):
    return 5

class Rented:
    def _run_bash(self, cmd_string, *, login, timeout, stdin_data):
        argv = ["bash", "-c", cmd_string]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        process.stdin.write((stdin_data or "").encode())
        process.stdin.close()
        return process

    def cleanup(self):
        Path(os.environ["HOME"], "given-back").touch()

def rented(spec, settings):
    return Rented()
"""
ABANDONED = """
import asyncio, os, sys
from pathlib import Path
from toolcrib.core.environments import CommandRequest
from toolcrib.environments.backends.local import LocalShellEnvironment
from toolcrib.environments.backends.sandbox import SandboxEngine, SandboxOptions

async def main():
    await SandboxEngine(SandboxOptions(workspace=Path(sys.argv[1]), home=Path(sys.argv[1]))).open()
    local = LocalShellEnvironment({"PATH": os.environ["PATH"], "HOME": sys.argv[1]})
    await local.open()
    await local.start(CommandRequest(command="exec sleep 300", mode="background"), lambda _: None)
    os._exit(9)

asyncio.run(main())
"""


@pytest.fixture
def with_backend(toolcrib: Program) -> Program:
    """The program with a third party's backend: a module in the current folder, and an installed package."""
    package = toolcrib.root / "packages"
    (package / "strange-1.0.dist-info").mkdir(parents=True)
    (package / "strange-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
    (package / "strange-1.0.dist-info/entry_points.txt").write_text(
        "[toolcrib.environments]\nstrange = strange_backend:environment\nrented = strange_backend:rented\n"
    )
    (package / "strange_backend.py").write_text(BACKEND)
    (toolcrib.root / "mine.py").write_text(BACKEND)
    toolcrib.environ["PYTHONPATH"] = f"{toolcrib.environment()['PYTHONPATH']}{os.pathsep}{package}"
    return toolcrib


def test_a_command_gives_back_the_environment_that_it_used(with_backend: Program) -> None:
    """It is closed before Python exits, when threads for foreign code can still be started."""
    outcome = with_backend("tools", "run", "terminal", '{"command": "echo here"}', TERMINAL_ENV="rented")

    assert json.loads(outcome.stdout)["output"] == "here"
    assert (with_backend.root / "given-back").exists()


def test_all_backends_are_listed_with_what_to_do(toolcrib: Program) -> None:
    """Every backend is there; one that cannot be used has a reason and a remedy, and the one in use is marked."""
    outcome = toolcrib("env", "list", "--json", TERMINAL_ENV="sandbox", DOCKER_HOST="unix:///no/such/socket")

    rows = {row["name"]: row for row in json.loads(outcome.stdout)}
    assert outcome.code == 0
    assert list(rows) == KINDS
    assert rows["local"]["usable"] is True
    assert [name for name, row in rows.items() if row["configured"]] == ["sandbox"]
    assert all(row["detail"] for row in rows.values())
    assert all(row["remedy"] for row in rows.values() if not row["usable"])


def test_the_list_for_people_marks_the_backend_in_use(toolcrib: Program) -> None:
    """A star stands beside the backend that the settings choose."""
    outcome = toolcrib("env", "list", DOCKER_HOST="unix:///no/such/socket")

    assert [line.split()[0] for line in outcome.stdout.splitlines()[1:]] == KINDS
    assert "local *" in outcome.stdout


@pytest.mark.services
def test_an_installed_backend_is_listed_and_checked_by_its_name(with_backend: Program) -> None:
    """A package with an entry point brings a backend like ours."""
    listed = with_backend("env", "list", DOCKER_HOST="unix:///no/such/socket")
    checked = with_backend("env", "check", "strange", "--only", "exit-codes")

    assert "installed by strange" in listed.stdout
    assert (checked.code, checked.stdout.splitlines()[-1]) == (
        0,
        "strange: 1 passed, 0 failed, 0 skipped. The backend passes.",
    )


@pytest.mark.parametrize("function", ["environment", "engine"])
@pytest.mark.services
def test_a_backend_that_is_being_written_is_checked_by_module_and_function(
    with_backend: Program, function: str
) -> None:
    """An Environment and an Engine can both be put to the promises, from the folder that their author is in."""
    outcome = with_backend("env", "check", f"mine:{function}", "--only", "exit-codes", "--only", "quotes", "--json")

    result = json.loads(outcome.stdout)
    assert (outcome.code, result["ok"], result["passed"], result["backend"]) == (0, True, 2, f"mine:{function}")
    assert {check["state"] for check in result["checks"]} == {"passed"}


@pytest.mark.services
def test_a_broken_promise_is_shown_with_its_rule_and_ends_with_1(with_backend: Program) -> None:
    """The rule, what was expected and what was seen stand under the check that failed; the rest is checked too."""
    outcome = with_backend("env", "check", "mine:forgetful", "--only", "exit-codes", "--only", "output-order")

    assert outcome.code == 1
    assert "failed   exit-codes" in outcome.stdout
    assert "expected 1, seen 0" in outcome.stdout
    assert "The exit code of a command is passed on" in outcome.stdout
    assert "passed   output-order" in outcome.stdout
    assert "1 passed, 1 failed" in outcome.stdout


@pytest.mark.services
def test_keys_of_ours_are_looked_for_inside(toolcrib: Program) -> None:
    """A key in the program's environment or .env file is not seen by any command; without keys that is not checked."""
    toolcrib.write(".env", "MISTRAL_API_KEY=from-the-file-4711\n")

    with_key = toolcrib("env", "check", "local", "--only", "secrets", OPENAI_API_KEY="sk-never-seen-0815")
    toolcrib.write(".env", "")
    without = toolcrib("env", "check", "local", "--only", "secrets")

    assert (with_key.code, "1 passed" in with_key.stdout) == (0, True), with_key.stdout
    assert (without.code, "1 skipped" in without.stdout) == (0, True), without.stdout


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "locl"), "did you mean 'local'?"),
        (("check", "local", "--only", "exit-code"), "did you mean 'exit-codes'?"),
        (("check", "no.such.module:make"), "no backend 'no.such.module:make'"),
        (("check", "os:nothing_here"), "write it as `MODULE:FUNCTION`"),
        (("check", "os:sep"), "is not a function"),
        (("check", "mine:nothing"), "of type int"),
        (("shell", "local"), "needs a terminal"),
        (("shell", "nowhere"), "toolcrib"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_type(
    with_backend: Program, arguments: tuple[str, ...], message: str
) -> None:
    """A wrong name, or a shell without a terminal, ends with 2 and one line."""
    outcome = with_backend("env", *arguments)

    lines = [line for line in outcome.stderr.splitlines() if line.startswith("toolcrib: ")]
    assert (outcome.code, len(lines)) == (2, 1), outcome
    assert message in lines[0]
    assert "Traceback" not in outcome.stderr


@pytest.mark.services
def test_a_backend_that_cannot_be_opened_is_one_error(toolcrib: Program) -> None:
    """What is missing is said once, not for each check."""
    outcome = toolcrib("env", "check", "docker", DOCKER_HOST="unix:///no/such/socket")

    assert outcome.code == 1
    assert len(outcome.stderr.splitlines()) == 1


def test_the_checks_can_be_listed(toolcrib: Program) -> None:
    """Names and rules are shown without running anything."""
    outcome = toolcrib("env", "check", "--list")

    assert "exit-codes" in outcome.stdout
    assert "The exit code of a command is passed on unchanged" in outcome.stdout


@contextmanager
def shell_on_terminal(toolcrib: Program, *arguments: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """`toolcrib env shell` as the program of a terminal, which it controls."""
    toolcrib.root.mkdir(parents=True, exist_ok=True)
    (toolcrib.root / ".bashrc").write_text("PS1='ready> '\n")
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (33, 101))
    process = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-m", "toolcrib", "env", "shell", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=toolcrib.environment(),
        cwd=toolcrib.root,
    )
    os.close(slave)
    try:
        yield master, process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)


@pytest.mark.parametrize("backend", ["local", "sandbox"])
def test_a_shell_is_used_as_if_one_sat_there(toolcrib: Program, backend: str) -> None:
    """Keys, Ctrl-C, the size of the terminal and each change of it reach the shell; its exit code is ours."""
    with shell_on_terminal(toolcrib, backend) as (master, process):
        _read_until(master, "to leave.")
        os.write(master, b"PS1='ready> '; stty size; echo $((40 + 2))\n")
        first = _read_until(master, "\r\n42\r\n")
        assert "33 101" in first

        # A toolcrib in it is a person's: no limit marks it as started by a tool call.
        os.write(master, b"echo locks=$(ulimit -H -x)\n")
        _read_until(master, "locks=unlimited")

        os.write(master, b"bash -c 'echo go$((2 + 3)); exec sleep 600'\n")
        _read_until(master, "go5")
        os.write(master, b"\x03")
        os.write(master, b"echo in$((1 + 1))terrupted\n")
        _read_until(master, "in2terrupted")

        termios.tcsetwinsize(master, (51, 87))
        # The change arrives when our program has heard of it, which may be after the next keys.
        os.write(master, b"until [ \"$(stty size)\" = '51 87' ]; do sleep 0.05; done; echo re$((3 + 4))sized\n")
        _read_until(master, "re7sized")

        os.write(master, b"exit 7\n")
        _read_until(master, None)
        assert process.wait(DEADLINE_SECONDS) == 7


def test_the_terminal_is_as_before_after_a_shell(toolcrib: Program) -> None:
    """Keys are echoed and lines edited again when the shell has ended."""
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    process = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-m", "toolcrib", "env", "shell", "local"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=toolcrib.environment(),
        cwd=toolcrib.root,
    )
    try:
        _read_until(master, "to leave.")
        os.write(master, b"exit\n")
        assert process.wait(DEADLINE_SECONDS) == 0
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait()
        os.close(slave)
        os.close(master)


def test_a_missing_folder_for_a_shell_is_said(toolcrib: Program) -> None:
    """A folder that is not there ends the command with a line that says so."""
    with shell_on_terminal(toolcrib, "local", "--cwd", "/no/such/folder") as (master, process):
        seen = _read_until(master, None)

        assert "'/no/such/folder' does not exist" in seen
        assert process.wait(DEADLINE_SECONDS) == 2


@pytest.fixture
def abandoned(toolcrib: Program) -> Iterator[Program]:
    """The program on a machine where a process with a sandbox and a local session was killed."""
    with tempfile.TemporaryDirectory(prefix="tc-") as folder:
        toolcrib.environ |= {"TMPDIR": folder, "DOCKER_HOST": "unix:///no/such/socket"}
        workspace = toolcrib.root / "workspace"
        workspace.mkdir(parents=True)
        died = subprocess.run(
            [sys.executable, "-c", ABANDONED, str(workspace)],
            env=toolcrib.environment(),
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert died.returncode == 9
        yield toolcrib


@pytest.mark.services
def test_leftovers_are_listed_then_removed(abandoned: Program) -> None:
    """A dry run changes nothing; afterwards nothing is left, and the next run says so."""
    folder = Path(abandoned.environ["TMPDIR"])

    dry = abandoned("env", "clean", "--dry-run", "--json")
    assert [row["state"] for row in json.loads(dry.stdout)["leftovers"]] == ["would be removed"] * 2, dry
    assert list(folder.iterdir()) != []

    real = abandoned("env", "clean")
    assert (real.code, "removed" in real.stdout) == (0, True), real
    assert list(folder.iterdir()) == []

    again = abandoned("env", "clean")
    assert (again.code, again.stdout) == (0, "Nothing to clean up.\n")
