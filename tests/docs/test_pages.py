"""The README and the guides do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.docs_blocks import REPOSITORY, Block, PageError, Reader, read_blocks, rewritten

RUN_PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs" / "guides").glob("*.md"))]
ALL_PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def _name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def _marked(page: Path) -> object:
    """The first page that anybody reads is quick to check; all of them together take a minute."""
    return pytest.param(page, id=_name(page), marks=() if page.name == "README.md" else pytest.mark.services)


@pytest.mark.parametrize("page", [_marked(page) for page in RUN_PAGES])
def test_a_reader_who_follows_the_page_sees_what_it_shows(page: Path, tmp_path: Path) -> None:
    """Files are saved, programs run and commands typed, in the order of the page; every output is as printed there."""
    Reader(tmp_path).follow(read_blocks(page))


@pytest.mark.parametrize("page", RUN_PAGES, ids=_name)
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    """The mark `shown only` carries a reason, and nothing in Python goes without being run or saved."""
    shown = [block for block in read_blocks(page) if block.mark == "shown only"]

    assert all(block.value for block in shown)
    assert not [block for block in shown if block.language == "python"]
    assert {block.mark for block in read_blocks(page)} <= {"", "file", "append", "shown only"}


@pytest.mark.parametrize("page", ALL_PAGES, ids=_name)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    """A relative link names a file or folder that exists."""
    text = page.read_text(encoding="utf-8")

    dead = [target for target, _ in LINK.findall(text) if not (page.parent / target).exists()]

    assert dead == []


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Block("python", "raise SystemExit('no')", 3), "line 3: the program failed"),
        (Block("console", "$ echo one\ntwo\n", 7), "line 7: [$] echo one"),
        (Block("yaml", "a: 1\n", 9), "line 9: nobody knows"),
    ],
)
def test_a_block_that_does_not_do_what_it_says_fails_with_its_line(block: Block, message: str, tmp_path: Path) -> None:
    """A broken program, a wrong output and a block without a purpose are all found."""
    with pytest.raises(PageError, match=message):
        Reader(tmp_path).follow([block])


def test_outputs_are_written_anew_where_they_no_longer_fit(tmp_path: Path) -> None:
    """Only outputs that differ are replaced; what the page leaves open with `…` stays open."""
    page = "```python\nprint(1)\n```\n\n```text\n```\n\n```console\n$ echo one two\none …\n$ echo three\nfour\n```\n"

    written = rewritten(page, tmp_path)

    assert written == (
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\n```console\n$ echo one two\none …\n$ echo three\nthree\n```\n"
    )
