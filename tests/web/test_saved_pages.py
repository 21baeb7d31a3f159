"""The text that is extracted from saved pages is what a reader wants from them."""

from __future__ import annotations

import statistics

import pytest
import trafilatura

from tests.web.saved_pages import SavedPage, f1, saved_pages
from toolcrib.web.page_worker import html_page

PAGES = saved_pages()
LEAST = {"event-page": 0.65, "forum-thread": 0.85, "mailing-list": 0.85}
"""Pages that are hard: a programme without paragraphs, short posts, a message between links."""


def ours(page: SavedPage) -> str:
    return str(html_page(page.html, f"https://site.example/{page.name}")["text"])


def library(page: SavedPage) -> str:
    return (
        trafilatura.extract(
            page.html,
            url=f"https://site.example/{page.name}",
            output_format="markdown",
            include_comments=False,
            include_formatting=True,
            include_links=True,
            include_tables=True,
        )
        or ""
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_wanted_text_is_found(page: SavedPage) -> None:
    """Nearly all of the wanted words and hardly any others."""
    assert f1(page.wanted, ours(page)) >= LEAST.get(page.name, 0.92)


def test_the_text_is_not_worse_than_the_library_alone() -> None:
    """What toolcrib adds around the extraction library does not cost quality."""
    assert len(PAGES) == 20
    assert statistics.mean(f1(page.wanted, ours(page)) for page in PAGES) >= statistics.mean(
        f1(page.wanted, library(page)) for page in PAGES
    )


def test_structure_survives() -> None:
    """Headings, lists, tables and code are still what they were."""
    pages = {page.name: ours(page) for page in PAGES}

    assert "## Ingredients" in pages["recipe"]
    assert "- 250 g red lentils" in pages["recipe"]
    assert "| Eastgate | 1776 | grinding |" in pages["encyclopedia"]
    assert "```" in pages["api-reference"]
    assert 'queue.push(b"hello", delay=2.5)' in pages["api-reference"]
    assert "1. Tie treadle one" in pages["tutorial"]
