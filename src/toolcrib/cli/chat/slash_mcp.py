"""The slash command for MCP servers: how they are, and what to do about them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolcrib.cli.chat.slash import Chat, SlashCommand, table
from toolcrib.cli.output import one_line, plural
from toolcrib.core.errors import UsageError

if TYPE_CHECKING:
    from toolcrib.mcp.status import ServerStatus

RELOAD, RECONNECT = "reload", "reconnect"
NO_SERVERS = "No MCP server is configured; `toolcrib mcp add` adds one, and /mcp reload starts it."
STATES = {"waiting": "waiting to retry", "needs_login": "needs login"}
RECONNECT_SECONDS = 10.0


async def mcp(chat: Chat, rest: str) -> None:
    verb, _, name = rest.partition(" ")
    if verb == RELOAD and not name:
        await chat.host.servers.reload()
        await chat.host.servers.wait()
    elif verb == RECONNECT and name.strip():
        await _reconnect(chat, name.strip())
    elif rest:
        raise UsageError("type /mcp, /mcp reload or /mcp reconnect NAME")
    await _show(chat)


async def _reconnect(chat: Chat, name: str) -> None:
    hub = chat.host.runtime.mcp
    before = {status.name: status.since for status in hub.servers()}
    # It waits for what goes on in a thread of its own, and this one draws the screen.
    await asyncio.to_thread(hub.reconnect, name)
    end = asyncio.get_running_loop().time() + RECONNECT_SECONDS
    while asyncio.get_running_loop().time() < end:
        [status] = [one for one in hub.servers() if one.name == name]
        if status.state != "starting" and status.since != before.get(name):
            return
        await asyncio.sleep(0.05)


async def _show(chat: Chat) -> None:
    servers = _servers(chat)
    if not servers:
        chat.screen.say(NO_SERVERS)
        return
    hub = chat.host.runtime.mcp
    rows = [(one.name, STATES.get(one.state, one.state), _about(one, len(hub.tool_names(one.name)))) for one in servers]
    chat.screen.front.show(table(rows, heading=("server", "state", "")), gap=True)
    chat.screen.note("/mcp reload reads the config again; /mcp reconnect NAME connects one anew.")


def _about(one: ServerStatus, offered: int) -> str:
    if one.state != "ready":
        return one_line(one.last_error) or "-"
    hidden = f", {len(one.set_aside)} not offered" if one.set_aside else ""
    return f"{plural(offered, 'tool')}{hidden}, {one.transport}, protocol {one.protocol_version}"


def _servers(chat: Chat) -> list[ServerStatus]:
    """How the servers are; without any, nothing of MCP is loaded."""
    return chat.host.runtime.mcp.servers() if chat.host.servers.are_configured else []


def complete(chat: Chat) -> Iterable[str]:
    return [RELOAD, *(f"{RECONNECT} {one.name}" for one in _servers(chat))]


COMMANDS = (
    SlashCommand(
        name="mcp",
        arguments="[reload | reconnect NAME]",
        summary="MCP servers, and how each is",
        run=mcp,
        while_working=True,
        complete=complete,
    ),
)
