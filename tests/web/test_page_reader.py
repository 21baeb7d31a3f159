"""Pages are read in processes with limits, and what they contain becomes Markdown."""

from __future__ import annotations

import contextlib
import threading

import pytest

from toolcrib.web.html_markdown import page_title, parse_html, to_markdown
from toolcrib.web.page_reader import PageReader, PageUnreadable
from toolcrib.web.page_worker import html_page

PAGE = b"<html><head><title>T</title></head><body><p>" + b"Some words of a page. " * 30 + b"</p></body></html>"


def test_one_worker_reads_many_pages() -> None:
    """The worker stays for the next page, and ends when the reader is closed."""
    reader = PageReader(max_workers=1)
    try:
        assert reader.read(PAGE).title == "T"
        (worker,) = reader._workers._idle
        assert reader.read(PAGE).title == "T"
        assert reader._workers._idle == [worker]
    finally:
        reader.close()
    assert worker._process.poll() is not None


@pytest.mark.services
def test_a_page_that_takes_too_long_is_given_up() -> None:
    """A page that keeps its reader busy ends the worker, not the program; the next page has a new one."""
    reader = PageReader(seconds=1)
    try:
        with pytest.raises(PageUnreadable):
            reader.read(b"<b>" * 3_000_000)
        assert reader.read(PAGE).title == "T"
    finally:
        reader.close()


def test_a_page_that_needs_too_much_memory_is_given_up() -> None:
    """The memory of a worker is limited."""
    reader = PageReader(memory_bytes=150_000_000)
    try:
        with pytest.raises(PageUnreadable):
            reader.read(b"<p>a</p>" * 8_000_000)
        assert reader.read(PAGE).title == "T"
    finally:
        reader.close()


def test_pages_can_be_read_from_several_threads() -> None:
    """Threads share the workers."""
    reader = PageReader(max_workers=2)
    titles: list[str] = []
    threads = [threading.Thread(target=lambda: titles.append(reader.read(PAGE).title)) for _ in range(6)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert titles == ["T"] * 6
        assert len(reader._workers._idle) <= 2
    finally:
        reader.close()


HOSTILE = {
    "deep": b"<div>" * 10_000 + b"text",
    "unclosed": b"<ul><li>" * 2_000 + b"<table><tr><td>" * 500,
    "broken": b"<<<>>></p></div><!-- <p <a href=<b>x</a",
    "nulls": b"<p>a\0b</p>",
    "entities": b"<p>" + b"&#xfffffff;&amp;" * 1_000 + b"</p>",
    "cdata": b"<![CDATA[ x ]]><p>y</p>",
    "not html": bytes(range(256)) * 50,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pages_do_no_harm(name: str, shared_reader: PageReader) -> None:
    """Whatever a page contains, there is a text or a reason."""
    with contextlib.suppress(PageUnreadable):
        assert isinstance(shared_reader.read(HOSTILE[name]).text, str)


def markdown(body: str) -> str:
    return to_markdown(parse_html(body), "https://site.example/docs/page.html").strip()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<h2>A <em>b</em></h2><p>c</p>", "## A *b*\n\nc"),
        ("<p>a<p>b", "a\n\nb"),
        ("<ul><li>a<li>b<ul><li>c</ul></ul>", "- a\n- b\n  - c"),
        ("<ol><li>a</li><li>b</li></ol>", "1. a\n2. b"),
        ("<pre><code class='language-py'>a = 1\n  b</code></pre>", "```py\na = 1\n  b\n```"),
        ("<p>Use <code>x</code></p>", "Use `x`"),
        ("<a href='x.html'>go</a>", "[go](https://site.example/docs/x.html)"),
        ("<a href='javascript:x()'>go</a>", "go"),
        ("<a href='#part'>go</a>", "go"),
        ("<a href='/a(b)'>go</a>", "[go](https://site.example/a%28b%29)"),
        ("<img src='/i.png' alt='An image'>", "![An image](https://site.example/i.png)"),
        ("<img src='data:image/png;base64,AA' alt='An image'>", "[IMAGE: An image]"),
        ("<table><tr><th>a<th>b<tr><td>1|2<td>3</table>", "| a | b |\n| --- | --- |\n| 1\\|2 | 3 |"),
        ("<table><tr><td>only layout</td></tr></table>", "only layout"),
        ("<blockquote><p>a</p><p>b</p></blockquote>", "> a\n>\n> b"),
        ("<dl><dt>term<dd>meaning</dl>", "**term**\n: meaning"),
        ("<nav>menu</nav><p>a</p><footer>f</footer><script>s</script>", "a"),
        ("<p style='display: none'>hidden</p><p hidden>h</p><p>seen</p>", "seen"),
        ("a<br>b", "a\nb"),
        ("<p>  lots \n of\t space </p>", "lots of space"),
        ("<base href='https://other.example/'><a href='x'>go</a>", "[go](https://other.example/x)"),
        ("", ""),
    ],
)
def test_html_becomes_markdown(body: str, expected: str) -> None:
    """Our own reader turns elements into the Markdown that stands for them."""
    assert markdown(body) == expected


def test_the_main_part_is_preferred() -> None:
    """If a page marks its main part, only that is read."""
    words = "words " * 60
    assert "side" not in markdown(f"<div>side</div><main><p>{words}</p></main>")
    assert "side" in markdown("<div>side</div><main><p>short</p></main>")


@pytest.mark.parametrize(
    ("head", "title"),
    [
        ("<title> A\n B </title>", "A B"),
        ("<title>A</title><meta property='og:title' content='B'>", "B"),
        ("<h1>Only <b>this</b></h1>", "Only this"),
        ("<svg><title>icon</title></svg>", "icon"),
    ],
)
def test_titles(head: str, title: str) -> None:
    """A page's title is what it says about itself."""
    assert page_title(parse_html(head)) == title


SENTENCES = "The harbour is open all year, and its boats leave with the tide. " * 6
MENU = "<nav>" + "".join(f"<li><a href='/{n}'>Topic number {n} of the manual</a></li>" for n in range(20)) + "</nav>"


def test_a_menu_is_no_content_unless_there_is_nothing_else() -> None:
    """What stands around the content is left out; a page that consists of links keeps them."""
    read = html_page(f"<html><body>{MENU}<div><p>{SENTENCES}</p></div>{MENU}</body></html>", "https://a.example/")
    assert "The harbour" in read["text"]
    assert "Topic" not in read["text"]
    index = html_page(f"<html><body>{MENU}<p>Welcome.</p></body></html>", "https://a.example/")
    assert "Topic number 19" in index["text"]


@pytest.mark.parametrize(
    "attributes", ["hidden", "aria-hidden='true'", "style='DISPLAY : none'", "style='color:red;font-size:0'"]
)
def test_what_nobody_sees_is_not_read(attributes: str) -> None:
    """Hidden text is left out, unless it is all there is: then a script was to show it."""
    hidden = f"<div {attributes}><p>An order for machines. {SENTENCES}</p></div>"
    assert "order" not in html_page(f"<html><body><p>{SENTENCES}</p>{hidden}</body></html>", "")["text"]
    assert "The harbour" in html_page(f"<html><body>{hidden}</body></html>", "")["text"]


def test_links_lead_somewhere_or_are_plain_text() -> None:
    """Links are full addresses; scripts, embedded data and broken addresses are none."""
    links = "<a href='../up'>up</a> <a href=' JavaScript:x()'>run</a> <a href='data:text/html,x'>inline</a>"
    page = f"<html><body><main><p>{SENTENCES} {links} <a href='//[x/y'>broken</a></p></main></body></html>"
    text = html_page(page, "https://a.example/b/c")["text"]
    assert "[up](https://a.example/up) run inline broken" in text
