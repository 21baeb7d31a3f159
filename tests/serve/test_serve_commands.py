"""Commands around a running server: chat with it, answer its approvals, and start it with the machine."""

from __future__ import annotations

import asyncio
import configparser
import plistlib
from pathlib import Path

import pytest

from tests.cli.cli_program import Program
from tests.serve.agent_serving import serving
from tests.serve.test_native_api import follow, start, waiting
from toolcrib.cli.commands.serve_install import launchd_agent, systemd_unit
from toolcrib.config.paths import Home
from toolcrib.providers.scripted import calls


async def test_a_question_is_asked_of_a_running_server(home: Path, tmp_path: Path) -> None:
    """The answer goes to stdout, the calls to stderr; the session is the server's, and can be resumed."""
    steps = [calls("echo", {"text": "hi"}), "The answer.", "Another one."]
    async with serving(home, steps) as served, served.http() as http:
        run_cli = Program(tmp_path)
        first = await asyncio.to_thread(run_cli, "chat", "--connect", served.url, "-q", "What?")
        second = await asyncio.to_thread(run_cli, "chat", "--connect", served.url, "-c", "-q", "And?")
        odd = await asyncio.to_thread(run_cli, "chat", "--connect", served.url, "--yolo", "-q", "And?")
        sessions = (await http.get("/api/sessions")).json()["sessions"]

    assert (first.code, first.stdout) == (0, "The answer.\n")
    assert "echo" in first.stderr
    assert (second.stdout, len(sessions)) == ("Another one.\n", 1)
    assert odd.code == 2


async def test_an_approval_is_answered_from_the_command_line(home: Path, tmp_path: Path) -> None:
    async with serving(home, [calls("remove", {"path": "x"}), "ok"]) as served, served.http() as http:
        run = await start(http)
        asked = await waiting(served, http)
        run_cli = Program(tmp_path)
        missing = await asyncio.to_thread(run_cli, "approvals", "answer", asked["code"])
        served.server.settings.home.serve_address_file.write_text(served.url)
        done = await asyncio.to_thread(run_cli, "approvals", "answer", asked["code"])
        again = await asyncio.to_thread(run_cli, "approvals", "answer", asked["code"])
        await follow(http, run["id"])

    assert (missing.code, done.code, again.code) == (2, 0, 1)
    assert "allowed once" in done.stderr
    assert served.removed == ["x"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://server.example:8642", "unencrypted"),
        ("https://server.example", "TOOLCRIB_SERVE_TOKEN"),
        ("ftp://x", "no URL"),
        ("http://127.0.0.1:1", "cannot reach"),
    ],
)
def test_the_token_stays_on_this_machine(tmp_path: Path, url: str, said: str) -> None:
    """It never goes to another machine unencrypted, and the one of this home to none at all."""
    run_cli = Program(tmp_path)
    run_cli("serve", "token")
    done = run_cli("chat", "--connect", url, "-q", "x")

    assert done.code == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_files_for_systemd_and_launchd(tmp_path: Path) -> None:
    """Odd paths keep their meaning, and a changed file is not overwritten."""
    home = Home(tmp_path / 'my "100%" $HOME')
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(systemd_unit("/opt/my $python/bin/python3", home))
    agent = plistlib.loads(launchd_agent("/usr/bin/python3", home).encode())
    run_cli = Program(tmp_path)
    installed = run_cli("serve", "install", "--manager", "systemd")
    (file,) = tmp_path.rglob("toolcrib.service")
    again = run_cli("serve", "install", "--manager", "systemd")
    file.write_text("changed")
    refused = run_cli("serve", "install", "--manager", "systemd")

    assert unit["Service"]["ExecStart"] == '"/opt/my $$python/bin/python3" -m toolcrib serve'
    assert unit["Service"]["Environment"].endswith('/my \\"100%%\\" $HOME"')
    assert agent["EnvironmentVariables"]["TOOLCRIB_HOME"] == str(home.root)
    assert "systemctl --user enable --now toolcrib.service" in installed.stderr
    assert (installed.code, again.code, refused.code) == (0, 0, 2)
    assert file.read_text() == "changed"
