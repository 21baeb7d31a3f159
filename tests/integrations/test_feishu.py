"""The tools for Feishu, called as a model calls them, against a server by its Open API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.media.services import KEY, Asking, OpenMedia, as_json, called
from tests.web.sites import Site
from toolcrib.core.types import Unavailable
from toolcrib.tools.feishu import check_feishu

LOGIN = "/open-apis/auth/v3/tenant_access_token/internal"
REPLY = {
    "reply_id": "r1",
    "user_id": "u1",
    "content": {"elements": [{"type": "text_run", "text_run": {"text": "Yes"}}]},
}
COMMENT = {"comment_id": "c1", "quote": "Plan", "reply_list": {"replies": [REPLY]}}
FILES = "/open-apis/drive/v1/files"
CALLS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "feishu_doc_read": ("/open-apis/docx/v1/documents/abc/raw_content", {"content": "Hello"}, {"doc_token": "abc"}),
    "feishu_drive_list_comments": (
        f"{FILES}/abc/comments",
        {"items": [COMMENT], "has_more": True, "page_token": "p2"},
        {"file_token": "abc", "is_whole": True},
    ),
    "feishu_drive_list_comment_replies": (
        f"{FILES}/abc/comments/c1/replies",
        {"items": [REPLY], "has_more": False},
        {"file_token": "abc", "comment_id": "c1"},
    ),
    "feishu_drive_reply_comment": (
        f"{FILES}/abc/comments/c1/replies",
        {"reply_id": "r2"},
        {"file_token": "abc", "comment_id": "c1", "content": "Done"},
    ),
    "feishu_drive_add_comment": (
        f"{FILES}/abc/new_comments",
        {"comment_id": "c2"},
        {"file_token": "abc", "content": "Nice"},
    ),
}
WRITES = ("feishu_drive_reply_comment", "feishu_drive_add_comment")


@pytest.fixture
def feishu(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("FEISHU_APP_ID", "app")
    monkeypatch.setenv("FEISHU_APP_SECRET", KEY)
    monkeypatch.setenv("FEISHU_BASE_URL", site.address)
    site.pages[LOGIN] = as_json({"code": 0, "tenant_access_token": "t-1", "expire": 7200})
    return site


@pytest.mark.parametrize("tool", CALLS)
async def test_each_tool_asks_its_route(open_runtime: OpenMedia, feishu: Site, tool: str, asking: Asking) -> None:
    """With a token for the app; a comment that others see needs approval."""
    path, data, arguments = CALLS[tool]
    feishu.pages[path] = as_json({"code": 0, "data": data})

    found = await called(open_runtime(), tool, **arguments)

    assert found["success"] is True, found
    login, asked = feishu.requests
    assert json.loads(login.body) == {"app_id": "app", "app_secret": KEY}
    assert asked.path.partition("?")[0] == path
    assert asked.headers["authorization"] == "Bearer t-1"
    assert KEY not in str(asked.headers)
    assert bool(asking.requests) == (tool in WRITES)


async def test_comments_come_with_their_replies_and_the_next_page(open_runtime: OpenMedia, feishu: Site) -> None:
    path, data, arguments = CALLS["feishu_drive_list_comments"]
    feishu.pages[path] = as_json({"code": 0, "data": data})

    found = await called(open_runtime(), "feishu_drive_list_comments", **arguments)

    assert found["comments"][0]["replies"] == [{"reply_id": "r1", "user_id": "u1", "text": "Yes"}]
    assert found["next_page_token"] == "p2"
    assert "is_whole=true" in feishu.requests[1].path


@pytest.mark.parametrize(
    ("code", "sentence"), [(10014, "refused the key in"), (99991400, "request limit"), (1770032, "shared with the app")]
)
async def test_feishu_tells_failures_in_its_answer(
    open_runtime: OpenMedia, feishu: Site, code: int, sentence: str
) -> None:
    path, _, arguments = CALLS["feishu_doc_read"]
    feishu.pages[path] = as_json({"code": code, "msg": KEY})

    assert sentence in (await called(open_runtime(), "feishu_doc_read", **arguments))["error"]


async def test_odd_arguments_and_missing_keys_are_refused_before_anything_is_sent(
    open_runtime: OpenMedia, feishu: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = open_runtime()

    assert "doc_token" in (await called(runtime, "feishu_doc_read", doc_token="a/../b"))["error"]
    odd = {"file_token": "a", "comment_id": "../c", "content": "x"}
    assert "comment_id" in (await called(runtime, "feishu_drive_reply_comment", **odd))["error"]
    monkeypatch.delenv("FEISHU_APP_ID")
    assert isinstance(check_feishu(), Unavailable)
    assert "toolcrib setup feishu_doc_read" in (await called(runtime, "feishu_doc_read", doc_token="abc"))["error"]
    assert not feishu.requests
