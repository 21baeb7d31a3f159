"""The settings of `vision_analyze` and `video_analyze`.

Annotations are real objects here, as in `settings.py`.
"""

from typing import Annotated, Literal

from msgspec import Meta

from toolcrib.config.section import PositiveFloat, PositiveInt, Section


class VisionModelSettings(Section, frozen=True, kw_only=True):
    """The model that looks at images and videos. Empty means the main model, if it sees."""

    model: str = ""
    """The model, as its provider names it; `provider/model` names both."""
    provider: str = ""
    """Its provider."""
    base_url: str = ""
    """The address of its server, if it is not the provider's own."""
    takes_video: bool | None = None
    """Whether it takes whole videos, as `video_url`; unset: only models that OpenRouter documents so."""


class VisionSettings(Section, frozen=True, kw_only=True):
    """How `vision_analyze` and `video_analyze` work. `auxiliary.vision` names the model."""

    show: Literal["auto", "never"] = "auto"
    """`auto` shows an image to the main model itself if it sees and `auxiliary.vision` is not set; `never` always asks
    a model for a description."""
    ocr: bool = True
    """Read the text in images on this machine if no model can see, with the extra `ocr`."""
    timeout: PositiveFloat = 120
    """How many seconds one call may take."""
    max_side: Annotated[int, Meta(ge=64, le=7_900)] = 1568
    """The longest side of an image in pixels; larger ones are scaled down."""
    max_megapixels: PositiveFloat = 100
    """The largest image to decode, in megapixels."""
    max_file_mb: PositiveFloat = 50
    """The largest image or video to read, in megabytes."""
    max_images: PositiveInt = 8
    """How many images one call may have."""
    max_frames: Annotated[int, Meta(ge=1, le=64)] = 16
    """How many frames of a video to look at."""
    max_sound_seconds: PositiveFloat = 300
    """How much of a video's sound a model that hears gets, in seconds."""
