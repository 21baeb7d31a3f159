"""The service behind the `spotify_…` tools: the user's own Spotify, over its Web API.

https://developer.spotify.com/documentation/web-api
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from toolcrib.config.environment import environment
from toolcrib.config.paths import Home
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.integrations.spotify_login import LOG_IN, SpotifyLogin
from toolcrib.web.hosted_service import ApiService
from toolcrib.web.http_client import GuardedClient, HttpResponse
from toolcrib.web.provider_access import ProviderAccess, ProviderFailed, bounded
from toolcrib.web.token_store import LoginFailed

API_URL = "https://api.spotify.com/v1"
SECONDS = 20.0
ALL_SECONDS = SECONDS * 3
LATE = "Spotify did not answer within {:g} seconds"
MAX_LIBRARY_ITEMS = 40
MAX_PLAYLIST_ITEMS = 100
MAX_LIMITS = {"search": 10}
"""The largest pages; other lists have up to 50 entries."""
PLAYER = "spotify:player"
PAGE = ("limit", "offset", "market")

ACTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "spotify_playback": {
        "get_state": (),
        "get_currently_playing": (),
        "recently_played": (),
        "play": (),
        "pause": (),
        "next": (),
        "previous": (),
        "seek": ("position_ms",),
        "set_repeat": ("state",),
        "set_shuffle": ("state",),
        "set_volume": ("volume_percent",),
    },
    "spotify_devices": {"list": (), "transfer": ("device_id",)},
    "spotify_queue": {"get": (), "add": ("uri",)},
    "spotify_search": {"search": ("query",)},
    "spotify_playlists": {
        "list": (),
        "get": ("playlist_id",),
        "create": ("name",),
        "add_items": ("playlist_id", "uris"),
        "remove_items": ("playlist_id", "uris"),
        "update_details": ("playlist_id",),
    },
    "spotify_albums": {"get": (), "tracks": ()},
    "spotify_library": {"list": (), "save": (), "remove": ()},
}
"""What each tool can do, and what that needs."""
READS = frozenset({"get_state", "get_currently_playing", "recently_played", "list", "get", "search", "tracks"})
REASONS = {
    "PREMIUM_REQUIRED": "Spotify controls playback only for Premium accounts",
    "NO_ACTIVE_DEVICE": (
        "no device is active; open Spotify on one, or pass a device_id from spotify_devices with action list"
    ),
    "DEVICE_NOT_CONTROLLABLE": "that device cannot be controlled; choose another one from spotify_devices",
    "VOLUME_CONTROL_DISALLOW": "the volume of that device cannot be changed from here",
}
"""Why the player refuses something, by the code that Spotify sends."""
_ID = re.compile(r"[A-Za-z0-9]{1,64}")
_URI = re.compile(r"spotify(?::[A-Za-z0-9_.%-]{1,80}){2,4}")
_LINK = re.compile(r"https://open\.spotify\.com/(?:intl-[a-z]+/)?([a-z]+)/([A-Za-z0-9]{1,64})(?:[/?#].*)?")


class SpotifyFailed(ToolcribError):
    """A call that cannot be made; the message says why and what to do."""


class SpotifyService:
    """The Spotify account that the user logged in to."""

    def __init__(self, home: Home, client: Callable[[], GuardedClient]) -> None:
        self._client = client
        self._login = SpotifyLogin(home, client)

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """Whichever of the tools is called."""
        return await bounded(self._run(ctx.tool_name, args), ctx, ALL_SECONDS, LATE)

    def effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        """Reading reaches Spotify; everything else changes what plays, or the library."""
        network = Effect("network", _access(self._client()).host)
        action = _action(ctx.tool_name, args)
        if action in READS:
            return (network,)
        return (network, Effect("remote", _target(ctx.tool_name, args), service="Spotify", action=action))

    async def _run(self, tool: str, args: JsonObject) -> JsonObject:
        action, actions = _action(tool, args), ACTIONS[tool]
        if action not in actions:
            raise SpotifyFailed(f"there is no action {action[:40]!r}; pass one of {', '.join(actions)}")
        for key in actions[action]:
            if args.get(key) in (None, "", []):
                raise SpotifyFailed(f"{action} needs {key}")
        api = SpotifyApi(_access(self._client()), self._login)
        work = getattr(api, f"{tool.partition('_')[2]}_{action}")
        result: JsonObject = await work({key: value for key, value in args.items() if value not in (None, "")})
        return {"success": True, "action": action, **result}


class SpotifyApi(ApiService):
    """One account. Each action of each tool is a method, which takes the arguments that are not empty."""

    name = "spotify"

    def __init__(self, access: ProviderAccess, login: SpotifyLogin) -> None:
        super().__init__(access)
        self._login = login

    # What plays

    async def playback_get_state(self, given: JsonObject) -> JsonObject:
        return self.read(_state, await self._get("/me/player", _some(given, "market")))

    async def playback_get_currently_playing(self, given: JsonObject) -> JsonObject:
        return self.read(_state, await self._get("/me/player/currently-playing", _some(given, "market")))

    async def playback_recently_played(self, given: JsonObject) -> JsonObject:
        if "after" in given and "before" in given:
            raise SpotifyFailed("pass either after or before, not both")
        answer = await self._get("/me/player/recently-played", _page(given, "limit", "after", "before"))
        return {"tracks": self.read(lambda value: [_played(one) for one in value["items"]], answer)}

    async def playback_play(self, given: JsonObject) -> JsonObject:
        body: JsonObject = {}
        if "context_uri" in given:
            body["context_uri"] = _uri(given["context_uri"], "context_uri")
        if "uris" in given:
            body["uris"] = _uris(given["uris"])
        body |= _some(given, "offset", "position_ms")
        if isinstance(body.get("offset"), int):
            body["offset"] = {"position": body["offset"]}
        return await self._change("PUT", "/me/player/play", _device(given), body or None)

    async def playback_pause(self, given: JsonObject) -> JsonObject:
        return await self._change("PUT", "/me/player/pause", _device(given))

    async def playback_next(self, given: JsonObject) -> JsonObject:
        return await self._change("POST", "/me/player/next", _device(given))

    async def playback_previous(self, given: JsonObject) -> JsonObject:
        return await self._change("POST", "/me/player/previous", _device(given))

    async def playback_seek(self, given: JsonObject) -> JsonObject:
        options = {"position_ms": given["position_ms"], **_device(given)}
        return await self._change("PUT", "/me/player/seek", options)

    async def playback_set_repeat(self, given: JsonObject) -> JsonObject:
        state = str(given["state"]).lower()
        if state not in ("track", "context", "off"):
            raise SpotifyFailed(f"state is {state[:20]!r}; set_repeat takes track, context or off")
        return await self._change("PUT", "/me/player/repeat", {"state": state, **_device(given)})

    async def playback_set_shuffle(self, given: JsonObject) -> JsonObject:
        state = {"true": "true", "on": "true", "false": "false", "off": "false"}.get(str(given["state"]).lower(), "")
        if not state:
            raise SpotifyFailed(f"state is {str(given['state'])[:20]!r}; set_shuffle takes true or false")
        return await self._change("PUT", "/me/player/shuffle", {"state": state, **_device(given)})

    async def playback_set_volume(self, given: JsonObject) -> JsonObject:
        options = {"volume_percent": given["volume_percent"], **_device(given)}
        return await self._change("PUT", "/me/player/volume", options)

    async def devices_list(self, _: JsonObject) -> JsonObject:
        answer = await self._get("/me/player/devices", {})
        return {"devices": self.read(lambda value: [_device_facts(one) for one in value["devices"]], answer)}

    async def devices_transfer(self, given: JsonObject) -> JsonObject:
        body = {"device_ids": [str(given["device_id"])], "play": bool(given.get("play"))}
        return await self._change("PUT", "/me/player", {}, body)

    async def queue_get(self, _: JsonObject) -> JsonObject:
        answer = await self._get("/me/player/queue", {})
        return self.read(
            lambda value: {
                "currently_playing": _item(value["currently_playing"]) if value.get("currently_playing") else None,
                "queue": [_item(one) for one in value["queue"]],
            },
            answer,
        )

    async def queue_add(self, given: JsonObject) -> JsonObject:
        return await self._change("POST", "/me/player/queue", {"uri": _uri(given["uri"], "uri"), **_device(given)})

    # What there is

    async def search_search(self, given: JsonObject) -> JsonObject:
        kinds = given.get("types") or given.get("type") or ["track"]
        listed = kinds.split(",") if isinstance(kinds, str) else kinds
        options = {"q": given["query"], "type": ",".join(str(one).strip() for one in listed)}
        answer = await self._get("/search", {**options, **_page(given, *PAGE, "include_external", what="search")})
        return {"results": self.read(_found, answer)}

    async def albums_get(self, given: JsonObject) -> JsonObject:
        answer = await self._get(f"/albums/{_album(given)}", _some(given, "market"))
        return {"album": self.read(_album_facts, answer)}

    async def albums_tracks(self, given: JsonObject) -> JsonObject:
        answer = await self._get(f"/albums/{_album(given)}/tracks", _page(given, *PAGE))
        return self.read(lambda value: _list("tracks", value, _item), answer)

    # What the user keeps

    async def playlists_list(self, given: JsonObject) -> JsonObject:
        answer = await self._get("/me/playlists", _page(given, "limit", "offset"))
        return self.read(lambda value: _list("playlists", value, _playlist_facts), answer)

    async def playlists_get(self, given: JsonObject) -> JsonObject:
        answer = await self._get(_playlist(given), _some(given, "market"))
        return {"playlist": self.read(_playlist_facts, answer)}

    async def playlists_create(self, given: JsonObject) -> JsonObject:
        body = _some(given, "name", "description", "public", "collaborative")
        answer = self.access.parse(await self._send("POST", "/me/playlists", {}, body))
        return {"playlist": self.read(_playlist_facts, answer)}

    async def playlists_add_items(self, given: JsonObject) -> JsonObject:
        body = {"uris": _uris(given["uris"], MAX_PLAYLIST_ITEMS), **_some(given, "position")}
        return self._snapshot(await self._send("POST", f"{_playlist(given)}/items", {}, body))

    async def playlists_remove_items(self, given: JsonObject) -> JsonObject:
        items = [{"uri": one} for one in _uris(given["uris"], MAX_PLAYLIST_ITEMS)]
        body = {"items": items, **_some(given, "snapshot_id")}
        return self._snapshot(await self._send("DELETE", f"{_playlist(given)}/items", {}, body))

    async def playlists_update_details(self, given: JsonObject) -> JsonObject:
        body = _some(given, "name", "description", "public", "collaborative")
        if not body:
            raise SpotifyFailed("update_details needs name, description, public or collaborative")
        return await self._change("PUT", _playlist(given), {}, body)

    async def library_list(self, given: JsonObject) -> JsonObject:
        kind = str(given["kind"])
        answer = await self._get(f"/me/{kind}", _page(given, *PAGE))
        facts = _album_facts if kind == "albums" else _item
        return self.read(lambda value: _list(kind, value, lambda one: facts(one[kind[:-1]])), answer)

    async def library_save(self, given: JsonObject) -> JsonObject:
        return await self._change("PUT", "/me/library", {"uris": ",".join(library_uris(given))})

    async def library_remove(self, given: JsonObject) -> JsonObject:
        return await self._change("DELETE", "/me/library", {"uris": ",".join(library_uris(given))})

    # Asking

    async def _get(self, path: str, options: Mapping[str, Any]) -> Any:
        response = await self._send("GET", path, options)
        # The player answers without content when nothing plays.
        return self.access.parse(response) if response.status != 204 and response.body else {}

    async def _change(
        self, method: str, path: str, options: Mapping[str, Any], body: JsonObject | None = None
    ) -> JsonObject:
        await self._send(method, path, options, body)
        return {"note": "done"}

    def _snapshot(self, response: HttpResponse) -> JsonObject:
        return self.read(lambda value: {"snapshot_id": str(value["snapshot_id"])}, self.access.parse(response))

    async def _send(
        self, method: str, path: str, options: Mapping[str, Any], body: JsonObject | None = None
    ) -> HttpResponse:
        """The answer; a token that is refused is renewed once. Raises SpotifyFailed, LoginFailed or ProviderFailed."""
        path += f"?{urlencode(options)}" if options else ""
        content = json.dumps(body).encode() if body is not None else b""
        token = await self._login.token()
        try:
            try:
                return await self._send_once(method, path, content, token)
            except ProviderFailed as error:
                if error.status != 401:
                    raise
            return await self._send_once(method, path, content, await self._login.renewed(token))
        except ProviderFailed as error:
            raise _explained(error) from error

    async def _send_once(self, method: str, path: str, content: bytes, token: str) -> HttpResponse:
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        return await self.access.send(method, path, headers, content)


def _access(client: GuardedClient) -> ProviderAccess:
    url = environment().get("SPOTIFY_API_URL", "").strip().rstrip("/") or API_URL
    return ProviderAccess(client=client, display_name="Spotify", base_url=url, seconds=SECONDS)


def _explained(error: ProviderFailed) -> ToolcribError:
    """What a refusal means; everything else speaks for itself."""
    try:
        reason = str(json.loads(error.body)["error"].get("reason", ""))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        reason = ""
    if error.status in (401, 403, 404) and reason in REASONS:
        return SpotifyFailed(REASONS[reason])
    if error.status == 401:
        return LoginFailed(f"Spotify no longer accepts the login; {LOG_IN}")
    if error.status == 403:
        return SpotifyFailed(
            "Spotify does not allow that for this account: it may not own it, need Premium, or be missing among the "
            "users of your app"
        )
    if error.status == 404:
        return SpotifyFailed("there is no such thing on Spotify; search for it with spotify_search")
    return error


def _action(tool: str, args: JsonObject) -> str:
    return "search" if tool == "spotify_search" else str(args.get("action") or "").strip()


def _target(tool: str, args: JsonObject) -> str:
    """What a change is made to, as the person who approves it reads it."""
    try:
        if tool == "spotify_library":
            return ", ".join(library_uris(args))
        if tool == "spotify_playlists":
            playlist = args.get("playlist_id")
            return (
                f"spotify:playlist:{_id(playlist, 'playlist_id')}" if playlist else f"spotify:playlist {args['name']}"
            )
    except (SpotifyFailed, LookupError):
        # The call itself says what is wrong, and changes nothing.
        return "spotify:unknown"
    return PLAYER


# Arguments


def library_uris(given: JsonObject) -> list[str]:
    """What to save or remove: models pass URIs, links or ids, under any of three names."""
    one = "album" if given.get("kind") == "albums" else "track"
    listed = [entry for key in ("uris", "ids", "items") for entry in _listed(given.get(key))]
    if not listed:
        raise SpotifyFailed("name what to save or remove in uris")
    found = [f"spotify:{one}:{entry}" if _ID.fullmatch(entry) else _uri(entry, "uris") for entry in listed]
    if len(found) > MAX_LIBRARY_ITEMS:
        raise SpotifyFailed(f"at most {MAX_LIBRARY_ITEMS} entries can be changed in one call, not {len(found)}")
    return list(dict.fromkeys(found))


def _listed(value: Any) -> list[str]:
    listed = value.split(",") if isinstance(value, str) else list(value or [])
    return [str(one).strip() for one in listed if str(one).strip()]


def _uris(value: Any, most: int = MAX_PLAYLIST_ITEMS) -> list[str]:
    found = [_uri(one, "uris") for one in _listed(value)]
    if len(found) > most:
        raise SpotifyFailed(f"at most {most} entries can be passed in one call, not {len(found)}")
    return found


def _uri(value: Any, key: str) -> str:
    text = str(value).strip()
    link = _LINK.fullmatch(text)
    uri = f"spotify:{link[1]}:{link[2]}" if link else text
    if not _URI.fullmatch(uri):
        raise SpotifyFailed(f"{key} has {text[:60]!r}; pass a URI like spotify:track:4iV5W9uYEdYUVa79Axb7Rh, or a link")
    return uri


def _id(value: Any, key: str) -> str:
    """The id in an id, a URI or a link."""
    text = str(value).strip()
    link = _LINK.fullmatch(text)
    found = link[2] if link else text.rpartition(":")[2] if _URI.fullmatch(text) else text
    if not _ID.fullmatch(found):
        raise SpotifyFailed(f"{key} is {text[:60]!r}; pass the id, URI or link of what spotify_search found")
    return found


def _album(given: JsonObject) -> str:
    value = given.get("album_id") or given.get("id")
    if not value:
        raise SpotifyFailed(f"{given['action']} needs album_id")
    return _id(value, "album_id")


def _playlist(given: JsonObject) -> str:
    return f"/playlists/{_id(given['playlist_id'], 'playlist_id')}"


def _some(given: JsonObject, *names: str) -> JsonObject:
    return {name: given[name] for name in names if name in given}


def _page(given: JsonObject, *names: str, what: str = "") -> JsonObject:
    found = _some(given, *names)
    if "limit" in found:
        found["limit"] = max(1, min(MAX_LIMITS.get(what, 50), int(found["limit"])))
    return found


def _device(given: JsonObject) -> JsonObject:
    return _some(given, "device_id")


# Answers


def _state(value: Any) -> JsonObject:
    if not value:
        return {"is_playing": False, "note": "nothing plays on any device"}
    shown: JsonObject = {"is_playing": bool(value["is_playing"])}
    if value.get("item"):
        shown |= {"item": _item(value["item"]), "progress_ms": value.get("progress_ms")}
    if value.get("device"):
        shown["device"] = _device_facts(value["device"])
    if (value.get("context") or {}).get("uri"):
        shown["context_uri"] = str(value["context"]["uri"])
    return shown | {key: value[key] for key in ("shuffle_state", "repeat_state") if key in value}


def _played(one: Any) -> JsonObject:
    return {**_item(one["track"]), "played_at": str(one["played_at"])}


def _item(one: Any) -> JsonObject:
    """A track or an episode."""
    shown: JsonObject = {"name": str(one["name"])[:300], "uri": str(one["uri"])}
    if one.get("artists"):
        shown["artists"] = [str(artist["name"])[:200] for artist in one["artists"]]
    if one.get("album"):
        shown["album"] = str(one["album"]["name"])[:300]
    if one.get("show"):
        shown["show"] = str(one["show"]["name"])[:300]
    return shown | _some(one, "duration_ms")


def _album_facts(one: Any) -> JsonObject:
    shown = {**_item(one), **_some(one, "release_date", "total_tracks")}
    if (one.get("tracks") or {}).get("items"):
        shown["tracks"] = [_item(track) for track in one["tracks"]["items"]]
    return shown


def _playlist_facts(one: Any) -> JsonObject:
    shown: JsonObject = {"name": str(one["name"])[:300], "id": str(one["id"]), "uri": str(one["uri"])}
    shown |= {key: one[key] for key in ("description", "public", "collaborative", "snapshot_id") if one.get(key)}
    shown["owner"] = str((one.get("owner") or {}).get("display_name") or "")[:200]
    # Apps from before 2026 get the entries under their older names.
    entries = one.get("items") or one.get("tracks") or {}
    shown |= _some(entries, "total")
    tracks = [entry.get("item") or entry.get("track") for entry in entries.get("items") or []]
    return shown | ({"tracks": [_item(track) for track in tracks if track]} if tracks else {})


def _device_facts(one: Any) -> JsonObject:
    names = ("id", "name", "type", "is_active", "is_restricted", "volume_percent")
    return {name: one[name] for name in names if one.get(name) is not None}


def _found(value: Any) -> JsonObject:
    """The hits by kind; Spotify fills gaps with null."""
    shown = {
        kind: [_hit(one) for one in page["items"] if one] for kind, page in value.items() if isinstance(page, dict)
    }
    if not shown:
        raise ValueError("no page")
    return shown


def _hit(one: Any) -> JsonObject:
    owner = (one.get("owner") or {}).get("display_name")
    return {**_item(one), **_some(one, "release_date", "total_tracks"), **({"owner": str(owner)} if owner else {})}


def _list(name: str, value: Any, facts: Callable[[Any], JsonObject]) -> JsonObject:
    return {name: [facts(one) for one in value["items"] if one], **_some(value, "total", "offset")}
