"""The settings of `text_to_speech`, and of speech recognition.

Annotations are real objects here, as in `settings.py`.
"""

from typing import Literal

from toolcrib.config.section import PositiveFloat, PositiveInt, Section


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
