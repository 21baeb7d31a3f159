"""Commands around a running server: chat with it, answer its approvals, and start it with the machine."""

from __future__ import annotations

import asyncio
import configparser
import json
import plistlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cli.cli_program import Program
from tests.serve.agent_serving import serving
from tests.serve.test_native_api import follow, start, waiting
from toolcrib.cli import server_client
from toolcrib.cli.chat.options import ChatOptions
from toolcrib.cli.chat.remote import chat_with_server
from toolcrib.cli.commands.serve_install import launchd_agent, systemd_unit
from toolcrib.cli.server_client import NotOurServer
from toolcrib.config.paths import Home
from toolcrib.core.context import ToolContext
from toolcrib.providers.scripted import calls
from toolcrib.serve.tokens import ServerTokens


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
    assert "`toolcrib approvals list`" in again.stderr
    assert served.removed == ["x"]


async def test_a_person_answers_in_the_chat_with_a_server(home: Path, tmp_path: Path) -> None:
    """With the keys of every other front end; what means nothing is asked again, and a number is its choice."""
    steps = [calls("remove", {"path": "x"}), "ok", calls("colour", {}), "fine"]
    answers = (("> ", "go"), ("deny? ", "what"), ("deny? ", "y"), ("ok\r\n> ", "and"), ("blue? ", "2"), ("> ", "/quit"))
    async with serving(home, steps) as served:
        asked = []

        async def colour(args: object, *, ctx: ToolContext, **_: object) -> str:
            asked.append(await ctx.ask("Which colour?", ("red", "blue")))
            return "fine"

        schema = {"description": "Asks."}
        served.server.host.runtime.registry.register("colour", "test", schema, colour, is_async=True)
        command = ("chat", "--connect", served.url)
        seen = await asyncio.to_thread(lambda: Program(tmp_path).on_terminal(*command, answers=answers))

    assert (served.removed, asked) == (["x"], ["blue"])
    assert seen.code == 0


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


class StrangeServer(BaseHTTPRequestHandler):
    """Starts every run, and then sends what the test says."""

    started = b'{"id": "run_1", "session_id": "s"}'
    events = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(self.started)

    def do_GET(self) -> None:
        self._send(self.events)

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    "sent",
    [
        {"started": b"<html>"},
        {"started": b"[1]"},
        {"started": b'{"id": 1}'},
        {"started": b"[" * 100_000},
        {"started": b" " * 300_000},
        {"events": b"id: x\ndata: {}\n\n"},
        {"events": b"data: {\n\n"},
        {"events": b"data: \xff\n\n"},
        {"events": b"data: [1]\n\n"},
        {"events": b"data: {}\n\n"},
        {"events": b'data: {"event": "question_asked"}\n\n'},
        {"events": b'data: {"event": "run_ended", "result": {"outcome": "odd"}}\n\n'},
        {"events": b"data: " + b"x" * 300_000},
    ],
)
def test_nonsense_of_a_server_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: dict[str, bytes]
) -> None:
    """Whatever answers at the address, `chat --connect` ends with one sentence; and it reads no answer without end."""
    monkeypatch.setattr(server_client, "MAX_ANSWER_BYTES", 200_000)
    home = Home(tmp_path)
    ServerTokens(home).owner_token()
    with HTTPServer(("127.0.0.1", 0), type("Strange", (StrangeServer,), sent)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with pytest.raises(NotOurServer, match="no toolcrib server"):
            chat_with_server(ChatOptions(query="hi"), home, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_events_of_a_newer_server_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a question asks, and what it offers, cannot steer the terminal either."""
    events = [
        {"event": "of_tomorrow", "text": "x"},
        {"event": "text_streamed", "text": "\x1b[2Jhi"},
        {"event": "question_asked", "id": "1", "code": "\x1b", "kind": "approval", "text": "\x1b", "choices": ["\x1b"]},
        {"event": "run_ended", "result": {"outcome": "answered"}},
    ]
    sent = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events)
    home = Home(tmp_path)
    ServerTokens(home).owner_token()
    with HTTPServer(("127.0.0.1", 0), type("Newer", (StrangeServer,), {"events": sent})) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        code = chat_with_server(ChatOptions(query="hi"), home, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    said = capsys.readouterr()

    assert code == 0
    assert "hi" in said.out
    assert "\x1b" not in said.out + said.err
