"""The service behind `vision_analyze` and `video_analyze`, and every other tool that has to look at an image."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any

from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.media.images import ImagePreparer, MediaFailed, MediaSources, PreparedImage
from toolcrib.media.vision_model import VisionModel, VisionRoute, choose_route
from toolcrib.registry.results import sendable, tool_error, tool_result

OCR_SIDE = 2_400
"""Recognising small text needs more pixels than a model does."""
MEGABYTE = 1_000_000

VisionResult = str | JsonObject


class VisionService:
    """Looks at images for one runtime, on any loop."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self._settings = settings
        self._sources = MediaSources(settings.home, services)
        self._preparer = ImagePreparer(settings.vision)

    async def analyze(
        self, images: Sequence[bytes], question: str, ctx: ToolContext, *, facts: JsonObject | None = None
    ) -> VisionResult:
        """The result of a tool that looks at images; `facts` are further keys of it. A failure is an error result."""
        return await self._bounded(self._analyze(list(images), question, ctx, facts or {}), ctx)

    async def analyze_image(self, args: JsonObject, ctx: ToolContext) -> VisionResult:
        """`vision_analyze`."""
        return await self._bounded(self._analyze_sources(args, ctx), ctx)

    def image_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        """What reading the images of a call does."""
        found = [effect for source in image_sources(args) for effect in self._sources.effects(source, ctx)]
        return tuple(dict.fromkeys(found))

    def close(self) -> None:
        self._preparer.close()

    async def _bounded(self, work: Awaitable[VisionResult], ctx: ToolContext) -> VisionResult:
        seconds = self._settings.vision.timeout
        if ctx.deadline is not None:
            seconds = max(0.1, min(seconds, ctx.deadline - time.monotonic()))
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            return tool_error(f"it took longer than {seconds:.0f} seconds; try again, or a smaller file", success=False)
        except ToolcribError as error:
            return tool_error(error, success=False)

    async def _analyze_sources(self, args: JsonObject, ctx: ToolContext) -> VisionResult:
        sources, most = image_sources(args), self._settings.vision.max_images
        if not sources:
            raise MediaFailed("no image is given; pass a path, a web address or a data URL in `image_url`")
        if len(sources) > most:
            raise MediaFailed(f"{len(sources)} images are too many; pass at most {most} at once")
        # Before anything is fetched, because without anybody to look there is no use in it.
        choose_route(self._settings, ctx)
        max_bytes = int(self._settings.vision.max_file_mb * MEGABYTE)
        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(self._read(source, ctx, max_bytes)) for source in sources]
        found = [task.result() for task in reading]
        failed = [one for one in found if isinstance(one, ToolcribError)]
        if failed:
            raise failed[0]
        images = [one for one in found if isinstance(one, bytes)]
        return await self._analyze(images, question_of(args), ctx, {}, [shown(source) for source in sources])

    async def _read(self, source: str, ctx: ToolContext, max_bytes: int) -> bytes | ToolcribError:
        try:
            return await self._sources.read(source, ctx, max_bytes)
        except ToolcribError as error:
            # A value, so that it reaches the model as it is and not inside a group.
            return error

    async def _analyze(
        self, images: list[bytes], question: str, ctx: ToolContext, facts: JsonObject, names: Sequence[str] = ()
    ) -> VisionResult:
        route = choose_route(self._settings, ctx)
        names = names or [f"image {number}" for number in range(1, len(images) + 1)]
        max_side = OCR_SIDE if route.looker == "ocr" else 0
        prepared = [await self._prepared(data, name, max_side) for data, name in zip(images, names, strict=True)]
        about = {"images": [_about(name, image) for name, image in zip(names, prepared, strict=True)], **facts}
        if route.looker == "main":
            return _handed_over(question, prepared, about)
        if route.looker == "ocr":
            return await self._recognised(prepared, about)
        return await self._described(route, question, prepared, about)

    async def _prepared(self, data: bytes, name: str, max_side: int) -> PreparedImage:
        try:
            return await self._preparer.prepare(data, max_side=max_side)
        except MediaFailed as error:
            raise MediaFailed(f"{name} cannot be shown: {error}") from error

    async def _described(
        self, route: VisionRoute, question: str, images: Sequence[PreparedImage], about: JsonObject
    ) -> str:
        async with VisionModel(self._settings, route) as model:
            answer = await model.answer(question, [image.part for image in images], self._settings.vision.timeout)
        known: JsonObject = {"success": True, "analysis": answer.message.text, "model": model.name}
        if answer.usage.cost_usd is not None:
            known["cost_usd"] = answer.usage.cost_usd
        return sendable(tool_result({**known, **about}))

    async def _recognised(self, images: Sequence[PreparedImage], about: JsonObject) -> str:
        texts = [await self._preparer.read_text(image) for image in images]
        found = "\n\n".join(text.strip() or "(no text)" for text in texts)
        note = "OCR only: no model that sees is configured, so this is the text in the image and nothing else"
        return sendable(tool_result({"success": True, "analysis": found, "model": "OCR only", "note": note, **about}))


def image_sources(args: JsonObject) -> list[str]:
    """The images of a call, in order; models pass one as text, several as a list."""
    given: Any = args.get("image_url") or []
    listed = [given] if isinstance(given, (str, dict)) else list(given)
    texts = [str(one.get("url") or "") if isinstance(one, dict) else str(one) for one in listed]
    return list(dict.fromkeys(text.strip() for text in texts if text.strip()))


def question_of(args: JsonObject) -> str:
    return str(args.get("question") or "").strip() or "Describe what is shown, in detail."


def shown(source: str) -> str:
    """A source, short enough for a message."""
    if source.lower().startswith("data:"):
        return f"the data URL {source[:30]!r}…"
    return source if len(source) <= 300 else source[:300] + "…"


def _about(name: str, image: PreparedImage) -> JsonObject:
    known: JsonObject = {
        "source": name,
        "format": image.format.lower(),
        "width": image.original_width,
        "height": image.original_height,
    }
    if (image.width, image.height) not in (
        (image.original_width, image.original_height),
        (image.original_height, image.original_width),
    ):
        known["shown_as"] = f"{image.width}x{image.height}"
    if image.note:
        known["note"] = image.note
    return known


def _handed_over(question: str, images: Sequence[PreparedImage], about: JsonObject) -> JsonObject:
    """The images themselves, for the model that asked."""
    note = "the images follow; answer the question from what they show"
    text = tool_result({"success": True, "question": question, "note": note, **about})
    parts = [{"type": "image_url", "image_url": {"url": image.data_url}} for image in images]
    return {"_multimodal": True, "content": [{"type": "text", "text": sendable(text)}, *parts]}
