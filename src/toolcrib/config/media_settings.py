"""The settings of the tools that make images, videos and speech, and of speech recognition.

Annotations are real objects here, as in `settings.py`.
"""

from typing import Annotated, Literal

from msgspec import Meta

from toolcrib.config.section import PositiveFloat, PositiveInt, Section

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
