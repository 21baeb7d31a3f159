"""The callbacks that servers get by default: sampling, elicitation, roots, the stored login, resources and prompts."""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import re
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp_types import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    BlobResourceContents,
    ErrorData,
    ListRootsResult,
    Prompt,
    Resource,
    ResourceTemplate,
    Root,
)
from msgspec.structs import replace
from pydantic import FileUrl

from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.ports import Gate
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.callbacks import ClientCallbacks
from toolcrib.mcp.client.connection import MAX_PAGES, Connection
from toolcrib.mcp.client.elicitation import ElicitationHandler
from toolcrib.mcp.client.oauth import stored_login
from toolcrib.mcp.client.results import SaveBlob, convert_prompt, convert_resource
from toolcrib.mcp.client.sampling import SamplingHandler
from toolcrib.mcp.client.servers import Server, is_tool_enabled
from toolcrib.mcp.client.supervisor import ServerRequest
from toolcrib.mcp.client.tool_registrar import McpTool
from toolcrib.mcp.client.untrusted_text import one_line, shown
from toolcrib.mcp.names import ToolOrigin, component


def default_callbacks(
    settings: Settings,
    *,
    workspace: str,
    gate: Gate | None,
    services: Callable[[], Services | None],
    run: RunRequest,
) -> ClientCallbacks:
    """The callbacks for the servers of one runtime; `run` is `McpClientManager.run`."""
    sampling = SamplingHandler(settings, services, gate)
    return ClientCallbacks(
        sampling=sampling.callback,
        sampling_capabilities=sampling.capabilities,
        elicitation=lambda server, contexts: ElicitationHandler(server, contexts, services),
        roots=lambda server, _: RootsHandler(server, workspace),
        auth=lambda server, _: stored_login(server, settings.home),
        extra_tools=lambda server, connection: feature_tools(server, connection, run, settings.home.results_dir),
        close=sampling.close,
    )


class RootsHandler:
    """Tells a server which folders it may work in; the SDK's `list_roots_callback`."""

    def __init__(self, server: Server, workspace: str) -> None:
        self._configured = server.settings.roots
        self._workspace = workspace

    async def __call__(self, context: ClientRequestContext) -> ListRootsResult | ErrorData:
        try:
            return ListRootsResult(roots=[_root(folder) for folder in root_folders(self._configured, self._workspace)])
        except (ValueError, RuntimeError):
            return ErrorData(code=INTERNAL_ERROR, message="the folders cannot be expressed as URLs")


def root_folders(configured: list[str], workspace: str) -> list[Path]:
    """The configured folders, absolute and without duplicates, or the workspace if there are none.

    Relative folders start at the workspace; they are skipped if it is gone (an empty string).
    """
    base = [Path(workspace)] if workspace else []
    if not configured:
        return base
    folders = [Path(text).expanduser() for text in configured if text]
    reachable = [folder for folder in folders if folder.is_absolute() or base]
    return list(dict.fromkeys(Path(os.path.normpath(Path(workspace, folder))) for folder in reachable))


def _root(folder: Path) -> Root:
    # A name that is not valid text on this machine works in the URL but cannot be displayed.
    name = folder.name.encode("utf-8", "replace").decode()
    return Root(uri=FileUrl(folder.as_uri()), name=name or None)


if TYPE_CHECKING:
    from toolcrib.mcp.client.direct_calls import ProgressCallback

MAX_ENTRIES = 1000
"""Per list."""
MAX_TEXT_CHARS = 300
MAX_ADDRESS_CHARS = 2000
MAX_ARGUMENTS = 50
MAX_SAVED_BYTES = 200_000_000
"""Of all saved files together; a single one has at most 10 MB."""
SAVED_PREFIX = "resource-"
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}$")

FeatureRequest = Callable[[Client, JsonObject, SaveBlob], Awaitable[str | JsonObject]]
RunRequest = Callable[[str, ServerRequest, ToolContext], Awaitable[str | JsonObject]]
"""Runs a request on the connection of a server; every failure becomes an error result."""
T = TypeVar("T")


class ListPage(Protocol):
    """One page of a list."""

    next_cursor: str | None


P = TypeVar("P", bound=ListPage)


class ServerFeature(msgspec.Struct, frozen=True):
    """One way to ask a server for a resource or prompt."""

    description: str
    schema: JsonObject
    request: FeatureRequest


def feature_tools(
    server: Server, connection: Connection, run: RunRequest, results_dir: Path
) -> list[tuple[McpTool, FeatureHandler]]:
    """The tools for a server's resources and prompts, if it has any and the config allows them."""
    can, enabled = connection.client.server_capabilities, server.settings.tools
    kinds = ["list resources", "read resource"] if can.resources is not None and enabled.resources else []
    kinds += ["list prompts", "get prompt"] if can.prompts is not None and enabled.prompts else []
    # `include` names only the server's own tools.
    enabled = replace(enabled, include=[])
    return [
        (_feature_tool(server, kind), FeatureHandler(run, results_dir, server.name, kind))
        for kind in kinds
        if is_tool_enabled(component(kind), enabled)
    ]


def _feature_tool(server: Server, kind: str) -> McpTool:
    feature = FEATURES[kind]
    return McpTool(
        # The space keeps it apart from a server's own tool of that name; the registered name is the same either way.
        origin=ToolOrigin(server.name, kind),
        description=feature.description,
        schema=feature.schema,
        reads_only=True,
        is_ours=True,
    )


class FeatureHandler(msgspec.Struct, frozen=True):
    """Asks a server for a resource or prompt. Equal handlers ask the same server for the same thing."""

    run: RunRequest
    results_dir: Path
    server: str
    kind: str

    async def __call__(self, arguments: JsonObject, ctx: ToolContext) -> str | JsonObject:
        send, folder = FEATURES[self.kind].request, self.results_dir

        def save(blob: BlobResourceContents) -> str:
            return save_blob(blob, folder)

        async def request(connection: Connection, seconds: float, _: ProgressCallback | None) -> str | JsonObject:
            return await connection.ask(lambda client: send(client, arguments, save), seconds)

        return await self.run(self.server, request, ctx)


# Requests


async def list_resources(client: Client, _: JsonObject, __: SaveBlob) -> str:
    resources, more = await list_all(lambda at: client.list_resources(cursor=at), lambda page: page.resources)
    try:
        templates, more_templates = await list_all(
            lambda at: client.list_resource_templates(cursor=at), lambda page: page.resource_templates
        )
    except MCPError as error:
        if error.code != METHOD_NOT_FOUND:
            raise
        # Many servers have resources but do not know templates.
        templates, more_templates = [], False
    answer: JsonObject = {"resources": [_resource(one) for one in resources]}
    if templates:
        answer["templates"] = [_template(one) for one in templates]
    return _answer(answer, more or more_templates)


async def read_resource(client: Client, arguments: JsonObject, save: SaveBlob) -> str | JsonObject:
    return convert_resource(await client.read_resource(arguments["uri"]), save)


async def list_prompts(client: Client, _: JsonObject, __: SaveBlob) -> str:
    prompts, more = await list_all(lambda at: client.list_prompts(cursor=at), lambda page: page.prompts)
    return _answer({"prompts": [_prompt(one) for one in prompts]}, more)


async def get_prompt(client: Client, arguments: JsonObject, save: SaveBlob) -> str | JsonObject:
    return convert_prompt(await client.get_prompt(arguments["name"], arguments.get("arguments") or None), save)


async def list_all(
    fetch: Callable[[str | None], Awaitable[P]], entries: Callable[[P], list[T]]
) -> tuple[list[T], bool]:
    """The entries of all pages, up to a limit, and whether there are more."""
    found: list[T] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        page = await fetch(cursor)
        found += entries(page)
        cursor = page.next_cursor
        # A server that repeats a page has nothing more.
        if not cursor or cursor in seen:
            return found[:MAX_ENTRIES], len(found) > MAX_ENTRIES
        if len(found) >= MAX_ENTRIES:
            break
        seen.add(cursor)
    return found[:MAX_ENTRIES], True


# Descriptions for the model


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
    """Text that the model must send back unchanged; only hidden characters are escaped."""
    line = shown(text)
    return line if len(line) <= MAX_ADDRESS_CHARS else line[: MAX_ADDRESS_CHARS - 1] + "…"


def _text(text: str | None) -> str:
    return one_line(text, MAX_TEXT_CHARS) if text else ""


def _known(**values: Any) -> JsonObject:
    return {key: value for key, value in values.items() if value not in (None, "", [])}


def _answer(answer: JsonObject, is_cut: bool) -> str:
    if is_cut:
        answer["left_out"] = f"the server lists more than {MAX_ENTRIES} entries; only the first ones are included"
    return json.dumps(answer, ensure_ascii=False)


def save_blob(blob: BlobResourceContents, folder: Path) -> str:
    """Save a resource to a file that only its owner can read; raises ValueError for invalid base64."""
    data = base64.b64decode(blob.blob, validate=True)
    kind = (blob.mime_type or "").partition(";")[0].strip().lower()
    named = _SUFFIX.search(blob.uri)
    suffix = named[0] if named else mimetypes.guess_extension(kind) or ".bin"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _make_room(folder, len(data))
    path = folder / f"{SAVED_PREFIX}{secrets.token_hex(8)}{suffix}"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    return str(path)


def _make_room(folder: Path, wanted: int) -> None:
    """Delete the oldest saved files, so that a server cannot fill the disk."""
    files = [
        (stat.st_mtime_ns, stat.st_size, path) for path in folder.glob(f"{SAVED_PREFIX}*") if (stat := path.stat())
    ]
    total = wanted + sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= MAX_SAVED_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= size


_NOTHING: JsonObject = {"type": "object", "properties": {}}
_URI: JsonObject = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "As listed, or a filled-in template"}},
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
FEATURES = {
    "list resources": ServerFeature("List the resources of this server and their URIs", _NOTHING, list_resources),
    "read resource": ServerFeature("Read a resource of this server", _URI, read_resource),
    "list prompts": ServerFeature("List the prompts of this server and their arguments", _NOTHING, list_prompts),
    "get prompt": ServerFeature("Get a prompt of this server, filled in", _PROMPT, get_prompt),
}
