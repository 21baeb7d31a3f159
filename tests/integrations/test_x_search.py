"""`x_search`, called as a model calls it, against a server by xAI's API."""

from __future__ import annotations

import json

import pytest

from tests.media.services import KEY, OpenMedia, as_json, called
from tests.web.sites import Site
from toolcrib.core.types import Unavailable
from toolcrib.tools.x_search import check_x

ANSWER = {
    "output": [
        {"type": "x_search_call"},
        {
            "type": "message",
            "content": [
                {
                    "type": "output_text",
                    "text": "They launched it.",
                    "annotations": [{"type": "url_citation", "url": "https://x.com/a/status/1"}],
                }
            ],
        },
    ]
}


@pytest.fixture
def x(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("XAI_API_KEY", KEY)
    monkeypatch.setenv("XAI_BASE_URL", site.address)
    site.pages["/responses"] = as_json(ANSWER)
    return site


async def test_an_answer_comes_with_its_posts(open_runtime: OpenMedia, x: Site) -> None:
    """Handles and dates are sent as xAI takes them."""
    found = await called(
        open_runtime(), "x_search", query="What was launched?", allowed_x_handles=["@a"], from_date="2026-11-01"
    )

    assert found["answer"] == "They launched it."
    assert found["citations"] == [{"url": "https://x.com/a/status/1"}]
    sent = json.loads(x.requests[0].body)
    assert sent["tools"] == [{"type": "x_search", "allowed_x_handles": ["a"], "from_date": "2026-11-01"}]
    assert x.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_odd_arguments_are_refused_before_anything_is_sent(open_runtime: OpenMedia, x: Site) -> None:
    runtime = open_runtime()

    both = await called(runtime, "x_search", query="q", allowed_x_handles=["a"], excluded_x_handles=["b"])
    assert "not both" in both["error"]
    assert "2026-11-30" in (await called(runtime, "x_search", query="q", from_date="yesterday"))["error"]
    assert "no handle" in (await called(runtime, "x_search", query="q", allowed_x_handles=["a b"]))["error"]
    assert not x.requests


async def test_a_search_costs_money_and_needs_a_key(open_runtime: OpenMedia, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XAI_API_KEY", raising=False)
    monkeypatch.delenv("XAI_BASE_URL", raising=False)
    assert isinstance(check_x(), Unavailable)
    assert "toolcrib setup x_search" in (await called(open_runtime(), "x_search", query="q"))["error"]
    monkeypatch.setenv("XAI_API_KEY", KEY)

    effects = open_runtime().services.post_search.effects()

    assert [effect.kind for effect in effects] == ["network", "spend"]
