"""Extracts the readable text of pages, in a separate process because a page may attack its parser.

See `worker_processes.py`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from html import unescape
from typing import Any
from urllib.parse import urljoin
from xml.etree import ElementTree

from toolcrib.web.html_markdown import Element, is_invisible, page_title, parse_html, to_markdown
from toolcrib.worker_processes import WorkerAnswer, serve_jobs

MAX_ENTRIES = 200
MAX_SUMMARY_CHARS = 500
_IS_FEED = re.compile(rb"<(?:rss|feed|rdf:RDF)[\s>]")
_HAS_ENTITIES = re.compile(rb"<!ENTITY", re.IGNORECASE)


def is_feed(data: bytes, content_type: str) -> bool:
    """Whether this is a feed that `read_feed` understands; servers often call feeds just XML or even HTML."""
    if content_type in ("application/rss+xml", "application/atom+xml", "application/rdf+xml"):
        return True
    start = data[:2_000].lstrip()
    return b"<html" not in start.lower() and start.startswith((b"<", b"\xef\xbb\xbf<")) and bool(_IS_FEED.search(start))


def read_feed(data: bytes, url: str) -> tuple[str, str]:
    """The title and the Markdown of a feed; raises ValueError for damaged XML."""
    if _HAS_ENTITIES.search(data):
        raise ValueError("it defines entities, which feeds do not need")
    try:
        # The worker that calls this has little memory and time, and entities are refused above.
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise ValueError(f"its XML is damaged ({error})") from error
    channel = next((one for one in root.iter() if _name(one) in ("channel", "feed")), root)
    title = _child_text(channel, "title")
    entries = [one for one in root.iter() if _name(one) in ("item", "entry")]
    return title, _as_markdown(title, [_entry(one, url) for one in entries[:MAX_ENTRIES]], len(entries))


def read_json_feed(feed: dict[str, Any], url: str) -> tuple[str, str]:
    """The title and the Markdown of a JSON feed."""
    title = str(feed.get("title") or "")
    items = [one for one in feed.get("items") or [] if isinstance(one, dict)]
    entries = [
        (
            str(one.get("title") or ""),
            urljoin(url, str(one.get("url") or one.get("external_url") or "")),
            str(one.get("date_published") or ""),
            _plain(str(one.get("summary") or one.get("content_text") or one.get("content_html") or "")),
        )
        for one in items[:MAX_ENTRIES]
    ]
    return title, _as_markdown(title, entries, len(items))


def is_json_feed(value: Any) -> bool:
    return isinstance(value, dict) and str(value.get("version", "")).startswith("https://jsonfeed.org/version/")


def as_pretty_json(text: str) -> str:
    """JSON with one key or item per line, so that it can be cut at line ends; the text itself if it is damaged."""
    try:
        return json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"
    except (ValueError, RecursionError):
        return text


def _entry(item: ElementTree.Element, url: str) -> tuple[str, str, str, str]:
    link = _link(item)
    date = next((text for name in ("pubDate", "published", "updated", "date") if (text := _child_text(item, name))), "")
    summary = next(
        (text for name in ("description", "summary", "encoded", "content") if (text := _child_text(item, name))), ""
    )
    return _plain(_child_text(item, "title")), urljoin(url, link) if link else "", date, _plain(summary)


def _link(item: ElementTree.Element) -> str:
    links = [child for child in item if _name(child) == "link"]
    for one in links:
        if one.get("href") and one.get("rel", "alternate") == "alternate":
            return one.get("href", "").strip()
    return next((one.text.strip() for one in links if one.text and one.text.strip()), "")


def _name(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _child_text(element: ElementTree.Element, name: str) -> str:
    for child in element:
        if _name(child) == name:
            return " ".join("".join(child.itertext()).split())
    return ""


def _plain(text: str) -> str:
    """The text of a summary, which is often HTML."""
    if "<" in text or "&" in text:
        text = parse_html(unescape(text) if "<" not in text else text).text()
    text = " ".join(text.split())
    return text if len(text) <= MAX_SUMMARY_CHARS else text[: MAX_SUMMARY_CHARS - 1] + "…"


def _as_markdown(title: str, entries: list[tuple[str, str, str, str]], total: int) -> str:
    return "\n".join(_lines(title, entries, total)) + "\n"


def _lines(title: str, entries: list[tuple[str, str, str, str]], total: int) -> Iterator[str]:
    if title:
        yield f"# {title}\n"
    for heading, link, date, summary in entries:
        label = heading or link or "(untitled)"
        yield f"- [{label}]({link})" + (f" ({date})" if date else "") if link else f"- {label}"
        if summary and summary != heading:
            yield f"  {summary}"
    if total > len(entries):
        yield f"\n({total - len(entries)} older entries left out)"


MIN_CHARS = 200
"""A page with less text than this is read again, without a guess about what matters."""
MIN_MAIN_SHARE = 0.35
"""If the library finds less than this share of what the page marks as its main part, the library is wrong."""
MAX_TEXT_CHARS = 2_000_000
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{2,40})", re.IGNORECASE)
_XML_CHARSET = re.compile(rb"^<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9_:.-]{2,40})")
_DATA_IMAGE = re.compile(r"!\[([^\]\n]{0,300})\]\(\s*data:[^)\s]{0,2000000}\s*\)")
_BARE_DATA = re.compile(r"\(?data:image/[\w.+-]{1,40};base64,[A-Za-z0-9+/=]{20,}\)?")
_NEEDS_SCRIPT = re.compile(r"(?:enable|requires?|needs?|turn on)\s{1,3}java\s?script", re.IGNORECASE)
_LINK = re.compile(r"\]\([^)\s]*\)")
_NO_TEXT = ("script", "style", "svg", "template")
_AROUND = ("nav", "footer", "aside")
_MAYBE_HIDDEN = "//*[@hidden or @aria-hidden or @style]"
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What browsers mean by these names.
_REAL_CHARSETS = {"iso-8859-1": "cp1252", "latin-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252",
                  "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "x-sjis": "cp932",
                  "ks_c_5601-1987": "cp949", "euc-kr": "cp949", "iso-8859-9": "cp1254", "tis-620": "cp874",
                  "x-user-defined": "utf-8"}  # fmt: skip


def main() -> int:
    return serve_jobs(_answer)


def _answer(job: dict[str, Any], data: bytes) -> WorkerAnswer:
    answer = read_page(data, job["content_type"], job["charset"], job["url"])
    text = answer.pop("text", "").encode("utf-8", "replace")
    return answer, text


def read_page(data: bytes, content_type: str, charset: str, url: str) -> dict[str, Any]:
    """Title, text, `extractor` (how it was found) and `note` of a page."""
    if is_feed(data, content_type):
        try:
            title, text = read_feed(data, url)
        except ValueError as error:
            return {"title": "", "text": decoded(data, charset), "extractor": "text", "note": f"not a feed: {error}"}
        return {"title": title, "text": text, "extractor": "feed", "note": ""}
    page = decoded(data, charset)
    if content_type.endswith(("/json", "+json")):
        return _json_page(page, url)
    if is_html(page, content_type):
        return html_page(page, url)
    return {"title": "", "text": page, "extractor": "text", "note": ""}


def is_html(page: str, content_type: str) -> bool:
    if content_type in ("text/html", "application/xhtml+xml"):
        return True
    start = page[:1_000].lstrip().lower()
    return content_type in ("", "text/plain", "application/octet-stream", "text/xml", "application/xml") and (
        start.startswith(("<!doctype html", "<html"))
    )


def _json_page(page: str, url: str) -> dict[str, Any]:
    try:
        value = json.loads(page)
    except (ValueError, RecursionError):
        return {"title": "", "text": page, "extractor": "text", "note": "its JSON is damaged"}
    if is_json_feed(value):
        title, text = read_json_feed(value, url)
        return {"title": title, "text": text, "extractor": "feed", "note": ""}
    return {"title": "", "text": as_pretty_json(page), "extractor": "json", "note": ""}


def html_page(page: str, url: str) -> dict[str, Any]:
    """The readable text of an HTML page, by the extraction library if it finds enough."""
    found = _library_text(page, url)
    if found is not None:
        title, text, is_enough = found
        if is_enough:
            return {"title": title, "text": clean(text), "extractor": "trafilatura", "note": ""}
    root = parse_html(page)
    plain = to_markdown(root, url)
    answer = {"title": page_title(root), "text": clean(plain), "extractor": "html", "note": _script_note(root, plain)}
    if found is not None and len(found[1]) >= len(plain):
        answer |= {"text": clean(found[1]), "extractor": "trafilatura"}
    return answer


def _library_text(page: str, url: str) -> tuple[str, str, bool] | None:
    """Title and text by the library, and whether they are enough; None if it is not installed or fails."""
    try:
        # An extra, and only this process needs it.
        import trafilatura  # noqa: PLC0415
    except ImportError:
        return None
    tree = trafilatura.load_html(page)
    if tree is None:
        return None
    title = _lxml_title(tree)
    _drop_boilerplate(tree)
    if url:
        _make_links_absolute(tree, url)
    mains = tree.xpath('//main|//*[@role="main"]')
    main_chars = len(" ".join(mains[0].xpath("string()").split())) if len(mains) == 1 else 0
    text = trafilatura.extract(
        tree,
        output_format="markdown",
        include_comments=False,
        include_formatting=True,
        include_links=True,
        include_tables=True,
    )
    text = text or ""
    shown = len(_LINK.sub("]", text))
    return title, text, shown >= MIN_CHARS and shown >= MIN_MAIN_SHARE * main_chars


def _drop_boilerplate(tree: Any) -> None:
    """Take out what is never content: the library copies it many times, and at worst takes a menu for the page."""
    for element in list(tree.iter(*_NO_TEXT)):
        # The library reads the data that a page gives for machines.
        if element.get("type") != "application/ld+json":
            element.drop_tree()
    # What nobody sees is often meant for machines only; a page that shows itself later by a script is kept.
    _drop_if_enough_is_left(tree, [one for one in tree.xpath(_MAYBE_HIDDEN) if is_invisible(one.attrib)])
    _drop_if_enough_is_left(tree, tree.iter(*_AROUND))


def _drop_if_enough_is_left(tree: Any, elements: Iterable[Any]) -> None:
    found = dict.fromkeys(elements)
    outer = [one for one in found if not any(above in found for above in one.iterancestors())]
    if outer and _chars(tree) - sum(map(_chars, outer)) >= MIN_CHARS:
        for element in outer:
            element.drop_tree()


def _chars(element: Any) -> int:
    return len("".join(element.text_content().split()))


def _make_links_absolute(tree: Any, url: str) -> None:
    """Resolve links against the page; the library itself resolves them against the host. Scripts become plain text."""
    base = urljoin(url, next(iter(tree.xpath("//base/@href")), ""))
    origin = urljoin(base, "/").rstrip("/")
    for link in list(tree.iter("a")):
        address = link.get("href", "")
        if not address or address.startswith(("http://", "https://", "#")):
            continue
        if address[0] == "/" and address[1:2] != "/" and "/." not in address:
            link.set("href", origin + address)
        elif address.strip().lower().startswith(("javascript:", "data:", "vbscript:")):
            link.drop_tag()
        else:
            try:
                link.set("href", urljoin(base, address.strip()))
            except ValueError:
                # Neither an address nor a path.
                link.drop_tag()


def _lxml_title(tree: Any) -> str:
    for path in ('//meta[@property="og:title"]/@content', "//title/text()", "//h1"):
        for found in tree.xpath(path)[:1]:
            text = " ".join((found if isinstance(found, str) else found.text_content()).split())
            if text:
                return text
    return ""


def _script_note(root: Element, text: str) -> str:
    if len(text) >= MIN_CHARS:
        return ""
    scripts = sum(one.tag == "script" for one in root.walk())
    says_so = any(one.tag == "noscript" and _NEEDS_SCRIPT.search(_all_text(one)) for one in root.walk())
    roots = any(one.attributes.get("id") in ("root", "app", "__next", "__nuxt") for one in root.walk())
    if says_so or (scripts and (roots or len(text) < 50)):
        return "the page shows its content only with JavaScript, which was not run"
    return ""


def _all_text(element: Element) -> str:
    return " ".join(child if isinstance(child, str) else _all_text(child) for child in element.children)


def clean(text: str) -> str:
    """The text without embedded images, which only fill the context of a model."""
    if "data:" in text:
        text = _DATA_IMAGE.sub(lambda found: f"[IMAGE: {found[1]}]", text)
        text = _BARE_DATA.sub("[IMAGE]", text)
    return text[:MAX_TEXT_CHARS]


# Characters


def decoded(data: bytes, charset: str) -> str:
    """The text of a page: by its byte order mark, the server's word, its own word, or a guess."""
    for mark, name in _BOMS:
        if data.startswith(mark):
            return data.decode(name, "replace").removeprefix("\ufeff")
    inside = _META_CHARSET.search(data[:4_096]) or _XML_CHARSET.match(data[:400])
    for name in (charset, inside[1].decode("ascii") if inside else "", "utf-8"):
        text = _decoded_as(data, name)
        if text is not None:
            return text
    return _guessed(data)


def _decoded_as(data: bytes, charset: str) -> str | None:
    name = _REAL_CHARSETS.get(charset.strip().lower(), charset.strip().lower())
    if not name or name in ("utf-7", "idna", "punycode", "raw_unicode_escape", "unicode_escape"):
        return None
    try:
        text = codecs.decode(data, name)
    except UnicodeDecodeError as error:
        # One damaged character in a long page does not mean that its encoding is another one.
        is_end = error.start > len(data) - 4
        damaged = data.decode(name, "replace")
        return damaged if is_end or damaged.count("\ufffd") <= len(damaged) // 1_000 else None
    except (LookupError, ValueError, TypeError):
        return None
    return text if isinstance(text, str) else None


def _guessed(data: bytes) -> str:
    try:
        # Comes with the extraction library.
        import charset_normalizer  # noqa: PLC0415
    except ImportError:
        return data.decode("cp1252", "replace")
    best = charset_normalizer.from_bytes(data[:200_000]).best()
    return data.decode(best.encoding if best is not None else "cp1252", "replace")
