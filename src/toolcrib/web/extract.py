"""`web_extract`: fetches pages in parallel and returns each as readable text, or the reason why not."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

import msgspec

from toolcrib.config.page_files import PageFiles
from toolcrib.config.settings import Settings
from toolcrib.core.context import Services
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.sessions.owners import calling_owner
from toolcrib.web.addresses import AddressRefused, WebAddress
from toolcrib.web.cache import RecentAnswers
from toolcrib.web.guard import HostNotFound
from toolcrib.web.http_client import FetchFailed, FetchLimits, GuardedClient, HttpRequest, HttpResponse
from toolcrib.web.page_reader import PageReader, PageText, PageUnreadable
from toolcrib.web.provider_access import ProviderFailed
from toolcrib.web.providers.choose import ProviderChoice
from toolcrib.web.providers.provider import ProviderPage, WebProvider

ALL_SECONDS = 360.0
MAX_URLS = 5
DEFAULT_CHARS, MIN_CHARS, MAX_CHARS = 15_000, 2_000, 500_000
HEAD_SHARE = 0.75
FEW_CHARS = 200
"""A page with scripts and less text than this is probably made by them."""
MAX_SAVED_CHARS = 2_000_000
ACCEPT = "text/html,application/xhtml+xml,application/pdf;q=0.9,text/plain;q=0.9,application/json;q=0.9,*/*;q=0.5"
DOCUMENTS = {
    "application/pdf": "pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
}
IMAGES = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/avif": ".avif",
    "image/tiff": ".tiff",
    "image/bmp": ".bmp",
}
_IMAGE_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
)
_TEXT_TYPES = re.compile(r"text/|.*[+/](?:json|xml|javascript|x-ndjson|yaml|x-yaml|toml|sql|x-sh)$")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9_:.-]+)", re.IGNORECASE)


RenderPage = Callable[[str, float], Awaitable[tuple[str, str] | None]]
"""Opens an address in a browser, within some seconds; gives the final address and the HTML after the scripts ran."""


class PageFailed(ToolcribError):
    """A page without readable text; the message says why."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page that was read."""

    url: str
    """The address that answered, after redirects."""
    content_type: str
    text: PageText
    provider: str = ""
    """The provider that read it; empty for our own fetcher."""
    image: str = ""
    """The file with the image, if it is one."""
    may_be_reused: bool = False


class WebExtract:
    """Reads the pages of one runtime, and remembers them for a while."""

    def __init__(
        self,
        settings: Settings,
        services: Services,
        client: GuardedClient,
        choice: ProviderChoice,
        reader: PageReader,
        render: RenderPage | None = None,
    ) -> None:
        self._settings = settings
        self._services = services
        self._client = client
        self._choice = choice
        self._reader = reader
        self._render = render
        self._recent: RecentAnswers[Page] = RecentAnswers(settings.web.cache_minutes * 60, max_count=50)
        self._files = PageFiles(
            settings.home.web_dir,
            int(settings.web.max_cache_mb * 1_000_000),
            lambda: calling_owner(settings.home),
        )

    async def run(self, urls: Sequence[str], char_limit: int, seconds: float = ALL_SECONDS) -> JsonObject:
        """One outcome for each address, in the same order."""
        deadline = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as tasks:
            # An address that is named twice is fetched once.
            started = {url: tasks.create_task(self._outcome(url, char_limit, deadline, seconds)) for url in set(urls)}
        results = [started[url].result() for url in urls]
        answer: JsonObject = {"results": results}
        failed = [one["error"] for one in results if one["error"]]
        if len(failed) == len(results):
            answer = {"error": f"no page could be read: {failed[0]}", **answer}
        return answer

    async def _outcome(self, url: str, char_limit: int, deadline: float, seconds: float) -> JsonObject:
        try:
            async with asyncio.timeout_at(deadline):
                address = self._client.guard.check(url)
                # An image is a file of its owner.
                known_as = f"{calling_owner(self._settings.home)} {address}"
                page = self._recent.get(known_as)
                is_cached = page is not None
                if page is None:
                    page = await self._read(address)
                    if page.may_be_reused:
                        self._recent.put(known_as, page)
        except TimeoutError:
            return _failure(url, f"it was not read within {seconds:g} seconds")
        except AddressRefused as error:
            failure = _failure(url, str(error))
            return {**failure, "blocked_by_policy": True} if error.by_policy else failure
        except (HostNotFound, FetchFailed, PageFailed, PageUnreadable) as error:
            return _failure(url, str(error))
        shown = self._shown(url, address, page, char_limit)
        return {**shown, "cached": True} if is_cached else shown

    # Reading one page

    async def _read(self, address: WebAddress) -> Page:
        preferred = self._choice.preferred_extractor
        # Providers must not learn addresses that only this network knows.
        if preferred and await self._client.guard.is_public(address):
            page = await self._by_providers(address, self._choice.for_extract()[:1])
            if page is not None:
                return page
        try:
            return await self._by_own_fetch(address)
        except (FetchFailed, PageFailed, PageUnreadable) as error:
            others = [one for one in self._choice.for_extract() if one.name != preferred]
            if not others or not await self._client.guard.is_public(address):
                raise
            page = await self._by_providers(address, others)
            if page is None:
                raise
            return msgspec.structs.replace(page, text=_with_note(page.text, f"our own fetch failed: {error}"))

    async def _by_providers(self, address: WebAddress, providers: Sequence[WebProvider]) -> Page | None:
        """The page from the first provider that delivers it."""
        for provider in providers:
            try:
                pages = await provider.extract([str(address)])
            except ProviderFailed:
                continue
            found = next((one for one in pages if one.content and not one.error), None)
            if found is not None:
                return _provided(address, found, provider)
        return None

    async def _by_own_fetch(self, address: WebAddress) -> Page:
        web = self._settings.web
        limits = FetchLimits(
            max_bytes=int(web.max_page_mb * 1_000_000), seconds=web.timeout, max_redirects=web.max_redirects
        )
        response = await self._client.send(HttpRequest(url=address, headers={"accept": ACCEPT}, limits=limits))
        if response.status >= 400:
            raise PageFailed(f"{address.host!r} answered {_status(response.status)}")
        if not response.body:
            raise PageFailed(f"{address.host!r} answered with an empty page")
        try:
            page = await self._parse(address, response)
        except (PageFailed, PageUnreadable):
            rendered = await self._by_browser(address, response)
            if rendered is None:
                raise
            return rendered
        if len(page.text.text) < FEW_CHARS:
            rendered = await self._by_browser(address, response)
            if rendered is not None and len(rendered.text.text) > len(page.text.text):
                return rendered
        return page

    async def _by_browser(self, address: WebAddress, response: HttpResponse) -> Page | None:
        """The page after its scripts ran; None if it has none, or there is no browser."""
        if self._render is None or "html" not in response.content_type or b"<script" not in response.body.lower():
            return None
        found = await self._render(response.url, self._settings.web.timeout)
        if found is None:
            return None
        url, html = found
        drawn = msgspec.structs.replace(
            response, url=url, body=html.encode(), headers={"content-type": "text/html; charset=utf-8"}
        )
        try:
            page = await self._parse(address, drawn)
        except (PageFailed, PageUnreadable):
            return None
        may_be_reused = page.may_be_reused and _may_be_reused(response)
        note = _with_note(page.text, "read in a browser, because the page is made by scripts")
        return msgspec.structs.replace(page, text=note, may_be_reused=may_be_reused)

    async def _parse(self, address: WebAddress, response: HttpResponse) -> Page:
        content_type = _real_type(response)
        may_be_reused = _may_be_reused(response) and not response.is_private
        if content_type in IMAGES:
            return self._image_page(address, response, content_type)
        if content_type in DOCUMENTS:
            text = await self._document(DOCUMENTS[content_type], response.body)
        elif _is_text(content_type, response.body):
            charset = _CHARSET.search(response.headers.get("content-type", ""))
            text = await asyncio.to_thread(
                self._reader.read,
                response.body,
                content_type=content_type,
                charset=charset[1] if charset else "",
                url=response.url,
            )
        else:
            raise PageFailed(f"it is {content_type or 'of an unknown type'}, which has no readable text")
        if not text.text.strip():
            raise PageFailed(text.note or "it has no readable text")
        return Page(url=response.url, content_type=content_type, text=text, may_be_reused=may_be_reused)

    async def _document(self, kind: str, data: bytes) -> PageText:
        try:
            found, note = await self._services.files.document_text(kind, data)
        except ToolcribError as error:
            raise PageFailed(f"the {kind} file cannot be read: {error}") from error
        return PageText(text=found, extractor=kind, note=note)

    def _image_page(self, address: WebAddress, response: HttpResponse, content_type: str) -> Page:
        try:
            path = self._files.save(address.host, str(address), response.body, IMAGES[content_type])
        except OSError as error:
            raise PageFailed(f"the image could not be saved ({error.strerror or error})") from error
        text = f"[IMAGE: {content_type}, {len(response.body)} bytes, saved as {path}; vision_analyze looks at it]"
        return Page(
            url=response.url,
            content_type=content_type,
            text=PageText(text=text, extractor="image"),
            image=str(path),
        )

    # Showing it

    def _shown(self, url: str, address: WebAddress, page: Page, char_limit: int) -> JsonObject:
        text = page.text.text
        shown: JsonObject = {"url": url, "title": page.text.title, "content": text, "error": None}
        if page.url != str(address):
            shown["final_url"] = page.url
        shown |= {"content_type": page.content_type, "extractor": page.text.extractor}
        if page.provider:
            shown["provider"] = page.provider
        if page.image:
            shown["image"] = page.image
        if page.text.note:
            shown["note"] = page.text.note
        if len(text) > char_limit:
            shown |= self._cut(address, text, char_limit)
        return shown

    def _cut(self, address: WebAddress, text: str, char_limit: int) -> JsonObject:
        head, tail = head_and_tail(text, char_limit)
        omitted = len(text) - len(head) - len(tail)
        cut: JsonObject = {"truncated": True, "total_chars": len(text)}
        next_line = head.count("\n") + 1
        try:
            path = str(self._files.save(address.host, str(address), text[:MAX_SAVED_CHARS].encode(), ".md"))
        except OSError as error:
            where = f"the full text could not be saved ({error.strerror or error})"
        else:
            cut["file"] = path
            where = f"full text: {path}; continue with read_file(path={path!r}, offset={next_line})"
        gap = f"… [{omitted} of {len(text)} characters left out here] …"
        return {"content": f"{head.rstrip()}\n\n{gap}\n\n{tail.strip()}\n\n[{where}]", **cut}


def head_and_tail(text: str, limit: int) -> tuple[str, str]:
    """The beginning and the end of a text, together within the limit, cut at line ends where there are any nearby."""
    head_chars = int(limit * HEAD_SHARE)
    tail_chars = limit - head_chars
    head = text[:head_chars]
    end = max(head.rfind("\n") + 1, head.rfind(" ") + 1 if head.rfind("\n") < head_chars // 2 else 0)
    head = head[:end] if end > head_chars // 2 else head
    tail = text[-tail_chars:]
    start = tail.find("\n") + 1
    if not 0 < start < tail_chars // 2:
        start = tail.find(" ") + 1
    return head, tail[start:] if 0 < start < tail_chars // 2 else tail


def _failure(url: str, error: str) -> JsonObject:
    return {"url": url, "title": "", "content": "", "error": error}


def _provided(address: WebAddress, found: ProviderPage, provider: WebProvider) -> Page:
    text = PageText(title=found.title, text=found.content, extractor=provider.name)
    return Page(
        url=str(address), content_type="text/markdown", text=text, provider=provider.display_name, may_be_reused=True
    )


def _with_note(text: PageText, note: str) -> PageText:
    return msgspec.structs.replace(text, note="; ".join(filter(None, (text.note, note))))


def _status(status: int) -> str:
    try:
        return f"HTTP {status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return f"HTTP {status}"


def _real_type(response: HttpResponse) -> str:
    """The type by the first bytes, which cannot lie as easily as a header."""
    body = response.body
    if body[:1_024].lstrip()[:5] == b"%PDF-":
        return "application/pdf"
    image = next((kind for start, kind in _IMAGE_STARTS if body.startswith(start)), "")
    if image:
        return image
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "image/webp"
    if body[4:12] in (b"ftypavif", b"ftypavis"):
        return "image/avif"
    claimed = response.content_type
    if claimed == "image/bmp" and body.startswith(b"BM"):
        return claimed
    # Documents and images that are none would only confuse their readers.
    is_zip = body.startswith(b"PK\x03\x04")
    if claimed in IMAGES or claimed == "application/pdf" or (claimed in DOCUMENTS and not is_zip):
        return "application/octet-stream" if b"\0" in body[:4_096] else "text/plain"
    return claimed


def _is_text(content_type: str, body: bytes) -> bool:
    if _TEXT_TYPES.match(content_type):
        return True
    # Unknown types are text if they look like it; UTF-16 has zero bytes, but says so at its beginning.
    is_unknown = content_type in ("", "application/octet-stream", "binary/octet-stream", "application/x-unknown")
    has_mark = body.startswith((b"\xff\xfe", b"\xfe\xff"))
    return is_unknown and (has_mark or b"\0" not in body[:4_096])


def _may_be_reused(response: HttpResponse) -> bool:
    said = {part.partition("=")[0].strip().lower() for part in response.headers.get("cache-control", "").split(",")}
    return not said & {"no-store", "private", "no-cache"}


def seconds_left(deadline: float | None) -> float:
    """How long all pages together may take: the tool's own limit, or what is left of the call's."""
    return ALL_SECONDS if deadline is None else max(0.1, min(ALL_SECONDS, deadline - time.monotonic() - 1))
