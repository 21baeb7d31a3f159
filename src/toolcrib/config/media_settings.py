"""The settings of the media tools: vision, generated images and videos, and speech.

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


class TtsSettings(Section, frozen=True, kw_only=True):
    """How `text_to_speech` speaks."""

    provider: str = ""
    """Who speaks: elevenlabs, minimax, piper, edge, espeak, openai, mistral or gemini. Empty means the first one
    that is configured, in this order."""
    voice: str = ""
    """The voice, as its provider names it; empty means the usual one."""
    model: str = ""
    """The model, as its provider names it; empty means the usual one."""
    base_url: str = ""
    """The address of a server with OpenAI's speech route, for example http://127.0.0.1:8000/v1; with it, `provider` is
    openai by default."""
    key_env: str = ""
    """The environment variable with the key, if it is not the usual one of the provider."""
    piper_model: str = ""
    """The file of a voice for piper; without it, piper is not used."""
    format: Literal["auto", "ogg", "mp3", "wav", "flac"] = "auto"
    """The format of files that the model does not name: `auto` is Opus in Ogg where ffmpeg is installed, which
    messengers show as a voice message, else what the provider gives."""
    max_chars: PositiveInt = 40_000
    """The longest text; it is spoken in pieces that the provider accepts."""
    timeout: PositiveFloat = 180
    """How many seconds one text may take."""


class SttSettings(Section, frozen=True, kw_only=True):
    """How speech in audio files is recognised."""

    provider: str = ""
    """Who listens: moonshine (on this machine, English, with the extra `speech`), groq, openai, mistral or elevenlabs.
    Empty means the first one that is configured, in this order."""
    model: str = ""
    """The model, as its provider names it; empty means the usual one."""
    language: str = ""
    """The language of the speech, such as `de`; empty means that the provider finds out."""
    base_url: str = ""
    """The address of a server with OpenAI's transcription route; with it, `provider` is openai by default."""
    key_env: str = ""
    """The environment variable with the key, if it is not the usual one of the provider."""
    timeout: PositiveFloat = 180
    """How many seconds one file may take."""
    max_file_mb: PositiveFloat = 25
    """The largest file to listen to, in megabytes."""
