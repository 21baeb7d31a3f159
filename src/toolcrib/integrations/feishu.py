"""The service behind the `feishu_…` tools: documents and their comments, over the Open API of Feishu (Lark).

https://open.feishu.cn/document/server-docs/docs/docs-overview
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

import msgspec

from toolcrib.config.environment import environment
from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.web.hosted_service import ApiService, ServiceSpec
from toolcrib.web.http_client import GuardedClient
from toolcrib.web.provider_access import ProviderAccess, ProviderFailed, bounded

SPEC = ServiceSpec("Feishu", "https://open.feishu.cn", ("FEISHU_APP_SECRET",), "FEISHU_BASE_URL")
SECONDS = 20.0
ALL_SECONDS = SECONDS * 3
MAX_COMMENT_CHARS = 5_000
KEY_CODES = frozenset({10003, 10014, 99991661, 99991663, 99991664, 99991668, 99991677})
QUOTA_CODES = frozenset({99991400, 11232})
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,100}")


class FeishuFailed(ToolcribError):
    """A call that cannot be made; the message says why and what to do."""


class FeishuService:
    """The documents that the user's app may see."""

    def __init__(self, client: Callable[[], GuardedClient]) -> None:
        self._client = client

    async def read_document(self, args: JsonObject, ctx: ToolContext) -> str:
        """`feishu_doc_read`."""
        return await self._run(lambda app: app.read_document(_token(args, "doc_token")), ctx)

    async def list_comments(self, args: JsonObject, ctx: ToolContext) -> str:
        """`feishu_drive_list_comments`."""
        return await self._run(lambda app: app.list_comments(_token(args, "file_token"), _page(args)), ctx)

    async def list_replies(self, args: JsonObject, ctx: ToolContext) -> str:
        """`feishu_drive_list_comment_replies`."""
        return await self._run(lambda app: app.list_replies(_comment_path(args), _page(args)), ctx)

    async def reply(self, args: JsonObject, ctx: ToolContext) -> str:
        """`feishu_drive_reply_comment`."""
        return await self._run(lambda app: app.reply(_comment_path(args), _kind(args), _content(args)), ctx)

    async def add_comment(self, args: JsonObject, ctx: ToolContext) -> str:
        """`feishu_drive_add_comment`."""
        return await self._run(
            lambda app: app.add_comment(_token(args, "file_token"), _kind(args), _content(args)), ctx
        )

    def read_effects(self) -> tuple[Effect, ...]:
        app = self._app()
        return () if app is None else (Effect("network", app.host),)

    def write_effects(self, args: JsonObject, action: str) -> tuple[Effect, ...]:
        """A comment that others see."""
        target = str(args.get("file_token") or "")
        changed = Effect("remote", f"feishu:{target}", service="Feishu", action=action)
        return (*self.read_effects(), changed) if self._app() is not None else ()

    def _app(self) -> FeishuApp | None:
        access, app_id = SPEC.access(self._client, "feishu_doc_read"), environment().get("FEISHU_APP_ID", "").strip()
        if access is None or not access.key or not app_id:
            return None
        return FeishuApp(msgspec.structs.replace(access, seconds=SECONDS), app_id)

    async def _run(self, work: Callable[[FeishuApp], Awaitable[JsonObject]], ctx: ToolContext) -> str:
        return await bounded(self._with_app(work), ctx, ALL_SECONDS, "Feishu did not answer within {:g} seconds")

    async def _with_app(self, work: Callable[[FeishuApp], Awaitable[JsonObject]]) -> JsonObject:
        app = self._app()
        if app is None:
            raise FeishuFailed(
                "FEISHU_APP_ID and FEISHU_APP_SECRET are not both set; run `toolcrib setup feishu_doc_read`"
            )
        return {"success": True, **await work(app)}


class FeishuApp(ApiService):
    """One app, which gets a token for each call: nothing has to be kept or renewed."""

    name = "feishu"

    def __init__(self, access: ProviderAccess, app_id: str) -> None:
        super().__init__(access)
        self._app_id = app_id

    async def read_document(self, token: str) -> JsonObject:
        data = await self._ask("GET", f"/open-apis/docx/v1/documents/{token}/raw_content")
        return {"content": self.read(lambda value: str(value["content"]), data)}

    async def list_comments(self, token: str, options: JsonObject) -> JsonObject:
        data = await self._ask("GET", f"/open-apis/drive/v1/files/{token}/comments?{urlencode(options)}")
        return {"comments": self.read(lambda value: [_comment(one) for one in value["items"]], data), **_more(data)}

    async def list_replies(self, path: str, options: JsonObject) -> JsonObject:
        data = await self._ask("GET", f"/open-apis/drive/v1/files/{path}/replies?{urlencode(options)}")
        return {"replies": self.read(lambda value: [_reply(one) for one in value["items"]], data), **_more(data)}

    async def reply(self, path: str, kind: str, text: str) -> JsonObject:
        body = {"content": {"elements": [{"type": "text_run", "text_run": {"text": text}}]}}
        data = await self._ask("POST", f"/open-apis/drive/v1/files/{path}/replies?file_type={kind}", body)
        return {"reply_id": self.read(lambda value: str((value or {}).get("reply_id") or ""), data)}

    async def add_comment(self, token: str, kind: str, text: str) -> JsonObject:
        body = {"file_type": kind, "reply_elements": [{"type": "text", "text": text}]}
        data = await self._ask("POST", f"/open-apis/drive/v1/files/{token}/new_comments", body)
        return {"comment_id": self.read(lambda value: str((value or {}).get("comment_id") or ""), data)}

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """The data of an answer; raises ProviderFailed or FeishuFailed."""
        login = {"app_id": self._app_id, "app_secret": self.access.key}
        given = await self._post("/open-apis/auth/v3/tenant_access_token/internal", login, {})
        token = self.read(lambda value: str(value["tenant_access_token"]), given)
        headers = {"authorization": f"Bearer {token}"}
        answer = await (self._post(path, body, headers) if method == "POST" else self._get(path, headers))
        return self.read(lambda value: value.get("data"), answer)

    async def _post(self, path: str, body: Any, headers: dict[str, str]) -> Any:
        return self._checked(await self.access.post_json(path, body, headers))

    async def _get(self, path: str, headers: dict[str, str]) -> Any:
        return self._checked(await self.access.get_json(path, headers))

    def _checked(self, answer: Any) -> Any:
        """The answer, unless it says itself that it is a failure."""
        code = self.read(lambda value: value.get("code", 0), answer)
        if code in KEY_CODES:
            raise self.access.refused()
        if code in QUOTA_CODES:
            raise ProviderFailed(f"the request limit of {self.display_name} is reached; try again later", "quota")
        if code:
            raise FeishuFailed(
                f"Feishu did not accept the request (code {str(code)[:12]}); check the token, and whether the document "
                "is shared with the app"
            )
        return answer


def _comment(one: Any) -> JsonObject:
    replies = (one.get("reply_list") or {}).get("replies") or []
    return {
        "comment_id": str(one["comment_id"]),
        "quote": str(one.get("quote") or "")[:500],
        "is_solved": bool(one.get("is_solved")),
        "is_whole": bool(one.get("is_whole")),
        "replies": [_reply(reply) for reply in replies],
    }


def _reply(one: Any) -> JsonObject:
    elements = (one.get("content") or {}).get("elements") or []
    runs = (element.get("text_run") or element.get("docs_link") or element.get("person") or {} for element in elements)
    text = "".join(str(run.get("text") or run.get("url") or run.get("user_id") or "") for run in runs)
    return {
        "reply_id": str(one["reply_id"]),
        "user_id": str(one.get("user_id") or ""),
        "text": text[:MAX_COMMENT_CHARS],
    }


def _more(data: Any) -> JsonObject:
    return {"next_page_token": str(data.get("page_token") or "")} if data.get("has_more") else {}


def _token(args: JsonObject, key: str) -> str:
    text = str(args.get(key) or "").strip()
    if not _TOKEN.fullmatch(text):
        raise FeishuFailed(f"{key} is {text[:40]!r}; pass the letters and digits from the address of the document")
    return text


def _comment_path(args: JsonObject) -> str:
    return f"{_token(args, 'file_token')}/comments/{_token(args, 'comment_id')}"


def _kind(args: JsonObject) -> str:
    return str(args.get("file_type") or "docx")


def _page(args: JsonObject) -> JsonObject:
    options: JsonObject = {"file_type": _kind(args), "page_size": int(args.get("page_size") or 50)}
    if args.get("is_whole") is not None:
        options["is_whole"] = "true" if args["is_whole"] else "false"
    return {**options, "page_token": str(args["page_token"])} if args.get("page_token") else options


def _content(args: JsonObject) -> str:
    text = str(args.get("content") or "").strip()
    if not text or len(text) > MAX_COMMENT_CHARS:
        raise FeishuFailed(f"content must have between 1 and {MAX_COMMENT_CHARS} characters")
    return text
