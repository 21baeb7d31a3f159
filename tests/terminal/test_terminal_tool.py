"""The `terminal` tool on this machine, through the whole pipeline."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest
from toolcrib.core.cancel import CancelToken
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover, isolated_runtime

Run = Callable[..., dict[str, Any]]
CONFIG = "terminal: {login_shell: false}\n"


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    """A runtime with the built-in tools, working in an empty folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": folder}
    with isolated_runtime(tmp_path / "home", CONFIG, **options) as made:
        yield made


@pytest.fixture
def run(runtime: Runtime) -> Run:
    """Calls the tool and gives its answer."""

    return partial(call, runtime)


@pytest.fixture
def approved(tmp_path: Path) -> Iterator[Runtime]:
    """A runtime with somebody who agrees to everything that he is asked."""
    folder = tmp_path / "approved"
    folder.mkdir()
    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": folder}
    approver = ScriptedApprover(*["once"] * 5)
    with isolated_runtime(tmp_path / "approved-home", CONFIG, approver=approver, **options) as made:
        yield made


def call(runtime: Runtime, command: str, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(str(runtime.call_sync("terminal", {"command": command, **arguments}).content))
    return answer


@pytest.mark.parametrize("workdir", ["~", "~/.", "{up}"])
def test_a_command_is_judged_in_the_folder_that_it_asks_for(run: Run, runtime: Runtime, workdir: str) -> None:
    """A tilde is the home for the gate, too, and a relative folder starts where the session is."""
    Path.home().mkdir(exist_ok=True)
    profile, up = Path.home() / ".profile", os.path.relpath(Path.home(), runtime.workspace)
    for command in ("echo x >> .profile", "cp /dev/null .profile", "grep -r KEY ."):
        answer = run(command, workdir=workdir.format(up=up))

        assert answer["error_type"] == "denied", command
    assert not profile.exists()
    assert run("pwd", workdir=workdir.format(up=up))["output"] == str(Path.home().resolve())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_folder_variables_and_functions_are_kept(run: Run) -> None:
    """The next command of a session starts where the last one ended, also after `exit`."""
    run("mkdir sub; cd sub; export SEEN=yes; greet() { echo hi $1; }; exit 3")

    assert run("basename $PWD; echo $SEEN; greet you")["output"] == "sub\nyes\nhi you"


def test_a_failure_is_told_with_its_meaning(run: Run) -> None:
    """An exit code that people would look up is explained; output and code are the command's own."""
    answer = run("echo text; grep nothing /dev/null")

    assert (answer["output"], answer["exit_code"], answer["error"]) == ("text", 1, None)
    assert "no line matched" in answer["exit_code_meaning"]


def test_a_command_that_takes_too_long_ends_with_all_it_started(run: Run) -> None:
    """Exit code 124 and its line; nothing of the tree runs on, and the session goes on."""
    answer = run("echo $BASHPID; (setsid sleep 300 & echo $!); sleep 300", timeout=3)

    pids = [int(word) for word in answer["output"].split() if word.isdigit()]
    assert answer["exit_code"] == 124
    assert answer["output"].endswith("[Command timed out after 3s]")
    assert len(pids) == 2
    assert not any(map(is_running, pids))
    assert run("echo on")["output"] == "on"


@pytest.mark.services
async def test_overlapping_commands_can_be_cancelled_at_once(runtime: Runtime) -> None:
    """Each answers 130, nothing runs on, and the session keeps what it had."""
    await runtime.call("terminal", {"command": "export KEPT=1"})

    async def cancelled() -> str:
        token = CancelToken()
        task = asyncio.create_task(runtime.call("terminal", {"command": "sleep 300"}, cancel=token))
        await asyncio.sleep(0)
        token.cancel("enough")
        return (await task).text

    for _ in range(5):
        answers = await asyncio.gather(*(cancelled() for _ in range(3)))
        assert all("[Command interrupted]" in text or "was stopped" in text for text in answers)
    kept = await runtime.call("terminal", {"command": "echo $KEPT"})
    environment: Any = runtime.terminal.environment_of("default")
    assert json.loads(kept.text)["output"] == "1"
    assert environment.running == ()


@pytest.mark.parametrize("pty", [False, True])
def test_what_a_command_leaves_running_is_named_and_ended_with_the_runtime(
    run: Run, runtime: Runtime, pty: bool
) -> None:
    """A child left behind becomes a background process of the session."""
    # On a terminal the child must have become deaf to its end before that comes.
    answer = run("nohup sleep 300 >/dev/null 2>&1 & sleep 0.3; exit 3", pty=pty)
    (left,) = answer["left_running"]

    assert (answer["exit_code"], left["command"]) == (3, "sleep 300")
    assert is_running(left["pid"])
    runtime.close()
    assert not is_running(left["pid"])


def test_large_output_is_cut_in_the_middle_and_kept_whole(run: Run) -> None:
    """Head and tail reach the model; the file that is named holds every byte."""
    answer = run("seq 200000")

    assert answer["output"].startswith("1\n2\n")
    assert answer["output"].endswith("\n200000")
    assert "OUTPUT TRUNCATED" in answer["output"]
    assert Path(answer["full_output"]).read_text().splitlines()[-1] == "200000"


def test_control_characters_do_not_blow_up_the_answer(run: Run) -> None:
    """Bytes that nobody can read take one character each."""
    assert run("head -c 3 /dev/zero | tr '\\0' '\\1'; echo end")["output"] == "\ufffd\ufffd\ufffdend"


@pytest.mark.parametrize("pty", [False, True])
def test_output_keeps_its_indentation(run: Run, pty: bool) -> None:
    """Blanks and empty lines before the first word are output; only the newlines at the end are not."""
    Path(run("pwd")["output"], "file.py").write_text("class A:\n\n    def f(self):\n\treturn 1  \n\n")

    assert run("sed -n 3,9p file.py", pty=pty)["output"] == "    def f(self):\n\treturn 1  "
    assert run("sed -n 2,3p file.py", pty=pty)["output"] == "\n    def f(self):"
    assert run("printf '  \\t x \\n\\n'; exit 3", pty=pty)["output"] == "  \t x "


def test_output_of_a_background_command_keeps_its_indentation(run: Run, runtime: Runtime) -> None:
    """The same for what the process tool shows."""
    session = run("printf '\\n    indented\\n\\tend \\n'", background=True)["session_id"]

    def ask(action: str) -> str:
        answer = json.loads(str(runtime.call_sync("process", {"action": action, "session_id": session}).content))
        return str(answer["output"])

    assert ask("wait") == "\n    indented\n\tend \n"
    assert ask("log") == "\n    indented\n\tend "


def test_a_program_that_asks_is_given_back(run: Run, runtime: Runtime) -> None:
    """On a terminal a question does not hang: the command goes on in the background and can be answered."""
    answer = run("read -p 'name? ' name; echo hello $name", pty=True, timeout=60)
    session = answer["session_id"]
    runtime.call_sync("process", {"action": "submit", "session_id": session, "data": "Ada"})
    ended = json.loads(str(runtime.call_sync("process", {"action": "wait", "session_id": session}).content))

    assert answer["status"] == "waiting_for_input"
    assert "hello Ada" in ended["output"]


def test_a_program_that_edits_its_input_line_is_given_back_too(approved: Runtime) -> None:
    """A prompt that waits for keys is one, although nothing is being read."""
    answer = call(approved, "bash --norc --noprofile -i", pty=True, timeout=60)

    assert answer["status"] == "waiting_for_input"


INTERACTIVE = {
    "less": "less numbers",
    "a pager behind a pipe": "seq 500 | less",
    "git": "git -c core.pager=less -p help -a",
    "more": "more numbers",
    "vim": "vim -u NONE numbers",
    "top": "top",
    "python3": "python3 -q",
    "a password": "python3 -c 'import getpass; getpass.getpass()'",
}


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("name", INTERACTIVE)
def test_pagers_editors_and_interpreters_are_given_back(approved: Runtime, name: str) -> None:
    """A program that waits for keys returns long before its time limit, with its screen and how to go on."""
    command = INTERACTIVE[name]
    if shutil.which(command.split()[0]) is None or shutil.which("less") is None:
        pytest.skip("not installed")
    call(approved, "seq 500 >numbers")

    answer = call(approved, command, pty=True, timeout=300)

    assert (answer.get("status"), answer["exit_code"], answer["error"]) == ("waiting_for_input", None, None)
    assert answer["output"].strip()
    assert f"process(action='submit', session_id='{answer['session_id']}'" in answer["hint"]
    assert "action='kill'" in answer["hint"]


def test_a_pager_ends_by_its_key(approved: Runtime) -> None:
    """A key that is written as it is reaches the program."""
    call(approved, "seq 500 >numbers")
    session = call(approved, "less numbers", pty=True, timeout=300)["session_id"]

    approved.call_sync("process", {"action": "write", "session_id": session, "data": "q"})
    ended = json.loads(str(approved.call_sync("process", {"action": "wait", "session_id": session}).content))

    assert (ended["status"], ended["exit_code"]) == ("exited", 0)


STALLED = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
print("Downloading 45%", end=" ", flush=True)
{}
"""


@pytest.mark.parametrize("blocks", ["client.recv(1)", "import select; select.select([client], [], [], 600)"])
def test_a_program_that_waits_for_the_network_does_not_wait_for_input(approved: Runtime, blocks: str) -> None:
    """What is on its way is not typed: an unfinished line alone is no prompt."""
    (Path(approved.workspace) / "stalled.py").write_text(STALLED.format(blocks))

    answer = call(approved, "python3 stalled.py", pty=True, timeout=4)

    assert answer["exit_code"] == 124
    assert "hint" not in answer


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"command": "  "}, "empty"),
        ({"command": "pwd", "workdir": "/no/such/folder"}, "does not exist"),
        ({"command": "pwd", "workdir": "a\0b"}, "NUL"),
        ({"command": "true", "timeout": 6000}, "background=true"),
    ],
)
def test_what_cannot_be_run_is_said_and_harms_nothing(run: Run, arguments: dict[str, Any], words: str) -> None:
    """The error says what is wrong; the session works afterwards."""
    assert words in run(**arguments)["error"]
    assert run("echo on")["output"] == "on"


def test_the_folder_of_the_session_is_what_a_command_is_judged_by(runtime: Runtime, run: Run) -> None:
    """A relative path means something else after `cd`; the gate knows."""
    run("cd /usr")

    result = runtime.call_sync("terminal", {"command": "rm -rf no-such-thing"})

    assert result.status == "blocked"
    assert "/usr/no-such-thing" in result.error_message


def test_an_approved_command_runs(tmp_path: Path) -> None:
    """Who is asked sees the command; his yes lets it run."""
    folder = tmp_path / "w"
    (folder / "build").mkdir(parents=True)
    approver = ScriptedApprover("once")
    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": folder}
    with isolated_runtime(tmp_path / "h", CONFIG, approver=approver, **options) as runtime:
        runtime.call_sync("terminal", {"command": "rm -rf build"})

    assert [request.command for request in approver.asked] == ["rm -rf build"]
    assert not (folder / "build").exists()


def test_the_session_survives_the_loss_of_its_own_folder(approved: Runtime) -> None:
    """A command may sweep the folder that we keep the session in; nothing of ours shows, and nothing is lost."""
    call(approved, "export KEPT=1")
    environment: Any = approved.terminal.environment_of("default")
    first = call(approved, f"rm -r {environment.folder}; cd /usr; echo swept")
    second = call(approved, "echo $KEPT $PWD")

    assert (first["output"], second["output"]) == ("swept", "1 /usr")


def test_changes_are_kept_whatever_path_and_size_the_session_has(run: Run) -> None:
    """Writing the session back needs neither PATH nor room in the environment."""
    run("export OLD=$PATH; export PATH=/nonexistent; cd /usr")
    run("cd /; export BIG=$(printf '%0200000d' 1)")

    assert run("export PATH=$OLD; unset BIG; pwd")["output"] == "/"


def test_a_forked_child_has_a_terminal_of_its_own(run: Run, runtime: Runtime) -> None:
    """What was inherited belongs to the parent, which works on."""
    run("export WHO=parent")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, run("echo child $WHO")["output"].encode())
        runtime.close()
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)

    assert os.read(reading, 100) == b"child"
    assert run("echo $WHO")["output"] == "parent"
    os.close(reading)


@pytest.mark.parametrize(("signal", "code"), [("TERM", 143), ("HUP", 129), ("INT", 130), ("ALRM", 142), ("KILL", 137)])
def test_a_command_that_ends_by_a_signal_says_which(approved: Runtime, signal: str, code: int) -> None:
    """The exit code is 128 and the number of the signal."""
    assert call(approved, f"kill -{signal} $BASHPID; sleep 1")["exit_code"] == code


def of_task(runtime: Runtime, task_id: str, command: str, session_id: str = "s", **arguments: Any) -> dict[str, Any]:
    context = runtime.context(tool_name="terminal", task_id=task_id, session_id=session_id)
    result = runtime.call_sync("terminal", {"command": command, **arguments}, context)
    answer: dict[str, Any] = json.loads(str(result.content))
    return answer


def test_tasks_of_a_session_have_shells_of_their_own(runtime: Runtime) -> None:
    """Neither folder nor variables nor functions of one task are seen by another, or by the session itself."""
    of_task(runtime, "a", "mkdir a; cd a; export WHO=a; greet() { echo hi; }")
    of_task(runtime, "b", "export WHO=b")
    of_task(runtime, "", "export WHO=session")
    look = "basename $PWD; echo ${WHO-nobody}; type -t greet"

    assert of_task(runtime, "a", look)["output"] == "a\na\nfunction"
    assert of_task(runtime, "b", look)["output"] == "work\nb"
    assert of_task(runtime, "c", look)["output"] == "work\nnobody"
    assert of_task(runtime, "", look)["output"] == "work\nsession"


def test_a_task_named_like_its_session_is_the_session(runtime: Runtime) -> None:
    """So is the default task: agents that name their session twice share its shell with everybody who names it once."""
    of_task(runtime, "", "export WHO=session")

    assert of_task(runtime, "s", "echo $WHO")["output"] == "session"
    assert of_task(runtime, "default", "echo $WHO")["output"] == "session"
    assert of_task(runtime, "s", "echo $WHO", session_id="")["output"] == "session"


def test_relative_paths_of_a_task_start_in_its_own_folder(runtime: Runtime) -> None:
    """File tools work where the task's commands do."""
    of_task(runtime, "a", "mkdir a; cd a")
    context = runtime.context(tool_name="write_file", task_id="a", session_id="s")
    runtime.call_sync("write_file", {"path": "note.txt", "content": "mine\n"}, context)

    assert of_task(runtime, "a", "cat note.txt; pwd")["output"].startswith("mine\n")
    assert "No such file" in of_task(runtime, "b", "cat note.txt")["output"]


def test_an_override_of_a_task_is_its_own(runtime: Runtime, tmp_path: Path) -> None:
    """It starts in the folder that it wants; the other tasks of the session do not."""
    runtime.terminal.set_override("a", {"cwd": str(tmp_path)})

    assert of_task(runtime, "a", "pwd")["output"] == str(tmp_path)
    assert of_task(runtime, "b", "basename $PWD")["output"] == "work"


def test_closing_a_session_closes_the_environments_of_its_tasks(runtime: Runtime) -> None:
    """What they left running ends with them; closing one task leaves the others alone."""
    terminal = runtime.terminal
    pids = {}
    for task in ("a", "b"):
        pids[task] = of_task(runtime, task, "sleep 300", background=True)["pid"]
    of_task(runtime, "a", "true", session_id="other")

    terminal.run(terminal.environments.close_session("b"))
    assert (is_running(pids["a"]), is_running(pids["b"])) == (True, False)
    terminal.run(terminal.environments.close_session("s"))
    assert not is_running(pids["a"])
    assert [entry.spec.session for entry in terminal.environments.entries()] == ["other"]


@pytest.mark.services
def test_commands_do_not_inherit_ignored_signals(tmp_path: Path) -> None:
    """Ctrl-C and a hang-up reach commands of a toolcrib that was started with `nohup`, or by a script with `&`."""
    program = f"trap '' HUP INT QUIT; exec {sys.executable} -m toolcrib tools run terminal"
    arguments = json.dumps({"command": "grep SigIgn /proc/self/status"})
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TOOLCRIB_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        ["bash", "-c", f'{program} "$1"', "bash", arguments], env=environ, cwd=tmp_path, capture_output=True, check=True
    )

    ignored = int(json.loads(done.stdout)["output"].split()[1], 16)
    assert ignored & 0b111 == 0


def test_target_in_a_variable_of_an_earlier_command_is_judged(tmp_path: Path) -> None:
    """What one command exports or defines is known when the next one is judged, and so are the links it made."""
    folder, home = tmp_path / "work", tmp_path / "crib"
    folder.mkdir()
    settings = home / "config.yaml"
    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": folder}
    with isolated_runtime(home, CONFIG, **options) as runtime:
        before = settings.read_text()
        for prepare, use in (
            (f"export target={settings}", 'echo "a: 1" >> "$target"'),
            (
                f"save() {{ echo 'a: 1' >> {settings.parent}/$1; }}; export PLACE={home}",
                'echo "a: 1" > $PLACE/config.yaml',
            ),
            ("true", "save config.yaml"),
        ):
            call(runtime, prepare)
            assert call(runtime, use)["error_type"] == "denied", use
        (folder / "l").symlink_to(home)
        assert call(runtime, "echo 'a: 1' > l/config.yaml")["error_type"] == "denied"
        assert call(runtime, "export target=out.txt")["exit_code"] == 0
        assert call(runtime, 'echo fine > "$target"; cat "$target"')["output"].strip() == "fine"

    assert settings.read_text() == before


def test_link_that_changes_after_the_question_is_not_followed(tmp_path: Path) -> None:
    """An approval is for what was asked about: a command that reaches something else by then is denied."""
    folder, home = tmp_path / "work", tmp_path / "crib"
    folder.mkdir()
    harmless = tmp_path / "elsewhere"
    harmless.mkdir()
    (folder / "l").symlink_to(harmless)

    class Swapping(ScriptedApprover):
        async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
            (folder / "l").unlink()
            (folder / "l").symlink_to(home)
            return await super().ask(request)

    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": folder}
    with isolated_runtime(home, CONFIG, approver=Swapping("once"), **options) as runtime:
        before = (home / "config.yaml").read_text()
        answer = call(runtime, "chmod 777 notes; echo 'a: 1' > l/config.yaml")

    assert answer["error_type"] == "denied"
    assert (home / "config.yaml").read_text() == before
