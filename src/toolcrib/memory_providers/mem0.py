"""mem0: a service that extracts memories from conversations.

It is asked over HTTP: the official client needs an older protobuf than other extras, writes to the home folder when it
is imported, and reports its use to its maker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolcrib.web.hosted_service import ApiService, ServiceSpec
from toolcrib.web.http_client import GuardedClient

SPEC = ServiceSpec("mem0", "https://api.mem0.ai", ("MEM0_API_KEY",), "MEM0_BASE_URL")
SECONDS = 30.0
MAX_ANSWER_BYTES = 8_000_000
RECALLED = 8
MAX_MESSAGE_CHARS = 24_000
_TEXT = {"type": "string", "minLength": 1}
_ID = {**_TEXT, "description": "The id of the memory, from mem0_search"}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "mem0_search",
        "description": "Search the memories about the user.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {**_TEXT, "description": "What to search for"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
            },
            "required": ["query"],
        },
    },
    {
        "name": "mem0_add",
        "description": "Remember something about the user.",
        "parameters": {
            "type": "object",
            "properties": {"content": {**_TEXT, "description": "What to remember, in a sentence"}},
            "required": ["content"],
        },
    },
    {
        "name": "mem0_update",
        "description": "Correct a memory.",
        "parameters": {
            "type": "object",
            "properties": {"memory_id": _ID, "content": {**_TEXT, "description": "What is right, in a sentence"}},
            "required": ["memory_id", "content"],
        },
    },
    {
        "name": "mem0_delete",
        "description": "Forget a memory.",
        "parameters": {"type": "object", "properties": {"memory_id": _ID}, "required": ["memory_id"]},
    },
]


class Mem0Memory:
    """The memory of mem0; see `MemoryProvider` in the compatibility package for what each method is for."""

    name = "mem0"

    def __init__(self, environ: Mapping[str, str], client: Callable[[], GuardedClient]) -> None:
        self._user = environ.get("MEM0_USER_ID") or environ.get("USER") or "user"
        access = SPEC.access(client, "mem0")
        if access is not None:
            access = msgspec.structs.replace(access, seconds=SECONDS, max_bytes=MAX_ANSWER_BYTES)
        self._service = None if access is None else ApiService(access)

    @property
    def host(self) -> str:
        return self._service.host if self._service is not None else ""

    def is_available(self) -> bool:
        return self._service is not None

    def missing(self) -> str:
        return "" if self._service is not None else "MEM0_API_KEY is not set; run `toolcrib setup mem0`"

    def get_config_schema(self) -> list[dict[str, Any]]:
        return [
            {
                "key": "api_key",
                "description": "The key of your mem0 account",
                "secret": True,
                "required": True,
                "env_var": "MEM0_API_KEY",
                "url": "https://app.mem0.ai/dashboard/api-keys",
            }
        ]

    def initialize(self, session_id: str, **_: Any) -> None:
        """Nothing to do: the service knows users, not sessions."""

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return TOOLS

    async def prefetch(self, query: str, *, session_id: str = "") -> str:
        found = await self._search(query[:2_000], RECALLED)
        return "\n".join(f"- {one['memory']}" for one in found)

    async def sync_turn(self, user_content: str, assistant_content: str, *, session_id: str = "", **_: Any) -> None:
        said = [("user", user_content), ("assistant", assistant_content)]
        messages = [{"role": role, "content": text[:MAX_MESSAGE_CHARS]} for role, text in said if text.strip()]
        if messages:
            await self._send("POST", "/v3/memories/add/", {"messages": messages, "user_id": self._user})

    async def handle_tool_call(self, tool_name: str, args: dict[str, Any], **_: Any) -> str:
        result: Any = "done"
        if tool_name == "mem0_search":
            result = await self._search(str(args["query"]), int(args.get("limit") or 10))
        elif tool_name == "mem0_add":
            messages = [{"role": "user", "content": str(args["content"])}]
            await self._send("POST", "/v3/memories/add/", {"messages": messages, "user_id": self._user})
        elif tool_name == "mem0_update":
            await self._send("PUT", f"/v1/memories/{_id(args)}/", {"text": str(args["content"])})
        else:
            await self._send("DELETE", f"/v1/memories/{_id(args)}/", None)
        return json.dumps({"success": True, "result": result}, ensure_ascii=False)

    def on_session_end(self, messages: list[dict[str, Any]]) -> None:
        """Nothing to do: every turn is there already."""

    def shutdown(self) -> None:
        """Nothing to do: no connection stays open."""

    async def _search(self, query: str, limit: int) -> list[dict[str, str]]:
        body = {"query": query, "filters": {"user_id": self._user}, "top_k": limit}
        answer = await self._send("POST", "/v3/memories/search/", body)
        assert self._service is not None
        found: list[dict[str, str]] = self._service.read(_memories, answer)
        return found[:limit]

    async def _send(self, method: str, path: str, body: Any) -> Any:
        assert self._service is not None
        access = self._service.access
        headers = {"authorization": f"Token {access.key}", "content-type": "application/json"}
        response = await access.send(method, path, headers, b"" if body is None else json.dumps(body).encode())
        return access.parse(response) if response.body.strip() else {}


def _memories(answer: Any) -> list[dict[str, str]]:
    listed = answer["results"] if isinstance(answer, dict) else answer
    return [{"id": str(one["id"]), "memory": str(one["memory"])} for one in listed]


def _id(args: dict[str, Any]) -> str:
    return "".join(one for one in str(args["memory_id"]) if one.isalnum() or one in "-_")
