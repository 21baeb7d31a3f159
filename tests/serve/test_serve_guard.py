"""Who may use the server, and what it refuses."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import msgspec
import pytest

from tests.serve.agent_serving import CONFIG, serving
from tests.serve.test_native_api import waiting
from toolcrib import http_server
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.config.serve_settings import ServeSettings
from toolcrib.providers.scripted import ScriptedProvider, calls
from toolcrib.serve.app import AgentServer, require_safe_start
from toolcrib.serve.guard import AccessMiddleware
from toolcrib.serve.metrics import ServerMetrics
from toolcrib.serve.run_store import StoredResponse
from toolcrib.serve.tokens import ServerTokens, TokenError, UnsafeStart

BODY = {"text": "hello"}


async def test_every_route_but_health_needs_the_token(home: Path) -> None:
    """Without a token nothing is read or started."""
    async with serving(home) as served, httpx2.AsyncClient(base_url=served.url, trust_env=False) as http:
        routes = ["/v1/models", "/v1/responses/x", "/api/sessions", "/api/runs", "/api/approvals", "/api/tools", "/x"]
        codes = {(await http.get(path)).status_code for path in routes}
        posted = await http.post("/api/runs", json=BODY)
        health = await http.get("/health")

    assert codes == {401}
    assert posted.status_code == 401
    assert "toolcrib serve token" in posted.json()["error"]
    assert health.json()["status"] == "ok"


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
async def test_other_sites_get_nothing(home: Path, headers: dict[str, str], status: int) -> None:
    """A page of another site cannot use the server, even with the token."""
    async with serving(home) as served, served.http(**headers) as http:
        response = await http.post("/api/runs", json=BODY, headers=headers)
        started = served.server.runs.store.list(owner="")

    assert response.status_code == status
    assert started == []


async def test_a_token_does_only_what_its_scopes_allow(home: Path) -> None:
    """A chat token cannot approve; a revoked one does nothing."""
    async with serving(home) as served:
        token = served.server.tokens.create("phone", ["chat"])
        async with served.http(token) as http:
            allowed = await http.get("/api/sessions")
            denied = await http.post("/api/approvals/x", json={"choice": "once"})
            served.server.tokens.revoke("phone")
            revoked = await http.get("/api/sessions")

    assert (allowed.status_code, denied.status_code, revoked.status_code) == (200, 403, 401)


async def test_guessing_is_slowed_down(home: Path) -> None:
    """After many wrong tokens, further ones are told to wait; the owner is not locked out by them."""
    async with serving(home) as served, served.http("wrong") as http, served.http() as owner:
        codes = [(await http.get("/api/sessions")).status_code for _ in range(40)]
        allowed = await owner.get("/api/sessions")

    assert codes[0] == 401
    assert codes[-1] == 429
    assert allowed.status_code == 200


async def test_a_chat_token_reaches_no_sessions_of_the_terminal(home: Path) -> None:
    """Without the scope `admin`, sessions that no server opened do not exist: they are neither listed, read, used nor
    deleted, and no error names them."""
    async with serving(home, ["ok"]) as served:
        store = served.server.host.store
        id = store.create(source="cli").id
        token = served.server.tokens.create("phone", ["chat"])
        async with served.http(token) as http:
            listed = await http.get("/api/sessions")
            chat = {"messages": [{"role": "user", "content": "x"}]}
            tried = [
                await http.get(f"/api/sessions/{id}/messages"),
                await http.patch(f"/api/sessions/{id}", json={"title": "Mine"}),
                await http.post(f"/api/sessions/{id}/fork"),
                await http.delete(f"/api/sessions/{id}"),
                await http.post("/api/runs", json={"text": "x", "session_id": id}),
                await http.post("/api/runs", json={"text": "x", "session_id": "last"}),
                await http.post("/v1/chat/completions", json=chat, headers={"X-Toolcrib-Session-Id": id}),
                await http.post("/v1/chat/completions", json=chat, headers={"X-Toolcrib-Session-Id": "last"}),
            ]
        async with served.http() as http:
            owners = await http.get("/api/sessions")
        left = store.get(id)

    assert listed.json()["sessions"] == []
    assert [one.status_code for one in tried] == [404] * len(tried)
    assert id not in tried[5].text + tried[7].text
    assert [one["id"] for one in owners.json()["sessions"]] == [id]
    assert left.title == ""


@pytest.mark.services
async def test_a_chat_token_reaches_no_runs_of_the_terminals_sessions(home: Path) -> None:
    """What the owner does in them over the server is neither read, answered, steered nor stopped."""
    async with serving(home, [calls("remove", {"path": "hidden"}), "ok"]) as served, served.http() as http:
        session = served.server.host.store.create(source="cli").id
        run = (await http.post("/api/runs", json={**BODY, "session_id": session})).json()["id"]
        asked = await waiting(served, http)
        question = asyncio.ensure_future(served.server.questions.ask_text(session, "Which hidden one?", ()))
        await asyncio.sleep(0)
        (open_question,) = (await http.get("/api/questions")).json()["questions"]
        token = served.server.tokens.create("phone", ["chat"])
        answer = {"messages": [{"role": "user", "content": f"/answer {open_question['code']} x"}]}
        async with served.http(token) as phone:
            listed = [(await phone.get(f"/api/{one}")).json() for one in ("runs", "approvals", "questions", "audit")]
            tried = [
                await phone.get(f"/api/runs/{run}"),
                await phone.get(f"/api/runs/{run}/events"),
                await phone.get(f"/api/runs/{run}/timeline"),
                await phone.post(f"/api/runs/{run}/steer", json=BODY),
                await phone.post(f"/api/questions/{open_question['id']}", json=BODY),
                await phone.post("/v1/chat/completions", json=answer),
                await phone.post(f"/api/runs/{run}/stop"),
            ]
        approver = served.server.tokens.create("watch", ["chat", "approve"])
        async with served.http(approver) as watch:
            decided = await watch.post(f"/api/approvals/{asked['id']}", json={"choice": "deny"})
        question.cancel()

    assert [list(one.values()) for one in listed] == [[[]]] * 4
    assert [one.status_code for one in tried] == [404] * len(tried)
    assert decided.status_code == 200


async def test_a_chat_token_reaches_no_answers_in_the_terminals_sessions(home: Path) -> None:
    """An admin may have answered there over the Responses API; its id alone opens nothing."""
    async with serving(home, ["never"]) as served:
        session = served.server.host.store.create(source="cli").id
        stored = StoredResponse(id="resp_1", session_id=session, message_id=0, body='"marzipan"')
        served.server.runs.store.add_response(stored)
        async with served.http(served.server.tokens.create("chat", ["chat"])) as http:
            answers = [
                await http.get("/v1/responses/resp_1"),
                await http.delete("/v1/responses/resp_1"),
                await http.post("/v1/responses", json={"input": "x", "previous_response_id": "resp_1"}),
            ]
        async with served.http() as http:
            mine = await http.get("/v1/responses/resp_1")

    assert [one.status_code for one in answers] == [404, 404, 400]
    assert mine.json() == "marzipan"


async def test_unreadable_tokens_are_no_fault_of_the_request(home: Path) -> None:
    """The client learns that the server has a problem, and not where its files are."""
    async with serving(home) as served, served.http("x" * 40) as http:
        (home / "serve" / "tokens.json").write_text("{")
        response = await http.get("/api/sessions")

    assert response.status_code == 503
    assert str(home) not in response.text


async def test_log_entries_cannot_be_forged(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line break in a path stays encoded, and the query is left out."""
    with caplog.at_level("INFO", "toolcrib.serve.access"):
        async with serving(home) as served, served.http("wrong") as http:
            await http.get("/x%0aowner DELETE /y?q=private")

    (entry,) = [one.getMessage() for one in caplog.records if one.name == "toolcrib.serve.access"]
    assert "\n" not in entry
    assert "private" not in entry


async def test_a_slow_body_is_given_up(home: Path) -> None:
    """A client that announces a body and does not send it gets an error, and its connection ends."""
    async with serving(home) as served:
        app = AccessMiddleware(
            served.server.app("127.0.0.1")._app,  # type: ignore[attr-defined]
            msgspec.structs.replace(served.server.app("127.0.0.1")._guard, body_seconds=0.05),  # type: ignore[attr-defined]
            ServerMetrics(),
        )
        transport = httpx2.ASGITransport(app)
        sent = asyncio.Event()

        async def stalled() -> AsyncIterator[bytes]:
            yield b"{"
            await sent.wait()

        headers = {"Authorization": f"Bearer {served.token}", "Content-Type": "application/json"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
            response = await http.post("/api/runs", content=stalled())

    assert response.status_code == 408


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("ending", ["", "Connection: close\r\n"])
async def test_who_reads_nothing_loses_the_connection(home: Path, ending: str) -> None:
    """Connections are few, and the page is sent without a token: nobody may hold one by not reading."""
    listening, stop = http_server.open_socket("127.0.0.1", 0, "another port"), asyncio.Event()
    # A small buffer, as over a slow network.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    options = http_server.ServerOptions(request_seconds=0.2, stall_seconds=0.2, max_connections=2)
    settings = load_settings(Home(home))
    server = AgentServer(settings, ServerTokens(settings.home), model=ScriptedProvider(()))
    url = http_server.base_url(listening)
    serving = asyncio.ensure_future(
        http_server.serve_app(server.app("127.0.0.1"), listening, stop, server.stop, options)
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", int(url.rpartition(":")[2])))
        await loop.sock_sendall(
            client, f"GET /page/vendor/purify.js HTTP/1.1\r\nHost: 127.0.0.1\r\n{ending}\r\n".encode()
        )
        await loop.sock_recv(client, 1)
        codes = []
        async with asyncio.timeout(30):
            while 200 not in codes:
                async with httpx2.AsyncClient(trust_env=False, headers={"Connection": "close"}) as http:
                    codes.append((await http.get(f"{url}/health")).status_code)
    stop.set()
    await serving

    assert codes[0] == 503


async def test_streams_are_limited(home: Path) -> None:
    """Beyond `max_streams` a stream is refused, and no run starts for it."""
    config = CONFIG + "  limits: {max_streams: 1}\n"
    question = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    async with serving(home, [calls("wait"), "never"], config=config) as served, served.http() as http:
        run = (await http.post("/api/runs", json=BODY)).json()["id"]
        async with http.stream("GET", f"/api/runs/{run}/events") as open_stream:
            lines = open_stream.aiter_lines()
            await anext(lines)
            second = await http.get(f"/api/runs/{run}/events")
            chat = await http.post("/v1/chat/completions", json=question)
            response = await http.post("/v1/responses", json={"input": "x", "stream": True})
            started = served.server.runs.store.list(owner="")

    assert [one.status_code for one in (second, chat, response)] == [429] * 3
    assert len(started) == 1


async def test_streams_opened_at_once_are_limited(home: Path) -> None:
    """Requests that arrive together do not pass the limit together."""
    config = CONFIG + "  limits: {max_streams: 4}\n"
    async with serving(home, [calls("wait")], config=config) as served, served.http() as http:
        run = (await http.post("/api/runs", json=BODY)).json()["id"]
        port, head = int(served.url.rpartition(":")[2]), f"Host: 127.0.0.1\r\nAuthorization: Bearer {served.token}"
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in opened:
            writer.write(f"GET /api/runs/{run}/events HTTP/1.1\r\n{head}\r\n\r\n".encode())
        codes = [(await reader.readline()).split()[1] for reader, _ in opened]
        for _, writer in opened:
            writer.close()

    assert codes.count(b"200") == 3


async def test_bodies_are_bounded_with_and_without_a_length(home: Path) -> None:
    """A body beyond the limit is refused, declared or not."""

    async def endless() -> object:
        for _ in range(64):
            yield b"x" * 4096

    async with serving(home, config=CONFIG + "  limits: {max_body_mb: 0.1}\n") as served, served.http() as http:
        declared = await http.post("/api/runs", json={"text": "x" * 200_000})
        chunked = await http.post("/api/runs", content=endless(), headers={"Content-Type": "application/json"})  # type: ignore[arg-type]

    assert (declared.status_code, chunked.status_code) == (413, 413)


def test_the_owners_token_is_made_once_and_private(home: Path) -> None:
    """It is long, stays the same, and only its owner can read it."""
    store = ServerTokens(Home(home))
    token = store.owner_token()
    file = home / "serve" / "token"

    assert ServerTokens(Home(home)).owner_token() == token
    assert len(token) >= 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_tokens_created_at_the_same_time_are_all_kept(home: Path) -> None:
    """Processes that create tokens side by side do not overwrite each other's."""
    names = [f"t{n}" for n in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: ServerTokens(Home(home)).create(name, ["chat"]), names))
        owners = set(pool.map(lambda _: ServerTokens(Home(home)).owner_token(), names))

    assert sorted(ServerTokens(Home(home)).others()) == sorted(names)
    assert len(owners) == 1


def test_a_token_needs_a_printable_name(home: Path) -> None:
    """The name is written to the access log."""
    for name in ("", " ", "a\nowner GET /", "owner ", " webhooks", "a/b", "a" * 65):
        with pytest.raises(TokenError, match="needs a name"):
            ServerTokens(Home(home)).create(name, ["chat"])


@pytest.mark.parametrize("token", ["short", "change-me-change-me-change-me-change-me", "a" * 40, "x y" * 20, "ä" * 40])
def test_weak_tokens_are_refused(home: Path, token: str) -> None:
    """Short ones and placeholders are refused by name of their source, without being repeated."""
    with pytest.raises(TokenError) as caught:
        ServerTokens(Home(home), token)

    assert "TOOLCRIB_SERVE_TOKEN" in str(caught.value)
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "settings", "is_safe"),
    [
        ("127.0.0.1", {}, True),
        ("::1", {}, True),
        ("localhost", {}, True),
        ("0.0.0.0", {}, False),
        ("192.0.2.7", {}, False),
        ("my-machine", {}, False),
        ("0.0.0.0", {"tls_certificate": "c.pem", "tls_key": "k.pem"}, True),
        ("0.0.0.0", {"tls_certificate": "c.pem"}, False),
        ("0.0.0.0", {"proxy_names": ["agents.example"]}, True),
    ],
)
def test_an_open_address_needs_encryption(host: str, settings: dict[str, object], is_safe: bool) -> None:
    """The server does not start where tokens would cross a network in the clear."""
    chosen = ServeSettings(**settings)  # type: ignore[arg-type]
    if is_safe:
        require_safe_start(chosen, host)
        return
    with pytest.raises(UnsafeStart) as caught:
        require_safe_start(chosen, host)
    assert caught.value.exit_code == 2


async def until_closed(http: httpx2.AsyncClient, path: str, opened: asyncio.Event) -> str:
    """What a stream sends until the server ends it."""
    read = []
    async with http.stream("GET", path) as response:
        async for piece in response.aiter_text():
            read.append(piece)
            opened.set()
    return "".join(read)


async def test_a_stream_ends_with_its_token(home: Path) -> None:
    """Who loses a token sees nothing more, also where a stream is open; streams of other tokens go on."""
    async with serving(home, [calls("remove", {"path": "build"}), "ok"]) as served, served.http() as owner:
        token = served.server.tokens.create("phone", ["chat"])
        run = (await owner.post("/api/runs", json=BODY)).json()["id"]
        path, opened, kept = f"/api/runs/{run}/events", asyncio.Event(), asyncio.Event()
        async with served.http(token) as phone, asyncio.timeout(30):
            reading = asyncio.ensure_future(until_closed(phone, path, opened))
            other = asyncio.ensure_future(until_closed(owner, path, kept))
            await asyncio.gather(opened.wait(), kept.wait())
            asked = await waiting(served, owner)
            served.server.tokens.revoke("phone")
            seen = await reading
            again = await phone.get(path)
            await owner.post(f"/api/approvals/{asked['id']}", json={"choice": "once"})
            whole = await other

    assert "run_ended" not in seen
    assert again.status_code == 401
    assert "run_ended" in whole


async def test_runs_end_with_the_token_that_started_them(home: Path) -> None:
    """Also those that nobody follows: what they ask for is denied, and a new token of the same name changes nothing.
    Runs of other tokens go on."""
    steps = [calls("remove", {"path": "mine"}), calls("remove", {"path": "theirs"}), "ok"]
    async with serving(home, steps) as served, served.http() as owner, asyncio.timeout(60):
        tokens = served.server.tokens
        kept = (await owner.post("/api/runs", json=BODY)).json()["id"]
        mine = await waiting(served, owner)
        async with served.http(tokens.create("phone", ["chat"])) as phone:
            gone = (await phone.post("/api/runs", json=BODY)).json()["id"]
        while len(asked := (await owner.get("/api/approvals")).json()["approvals"]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        tokens.revoke("phone")
        tokens.create("phone", ["chat"])
        ended = await until_closed(owner, f"/api/runs/{gone}/events", asyncio.Event())
        theirs = next(one["id"] for one in asked if one["id"] != mine["id"])
        late = await owner.post(f"/api/approvals/{theirs}", json={"choice": "once"})
        await owner.post(f"/api/approvals/{mine['id']}", json={"choice": "once"})
        whole = await until_closed(owner, f"/api/runs/{kept}/events", asyncio.Event())

    assert '"outcome":"interrupted"' in ended
    assert late.status_code == 404
    assert '"outcome":"answered"' in whole
    assert served.removed == ["mine"]


async def test_a_call_by_hand_ends_with_its_token(home: Path) -> None:
    """It waits for an approval, which nobody should give to somebody who was shut out."""
    async with serving(home) as served, served.http() as owner, asyncio.timeout(30):
        token = served.server.tokens.create("phone", ["chat"])
        async with served.http(token) as phone:
            call = asyncio.ensure_future(phone.post("/api/tools/remove/call", json={"arguments": {"path": "x"}}))
            while not (asked := (await owner.get("/api/approvals")).json()["approvals"]):  # noqa: ASYNC110
                await asyncio.sleep(0)
            served.server.tokens.revoke("phone")
            answer = await call
            decided = await owner.post(f"/api/approvals/{asked[0]['id']}", json={"choice": "once"})

    assert answer.status_code == 499
    assert (decided.status_code, served.removed) == (404, [])


async def test_one_token_leaves_room_for_the_others(home: Path) -> None:
    """Runs and streams have limits for the whole server; one token gets three quarters of them."""
    config = CONFIG + "  limits: {max_runs: 4, max_streams: 4}\n"
    async with serving(home, otherwise=lambda _: calls("wait"), config=config) as served, served.http() as http:
        token = served.server.tokens.create("bot", ["chat"])
        async with served.http(token) as bot, asyncio.timeout(60):
            started = [await bot.post("/api/runs", json=BODY) for _ in range(4)]
            path = f"/api/runs/{started[0].json()['id']}/events"
            opened = [asyncio.Event() for _ in range(4)]
            reading = [asyncio.ensure_future(until_closed(bot, path, one)) for one in opened[:3]]
            await asyncio.gather(*(one.wait() for one in opened[:3]))
            refused = await bot.get(path)
            mine = await http.post("/api/runs", json=BODY)
            reading.append(asyncio.ensure_future(until_closed(http, path, opened[3])))
            await opened[3].wait()
            for one in served.server.runs.working:
                one.agent.interrupt("enough")
            await asyncio.gather(*reading)

    assert [one.status_code for one in started] == [202, 202, 202, 429]
    assert "this token" in started[3].json()["error"]
    assert refused.status_code == 429
    assert mine.status_code == 202


async def test_secrets_are_neither_taken_from_addresses_nor_logged(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A token in a URL opens nothing; no log has one, wherever it was sent, nor a login code or a cookie."""
    with caplog.at_level("DEBUG"):
        async with serving(home) as served, served.http() as owner:
            code, secret = served.server.logins.create_code(), served.token
            async with httpx2.AsyncClient(base_url=served.url, trust_env=False) as http:
                tried = [
                    await http.get("/api/sessions", params={one: secret}) for one in ("token", "access_token", "key")
                ]
                login = await http.post("/login", json={"code": code}, headers={"Origin": served.url})
                await http.get("/api/sessions", headers={"Authorization": f"Basic {secret}"})
            await owner.get("/api/sessions")
    logged = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith("toolcrib"))

    assert [one.status_code for one in tried] == [401] * 3
    assert login.status_code == 200
    assert not [one for one in (secret, code, login.json()["key"], *login.cookies.values()) if one in logged]


async def test_no_other_origin_may_read_answers(home: Path) -> None:
    """A browser's question whether another site may send something gets no, and no answer names an origin."""
    asking = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    async with serving(home) as served, served.http() as http:
        answers = [
            await http.options("/api/runs", headers=asking),
            await http.get("/api/sessions", headers={"Origin": "http://evil.example"}),
            await http.get("/", headers={"Origin": "http://evil.example"}),
        ]

    assert answers[0].status_code == 403
    assert not [name for one in answers for name in one.headers if name.startswith("access-control-")]


async def test_files_are_served_by_name_and_never_by_path(home: Path) -> None:
    """The page has its own files only, and a session shows what it did to files, not what is in others."""
    hidden = home / "hidden.txt"
    paths = ["/page/../app.py", "/page/..%2fapp.py", "/page/%2e%2e/%2e%2e/tokens.py", "/page//etc/passwd", "/page/"]
    async with serving(home, ["ok"]) as served, served.http() as http:
        hidden.write_text("marzipan")
        codes = [(await http.get(path)).status_code for path in paths]
        session = (await http.post("/api/sessions", json={})).json()["id"]
        shown = await http.get(f"/api/sessions/{session}/diff", params={"path": str(hidden)})

    assert set(codes) <= {401, 404}
    assert "marzipan" not in shown.text


async def test_a_running_server_loads_no_plugins(home: Path, tmp_path: Path) -> None:
    """What appears in the folder of plugins stays there, also when the config changes."""
    async with serving(home) as served, served.http() as http:
        before = (await http.get("/api/tools")).json()
        plugin = Home(home).plugins_dir / "late"
        plugin.mkdir(parents=True)
        (plugin / "plugin.yaml").write_text("name: late\n")
        (plugin / "__init__.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w').close()\n")
        changed = [
            await http.put("/api/settings/plugins.enabled", json={"value": ["late"]}),
            await http.put("/api/settings/serve.approval_timeout", json={"value": 77}),
        ]
        async with asyncio.timeout(30):
            while served.server.host.settings.serve.approval_timeout != 77:  # noqa: ASYNC110 - nothing says it
                await asyncio.sleep(0.01)
        after = (await http.get("/api/tools")).json()

    assert [one.status_code for one in changed] == [200, 200]
    assert after == before
    assert not (tmp_path / "loaded").exists()
