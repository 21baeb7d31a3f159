"""`toolcrib chat --connect`: a terminal at a running server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.chat.chat_program import CTRL_C, ENTER, ChatProgram
from tests.serve.page_browser import free_port, serve_program
from toolcrib.providers.scripted import call, says
from toolcrib.testing.model_server import ScriptedModelServer, Stream

pytestmark = pytest.mark.services
REMOVE = call("terminal", {"command": "rm -rf build"})
SLOW = Stream(says(" ".join(f"word{n}." for n in range(2000))), pause_seconds=0.02)


async def test_a_terminal_chats_with_a_server_that_is_stopped_and_started(home: Path, tmp_path: Path) -> None:
    """It streams, asks for approval, stops at Ctrl-C without repeating anything, waits for a server that is started
    anew, and goes on with the session."""
    work, port = tmp_path / "work", free_port()
    (work / "build").mkdir(parents=True)
    home.mkdir(exist_ok=True)  # noqa: ASYNC240
    steps = [says("I'll clean up.", REMOVE), "It is gone.", SLOW, SLOW, "I am back.", "Still here."]
    with ScriptedModelServer(steps) as model:
        settings = {
            "model": {"provider": "fake", "default": "test"},
            "providers": {"fake": {"base_url": model.base_url}},
            "serve": {"port": port, "toolsets": ["terminal"]},
        }
        (home / "config.yaml").write_text(json.dumps(settings))

        async def on_screen(chat: ChatProgram, *texts: str) -> None:
            await asyncio.to_thread(chat.wait_for, *texts)

        async with serve_program(home, work) as (server, url):
            chat = ChatProgram(home, "chat", "--connect", url, columns=80, rows=24, cwd=work)
            await on_screen(chat, ">")
            chat.type("clean up" + ENTER)
            await on_screen(chat, "I'll clean up.\n", "rm -rf build", "once / session / always / deny?")
            chat.type("once" + ENTER)
            await on_screen(chat, "It is gone.")
            chat.type("talk" + ENTER)
            await on_screen(chat, "word9.")
            chat.type(CTRL_C)
            await on_screen(chat, "Stopping", "it was interrupted")
            assert chat.text.count("word9.") == 1
            chat.type("talk again" + ENTER)
            await asyncio.to_thread(chat.wait_until, lambda text: text.count("word9.") == 2, "the second answer begins")
            server.kill()
            await server.wait()
            await on_screen(chat, "The connection to the server is lost; trying again")
        async with serve_program(home, work):
            await on_screen(chat, "the server stopped")
            chat.type("hello?" + ENTER)
            await on_screen(chat, "I am back.")
            chat.type("/quit" + ENTER)
            await on_screen(chat, "--resume")
            with ChatProgram(home, "chat", "--connect", url, "-c", "-q", "again", cwd=work) as once:
                await on_screen(once, "Still here.")
            said = json.dumps(model.requests[-1].body)

    assert not (work / "build").exists()
    assert chat.process.wait(30) == 0
    assert all(word in said for word in ("clean up", "talk again", "hello?"))
