"""Whatever a tool gives or declares, clients get something well formed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types.methods import serialize_server_result

from tests.mcp_serve.mcp_serving import ERAS, AddTool, MakeServer, serving
from toolcrib.core.types import ToolResult
from toolcrib.mcp.server.tools import MAX_MEDIA_CHARS, to_call_result

WILD_TEXT = st.text(st.characters(codec=None), max_size=20)
WILD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WILD_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WILD_TEXT, inner, max_size=3),
    max_leaves=10,
)
PARTS = st.lists(
    WILD
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image", "audio", "image_url", "input_audio"])},
        optional=dict.fromkeys(("text", "data", "mimeType", "image_url", "source", "input_audio", "media_type"), WILD),
    ),
    max_size=4,
)


def _sent(result: ToolResult) -> dict[str, Any]:
    """The result as it goes over the wire, in both eras."""
    made = to_call_result(result)
    made.model_dump_json()
    wire = made.model_dump(by_alias=True, mode="json", exclude_none=True)
    for version in ("2025-11-25", "2026-07-28"):
        json.dumps(serialize_server_result("tools/call", version, wire), allow_nan=False).encode()
    return wire


@given(WILD)
def test_any_json_text_can_be_sent(value: Any) -> None:
    """The text of a result stays as it is, whether or not it can be structured content too."""
    text = json.dumps(value)

    assert _sent(ToolResult(content=text))["content"] == [{"type": "text", "text": text}]


@given(PARTS)
def test_any_multimodal_result_can_be_sent(parts: list[Any]) -> None:
    """Parts that make no sense are left out or become text; none of them breaks the answer."""
    assert len(_sent(ToolResult(content={"_multimodal": True, "content": parts}))["content"]) <= len(parts)


@pytest.mark.parametrize(
    "text",
    ['{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"a": ' * 400 + "1" + "}" * 400, '{"a": 1} and more', "{", ""],
)
def test_what_is_no_plain_object_stays_text(text: str) -> None:
    """Numbers that JSON has no word for, half characters and endless nesting are left to the text."""
    sent = _sent(ToolResult(content=text))

    assert "structuredContent" not in sent
    assert sent["content"][0]["text"] == text


def test_media_is_bounded() -> None:
    """An image beyond the limit is replaced by a note; the rest of the result is sent."""
    huge = {"type": "image", "data": "A" * (MAX_MEDIA_CHARS + 4), "mimeType": "image/png"}
    content = {"_multimodal": True, "content": [huge, {"type": "text", "text": "after"}]}

    sent = _sent(ToolResult(content=content))["content"]

    assert [block["type"] for block in sent] == ["text", "text"]
    assert "too large" in sent[0]["text"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_bad_schema_costs_only_its_own_tool(make_server: MakeServer, add_tool: AddTool, era: str) -> None:
    """Tools whose schemas no client takes are left out of the list; a type that can be repaired is."""
    server, runtime = make_server()
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(140):
        deep = {"type": "object", "properties": {"a": deep}}
    for name, parameters in {
        "deep": deep,
        "listed_properties": {"type": "object", "properties": [1]},
        "text_required": {"type": "object", "properties": {}, "required": "x"},
        "nullable": {"type": ["object", "null"], "properties": {}},
        "untyped": {"properties": {"x": True}},
        "good": {"type": "object", "properties": {}},
    }.items():
        add_tool(runtime, name, lambda args, **_: "", schema={"description": "x", "parameters": parameters})

    async with serving(server) as web, web.client(era) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]

    assert names == ["good", "nullable", "untyped"]
