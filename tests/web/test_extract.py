"""`web_extract`, called as a model calls it, on pages that a real server serves."""

from __future__ import annotations

import asyncio
import io
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pypdf
import pytest

from tests.web.conftest import OpenWeb, call
from tests.web.sites import Page, Site, SiteRequest
from toolcrib.core.context import ToolContext
from toolcrib.web import http_client
from toolcrib.web.extract import head_and_tail

TEXT = "This sentence is long enough to count as content, because pages with little text are read in another way. "
ARTICLE = f"""<!doctype html><html><head><title>The title</title></head><body>
<nav><a href="/">Home</a></nav><article><h1>Heading</h1><p>{TEXT * 3}</p><p>See <a href="other.html">the other</a>.</p>
</article><footer>Imprint</footer></body></html>"""


def html(body: str, **headers: str) -> Page:
    return 200, {"content-type": "text/html; charset=utf-8", **headers}, body.encode()


async def read(runtime: object, url: str, **options: object) -> dict[str, object]:
    answer = await call(runtime, "web_extract", urls=[url], **options)  # type: ignore[arg-type]
    return dict(answer["results"][0])


def mode_and_text(path: Path) -> tuple[int, str]:
    return stat.S_IMODE(path.stat().st_mode), path.read_text()


def content_of(path: str) -> bytes:
    return Path(path).read_bytes()


async def test_a_page_becomes_markdown(open_web: OpenWeb, site: Site) -> None:
    """A page is returned with its title and its readable part as Markdown, with absolute links."""
    site.pages["/docs/page.html"] = html(ARTICLE)

    found = await read(open_web(), f"{site.address}/docs/page.html")

    assert found["error"] is None
    assert found["title"] == "The title"
    assert found["extractor"] == "trafilatura"
    assert "# Heading" in str(found["content"])
    assert f"[the other]({site.address}/docs/other.html)" in str(found["content"])
    assert "Imprint" not in str(found["content"])


async def test_every_address_has_its_own_outcome(open_web: OpenWeb, site: Site) -> None:
    """Results keep the order of the addresses; one failure does not affect the others."""
    site.pages["/good"] = html(ARTICLE)
    urls = [f"{site.address}/missing", f"{site.address}/good", "http://169.254.169.254/", f"{site.address}/good"]

    answer = await call(open_web(), "web_extract", urls=urls)

    assert [one["url"] for one in answer["results"]] == urls
    errors = [one["error"] for one in answer["results"]]
    assert errors[0] == "'127.0.0.1' answered HTTP 404 (Not Found)"
    assert "never reached" in errors[2]
    assert errors[1] is errors[3] is None
    assert "error" not in answer
    assert [asked.path for asked in site.requests].count("/good") == 1


async def test_if_every_page_fails_the_call_fails(open_web: OpenWeb, site: Site) -> None:
    """A call without any page is an error, and still says what happened to each address."""
    result = await open_web().call("web_extract", {"urls": [f"{site.address}/missing"]})

    assert result.is_error
    assert json.loads(result.text)["results"][0]["error"]


async def test_pages_are_fetched_in_parallel(open_web: OpenWeb, site: Site) -> None:
    """Two pages that wait for each other are both read."""
    arrived = {"/a": asyncio.Event(), "/b": asyncio.Event()}
    loop = asyncio.get_running_loop()

    def wait_for(other: str) -> Callable[[SiteRequest], Page]:
        def answer(asked: SiteRequest) -> Page:
            loop.call_soon_threadsafe(arrived[asked.path].set)
            asyncio.run_coroutine_threadsafe(arrived[other].wait(), loop).result(30)
            return html(ARTICLE)

        return answer

    site.pages |= {"/a": wait_for("/b"), "/b": wait_for("/a")}

    answer = await call(open_web(), "web_extract", urls=[f"{site.address}/a", f"{site.address}/b"])

    assert [one["error"] for one in answer["results"]] == [None, None]


async def test_a_long_page_is_cut_and_saved(open_web: OpenWeb, site: Site) -> None:
    """Head and tail are shown; the full text is in a file that only the owner can read, and read_file continues it."""
    lines = [f"line {number} with some words" for number in range(2_000)]
    site.pages["/long"] = (200, {"content-type": "text/plain"}, "\n".join(lines).encode())
    runtime = open_web()

    found = await read(runtime, f"{site.address}/long", char_limit=4_000)

    content = str(found["content"])
    assert found["truncated"] is True
    assert content.startswith("line 0 ")
    assert "line 1999 with some words" in content
    head = content.partition("\n\n… [")[0]
    assert 2_000 < len(head) <= 3_000
    assert head.splitlines()[-1] in lines
    path = Path(str(found["file"]))
    assert path.parent == runtime.settings.home.web_dir
    assert mode_and_text(path) == (0o600, "\n".join(lines))
    offset = len(head.splitlines()) + 1
    assert f"read_file(path={str(path)!r}, offset={offset})" in content
    rest = json.loads((await runtime.call("read_file", {"path": str(path), "offset": offset, "limit": 1})).text)
    assert lines[offset - 1] in rest["content"]


@pytest.mark.parametrize("text", ["a" * 10_000, "word " * 2_000, "line of words\n" * 700, "ä\n" * 5_000])
def test_cuts_stay_within_the_limit(text: str) -> None:
    """Head and tail together never exceed the limit, and both are parts of the text."""
    head, tail = head_and_tail(text, 4_000)

    assert len(head) + len(tail) <= 4_000
    assert len(head) > 1_400
    assert text.startswith(head)
    assert text.endswith(tail)


async def test_json_is_shown_line_by_line(open_web: OpenWeb, site: Site) -> None:
    """JSON comes with one value per line."""
    site.pages["/data"] = (200, {"content-type": "application/json"}, b'{"a":[1,{"b":"\xc3\xa4"}]}')

    found = await read(open_web(), f"{site.address}/data")

    assert json.loads(str(found["content"])) == {"a": [1, {"b": "ä"}]}
    assert len(str(found["content"]).splitlines()) > 4
    assert found["extractor"] == "json"


async def test_a_pdf_becomes_text(open_web: OpenWeb, site: Site) -> None:
    """A PDF goes to the readers of read_file, whatever type the server claims."""
    writer = pypdf.PdfWriter()
    writer.add_blank_page(200, 200)
    data = io.BytesIO()
    writer.write(data)
    site.pages["/file"] = (200, {"content-type": "application/octet-stream"}, data.getvalue())

    found = await read(open_web(), f"{site.address}/file")

    assert found["error"] is None
    assert found["content_type"] == "application/pdf"
    assert "page 1 of 1" in str(found["content"])


async def test_a_damaged_pdf_is_reported(open_web: OpenWeb, site: Site) -> None:
    """A document that cannot be read gives a reason."""
    site.pages["/file"] = (200, {"content-type": "application/pdf"}, b"%PDF-1.7 nonsense")

    assert "the pdf file cannot be read" in str((await read(open_web(), f"{site.address}/file"))["error"])


async def test_an_image_is_saved(open_web: OpenWeb, site: Site) -> None:
    """An image is saved to a file, and its path is returned."""
    picture = b"\x89PNG\r\n\x1a\n" + bytes(100)
    site.pages["/picture"] = (200, {"content-type": "text/html"}, picture)

    found = await read(open_web(), f"{site.address}/picture")

    assert content_of(str(found["image"])) == picture
    assert "image/png" in str(found["content"])


@pytest.mark.parametrize(
    ("content_type", "body", "reason"),
    [
        ("application/zip", b"PK\x03\x04\0\0", "application/zip"),
        ("video/mp4", b"\0\0\0\x18ftyp", "video/mp4"),
        ("", b"\0\1\2\3", "unknown type"),
        ("image/png", b"\0not a picture", "octet-stream"),
        ("text/html", b"", "empty page"),
        ("text/plain", b"  \n ", "no readable text"),
    ],
)
async def test_what_has_no_text_says_so(
    content_type: str, body: bytes, reason: str, open_web: OpenWeb, site: Site
) -> None:
    """Binary and empty content gives an error that names it."""
    site.pages["/x"] = (200, {"content-type": content_type}, body)

    assert reason in str((await read(open_web(), f"{site.address}/x"))["error"])


CHARSETS: dict[str, tuple[str, bytes]] = {
    "header": ("text/html; charset=iso-8859-1", "<p>Käse für 5 €</p>".encode("cp1252")),
    "meta": ("text/html", '<meta charset="windows-1251"><p>Сыр за 5 рублей</p>'.encode("cp1251")),
    "http-equiv": (
        "text/html",
        '<meta http-equiv="Content-Type" content="text/html; charset=Shift_JIS"><p>チーズ</p>'.encode("shift_jis"),
    ),
    "bom": ("text/html; charset=iso-8859-1", "<p>Käse</p>".encode("utf-8-sig")),
    "utf-16": ("text/plain", "Käse".encode("utf-16")),
    "none": ("text/plain", "Käse".encode()),
    "wrong": ("text/plain; charset=utf-8", "Käse für alle und überall, ölig".encode("cp1252")),
    "unknown": ("text/html; charset=klingon", "<p>Käse</p>".encode()),
}
WORDS = {"meta": "Сыр", "http-equiv": "チーズ"}


@pytest.mark.parametrize("name", CHARSETS)
async def test_charsets_are_recognised(name: str, open_web: OpenWeb, site: Site) -> None:
    """Text is decoded by its mark, the server's word, its own word, or a guess."""
    content_type, body = CHARSETS[name]
    site.pages["/x"] = (200, {"content-type": content_type}, body)

    assert WORDS.get(name, "Käse") in str((await read(open_web(), f"{site.address}/x"))["content"])


FEEDS = {
    "rss": b"""<?xml version="1.0"?><rss version="2.0"><channel><title>News</title><item><title>One &amp; two</title>
        <link>/1</link><pubDate>Mon, 02 Nov 2026</pubDate><description>&lt;p&gt;Hello&lt;/p&gt;</description></item>
        </channel></rss>""",
    "atom": b"""<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title><entry><title>One &amp; two</title>
        <link rel="self" href="/self"/><link href="/1"/><updated>Mon, 02 Nov 2026</updated><summary>Hello</summary>
        </entry></feed>""",
    "json": json.dumps(
        {
            "version": "https://jsonfeed.org/version/1.1",
            "title": "News",
            "items": [{"title": "One & two", "url": "/1", "date_published": "Mon, 02 Nov 2026", "summary": "Hello"}],
        }
    ).encode(),
}


@pytest.mark.parametrize("name", FEEDS)
async def test_feeds_become_lists(name: str, open_web: OpenWeb, site: Site) -> None:
    """RSS, Atom and JSON feeds become lists of links with dates and summaries."""
    site.pages["/feed"] = (200, {"content-type": f"application/{'json' if name == 'json' else 'xml'}"}, FEEDS[name])

    found = await read(open_web(), f"{site.address}/feed")

    assert found["title"] == "News"
    assert f"- [One & two]({site.address}/1) (Mon, 02 Nov 2026)\n  Hello" in str(found["content"])


async def test_a_feed_with_entities_is_not_expanded(open_web: OpenWeb, site: Site) -> None:
    """A feed that defines entities, as bombs do, is shown as it is written."""
    bomb = (
        b'<?xml version="1.0"?><!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><rss><channel>&b;</channel></rss>'
    )
    site.pages["/feed"] = (200, {"content-type": "application/rss+xml"}, bomb)

    found = await read(open_web(), f"{site.address}/feed")

    assert "&b;" in str(found["content"])


async def test_pages_that_need_a_script_say_so(open_web: OpenWeb, site: Site) -> None:
    """An empty page of a single-page app is reported as such."""
    site.pages["/app"] = html('<html><body><div id="root"></div><script src="/app.js"></script></body></html>')

    assert "JavaScript" in str((await read(open_web(), f"{site.address}/app"))["error"])


async def test_embedded_images_are_left_out(open_web: OpenWeb, site: Site) -> None:
    """A data URL becomes a short mark with the image's text."""
    data = "data:image/png;base64," + "QUJD" * 500
    site.pages["/x"] = html(f'<p>Short page</p><img alt="a chart" src="{data}">')

    content = str((await read(open_web(), f"{site.address}/x"))["content"])

    assert "[IMAGE: a chart]" in content
    assert "QUJD" not in content


async def test_a_page_is_reused_for_a_while(open_web: OpenWeb, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public page is fetched once; one that must not be stored is fetched each time, like any private one."""
    site.pages["/page"] = html(ARTICLE)
    site.pages["/secret"] = html(ARTICLE, **{"cache-control": "max-age=60, No-Store"})
    runtime = open_web()
    public, secret = (f"http://site.example:{site.port}/{name}" for name in ("page", "secret"))
    await read(runtime, public)
    await read(runtime, public)
    assert len(site.requests) == 2

    monkeypatch.setattr(http_client, "address_kind", lambda _: "public")
    await read(runtime, public)
    assert (await read(runtime, public))["cached"] is True
    assert len(site.requests) == 3
    await read(runtime, secret)
    await read(runtime, secret)
    assert len(site.requests) == 5


async def test_blocked_websites_are_marked(open_web: OpenWeb, site: Site) -> None:
    """A website on the blocklist is refused with the key that callers look for."""
    runtime = open_web(security={"website_blocklist": {"enabled": True, "domains": ["site.example"]}})

    found = await read(runtime, f"http://www.site.example:{site.port}/")

    assert found["blocked_by_policy"] is True
    assert "blocklist" in str(found["error"])
    assert site.requests == []


async def test_all_pages_share_one_time_limit(open_web: OpenWeb, site: Site) -> None:
    """When the time is up, pages that are done are returned, and the others say that they are not."""
    site.pages["/fast"] = html(ARTICLE)
    site.pages["/slow"] = lambda _: (site.released.wait(30), html(ARTICLE))[1]
    runtime = open_web()
    await read(runtime, f"{site.address}/fast")  # the reader is running now

    extract = runtime.services.web._extract
    answer = await extract.run([f"{site.address}/slow", f"{site.address}/fast"], 15_000, seconds=3)

    assert [bool(one["error"]) for one in answer["results"]] == [True, False]


async def test_effects_name_the_hosts(open_web: OpenWeb) -> None:
    """The gate learns which hosts a call reaches; an address that is refused reaches none."""
    runtime = open_web()
    entry = runtime.registry.get_entry("web_extract")
    assert entry is not None
    assert callable(entry.effects)
    ctx = ToolContext(services=runtime.services)

    effects = entry.effects(
        {"urls": ["https://a.example/x", "https://A.example/y", "https://b.example", "file:///x"]}, ctx
    )

    assert [(effect.kind, effect.target) for effect in effects] == [("network", "a.example"), ("network", "b.example")]


async def test_too_many_addresses_are_refused(open_web: OpenWeb) -> None:
    """More than five addresses at once are an error before anything is fetched."""
    result = await open_web().call("web_extract", {"urls": ["https://a.example/"] * 6})

    assert result.is_error


async def test_a_single_address_as_text_works(open_web: OpenWeb, site: Site) -> None:
    """Models sometimes pass one address as text."""
    site.pages["/"] = html(ARTICLE)

    answer = await call(open_web(), "web_extract", urls=f"{site.address}/")

    assert answer["results"][0]["error"] is None
