"""The tools for Discord, called as a model calls them, against a server by Discord's REST API."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.media.services import JSON, KEY, Asking, OpenMedia, as_json, called
from tests.web.sites import Page, Site, SiteRequest
from toolcrib.core.types import Unavailable
from toolcrib.integrations import discord as service
from toolcrib.tools.discord import MANAGE_SCHEMA, TAKE_PART_SCHEMA, check_discord

MESSAGE = {"id": "9", "content": "Hello", "author": {"id": "3", "username": "ann"}, "timestamp": "t", "attachments": []}
MEMBER = {"user": {"id": "3", "username": "ann"}, "roles": ["5"], "nick": "Annie"}
CHANNEL = {"id": "2", "name": "general", "type": 0, "guild_id": "1"}
ANSWERS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "fetch_messages": ("/channels/2/messages", [MESSAGE], {"channel_id": "2"}),
    "search_members": ("/guilds/1/members/search", [MEMBER], {"guild_id": "1", "query": "an"}),
    "create_thread": ("/channels/2/threads", {**CHANNEL, "type": 11}, {"channel_id": "2", "name": "Plans"}),
    "list_guilds": ("/users/@me/guilds", [{"id": "1", "name": "Club"}], {}),
    "server_info": ("/guilds/1", {"id": "1", "name": "Club"}, {"guild_id": "1"}),
    "list_channels": ("/guilds/1/channels", [CHANNEL], {"guild_id": "1"}),
    "channel_info": ("/channels/2", CHANNEL, {"channel_id": "2"}),
    "list_roles": ("/guilds/1/roles", [{"id": "5", "name": "Mods"}], {"guild_id": "1"}),
    "member_info": ("/guilds/1/members/3", MEMBER, {"guild_id": "1", "user_id": "3"}),
    "list_pins": ("/channels/2/pins", [MESSAGE], {"channel_id": "2"}),
    "pin_message": ("/channels/2/pins/9", None, {"channel_id": "2", "message_id": "9"}),
    "unpin_message": ("/channels/2/pins/9", None, {"channel_id": "2", "message_id": "9"}),
    "delete_message": ("/channels/2/messages/9", None, {"channel_id": "2", "message_id": "9"}),
    "add_role": ("/guilds/1/members/3/roles/5", None, {"guild_id": "1", "user_id": "3", "role_id": "5"}),
    "remove_role": ("/guilds/1/members/3/roles/5", None, {"guild_id": "1", "user_id": "3", "role_id": "5"}),
}


@pytest.fixture
def server(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("DISCORD_BOT_TOKEN", KEY)
    monkeypatch.setenv("DISCORD_API_URL", site.address)
    for path, answer, _ in ANSWERS.values():
        site.pages[path] = (204, {}, b"") if answer is None else as_json(answer)
    return site


def tool_of(action: str) -> str:
    return "discord" if action in service.TAKE_PART else "discord_admin"


@pytest.mark.parametrize("action", ANSWERS)
async def test_each_action_asks_its_route(open_runtime: OpenMedia, server: Site, action: str, asking: Asking) -> None:
    """With the bot's token; what changes something needs approval, what reads does not."""
    path, _, arguments = ANSWERS[action]

    found = await called(open_runtime(), tool_of(action), action=action, **arguments)

    assert found["success"] is True, found
    (asked,) = server.requests
    assert asked.path.partition("?")[0] == path
    assert asked.headers["authorization"] == f"Bot {KEY}"
    assert bool(asking.requests) == (action in service.CHANGES)


def test_the_two_tools_offer_all_actions() -> None:
    offered = [schema["parameters"]["properties"]["action"]["enum"] for schema in (TAKE_PART_SCHEMA, MANAGE_SCHEMA)]

    assert offered == [list(service.TAKE_PART), list(service.MANAGE)]
    assert {*service.TAKE_PART, *service.MANAGE} == set(ANSWERS)


async def test_messages_and_members_are_short(open_runtime: OpenMedia, server: Site) -> None:
    runtime = open_runtime()

    messages = await called(runtime, "discord", action="fetch_messages", channel_id=2, limit=5)
    members = await called(runtime, "discord", action="search_members", guild_id="1", query="an")

    assert messages["messages"] == [
        {"id": "9", "author": "ann", "author_id": "3", "content": "Hello", "timestamp": "t"}
    ]
    assert members["members"][0]["nick"] == "Annie"
    assert "limit=5" in server.requests[0].path


async def test_a_short_pause_is_waited_for(open_runtime: OpenMedia, server: Site) -> None:
    """Discord says how long; then the request is made again."""
    answers = iter([(429, {**JSON, "retry-after": "1"}, b"{}")])
    asked_at: list[float] = []

    def slow_down(_: SiteRequest) -> Page:
        asked_at.append(time.monotonic())
        return next(answers, as_json([MESSAGE]))

    server.pages["/channels/2/messages"] = slow_down

    found = await called(open_runtime(), "discord", action="fetch_messages", channel_id="2")

    assert found["success"] is True
    first, second = asked_at
    assert second - first >= 1.0


@pytest.mark.parametrize(("status", "sentence"), [(403, "not allowed to do that"), (404, "no such thing")])
async def test_a_missing_permission_is_not_a_wrong_token(
    open_runtime: OpenMedia, server: Site, status: int, sentence: str
) -> None:
    server.pages["/guilds/1/members/search"] = (status, JSON, b"{}")

    found = await called(open_runtime(), "discord", action="search_members", guild_id="1", query="a")

    assert sentence in found["error"]


async def test_odd_arguments_are_refused_before_anything_is_sent(open_runtime: OpenMedia, server: Site) -> None:
    runtime = open_runtime()

    assert "needs channel_id" in (await called(runtime, "discord", action="fetch_messages"))["error"]
    odd = await called(runtime, "discord", action="fetch_messages", channel_id="2/../3")
    assert "must be an id" in odd["error"]
    assert not server.requests


async def test_without_a_token_the_remedy_is_named(open_runtime: OpenMedia, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISCORD_BOT_TOKEN", raising=False)

    assert isinstance(check_discord(), Unavailable)
    found = await called(open_runtime(), "discord", action="fetch_messages", channel_id="2")
    assert "toolcrib setup discord" in found["error"]
