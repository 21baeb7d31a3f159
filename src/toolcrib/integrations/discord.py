"""The service behind `discord` and `discord_admin`: the user's bot, over Discord's REST API.

https://discord.com/developers/docs/reference
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.web.hosted_service import ApiService, ServiceSpec
from toolcrib.web.http_client import GuardedClient
from toolcrib.web.provider_access import ProviderFailed, bounded

SPEC = ServiceSpec("Discord", "https://discord.com/api/v10", ("DISCORD_BOT_TOKEN",), "DISCORD_API_URL")
SECONDS = 20.0
LONGEST_PAUSE_SECONDS = 5.0
"""How long to wait at most when Discord says that it gets too many requests."""
ALL_SECONDS = SECONDS * 2 + LONGEST_PAUSE_SECONDS
LATE = "Discord did not answer within {:g} seconds"
DEFAULT_LIMIT = 50
MAX_LIMIT = 100
MAX_CONTENT_CHARS = 2_000
ARCHIVE_MINUTES = (60, 1440, 4320, 10080)
CHANNEL_KINDS = {0: "text", 2: "voice", 4: "category", 5: "announcement", 10: "thread", 11: "thread", 12: "thread",
                 13: "stage", 15: "forum", 16: "media"}  # fmt: skip
_ID = re.compile(r"\d{1,20}")

TAKE_PART = {
    "fetch_messages": ("channel_id",),
    "search_members": ("guild_id", "query"),
    "create_thread": ("channel_id", "name"),
}
"""The actions of `discord`, and what each needs."""
MANAGE = {
    "list_guilds": (),
    "server_info": ("guild_id",),
    "list_channels": ("guild_id",),
    "channel_info": ("channel_id",),
    "list_roles": ("guild_id",),
    "member_info": ("guild_id", "user_id"),
    "list_pins": ("channel_id",),
    "pin_message": ("channel_id", "message_id"),
    "unpin_message": ("channel_id", "message_id"),
    "delete_message": ("channel_id", "message_id"),
    "add_role": ("guild_id", "user_id", "role_id"),
    "remove_role": ("guild_id", "user_id", "role_id"),
}
"""The actions of `discord_admin`."""
CHANGES = frozenset({"create_thread", "pin_message", "unpin_message", "delete_message", "add_role", "remove_role"})


class DiscordFailed(ToolcribError):
    """A call that cannot be made; the message says why and what to do."""


class DiscordService:
    """The servers that the user's bot is in."""

    def __init__(self, client: Callable[[], GuardedClient]) -> None:
        self._client = client

    async def take_part(self, args: JsonObject, ctx: ToolContext) -> str:
        """`discord`."""
        return await bounded(self._run(args, TAKE_PART), ctx, ALL_SECONDS, LATE)

    async def manage(self, args: JsonObject, ctx: ToolContext) -> str:
        """`discord_admin`."""
        return await bounded(self._run(args, MANAGE), ctx, ALL_SECONDS, LATE)

    def effects(self, args: JsonObject) -> tuple[Effect, ...]:
        """Reading reaches Discord; everything else changes something there."""
        bot, action = self._bot(), str(args.get("action") or "")
        if bot is None:
            return ()
        network = Effect("network", bot.host)
        if action not in CHANGES:
            return (network,)
        named = (str(args.get(key) or "") for key in ("message_id", "user_id", "channel_id", "guild_id"))
        target = next((one for one in named if one), action)
        return (network, Effect("remote", f"discord:{target}", service="Discord", action=action))

    async def _run(self, args: JsonObject, actions: Mapping[str, tuple[str, ...]]) -> JsonObject:
        bot, action = self._bot(), str(args.get("action") or "").strip()
        if bot is None:
            raise DiscordFailed("DISCORD_BOT_TOKEN is not set; run `toolcrib setup discord`")
        if action not in actions:
            raise DiscordFailed(f"there is no action {action[:40]!r}; pass one of {', '.join(actions)}")
        for key in actions[action]:
            _require(args, key, action)
        for key in ("guild_id", "channel_id", "user_id", "role_id", "message_id", "before", "after"):
            if args.get(key) and not _ID.fullmatch(str(args[key]).strip()):
                raise DiscordFailed(f"{key} is {str(args[key])[:40]!r}; it must be an id, which is a number")
        given = {name: str(value).strip() for name, value in args.items() if value not in (None, "")}
        result: JsonObject = await getattr(bot, action)(given)
        return {"success": True, "action": action, **result}

    def _bot(self) -> DiscordBot | None:
        access = SPEC.access(self._client, "discord")
        if access is None or not access.key:
            return None
        return DiscordBot(msgspec.structs.replace(access, seconds=SECONDS))


class DiscordBot(ApiService):
    """One bot. Each action is a method of its name, which takes the arguments as texts."""

    name = "discord"

    # Reading and taking part

    async def fetch_messages(self, given: dict[str, str]) -> JsonObject:
        options: dict[str, Any] = {"limit": _limit(given)}
        options |= {key: given[key] for key in ("before", "after") if key in given}
        answer = await self._get(f"/channels/{given['channel_id']}/messages?{urlencode(options)}")
        return {"messages": self.read(lambda value: [_message(one) for one in value], answer)}

    async def search_members(self, given: dict[str, str]) -> JsonObject:
        options = urlencode({"query": given["query"], "limit": _limit(given)})
        answer = await self._get(f"/guilds/{given['guild_id']}/members/search?{options}")
        return {"members": self.read(lambda value: [_member(one) for one in value], answer)}

    async def create_thread(self, given: dict[str, str]) -> JsonObject:
        minutes = int(given.get("auto_archive_duration") or 1440)
        if minutes not in ARCHIVE_MINUTES:
            raise DiscordFailed(f"auto_archive_duration must be one of {', '.join(map(str, ARCHIVE_MINUTES))}")
        body: JsonObject = {"name": given["name"][:100], "auto_archive_duration": minutes}
        path = f"/channels/{given['channel_id']}/threads"
        if message := given.get("message_id"):
            path = f"/channels/{given['channel_id']}/messages/{message}/threads"
        else:
            body["type"] = 11
        answer = await self._ask(lambda: self.access.post_json(path, body, self._headers))
        return {"thread": self.read(_channel, answer)}

    # Managing

    async def list_guilds(self, _: dict[str, str]) -> JsonObject:
        answer = await self._get("/users/@me/guilds")
        return {"guilds": self.read(lambda value: [_fields(one, "id", "name", "owner") for one in value], answer)}

    async def server_info(self, given: dict[str, str]) -> JsonObject:
        answer = await self._get(f"/guilds/{given['guild_id']}?with_counts=true")
        names = ("id", "name", "description", "owner_id", "approximate_member_count", "approximate_presence_count")
        return {"guild": self.read(lambda value: _fields(value, *names), answer)}

    async def list_channels(self, given: dict[str, str]) -> JsonObject:
        answer = await self._get(f"/guilds/{given['guild_id']}/channels")
        return {"channels": self.read(lambda value: [_channel(one) for one in value], answer)}

    async def channel_info(self, given: dict[str, str]) -> JsonObject:
        return {"channel": self.read(_channel, await self._get(f"/channels/{given['channel_id']}"))}

    async def list_roles(self, given: dict[str, str]) -> JsonObject:
        answer = await self._get(f"/guilds/{given['guild_id']}/roles")
        names = ("id", "name", "position", "managed", "mentionable")
        return {"roles": self.read(lambda value: [_fields(one, *names) for one in value], answer)}

    async def member_info(self, given: dict[str, str]) -> JsonObject:
        answer = await self._get(f"/guilds/{given['guild_id']}/members/{given['user_id']}")
        return {"member": self.read(_member, answer)}

    async def list_pins(self, given: dict[str, str]) -> JsonObject:
        answer = await self._get(f"/channels/{given['channel_id']}/pins")
        return {"messages": self.read(lambda value: [_message(one) for one in value], answer)}

    async def pin_message(self, given: dict[str, str]) -> JsonObject:
        return await self._send("PUT", f"/channels/{given['channel_id']}/pins/{given['message_id']}")

    async def unpin_message(self, given: dict[str, str]) -> JsonObject:
        return await self._send("DELETE", f"/channels/{given['channel_id']}/pins/{given['message_id']}")

    async def delete_message(self, given: dict[str, str]) -> JsonObject:
        return await self._send("DELETE", f"/channels/{given['channel_id']}/messages/{given['message_id']}")

    async def add_role(self, given: dict[str, str]) -> JsonObject:
        return await self._send("PUT", _role_path(given))

    async def remove_role(self, given: dict[str, str]) -> JsonObject:
        return await self._send("DELETE", _role_path(given))

    # Asking

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bot {self.access.key}"}

    async def _get(self, path: str) -> Any:
        return await self._ask(lambda: self.access.get_json(path, self._headers))

    async def _send(self, method: str, path: str) -> JsonObject:
        await self._ask(lambda: self.access.send(method, path, self._headers))
        return {"note": "done"}

    async def _ask(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer; waits once if Discord wants a short pause. Raises ProviderFailed or DiscordFailed."""
        try:
            return await ask()
        except ProviderFailed as error:
            if error.status == 403:
                raise DiscordFailed("the bot is not allowed to do that; give it the permission or intent") from error
            if error.status == 404:
                raise DiscordFailed("there is no such thing on Discord, or the bot cannot see it") from error
            if error.kind != "quota" or not 0 < error.retry_seconds <= LONGEST_PAUSE_SECONDS:
                raise
            await asyncio.sleep(error.retry_seconds)
        return await ask()


def _role_path(given: dict[str, str]) -> str:
    return f"/guilds/{given['guild_id']}/members/{given['user_id']}/roles/{given['role_id']}"


def _require(args: JsonObject, key: str, action: str) -> None:
    if not str(args.get(key) or "").strip():
        raise DiscordFailed(f"{action} needs {key}")


def _limit(given: dict[str, str]) -> int:
    return max(1, min(MAX_LIMIT, int(given.get("limit") or DEFAULT_LIMIT)))


def _fields(one: Any, *names: str) -> JsonObject:
    return {name: one[name] for name in names if one.get(name) not in (None, "")}


def _message(one: Any) -> JsonObject:
    author = one.get("author") or {}
    shown: JsonObject = {
        "id": str(one["id"]),
        "author": str(author.get("global_name") or author.get("username") or ""),
        "author_id": str(author.get("id") or ""),
        "content": str(one.get("content") or "")[:MAX_CONTENT_CHARS],
        "timestamp": str(one.get("timestamp") or ""),
    }
    files = [str(file.get("filename") or "") for file in one.get("attachments") or []]
    return {**shown, "attachments": files} if files else shown


def _member(one: Any) -> JsonObject:
    user = one["user"]
    shown = {"id": str(user["id"]), "username": str(user.get("username") or "")}
    return {**shown, **_fields(one, "nick", "roles", "joined_at"), "bot": bool(user.get("bot"))}


def _channel(one: Any) -> JsonObject:
    shown = _fields(one, "id", "name", "topic", "parent_id", "guild_id")
    return {**shown, "type": CHANNEL_KINDS.get(one.get("type"), "other")}
