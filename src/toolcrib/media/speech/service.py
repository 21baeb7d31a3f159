"""The service behind `text_to_speech`, and the recognition of speech for `read_file` and messaging platforms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from toolcrib.config.files import make_folder
from toolcrib.config.page_files import owner_folder
from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.errors import ConfigError, ToolcribError, UnknownName
from toolcrib.core.types import Effect, JsonObject
from toolcrib.media.images import MediaFailed
from toolcrib.media.speech.audio import ENCODERS, Speech, audio_format, encoded, joined, pieces_of
from toolcrib.media.speech.local import (
    INSTALL,
    EdgeTts,
    Espeak,
    MoonshineListener,
    Piper,
    SpeakingProgram,
    is_installed,
)
from toolcrib.media.video import find_ffmpeg
from toolcrib.registry.results import sendable, tool_error, tool_result
from toolcrib.sessions.owners import calling_owner

if TYPE_CHECKING:
    from toolcrib.web.http_client import GuardedClient

MEGABYTE = 1_000_000
ORDER = ("elevenlabs", "minimax", "piper", "edge", "espeak", "openai", "mistral", "gemini")
"""Whoever has a key for nothing but speech means it; then what costs nothing; then keys that are there for chats."""
LISTENING_ORDER = ("moonshine", "groq", "openai", "mistral", "elevenlabs")
PROGRAMS: dict[str, type[SpeakingProgram]] = {"piper": Piper, "edge": EdgeTts, "espeak": Espeak}
SUFFIXES = {".ogg": "ogg", ".opus": "ogg", ".oga": "ogg", ".mp3": "mp3", ".wav": "wav", ".flac": "flac"}
PRICES_USD = {"gpt-4o-mini-tts": 12, "tts-1": 15, "tts-1-hd": 30, "speech-2.6-hd": 100, "voxtral-mini-tts-2603": 16}
"""What a million characters cost about, in dollars, as the services listed it."""


class Speaker(Protocol):
    """Whoever speaks."""

    name: str
    max_chars: int

    @property
    def display_name(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def is_free(self) -> bool: ...

    async def speak(self, text: str) -> Speech: ...


class Listener(Protocol):
    """Whoever recognises speech."""

    name: str

    @property
    def display_name(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def is_free(self) -> bool: ...

    async def listen(self, data: bytes, language: str) -> str: ...


class UnknownSpeaker(UnknownName):
    kind = "speech provider"


class SpeechService:
    """Speaks and listens for one runtime."""

    def __init__(self, settings: Settings, services: Services, client: Callable[[], GuardedClient]) -> None:
        self._settings = settings
        self._services = services
        self._client = client

    # Speaking

    async def speak(self, args: JsonObject, ctx: ToolContext) -> str:
        """`text_to_speech`."""
        seconds = self._settings.tts.timeout
        if ctx.deadline is not None:
            seconds = max(0.1, min(seconds, ctx.deadline - time.monotonic()))
        try:
            async with asyncio.timeout(seconds):
                return sendable(tool_result(await self._speak(args, ctx)))
        except TimeoutError:
            return tool_error(f"it took longer than {seconds:g} seconds; try a shorter text", success=False)
        except (ToolcribError, ConfigError) as error:
            return tool_error(error, success=False)

    def speak_effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        """Where the text goes, what it costs, and the file that is written."""
        path = str(args.get("output_path") or "")
        written = self._services.files.write_effects({"path": path}, ctx) if path else ()
        try:
            speaker = self.speaker()
        except ToolcribError:
            # The tool reports it, and sends nothing.
            return written
        network = (Effect("network", speaker.host),) if speaker.host else ()
        if speaker.is_free:
            return (*written, *network)
        model = str(getattr(speaker, "model", ""))
        length, price = len(str(args.get("text") or "")), PRICES_USD.get(model)
        about = f"about ${price * length / 1_000_000:.4f}" if price else "an unknown amount"
        return (*written, *network, Effect("spend", f"{about} for {length} characters at {speaker.display_name}"))

    def speaker(self) -> Speaker:
        """Who speaks; raises MediaFailed or UnknownSpeaker with a remedy."""
        settings = self._settings.tts
        wanted = settings.provider.strip().lower() or ("openai" if settings.base_url else "")
        if wanted and wanted not in ORDER:
            raise UnknownSpeaker(wanted, ORDER, advice="correct tts.provider in the config")
        found = (self._speaker_named(name) for name in ([wanted] if wanted else ORDER))
        if chosen := next((one for one in found if one is not None), None):
            return chosen
        raise MediaFailed(self._why_silent(wanted))

    def _why_silent(self, wanted: str) -> str:
        """Why nobody speaks, and what to do."""
        if not wanted:
            why = "nothing on this machine speaks, and no service has a key"
            return f"{why}; run `toolcrib setup text_to_speech` to enter a key, or: apt install espeak-ng"
        if wanted not in PROGRAMS:
            names = " or ".join(_hosted().SPEAKERS[wanted].key_variables)
            return f"{names} is not set; run `toolcrib setup text_to_speech` to enter a key"
        program = PROGRAMS[wanted]
        if program.find():
            return "piper has no voice; name the file of one with `toolcrib config set tts.piper_model FILE`"
        return f"{program.display_name} is not installed; install it, or name another one in tts.provider"

    def _speaker_named(self, name: str) -> Speaker | None:
        settings = self._settings.tts
        if name not in PROGRAMS:
            return self._hosted_speaker(name)
        program = PROGRAMS[name].find()
        if not program or (name == "piper" and not settings.piper_model):
            return None
        speaker = PROGRAMS[name](program, settings.voice, settings.timeout)
        if isinstance(speaker, Piper):
            speaker.model = str(Path(settings.piper_model).expanduser())
        return speaker

    def _hosted_speaker(self, name: str) -> Speaker | None:
        settings = self._settings.tts
        spec = _hosted().SPEAKERS[name]
        access = spec.access(self._client, "text_to_speech", own_url=settings.base_url, key_env=settings.key_env)
        if access is None:
            return None
        speaker: Speaker = spec.speech(
            msgspec.structs.replace(access, seconds=settings.timeout), settings.model, settings.voice
        )
        return speaker

    async def _speak(self, args: JsonObject, ctx: ToolContext) -> JsonObject:
        text, path = str(args.get("text") or "").strip(), str(args.get("output_path") or "").strip()
        limit = self._settings.tts.max_chars
        if not text:
            raise MediaFailed("the text is empty; pass what to say in `text`")
        if len(text) > limit:
            raise MediaFailed(f"the text has {len(text)} characters; at most {limit} are spoken, so shorten it")
        suffix = Path(path).suffix.lower()
        if path and suffix not in SUFFIXES:
            raise MediaFailed(f"output_path must end with {', '.join(SUFFIXES)}")
        speaker = self.speaker()
        parts = []
        for piece in pieces_of(text, speaker.max_chars):
            ctx.progress(f"speaking with {speaker.display_name}")
            parts.append(await speaker.speak(piece))
        speech = await self._in_format(joined(parts), SUFFIXES.get(suffix, ""))
        if path:
            await self._services.files.write_bytes(path, speech.data, ctx)
        else:
            home = self._settings.home
            folder = owner_folder(home.root / "cache" / "audio", await asyncio.to_thread(calling_owner, home))
            path = str(await asyncio.to_thread(_write, folder, speech))
        is_voice = speech.format == "ogg"
        return {
            "success": True,
            "file_path": path,
            "media_tag": f"[[audio_as_voice]]\nMEDIA:{path}" if is_voice else f"MEDIA:{path}",
            "provider": speaker.name,
            "format": speech.format,
            "voice_compatible": is_voice,
        }

    async def _in_format(self, speech: Speech, wanted: str) -> Speech:
        if not wanted and self._settings.tts.format != "auto":
            wanted = self._settings.tts.format
        if not wanted and find_ffmpeg():
            wanted = "ogg"
        if not wanted or wanted == speech.format:
            return speech
        assert wanted in ENCODERS
        return await encoded(speech, wanted)

    # Listening

    async def transcribe(self, data: bytes, *, may_send: bool) -> tuple[str, str]:
        """What is said in an audio file, and who listened; raises ToolcribError.

        Without `may_send`, only this machine may hear it.
        """
        settings = self._settings.stt
        if not audio_format(data):
            raise MediaFailed("it is not audio that can be read; known formats are wav, mp3, ogg, flac, m4a and webm")
        if len(data) > settings.max_file_mb * MEGABYTE:
            raise MediaFailed(f"it has {len(data)} bytes, more than stt.max_file_mb allows")
        listener = self.listener()
        if not may_send and listener.host:
            raise MediaFailed(f"{listener.display_name} would hear it, which was not approved")
        try:
            async with asyncio.timeout(settings.timeout):
                return await listener.listen(data, settings.language), listener.display_name
        except TimeoutError:
            raise MediaFailed(f"listening took longer than {settings.timeout:g} seconds") from None

    def transcription_effects(self) -> tuple[Effect, ...]:
        """What listening to a file does besides reading it."""
        try:
            listener = self.listener()
        except ToolcribError:
            return ()
        if not listener.host:
            return ()
        network = Effect("network", listener.host)
        spend = Effect("spend", f"an unknown amount for recognising speech at {listener.display_name}")
        return (network,) if listener.is_free else (network, spend)

    def listener(self) -> Listener:
        """Who recognises speech; raises MediaFailed or UnknownSpeaker with a remedy."""
        settings = self._settings.stt
        wanted = settings.provider.strip().lower() or ("openai" if settings.base_url else "")
        if wanted and wanted not in LISTENING_ORDER:
            raise UnknownSpeaker(wanted, LISTENING_ORDER, advice="correct stt.provider in the config")
        found = (self._listener_named(name) for name in ([wanted] if wanted else LISTENING_ORDER))
        if chosen := next((one for one in found if one is not None), None):
            return chosen
        raise MediaFailed(f"nothing that recognises speech is installed; {INSTALL}")

    def _listener_named(self, name: str) -> Listener | None:
        if name == "moonshine":
            return self._local if is_installed() else None
        settings = self._settings.stt
        spec = _hosted().LISTENERS[name]
        access = spec.access(self._client, "text_to_speech", own_url=settings.base_url, key_env=settings.key_env)
        if access is None:
            return None
        listener: Listener = spec.listener(msgspec.structs.replace(access, seconds=settings.timeout), settings.model)
        return listener

    @cached_property
    def _local(self) -> MoonshineListener:
        return MoonshineListener()

    def close(self) -> None:
        if "_local" in vars(self):
            self._local.close()


def _write(folder: Path, speech: Speech) -> Path:
    make_folder(folder)
    path = folder / f"{datetime.now():%Y%m%d-%H%M%S}-{token_hex(4)}.{speech.format}"
    path.write_bytes(speech.data)
    return path


def _hosted() -> Any:
    """The module of services elsewhere: its HTTP client is an extra, and programs on this machine do without it."""
    from toolcrib.media.speech import hosted  # noqa: PLC0415

    return hosted
