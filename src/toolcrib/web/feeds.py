"""RSS, Atom and JSON feeds as Markdown lists: each entry with its title, link, date and summary."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import urljoin
from xml.etree import ElementTree

from toolcrib.web.html_markdown import parse_html

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
