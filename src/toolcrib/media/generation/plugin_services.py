"""Adapts what plugins pass to `ctx.register_image_gen_provider` and `ctx.register_video_gen_provider`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolcrib.media.generation.provider import GeneratedMedia, ImageRequest, VideoRequest
from toolcrib.web.plugin_provider import PluginProvider, declared_objects


class PluginGenerator(PluginProvider):
    """A plugin's object that makes images or videos."""

    is_free = False

    def __init__(self, provider: Any, seconds: float, kind: str) -> None:
        super().__init__(provider, seconds)
        self._kind = kind

    @property
    def can_edit(self) -> bool:
        given = self.ask("capabilities", {})
        modalities = given.get("modalities", ()) if isinstance(given, Mapping) else ()
        return "image" in modalities

    def model_for(self, *_: object, **__: object) -> str:
        return str(self.ask("default_model", "") or "")

    async def make_image(self, request: ImageRequest) -> GeneratedMedia:
        images = [image.data_url for image in request.images]
        given: dict[str, Any] = {"image_url": images[0], "reference_image_urls": images[1:] or None} if images else {}
        return await self._made(request.prompt, request.aspect_ratio, **given)

    async def make_video(self, request: VideoRequest) -> GeneratedMedia:
        images = [image.data_url for image in request.images]
        given: dict[str, Any] = {
            "model": request.model,
            "image_url": images[0] if images else None,
            "reference_image_urls": images[1:],
            "duration": request.duration,
            "aspect_ratio": request.aspect_ratio,
            "resolution": request.resolution,
            "negative_prompt": request.negative_prompt,
            "audio": request.audio,
            "seed": request.seed,
        }
        named = {name: value for name, value in given.items() if value not in (None, "", [])}
        return await self._made(request.prompt, **named)

    async def _made(self, *arguments: Any, **options: Any) -> GeneratedMedia:
        answer = await self.call(self.provider.generate, *arguments, **options)
        self.require_success(answer)
        made = answer.get(self._kind) if isinstance(answer, Mapping) else None
        if not isinstance(made, str) or not made:
            raise self.malformed()
        return GeneratedMedia(path=made, model=str(answer.get("model") or ""))


def of_plugins(plugins: Sequence[Any], kind: str, seconds: float) -> list[PluginGenerator]:
    """What the loaded plugins offer, for `image` or `video`."""
    found = [PluginGenerator(one, seconds, kind) for one in declared_objects(plugins, f"{kind}_gen_provider")]
    return [one for one in found if one.name and one.is_available]
