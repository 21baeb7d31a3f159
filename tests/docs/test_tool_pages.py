"""Each built-in tool has a page in the reference, and what the page shows is what the tool gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.docs_blocks import REPOSITORY, Block, PageError, read_blocks
from tests.docs.tool_examples import MARKS, ToolPage, fits
from toolcrib.registry import discovery, registry

FOLDER = REPOSITORY / "docs" / "reference" / "tools"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")


ABOUT_THE_WORLD = (
    "file",
    "earlier conversation",
    "served",
    "the search service answers",
    "a service answers",
    "a terminal shows",
)
"""Blocks that are neither calls nor their answers."""


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_the_calls_on_the_page_of_a_tool_give_the_answers_below_them(page: Path, tmp_path: Path) -> None:
    """Files are saved and calls are made in the order of the page, through the whole pipeline, in one session."""
    await ToolPage(tmp_path / "user").follow(read_blocks(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_of_a_tool_shows_a_call_of_it_and_the_answer(page: Path) -> None:
    """There is an example for the tool itself, each answer follows a call, and each comment is understood."""
    blocks = read_blocks(page)
    languages = [block.language for block in blocks if block.mark not in ABOUT_THE_WORLD]

    assert any(re.search(rf"\b{page.stem}\(", block.body) for block in blocks if block.language == "python")
    assert "json" in languages
    assert "json json" not in " ".join(languages)
    assert {block.mark for block in blocks} <= set(MARKS)


def test_every_built_in_tool_has_a_page() -> None:
    """A tool that is added gets one from `make docs`, and an example from whoever adds it."""
    discovery.load_builtin_tools()

    assert {page.stem for page in PAGES} == {entry.name for entry in registry.entries() if entry.is_ours}


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1, "…": "…"}, {"a": 1, "b": 2}, True),
        ({"a": 1, "…": "…"}, {"b": 2}, False),
        ("3 of …", "3 of 4", True),
        ("3 of …", "2 of 4", False),
        ("…", 7, True),
        (["a", "…"], ["a", "b", "c"], True),
        (["a"], ["a", "b"], False),
        (["a", "b"], ["a"], False),
        (1, True, False),
    ],
)
def test_an_answer_must_be_what_the_page_says_but_for_what_it_leaves_open(
    expected: Any, given: Any, same: bool
) -> None:
    """Only where a page shows `…` may something else stand."""
    assert fits(expected, given) is same


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (
            [Block("python", 'terminal(command="echo 1")', 3), Block("json", '{"output": "2"}', 7)],
            "line 7: the answer is",
        ),
        ([Block("python", 'write_file(path="/etc/x", content="")', 5)], "line 5: the person is asked"),
        ([Block("python", 'terminal(command="true")', 5, "the person agrees")], "line 5: the person is not asked"),
        ([Block("yaml", "a: 1", 9)], "line 9: nobody knows"),
    ],
)
async def test_a_page_that_is_wrong_is_named_with_its_line(blocks: list[Block], message: str, tmp_path: Path) -> None:
    """A wrong answer, a question that the page is silent about, and a block without a purpose are all found."""
    with pytest.raises(PageError, match=message):
        await ToolPage(tmp_path / "user").follow(blocks)
