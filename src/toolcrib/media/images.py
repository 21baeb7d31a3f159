"""Where images come from, and how they are prepared for a model."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import re
import urllib.parse
from typing import Literal

import msgspec

from toolcrib.config.media_settings import VisionSettings
from toolcrib.config.page_files import owner_of_cached
from toolcrib.config.paths import Home
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.messages import Image
from toolcrib.core.types import Effect, JsonObject
from toolcrib.sessions.owners import session_owner
from toolcrib.worker_processes import WorkerLimits, WorkerPool, WorkerStopped

MAX_EMBEDDED_BYTES = 3_000_000
"""In Base64 this becomes four megabytes; servers refuse more, and with it the whole conversation."""
MAX_SIDE = 7_900
PREPARE_SECONDS = 20
PREPARE_MEMORY_BYTES = 2 * 1024**3
OCR_SECONDS = 60
OCR_MEMORY_BYTES = 8 * 1024**3
"""Mostly address space that the libraries reserve without using it."""
_WORKER = "toolcrib.media.image_worker"
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,", re.IGNORECASE)

SourceKind = Literal["web", "data", "own", "file"]


class MediaFailed(ToolcribError):
    """An image or video that cannot be analysed; the message says why and what to do."""


class PreparedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that any model accepts."""

    data: bytes
    media_type: str
    width: int
    height: int
    original_width: int
    original_height: int
    format: str
    """The format that it had, for example `WEBP`."""
    note: str = ""

    @property
    def part(self) -> Image:
        return Image(media_type=self.media_type, data=base64.b64encode(self.data).decode())

    @property
    def data_url(self) -> str:
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"


class MediaSources:
    """Fetches and reads what calls name: an address, a data URL, a file of the session, or a file of our own cache."""

    def __init__(self, home: Home, services: Services) -> None:
        self._services = services
        self._home = home

    def kind_of(self, source: str, ctx: ToolContext) -> SourceKind:
        lowered = source[:8].lower()
        if lowered.startswith(("http://", "https://")):
            return "web"
        if lowered.startswith("data:"):
            return "data"
        # Results name files of our own cache, which only this machine has.
        return "own" if os.path.isabs(source) and self._is_own(os.path.realpath(source), ctx) else "file"  # noqa: PTH117

    def _is_own(self, path: str, ctx: ToolContext) -> bool:
        """Whether it is a file in our cache that belongs to whoever calls."""
        cache, images = self._home.root / "cache", self._home.images_dir
        if not path.startswith(tuple(os.path.realpath(folder) + os.sep for folder in (cache, images))):
            return False
        owner = owner_of_cached(cache, path)
        return owner == session_owner(self._home, ctx.session_id)

    def effects(self, source: str, ctx: ToolContext) -> tuple[Effect, ...]:
        """What reading this source does."""
        kind = self.kind_of(source, ctx)
        if kind == "web":
            return self._services.web.extract_effects({"urls": [source]})
        if kind == "data":
            return ()
        if kind == "own":
            return (Effect("read", os.path.realpath(source)),)
        return self._services.files.read_effects({"path": local_path(source)}, ctx)

    async def read(self, source: str, ctx: ToolContext, max_bytes: int) -> bytes:
        """The bytes; raises ToolcribError."""
        kind = self.kind_of(source, ctx)
        if kind == "web":
            return await self._services.web.fetch(source, max_bytes)
        if kind == "data":
            return from_data_url(source, max_bytes)
        if kind == "own":
            return await asyncio.to_thread(_own_bytes, source, max_bytes)
        return await self._services.files.read_bytes(local_path(source), ctx, max_bytes)


def local_path(source: str) -> str:
    """The path in a `file:` address; anything else is a path already."""
    if not source.lower().startswith("file:"):
        return source
    parts = urllib.parse.urlsplit(source)
    if parts.netloc not in ("", "localhost"):
        raise MediaFailed(f"{source!r} is a file on another machine; pass a path on this one, or a web address")
    return urllib.parse.unquote(parts.path)


def from_data_url(url: str, max_bytes: int) -> bytes:
    """The bytes that a data URL contains."""
    head = _DATA_URL.match(url)
    if head is None:
        raise MediaFailed("the data URL is damaged; write it as data:image/png;base64,…")
    text = url[head.end() :]
    if len(text) > max_bytes * 3:
        raise MediaFailed(f"the data URL is too long; at most {max_bytes} bytes are allowed")
    try:
        if head[3] is None:
            data = urllib.parse.unquote_to_bytes(text)
        else:
            compact = re.sub(r"\s+", "", urllib.parse.unquote(text)).replace("-", "+").replace("_", "/").rstrip("=")
            data = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise MediaFailed("the data URL is damaged: its Base64 text cannot be decoded") from None
    if len(data) > max_bytes:
        raise MediaFailed(f"the data URL contains {len(data)} bytes; at most {max_bytes} are allowed")
    return data


def _own_bytes(path: str, max_bytes: int) -> bytes:
    try:
        with open(os.path.realpath(path), "rb") as file:  # noqa: PTH123
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise MediaFailed(f"{path!r} cannot be read: {error.strerror or error}; it may have been deleted") from error
    if len(data) > max_bytes:
        raise MediaFailed(f"{path!r} is larger than {max_bytes} bytes")
    return data


class ImagePreparer:
    """Makes images ready for models, in worker processes. Thread-safe."""

    def __init__(self, settings: VisionSettings) -> None:
        self._settings = settings
        self._workers = WorkerPool(
            _WORKER, WorkerLimits(seconds=PREPARE_SECONDS, memory_bytes=PREPARE_MEMORY_BYTES, max_workers=2)
        )
        self._readers = WorkerPool(
            _WORKER, WorkerLimits(seconds=OCR_SECONDS, memory_bytes=OCR_MEMORY_BYTES, max_workers=1)
        )

    async def prepare(self, data: bytes, *, max_side: int = 0, max_bytes: int = MAX_EMBEDDED_BYTES) -> PreparedImage:
        """The image, upright and small enough; raises MediaFailed with the end of a sentence about it."""
        if not data:
            raise MediaFailed("it is empty")
        if is_svg(data):
            raise MediaFailed("it is an SVG drawing, which is text; read it with read_file or web_extract")
        limits: JsonObject = {
            "task": "prepare",
            "max_side": min(MAX_SIDE, max_side or self._settings.max_side),
            "max_bytes": max_bytes,
            "max_pixels": int(self._settings.max_megapixels * 1_000_000),
        }
        answer, encoded = await self._run(self._workers, limits, data)
        return msgspec.convert({**answer, "data": encoded}, PreparedImage)

    async def read_text(self, image: PreparedImage) -> str:
        """The text in an image, one line each; raises MediaFailed."""
        _, text = await self._run(self._readers, {"task": "ocr"}, image.data)
        return text.decode()

    async def _run(
        self, workers: WorkerPool, job: dict[str, str | int], data: bytes
    ) -> tuple[dict[str, object], bytes]:
        try:
            answer, found = await asyncio.to_thread(workers.run, job, data)
        except WorkerStopped as error:
            raise MediaFailed(str(error)) from error
        if "error" in answer:
            raise MediaFailed(str(answer["error"]))
        return answer, found

    def close(self) -> None:
        self._workers.close()
        self._readers.close()


def is_svg(data: bytes) -> bool:
    start = data[:1_024].lstrip().lower()
    return start.startswith((b"<svg", b"<?xml")) and b"<svg" in start
