"""Images and videos: generates them with paid services."""

from __future__ import annotations

import functools
from typing import Any

from toolcrib.config.load import load_settings
from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject, Unavailable
from toolcrib.media.generation.capabilities import MAX_REFERENCES, NO_EXTRAS, image_capabilities
from toolcrib.registry import registry
from toolcrib.registry.availability import runs_in_place
from toolcrib.tools.checks import check_client, config_text, has_variable

IMAGE_VARIABLES = ("FAL_KEY", "REPLICATE_API_TOKEN", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
VIDEO_VARIABLES = ("FAL_KEY", "XAI_API_KEY")


async def image_generate(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.generation.make_image(args, ctx)


def image_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """The service that gets the prompt, what it charges, and the images that are read."""
    return ctx.services.generation.image_effects(args, ctx)


async def video_generate(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.generation.make_video(args, ctx)


async def xai_video_edit(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.generation.edit_video(args, ctx)


async def xai_video_extend(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.generation.extend_video(args, ctx)


def video_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """The service that gets the prompt, what it charges, and the images that are read."""
    return ctx.services.generation.video_effects(args, ctx)


@runs_in_place
def check_images() -> bool | Unavailable:
    """Whether a service is configured: a key, or a section of the config that names a server or a plugin's service."""
    return _check("image_generate", IMAGE_VARIABLES, "image_gen:")


@runs_in_place
def check_videos() -> bool | Unavailable:
    return _check("video_generate", VIDEO_VARIABLES, "video_gen:")


@runs_in_place
def check_xai() -> bool | Unavailable:
    return _check("xai_video_edit", ("XAI_API_KEY",), "")


def _check(tool: str, variables: tuple[str, ...], section: str) -> bool | Unavailable:
    if has_variable(*variables) or (section and section in config_text()):
        return check_client()
    remedy = f"run `toolcrib setup {tool}` to enter a key"
    if section:
        remedy += f", or name your own server or a plugin's service in `{section[:-1]}`"
    return Unavailable(f"no service that makes {'images' if 'image' in tool else 'videos'} is configured", remedy)


IMAGES_GIVEN: JsonObject = {
    "image_url": {
        "type": "string",
        "description": "An image to change: a path, an address, a data URL, or the file of an earlier result",
    },
    "reference_image_urls": {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "maxItems": MAX_REFERENCES,
        "description": "Further images to follow in style or content",
    },
}
IMAGE_SCHEMA: JsonObject = {
    "name": "image_generate",
    "description": (
        "Make an image from a description, or change images. Costs money with most services. Returns the path of the "
        "file in `image`; show it to the user as a Markdown image."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "minLength": 1, "description": "What to show, in detail"},
            "aspect_ratio": {
                "type": "string",
                "enum": ["landscape", "square", "portrait"],
                "default": "landscape",
                "description": "The shape of the image",
            },
            **IMAGES_GIVEN,
        },
        "required": ["prompt"],
    },
}


def image_overrides() -> JsonObject:
    """The parameters that the configured model takes: one takes no images, another only one, and only squares."""
    text = config_text()
    # Only these models take less than the schema says, and reading the whole config costs more than everything else.
    return _image_overrides(text) if "dall-e-" in text else {}


@functools.lru_cache(maxsize=1)
def _image_overrides(_config: str) -> JsonObject:
    settings = load_settings().image_gen
    taken = image_capabilities(settings.model, settings.edit_model)
    return {"parameters": taken.narrow(IMAGE_SCHEMA["parameters"])}


def video_overrides() -> JsonObject:
    """The parameters that the configured service takes: xAI has no use for some."""
    text = config_text() if "video_gen:" in config_text() else ""
    return _video_overrides(text, has_variable("FAL_KEY"))


@functools.lru_cache(maxsize=1)
def _video_overrides(config: str, has_fal: bool) -> JsonObject:
    provider = load_settings().video_gen.provider.strip().lower() if config else ""
    if provider == "fal" or (not provider and has_fal):
        return {}
    return {"parameters": NO_EXTRAS.narrow(VIDEO_SCHEMA["parameters"])} if provider in ("", "xai") else {}


VIDEO_SCHEMA: JsonObject = {
    "name": "video_generate",
    "description": (
        "Make a short video from a description, or from an image as its first frame. Takes minutes and costs money. "
        "Returns the path of the file in `video`."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "minLength": 1, "description": "What happens, in detail"},
            **IMAGES_GIVEN,
            "duration": {"type": "integer", "minimum": 1, "maximum": 60, "description": "Its length in seconds"},
            "aspect_ratio": {"type": "string", "description": "For example 16:9, 9:16 or 1:1"},
            "resolution": {"type": "string", "description": "For example 720p or 1080p"},
            "negative_prompt": {"type": "string", "description": "What not to show"},
            "audio": {"type": "boolean", "description": "Whether to make sound, where the model can"},
            "seed": {"type": "integer", "description": "The same seed gives a similar video"},
            "model": {"type": "string", "description": "Another model of the same service"},
        },
        "required": ["prompt"],
    },
}
VIDEO_URL: JsonObject = {
    "type": "string",
    "minLength": 1,
    "description": "The public https:// address of the video",
}
EDIT_SCHEMA: JsonObject = {
    "name": "xai_video_edit",
    "description": "Change an existing video with words, with xAI. Takes minutes and costs money.",
    "parameters": {
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "minLength": 1, "description": "What to change"},
            "video_url": VIDEO_URL,
            "model": {"type": "string", "description": "Another model of xAI"},
        },
        "required": ["prompt", "video_url"],
    },
}
EXTEND_SCHEMA: JsonObject = {
    "name": "xai_video_extend",
    "description": "Continue an existing video, with xAI. Takes minutes and costs money.",
    "parameters": {
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "minLength": 1, "description": "What happens next"},
            "video_url": VIDEO_URL,
            "duration": {"type": "integer", "minimum": 1, "maximum": 60, "description": "How many seconds to add"},
            "model": {"type": "string", "description": "Another model of xAI"},
        },
        "required": ["prompt", "video_url"],
    },
}

registry.register(
    name="image_generate",
    toolset="image_gen",
    schema=IMAGE_SCHEMA,
    handler=image_generate,
    check_fn=check_images,
    is_async=True,
    emoji="🎨",
    effects=image_effects,
    dynamic_schema_overrides=image_overrides,
)
registry.register(
    name="video_generate",
    toolset="video_gen",
    schema=VIDEO_SCHEMA,
    handler=video_generate,
    check_fn=check_videos,
    is_async=True,
    emoji="🎞️",
    effects=video_effects,
    dynamic_schema_overrides=video_overrides,
)
registry.register(
    name="xai_video_edit",
    toolset="video_gen",
    schema=EDIT_SCHEMA,
    handler=xai_video_edit,
    check_fn=check_xai,
    is_async=True,
    emoji="🎞️",
    effects=video_effects,
)
registry.register(
    name="xai_video_extend",
    toolset="video_gen",
    schema=EXTEND_SCHEMA,
    handler=xai_video_extend,
    check_fn=check_xai,
    is_async=True,
    emoji="🎞️",
    effects=video_effects,
)
