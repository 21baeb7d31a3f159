"""Servers that want a login: kept for its owner alone, renewed by itself, never asked for behind anybody's back."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mcp.real_servers import LIMIT_SECONDS, eventually, free_port, text_of
from tests.oauth_pages import Site, follow, started_site
from toolcrib.config.mcp_settings import McpOAuthSettings, McpServerSettings
from toolcrib.config.paths import Home
from toolcrib.mcp.client.errors import ServerFailed
from toolcrib.mcp.client.login import log_in, log_out
from toolcrib.mcp.client.oauth import LoginProvider
from toolcrib.mcp.client.servers import Server, read_server, token_store
from toolcrib.runtime import Runtime
from toolcrib.web.redirect_listener import open_listener
from toolcrib.web.token_store import LoginFailed, StoredLogin, TokenStore, file_stem

# Programs with the SDK behind them take a second or two to start.
pytestmark = pytest.mark.services

MakeRuntime = Callable[..., Runtime]

RENEWING = """
import asyncio, sys
import httpx2
from pathlib import Path
from toolcrib.config.mcp_settings import McpServerSettings
from toolcrib.config.paths import Home
from toolcrib.mcp.client.http_transport import http_client
from toolcrib.mcp.client.oauth import stored_login
from toolcrib.mcp.client.servers import read_server

async def main():
    server = read_server("web", McpServerSettings(url=sys.argv[1], auth="oauth"), {})
    client, _ = http_client(server, stored_login(server, Home(Path(sys.argv[2]))), lambda _: None)
    print("ready", flush=True)
    sys.stdin.readline()
    async with client:
        print((await client.post(sys.argv[1], json={})).status_code)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def running_site() -> Iterator[Site]:
    with started_site() as site:
        yield site


@pytest.fixture
def site(running_site: Site) -> Site:
    """The servers as they are at first, without logins."""
    running_site.change(reset=True)
    return running_site


def server_at(site: Site, name: str = "web", **oauth: Any) -> Server:
    return read_server(name, McpServerSettings(url=site.url, auth="oauth", oauth=McpOAuthSettings(**oauth)), {})


async def prepared(make_runtime: MakeRuntime, site: Site, **more: Any) -> tuple[Runtime, TokenStore]:
    """A runtime that knows the server, in whose home somebody has logged in; nothing is connected yet."""
    runtime = make_runtime(json.dumps({"mcp_servers": {"web": site.settings(**more)}}))
    server = server_at(site)
    store = token_store(server, runtime.settings.home)
    await log_in(server, store, follow)
    return runtime, store


async def connected(make_runtime: MakeRuntime, site: Site, **more: Any) -> tuple[Runtime, TokenStore]:
    runtime, store = await prepared(make_runtime, site, **more)
    runtime.load()
    assert await runtime.mcp.wait_ready(LIMIT_SECONDS)
    assert runtime.mcp.servers()[0].state == "ready", runtime.mcp.servers()
    return runtime, store


async def echo(runtime: Runtime, text: str = "hi") -> Any:
    return text_of(await runtime.call("mcp__web__echo", {"text": text}))


def kept_token(store: TokenStore, kind: str = "access_token") -> str:
    return str((store.read().tokens or {}).get(kind))


async def test_a_server_without_a_login_says_how_to_log_in(make_runtime: MakeRuntime, site: Site) -> None:
    """Nobody is asked, nothing is opened, nothing is even sent: the state names the command to type."""
    runtime = make_runtime(json.dumps({"mcp_servers": {"web": site.settings()}}))
    runtime.load()
    assert await runtime.mcp.wait_ready(LIMIT_SECONDS)

    [status] = runtime.mcp.servers()

    assert status.state == "needs_login"
    assert "`toolcrib mcp login web`" in status.last_error
    assert status.next_retry is not None
    assert (site.saw()["bare"], site.saw()["registered"]) == (0, 0)


async def test_a_login_lets_the_server_be_used(make_runtime: MakeRuntime, site: Site) -> None:
    """After the whole way, from discovery and registration to the token, tools of the server are called."""
    runtime, _ = await connected(make_runtime, site)

    assert await echo(runtime) == "hi"
    assert site.saw()["authorized"] == 1


async def test_what_is_kept_is_for_the_owner_alone(make_runtime: MakeRuntime, site: Site) -> None:
    """The folder and the file of tokens are closed to everybody else, also where they were not before."""
    runtime = make_runtime()
    server = server_at(site)
    store = token_store(server, runtime.settings.home)
    store.path.parent.mkdir(parents=True, mode=0o755)

    await log_in(server, store, follow)

    assert store.path == runtime.settings.home.root / "mcp_tokens" / "web.json"
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


async def test_a_login_in_another_process_is_used_by_the_next_call(make_runtime: MakeRuntime, site: Site) -> None:
    """A server that needed a login is connected as soon as somebody needs it after the login."""
    runtime = make_runtime(json.dumps({"mcp_servers": {"web": site.settings()}}))
    runtime.load()
    assert await runtime.mcp.wait_ready(LIMIT_SECONDS)
    server = server_at(site)

    await log_in(server, token_store(server, runtime.settings.home), follow)
    await runtime.mcp.use("web", lambda connection: connection.list_tools(), LIMIT_SECONDS)

    assert await echo(runtime) == "hi"


async def test_a_login_in_another_process_is_noticed_without_a_call(make_runtime: MakeRuntime, site: Site) -> None:
    """The file is looked at again and again while a login is what is lacking."""
    runtime = make_runtime(json.dumps({"mcp_servers": {"web": site.settings()}}))
    runtime.load()
    assert await runtime.mcp.wait_ready(LIMIT_SECONDS)
    server = server_at(site)

    await log_in(server, token_store(server, runtime.settings.home), follow)

    await eventually(lambda: runtime.mcp.servers()[0].state == "ready")


async def test_a_token_that_the_server_finds_too_old_is_renewed(make_runtime: MakeRuntime, site: Site) -> None:
    """The call goes through, and the next refresh token is kept in the place of the one that was used."""
    runtime, store = await connected(make_runtime, site)
    before = kept_token(store, "refresh_token")
    site.change(expire=True)

    assert await echo(runtime) == "hi"
    assert site.saw()["renewed"] == 1
    assert kept_token(store, "refresh_token") not in (before, "None")


async def test_a_token_that_is_known_to_be_old_is_renewed_before_it_is_sent(
    make_runtime: MakeRuntime, site: Site
) -> None:
    """When a token ends is kept with it, so that a process which starts later renews it first."""
    runtime, store = await prepared(make_runtime, site)
    store.update(lambda kept: StoredLogin(**{**_fields(kept), "renew_at": 1.0}))

    runtime.load()
    assert await runtime.mcp.wait_ready(LIMIT_SECONDS)

    assert await echo(runtime) == "hi"
    assert site.saw()["renewed"] == 1


async def test_calls_at_the_same_time_renew_once(make_runtime: MakeRuntime, site: Site) -> None:
    """Ten calls that find the token too old share one exchange."""
    runtime, _ = await connected(make_runtime, site, supports_parallel_tool_calls=True)
    site.change(expire=True, renew_delay=0.3)

    answers = await asyncio.gather(*(echo(runtime, str(number)) for number in range(10)))

    assert answers == [str(number) for number in range(10)]
    assert (site.saw()["renewed"], site.saw()["reused"]) == (1, 0)


async def test_two_processes_that_renew_at_once_lose_nothing(make_runtime: MakeRuntime, site: Site) -> None:
    """A refresh token that counts once is sent once: the other process takes over what the first was given."""
    runtime, store = await prepared(make_runtime, site)
    site.change(expire=True, renew_delay=1.0)
    command = [sys.executable, "-c", RENEWING, site.url, str(runtime.settings.home.root)]
    both = [
        await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), LIMIT_SECONDS) == b"ready\n"

    said = [await done for done in [asyncio.ensure_future(process.communicate(b"\n")) for process in both]]

    # It is let in, and then told that an empty message is no message.
    assert [out for out, _ in said] == [b"400\n", b"400\n"]
    assert (site.saw()["renewed"], site.saw()["reused"]) == (1, 0)
    assert kept_token(store).startswith("access-")


async def test_a_cancelled_call_does_not_cost_the_login(make_runtime: MakeRuntime, site: Site) -> None:
    """An exchange that has begun is finished and kept, whoever gave up waiting for it."""
    runtime, store = await connected(make_runtime, site)
    before = kept_token(store)
    site.change(expire=True, renew_delay=0.5)
    call = asyncio.ensure_future(runtime.call("mcp__web__echo", {"text": "never"}))
    await eventually(lambda: store.path.with_name(".web.json.renewing").exists())

    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await eventually(lambda: kept_token(store) != before)

    assert await echo(runtime) == "hi"
    assert (site.saw()["renewed"], site.saw()["reused"]) == (1, 0)


async def test_a_login_that_was_taken_back_is_asked_for_again(make_runtime: MakeRuntime, site: Site) -> None:
    """The call says how to log in, the state follows, and after a new login everything works as before."""
    runtime, store = await connected(make_runtime, site)
    site.change(forget=True)

    refused = await runtime.call("mcp__web__echo", {"text": "hi"})
    await eventually(lambda: runtime.mcp.servers()[0].state == "needs_login")

    assert "`toolcrib mcp login web`" in refused.error_message
    assert store.read().tokens is None
    await log_in(server_at(site), store, follow)
    assert await echo(runtime) == "hi"
    assert site.saw()["registered"] == 1


async def test_a_login_server_that_is_down_does_not_end_the_login(make_runtime: MakeRuntime, site: Site) -> None:
    """What could not be renewed now is kept, and renewed when that is possible again."""
    runtime, store = await connected(make_runtime, site)
    site.change(expire=True, token_status=503)

    down = await runtime.call("mcp__web__echo", {"text": "hi"})
    site.change(token_status=0)
    runtime.mcp.reconnect("web")

    assert "could not be refreshed: HTTP 503" in down.error_message
    assert store.read().tokens is not None
    assert await echo(runtime) == "hi"


async def test_a_login_belongs_to_the_address_that_it_was_made_for(make_runtime: MakeRuntime, site: Site) -> None:
    """When the config names another address, nothing that was kept for the old one is sent there."""
    _, store = await prepared(make_runtime, site)
    elsewhere = f"http://127.0.0.1:{site.login_port}/mcp"
    moved = make_runtime(json.dumps({"mcp_servers": {"web": {"url": elsewhere, "auth": "oauth"}}}))
    folder = moved.settings.home.root / "mcp_tokens"
    folder.mkdir(parents=True)
    (folder / "web.json").write_bytes(store.path.read_bytes())

    moved.load()
    assert await moved.mcp.wait_ready(LIMIT_SECONDS)

    assert moved.mcp.servers()[0].state == "needs_login"
    assert site.saw()["caught"] == []


async def test_a_call_that_wants_more_permission_costs_itself_alone(make_runtime: MakeRuntime, site: Site) -> None:
    """It says how to get the permission; the next login asks for it beside what was granted."""
    runtime, store = await connected(make_runtime, site)

    refused = await runtime.call("mcp__web__secret", {"text": "hi"})
    fine = await echo(runtime)
    await log_in(server_at(site), store, follow)
    allowed = await runtime.call("mcp__web__secret", {"text": "hi"})

    assert "requires more permissions for this (admin)" in refused.error_message
    assert fine == "hi"
    assert [set(scopes.split()) for scopes in site.saw()["scopes"]] == [{"read"}, {"read", "admin"}]
    assert text_of(allowed) == "hi"
    assert runtime.mcp.servers()[0].state == "ready"


async def test_what_lacked_permission_is_remembered_while_tokens_are_renewed(
    make_runtime: MakeRuntime, site: Site
) -> None:
    """A renewal between the refusal and the next login does not make that login ask for less."""
    runtime, store = await connected(make_runtime, site)
    await runtime.call("mcp__web__secret", {"text": "hi"})
    site.change(expire=True)
    await echo(runtime)

    await log_in(server_at(site), store, follow)

    assert set(site.saw()["scopes"][-1].split()) == {"read", "admin"}


async def test_a_registration_that_was_forgotten_is_made_again(make_runtime: MakeRuntime, site: Site) -> None:
    """Whoever does not know us any more is asked to register us with the next login."""
    runtime, store = await connected(make_runtime, site)
    site.change(forget=True, forget_clients=True)

    refused = await runtime.call("mcp__web__echo", {"text": "hi"})
    await log_in(server_at(site), store, follow)

    assert "`toolcrib mcp login web`" in refused.error_message
    assert site.saw()["registered"] == 2
    assert await echo(runtime) == "hi"


async def test_a_login_that_cannot_be_kept_is_told(make_runtime: MakeRuntime, site: Site) -> None:
    """A login that would be lost at once is no success."""
    server = server_at(site)
    store = token_store(server, make_runtime().settings.home)
    store.path.parent.parent.mkdir(parents=True, exist_ok=True)
    store.path.parent.write_text("a file where the folder should be")

    with pytest.raises(ServerFailed, match="cannot write"):
        await log_in(server, store, follow)


async def test_scopes_of_the_config_are_what_is_asked_for(make_runtime: MakeRuntime, site: Site) -> None:
    """They count more than what the server suggests."""
    server = server_at(site, scopes=["admin", "special"])

    await log_in(server, token_store(server, make_runtime().settings.home), follow)

    assert site.saw()["scopes"] == ["admin special"]


async def test_a_program_that_was_registered_by_hand_is_used(make_runtime: MakeRuntime, site: Site) -> None:
    """Id and secret of the config take the place of a registration, and the secret is not written down again."""
    server = server_at(site, client_id="known", client_secret="known-secret-value")
    store = token_store(server, make_runtime().settings.home)
    site.change(registers=False)

    await log_in(server, store, follow)

    assert kept_token(store).startswith("access-")
    assert site.saw()["registered"] == 0
    assert "known-secret-value" not in store.path.read_text()
    other = token_store(server_at(site, client_id="another"), _home_of(store))
    assert other.read().tokens is None


async def test_a_server_that_registers_nobody_says_what_to_set(make_runtime: MakeRuntime, site: Site) -> None:
    """The error names the setting that takes an id which was made by hand."""
    site.change(registers=False)
    server = server_at(site)

    with pytest.raises(ServerFailed, match=r"set mcp_servers\.web\.oauth\.client_id"):
        await log_in(server, token_store(server, make_runtime().settings.home), follow)


async def test_a_refused_login_keeps_nothing(make_runtime: MakeRuntime, site: Site) -> None:
    """What the login page says about it is shown, without what it does to a terminal."""
    site.change(denies=True)
    server = server_at(site)
    store = token_store(server, make_runtime().settings.home)

    with pytest.raises(ServerFailed, match="the login was refused: You") as caught:
        await log_in(server, store, follow)

    assert "\x1b" not in str(caught.value)
    assert store.read().tokens is None


@pytest.mark.parametrize("wrong", ["state", "iss"])
async def test_an_answer_of_somebody_else_is_refused(make_runtime: MakeRuntime, site: Site, wrong: str) -> None:
    """Neither another state nor another issuer than that of the request is accepted."""
    server = server_at(site)
    store = token_store(server, make_runtime().settings.home)

    async def meddled(address: str) -> str:
        back = httpx2.URL(await follow(address))
        return str(back.copy_set_param(wrong, "http://somebody.else"))

    with pytest.raises(ServerFailed, match="the login failed"):
        await log_in(server, store, meddled)

    assert store.read().tokens is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"challenge": 'resource_metadata="http://["'},
        {"challenge": 'resource_metadata="file:///etc/passwd"'},
        {"metadata": {"issuer": "http://somebody.else"}},
        {"metadata": {"authorization_endpoint": "javascript:alert(1)"}},
        {"metadata": {"authorization_endpoint": "http://login.example/"}},
        {"metadata": {"token_endpoint": "http://login.example/"}},
        {"metadata": {"registration_endpoint": "http://login.example/"}},
        {"metadata": {"registration_endpoint": "http://127.0.0.1:9/"}},
        {"token_status": 404},
    ],
)
async def test_a_login_that_is_described_wrongly_fails_with_one_sentence(
    make_runtime: MakeRuntime, site: Site, wrong: dict[str, Any]
) -> None:
    """Whatever a server says about its login, it costs that login alone, and nothing is kept or sent elsewhere."""
    site.change(**wrong)
    server = server_at(site)
    store = token_store(server, make_runtime().settings.home)

    with pytest.raises(ServerFailed) as caught:
        await log_in(server, store, follow)

    assert "\n" not in str(caught.value)
    assert store.read().tokens is None


async def test_a_server_that_asks_for_no_login_is_told(
    make_runtime: MakeRuntime, http_server: Callable[..., Any]
) -> None:
    """Logging in where nobody has to, and nobody can, says which setting is wrong."""
    url, _, _ = await asyncio.to_thread(http_server)
    server = read_server("web", McpServerSettings(url=url, auth="oauth"), {})

    with pytest.raises(ServerFailed, match=r"does not ask for a login.*config set mcp_servers\.web\.auth none"):
        await log_in(server, token_store(server, make_runtime().settings.home), follow)


async def test_a_server_that_lets_everybody_in_at_first_can_be_logged_in_at(
    make_runtime: MakeRuntime, site: Site
) -> None:
    """Some servers ask only when a tool is called; what they publish about their login suffices."""
    site.change(asks=False)
    server = server_at(site)
    store = token_store(server, make_runtime().settings.home)

    await log_in(server, store, follow)

    assert kept_token(store).startswith("access-")


async def test_a_login_at_a_server_that_is_not_there_says_so(make_runtime: MakeRuntime) -> None:
    """Nobody answers at the address: the error says that, and not something about logins."""
    nowhere = McpServerSettings(url=f"http://127.0.0.1:{free_port()}/mcp", auth="oauth")
    server = read_server("web", nowhere, {})

    with pytest.raises(ServerFailed, match="'web' cannot be reached: no connection"):
        await log_in(server, token_store(server, make_runtime().settings.home), follow)


async def test_logging_out_forgets_here_and_there(make_runtime: MakeRuntime, site: Site) -> None:
    """The file is gone, and the server has heard that its tokens count no more."""
    server = server_at(site)
    store = token_store(server, make_runtime().settings.home)
    await log_in(server, store, follow)

    done = await log_out(store, server)

    assert done == (True, True)
    assert site.saw()["revoked"] == 1
    assert not store.path.exists()
    assert await log_out(store, server) == (False, False)


async def test_logging_out_reaches_a_running_program(make_runtime: MakeRuntime, site: Site) -> None:
    """A token that was forgotten is not sent any more, though a connection with it is open."""
    runtime, store = await connected(make_runtime, site)

    store.delete()
    refused = await runtime.call("mcp__web__echo", {"text": "hi"})

    assert "`toolcrib mcp login web`" in refused.error_message


@pytest.mark.parametrize("how", ["headers", "oauth"])
async def test_credentials_are_not_taken_along_to_another_place(
    make_runtime: MakeRuntime, site: Site, how: str
) -> None:
    """A server that sends its callers elsewhere does not make them show there who they are."""
    url = site.url.replace("/mcp", "/moved")
    settings: dict[str, Any] = {"url": url}
    settings |= {"auth": "oauth"} if how == "oauth" else {"headers": {"Authorization": "Bearer of-the-config"}}
    runtime = make_runtime(json.dumps({"mcp_servers": {"web": settings}}))
    store = TokenStore(runtime.settings.home.root / "mcp_tokens", "web", url)
    store.update(lambda kept: StoredLogin(tokens={"access_token": "of-the-login"}))

    runtime.load()
    assert await runtime.mcp.wait_ready(LIMIT_SECONDS)

    assert runtime.mcp.servers()[0].state == "waiting"
    assert site.saw()["caught"] == []


async def test_a_token_in_the_headers_needs_no_login(make_runtime: MakeRuntime, site: Site) -> None:
    """Without `auth: oauth` what the config says is sent as it is."""
    _, store = await prepared(make_runtime, site)
    headers = {"Authorization": f"Bearer {kept_token(store)}"}
    runtime = make_runtime(json.dumps({"mcp_servers": {"web": {"url": site.url, "headers": headers, "trust": "all"}}}))

    runtime.load()
    assert await runtime.mcp.wait_ready(LIMIT_SECONDS)

    assert await echo(runtime) == "hi"


async def test_tokens_are_not_written_to_the_log(
    make_runtime: MakeRuntime, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither when all goes well nor when it does not, however much is logged."""
    caplog.set_level("DEBUG")
    runtime, store = await connected(make_runtime, site)
    secrets = [kept_token(store), kept_token(store, "refresh_token"), (store.read().client or {})["client_secret"]]
    site.change(expire=True)
    await echo(runtime)
    secrets += [kept_token(store), kept_token(store, "refresh_token")]
    site.change(forget=True)
    await runtime.call("mcp__web__echo", {"text": "hi"})

    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith(("toolcrib", "mcp")))
    assert "toolcrib" in {record.name.split(".")[0] for record in caplog.records}
    assert [secret for secret in secrets if secret in ours or secret in repr(store.read())] == []


async def test_codes_and_tokens_do_not_cross_a_network_in_the_clear(make_runtime: MakeRuntime, site: Site) -> None:
    """A login server without https is used on this machine only, or where the MCP server itself is."""
    server = server_at(site)
    auth = LoginProvider(server, token_store(server, make_runtime().settings.home))

    for address in ("https://login.example/token", "http://localhost:1/token", site.url):
        assert auth.require_secure(httpx2.Request("POST", address)).url == address
    with pytest.raises(ServerFailed, match="without https"):
        auth.require_secure(httpx2.Request("POST", "http://login.example/token"))


async def test_a_broken_file_is_no_login(make_runtime: MakeRuntime, site: Site) -> None:
    """Whatever stands in the file of tokens, the server needs a login and nothing else happens."""
    runtime, store = await prepared(make_runtime, site)
    for content in (b"", b"[]", b"\xff\xfe", b'{"tokens": 3}', b'{"server": "web", "tokens": {"access_token": 1}}'):
        store.path.write_bytes(content)
        assert not store.read().is_usable

    runtime.load()
    assert await runtime.mcp.wait_ready(LIMIT_SECONDS)

    assert runtime.mcp.servers()[0].state == "needs_login"


async def test_the_browser_is_waited_for_with_its_state() -> None:
    """Only a request with the state of this login is taken, and only the first of them."""
    async with open_listener([0]) as listener, httpx2.AsyncClient() as browser:
        coming = asyncio.ensure_future(listener.answer("right"))
        wrong = [
            await browser.get(f"http://127.0.0.1:{listener.port}{path}")
            for path in ("/", "/favicon.ico", "/callback", "/callback?code=1&state=wrong", "/callback?code=1&state=")
        ]
        posted = await browser.post(f"{listener.redirect_uri}?code=1&state=right")
        assert not coming.done()
        right = await browser.get(f"{listener.redirect_uri}?code=<b>&state=right")
        again = await browser.get(f"{listener.redirect_uri}?code=2&state=right")

        assert (await coming).endswith("/callback?code=%3Cb%3E&state=right")

    assert [answer.status_code for answer in [*wrong, posted]] == [404, 404, 400, 400, 400, 404]
    assert (right.status_code, again.status_code) == (200, 410)
    assert "<b>" not in right.text
    assert right.headers["content-security-policy"].startswith("default-src 'none'")


async def test_nonsense_at_the_listener_changes_nothing() -> None:
    """A line without an end, binary data, or nothing at all: the login goes on."""
    async with open_listener([0]) as listener:
        coming = asyncio.ensure_future(listener.answer("right"))
        for data in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET //[ HTTP/1.1\r\n\r\n", b"x" * 100_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(data)
            writer.write_eof()
            await asyncio.wait_for(asyncio.gather(reader.read(), return_exceptions=True), LIMIT_SECONDS)
            writer.close()
        async with httpx2.AsyncClient() as browser:
            await browser.get(f"{listener.redirect_uri}?code=1&state=right")

        assert "code=1" in await coming


async def test_a_taken_port_is_told() -> None:
    """A port that was set and is taken is an error that names it; one that was only preferred is not."""
    async with open_listener([0]) as first:
        async with open_listener([first.port, 0]) as second:
            assert second.port != first.port
        with pytest.raises(LoginFailed, match=f"port {first.port} is in use"):
            async with open_listener([first.port]):
                pass


@given(st.lists(st.text(max_size=60), min_size=2, max_size=6, unique=True))
def test_every_server_has_a_safe_file_of_its_own(names: list[str]) -> None:
    """Whatever servers are called, their files stay in the folder and are not mistaken for one another."""
    stems = [file_stem(name) for name in names]

    assert len({stem.lower() for stem in stems}) == len(names)
    for stem in stems:
        assert stem.isascii()
        assert 0 < len(stem) <= 100
        assert not set(stem) - set("abcdefghijklmnopqrstuvwxyz0123456789-_")
        assert stem not in ("con", "nul", "aux", "prn", "com1")


def _fields(kept: StoredLogin) -> dict[str, Any]:
    return {name: getattr(kept, name) for name in kept.__struct_fields__}


def _home_of(store: TokenStore) -> Home:
    return Home(Path(store.path.parent.parent))
