"""What a server offers besides tools, as tools: its resources and its prompts, to be listed and read."""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from mcp import Client, MCPError
from mcp_types import METHOD_NOT_FOUND, BlobResourceContents, Prompt, Resource, ResourceTemplate

from toolcrib.core.context import ToolContext
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.callbacks import HubSide
from toolcrib.mcp.client.connection import MAX_PAGES, Connection
from toolcrib.mcp.client.results import SaveBlob, converted_prompt, converted_resource
from toolcrib.mcp.client.servers import Server, is_wanted
from toolcrib.mcp.client.tool_registrar import Offered
from toolcrib.mcp.client.untrusted_text import one_line, shown
from toolcrib.mcp.names import Original, component

if TYPE_CHECKING:
    from toolcrib.mcp.client.direct_calls import Tell

MAX_ENTRIES = 1000
"""Of one list."""
MAX_TEXT_CHARS = 300
MAX_ADDRESS_CHARS = 2000
MAX_ARGUMENTS = 50
MAX_SAVED_BYTES = 200_000_000
"""Of all files that were saved; one has 10 MB at most."""
SAVED = "resource-"
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}$")

Asking = Callable[[Client, JsonObject, SaveBlob], Awaitable[str | JsonObject]]
T = TypeVar("T")


class Page(Protocol):
    """One part of a list."""

    next_cursor: str | None


P = TypeVar("P", bound=Page)


class Offer(msgspec.Struct, frozen=True):
    """One way to ask a server for something."""

    description: str
    schema: JsonObject
    asking: Asking


def more_tools(hub: HubSide, server: Server, connection: Connection) -> list[tuple[Offered, OfferCall]]:
    """The tools for the resources and prompts of a server, as far as it has any and the config wants them."""
    can, wanted = connection.client.server_capabilities, server.settings.tools
    kinds = ["list resources", "read resource"] if can.resources is not None and wanted.resources else []
    kinds += ["list prompts", "get prompt"] if can.prompts is not None and wanted.prompts else []
    # What `include` names are tools of the server itself.
    wanted = replace(wanted, include=[])
    return [
        (_offered(server, kind), OfferCall(hub, server.name, kind))
        for kind in kinds
        if is_wanted(component(kind), wanted)
    ]


def _offered(server: Server, kind: str) -> Offered:
    offer = OFFERS[kind]
    return Offered(
        # With the space it is not the name that a tool of the server may well have; ours is made from it all the same.
        original=Original(server.name, kind),
        description=offer.description,
        schema=offer.schema,
        reads_only=True,
        is_ours=True,
    )


class OfferCall(msgspec.Struct, frozen=True):
    """Asks a server for one thing that it offers. Equal ones ask the same server for the same."""

    hub: HubSide
    server: str
    kind: str

    async def __call__(self, arguments: JsonObject, ctx: ToolContext) -> str | JsonObject:
        asking, folder = OFFERS[self.kind].asking, self.hub.settings.home.results_dir

        def save(blob: BlobResourceContents) -> str:
            return saved(blob, folder)

        async def work(connection: Connection, seconds: float, _: Tell | None) -> str | JsonObject:
            return await connection.ask(lambda client: asking(client, arguments, save), seconds)

        return await self.hub.do(self.server, work, ctx)


# What is asked


async def list_resources(client: Client, _: JsonObject, __: SaveBlob) -> str:
    resources, more = await whole_list(lambda at: client.list_resources(cursor=at), lambda page: page.resources)
    try:
        templates, more_templates = await whole_list(
            lambda at: client.list_resource_templates(cursor=at), lambda page: page.resource_templates
        )
    except MCPError as error:
        if error.code != METHOD_NOT_FOUND:
            raise
        # Many servers have resources, and have never heard of templates.
        templates, more_templates = [], False
    answer: JsonObject = {"resources": [_resource(one) for one in resources]}
    if templates:
        answer["templates"] = [_template(one) for one in templates]
    return _answer(answer, more or more_templates)


async def read_resource(client: Client, arguments: JsonObject, save: SaveBlob) -> str | JsonObject:
    return converted_resource(await client.read_resource(arguments["uri"]), save)


async def list_prompts(client: Client, _: JsonObject, __: SaveBlob) -> str:
    prompts, more = await whole_list(lambda at: client.list_prompts(cursor=at), lambda page: page.prompts)
    return _answer({"prompts": [_prompt(one) for one in prompts]}, more)


async def get_prompt(client: Client, arguments: JsonObject, save: SaveBlob) -> str | JsonObject:
    return converted_prompt(await client.get_prompt(arguments["name"], arguments.get("arguments") or None), save)


async def whole_list(
    fetch: Callable[[str | None], Awaitable[P]], entries: Callable[[P], list[T]]
) -> tuple[list[T], bool]:
    """What stands on all pages, up to a limit, and whether there is more."""
    found: list[T] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        page = await fetch(cursor)
        found += entries(page)
        cursor = page.next_cursor
        # A server that gives the same page again and again has no more than that.
        if not cursor or cursor in seen:
            return found[:MAX_ENTRIES], len(found) > MAX_ENTRIES
        if len(found) >= MAX_ENTRIES:
            break
        seen.add(cursor)
    return found[:MAX_ENTRIES], True


# How it is told


def _resource(one: Resource) -> JsonObject:
    return _known(uri=_address(one.uri), **_about(one), size=one.size)


def _template(one: ResourceTemplate) -> JsonObject:
    return _known(uriTemplate=_address(one.uri_template), **_about(one))


def _about(one: Resource | ResourceTemplate) -> JsonObject:
    return {
        "name": _text(one.name),
        "title": _text(one.title),
        "description": _text(one.description),
        "mimeType": _text(one.mime_type),
    }


def _prompt(one: Prompt) -> JsonObject:
    arguments = [
        _known(name=_address(each.name), description=_text(each.description), required=each.required or None)
        for each in (one.arguments or [])[:MAX_ARGUMENTS]
    ]
    name, title, description = _address(one.name), _text(one.title), _text(one.description)
    return _known(name=name, title=title, description=description, arguments=arguments)


def _address(text: str) -> str:
    """What is to be given back as it is; nothing may be changed but what is hidden in it."""
    line = shown(text)
    return line if len(line) <= MAX_ADDRESS_CHARS else line[: MAX_ADDRESS_CHARS - 1] + "…"


def _text(text: str | None) -> str:
    return one_line(text, MAX_TEXT_CHARS) if text else ""


def _known(**values: Any) -> JsonObject:
    return {key: value for key, value in values.items() if value not in (None, "", [])}


def _answer(answer: JsonObject, is_cut: bool) -> str:
    if is_cut:
        answer["left_out"] = f"the server lists more than {MAX_ENTRIES}; only the first are here"
    return json.dumps(answer, ensure_ascii=False)


def saved(blob: BlobResourceContents, folder: Path) -> str:
    """Writes the bytes of a resource to a file that only its owner reads; raises ValueError for what is no base64."""
    data = base64.b64decode(blob.blob, validate=True)
    kind = (blob.mime_type or "").partition(";")[0].strip().lower()
    named = _SUFFIX.search(blob.uri)
    suffix = named[0] if named else mimetypes.guess_extension(kind) or ".bin"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _make_room(folder, len(data))
    path = folder / f"{SAVED}{secrets.token_hex(8)}{suffix}"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    return str(path)


def _make_room(folder: Path, wanted: int) -> None:
    """Removes the oldest of what was saved here, so that a server cannot fill the disk."""
    files = [(stat.st_mtime_ns, stat.st_size, path) for path in folder.glob(f"{SAVED}*") if (stat := path.stat())]
    total = wanted + sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= MAX_SAVED_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= size


_NOTHING: JsonObject = {"type": "object", "properties": {}}
_URI: JsonObject = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "As listed, or a template filled in"}},
    "required": ["uri"],
}
_PROMPT: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "As listed"},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["name"],
}
OFFERS = {
    "list resources": Offer("Lists what can be read from this server, by uri", _NOTHING, list_resources),
    "read resource": Offer("Reads a resource of this server", _URI, read_resource),
    "list prompts": Offer("Lists the prompts of this server and their arguments", _NOTHING, list_prompts),
    "get prompt": Offer("Gets a prompt of this server, filled in", _PROMPT, get_prompt),
}
