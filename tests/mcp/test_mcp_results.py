"""From what tools of servers answer to results."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.mcp.client.results import MAX_BLOCKS, MAX_MEDIA, MAX_MEDIA_CHARS, MAX_TEXT_CHARS, convert_result


def answer(*blocks: Any, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=list(blocks), **more)


def text(value: str) -> types.TextContent:
    return types.TextContent(text=value)


def image(data: str = "aGk=", kind: str = "image/png") -> types.ImageContent:
    return types.ImageContent(data=data, mime_type=kind)


def said(result: Any) -> str:
    shown = result if isinstance(result, str) else result["content"][0]["text"]
    found: str = json.loads(shown)["result"]
    return found


def test_several_texts_become_lines_of_one() -> None:
    """Texts are joined; a result without any is empty."""
    assert said(convert_result(answer(text("a"), text("b")))) == "a\nb"
    assert said(convert_result(answer())) == ""


def test_an_error_says_what_the_tool_said() -> None:
    """Or that it said nothing; images are of no use there."""
    assert json.loads(convert_result(answer(text("no"), image(), is_error=True))) == {"error": "no"}
    assert "without saying why" in json.loads(convert_result(answer(is_error=True)))["error"]


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (image("x" * (MAX_MEDIA_CHARS + 1)), "10 MB"),
        (image("not base64!"), "not valid base64"),
        (image(kind="image/svg+xml"), "no model supports this type"),
        (image(kind="text/html"), "no model supports this type"),
        (types.AudioContent(data="aGk=", mime_type="video/mp4"), "no model supports this type"),
    ],
)
def test_media_that_no_model_could_use_is_left_out_with_the_reason(block: Any, reason: str) -> None:
    """Nobody is sent what is too large, broken, or not what it claims to be."""
    result = convert_result(answer(block))

    assert isinstance(result, str)
    assert reason in said(result)


def test_everything_is_bounded() -> None:
    """However much a tool answers, what is handed on has a limit, and says what is missing."""
    long = said(convert_result(answer(text("x" * (MAX_TEXT_CHARS + 5)))))
    many = said(convert_result(answer(*(text("x") for _ in range(MAX_BLOCKS + 7)))))
    images = convert_result(answer(*(image() for _ in range(MAX_MEDIA + 3))))
    structured = json.loads(convert_result(answer(structured_content={"a": "x" * (MAX_TEXT_CHARS + 1)})))

    assert long.endswith("[5 more characters omitted]")
    assert "[7 more parts omitted]" in many
    assert isinstance(images, dict)
    assert len(images["content"]) == 1 + MAX_MEDIA
    assert structured["structuredContent"] == "[omitted: too long]"


def test_structured_content_shows_what_is_hidden_in_it() -> None:
    """Also in keys."""
    result = json.loads(convert_result(answer(structured_content={"k\u200b": ["v\u202e", 1, None]})))

    assert result["structuredContent"] == {"k\\u200b": ["v\\u202e", 1, None]}


BLOCKS = st.one_of(
    st.builds(text, st.text()),
    st.builds(image, st.text(max_size=8), st.sampled_from(["image/png", "IMAGE/PNG", "", "a/b"])),
    st.builds(
        lambda uri, value: types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, text=value)),
        st.text(min_size=1),
        st.text(),
    ),
    st.builds(lambda name, uri: types.ResourceLink(name=name, uri=uri), st.text(), st.text(min_size=1)),
)


@given(st.lists(BLOCKS, max_size=5), st.booleans())
def test_every_answer_becomes_a_result(blocks: list[Any], is_error: bool) -> None:
    """Whatever blocks there are: JSON that can be sent, or a multimodal object with such a text in front."""
    result = convert_result(answer(*blocks, is_error=is_error))

    shown = result if isinstance(result, str) else result["content"][0]["text"]
    assert set(json.loads(shown)) == ({"error"} if is_error else {"result"})
    shown.encode()
