"""The services that generate images and videos.

Images: everything with OpenAI's image routes, fal, Gemini and Replicate. Videos: fal, and xAI, which also changes and
extends them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from toolcrib.media.generation.provider import (
    MAX_SOURCES,
    RATIOS,
    GeneratedMedia,
    HostedGenerator,
    ImageRequest,
    VideoRequest,
)
from toolcrib.web.hosted_service import from_base64
from toolcrib.web.provider_access import ProviderFailed, multipart

FAL_SIZES = {"landscape": "landscape_16_9", "square": "square_hd", "portrait": "portrait_16_9"}
SIZED_FAL_MODELS = ("flux", "qwen", "recraft", "ideogram", "stable-diffusion", "hidream")
"""These take `image_size`; the others take `aspect_ratio`."""


class OpenAIImages(HostedGenerator):
    """https://platform.openai.com/docs/api-reference/images, and every server with the same two routes."""

    name = "openai"
    quality = ""

    @property
    def can_edit(self) -> bool:
        return self.model_for(is_edit=True) != "dall-e-3"

    @property
    def max_images(self) -> int:
        return 1 if self.model_for(is_edit=True) == "dall-e-2" else MAX_SOURCES

    def model_for(self, *, is_edit: bool) -> str:
        return (self.edit_model if is_edit else "") or self.model or "gpt-image-1"

    async def make_image(self, request: ImageRequest) -> GeneratedMedia:
        model = self.model_for(is_edit=bool(request.images))
        fields: dict[str, Any] = {"model": model, "prompt": request.prompt, "n": 1}
        fields["size"] = _openai_size(model, request.aspect_ratio)
        if self.quality:
            fields["quality"] = self.quality
        if model.startswith("dall-e"):
            # The others always send the image itself, and some servers refuse to be told.
            fields["response_format"] = "b64_json"
        answer = await (self._edit(fields, request) if request.images else self._generate(fields))
        first = self.read(lambda value: value["data"][0], answer)
        if isinstance(first, dict) and first.get("b64_json"):
            data = self.read(lambda value: from_base64(value["b64_json"]), first)
        else:
            data = await self.fetched(self.read(lambda value: value["url"], first))
        return GeneratedMedia(data=data, model=model)

    async def _generate(self, fields: dict[str, Any]) -> Any:
        return await self.access.post_json("/images/generations", fields, self.bearer)

    async def _edit(self, fields: dict[str, Any], request: ImageRequest) -> Any:
        texts = {name: str(value) for name, value in fields.items()}
        field = "image" if len(request.images) == 1 else "image[]"
        files = [(field, f"image.{image.extension}", image.data) for image in request.images]
        content_type, body = multipart(texts, files)
        headers = {"content-type": content_type, **self.bearer}
        return self.access.parse(await self.access.send("POST", "/images/edits", headers, body))


def _openai_size(model: str, ratio: str) -> str:
    long_side = {"dall-e-3": 1792, "dall-e-2": 1024}.get(model, 1536)
    sizes = {"landscape": f"{long_side}x1024", "portrait": f"1024x{long_side}"}
    return sizes.get(ratio, "1024x1024")


class FalImages(HostedGenerator):
    """https://docs.fal.ai/model-endpoints/synchronous-requests"""

    name = "fal"
    can_edit = True

    def model_for(self, *, is_edit: bool) -> str:
        if is_edit:
            return self.edit_model or "fal-ai/nano-banana/edit"
        return self.model or "fal-ai/flux/schnell"

    async def make_image(self, request: ImageRequest) -> GeneratedMedia:
        model = self.model_for(is_edit=bool(request.images))
        body: dict[str, Any] = {"prompt": request.prompt, "num_images": 1, "sync_mode": True}
        if any(word in model for word in SIZED_FAL_MODELS) and "ultra" not in model:
            body["image_size"] = FAL_SIZES[request.aspect_ratio]
        else:
            body["aspect_ratio"] = RATIOS[request.aspect_ratio]
        if request.images:
            body["image_urls"] = [image.data_url for image in request.images]
            body["image_url"] = request.images[0].data_url
        headers = {"authorization": f"Key {self.access.key}"}
        answer = await self.access.post_json(f"/{model}", body, headers)
        url = self.read(lambda value: value["images"][0]["url"], answer)
        return GeneratedMedia(data=await self.fetched(url), model=model)


class GeminiImages(HostedGenerator):
    """https://ai.google.dev/gemini-api/docs/image-generation"""

    name = "gemini"
    can_edit = True

    def model_for(self, *, is_edit: bool) -> str:
        return (self.edit_model if is_edit else "") or self.model or "gemini-2.5-flash-image"

    async def make_image(self, request: ImageRequest) -> GeneratedMedia:
        model = self.model_for(is_edit=bool(request.images))
        parts: list[dict[str, Any]] = [{"text": request.prompt}]
        parts += [{"inline_data": {"mime_type": one.media_type, "data": one.base64}} for one in request.images]
        body = {
            "contents": [{"parts": parts}],
            "generationConfig": {
                "responseModalities": ["TEXT", "IMAGE"],
                "imageConfig": {"aspectRatio": RATIOS[request.aspect_ratio]},
            },
        }
        headers = {"x-goog-api-key": self.access.key}
        answer = await self.access.post_json(f"/v1beta/models/{model}:generateContent", body, headers)
        found = self.read(_gemini_image, answer)
        if found is None:
            refused = f"{self.display_name} answered without an image; describe it in other words"
            raise ProviderFailed(refused, "request")
        return GeneratedMedia(data=found, model=model)


def _gemini_image(answer: Any) -> bytes | None:
    """The image of an answer; None if the model only talked."""
    candidates = answer["candidates"]
    parts = candidates[0].get("content", {}).get("parts", []) if candidates else []
    inline = [part.get("inlineData") or part.get("inline_data") for part in parts]
    return next((from_base64(one["data"]) for one in inline if one), None)


class ReplicateImages(HostedGenerator):
    """https://replicate.com/docs/reference/http"""

    name = "replicate"
    can_edit = True

    def model_for(self, *, is_edit: bool) -> str:
        if is_edit:
            return self.edit_model or "google/nano-banana"
        return self.model or "black-forest-labs/flux-schnell"

    async def make_image(self, request: ImageRequest) -> GeneratedMedia:
        model = self.model_for(is_edit=bool(request.images))
        given: dict[str, Any] = {"prompt": request.prompt, "aspect_ratio": RATIOS[request.aspect_ratio]}
        if request.images:
            given["image_input"] = [image.data_url for image in request.images]
        headers = {**self.bearer, "prefer": f"wait={min(60, max(1, int(self.access.seconds) - 1))}"}
        started = await self.access.post_json(f"/v1/models/{model}/predictions", {"input": given}, headers)
        done = started if self.read(_is_replicate_done, started) else await self._waited(started)
        if done.get("status") != "succeeded":
            raise ProviderFailed(f"{self.display_name} could not make it; change the prompt or the model", "request")
        output = done.get("output")
        return GeneratedMedia(data=await self.fetched(output[0] if isinstance(output, list) else output), model=model)

    async def _waited(self, started: Any) -> Any:
        urls = self.read(lambda value: (value["urls"]["get"], value["urls"].get("cancel", "")), started)
        try:
            return await self.finished(lambda: self.access.get_json(urls[0], self.bearer), _is_replicate_done)
        except (ProviderFailed, asyncio.CancelledError):
            # It would go on, and cost money.
            if urls[1]:
                with contextlib.suppress(ProviderFailed):
                    await asyncio.shield(self.access.send("POST", urls[1], self.bearer))
            raise


def _is_replicate_done(answer: Any) -> bool:
    return answer["status"] in ("succeeded", "failed", "canceled", "aborted")


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
