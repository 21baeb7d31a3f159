"""Editors over the server's WebSocket: behind its token, and never the ones who approve."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import websockets
from acp import RequestError
from acp.client.connection import ClientSideConnection
from acp.schema import McpServerStdio
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect

from tests.acp.editors import LIMIT_SECONDS, OpenEditor, TestEditor, check_transcript
from tests.serve.agent_serving import CONFIG, RunningServer, serving
from toolcrib import http_server
from toolcrib.acp.transport import encoded
from toolcrib.core.models import Usage
from toolcrib.testing import calls, says

WITH_EDITORS = CONFIG + "  acp: true\n"


class Socket:
    """The SDK's transport over a client's WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, message: dict[str, Any]) -> None:
        await self._socket.send(encoded(message).decode())

    async def receive(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads(await self._socket.recv()))
        except websockets.ConnectionClosed:
            return None

    async def close(self) -> None:
        await self._socket.close()


@asynccontextmanager
async def editing(served: RunningServer, editor: TestEditor, token: str = "") -> AsyncIterator[OpenEditor]:
    url = served.url.replace("http", "ws", 1) + "/acp"
    headers = {"Authorization": f"Bearer {token or served.token}"}
    async with connect(url, additional_headers=headers, proxy=None) as socket:
        conn = ClientSideConnection(editor, Socket(socket), use_unstable_protocol=True, observers=[editor.observe])
        await conn.initialize(protocol_version=1)
        yield OpenEditor(conn, editor, Path(served.server.host.runtime.workspace))
        await conn.close()
    check_transcript(editor.messages)


async def test_a_turn_over_the_socket_is_a_run_of_the_server(home: Path) -> None:
    async with serving(home, [calls("echo", {"text": "hi"}), "Done."], WITH_EDITORS) as served:
        async with editing(served, TestEditor()) as open:
            session = await open.new()
            assert (await open.ask(session.session_id)).stop_reason == "end_turn"
            assert open.editor.text == "Done."
            assert [one.title for one in open.editor.of("tool_call")] == ["echo: hi"]
            assert [one.session_id for one in (await open.conn.list_sessions()).sessions] == [session.session_id]
        async with served.http() as http:
            found = (await http.get("/api/sessions")).json()
        assert session.session_id in str(found)


async def test_nobody_approves_their_own_calls_over_http(home: Path) -> None:
    """The client is told whom to ask, is never asked itself, and cannot switch to a mode that asks less."""
    steps = [calls("remove", {"path": "build"}), "Removed."]
    async with serving(home, steps, WITH_EDITORS + "agent: {mode: ask}\n") as served:
        async with editing(served, TestEditor("once", "always")) as open:
            session = await open.new()
            with pytest.raises(RequestError, match="no mode 'auto-edit'"):
                await open.conn.set_session_mode(session_id=session.session_id, mode_id="auto-edit")
            asking = asyncio.ensure_future(open.ask(session.session_id))
            await open.editor.until(lambda: "Waiting" in _thoughts(open.editor))
            assert served.removed == []
            async with served.http() as http:
                (waiting,) = (await http.get("/api/approvals")).json()["approvals"]
                assert waiting["code"] in _thoughts(open.editor)
                done = await http.post(f"/api/approvals/{waiting['id']}", json={"choice": "once"})
                assert done.status_code == 200, done.text
            assert (await asking).stop_reason == "end_turn"
        assert served.removed == ["build"]
        assert open.editor.permissions == []


async def test_a_client_starts_no_programs_and_chooses_no_folder(home: Path) -> None:
    server = McpServerStdio(name="x", command="touch", args=["x"], env=[])
    async with serving(home, ["Hi."], WITH_EDITORS) as served, editing(served, TestEditor()) as open:
        with pytest.raises(RequestError, match="named in its config"):
            await open.new(mcp_servers=[server])
        with pytest.raises(RequestError, match="open that folder"):
            await open.conn.new_session(cwd="/", mcp_servers=[])


@pytest.mark.parametrize(
    ("headers", "path"),
    [
        ({}, "/acp"),
        ({"Authorization": "Bearer wrong"}, "/acp"),
        ({"Authorization": "Bearer TOKEN", "Origin": "http://evil.example"}, "/acp"),
        ({"Authorization": "Bearer TOKEN", "Host": "evil.example"}, "/acp"),
        ({"Authorization": "Bearer TOKEN"}, "/other"),
    ],
)
async def test_the_socket_needs_the_token_and_no_foreign_page(home: Path, headers: dict[str, str], path: str) -> None:
    async with serving(home, [], WITH_EDITORS) as served:
        given = {name: value.replace("TOKEN", served.token) for name, value in headers.items()}
        url = served.url.replace("http", "ws", 1) + path
        with pytest.raises(websockets.InvalidStatus):
            async with asyncio.timeout(LIMIT_SECONDS), connect(url, additional_headers=given, proxy=None):
                pass


async def test_a_token_without_the_scope_to_chat_gets_no_socket(home: Path) -> None:
    async with serving(home, [], WITH_EDITORS) as served:
        token = served.server.tokens.create("meter", ["metrics", "approve"])
        with pytest.raises(websockets.InvalidStatus):
            async with asyncio.timeout(LIMIT_SECONDS), editing(served, TestEditor(), token):
                pass


async def test_a_token_without_the_scope_to_approve_cannot_approve_elsewhere_either(home: Path) -> None:
    """Whoever may only chat sees that a call waits, and must ask somebody else."""
    steps = [calls("remove", {"path": "build"}), "Removed."]
    async with serving(home, steps, WITH_EDITORS) as served:
        token = served.server.tokens.create("chatter", ["chat"])
        async with editing(served, TestEditor("once"), token) as open:
            session = await open.new()
            asking = asyncio.ensure_future(open.ask(session.session_id))
            await open.editor.until(lambda: "Waiting" in _thoughts(open.editor))
            async with served.http() as owner, served.http(token) as chatter:
                (waiting,) = (await owner.get("/api/approvals")).json()["approvals"]
                path = f"/api/approvals/{waiting['id']}"
                assert (await chatter.post(path, json={"choice": "once"})).status_code == 403
                assert served.removed == []
                await owner.post(path, json={"choice": "deny"})
            await asking
        assert served.removed == []
        assert open.editor.permissions == []


async def test_a_revoked_token_ends_the_connection_and_its_run(home: Path) -> None:
    """What was let in once is not let in for ever."""
    async with serving(home, [calls("wait", {}), "Done."], WITH_EDITORS) as served:
        token = served.server.tokens.create("guest", ["chat"])
        editor = TestEditor()
        async with editing(served, editor, token) as open:
            session = await open.new()
            asking = asyncio.ensure_future(open.ask(session.session_id))
            await editor.until(lambda: editor.of("tool_call"))
            served.server.tokens.revoke("guest")
            # Either the answer that it was cancelled still gets through, or the connection ended before.
            await asyncio.wait([asking])
            with pytest.raises((ConnectionError, websockets.ConnectionClosed)):
                await open.conn.list_sessions()
            assert asking.exception() is not None or asking.result().stop_reason == "cancelled"
        async with asyncio.timeout(LIMIT_SECONDS):
            while served.server.runs.working:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_frame_that_is_no_message_is_answered(home: Path) -> None:
    async with serving(home, [], WITH_EDITORS) as served:
        url, headers = served.url.replace("http", "ws", 1) + "/acp", {"Authorization": f"Bearer {served.token}"}
        async with asyncio.timeout(LIMIT_SECONDS), connect(url, additional_headers=headers, proxy=None) as socket:
            for sent, code in (("{", -32700), ("[]", -32600), ('{"id":[],"method":"x"}', -32600)):
                await socket.send(sent)
                assert json.loads(await socket.recv())["error"]["code"] == code


async def test_without_the_setting_there_is_no_socket(home: Path) -> None:
    async with serving(home) as served, served.http() as http:
        answer: httpx2.Response = await http.get("/acp")
        assert answer.status_code == 404


def _thoughts(editor: TestEditor) -> str:
    return "".join(one.content.text for one in editor.of("agent_thought_chunk"))


async def test_a_socket_ends_with_its_token(home: Path) -> None:
    """Who loses a token loses the connection that it opened."""
    async with serving(home, [], WITH_EDITORS) as served:
        token = served.server.tokens.create("editor", ["chat"])
        url, headers = served.url.replace("http", "ws", 1) + "/acp", {"Authorization": f"Bearer {token}"}
        async with connect(url, additional_headers=headers, proxy=None) as socket:
            served.server.tokens.revoke("editor")
            async with asyncio.timeout(LIMIT_SECONDS):
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


async def test_a_socket_outlives_the_time_for_a_request() -> None:
    """An editor may be silent between two questions; the limit is for connections that send no request."""
    listening, stop = http_server.open_socket("127.0.0.1", 0, "another port"), asyncio.Event()
    options = http_server.ServerOptions(request_seconds=0.1, websockets="websockets-sansio")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            with suppress(TimeoutError):
                async with asyncio.timeout(3 * options.request_seconds):
                    await receive()
            await send({"type": "websocket.send", "text": "still here"})
            await send({"type": "websocket.close"})
            return
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})

    async def nothing() -> None:
        return None

    url = http_server.base_url(listening).replace("http", "ws", 1)
    serving = asyncio.ensure_future(http_server.serve_app(app, listening, stop, nothing, options))
    async with connect(url, proxy=None) as socket:
        said = await socket.recv()
    stop.set()
    await serving

    assert said == "still here"


async def test_commands_that_ask_the_model_count(home: Path) -> None:
    """`/compress` needs room and money like a run, and what it costs is counted."""
    spent = says("A summary.", usage=Usage(input_tokens=10, output_tokens=5, cost_usd=0.25))
    config = WITH_EDITORS + "  limits: {cost_per_day_usd: 0.2}\ncompression: {keep_messages: 2}\n"
    async with serving(home, [*["ok"] * 5, spent], config) as served:
        store = served.server.runs.store
        async with editing(served, TestEditor()) as open:
            session = await open.new()
            for _ in range(5):
                await open.ask(session.session_id)
            await open.ask(session.session_id, "/compress")
            assert "A summary replaced" in open.editor.text
            assert store.cost_since(0.0) == 0.25
            with pytest.raises(RequestError, match="have cost the limit"):
                await open.ask(session.session_id, "/compress")
