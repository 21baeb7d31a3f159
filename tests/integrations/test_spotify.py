"""The tools for Spotify, called as a model calls them, against a server by Spotify's Web API."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from tests.fork_server import SOURCE
from tests.media.services import JSON, KEY, Asking, OpenMedia, as_json, called
from tests.web.sites import Page, Site, SiteRequest
from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.core.types import Unavailable
from toolcrib.integrations import spotify as service
from toolcrib.integrations.spotify_login import SpotifyLogin
from toolcrib.registry import registry
from toolcrib.runtime import Runtime
from toolcrib.tools.spotify import check_spotify
from toolcrib.web.http_client import GuardedClient
from toolcrib.web.token_store import LoginFailed, StoredLogin

ID = "4iV5W9uYEdYUVa79Axb7Rh"
TRACK = {"name": "Gold", "uri": f"spotify:track:{ID}", "artists": [{"name": "Ann"}], "album": {"name": "Ore"}}
SHORT = {"name": "Gold", "uri": f"spotify:track:{ID}", "artists": ["Ann"], "album": "Ore"}
ALBUM = {"name": "Ore", "uri": f"spotify:album:{ID}", "artists": [{"name": "Ann"}], "total_tracks": 1}
PLAYLIST = {"name": "Work", "id": ID, "uri": f"spotify:playlist:{ID}", "owner": {"display_name": "Bo"}}
DEVICE = {"id": "d1", "name": "Kitchen", "type": "Speaker", "is_active": True, "volume_percent": 40}
URI = TRACK["uri"]

# tool, action: arguments, method, path with options, body, answer, part of the result
ROUTES: dict[str, tuple[dict[str, Any], str, str, Any, Any, dict[str, Any]]] = {
    "spotify_playback get_state": (
        {"market": "SE"}, "GET", "/me/player?market=SE", None,
        {"is_playing": True, "item": TRACK, "progress_ms": 5, "device": DEVICE, "repeat_state": "off"},
        {"is_playing": True, "item": SHORT, "progress_ms": 5, "device": DEVICE, "repeat_state": "off"},
    ),
    "spotify_playback get_currently_playing": (
        {}, "GET", "/me/player/currently-playing", None, None, {"is_playing": False},
    ),
    "spotify_playback recently_played": (
        {"limit": 3, "after": 7}, "GET", "/me/player/recently-played?limit=3&after=7", None,
        {"items": [{"track": TRACK, "played_at": "t"}]}, {"tracks": [{**SHORT, "played_at": "t"}]},
    ),
    "spotify_playback play": (
        {"uris": [URI], "offset": 1, "position_ms": 9, "device_id": "d1"}, "PUT", "/me/player/play?device_id=d1",
        {"uris": [URI], "offset": {"position": 1}, "position_ms": 9}, None, {},
    ),
    "spotify_playback pause": ({}, "PUT", "/me/player/pause", None, None, {}),
    "spotify_playback next": ({}, "POST", "/me/player/next", None, None, {}),
    "spotify_playback previous": ({}, "POST", "/me/player/previous", None, None, {}),
    "spotify_playback seek": ({"position_ms": 0}, "PUT", "/me/player/seek?position_ms=0", None, None, {}),
    "spotify_playback set_repeat": ({"state": "track"}, "PUT", "/me/player/repeat?state=track", None, None, {}),
    "spotify_playback set_shuffle": ({"state": True}, "PUT", "/me/player/shuffle?state=true", None, None, {}),
    "spotify_playback set_volume": ({"volume_percent": 0}, "PUT", "/me/player/volume?volume_percent=0", None, None, {}),
    "spotify_devices list": ({}, "GET", "/me/player/devices", None, {"devices": [DEVICE]}, {"devices": [DEVICE]}),
    "spotify_devices transfer": (
        {"device_id": "d1", "play": True}, "PUT", "/me/player", {"device_ids": ["d1"], "play": True}, None, {},
    ),
    "spotify_queue get": (
        {}, "GET", "/me/player/queue", None, {"currently_playing": None, "queue": [TRACK]},
        {"currently_playing": None, "queue": [SHORT]},
    ),
    "spotify_queue add": ({"uri": URI}, "POST", f"/me/player/queue?uri=spotify%3Atrack%3A{ID}", None, None, {}),
    "spotify_search search": (
        {"query": "gold", "types": ["track", "album"], "limit": 2}, "GET", "/search?q=gold&type=track%2Calbum&limit=2",
        None, {"tracks": {"items": [TRACK, None]}, "albums": {"items": []}},
        {"results": {"tracks": [SHORT], "albums": []}},
    ),
    "spotify_playlists list": (
        {"limit": 50}, "GET", "/me/playlists?limit=50", None, {"items": [PLAYLIST], "total": 1}, {"total": 1},
    ),
    "spotify_playlists get": (
        {"playlist_id": f"https://open.spotify.com/playlist/{ID}?si=1"}, "GET", f"/playlists/{ID}", None,
        {**PLAYLIST, "items": {"total": 1, "items": [{"item": TRACK}]}},
        {"playlist": {"name": "Work", "id": ID, "uri": PLAYLIST["uri"], "owner": "Bo", "total": 1, "tracks": [SHORT]}},
    ),
    "spotify_playlists create": (
        {"name": "Work", "public": False}, "POST", "/me/playlists", {"name": "Work", "public": False}, PLAYLIST, {},
    ),
    "spotify_playlists add_items": (
        {"playlist_id": ID, "uris": [URI], "position": 0}, "POST", f"/playlists/{ID}/items",
        {"uris": [URI], "position": 0}, {"snapshot_id": "s"}, {"snapshot_id": "s"},
    ),
    "spotify_playlists remove_items": (
        {"playlist_id": ID, "uris": [URI]}, "DELETE", f"/playlists/{ID}/items", {"items": [{"uri": URI}]},
        {"snapshot_id": "s"}, {"snapshot_id": "s"},
    ),
    "spotify_playlists update_details": (
        {"playlist_id": ID, "name": "Rest"}, "PUT", f"/playlists/{ID}", {"name": "Rest"}, None, {},
    ),
    "spotify_albums get": (
        {"id": f"spotify:album:{ID}"}, "GET", f"/albums/{ID}", None, {**ALBUM, "tracks": {"items": [TRACK]}}, {},
    ),
    "spotify_albums tracks": (
        {"album_id": ID, "offset": 4}, "GET", f"/albums/{ID}/tracks?offset=4", None, {"items": [TRACK], "total": 5},
        {"tracks": [SHORT], "total": 5},
    ),
    "spotify_library list": (
        {"kind": "tracks"}, "GET", "/me/tracks", None, {"items": [{"track": TRACK}], "total": 1}, {"tracks": [SHORT]},
    ),
    "spotify_library save": (
        {"kind": "albums", "ids": [ID]}, "PUT", f"/me/library?uris=spotify%3Aalbum%3A{ID}", None, None, {},
    ),
    "spotify_library remove": (
        {"kind": "tracks", "items": [f"https://open.spotify.com/track/{ID}"]}, "DELETE",
        f"/me/library?uris=spotify%3Atrack%3A{ID}", None, None, {},
    ),
}  # fmt: skip


@pytest.fixture
def server(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("SPOTIFY_API_URL", f"{site.address}/v1")
    monkeypatch.setenv("SPOTIFY_ACCOUNTS_URL", site.address)
    return site


def login_of(home: Home) -> SpotifyLogin:
    return SpotifyLogin(home, lambda: GuardedClient.from_settings(Settings(home=home)))


def log_in(home: Home, access_token: str = KEY, *, lasts: float = 3_600) -> StoredLogin:
    """A login as an earlier `toolcrib login spotify` left it."""
    tokens = {"access_token": access_token, "refresh_token": "refresh-1", "expires_in": 3_600}
    login = StoredLogin(tokens=tokens, renew_at=time.time() + lasts, client={"client_id": "app"})
    return login_of(home).store.update(lambda _: login)


def opened(open_runtime: OpenMedia, **options: Any) -> Runtime:
    runtime = open_runtime()
    log_in(runtime.settings.home, **options)
    return runtime


class Accounts:
    """The token endpoint: each refresh token is accepted once, and its successor comes with the answer."""

    def __init__(self, site: Site) -> None:
        self.forms: list[dict[str, str]] = []
        self.current = 1
        self.lock = threading.Lock()
        site.pages["/api/token"] = self.answer

    def answer(self, asked: SiteRequest) -> Page:
        form = {key: values[0] for key, values in parse_qs(asked.body.decode()).items()}
        with self.lock:
            self.forms.append(form)
            if form["grant_type"] == "refresh_token" and form["refresh_token"] != f"refresh-{self.current}":
                return 400, JSON, b'{"error": "invalid_grant"}'
            self.current += 1
            tokens = {"access_token": f"new-{self.current}", "refresh_token": f"refresh-{self.current}"}
        return as_json({**tokens, "token_type": "Bearer", "expires_in": 3_600, "scope": "x"})


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("row", ROUTES)
async def test_each_action_asks_its_route(open_runtime: OpenMedia, server: Site, row: str, asking: Asking) -> None:
    """With the stored token; what changes something needs approval, what reads does not."""
    tool, action = row.split()
    arguments, method, path, body, answer, expected = ROUTES[row]
    server.pages[f"/v1{path.partition('?')[0]}"] = (204, {}, b"") if answer is None else as_json(answer)
    named = {} if tool == "spotify_search" else {"action": action}

    found = await called(opened(open_runtime), tool, **named, **arguments)

    assert found["success"] is True, found
    (asked,) = server.requests
    assert (asked.method, asked.path) == (method, f"/v1{path}")
    assert (json.loads(asked.body) if asked.body else None) == body
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert found == {**found, **expected}
    assert bool(asking.requests) == (action not in service.READS)


def test_the_tools_offer_all_actions() -> None:
    for tool, actions in service.ACTIONS.items():
        entry = registry.get_entry(tool)
        assert entry is not None
        offered = entry.schema["parameters"]["properties"].get("action", {"enum": ["search"]})["enum"]
        assert offered == list(actions)
    assert {f"{tool} {action}" for tool, actions in service.ACTIONS.items() for action in actions} == set(ROUTES)


async def test_a_person_reads_what_would_change(open_runtime: OpenMedia, server: Site, asking: Asking) -> None:
    """The approval names the record; a denied change is never sent."""
    asking.choice = "deny"
    runtime = opened(open_runtime)

    await called(runtime, "spotify_playback", action="pause")
    await called(runtime, "spotify_library", action="remove", kind="tracks", ids=[ID])

    shown = [str(msgspec.to_builtins(request)) for request in asking.requests]
    assert "spotify:player" in shown[0]
    assert f"spotify:track:{ID}" in shown[1]
    assert not server.requests


@pytest.mark.parametrize(
    ("status", "reason", "sentence"),
    [
        (403, "PREMIUM_REQUIRED", "only for Premium accounts"),
        (404, "NO_ACTIVE_DEVICE", "no device is active; open Spotify on one"),
        (403, "DEVICE_NOT_CONTROLLABLE", "that device cannot be controlled"),
        (403, "", "does not allow that for this account"),
        (404, "", "there is no such thing on Spotify"),
    ],
)
async def test_the_player_says_why_it_refuses(
    open_runtime: OpenMedia, server: Site, status: int, reason: str, sentence: str
) -> None:
    """By the code of the answer; its words are not repeated."""
    said = {"error": {"status": status, "message": f"words {KEY}", "reason": reason}}
    server.pages["/v1/me/player/pause"] = (status, JSON, json.dumps(said).encode())

    found = await called(opened(open_runtime), "spotify_playback", action="pause")

    assert sentence in found["error"]
    assert "words" not in found["error"]


async def test_a_refused_token_is_renewed_once(open_runtime: OpenMedia, server: Site) -> None:
    """The new tokens are stored for the owner only, and the request is made again."""
    accounts = Accounts(server)

    def devices(asked: SiteRequest) -> Page:
        if asked.headers["authorization"] == "Bearer new-2":
            return as_json({"devices": []})
        return 401, JSON, b'{"error": {"status": 401}}'

    server.pages["/v1/me/player/devices"] = devices
    runtime = opened(open_runtime)

    found = await called(runtime, "spotify_devices", action="list")

    assert found["devices"] == []
    assert accounts.forms == [{"grant_type": "refresh_token", "refresh_token": "refresh-1", "client_id": "app"}]
    store = login_of(runtime.settings.home).store
    assert (store.read().tokens or {})["refresh_token"] == "refresh-2"
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


async def test_an_expired_login_is_renewed_before_it_is_used(open_runtime: OpenMedia, server: Site) -> None:
    """An answer without a new refresh token means that the old one stays valid."""
    server.pages["/api/token"] = as_json({"access_token": "new", "expires_in": 3_600})
    server.pages["/v1/me/player/devices"] = as_json({"devices": []})
    runtime = opened(open_runtime, lasts=-1)

    await called(runtime, "spotify_devices", action="list")

    assert [one.path for one in server.requests] == ["/api/token", "/v1/me/player/devices"]
    assert (login_of(runtime.settings.home).store.read().tokens or {})["refresh_token"] == "refresh-1"


async def test_a_login_that_was_withdrawn_is_told_and_dropped(open_runtime: OpenMedia, server: Site) -> None:
    server.pages["/api/token"] = (
        400,
        JSON,
        b'{"error": "invalid_grant", "error_description": "Refresh token revoked"}',
    )
    runtime = opened(open_runtime, lasts=-1)

    first = await called(runtime, "spotify_devices", action="list")
    second = await called(runtime, "spotify_devices", action="list")

    assert first["error"] == "the Spotify login has expired; run `toolcrib login spotify`"
    assert second["error"] == "you are not logged in to Spotify; run `toolcrib login spotify`"
    assert len(server.requests) == 1


async def test_a_problem_of_the_accounts_server_keeps_the_login(open_runtime: OpenMedia, server: Site) -> None:
    server.pages["/api/token"] = (503, JSON, b"{}")
    runtime = opened(open_runtime, lasts=-1)

    found = await called(runtime, "spotify_devices", action="list")

    assert "Spotify has a problem (HTTP 503)" in found["error"]
    assert login_of(runtime.settings.home).store.read().is_usable


RENEW = """
import asyncio, sys
from toolcrib.config.load import load_settings
from toolcrib.integrations.spotify_login import SpotifyLogin
from toolcrib.web.http_client import GuardedClient

settings = load_settings()
login = SpotifyLogin(settings.home, lambda: GuardedClient.from_settings(settings))
print("ready", flush=True)
sys.stdin.readline()
print(asyncio.run(login.token()), flush=True)
"""


@pytest.mark.services
def test_two_processes_with_an_expired_token_make_one_refresh(server: Site, tmp_path: Path) -> None:
    """The server rotates refresh tokens and refuses old ones; the second process uses what the first one got."""
    accounts, both_asked = Accounts(server), threading.Event()

    def answer(asked: SiteRequest) -> Page:
        both_asked.wait(30)
        return accounts.answer(asked)

    server.pages["/api/token"] = answer
    log_in(Home(tmp_path), lasts=-1)
    environ = {"PYTHONPATH": str(SOURCE), "SPOTIFY_ACCOUNTS_URL": server.address, "TOOLCRIB_HOME": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RENEW],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    both_asked.set()

    tokens = [process.communicate(timeout=60)[0].strip() for process in processes]

    assert tokens == ["new-2", "new-2"]
    assert len(accounts.forms) == 1


async def test_a_login_proves_who_began_it(server: Site, tmp_path: Path) -> None:
    """The code is exchanged with the verifier whose hash the login page got; no secret is involved."""
    accounts, login = Accounts(server), login_of(Home(tmp_path))
    asked: list[dict[str, list[str]]] = []

    async def follow(address: str) -> str:
        assert address.startswith(f"{server.address}/authorize?")
        asked.append(parse_qs(urlsplit(address).query))
        return f"http://127.0.0.1:1/callback?code=c1&state={asked[0]['state'][0]}"

    await login.log_in("app", follow, "http://127.0.0.1:1/callback")

    (form,) = accounts.forms
    assert asked[0]["code_challenge_method"] == ["S256"]
    assert (form["code"], form["client_id"], form["redirect_uri"]) == ("c1", "app", "http://127.0.0.1:1/callback")
    assert 43 <= len(form["code_verifier"]) <= 128
    assert "client_secret" not in form
    assert await login.token() == "new-2"


@pytest.mark.parametrize(
    ("redirect", "sentence"),
    [
        ("code=c1&state=guessed", "belongs to another login"),
        ("error=access_denied&state={state}", "the login was refused at Spotify"),
        ("state={state}", "sent no code back"),
    ],
)
async def test_a_wrong_redirect_logs_nobody_in(server: Site, tmp_path: Path, redirect: str, sentence: str) -> None:
    login = login_of(Home(tmp_path))

    async def follow(address: str) -> str:
        return f"http://127.0.0.1:1/callback?{redirect.format(state=parse_qs(urlsplit(address).query)['state'][0])}"

    with pytest.raises(LoginFailed, match=sentence):
        await login.log_in("app", follow, "http://127.0.0.1:1/callback")
    assert not server.requests
    assert not login.store.path.exists()


async def test_odd_arguments_are_refused_before_anything_is_sent(open_runtime: OpenMedia, server: Site) -> None:
    runtime = opened(open_runtime)

    assert "needs playlist_id" in (await called(runtime, "spotify_playlists", action="get"))["error"]
    odd = await called(runtime, "spotify_albums", action="get", album_id="../me")
    assert "pass the id, URI or link" in odd["error"]
    many = await called(runtime, "spotify_library", action="save", kind="tracks", ids=[f"{n}" for n in range(41)])
    assert "at most 40" in many["error"]
    assert (
        "takes track, context or off"
        in (await called(runtime, "spotify_playback", action="set_repeat", state="x"))["error"]
    )
    assert not server.requests


async def test_without_a_login_the_remedy_is_named(open_runtime: OpenMedia, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = open_runtime()
    monkeypatch.setenv("TOOLCRIB_HOME", str(runtime.settings.home.root))

    found = await called(runtime, "spotify_queue", action="get")

    assert found["error"] == "you are not logged in to Spotify; run `toolcrib login spotify`"
    assert check_spotify() == Unavailable("you are not logged in to Spotify", "run `toolcrib login spotify`")
    log_in(runtime.settings.home)
    assert check_spotify() is True


async def test_no_tool_reads_the_stored_login(open_runtime: OpenMedia, asking: Asking) -> None:
    """Neither the file tools, nor a command without an approval."""
    asking.choice = "deny"
    runtime = opened(open_runtime)
    path = str(login_of(runtime.settings.home).store.path)

    read = await runtime.call("read_file", {"path": path})
    shown = await runtime.call("terminal", {"command": f"cat {path}"})

    assert read.is_error
    assert shown.is_error
    assert KEY not in read.text + shown.text
