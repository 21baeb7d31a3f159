"""The settings of `image_generate` and `video_generate`.

Annotations are real objects here, as in `settings.py`.
"""

from typing import Annotated

from msgspec import Meta

from toolcrib.config.section import PositiveFloat, Section

Price = Annotated[float | None, Meta(ge=0)]


class ImageGenSettings(Section, frozen=True, kw_only=True):
    """How `image_generate` makes images."""

    provider: str = ""
    """The service: openai (and every server with its image routes), fal, gemini, replicate, or one of a plugin. Empty
    means the first one with a key."""
    model: str = ""
    """The model, as its service names it; empty means the service's usual one."""
    edit_model: str = ""
    """The model that changes images, if it is another one; `fal` and `replicate` have different models for it."""
    base_url: str = ""
    """The address of the server, for example http://127.0.0.1:8000/v1; with it, `provider` is openai by default."""
    key_env: str = ""
    """The environment variable with the key, if it is not the usual one of the service."""
    quality: str = ""
    """For openai: low, medium or high; empty leaves it to the service."""
    price_usd: Price = None
    """What one image costs, for the question before a call; unset means what the service lists, where that is known."""
    timeout: PositiveFloat = 180
    """How many seconds one image may take."""
    max_file_mb: PositiveFloat = 50
    """The largest image to fetch or to send, in megabytes."""


class VideoGenSettings(Section, frozen=True, kw_only=True):
    """How `video_generate` makes videos."""

    provider: str = ""
    """The service: fal, xai, or one of a plugin. Empty means the first one with a key."""
    model: str = ""
    """The model, as its service names it; empty means the service's usual one."""
    base_url: str = ""
    """The address of the service, if it is not the usual one."""
    price_usd: Price = None
    """What one video costs, for the question before a call."""
    timeout: PositiveFloat = 900
    """How many seconds one video may take."""
    max_file_mb: PositiveFloat = 200
    """The largest video to fetch, in megabytes."""
