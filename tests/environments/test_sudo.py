"""Commands that call sudo: a real one, over ssh, for a user who needs a password; and where nobody can be asked."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.environments import engines
from toolcrib.core.environments import EnvironmentSpec, ExecutionTarget
from toolcrib.core.ports import SecretAsker
from toolcrib.core.types import JsonObject
from toolcrib.registry.default import registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.terminal.call import TerminalCall
from toolcrib.terminal.sudo import asks_for_password, explain_sudo_failure
from toolcrib.testing import ScriptedApprover


class Person(ScriptedApprover):
    """Agrees to everything, and types these passwords in turn; None once they are used up."""

    def __init__(self, *passwords: str) -> None:
        super().__init__(*["once"] * 100)
        self.passwords = list(passwords)
        self.prompts: list[str] = []

    async def ask_secret(self, prompt: str, timeout_seconds: float) -> str | None:
        self.prompts.append(prompt)
        return self.passwords.pop(0) if self.passwords else None


class Session:
    """A runtime whose commands run on the ssh server, and what its calls give."""

    def __init__(self, runtime: Runtime, person: Person, password: str) -> None:
        self.runtime = runtime
        self.person = person
        self.password = password
        self.seen = ""

    async def call(self, tool: str, arguments: JsonObject) -> JsonObject:
        content = (await self.runtime.call(tool, arguments)).content
        self.seen += content
        answer: JsonObject = json.loads(content)
        return answer

    async def run(self, command: str, **arguments: Any) -> JsonObject:
        return await self.call("terminal", {"command": command, "timeout": 30, **arguments})


@pytest.fixture
def session(make_runtime: Callable[..., Runtime], tmp_path: Path) -> Session:
    pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install 'toolcrib[ssh]'")
    server, password = engines.ssh_server(), engines.sudo_password()
    config = {
        "terminal": {
            "backend": "ssh",
            "ssh": {
                "host": server.host,
                "port": server.port,
                "user": server.user,
                "key": str(server.key),
                "known_hosts": str(tmp_path / "known_hosts"),
            },
        }
    }
    person = Person(*[password] * 20)
    runtime = make_runtime(json.dumps(config), registry=ToolRegistry(parent=registry), approver=person)
    return Session(runtime, person, password)


@pytest.mark.services
async def test_the_password_is_asked_for_once_and_serves_every_sudo_of_the_command(session: Session):
    """One question for a command, however often and however nested in the line it calls sudo, as whomever."""
    answer = await session.run("sudo id -un; (sudo -u nobody id -un) | cat; for i in 1 2; do sudo -H id -u; done")

    assert answer["output"].split() == ["root", "nobody", "0", "0"]
    assert len(session.person.prompts) == 1
    assert "sudo id -un" in session.person.prompts[0]


@pytest.mark.services
async def test_the_input_of_a_command_stays_its_own(session: Session):
    """What is piped to sudo arrives, and what sudo's command does not read is left for others."""
    answer = await session.run(
        "echo data | sudo cat; printf 'a\\nb\\n' | while read -r x; do sudo echo $x; done; cat; sudo cat"
    )

    assert answer["output"].split() == ["data", "a", "b"]
    assert answer["exit_code"] == 0


@pytest.mark.services
async def test_a_wrong_password_is_asked_for_again_before_anything_runs(session: Session):
    """The command runs once, when the password is right."""
    session.person.passwords[:] = ["wrong", session.password]

    answer = await session.run("echo ran; sudo id -un")

    assert answer["output"].split() == ["ran", "root"]
    assert len(session.person.prompts) == 2
    assert "wrong" in session.person.prompts[1]


@pytest.mark.services
async def test_after_three_wrong_passwords_nothing_is_run(session: Session):
    """Half of a command must not run because the other half cannot."""
    session.person.passwords[:] = ["wrong", "wronger", "wrongest", session.password]

    answer = await session.run("echo ran; sudo id -un")

    assert answer["exit_code"] == -1
    assert answer["sudo_auth_failed"] is True
    assert "nothing was run" in answer["error"]
    assert "ran\n" not in answer["output"]
    assert session.person.passwords == [session.password]


@pytest.mark.services
async def test_a_command_without_a_password_runs_and_its_failure_is_explained(session: Session):
    """Who gives no password sees what sudo says, and what could be done."""
    session.person.passwords.clear()

    answer = await session.run("echo ran; sudo id -un")

    assert answer["output"].startswith("ran\nsudo: ")
    assert answer["exit_code"] == 1
    assert answer["sudo_auth_failed"] is True
    assert "NOPASSWD" in answer["hint"]


@pytest.mark.services
async def test_a_sudo_that_says_where_its_password_comes_from_is_left_alone(session: Session):
    """`-n` asks nobody, `-S` reads what the command gives it."""
    asked_nobody = await session.run("sudo -n id -un")
    read = await session.run(f"echo {session.password} | sudo -S -p '' id -un; sudo id -u")

    assert asked_nobody["sudo_auth_failed"] is True
    assert read["output"].split() == ["root", "0"]
    assert len(session.person.prompts) == 1


@pytest.mark.services
async def test_the_password_shows_nowhere(session: Session):
    """Not in variables, traces, arguments or environments while the command runs, nor in the session afterwards."""
    await session.run(
        "sudo true; set; declare -p; export; set -x; sudo true; set +x; "
        "cat /proc/self/environ /proc/$$/cmdline /proc/$$/environ | tr '\\0' '\\n'; sudo env; sudo ps -ef e"
    )
    after = await session.run("declare -p; declare -f; export; alias")
    environment = session.runtime.terminal.environment_of("default")
    assert environment is not None
    folder = environment.address()["folder"]
    kept = await session.run(f"grep -r . {folder}")

    escaped = "".join(f"\\x{byte:02x}" for byte in session.password.encode())
    assert session.password not in session.seen
    assert escaped not in session.seen.replace("\\\\", "\\")
    assert "sudo ()" not in after["output"]
    assert "sudo ()" not in kept["output"]
    home = session.runtime.settings.home.root
    files = [path for path in home.rglob("*") if path.is_file()]
    assert not [path for path in files if session.password.encode() in path.read_bytes()]


@pytest.mark.services
async def test_the_session_is_kept_and_messages_count_lines_of_the_command(session: Session):
    """A command with sudo is an ordinary command of its session, its EXIT trap included."""
    first = await session.run(
        "export X=1; cd /usr\nf() { echo f; }\ntrap 'sudo echo bye' EXIT\nsudo true\nnosuch\nexit 3"
    )
    second = await session.run("echo $X; pwd; f")

    assert first["output"].splitlines() == ["bash: line 5: nosuch: command not found", "bye"]
    assert first["exit_code"] == 3
    assert second["output"].split() == ["1", "/usr", "f"]


@pytest.mark.services
async def test_strict_shells_and_exit_codes(session: Session):
    """`set -euo pipefail` changes nothing, and the exit code is that of sudo's command."""
    answer = await session.run("set -euo pipefail; sudo id -un; sudo sh -c 'exit 7'; echo unreached")

    assert (answer["output"], answer["exit_code"]) == ("root", 7)


@pytest.mark.services
async def test_a_command_in_the_background_has_the_password_and_its_input(session: Session):
    """What is typed later goes to the command."""
    started = await session.run("sudo sh -c 'read x; echo $x from $(id -un)'", background=True)
    process = {"session_id": started["session_id"]}
    await session.call("process", {"action": "submit", "data": "hello", **process})
    ended = await session.call("process", {"action": "wait", "timeout": 20, **process})

    assert ended["output"] == "hello from root\n"
    assert ended["command"].startswith("sudo sh")
    assert session.password not in session.seen


@pytest.mark.services
async def test_a_command_on_a_terminal_keeps_it(session: Session):
    """The password is not typed into the terminal where it would be seen, and sudo's command has the terminal."""
    answer = await session.run("sudo sh -c 'id -un; tty -s && echo terminal'; stty -a | grep -o ' echo '", pty=True)

    assert answer["output"].split() == ["root", "terminal", "echo"]
    assert session.password not in session.seen


@pytest.mark.services
async def test_a_sudo_on_the_path_of_the_session_is_never_given_the_password(session: Session):
    """Only a program that belongs to root gets it."""
    await session.run(
        "mkdir -p ~/fake && printf '#!/bin/sh\\necho fake; cat\\n' >~/fake/sudo && chmod +x ~/fake/sudo; "
        "export PATH=~/fake:$PATH"
    )
    answer = await session.run("sudo id -un; rm -r ~/fake")

    assert answer["output"] == "root"
    assert session.person.prompts


@pytest.mark.services
async def test_what_runs_as_root_is_ended_too(session: Session):
    """When its time is over, and when it is killed in the background."""
    seconds = f"300.{secrets.randbelow(10**9):09}"
    late = await session.run(f"sudo sleep {seconds}", timeout=1)
    started = await session.run(f"sudo sleep {seconds}; echo unreached", background=True)
    await session.call("process", {"action": "kill", "session_id": started["session_id"]})
    left = await session.run(f"ps -e -o args | grep '[s]leep {seconds}'")

    assert late["exit_code"] == 124
    assert left["output"] == ""


@pytest.mark.services
async def test_where_there_is_no_sudo_the_answer_says_so(
    make_runtime: Callable[..., Runtime], docker_host: str, monkeypatch: pytest.MonkeyPatch
):
    """The command runs as it is, and nobody is asked for a password that nothing wants."""
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    config = {"terminal": {"backend": "docker", "docker": {"image": engines.IMAGE, "network": False}}}
    person = Person("never asked for")
    runtime = make_runtime(json.dumps(config), registry=ToolRegistry(parent=registry), approver=person)

    answer = json.loads((await runtime.call("terminal", {"command": "echo ran; sudo id -un"})).content)

    assert answer["output"].startswith("ran\n")
    assert answer["exit_code"] == 127
    assert answer["hint"].startswith("there is no sudo here")
    assert person.prompts == []


async def test_without_sudo_or_somebody_to_ask_the_command_runs_as_it_is(make_runtime: Callable[..., Runtime]):
    """A user who needs none is asked for none; where there is none, the answer says so."""
    person = Person()
    runtime = make_runtime(registry=ToolRegistry(parent=registry), approver=person)

    answer = json.loads((await runtime.call("terminal", {"command": "echo ran; sudo -k true; nosuch"})).content)

    assert answer["output"].startswith("ran")
    assert answer["exit_code"] == 127


@pytest.mark.parametrize(
    ("command", "asks"),
    [
        ("sudo ls", True),
        ("cd x && sudo -u bob -i", True),
        ("echo $(sudo ls)", True),
        ("if true; then /usr/bin/sudo ls; fi", True),
        ("sudo -n ls", False),
        ("echo x | sudo -kS ls", False),
        ("sudo -A ls", False),
        ("echo sudo", False),
        ("grep sudo /etc/group", False),
        ("apt-get install -y sudo", False),
        ("ls", False),
    ],
)
def test_only_a_call_of_sudo_leads_to_a_question(command: str, asks: bool):
    """The words of a command line do not matter, what it would run does."""
    target = ExecutionTarget(
        spec=EnvironmentSpec(backend="local", session="s"), folder="/", isolated=False, is_here=True
    )
    assert asks_for_password(TerminalCall(command=command, session_key="s", target=target)) is asks


def test_a_missing_sudo_is_explained():
    """The hint of whoever looked for it stands in the answer, and only when it failed."""
    answer = {"output": "bash: line 1: sudo: command not found", "exit_code": 127, "error": None}

    assert explain_sudo_failure(answer, "there is no sudo here")["hint"] == "there is no sudo here"
    assert explain_sudo_failure({"output": "fine", "exit_code": 0}, "there is no sudo here") == {
        "output": "fine",
        "exit_code": 0,
    }


def test_a_scripted_approver_is_nobody_to_tell_a_secret():
    """Whoever has no channel for secrets is not asked for one."""
    assert not isinstance(ScriptedApprover(), SecretAsker)
    assert isinstance(Person(), SecretAsker)
