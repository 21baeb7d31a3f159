"""The service behind `x_search`: a model of xAI searches posts on X and answers from them.

https://docs.x.ai/docs/guides/tools/search-tools
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Any

import msgspec

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.registry.results import sendable, tool_error, tool_result
from toolcrib.web.hosted_service import ApiService, ServiceSpec
from toolcrib.web.http_client import GuardedClient
from toolcrib.web.provider_access import seconds_left

SPEC = ServiceSpec("xAI", "https://api.x.ai/v1", ("XAI_API_KEY",), "XAI_BASE_URL")
MODEL = "grok-4-fast"
SECONDS = 120.0
MAX_HANDLES = 10
MAX_CITATIONS = 50
_HANDLE = re.compile(r"[A-Za-z0-9_]{1,15}")


class PostSearchFailed(ToolcribError):
    """A search that cannot be made; the message says why and what to do."""


class PostSearchService:
    """Searches posts on X."""

    def __init__(self, client: Callable[[], GuardedClient]) -> None:
        self._client = client

    def effects(self) -> tuple[Effect, ...]:
        """The host of xAI, and what a search costs."""
        service = self._service(SECONDS)
        if service is None:
            return ()
        network = Effect("network", service.host)
        if service.is_free:
            return (network,)
        return (network, Effect("spend", f"a few cents for a search by {MODEL} at {service.display_name}"))

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """`x_search`."""
        seconds = seconds_left(SECONDS, ctx)
        try:
            return sendable(tool_result(await self._search(args, seconds)))
        except ToolcribError as error:
            return tool_error(error, success=False)

    async def _search(self, args: JsonObject, seconds: float) -> JsonObject:
        service, query = self._service(seconds), str(args.get("query") or "").strip()
        if service is None:
            raise PostSearchFailed("XAI_API_KEY is not set; run `toolcrib setup x_search`")
        if not query:
            raise PostSearchFailed("the query is empty; say in `query` what to search for")
        body = {"model": MODEL, "input": [{"role": "user", "content": query}], "tools": [_tool(args)]}
        answer = await service.access.post_json("/responses", body, service.bearer)
        text, citations = service.read(_read, answer)
        result: JsonObject = {"success": True, "answer": text, "citations": citations, "model": MODEL}
        if not text:
            result["note"] = "nothing was found; try other words or dates"
        return result

    def _service(self, seconds: float) -> ApiService | None:
        access = SPEC.access(self._client, "x_search")
        return None if access is None else ApiService(msgspec.structs.replace(access, seconds=seconds))


def _tool(args: JsonObject) -> JsonObject:
    """The search as xAI takes it; raises PostSearchFailed."""
    allowed, excluded = _handles(args, "allowed_x_handles"), _handles(args, "excluded_x_handles")
    if allowed and excluded:
        raise PostSearchFailed("pass either allowed_x_handles or excluded_x_handles, not both")
    given: JsonObject = {
        "type": "x_search",
        "allowed_x_handles": allowed,
        "excluded_x_handles": excluded,
        "from_date": _day(args, "from_date"),
        "to_date": _day(args, "to_date"),
        "enable_image_understanding": bool(args.get("enable_image_understanding")),
        "enable_video_understanding": bool(args.get("enable_video_understanding")),
    }
    return {name: value for name, value in given.items() if value}


def _handles(args: JsonObject, key: str) -> list[str]:
    given = args.get(key) or []
    listed = given.split(",") if isinstance(given, str) else list(given)
    handles = [str(one).strip().lstrip("@") for one in listed if str(one).strip()]
    wrong = [one for one in handles if not _HANDLE.fullmatch(one)]
    if wrong:
        raise PostSearchFailed(f"{wrong[0][:40]!r} in {key} is no handle on X")
    if len(handles) > MAX_HANDLES:
        raise PostSearchFailed(f"{key} has {len(handles)} handles; at most {MAX_HANDLES} are allowed")
    return handles


def _day(args: JsonObject, key: str) -> str:
    text = str(args.get(key) or "").strip()
    if not text:
        return ""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise PostSearchFailed(f"{key} is {text[:40]!r}; write it as 2026-11-30") from None


def _read(answer: Any) -> tuple[str, list[JsonObject]]:
    """The text of an answer and the posts that it names."""
    parts = [part for item in answer["output"] if item.get("type") == "message" for part in item["content"]]
    texts = [part["text"] for part in parts if part.get("type") == "output_text"]
    noted = [note for part in parts for note in part.get("annotations") or [] if note.get("url")]
    urls = [str(note["url"]) for note in noted] + [str(one) for one in answer.get("citations") or []]
    return "\n\n".join(texts).strip(), [{"url": url[:500]} for url in list(dict.fromkeys(urls))[:MAX_CITATIONS]]
