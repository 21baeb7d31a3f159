"""The services that make videos: fal, and xAI, which also changes and extends them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from toolcrib.media.generation.provider import GeneratedMedia, HostedGenerator, VideoRequest
from toolcrib.web.provider_access import ProviderFailed

XAI_ROUTES = {"generate": "/videos/generations", "edit": "/videos/edits", "extend": "/videos/extensions"}


class FalVideos(HostedGenerator):
    """https://docs.fal.ai/model-endpoints/queue"""

    name = "fal"

    def model_for(self, request: VideoRequest) -> str:
        return request.model or self.model or "fal-ai/kling-video/v2.5-turbo/pro/" + _fal_task(request)

    async def make_video(self, request: VideoRequest) -> GeneratedMedia:
        model, headers = self.model_for(request), {"authorization": f"Key {self.access.key}"}
        started = await self.access.post_json(f"/{model}", _fal_input(request), headers)
        names = ("status_url", "response_url", "cancel_url")
        status, response, cancel = self.read(lambda value: [str(value[name]) for name in names], started)
        try:
            await self.finished(lambda: self.access.get_json(status, headers), lambda one: one["status"] == "COMPLETED")
        except (ProviderFailed, asyncio.CancelledError):
            # It would go on, and cost money.
            with contextlib.suppress(ProviderFailed):
                await asyncio.shield(self.access.send("PUT", cancel, headers))
            raise
        answer = await self.access.get_json(response, headers)
        url = self.read(lambda value: value["video"]["url"], answer)
        return GeneratedMedia(data=await self.fetched(url), model=model)


def _fal_task(request: VideoRequest) -> str:
    return "image-to-video" if request.images else "text-to-video"


def _fal_input(request: VideoRequest) -> dict[str, Any]:
    given: dict[str, Any] = {
        "prompt": request.prompt,
        "aspect_ratio": request.aspect_ratio,
        "resolution": request.resolution,
        "negative_prompt": request.negative_prompt,
        "seed": request.seed,
        "generate_audio": request.audio,
        # Its models take the length as text.
        "duration": str(request.duration) if request.duration else None,
    }
    if request.images:
        given["image_url"] = request.images[0].data_url
        given["reference_image_urls"] = [image.data_url for image in request.images[1:]] or None
    return {name: value for name, value in given.items() if value not in (None, "")}


class XaiVideos(HostedGenerator):
    """https://docs.x.ai/docs/guides/video-generations"""

    name = "xai"

    def model_for(self, request: VideoRequest) -> str:
        return request.model or self.model or "grok-imagine-video"

    async def make_video(self, request: VideoRequest) -> GeneratedMedia:
        model = self.model_for(request)
        started = await self.access.post_json(XAI_ROUTES[request.task], self._input(model, request), self.bearer)
        number = self.read(lambda value: str(value["request_id"]), started)
        done = await self.finished(lambda: self.access.get_json(f"/videos/{number}", self.bearer), _is_xai_done)
        if not isinstance(done.get("video"), dict):
            raise ProviderFailed(f"{self.display_name} could not make it; change the prompt", "request")
        return GeneratedMedia(data=await self.fetched(done["video"].get("url")), model=model)

    def _input(self, model: str, request: VideoRequest) -> dict[str, Any]:
        given: dict[str, Any] = {
            "model": model,
            "prompt": request.prompt,
            "duration": request.duration,
            "aspect_ratio": request.aspect_ratio,
            "resolution": request.resolution,
        }
        if request.video_url:
            given["video"] = {"url": request.video_url}
        if request.images:
            given["image"] = {"url": request.images[0].data_url}
            given["reference_images"] = [{"url": image.data_url} for image in request.images[1:]] or None
        return {name: value for name, value in given.items() if value not in (None, "")}


def _is_xai_done(answer: Any) -> bool:
    return bool(answer.get("video")) or answer.get("status") in ("done", "failed", "expired")
