"""Services that speak (OpenAI, ElevenLabs, MiniMax, Mistral, Gemini) and that listen (OpenAI's route, ElevenLabs)."""

from __future__ import annotations

from typing import Any

from toolcrib.media.speech.audio import Speech, audio_format, pcm_as_wav
from toolcrib.web.hosted_service import ApiService, ServiceSpec, from_base64
from toolcrib.web.provider_access import ProviderAccess, ProviderFailed, multipart

MINIMAX_KEY_CODES = (1004, 2049)
MINIMAX_QUOTA_CODES = (1002, 1008, 1039, 2056)
GEMINI_RATE = 24_000


class HostedSpeech(ApiService):
    """A service that speaks."""

    max_chars = 4_000
    usual_model = ""
    usual_voice = ""

    def __init__(self, access: ProviderAccess, model: str = "", voice: str = "") -> None:
        super().__init__(access, model or self.usual_model)
        self.voice = voice or self.usual_voice

    async def speak(self, text: str) -> Speech:
        """The spoken text; raises ProviderFailed."""
        data = await self.spoken(text)
        kind = audio_format(data)
        if not kind:
            raise self.access.malformed()
        return Speech(data, kind)

    async def spoken(self, text: str) -> bytes:
        raise NotImplementedError


class OpenAISpeech(HostedSpeech):
    """https://platform.openai.com/docs/api-reference/audio/createSpeech, and every server with the same route."""

    name = "openai"
    usual_model = "gpt-4o-mini-tts"
    usual_voice = "alloy"

    async def spoken(self, text: str) -> bytes:
        body = {"model": self.model, "voice": self.voice, "input": text, "response_format": "mp3"}
        return (await self.access.post("/audio/speech", body, {"accept": "*/*", **self.bearer})).body


class ElevenLabsSpeech(HostedSpeech):
    """https://elevenlabs.io/docs/api-reference/text-to-speech/convert"""

    name = "elevenlabs"
    usual_model = "eleven_multilingual_v2"
    usual_voice = "21m00Tcm4TlvDq8ikWAM"

    async def spoken(self, text: str) -> bytes:
        path = f"/v1/text-to-speech/{self.voice}?output_format=mp3_44100_128"
        headers = {"accept": "*/*", "xi-api-key": self.access.key}
        return (await self.access.post(path, {"text": text, "model_id": self.model}, headers)).body


class MiniMaxSpeech(HostedSpeech):
    """https://platform.minimax.io/docs/api-reference/speech-t2a-http"""

    name = "minimax"
    max_chars = 9_000
    usual_model = "speech-2.6-hd"
    usual_voice = "English_expressive_narrator"

    async def spoken(self, text: str) -> bytes:
        body = {
            "model": self.model,
            "text": text,
            "stream": False,
            "voice_setting": {"voice_id": self.voice, "speed": 1, "vol": 1, "pitch": 0},
            "audio_setting": {"sample_rate": 32_000, "bitrate": 128_000, "format": "mp3", "channel": 1},
        }
        answer = await self.access.post_json("/v1/t2a_v2", body, self.bearer)
        # It says in its answer what others say with the status.
        code = self.read(lambda value: value.get("base_resp", {}).get("status_code", 0), answer)
        if code in MINIMAX_KEY_CODES:
            raise self.access.refused()
        if code in MINIMAX_QUOTA_CODES:
            raise ProviderFailed(f"the request limit of {self.display_name} is reached; try again later", "quota")
        if code:
            raise ProviderFailed(f"{self.display_name} did not accept the request (code {code})", "request")
        return bytes(self.read(lambda value: bytes.fromhex(value["data"]["audio"]), answer))


class MistralSpeech(HostedSpeech):
    """https://docs.mistral.ai/studio/audio/text-to-speech"""

    name = "mistral"
    usual_model = "voxtral-mini-tts-2603"
    usual_voice = "en_paul_neutral"

    async def spoken(self, text: str) -> bytes:
        body = {"model": self.model, "input": text, "voice_id": self.voice, "response_format": "mp3"}
        answer = await self.access.post_json("/v1/audio/speech", body, self.bearer)
        return bytes(self.read(lambda value: from_base64(value["audio_data"]), answer))


class GeminiSpeech(HostedSpeech):
    """https://ai.google.dev/gemini-api/docs/speech-generation"""

    name = "gemini"
    usual_model = "gemini-2.5-flash-preview-tts"
    usual_voice = "Kore"

    async def spoken(self, text: str) -> bytes:
        voice = {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": self.voice}}}
        body = {
            "contents": [{"parts": [{"text": text}]}],
            "generationConfig": {"responseModalities": ["AUDIO"], "speechConfig": voice},
        }
        headers = {"x-goog-api-key": self.access.key}
        answer = await self.access.post_json(f"/v1beta/models/{self.model}:generateContent", body, headers)
        samples = self.read(_gemini_samples, answer)
        return pcm_as_wav(samples, GEMINI_RATE)


def _gemini_samples(answer: Any) -> bytes:
    parts = answer["candidates"][0]["content"]["parts"]
    return from_base64(next(part["inlineData"]["data"] for part in parts if "inlineData" in part))


class HostedListener(ApiService):
    """A service with OpenAI's transcription route: https://platform.openai.com/docs/api-reference/audio"""

    name = "openai"
    path = "/audio/transcriptions"
    usual_model = "gpt-4o-mini-transcribe"
    model_field = "model"
    language_field = "language"

    async def listen(self, data: bytes, language: str) -> str:
        """What is said; raises ProviderFailed."""
        fields = {self.model_field: self.model or self.usual_model}
        if language:
            fields[self.language_field] = language
        content_type, body = multipart(fields, [("file", f"audio.{audio_format(data) or 'bin'}", data)])
        headers = {"content-type": content_type, **self.key_headers}
        answer = self.access.parse(await self.access.send("POST", self.path, headers, body))
        return str(self.read(_text_of, answer))

    @property
    def key_headers(self) -> dict[str, str]:
        return self.bearer


def _text_of(answer: Any) -> str:
    if not isinstance(answer["text"], str):
        raise TypeError("text")
    return answer["text"].strip()


class GroqListener(HostedListener):
    name = "groq"
    usual_model = "whisper-large-v3-turbo"


class MistralListener(HostedListener):
    name = "mistral"
    usual_model = "voxtral-mini-latest"


class ElevenLabsListener(HostedListener):
    """https://elevenlabs.io/docs/api-reference/speech-to-text/convert"""

    name = "elevenlabs"
    path = "/v1/speech-to-text"
    usual_model = "scribe_v1"
    model_field = "model_id"
    language_field = "language_code"

    @property
    def key_headers(self) -> dict[str, str]:
        return {"xi-api-key": self.access.key}


class SpeechSpec(ServiceSpec, frozen=True, kw_only=True):
    speech: type[HostedSpeech]


class ListenerSpec(ServiceSpec, frozen=True, kw_only=True):
    listener: type[HostedListener]


_GOOGLE = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
_ELEVENLABS, _OPENAI = "https://api.elevenlabs.io", "https://api.openai.com/v1"
SPEAKERS = {
    "elevenlabs": SpeechSpec("ElevenLabs", _ELEVENLABS, ("ELEVENLABS_API_KEY",), speech=ElevenLabsSpeech),
    "minimax": SpeechSpec("MiniMax", "https://api.minimax.io", ("MINIMAX_API_KEY",), speech=MiniMaxSpeech),
    "openai": SpeechSpec("OpenAI", _OPENAI, ("OPENAI_API_KEY",), "OPENAI_BASE_URL", speech=OpenAISpeech),
    "mistral": SpeechSpec("Mistral", "https://api.mistral.ai", ("MISTRAL_API_KEY",), speech=MistralSpeech),
    "gemini": SpeechSpec("Gemini", "https://generativelanguage.googleapis.com", _GOOGLE, speech=GeminiSpeech),
}
LISTENERS = {
    "groq": ListenerSpec("Groq", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), listener=GroqListener),
    "openai": ListenerSpec("OpenAI", _OPENAI, ("OPENAI_API_KEY",), "OPENAI_BASE_URL", listener=HostedListener),
    "mistral": ListenerSpec("Mistral", "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",), listener=MistralListener),
    "elevenlabs": ListenerSpec("ElevenLabs", _ELEVENLABS, ("ELEVENLABS_API_KEY",), listener=ElevenLabsListener),
}
