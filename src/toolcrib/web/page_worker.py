"""Extracts the readable text of pages, in a separate process because a page may be made to attack its reader.

Run as `python -I page_worker.py MEMORY_BYTES CPU_SECONDS IDLE_SECONDS`. Reads jobs on standard input and answers each
on standard output: one line of JSON with `length`, then that many bytes. It ends at the end of its input, or when it
has been idle. The time limit is for one page; loading the extraction library takes longer than reading most pages, so
one process reads many.
"""

from __future__ import annotations

import codecs
import json
import re
import resource
import select
import sys
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin

if __name__ == "__main__":
    # `-I` leaves out PYTHONPATH, but toolcrib may be running from there.
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from toolcrib.web.feeds import as_pretty_json, is_feed, is_json_feed, read_feed, read_json_feed
from toolcrib.web.html_markdown import Element, page_title, parse_html, to_markdown

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
    memory, seconds, idle = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(3_000)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    # The library may print or log; nothing but answers may reach the parent.
    sys.stdout = sys.stderr
    while select.select([source], [], [], idle)[0]:
        line = source.readline()
        if not line:
            return 0
        job = json.loads(line)
        _limit_time(seconds)
        _answer(sink, _safely(job, source.read(job["length"])))
    return 0


def _limit_time(seconds: int) -> None:
    """Let the next page use this much time of the processor, on top of what was used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))


def _answer(sink: BinaryIO, answer: dict[str, Any]) -> None:
    text = answer.pop("text", "").encode("utf-8", "replace")
    sink.write(json.dumps({**answer, "length": len(text)}).encode() + b"\n" + text)
    sink.flush()


def _safely(job: dict[str, Any], data: bytes) -> dict[str, Any]:
    try:
        return read_page(data, job["content_type"], job["charset"], job["url"])
    except MemoryError:
        return {"error": "it needs too much memory"}
    except Exception as error:  # noqa: BLE001 - a reader of hostile pages may raise anything
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


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
    if url:
        _make_links_absolute(tree, url)
    mains = tree.xpath('//main|//*[@role="main"]')
    main_chars = len(" ".join(mains[0].xpath("string()").split())) if len(mains) == 1 else 0
    text = trafilatura.extract(
        tree,
        url=url or None,
        output_format="markdown",
        include_comments=False,
        include_formatting=True,
        include_links=True,
        include_tables=True,
    )
    text = text or ""
    shown = len(_LINK.sub("]", text))
    return title, text, shown >= MIN_CHARS and shown >= MIN_MAIN_SHARE * main_chars


def _make_links_absolute(tree: Any, url: str) -> None:
    """Resolve links against the page; the library itself resolves them against the host."""
    base = urljoin(url, next(iter(tree.xpath("//base/@href")), ""))
    origin = urljoin(base, "/").rstrip("/")
    for link in tree.iter("a"):
        address = link.get("href", "")
        if not address or address.startswith(("http://", "https://", "#")):
            continue
        if address[0] == "/" and address[1:2] != "/" and "/." not in address:
            link.set("href", origin + address)
        else:
            try:
                link.set("href", urljoin(base, address.strip()))
            except ValueError:
                # Neither an address nor a path: the library drops it.
                continue


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


if __name__ == "__main__":
    sys.exit(main())
