"""What a script cannot reach, whatever it tries."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.code_execution.running_scripts import MakeRuntime, Run, hidden
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def outcome(answer: dict[str, Any]) -> str:
    return str(answer.get("output", "")) + str(answer.get("error", ""))


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """A key in the home of the user."""
    folder = tmp_path / "user" / ".ssh"
    folder.mkdir(parents=True)
    (folder / "id_test").write_text("the-key-of-the-user")
    return str(folder / "id_test")


def test_secrets_of_the_user_cannot_be_read(script_runtime: Runtime, run_script: Run, secret: str) -> None:
    """Neither by a path that the gate reads, nor by one that it cannot read."""
    plain = run_script(script_runtime, f"print(open({secret!r}).read())")
    unseen = run_script(script_runtime, hidden(f"print(open({secret!r}).read())"))

    assert "not allowed" in plain["error"]
    assert unseen["error"].startswith(("FileNotFoundError", "PermissionError"))


@pytest.mark.services
def test_our_own_home_cannot_be_read_or_changed(script_runtime: Runtime, run_script: Run) -> None:
    """Settings, keys and records are out of reach."""
    home = str(script_runtime.settings.home.root)
    (Path(home) / ".env").write_text("KEY=our-own-secret")

    read = run_script(script_runtime, hidden(f"print(open({home!r} + '/.env').read())"))
    write = run_script(script_runtime, hidden(f"open({home!r} + '/config.yaml', 'w').write('')"))

    assert "our-own-secret" not in outcome(read)
    assert read["status"] == write["status"] == "error"
    assert (Path(home) / "config.yaml").read_text() != ""


@needs_bubblewrap
def test_the_env_file_of_the_project_is_covered(script_runtime: Runtime, run_script: Run, project: Path) -> None:
    """It is no secret to its project, but scripts have no business with it."""
    (project / ".env").write_text("KEY=project-secret")
    (project / ".env.example").write_text("KEY=put yours here")

    answer = run_script(script_runtime, hidden("print(open('.env.example').read())\nprint(open('.env').read())"))

    assert answer["output"] == "KEY=put yours here\n"
    assert answer["error"].startswith("PermissionError")


@pytest.mark.services
@needs_bubblewrap
def test_env_files_stay_covered_wherever_they_are_and_whatever_becomes_of_them(
    script_runtime: Runtime, run_script: Run, project: Path
) -> None:
    """In the folders below, too, and when another file is put in the place of one, as editors do."""
    (project / "server" / "deploy").mkdir(parents=True)
    files = [project / ".env", project / "server" / ".env", project / "server" / "deploy" / ".env.production"]
    code = hidden(
        "for path in ('.env', 'server/.env', 'server/deploy/.env.production'):\n"
        "    try: print(open(path).read())\n    except PermissionError: print('covered')"
    )
    for path in files:
        path.write_text("KEY=project-secret")
    first = run_script(script_runtime, code)
    for path in files:
        (project / "new").write_text("KEY=another-secret")
        (project / "new").replace(path)

    second = run_script(script_runtime, code)

    assert first["output"] == second["output"] == "covered\n" * 3


@pytest.mark.services
@needs_bubblewrap
def test_memory_that_is_shared_by_files_is_bounded(make_script_runtime: MakeRuntime, run_script: Run) -> None:
    """A folder in memory holds no more than the script may use."""
    runtime = make_script_runtime(code_memory_mb=200)
    code = (
        "def tell(write):\n    try: write()\n    except OSError as error: print(error.strerror)\n"
        "def fill():\n    with open('/dev/shm/x', 'wb') as file:\n"
        "        for _ in range(25): file.write(b'x' * 10_000_000)\n"
        "tell(lambda: open('/dev/x', 'w'))\ntell(fill)"
    )

    answer = run_script(runtime, hidden(code))

    assert answer["output"] == "Read-only file system\nNo space left on device\n"


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_no_variable_with_a_secret_reaches_a_script(
    make_script_runtime: MakeRuntime, run_script: Run, monkeypatch: pytest.MonkeyPatch, sandbox: str
) -> None:
    """Neither by its own environment nor by that of a process above it, as far as it can look."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-user")
    monkeypatch.setenv("ODD_NAME", "sk-secret-of-the-user")
    code = "import os\nprint(dict(os.environ))\nprint(open(f'/proc/{os.getppid()}/environ').read())"

    runtime = make_script_runtime(code_sandbox=sandbox, approver=ScriptedApprover("once"))
    answer = run_script(runtime, hidden(code))

    assert "secret-of-the-user" not in outcome(answer)
    assert "PATH" in answer["output"]


@pytest.mark.services
@needs_bubblewrap
def test_our_process_cannot_be_seen_or_touched(
    script_runtime: Runtime, run_script: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No environment, no memory, no trace: in there, we do not exist."""
    monkeypatch.setenv("MARK_OF_THE_TEST", "1")
    code = (
        "import os, ctypes\n"
        "for number in [n for n in os.listdir('/proc') if n.isdigit()]:\n"
        "    try: data = open(f'/proc/{number}/environ', 'rb').read()\n"
        "    except OSError: data = b''\n"
        "    if b'MARK_OF_THE_TEST' in data: print('seen', number)\n"
        "try: open('/proc/1/mem', 'rb+'); print('memory')\n"
        "except OSError: pass\n"
        "print('attached' if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 else 'not attached')\n"
        "print(len([n for n in os.listdir('/proc') if n.isdigit()]) < 20)"
    )

    answer = run_script(script_runtime, hidden(code))

    assert answer["output"] == "not attached\nTrue\n"


@pytest.mark.services
def test_the_network_is_out_of_reach_unless_it_is_allowed(make_script_runtime: MakeRuntime, run_script: Run) -> None:
    """Not even this machine answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = hidden(
            f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)\nprint('in')"
        )

        closed = run_script(make_script_runtime(), code)
        opened = run_script(make_script_runtime(code_network=True), code)

    assert closed["status"] == "error"
    assert opened["output"] == "in\n"


def test_files_outside_the_project_cannot_be_changed(
    script_runtime: Runtime, run_script: Run, tmp_path: Path, project: Path
) -> None:
    """Also by a link that leads out of it."""
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    (project / "link").symlink_to(outside)

    answers = [run_script(script_runtime, hidden(f"open({path!r}, 'w').write('x')")) for path in (str(outside), "link")]

    assert len(answers) == 2
    assert outside.read_text() == "mine"


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("sandbox", ["auto", "off"])
@pytest.mark.parametrize("python", ["", sys.executable])
def test_nothing_of_ours_can_be_imported(
    make_script_runtime: MakeRuntime, run_script: Run, sandbox: str, python: str
) -> None:
    """Not even where the settings name the interpreter that we run in."""
    runtime = make_script_runtime(code_sandbox=sandbox, code_python=python)

    answer = run_script(runtime, "import toolcrib")

    assert answer["error"] == "ModuleNotFoundError: No module named 'toolcrib'"


def test_a_harmless_script_is_never_asked_about(
    make_script_runtime: MakeRuntime, run_script: Run, project: Path
) -> None:
    """In the sandbox neither is one whose commands are only known when it runs."""
    approver = ScriptedApprover()
    runtime = make_script_runtime(approver=approver)

    plain = run_script(runtime, "import json\nopen('out.json', 'w').write(json.dumps([1, 2]))\nprint(sum([1, 2]))")
    unread = run_script(
        runtime, "import subprocess, sys\nwords = [sys.executable, '-c', 'print(7)']\nsubprocess.run(words)"
    )

    assert (plain["output"], unread["output"]) == ("3\n", "7\n")
    assert approver.asked == []


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_a_dangerous_script_is_refused_as_a_command_would_be(
    make_script_runtime: MakeRuntime, run_script: Run, sandbox: str
) -> None:
    """What is always blocked is blocked, whatever somebody would answer."""
    runtime = make_script_runtime(code_sandbox=sandbox, approver=ScriptedApprover("once", "once"))

    answer = run_script(runtime, "import shutil\nshutil.rmtree('/')")

    assert "not allowed" in answer["error"]


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_deleting_a_folder_of_the_project_is_asked_about(
    make_script_runtime: MakeRuntime, run_script: Run, project: Path, sandbox: str
) -> None:
    """The sandbox does not protect the project from its own script."""
    (project / "build").mkdir()
    approver = ScriptedApprover("deny")

    answer = run_script(
        make_script_runtime(code_sandbox=sandbox, approver=approver), "import shutil\nshutil.rmtree('build')"
    )

    assert "error" in answer
    assert len(approver.asked) == 1
    assert (project / "build").is_dir()


def test_code_that_cannot_be_read_is_asked_about_without_a_sandbox(
    make_script_runtime: MakeRuntime, run_script: Run
) -> None:
    """There it could do anything that the user can."""
    approver = ScriptedApprover("deny")

    answer = run_script(make_script_runtime(code_sandbox="off", approver=approver), hidden("print(1)"))

    assert "error" in answer
    assert len(approver.asked) == 1


def test_a_folder_that_no_sandbox_can_be_made_for_is_judged_as_this_machine(
    make_script_runtime: MakeRuntime, run_script: Run
) -> None:
    """What was agreed to for the sandbox does not run outside of it: it is judged again, and asked about."""
    approver = ScriptedApprover("once", "deny")
    runtime = make_script_runtime(workspace=Path("/tmp"), approver=approver)

    first = run_script(runtime, hidden("import os; print('TOOLCRIB_SANDBOX' in os.environ)"))
    second = run_script(runtime, hidden("print(2)"))
    harmless = run_script(runtime, "print(3)")

    assert first["output"] == "False\n"
    assert "error" in second
    assert harmless["output"] == "3\n"
    assert len(approver.asked) == 2


def test_where_a_sandbox_is_required_nothing_runs_without_one(
    make_script_runtime: MakeRuntime, run_script: Run
) -> None:
    """It says why there is none."""
    answer = run_script(make_script_runtime(workspace=Path("/tmp"), code_sandbox="on"), "print(1)")

    assert "too broad for a sandbox" in answer["error"]
    assert "output" not in answer
