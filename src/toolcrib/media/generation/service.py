"""The service behind `image_generate`, `video_generate` and the two tools for xAI videos."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import msgspec

from toolcrib.config.files import make_folder
from toolcrib.config.page_files import owner_folder
from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.errors import ToolcribError, UnknownName
from toolcrib.core.types import CheckFn, Effect, JsonObject, Unavailable
from toolcrib.media.generation.capabilities import Capabilities, plugin_capabilities
from toolcrib.media.generation.hosted import (
    FalImages,
    FalVideos,
    GeminiImages,
    OpenAIImages,
    ReplicateImages,
    XaiVideos,
)
from toolcrib.media.generation.provider import (
    MAX_SOURCES,
    RATIOS,
    GeneratedMedia,
    HostedGenerator,
    ImageGenerator,
    ImageRequest,
    SourceImage,
    VideoGenerator,
    VideoRequest,
    image_extension,
    video_extension,
)
from toolcrib.media.images import MediaFailed, MediaSources
from toolcrib.registry.registry import ToolRegistry
from toolcrib.sessions.owners import calling_owner
from toolcrib.web.hosted_service import ServiceSpec
from toolcrib.web.http_client import GuardedClient
from toolcrib.web.plugin_provider import PluginProvider, declared_objects
from toolcrib.web.provider_access import bounded

MEGABYTE = 1_000_000
MAX_SOURCE_BYTES = 20 * MEGABYTE
GRACE_SECONDS = 5.0
"""The services have the limit of the settings themselves; what comes around them needs a moment more."""
LATE = "it took longer than {:g} seconds; try again"

PRICES_USD = {
    "gpt-image-1": 0.06,
    "gpt-image-1-mini": 0.02,
    "dall-e-3": 0.08,
    "dall-e-2": 0.02,
    "fal-ai/flux/schnell": 0.003,
    "fal-ai/flux/dev": 0.025,
    "fal-ai/nano-banana": 0.04,
    "fal-ai/nano-banana/edit": 0.04,
    "gemini-2.5-flash-image": 0.04,
    "black-forest-labs/flux-schnell": 0.003,
    "google/nano-banana": 0.04,
}
"""What one image costs about, in dollars, as the services listed it. The settings may know better."""

T = TypeVar("T")


class UnknownGenerator(UnknownName):
    kind = "image or video service"


class GeneratorSpec(ServiceSpec, frozen=True, kw_only=True):
    generator: type[HostedGenerator]


IMAGES = {
    # Whoever has a key for nothing but images means it; the keys of the others may be there for chats.
    "fal": GeneratorSpec("fal", "https://fal.run", ("FAL_KEY",), generator=FalImages),
    "replicate": GeneratorSpec(
        "Replicate", "https://api.replicate.com", ("REPLICATE_API_TOKEN",), generator=ReplicateImages
    ),
    "openai": GeneratorSpec(
        "OpenAI", "https://api.openai.com/v1", ("OPENAI_API_KEY",), "OPENAI_BASE_URL", generator=OpenAIImages
    ),
    "gemini": GeneratorSpec(
        "Gemini",
        "https://generativelanguage.googleapis.com",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        generator=GeminiImages,
    ),
}
VIDEOS = {
    "fal": GeneratorSpec("fal", "https://queue.fal.run", ("FAL_KEY",), generator=FalVideos),
    "xai": GeneratorSpec("xAI", "https://api.x.ai/v1", ("XAI_API_KEY",), "XAI_BASE_URL", generator=XaiVideos),
}


class GenerationService:
    """Makes images and videos for one runtime."""

    def __init__(self, settings: Settings, services: Services, client: Callable[[], GuardedClient]) -> None:
        self._settings = settings
        self._services = services
        self._client = client
        self._sources = MediaSources(settings.home, services)

    # Images

    async def make_image(self, args: JsonObject, ctx: ToolContext) -> str:
        """`image_generate`."""
        return await bounded(self._make_image(args, ctx), ctx, self._settings.image_gen.timeout + GRACE_SECONDS, LATE)

    def image_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        """Where the prompt goes, what it costs, and what is read."""
        read = self._source_effects(sources_of(args), ctx)
        try:
            generator = self.image_generator()
        except ToolcribError:
            # The tool reports it, and sends nothing.
            return read
        network = Effect("network", generator.host)
        if generator.is_free:
            return (*read, network)
        model = generator.model_for(is_edit=bool(sources_of(args)))
        price = self._settings.image_gen.price_usd
        price = PRICES_USD.get(model) if price is None else price
        return (*read, network, Effect("spend", _costs("an image", model, generator.display_name, price)))

    def image_generator(self) -> ImageGenerator:
        """The service that makes images; raises MediaFailed or UnknownGenerator with a remedy."""
        settings = self._settings.image_gen
        wanted = settings.provider.strip().lower() or ("openai" if settings.base_url else "")
        offered = of_plugins(self._services.plugins, "image", settings.timeout)
        found: list[Any] = [one for one in offered if one.name == wanted or not wanted]
        if not found:
            names = [wanted] if wanted else list(IMAGES)
            hosted = [self._hosted_image(name) for name in names if name in IMAGES]
            found = [one for one in hosted if one is not None]
        if found:
            chosen: ImageGenerator = found[0]
            return chosen
        raise self._nobody("image", wanted, IMAGES, [one.name for one in offered])

    def _hosted_image(self, name: str) -> HostedGenerator | None:
        settings = self._settings.image_gen
        access = IMAGES[name].access(
            self._client, "image_generate", own_url=settings.base_url, key_env=settings.key_env
        )
        if access is None:
            return None
        access = msgspec.structs.replace(
            access, seconds=settings.timeout, max_bytes=int(settings.max_file_mb * MEGABYTE)
        )
        generator = IMAGES[name].generator(access, settings.model, settings.edit_model)
        if isinstance(generator, OpenAIImages):
            generator.quality = settings.quality
        return generator

    async def _make_image(self, args: JsonObject, ctx: ToolContext) -> JsonObject:
        prompt, ratio = str(args.get("prompt") or "").strip(), str(args.get("aspect_ratio") or "landscape").lower()
        if not prompt:
            raise MediaFailed("the prompt is empty; describe the image in `prompt`")
        if ratio not in RATIOS:
            raise MediaFailed(f"aspect_ratio is {ratio!r}; pass landscape, square or portrait")
        generator, sources = self.image_generator(), sources_of(args)
        if sources and not generator.can_edit:
            raise MediaFailed(f"{generator.display_name} makes images from text only; leave out `image_url`")
        if len(sources) > generator.max_images:
            raise MediaFailed(
                f"{generator.display_name} takes at most {generator.max_images} images; you passed {len(sources)}"
            )
        images = await self._read(sources, ctx)
        made = await generator.make_image(ImageRequest(prompt=prompt, aspect_ratio=ratio, images=images))
        path = await self._saved(made, image_extension, "images", generator.display_name)
        result: JsonObject = {
            "success": True,
            "image": path,
            "model": made.model,
            "provider": generator.name,
            "prompt": prompt,
            "aspect_ratio": ratio,
            "modality": "image" if sources else "text",
        }
        return result if made.cost_usd is None else {**result, "cost_usd": made.cost_usd}

    # Videos

    async def make_video(self, args: JsonObject, ctx: ToolContext) -> str:
        """`video_generate`."""
        return await self._film(args, ctx, "")

    async def edit_video(self, args: JsonObject, ctx: ToolContext) -> str:
        """`xai_video_edit`."""
        return await self._film(args, ctx, "edit")

    async def extend_video(self, args: JsonObject, ctx: ToolContext) -> str:
        """`xai_video_extend`."""
        return await self._film(args, ctx, "extend")

    async def _film(self, args: JsonObject, ctx: ToolContext, task: str) -> str:
        seconds = self._settings.video_gen.timeout + GRACE_SECONDS
        return await bounded(self._make_video(args, ctx, task), ctx, seconds, LATE)

    def video_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        read = self._source_effects(sources_of(args), ctx)
        try:
            generator = self.video_generator("xai" if "video_url" in args else "")
        except ToolcribError:
            # The tool reports it, and sends nothing.
            return read
        model = generator.model_for(VideoRequest(prompt="", model=str(args.get("model") or "")))
        price = self._settings.video_gen.price_usd
        spend = Effect("spend", _costs("a video", model, generator.display_name, price))
        return (*read, Effect("network", generator.host), spend)

    def video_generator(self, only: str = "") -> VideoGenerator:
        """The service that makes videos; raises MediaFailed or UnknownGenerator with a remedy."""
        settings = self._settings.video_gen
        wanted = only or settings.provider.strip().lower()
        offered = of_plugins(self._services.plugins, "video", settings.timeout)
        found: list[Any] = [one for one in offered if (one.name == wanted or not wanted) and not only]
        if not found:
            names = [wanted] if wanted else list(VIDEOS)
            hosted = [self._hosted_video(name) for name in names if name in VIDEOS]
            found = [one for one in hosted if one is not None]
        if found:
            chosen: VideoGenerator = found[0]
            return chosen
        raise self._nobody("video", wanted, VIDEOS, [one.name for one in offered])

    def _hosted_video(self, name: str) -> HostedGenerator | None:
        settings = self._settings.video_gen
        own = settings.base_url if settings.provider.strip().lower() in ("", name) else ""
        access = VIDEOS[name].access(self._client, "video_generate", own_url=own)
        if access is None:
            return None
        access = msgspec.structs.replace(
            access, seconds=settings.timeout, max_bytes=int(settings.max_file_mb * MEGABYTE)
        )
        return VIDEOS[name].generator(access, settings.model)

    async def _make_video(self, args: JsonObject, ctx: ToolContext, task: str) -> JsonObject:
        generator = self.video_generator("xai" if task else "")
        images = await self._read(sources_of(args), ctx)
        given = {name: value for name, value in args.items() if name in VideoRequest.__struct_fields__}
        request = msgspec.convert({**given, "task": task or "generate"}, VideoRequest, strict=False)
        if not request.prompt.strip():
            raise MediaFailed("the prompt is empty; describe the video in `prompt`")
        if task and not request.video_url.startswith("https://"):
            raise MediaFailed("video_url must be a public https:// address, because the service fetches it itself")
        made = await generator.make_video(msgspec.structs.replace(request, images=images))
        path = await self._saved(made, video_extension, "videos", generator.display_name)
        return {
            "success": True,
            "video": path,
            "model": made.model,
            "provider": generator.name,
            "prompt": request.prompt,
            "aspect_ratio": request.aspect_ratio,
            "duration": request.duration,
            "modality": "video" if task else "image" if images else "text",
        }

    # Both

    def follow_plugins(self, registry: ToolRegistry) -> None:
        """Offer the tools also with a plugin's service alone, and with the parameters that it takes."""
        chosen: dict[str, Callable[[], Any]] = {"image": self.image_generator, "video": self.video_generator}
        for kind, choose in chosen.items():
            entry = registry.get_entry(f"{kind}_generate")
            if entry is None or not entry.is_ours or not declared(self._services.plugins, kind):
                continue
            registry.replace(
                msgspec.structs.replace(
                    entry,
                    check_fn=functools.partial(self._check, kind, entry.check_fn),
                    dynamic_schema_overrides=functools.partial(
                        _overrides, choose, entry.parameters, entry.dynamic_schema_overrides
                    ),
                )
            )

    def _check(self, kind: str, otherwise: CheckFn | None) -> bool | Unavailable:
        if of_plugins(self._services.plugins, kind, 0):
            return True
        return otherwise() if otherwise is not None else True

    def _nobody(self, kind: str, wanted: str, known: dict[str, GeneratorSpec], offered: list[str]) -> ToolcribError:
        if wanted and wanted not in known:
            return UnknownGenerator(
                wanted, sorted({*known, *offered}), advice=f"correct {kind}_gen.provider in the config"
            )
        names = ", ".join(known[wanted].key_variables) if wanted else ""
        missing = f"{names} is not set" if wanted else f"no service that makes {kind}s is configured"
        return MediaFailed(f"{missing}; run `toolcrib setup {kind}_generate` to enter a key")

    def _source_effects(self, sources: Sequence[str], ctx: ToolContext) -> tuple[Effect, ...]:
        found = [effect for source in sources for effect in self._sources.effects(source, ctx)]
        return tuple(dict.fromkeys(found))

    async def _read(self, sources: Sequence[str], ctx: ToolContext) -> list[SourceImage]:
        if len(sources) > MAX_SOURCES:
            raise MediaFailed(f"{len(sources)} images are too many; pass at most {MAX_SOURCES}")
        found = []
        for source in sources:
            data = await self._sources.read(source, ctx, MAX_SOURCE_BYTES)
            extension = image_extension(data)
            if not extension:
                raise MediaFailed(f"{source[:300]!r} is no PNG, JPEG, WebP or GIF image")
            found.append(SourceImage(data, extension))
        return found

    async def _saved(self, made: GeneratedMedia, extension: Callable[[bytes], str], folder: str, name: str) -> str:
        """The file with what was made; raises MediaFailed if it is something else than it should be."""
        if made.path:
            return made.path
        suffix = extension(made.data)
        if not suffix:
            raise MediaFailed(f"{name} sent something that is none of the {folder} that are known here")
        home = self._settings.home
        own = owner_folder(home.root / "cache" / folder, await asyncio.to_thread(calling_owner, home))
        return str(await asyncio.to_thread(_write, own, suffix, made.data))


def sources_of(args: JsonObject) -> list[str]:
    """The images of a call: the one to change, then the references."""
    more = args.get("reference_image_urls") or []
    listed = [args.get("image_url"), *([more] if isinstance(more, str) else more)]
    return list(dict.fromkeys(one.strip() for one in listed if isinstance(one, str) and one.strip()))


def _costs(what: str, model: str, service: str, price: float | None) -> str:
    about = f"about ${price:g}" if price is not None else "an unknown amount"
    return f"{about} for {what} by {model or 'the usual model'} at {service}"


def _write(folder: Path, suffix: str, data: bytes) -> Path:
    make_folder(folder)
    path = folder / f"{datetime.now():%Y%m%d-%H%M%S}-{token_hex(4)}.{suffix}"
    path.write_bytes(data)
    return path


class PluginGenerator(PluginProvider):
    """A plugin's object that makes images or videos."""

    is_free = False

    def __init__(self, provider: Any, seconds: float, kind: str) -> None:
        super().__init__(provider, seconds)
        self._kind = kind

    @property
    def capabilities(self) -> Capabilities:
        return plugin_capabilities(self.ask("capabilities", {}), tuple(RATIOS) if self._kind == "image" else ())

    @property
    def can_edit(self) -> bool:
        return self.capabilities.takes_image

    @property
    def max_images(self) -> int:
        return 1 + self.capabilities.max_references

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


def declared(plugins: Sequence[Any], kind: str) -> list[Any]:
    """The objects that the loaded plugins registered, for `image` or `video`."""
    return list(declared_objects(plugins, f"{kind}_gen_provider"))


def of_plugins(plugins: Sequence[Any], kind: str, seconds: float) -> list[PluginGenerator]:
    """The services of the loaded plugins that can be used now, for `image` or `video`."""
    found = [PluginGenerator(one, seconds, kind) for one in declared(plugins, kind)]
    return [one for one in found if one.name and one.is_available]


def _overrides(
    choose: Callable[[], Any], parameters: JsonObject, otherwise: Callable[[], JsonObject] | None
) -> JsonObject:
    """What the chosen service takes, if it is a plugin's; a built-in one keeps its own rule."""
    try:
        generator = choose()
    except ToolcribError:
        # The tool says what is wrong when it is called.
        return {}
    if isinstance(generator, PluginGenerator):
        return {"parameters": generator.capabilities.narrow(parameters)}
    return otherwise() if otherwise is not None else {}
